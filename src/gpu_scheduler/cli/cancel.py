"""`tgpu cancel`: stop jobs, or take them from the queue."""

from __future__ import annotations

import sys

from gpu_scheduler.cli.reach import add_server_options, client_for, warn
from gpu_scheduler.cli.references import NONE, references
from gpu_scheduler.model.errors import SchedulerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, 12_[1-3], last, @~1, all")
    add("--dry-run", action="store_true", help="show which jobs would be cancelled")
    add("-q", "--quiet", action="store_true", help="say nothing when it worked")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Cancel each; one that cannot be cancelled does not stop the others."""
    exit_code = 0
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found and not args.quiet:
            warn(NONE)
        for reference in found:
            try:
                if args.dry_run:
                    job = client.get(reference.job_id)
                    answer = {"job_id": str(reference), "status": "would be cancelled"}
                    answer |= {"name": job.get("name", ""), "state": job["state"]}
                else:
                    answer = client.cancel(reference.job_id, reference.tasks)
            except SchedulerError as error:
                print(f"tgpu: error: {error}", file=sys.stderr)
                exit_code = exit_code or error.exit_code
                continue
            answers.append(answer)
            if not args.json and not args.quiet:
                print(_sentence(str(reference), answer))
    if args.json:
        from gpu_scheduler.cli.output import print_json

        print_json(answers)
    return exit_code


def _sentence(name: str, answer: Mapping[str, object]) -> str:
    from gpu_scheduler.cli.output import visible

    more = f" ({answer['state']}, {visible(str(answer['name']))})" if "state" in answer else ""
    return f"{name} {answer.get('status', 'cancelled')}{more}"
