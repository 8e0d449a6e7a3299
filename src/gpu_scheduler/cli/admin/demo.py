"""`tgpu demo` and `tgpu test`: real jobs on a temporary server with declared GPUs.

Both start a server in a temporary directory with private ports and sockets, check how the jobs end,
and remove everything. The demo shows jobs of three tenants: gang, array, preemption, retry. The
test runs a few quick checks first; with `--quick` only those.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_scheduler.cli.text.tables import cut, in_local_time
from gpu_scheduler.model.intervals import IntervalSet

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from gpu_scheduler.client.client import Client

GPUS = "8xA100-80GB"
DEMO_TIMEOUT_S = 80.0
POLL_S = 0.2
PRINT_PLACE = 'echo "job $TGPU_JOB_ID attempt $TGPU_ATTEMPT on GPUs [$CUDA_VISIBLE_DEVICES]"; '
ENDED = {"completed", "failed", "cancelled"}
USAGE_HEADINGS = ("TENANT", "GPU TIME", "OF IT LOST", "COMPLETED", "FAILED", "PREEMPTIONS")

TENANTS: list[dict[str, Any]] = [
    {"id": "vision", "name": "vision", "max_gpus": 8, "fair_share_weight": 2.0},
    {"id": "language", "name": "language", "max_gpus": 8, "priority_tier": "high"},
    {"id": "students", "name": "students", "max_gpus": 6},
]


class DemoJob:
    """One job of the demo: what it demonstrates, and how it must end."""

    def __init__(
        self,
        name: str,
        shows: str,
        script: str,
        *,
        expected: Callable[[dict[str, Any]], bool] | None = None,
        **job: Any,
    ) -> None:
        self.name = name
        self.shows = shows
        self.body = {"name": name, "command": ["sh", "-c", PRINT_PLACE + script], **job}
        self.expected = expected or (lambda job: job["state"] == "completed")
        self.job_id = ""


def demo_jobs() -> list[DemoJob]:
    """The jobs in the order of submission."""
    return [
        DemoJob(
            "long-run",
            "4 GPUs, preempted by the urgent job, resumes",
            # The second attempt is short, as after a checkpoint.
            "if [ $TGPU_ATTEMPT = 1 ]; then sleep 60; else sleep 1; fi",
            tenant_id="students",
            gpu_count=4,
            expected=lambda job: job["state"] == "completed" and job["preemptions"] > 0,
        ),
        DemoJob("single", "one GPU", "sleep 2", tenant_id="vision", gpu_count=1),
        DemoJob("half-a", "half a GPU", "sleep 3", tenant_id="vision", gpu_count=0.5),
        DemoJob("half-b", "the other half", "sleep 3", tenant_id="vision", gpu_count=0.5),
        DemoJob(
            "sweep",
            "array of 12 tasks, 2 at once",
            "sleep 0.4",
            tenant_id="students",
            gpu_count=1,
            array="0-11%2",
        ),
        DemoJob(
            "flaky",
            "fails once, is retried",
            "test $TGPU_ATTEMPT -ge 2",
            tenant_id="vision",
            gpu_count=1,
            retries=2,
            expected=lambda job: job["state"] == "completed" and job["attempt"] == 2,
        ),
        DemoJob(
            "urgent",
            "8 GPUs at a higher priority: preempts",
            "sleep 2",
            tenant_id="language",
            gpu_count=8,
            priority="urgent",
        ),
        DemoJob(
            "gang",
            "8 members start together or not at all",
            'echo "rank $RANK of $WORLD_SIZE meets at $MASTER_ADDR:$MASTER_PORT"; sleep 2',
            tenant_id="vision",
            members=8,
            gpu_count=1,
        ),
        DemoJob(
            "evaluate",
            "waits until 'gang' is done",
            "sleep 0.5",
            tenant_id="vision",
            gpu_count=1,
            dependencies=["gang"],
        ),
    ]


def register_demo(parser: ArgumentParser) -> None:
    """Add the options of `tgpu demo`."""
    about = f"what to declare (default {GPUS})"
    parser.add_argument("--gpus", default=GPUS, metavar="GPUS", help=about)


def run_demo(args: Namespace) -> int:
    """Start a server, run the jobs, show and check them, stop the server."""
    began = time.monotonic()
    with temporary_server("tgpu-demo-", args.gpus) as (state_dir, code):
        if code:
            return code
        problems = _run_jobs(state_dir, began, args.gpus)
    for line in problems:
        print(f"tgpu: demo: {line}", file=sys.stderr)
    if not problems:
        print()
        print(
            f"All jobs ended as expected, in {time.monotonic() - began:.0f} s; all files removed."
        )
        print(_next_steps(args.gpus))
    return 1 if problems else 0


def _next_steps(gpus: str) -> str:
    """Commands to try next, as they work in this shell."""
    lines = ["Try it yourself:"]
    directory = _program().rpartition("/")[0]
    if directory:
        lines.append(f"  export PATH={directory}:$PATH")
    lines += [
        "  tgpu up --daemon                         # uses the GPUs of this machine; without GPUs:",
        f"  tgpu up --daemon --simulate {gpus}",
        "  tgpu submit --gpus 1 -- python train.py  # or any other command",
        "  tgpu list                                # then: tgpu logs 1, tgpu top, tgpu down",
    ]
    return "\n".join(lines)


def _program() -> str:
    """The command to type for `tgpu`."""
    import shutil
    from pathlib import Path

    installed = Path(sys.executable).with_name("tgpu")
    return str(installed) if shutil.which("tgpu") is None and installed.exists() else "tgpu"


def _run_jobs(state_dir: str, began: float, gpus: str) -> list[str]:
    from gpu_scheduler.cli.text.tables import counted
    from gpu_scheduler.client.client import Client

    print(f"Started a temporary scheduler with declared GPUs ({gpus}).")
    top = f"{_program()} top --server {state_dir}"
    print(f"To watch it in another terminal: {top}", flush=True)
    with Client(state_dir) as client:
        for tenant in TENANTS:
            client.call("POST", "/api/v1/tenants", tenant)
        submitted = demo_jobs()
        _submit(client, submitted)
        jobs = _watch(client, submitted, began)
        _print_usage(client)
    return [
        f"'{one.name}' is {jobs[one.job_id]['state']} after "
        f"{counted(jobs[one.job_id]['attempt'], 'attempt')}: "
        f"{jobs[one.job_id]['reason'] or 'no reason given'}"
        for one in submitted
        if not one.expected(jobs[one.job_id])
    ]


def _submit(client: Client, submitted: list[DemoJob]) -> None:
    """Submit the jobs; the urgent one a moment later, so that it preempts a running job."""
    ids: dict[str, str] = {}
    for one in submitted:
        if one.name == "urgent":
            time.sleep(1.5)
        body = dict(one.body)
        if "dependencies" in body:
            body["dependencies"] = [f"afterok:{ids[name]}" for name in body["dependencies"]]
        one.job_id = ids[one.name] = client.submit(**body).id


def _watch(client: Client, submitted: list[DemoJob], began: float) -> dict[str, dict[str, Any]]:
    """Show all jobs until the last one has ended: live on a terminal, else line by line."""
    live = Live(refresh_per_second=8) if sys.stdout.isatty() else None
    printed: dict[str, tuple[Any, ...]] = {}
    with live or nullcontext():
        while True:
            jobs = {one.job_id: client.get(one.job_id) for one in submitted}
            if live:
                live.update(Group(_gpu_row(client.gpus()), _job_table(submitted, jobs)))
            else:
                _print_changes(submitted, jobs, printed)
            if all(job["state"] in ENDED for job in jobs.values()):
                return jobs
            if time.monotonic() - began > DEMO_TIMEOUT_S:
                return jobs
            time.sleep(POLL_S)


def _print_usage(client: Client) -> None:
    """Print the usage of each tenant, aligned also in a pipe."""
    from gpu_scheduler.cli.text.tables import aligned, terminal_width

    rows = [row for row in client.usage()["usage"] if row["user"] is None]
    cells = [
        [
            str(row["tenant_id"]),
            f"{row['gpu_hours'] * 3600:.0f} s",
            f"{row['lost_gpu_hours'] * 3600:.0f} s",
            *(str(row[name]) for name in ("completed", "failed", "preemptions")),
        ]
        for row in rows
    ]
    print()
    lines = aligned(
        USAGE_HEADINGS, cells, right=frozenset(USAGE_HEADINGS[1:]), width=terminal_width()
    )
    print("\n".join(lines))


@contextmanager
def temporary_server(prefix: str, gpus: str) -> Iterator[tuple[str, int]]:
    """A server with declared GPUs: its state directory, and the exit code of its start."""
    import shutil
    import tempfile

    state_dir = tempfile.mkdtemp(prefix=prefix)
    try:
        code = server_command("up", "--daemon", "--state-dir", state_dir, "--simulate", gpus)
        try:
            yield state_dir, code
        finally:
            if not code:
                server_command("down", "--state-dir", state_dir)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def server_command(*words: str) -> int:
    """Run another tgpu command, showing only its errors; its exit code."""
    import os
    import subprocess

    environment = os.environ | {
        "GPU_SCHEDULER_API_HTTP_PORT": "0",
        "GPU_SCHEDULER_API_METRICS_PORT": "0",
        "GPU_SCHEDULER_JOBS_ASSIGNMENT_RETRY_WAIT_S": "1",
        "GPU_SCHEDULER_JOBS_GRACE_S": "2",
    }
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-P", "-m", "gpu_scheduler", *words],
        check=False,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    return done.returncode


# Output of the demo: a live table on a terminal, else one line per change

PLACE_WIDTH = 40

STYLES = {
    "running": "green",
    "scheduled": "cyan",
    "pending": "yellow",
    "completed": "dim",
    "failed": "red",
    "cancelled": "red",
}
Jobs = dict[str, dict[str, Any]]


def _print_changes(
    submitted: list[DemoJob], jobs: Jobs, printed: dict[str, tuple[Any, ...]]
) -> None:
    """Print a line for each job that has changed since it was last `printed`."""
    for one in submitted:
        job = jobs[one.job_id]
        now = (job["state"], job["attempt"], job["preemptions"])
        if printed.get(one.job_id) != now:
            printed[one.job_id] = now
            place = f"{_where(job):<{PLACE_WIDTH}}"
            print(f"{one.job_id:<8} {one.name:<10} {_shown_state(job):<10} {place} {one.shows}")
    sys.stdout.flush()


def _gpu_row(gpus: Sequence[dict[str, Any]]) -> Text:
    text = Text("GPUs  ")
    for gpu in gpus:
        share = gpu["allocated_share"]
        style = "black on green" if share >= 1 else "black on yellow" if share else "dim"
        text.append(f" {gpu['index']}:{share:.0%} ", style)
        text.append(" ")
    return text


def _job_table(submitted: list[DemoJob], jobs: Jobs) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "NAME", "TENANT", "STATE", "WHERE", "TRY", "WHAT IT SHOWS"):
        table.add_column(column, no_wrap=True)
    for one in submitted:
        job = jobs[one.job_id]
        state = Text(_shown_state(job), STYLES.get(job["state"], ""))
        table.add_row(
            str(job["number"]),
            one.name,
            job["tenant_id"],
            state,
            _where(job),
            str(job["attempt"] or ""),
            one.shows,
        )
    return table


def _shown_state(job: dict[str, Any]) -> str:
    """The state; a job that waits because it was preempted is `preempted`."""
    return "preempted" if _is_preempted(job) else str(job["state"])


def _is_preempted(job: dict[str, Any]) -> bool:
    return job["state"] == "pending" and job["preemptions"] > 0 and job["array"] is None


def _where(job: dict[str, Any]) -> str:
    """The devices of a job, the tasks of an array, or the reason why it is pending."""
    if job["array"] is not None:
        states = job["array"]["states"]
        counts = {name: len(IntervalSet.parse(tasks)) for name, tasks in states.items() if tasks}
        order = sorted(counts, key=lambda name: (name in ENDED, name))
        return cut(", ".join(f"{counts[name]} {name}" for name in order), PLACE_WIDTH)
    if job["state"] in {"running", "scheduled"}:
        indices = sorted({gpu["index"] for part in job["allocation"] for gpu in part["gpus"]})
        if indices:
            return "GPU " + ",".join(map(str, indices))
        return "" if job["gpu_count"] else "CPU"  # a job that is being stopped has no GPUs
    reason = f"resumes later; {job['reason']}" if _is_preempted(job) else str(job["reason"])
    return cut(in_local_time(reason), PLACE_WIDTH) if job["state"] == "pending" else ""


# Self-check

SELF_CHECK_TIMEOUT_S = 60.0


def register_self_check(parser: ArgumentParser) -> None:
    """Add the options of `tgpu test`."""
    parser.add_argument(
        "--quick", action="store_true", help="only the first checks, which take seconds"
    )


def run_self_check(args: Namespace) -> int:
    """Run the checks; exit code 1 if one fails."""
    began = time.monotonic()
    with temporary_server("tgpu-test-", "2xA100-80GB") as (state_dir, code):
        if code:
            return code
        failures = _run_checks(state_dir)
    if not failures and not args.quick:
        args.gpus = GPUS
        failures = run_demo(args)
    if failures:
        print(f"tgpu: test: {failures} checks failed", file=sys.stderr)
        return 1
    print(f"All checks passed, in {time.monotonic() - began:.0f} s.")
    return 0


def _run_checks(state_dir: str) -> int:
    from gpu_scheduler.client.client import Client
    from gpu_scheduler.model.errors import SchedulerError

    failures = 0
    with Client(state_dir) as client:
        for what, check in checks():
            try:
                problem = check(client)
            except SchedulerError as error:
                problem = str(error)
            print(f"  {'ok' if not problem else 'FAILED':<7} {what}" + f" {problem}".rstrip())
            failures += bool(problem)
    return failures


def checks() -> Iterator[tuple[str, Callable[[Client], str]]]:
    """The name of each check, and a function that returns the problem or an empty string."""
    yield "the server is healthy", _is_healthy
    yield "a job runs on its own GPU and its output is stored", _runs
    yield "the exit code of a job is reported", _fails
    yield "a job that can never fit is rejected at once", _is_refused
    yield "a running job can be cancelled", _is_cancelled


def _is_healthy(client: Client) -> str:
    health = client.health()
    return "" if health["status"] == "healthy" else f"it is {health['status']}: {health['checks']}"


def _runs(client: Client) -> str:
    job = client.submit(["/bin/sh", "-c", "echo on GPU $CUDA_VISIBLE_DEVICES"], gpus=1)
    ended = job.wait(timeout=SELF_CHECK_TIMEOUT_S)
    output = "".join(job.logs())
    if ended["state"] != "completed" or output.strip() not in {"on GPU 0", "on GPU 1"}:
        return f"it is {ended['state']} and its output is {output!r}"
    return ""


def _fails(client: Client) -> str:
    ended = client.submit(["/bin/sh", "-c", "exit 7"]).wait(timeout=SELF_CHECK_TIMEOUT_S)
    return "" if ended["exit_code"] == 7 else f"expected 7, got {ended['exit_code']}"


def _is_refused(client: Client) -> str:
    from gpu_scheduler.model.errors import CallerError

    try:
        job = client.submit(["/bin/true"], gpus=99)
    except CallerError:
        return ""
    return f"{job.id} was accepted"


def _is_cancelled(client: Client) -> str:
    job = client.submit(["/bin/sleep", "600"], gpus=1)
    give_up = time.monotonic() + SELF_CHECK_TIMEOUT_S
    while job.info()["state"] != "running" and time.monotonic() < give_up:
        time.sleep(0.02)
    job.cancel()
    ended = job.wait(timeout=SELF_CHECK_TIMEOUT_S)
    return "" if ended["state"] == "cancelled" else f"it is {ended['state']}"
