"""`tgpu cancel`, `hold`, `release`, `retry` and `update`: change jobs.

Each takes one or more jobs; a job for which the change is rejected does not stop the others,
except for `update`.
"""

from __future__ import annotations

import sys

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.jobs.columns import NONE, references
from gpu_scheduler.cli.submit.body import dependencies_of, named_dependencies, priority_of
from gpu_scheduler.cli.text.tables import cut, print_json, visible
from gpu_scheduler.cli.text.values import duration, limit, moment, number, size_mb, whole
from gpu_scheduler.client.requests import job_path
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpu_scheduler.cli.jobs.columns import Reference
    from gpu_scheduler.client.client import Client

JOBS_HELP = "12, 1-3,7, last, @~1, all"
MOST_TASKS_SHOWN = 60
"""Characters; --json has all."""
UPDATE_FIELDS = {
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
"""The field of the REST API for each option of `tgpu update` that is sent unchanged."""


# Options


def register_cancel(parser: ArgumentParser) -> None:
    """Add the options of `tgpu cancel`."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, 12_[1-3], last, @~1, all")
    add("--dry-run", action="store_true", help="show which jobs would be cancelled")
    add("-q", "--quiet", action="store_true", help="print nothing on success")
    add_server_options(parser)


def register_hold(parser: ArgumentParser) -> None:
    """Add the options of `tgpu hold`."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOBS_HELP)
    add_server_options(parser)


def register_release(parser: ArgumentParser) -> None:
    """Add the options of `tgpu release`, which are those of `tgpu hold`."""
    register_hold(parser)


def register_retry(parser: ArgumentParser) -> None:
    """Add the options of `tgpu retry`."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help=JOBS_HELP)
    add(
        "--cancelled",
        action="store_true",
        help="of an array, retry the cancelled tasks as well as the failed ones",
    )
    add_server_options(parser)


def register_update(parser: ArgumentParser) -> None:
    """Add the options of `tgpu update`."""
    add = parser.add_argument
    add("jobs", nargs="+", metavar="JOB", help=JOBS_HELP)
    add("-p", "--priority", metavar="P", help="as for submit")
    add("-J", "--name", metavar="NAME", help="new name")
    add("-t", "--time", type=limit("--time"), metavar="TIME", help="new time limit")
    add("-G", "--gpus", type=number("--gpus"), metavar="N", help="new number of GPUs")
    add("--gpu-memory", type=size_mb("--gpu-memory"), metavar="SIZE", help="of all its GPUs")
    add("-c", "--cpus", type=number("--cpus"), metavar="N", help="CPU cores")
    add("-m", "--memory", type=size_mb("--memory"), metavar="SIZE", help="host memory")
    add("--estimate", type=duration("--estimate"), metavar="TIME", help="expected run time")
    add("--begin", type=moment("--begin"), metavar="WHEN", help="do not start before")
    add("--deadline", type=moment("--deadline"), metavar="WHEN", help="when it should have ended")
    add("--retries", type=whole("--retries"), metavar="N", help="retry up to N times if it fails")
    add("-d", "--dependency", action="append", metavar="KIND:ID", help="replaces the old ones")
    add("--notify", action="append", metavar="WHAT[:WHO]", help="replaces the old ones")
    add_server_options(parser)


# Commands


def run_cancel(args: Namespace) -> int:
    """Cancel each job, or with --dry-run show which would be cancelled."""

    def cancel(client: Client, reference: Reference) -> tuple[dict[str, Any], str]:
        answer = (_would_cancel if args.dry_run else _cancel)(client, reference)
        name = visible(str(answer.get("name", "")))
        more = f" ({answer['state']}, {name})" if "state" in answer else ""
        return answer, f"{answer.get('status', 'cancelled')}{more}"

    return _for_each(args, cancel, quiet=args.quiet)


def run_hold(args: Namespace) -> int:
    """Keep jobs from starting."""
    return _for_each(
        args, lambda client, job: (client.call("POST", job_path(str(job), "hold")), "held")
    )


def run_release(args: Namespace) -> int:
    """Let held jobs start."""
    return _for_each(
        args, lambda client, job: (client.call("POST", job_path(str(job), "release")), "released")
    )


def run_retry(args: Namespace) -> int:
    """Put jobs that failed or were cancelled back into the queue."""

    def retry(client: Client, reference: Reference) -> tuple[dict[str, Any], str]:
        answer = client.retry(str(reference), cancelled=args.cancelled)
        return answer, _retry_text(answer)

    return _for_each(args, retry)


def run_update(args: Namespace) -> int:
    """Send the changes; a command without any is rejected."""
    changes = {
        field: getattr(args, option)
        for option, field in UPDATE_FIELDS.items()
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
                print(f"{reference} updated")
    if args.json:
        print_json(changed[0] if len(changed) == 1 else changed)
    return 0


def _for_each(
    args: Namespace,
    change: Callable[[Client, Reference], tuple[dict[str, Any], str]],
    *,
    quiet: bool = False,
) -> int:
    """Change every job that `args.jobs` names, and print the results.

    `change` returns the server's answer and a word for the line on stdout. The exit code is that of
    the first error, or 0. Unknown jobs are reported together at the end.
    """
    answers: list[dict[str, Any]] = []
    unknown: list[Reference] = []
    unknown_error = ""
    exit_code = 0
    with client_for(args) as client:
        found = references(client, args.jobs)
        if not found and not quiet:
            warn(NONE)
        for reference in found:
            try:
                answer, done = change(client, reference)
            except SchedulerError as error:
                exit_code = exit_code or error.exit_code
                if isinstance(error, UnknownThing) and reference.tasks is None:
                    unknown.append(reference)
                    unknown_error = str(error)
                else:
                    _print_error(str(error))
                continue
            answers.append(answer)
            if not args.json and not quiet:
                print(f"{reference} {done}")
    if len(unknown) == 1:
        _print_error(unknown_error)
    elif unknown:
        from gpu_scheduler.model.intervals import IntervalSet

        numbers = IntervalSet.of(int(one.job_id.removeprefix("job-")) for one in unknown)
        _print_error(f"unknown jobs: {numbers}")
    if args.json:
        print_json(answers)
    return exit_code


def _print_error(problem: str) -> None:
    sys.stdout.flush()
    print(f"tgpu: error: {problem}", file=sys.stderr)


def _cancel(client: Client, reference: Reference) -> dict[str, Any]:
    """The server's answer; for a single task, the answer about that task."""
    if (reference.tasks or "").isdecimal():
        return client.cancel(str(reference))
    return client.cancel(reference.job_id, reference.tasks) | {"job_id": str(reference)}


def _would_cancel(client: Client, reference: Reference) -> dict[str, Any]:
    """The job that would be cancelled; raises as `_cancel` would for a task that does not exist."""
    tasks = reference.tasks or ""
    job = client.get(str(reference) if tasks.isdecimal() else reference.job_id)
    if tasks and not tasks.isdecimal():
        from gpu_scheduler.model.intervals import IntervalSet

        existing = IntervalSet.parse(job["array"]["tasks"]) if job.get("array") else IntervalSet()
        missing = IntervalSet.parse(tasks).first_not_in(existing)
        if missing is not None:
            client.get(f"{job['id']}_{missing}")
    answer = {"job_id": str(reference), "status": "would be cancelled"}
    return answer | {"name": job.get("name", ""), "state": job["state"]}


def _retry_text(answer: Mapping[str, Any]) -> str:
    """What was queued again, and how many cancelled tasks of an array were not."""
    tasks, left = answer.get("tasks"), answer.get("left")
    which = f": tasks {cut(tasks, MOST_TASKS_SHOWN)}" if tasks else ""
    if not left:
        return f"queued again{which}"
    return (
        f"queued again{which}; {left:,} cancelled tasks were not, add --cancelled to retry them too"
    )
