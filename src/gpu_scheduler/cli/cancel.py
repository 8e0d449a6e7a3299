"""`tgpu cancel`: stop jobs, or take them from the queue."""

from __future__ import annotations

from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import NONE, references
from gpu_scheduler.cli.several import for_each

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping
    from typing import Any

    from gpu_scheduler.cli.references import Reference
    from gpu_scheduler.client.client import Client


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, 12_[1-3], last, @~1, all")
    add("--dry-run", action="store_true", help="show which jobs would be cancelled")
    add("-q", "--quiet", action="store_true", help="say nothing when it worked")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Cancel each; one that cannot be cancelled does not stop the others."""
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found and not args.quiet:
            warn(NONE)

        def cancel(reference: Reference) -> None:
            answer = (_looked_up if args.dry_run else _cancelled)(client, reference)
            answers.append(answer)
            if not args.json and not args.quiet:
                print(_sentence(str(reference), answer))

        exit_code = for_each(found, cancel)
    if args.json:
        from gpu_scheduler.cli.output import print_json

        print_json(answers)
    return exit_code


def _cancelled(client: Client, reference: Reference) -> dict[str, Any]:
    """What the server says; about one task, when one is named."""
    if (reference.tasks or "").isdecimal():
        return client.cancel(str(reference))
    return client.cancel(reference.job_id, reference.tasks) | {"job_id": str(reference)}


def _looked_up(client: Client, reference: Reference) -> dict[str, Any]:
    """What would be cancelled."""
    tasks = reference.tasks or ""
    job = client.get(str(reference) if tasks.isdecimal() else reference.job_id)
    if tasks and not tasks.isdecimal():
        _expect_tasks(client, job, tasks)
    answer = {"job_id": str(reference), "status": "would be cancelled"}
    return answer | {"name": job.get("name", ""), "state": job["state"]}


def _expect_tasks(client: Client, job: Mapping[str, Any], tasks: str) -> None:
    """Let the server say so if it would not know one of them."""
    from gpu_scheduler.model.intervals import IntervalSet

    has = IntervalSet.parse(job["array"]["tasks"]) if job.get("array") else IntervalSet()
    missing = IntervalSet.parse(tasks).first_not_in(has)
    if missing is not None:
        client.get(f"{job['id']}_{missing}")


def _sentence(name: str, answer: Mapping[str, object]) -> str:
    from gpu_scheduler.cli.output import visible

    more = f" ({answer['state']}, {visible(str(answer['name']))})" if "state" in answer else ""
    return f"{name} {answer.get('status', 'cancelled')}{more}"
