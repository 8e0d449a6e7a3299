"""`tgpu show`: everything about jobs, grouped as needs, execution and times."""

from __future__ import annotations

import time

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import references
from gpu_scheduler.cli.text.tables import (
    coloured_state,
    in_local_time,
    painted,
    print_json,
    print_pairs,
    visible,
)
from gpu_scheduler.client.requests import job_path

MOST_ATTEMPTS = 10
TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from gpu_scheduler.client.client import Client


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, last, @~1, all")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show each job with all that is known of it."""
    with client_for(args) as client:
        jobs = [
            client.call("GET", job_path(str(reference)))
            for reference in references(client, args.jobs)
        ]
        if args.json:
            print_json(jobs[0] if len(jobs) == 1 else jobs)
            return 0
        for place, job in enumerate(jobs):
            if place:
                print()
            print_job(job, _earlier(client, job))
    return 0


def _earlier(client: Client, job: dict[str, Any]) -> list[dict[str, Any]]:
    """How the attempts ended after which there is, or will be, another one."""
    if job.get("redacted") or job.get("array"):
        return []
    is_waiting = job["state"] == "pending"
    if (job.get("attempt") or 0) + is_waiting < 2:
        return []
    attempts = client.attempts(job["id"])["attempts"]
    return [one for one in attempts if is_waiting or one["attempt"] < job["attempt"]]


def print_job(job: dict[str, Any], earlier: Sequence[dict[str, Any]] = ()) -> None:
    """One job, for people."""
    from gpu_scheduler.cli.jobs.columns import full_name

    name = visible(full_name(job))
    named = f"  {name}" if name else ""
    print(f"{painted(str(job['id']), 'bold')}{named}  {coloured_state(str(job['state']))}")
    if job.get("redacted"):
        print_pairs(_of_somebody_else(job))
        return
    if job.get("reason"):
        print(f"  {in_local_time(visible(job['reason']))}")
    for title, pairs in (
        ("needs", _needs(job)),
        ("execution", _execution(job)),
        ("times", _times(job)),
        ("measured", _measured(job)),
        ("earlier attempts", _attempts(earlier)),
    ):
        told = [(name, text) for name, text in pairs if text]
        if told:
            print(painted(title, "bold"))
            print_pairs(told)


def _of_somebody_else(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What everybody may know of a job."""
    from gpu_scheduler.cli.jobs.columns import place_text
    from gpu_scheduler.cli.jobs.history import local_time
    from gpu_scheduler.cli.text.values import size_text

    yield "user", str(job.get("user") or "")
    yield "tenant", str(job.get("tenant_id") or "")
    yield "GPUs", _gpus(job)
    yield "GPU memory", size_text(job["gpu_memory_mb"]) if job.get("gpu_memory_mb") else ""
    yield "CPU cores", f"{job['cpu_cores']:g}" if job.get("cpu_cores") else ""
    yield "memory", size_text(job["memory_mb"]) if job.get("memory_mb") else ""
    yield "runs on", place_text(job)
    yield "submitted", local_time(job.get("submitted_at"))
    yield "started", local_time(job["started_at"]) if job.get("started_at") else ""
    yield "expected end", local_time(job["expected_end"]) if job.get("expected_end") else ""


def _gpus(job: dict[str, Any]) -> str:
    """How many; of a gang also with how many members, if these are not all."""
    from gpu_scheduler.cli.jobs.columns import gpus_text, is_shrunk

    told = f" ({job['placed_members']} of {job['members']} members)" if is_shrunk(job) else ""
    return gpus_text(job) + told


def _limit(job: dict[str, Any]) -> str:
    """The limit; one that comes from the settings is told as such."""
    from gpu_scheduler.cli.jobs.columns import limit_text
    from gpu_scheduler.cli.text.values import clock_text

    minutes = job.get("time_limit_minutes")
    if job.get("max_runtime_minutes") or not minutes:
        return limit_text(job)
    return f"{clock_text(minutes * 60)} (the default)"


def _needs(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from gpu_scheduler.cli.text.values import size_text

    yield "GPUs", _gpus(job)
    is_elastic = 0 < (job.get("min_members") or 0) < (job.get("members") or 0)
    yield "members", f"{job['members']}, at least {job['min_members']}" if is_elastic else ""
    yield "GPU memory", size_text(job["gpu_memory_mb"]) if job.get("gpu_memory_mb") else ""
    yield "CPU cores", f"{job['cpu_cores']:g}" if job.get("cpu_cores") else ""
    yield "memory", size_text(job["memory_mb"]) if job.get("memory_mb") else ""
    yield "limit", _limit(job)
    yield "tenant", str(job.get("tenant_id") or "")
    yield "user", str(job.get("user") or "")
    yield "priority", str(job.get("priority", ""))
    yield "pool", str(job.get("pool") or "")
    waits_for = [
        entry if isinstance(entry, str) else f"{entry.get('type')}:{entry.get('job_id')}"
        for entry in job.get("dependencies") or []
    ]
    yield "depends on", ", ".join(waits_for)
    yield "held", "yes" if job.get("hold") else ""
    yield "notify", " ".join(job.get("notify") or [])


def _execution(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import shlex

    from gpu_scheduler.cli.jobs.columns import place_text
    from gpu_scheduler.cli.jobs.history import exit_text

    yield "command", shlex.join(job.get("command") or [])
    yield "image", str(job.get("image") or "")
    yield "directory", str(job.get("working_directory") or "")
    variables = job.get("environment") or {}
    yield "sweep", str(job.get("sweep") or "")
    shot = job.get("snapshot") or {}
    yield "code", snapshot_text(shot) if shot else ""
    yield "variables", " ".join(f"{name}={value}" for name, value in sorted(variables.items()))
    yield "runner", str(job.get("runner") or "")
    yield "runs on", place_text({**job, "reason": ""})
    yield "attempt", str(job.get("attempt") or "")
    yield "preemptions", str(job.get("preemptions") or "")
    yield "retries", str(job.get("retries") or "")
    yield "exit", exit_text(job) if job.get("ended_at") else ""
    array = job.get("array") or {}
    yield "tasks", str(array.get("tasks") or "")
    for state, tasks in sorted((array.get("states") or {}).items()):
        yield f"  {state}", str(tasks)
    yield "attach", shlex.join(job["attach"]) if job.get("attach") else ""


def _attempts(earlier: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The last ones, each with how it ended and where it was."""
    from gpu_scheduler.cli.jobs.columns import place_text, seconds_at
    from gpu_scheduler.cli.jobs.history import exit_text, local_time
    from gpu_scheduler.cli.text.values import clock_text

    if len(earlier) > MOST_ATTEMPTS:
        yield "", f"{len(earlier) - MOST_ATTEMPTS} more before these"
    for one in earlier[-MOST_ATTEMPTS:]:
        began, ended = seconds_at(one["started_at"]), seconds_at(one["ended_at"])
        ran = f"after {clock_text(ended - began)}" if began and ended else ""
        how = f"{one['state']}, exit {exit_text(one)}"
        told = in_local_time(visible(one["detail"]))
        parts = (how, ran, f"on {place_text({**one, 'reason': ''})}", told)
        yield f"{one['attempt']}  {local_time(one['started_at'])}", ", ".join(filter(None, parts))


def snapshot_text(shot: dict[str, Any]) -> str:
    """`commit 3f9a1c2 with changes, of /home/ann/project, in /home/ann/.local/...`."""
    what = f"commit {shot['commit'][:12]}" if shot.get("commit") else f"copy {shot['tree'][:12]}"
    changed = " with changes" if shot.get("dirty") else ""
    return f"{what}{changed} of {shot['source']}, in {shot['path']}"


def _measured(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What its GPUs told; of declared ones there is nothing."""
    from gpu_scheduler.cli.jobs.history import energy_text
    from gpu_scheduler.cli.text.values import size_text

    found = job.get("measured")
    if not found:
        if job.get("started_at") and job.get("gpu_count"):
            yield "energy", "not measured"
        return
    yield "energy", energy_text(job)
    mean, peak = found.get("utilisation_percent"), found.get("peak_utilisation_percent")
    yield "GPU use", "not measured" if mean is None else f"{mean:.0f} % in the mean, peak {peak} %"
    memory_mb = found.get("peak_memory_mb")
    yield "GPU memory", f"{size_text(memory_mb)} at most" if memory_mb else ""
    yield "warned", visible(str(found.get("warning") or ""))


def _times(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from gpu_scheduler.cli.jobs.columns import elapsed_s
    from gpu_scheduler.cli.jobs.history import local_time
    from gpu_scheduler.cli.text.values import clock_text

    times = [("submitted", "submitted_at"), ("not before", "begin_at"), ("deadline", "deadline")]
    has_begun = job.get("started_at") and job["state"] != "pending"
    if has_begun:
        times += [("started", "started_at"), ("ended", "ended_at")]
    for name, key in times:
        yield name, local_time(job[key]) if job.get(key) else ""
    yield "ran for", clock_text(elapsed_s(job, time.time())) if has_begun else ""
