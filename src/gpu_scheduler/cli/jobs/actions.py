"""`tgpu cancel`, `hold`, `release`, `retry` and `update`: change jobs.

Each takes one or more jobs; a job for which the change is rejected does not stop the others,
except for `update`.
"""

from __future__ import annotations

import sys
import time

from gpu_scheduler.cli.connection import ME, add_server_options, client_for, mine, warn
from gpu_scheduler.cli.jobs.columns import NONE, references, user_advice
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.submit.body import (
    PLAIN_FIELDS,
    dependencies_of,
    fields_of,
    named_dependencies,
    priority_of,
)
from gpu_scheduler.cli.text.tables import counted, cut, print_json, visible
from gpu_scheduler.cli.text.values import duration, limit, moment, number, size_mb, whole
from gpu_scheduler.client.requests import ACTIVE, job_path
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError, UnknownThing

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
    from typing import Any

    from gpu_scheduler.cli.jobs.columns import Reference
    from gpu_scheduler.client.client import Client

EXIT_FAILED = 1
JOBS_HELP = "12, 1-3,7, last, @~1, all"
MOST_TASKS_SHOWN = 60
"""Characters; --json has all."""
UPDATE_OPTIONS = (
    *("name", "gpus", "gpu_memory", "cpus", "memory", "time", "estimate", "begin", "deadline"),
    *("retries", "notify"),
)
"""The options of `tgpu update` that are sent unchanged."""


# Options


def register_cancel(parser: ArgumentParser) -> None:
    """Add the options of `tgpu cancel`."""
    add = Options(parser)
    add.word("jobs", "JOB", "12, 1-3,7, 12_4, 12_[1-3], last, @~1, all", nargs="*")
    whose = "all active jobs of this user, or 'all'; others' jobs for admins only"
    add.value("-u --user", None, "NAME", whose)
    add.value("-J --name", None, "PATTERN", "your active jobs with this name; 'train*' also works")
    add.value(
        "-s -t --state --status", None, "STATE", "your jobs in this state: pending, running, PD"
    )
    add.flag("--dry-run", "show which jobs would be cancelled")
    add.flag("-y --yes", "do not ask before cancelling jobs that --user, --name or --state choose")
    add.flag("-q --quiet", "print nothing on success")
    add_server_options(parser)


def register_hold(parser: ArgumentParser) -> None:
    """Add the options of `tgpu hold` and `tgpu release`."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOBS_HELP)
    add_server_options(parser)


register_release = register_hold


def register_retry(parser: ArgumentParser) -> None:
    """Add the options of `tgpu retry`."""
    add = Options(parser)
    add.word("jobs", "JOB", JOBS_HELP, nargs="+")
    add.flag("--cancelled", "of an array, retry the cancelled tasks as well as the failed ones")
    add_server_options(parser)


def register_resubmit(parser: ArgumentParser) -> None:
    """Add the options of `tgpu resubmit`."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=JOBS_HELP)
    add_server_options(parser)


def register_update(parser: ArgumentParser) -> None:
    """Add the options of `tgpu update`."""
    add = Options(parser)
    add.word("jobs", "JOB", JOBS_HELP, nargs="+")
    add.value("-p --priority", None, "P", "as for submit")
    add.value("-J --name", None, "NAME", "new name")
    add.value("-t --time", limit, "TIME", "new time limit")
    add.value("-G --gpus", number, "N", "new number of GPUs")
    add.value("--gpu-memory", size_mb, "SIZE", "of all its GPUs")
    add.value("-c --cpus", number, "N", "CPU cores")
    add.value("-m --memory", size_mb, "SIZE", "host memory")
    add.value("--estimate", duration, "TIME", "expected run time")
    add.value("--begin", moment, "WHEN", "do not start before")
    add.value("--deadline", moment, "WHEN", "when it should have ended")
    add.value("--retries", whole, "N", "retry up to N times if it fails")
    add.value("-d --dependency", None, "KIND:ID", "replaces the old ones", action="append")
    add.value("--notify", None, "WHAT[:WHO]", "replaces the old ones", action="append")
    add_server_options(parser)


# Commands


def run_cancel(args: Namespace) -> int:
    """Cancel each job, or with --dry-run show which would be cancelled."""
    if args.user or args.name or args.state:
        if args.jobs:
            raise InvalidRequest(
                "name jobs, or choose them by --user, --name and --state; leave out one of both"
            )
        args.jobs = _chosen_jobs(args)
        if args.jobs is None:
            return EXIT_FAILED
    elif not args.jobs:
        raise InvalidRequest(
            "no job given; name jobs such as 12, 1-3 or all, or choose them by --user, --name or "
            "--state"
        )

    def cancel(client: Client, reference: Reference) -> tuple[dict[str, Any], str]:
        answer = (_would_cancel if args.dry_run else _cancel)(client, reference)
        name = visible(str(answer.get("name", "")))
        more = f" ({answer['state']}, {name})" if "state" in answer else ""
        return answer, f"{answer.get('status', 'cancelled')}{more}"

    return _for_each(args, cancel, quiet=args.quiet)


def _chosen_jobs(args: Namespace) -> list[str] | None:
    """The active jobs that --user, --name and --state choose, after a preview; None: not now."""
    from fnmatch import fnmatchcase

    from gpu_scheduler.cli.jobs.columns import print_columns
    from gpu_scheduler.cli.jobs.list import states_of

    states = states_of(args.state)
    active = ACTIVE if states is None else tuple(state for state in states if state in ACTIVE)
    if not active:
        raise InvalidRequest(f"--state is '{args.state}', but those jobs have ended")
    whose = None if args.user == "all" else args.user or mine()
    with client_for(args) as client:
        of_user = list(client.list(state=active, user=whose))
        if not of_user and args.user not in (None, "all", ME):
            advice = user_advice(client, args.user)
            if advice:
                raise UnknownThing(advice)
    jobs = [job for job in of_user if not args.name or fnmatchcase(job["name"], args.name)]
    if not jobs and not args.quiet:
        warn(_none_text(args))
    if not jobs or args.dry_run or args.yes:
        return [job["id"] for job in jobs]
    if not args.json:
        print_columns("jobid,name,user,st,time,gpus,nodelist", jobs, time.time())
        sys.stdout.flush()
    if not sys.stdin.isatty():
        warn("nothing was cancelled; add --yes to cancel these jobs, or --dry-run to list them")
        return None
    print(f"cancel {counted(len(jobs), 'job')}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        warn("nothing was cancelled")
        return None
    return [job["id"] for job in jobs]


def _none_text(args: Namespace) -> str:
    """That --user, --name and --state choose no job, and whose jobs were searched."""
    subject = {None: "you have", "all": "there are"}.get(args.user, f"user '{args.user}' has")
    kind = f"jobs in state {args.state}" if args.state else "pending or running jobs"
    named = f" named '{args.name}'" if args.name else ""
    return f"{subject} no {kind}{named}"


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
        tasks, left = answer.get("tasks"), answer.get("left")
        queued = "queued again" + (f": tasks {cut(tasks, MOST_TASKS_SHOWN)}" if tasks else "")
        if not left:
            return answer, queued
        advice = "add --cancelled to retry them too"
        return answer, f"{queued}; {left:,} cancelled tasks were not, {advice}"

    return _for_each(args, retry)


def run_resubmit(args: Namespace) -> int:
    """Submit jobs that have ended again, as new jobs."""

    def resubmit(client: Client, reference: Reference) -> tuple[dict[str, Any], str]:
        answer = client.call("POST", job_path(str(reference), "resubmit"))
        tasks = answer.get("tasks", 1)
        return answer, f"resubmitted as {answer['job_id']}" + (
            f" with {tasks:,} tasks" if tasks > 1 else ""
        )

    return _for_each(args, resubmit)


def run_update(args: Namespace) -> int:
    """Send the changes; a command without any is rejected."""
    changes = fields_of(args, {option: PLAIN_FIELDS[option] for option in UPDATE_OPTIONS})
    if args.priority is not None:
        changes["priority"] = priority_of(args.priority)
    if args.dependency:
        changes["dependencies"] = dependencies_of(args.dependency)
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
        if args.jobs and not found and not quiet:
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
