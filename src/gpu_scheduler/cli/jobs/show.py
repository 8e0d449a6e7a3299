"""`tgpu show` and `tgpu explain`: everything about jobs, and why they wait.

Times of the server are shown in the local time zone.
"""

from __future__ import annotations

import time

from gpu_scheduler.cli.connection import add_kube_options, add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import (
    elapsed_text,
    energy_text,
    exit_text,
    full_name,
    gpus_text,
    is_shrunk,
    limit_text,
    local_time,
    place_text,
    priority_text,
    references,
    seconds_at,
    start_range,
)
from gpu_scheduler.cli.text.tables import (
    coloured_state,
    counted,
    in_local_time,
    painted,
    print_json,
    print_pairs,
    visible,
)
from gpu_scheduler.cli.text.values import clock_text, duration_text, size_text
from gpu_scheduler.client.requests import ENDED, job_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence
    from typing import Any

    from gpu_scheduler.client.client import Client

MOST_ATTEMPTS = 10
MOST_SCRIPT_LINES = 40


def register_show(parser: ArgumentParser) -> None:
    """Add the options of `tgpu show`."""
    parser.add_argument("jobs", nargs="+", metavar="JOB", help="12, 1-3,7, 12_4, last, @~1, all")
    add_server_options(parser)


def run_show(args: Namespace) -> int:
    """Show all details of each job."""
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
            print_job(job, _earlier_attempts(client, job))
    return 0


def _earlier_attempts(client: Client, job: dict[str, Any]) -> list[dict[str, Any]]:
    """The attempts before the current one; for a pending job all of them."""
    if job.get("redacted") or job.get("array"):
        return []
    is_waiting = job["state"] == "pending"
    if (job.get("attempt") or 0) + is_waiting < 2:
        return []
    attempts = client.attempts(job["id"])["attempts"]
    return [one for one in attempts if is_waiting or one["attempt"] < job["attempt"]]


def print_job(job: dict[str, Any], earlier: Sequence[dict[str, Any]] = ()) -> None:
    """Print one job."""
    name = visible(full_name(job))
    named = f"  {name}" if name else ""
    print(f"{painted(str(job['id']), 'bold')}{named}  {coloured_state(str(job['state']))}")
    if job.get("redacted"):
        print_pairs(_public_fields(job))
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
        shown = [(name, text) for name, text in pairs if text]
        if shown:
            print(painted(title, "bold"))
            print_pairs(shown)
    _print_script(str(job.get("script") or ""))


def _print_script(script: str) -> None:
    """Print the first lines of a script, as it was when it was submitted."""
    lines = script.splitlines()
    if lines:
        print(painted("script", "bold"))
    for line in lines[:MOST_SCRIPT_LINES]:
        print(f"  {visible(line.expandtabs())}".rstrip())
    if len(lines) > MOST_SCRIPT_LINES:
        print(f"  ... {counted(len(lines) - MOST_SCRIPT_LINES, 'more line')}; --json has all")


def _public_fields(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that all users may see."""
    yield "user", str(job.get("user") or "")
    yield "tenant", str(job.get("tenant_id") or "")
    yield "GPUs", _gpus(job)
    yield from _sizes(job)
    yield "runs on", place_text(job)
    yield "submitted", local_time(job.get("submitted_at"))
    yield "started", local_time(job["started_at"]) if job.get("started_at") else ""
    yield "expected end", local_time(job["expected_end"]) if job.get("expected_end") else ""


def _gpus(job: dict[str, Any]) -> str:
    """The number of GPUs; for an elastic gang that shrank also its number of members."""
    members = f" ({job['placed_members']} of {job['members']} members)" if is_shrunk(job) else ""
    return gpus_text(job) + members


def _sizes(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The memory and CPU cores that the job requests."""
    yield "GPU memory", size_text(job["gpu_memory_mb"]) if job.get("gpu_memory_mb") else ""
    yield "CPU cores", f"{job['cpu_cores']:g}" if job.get("cpu_cores") else ""
    yield "memory", size_text(job["memory_mb"]) if job.get("memory_mb") else ""


def _needs(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "GPUs", _gpus(job)
    is_elastic = 0 < (job.get("min_members") or 0) < (job.get("members") or 0)
    yield "members", f"{job['members']}, at least {job['min_members']}" if is_elastic else ""
    yield from _sizes(job)
    minutes = job.get("time_limit_minutes") or 0
    is_default = minutes > 0 and not job.get("max_runtime_minutes")
    yield "limit", f"{clock_text(minutes * 60)} (default)" if is_default else limit_text(job)
    yield "tenant", str(job.get("tenant_id") or "")
    yield "user", str(job.get("user") or "")
    written, number = priority_text(job), str(job.get("priority", ""))
    yield "priority", written if written == number else f"{written} ({number})"
    yield "pool", str(job.get("pool") or "")
    waits_for = [
        entry if isinstance(entry, str) else f"{entry.get('type')}:{entry.get('job_id')}"
        for entry in job.get("dependencies") or []
    ]
    yield "depends on", ", ".join(waits_for)
    yield "held", "yes" if job.get("hold") and job["state"] not in ENDED else ""
    yield "notify", " ".join(job.get("notify") or [])


def _execution(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    import shlex

    command = shlex.join(job.get("command") or [])
    if script := job.get("script"):
        first = script.partition("\n")[0]
        yield "script", f"{counted(len(script.splitlines()), 'line')}, {visible(first)}"
        yield "arguments", command
    else:
        yield "command", command
    yield "image", str(job.get("image") or "")
    yield "directory", str(job.get("working_directory") or "")
    variables = job.get("environment") or {}
    yield "sweep", str(job.get("sweep") or "")
    snapshot = job.get("snapshot") or {}
    yield "code", snapshot_text(snapshot) if snapshot else ""
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
    """The last attempts: how each ended and where it ran."""
    if len(earlier) > MOST_ATTEMPTS:
        yield "", f"{len(earlier) - MOST_ATTEMPTS} more before these"
    for one in earlier[-MOST_ATTEMPTS:]:
        began, ended = seconds_at(one["started_at"]), seconds_at(one["ended_at"])
        ran = f"after {clock_text(ended - began)}" if began and ended else ""
        outcome = f"{one['state']}, exit {exit_text(one)}"
        detail = in_local_time(visible(one["detail"]))
        parts = (outcome, ran, f"on {place_text({**one, 'reason': ''})}", detail)
        yield f"{one['attempt']}  {local_time(one['started_at'])}", ", ".join(filter(None, parts))


def snapshot_text(snapshot: dict[str, Any]) -> str:
    """`commit 3f9a1c2 with changes, of /home/ann/project, in /home/ann/.local/...`."""
    what = (
        f"commit {snapshot['commit'][:12]}"
        if snapshot.get("commit")
        else f"copy {snapshot['tree'][:12]}"
    )
    changed = " with changes" if snapshot.get("dirty") else ""
    return f"{what}{changed} of {snapshot['source']}, in {snapshot['path']}"


def _measured(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What the GPUs measured; declared GPUs measure nothing."""
    found = job.get("measured")
    if not found:
        if job.get("started_at") and job.get("gpu_count"):
            yield "energy", "not measured"
        return
    yield "energy", energy_text(job)
    mean, peak = found.get("utilisation_percent"), found.get("peak_utilisation_percent")
    yield "GPU use", "not measured" if mean is None else f"mean {mean:.0f} %, peak {peak} %"
    memory_mb = found.get("peak_memory_mb")
    yield "GPU memory", f"{size_text(memory_mb)} at most" if memory_mb else ""
    yield "warned", visible(str(found.get("warning") or ""))


def _times(job: dict[str, Any]) -> Iterator[tuple[str, str]]:
    times = [("submitted", "submitted_at"), ("not before", "begin_at"), ("deadline", "deadline")]
    has_begun = job.get("started_at") and job["state"] != "pending"
    if has_begun:
        times.append(("started", "started_at"))
    if job["state"] in ENDED:
        times.append(("ended", "ended_at"))
    for name, key in times:
        yield name, local_time(job[key]) if job.get(key) else ""
    yield "ran for", elapsed_text(job, time.time()) if has_begun else ""


def register_explain(parser: ArgumentParser) -> None:
    """Add the options of `tgpu explain`."""
    words = "12, 1-3,7, 12_4, last, @~1, all; with --kube a pod or GpuClaim"
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=words)
    add_kube_options(parser)
    add_server_options(parser)


def _explanations(args: Namespace) -> list[dict[str, Any]]:
    if args.kube:
        from gpu_scheduler.cli.cluster.kubernetes import fleet_client

        with fleet_client(args) as fleet:
            return [fleet.explain(name) for name in fleet.job_references(args.jobs)]
    with client_for(args) as client:
        return [client.explain(str(one)) for one in references(client, args.jobs)]


def run_explain(args: Namespace) -> int:
    """Explain for each job why it waits, or in which state it is."""
    answers = _explanations(args)
    if args.json:
        print_json(answers[0] if len(answers) == 1 else answers)
        return 0
    for answer in answers:
        state, now = str(answer.get("state", "")), time.time()
        print(f"{painted(str(answer['job_id']), 'bold')}  {coloured_state(state)}")
        if answer.get("reason"):
            print(f"  {in_local_time(visible(str(answer['reason'])))}")
        position = answer.get("position")
        start = ("expected start", expected_start_text(answer, now))
        if state in ("running", "scheduled"):
            start = ("started", local_time(answer.get("expected_start")))
        gpus = answer.get("details", {}).get("gpus") or {}
        print_pairs(
            [
                ("queue position", "" if position is None else str(position)),
                start,
                ("by time limits", limit_start_text(answer, now)),
                ("based on", start_basis_text(answer)),
                ("expected end", expected_end_text(answer, now)),
                ("preemption", visible(str(answer.get("preemption_risk") or ""))),
                *((f"GPU {index}", visible(str(problem))) for index, problem in gpus.items()),
            ]
        )
    return 0


def expected_end_text(answer: dict[str, Any], now: float) -> str:
    """The expected end, or why it is unknown."""
    unknown = visible(str(answer.get("end_unknown") or ""))
    return f"unknown: {unknown}" if unknown else _time_ahead(answer.get("expected_end"), now)


def expected_start_text(answer: dict[str, Any], now: float) -> str:
    """The expected start, or why it is unknown; a rough forecast is marked with `about`."""
    if answer.get("start_unknown"):
        return f"unknown: {visible(str(answer['start_unknown']))}"
    text = _time_ahead(answer.get("expected_start"), now)
    latest = _latest_text(answer, now)
    basis = {
        "rough": "estimated from the work ahead of it",
        "dependency": "when its dependencies should have ended",
    }.get(str(answer.get("basis")))
    parts = [f"about {text}" if text and basis else text, latest if text else "", basis or ""]
    return ", ".join(part for part in parts if part) if text else ""


def _latest_text(answer: dict[str, Any], now: float) -> str:
    """By when four in five such jobs have started; nothing if the range is narrow."""
    if start_range(answer) is None:
        return ""
    begin = local_time(answer["expected_start_earliest"])
    end = _time_ahead(answer["expected_start_latest"], now)
    return f"80 % of such jobs start from {begin} to {end}"


def limit_start_text(answer: dict[str, Any], now: float) -> str:
    """When it starts if all jobs before it use their full limits."""
    text = _time_ahead(answer.get("expected_start_limit"), now)
    return f"{text} if all jobs before it use their full limits" if text else ""


def start_basis_text(answer: dict[str, Any]) -> str:
    """After which job it starts, and what the run time of that job is based on."""
    after, basis = answer.get("expected_start_after"), answer.get("expected_start_basis")
    if not after:
        return ""
    return f"the end of {visible(str(after))} ({visible(str(basis))})"


def _time_ahead(text: str | None, now: float) -> str:
    """A future time, and how far away it is."""
    at = seconds_at(text)
    if at is None:
        return ""
    ahead = f"in {duration_text(at - now)}" if at > now else "now"
    return f"{local_time(text)} ({ahead})"
