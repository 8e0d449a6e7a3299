"""`tgpu cancel`: stop jobs, or take them from the queue."""

from __future__ import annotations

import sys

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import NONE, references
from gpu_scheduler.cli.submit.body import dependencies_of, named_dependencies, priority_of
from gpu_scheduler.cli.text.tables import cut, print_json
from gpu_scheduler.cli.text.values import duration, limit, moment, number, size_mb, whole
from gpu_scheduler.client.requests import job_path
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gpu_scheduler.cli.jobs.columns import Reference
    from gpu_scheduler.client.client import Client

# --- Doing the same to several jobs: one that is refused does not stop the others.


def for_each(found: Iterable[Reference], deed: Callable[[Reference], None]) -> int:
    """The exit code of the first refusal, or 0. Jobs that are not known are named at the end."""
    exit_code = 0
    unknown: list[Reference] = []
    said = ""
    for reference in found:
        try:
            deed(reference)
        except SchedulerError as error:
            exit_code = exit_code or error.exit_code
            if isinstance(error, UnknownThing) and reference.tasks is None:
                unknown.append(reference)
                said = str(error)
            else:
                _say(str(error))
    if unknown:
        _say(said if len(unknown) == 1 else f"jobs {_numbers(unknown)} are not known")
    return exit_code


def _numbers(unknown: Iterable[Reference]) -> str:
    """Many of them are one range, most often one that was written too long."""
    from gpu_scheduler.model.intervals import IntervalSet

    return str(IntervalSet.of(int(one.job_id.removeprefix("job-")) for one in unknown))


def _say(problem: str) -> None:
    sys.stdout.flush()
    print(f"tgpu: error: {problem}", file=sys.stderr)


# --- `tgpu cancel`: stop jobs, or take them from the queue.


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
        from gpu_scheduler.cli.text.tables import print_json

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
    from gpu_scheduler.cli.text.tables import visible

    more = f" ({answer['state']}, {visible(str(answer['name']))})" if "state" in answer else ""
    return f"{name} {answer.get('status', 'cancelled')}{more}"


# --- `tgpu hold` and `release`: small commands about jobs.


def register_hold(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add_server_options(parser)


register_release = register_hold


def hold(args: Namespace) -> int:
    """Keep jobs from starting."""
    return _each(args, "hold", "held")


def release(args: Namespace) -> int:
    """Let held jobs start."""
    return _each(args, "release", "released")


def _each(args: Namespace, deed: str, done: str) -> int:
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found:
            warn(NONE)

        def change(reference: Reference) -> None:
            answers.append(client.call("POST", job_path(str(reference), deed)))
            if not args.json:
                print(f"{reference} {done}")

        exit_code = for_each(found, change)
    if args.json:
        print_json(answers)
    return exit_code


# --- `tgpu retry`: put jobs that failed or were cancelled back into the queue.

MOST_TASKS_SHOWN = 60
"""Characters; --json has all."""


def register_retry(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add(
        "--cancelled",
        action="store_true",
        help="of an array also the tasks that were cancelled, beside those that failed",
    )
    add_server_options(parser)


def retry(args: Namespace) -> int:
    """Retry each; one that cannot be retried does not stop the others."""
    answers = []
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found:
            warn(NONE)

        def retry(reference: Reference) -> None:
            answers.append(client.retry(str(reference), cancelled=args.cancelled))
            if not args.json:
                print(f"{reference} {done(answers[-1])}")

        exit_code = for_each(found, retry)
    if args.json:
        print_json(answers)
    return exit_code


def done(answer: Mapping[str, Any]) -> str:
    """What waits again, and what of an array does not."""
    tasks, left = answer.get("tasks"), answer.get("left")
    which = f": tasks {cut(tasks, MOST_TASKS_SHOWN)}" if tasks else ""
    if not left:
        return f"queued again{which}"
    return f"queued again{which}; {left:,} cancelled not, add --cancelled for these, too"


# --- `tgpu update`: change a job that waits.

FIELDS = {
    "name": "name",
    "gpus": "gpu_count",
    "gpu_memory": "gpu_memory_mb",
    "cpus": "cpu_cores",
    "memory": "memory_mb",
    "time": "max_runtime_seconds",
    "estimate": "estimate_seconds",
    "begin": "begin_at",
    "deadline": "deadline",
    "retries": "retries",
}


def register_update(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, last, @~1, all")
    add("-p", "--priority", metavar="P", help="as with submit")
    add("-J", "--name", metavar="NAME", help="another name")
    add("-t", "--time", type=limit("--time"), metavar="TIME", help="another limit")
    add("-G", "--gpus", type=number("--gpus"), metavar="N", help="another number of GPUs")
    add("--gpu-memory", type=size_mb("--gpu-memory"), metavar="SIZE", help="of all its GPUs")
    add("-c", "--cpus", type=number("--cpus"), metavar="N", help="CPU cores")
    add("-m", "--memory", type=size_mb("--memory"), metavar="SIZE", help="memory of the host")
    add("--estimate", type=duration("--estimate"), metavar="TIME", help="likely run time")
    add("--begin", type=moment("--begin"), metavar="WHEN", help="not before")
    add("--deadline", type=moment("--deadline"), metavar="WHEN", help="should have ended by then")
    add("--retries", type=whole("--retries"), metavar="N", help="try again so often if it fails")
    add("-d", "--dependency", action="append", metavar="KIND:ID", help="instead of what it had")
    add("--notify", action="append", metavar="WHAT[:WHO]", help="instead of what it had")
    add_server_options(parser)


def update(args: Namespace) -> int:
    """Send the changes that were asked for; none at all is a mistake."""
    changes = {
        field: getattr(args, option)
        for option, field in FIELDS.items()
        if getattr(args, option) is not None
    }
    if args.priority is not None:
        changes["priority"] = priority_of(args.priority)
    if args.dependency:
        changes["dependencies"] = dependencies_of(args.dependency)
    if args.notify:
        changes["notify"] = args.notify
    if not changes:
        raise InvalidRequest("nothing to change; give for example --priority high or --time 4h")
    with client_for(args) as client:
        if args.dependency:
            changes["dependencies"] = named_dependencies(client, changes["dependencies"])
        changed = []
        for reference in references(client, args.jobs):
            changed.append(client.update(str(reference), **changes))
            if not args.json:
                print(f"{reference} changed")
    if args.json:
        print_json(changed[0] if len(changed) == 1 else changed)
    return 0
