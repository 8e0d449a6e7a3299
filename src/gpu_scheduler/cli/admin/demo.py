"""`tgpu demo`: a scheduler of its own on declared GPUs, real jobs of three tenants, all to look at.

Starts a server in a temporary directory, runs a little of everything that it can do, shows it as
it happens, checks that all came out as it should, and leaves nothing behind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_scheduler.cli.text.tables import cut
from gpu_scheduler.model.intervals import IntervalSet

TYPE_CHECKING = False

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator
    from typing import Any

    from gpu_scheduler.client.client import Client

GPUS = "8xA100-80GB"
LONGEST_S = 80.0
LOOK_S = 0.2
SAY = 'echo "job $TGPU_JOB_ID attempt $TGPU_ATTEMPT on GPUs [$CUDA_VISIBLE_DEVICES]"; '
ENDED = {"completed", "failed", "cancelled"}
ACCOUNTS = ("TENANT", "GPU TIME", "OF IT LOST", "COMPLETED", "FAILED", "PREEMPTIONS")

TENANTS: list[dict[str, Any]] = [
    {"id": "vision", "name": "vision", "max_gpus": 8, "fair_share_weight": 2.0},
    {"id": "language", "name": "language", "max_gpus": 8, "priority_tier": "high"},
    {"id": "students", "name": "students", "max_gpus": 6},
]


class Act:
    """One job of the demo: what it shows, and how it must end."""

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
        self.body = {"name": name, "command": ["sh", "-c", SAY + script], **job}
        self.expected = expected or (lambda job: job["state"] == "completed")
        self.job_id = ""


def acts() -> list[Act]:
    """In the order of submission."""
    return [
        Act(
            "long-run",
            "4 GPUs, preempted by the urgent job, resumes",
            # The second attempt finds the work of the first one done.
            "if [ $TGPU_ATTEMPT = 1 ]; then sleep 60; else sleep 1; fi",
            tenant_id="students",
            gpu_count=4,
            expected=lambda job: job["state"] == "completed" and job["preemptions"] > 0,
        ),
        Act("single", "one GPU", "sleep 2", tenant_id="vision", gpu_count=1),
        Act("half-a", "half a GPU", "sleep 3", tenant_id="vision", gpu_count=0.5),
        Act("half-b", "the other half", "sleep 3", tenant_id="vision", gpu_count=0.5),
        Act(
            "sweep",
            "array of 12 tasks, 2 at once",
            "sleep 0.4",
            tenant_id="students",
            gpu_count=1,
            array="0-11%2",
        ),
        Act(
            "flaky",
            "fails once, is tried again",
            "test $TGPU_ATTEMPT -ge 2",
            tenant_id="vision",
            gpu_count=1,
            retries=2,
            expected=lambda job: job["state"] == "completed" and job["attempt"] == 2,
        ),
        Act(
            "urgent",
            "8 GPUs of a higher class: preempts",
            "sleep 2",
            tenant_id="language",
            gpu_count=8,
            priority="urgent",
        ),
        Act(
            "gang",
            "8 members start together or not at all",
            'echo "rank $RANK of $WORLD_SIZE meets at $MASTER_ADDR:$MASTER_PORT"; sleep 2',
            tenant_id="vision",
            members=8,
            gpu_count=1,
        ),
        Act(
            "evaluate",
            "waits until 'gang' is done",
            "sleep 0.5",
            tenant_id="vision",
            gpu_count=1,
            dependencies=["gang"],
        ),
    ]


def register(parser: ArgumentParser) -> None:
    """The options of `tgpu demo`."""
    parser.add_argument(
        "--gpus", default=GPUS, metavar="GPUS", help=f"what to declare (default {GPUS})"
    )


def run(args: Namespace) -> int:
    """Start, run, show, check, stop."""
    import shutil
    import tempfile

    state_dir = tempfile.mkdtemp(prefix="tgpu-demo-")
    began = time.monotonic()
    try:
        code = server_command("up", "--daemon", "--state-dir", state_dir, "--simulate", args.gpus)
        if code:
            return code
        try:
            wrong = _play(state_dir, began, args.gpus)
        finally:
            server_command("down", "--state-dir", state_dir)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
    for line in wrong:
        print(f"tgpu: demo: {line}", file=sys.stderr)
    if not wrong:
        print()
        print(f"All as it should be, in {time.monotonic() - began:.0f} s. Nothing of it is left.")
        print(_next_steps(args.gpus))
    return 1 if wrong else 0


def _next_steps(gpus: str) -> str:
    """What to type now, as it works in this very shell."""
    lines = ["Now for yourself:"]
    directory = _program().rpartition("/")[0]
    if directory:
        lines.append(f"  export PATH={directory}:$PATH")
    lines += [
        "  tgpu up --daemon                         # finds the GPUs of this machine; has it none:",
        f"  tgpu up --daemon --simulate {gpus}",
        "  tgpu submit --gpus 1 -- python train.py  # or any other command",
        "  tgpu list                                # then: tgpu logs 1, tgpu top, tgpu down",
    ]
    return "\n".join(lines)


def _program() -> str:
    """What has to be typed for `tgpu`."""
    import shutil
    from pathlib import Path

    here = Path(sys.executable).with_name("tgpu")
    return str(here) if shutil.which("tgpu") is None and here.exists() else "tgpu"


def _play(state_dir: str, began: float, gpus: str) -> list[str]:
    from gpu_scheduler.cli.text.tables import counted
    from gpu_scheduler.client.client import Client

    print(f"A scheduler of its own on declared GPUs ({gpus}), for as long as this takes.")
    look = f"{_program()} top --server {state_dir}"
    print(f"To look on from another terminal meanwhile: {look}", flush=True)
    with Client(state_dir) as client:
        for tenant in TENANTS:
            client.call("POST", "/api/v1/tenants", tenant)
        played = acts()
        _submit(client, played)
        jobs = _watch(client, played, began)
        _show_accounts(client)
    return [
        f"'{act.name}' ended as {jobs[act.job_id]['state']} after "
        f"{counted(jobs[act.job_id]['attempt'], 'attempt')}: "
        f"{jobs[act.job_id]['reason'] or 'no reason given'}"
        for act in played
        if not act.expected(jobs[act.job_id])
    ]


def _submit(client: Client, played: list[Act]) -> None:
    """The urgent job comes a moment later, so that there is somebody to preempt."""
    ids: dict[str, str] = {}
    for act in played:
        if act.name == "urgent":
            time.sleep(1.5)
        body = dict(act.body)
        if "dependencies" in body:
            body["dependencies"] = [f"afterok:{ids[name]}" for name in body["dependencies"]]
        act.job_id = ids[act.name] = client.submit(**body).id


def _watch(client: Client, played: list[Act], began: float) -> dict[str, dict[str, Any]]:
    """Show all jobs until the last one has ended: live on a terminal, line by line elsewhere."""
    show = view(played)
    with show:
        while True:
            jobs = {act.job_id: client.get(act.job_id) for act in played}
            show.update(jobs, client.gpus())
            if all(job["state"] in ENDED for job in jobs.values()):
                return jobs
            if time.monotonic() - began > LONGEST_S:
                return jobs
            time.sleep(LOOK_S)


def _show_accounts(client: Client) -> None:
    """Who used how much: for people, so in columns also where no terminal is."""
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
    lines = aligned(ACCOUNTS, cells, right=frozenset(ACCOUNTS[1:]), width=terminal_width())
    print("\n".join(lines))


def server_command(*words: str) -> int:
    """Run another command of ours, of which only complaints are seen; its exit code."""
    import os
    import subprocess

    environment = os.environ | {
        "GPU_SCHEDULER_API_HTTP_PORT": "0",
        "GPU_SCHEDULER_API_METRICS_PORT": "0",
        "GPU_SCHEDULER_JOBS_ASSIGNMENT_RETRY_WAIT_S": "1",
        "GPU_SCHEDULER_JOBS_GRACE_S": "2",
    }
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "gpu_scheduler", *words],
        check=False,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    return done.returncode


# --- What the demo shows: a live table on a terminal, one line per change elsewhere.

WIDEST = 40

STYLES = {
    "running": "green",
    "scheduled": "cyan",
    "pending": "yellow",
    "completed": "dim",
    "failed": "red",
    "cancelled": "red",
}
Jobs = dict[str, dict[str, Any]]
Gpus = Sequence[dict[str, Any]]


class Lines:
    """One line whenever a job changes its state."""

    def __init__(self, played: list[Act]) -> None:
        self._acts = {act.job_id: act for act in played}
        self._seen: dict[str, tuple[Any, ...]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def update(self, jobs: Jobs, gpus: Gpus) -> None:  # noqa: ARG002 - the table shows them
        """Print what is new."""
        for job_id, job in jobs.items():
            now = (job["state"], job["attempt"], job["preemptions"])
            if self._seen.get(job_id) != now:
                self._seen[job_id] = now
                act = self._acts[job_id]
                state, where = job["state"], _where(job)
                print(f"{job_id:<8} {act.name:<10} {state:<10} {where:<{WIDEST}} {act.shows}")
        sys.stdout.flush()


class Screen:
    """A table that is drawn anew."""

    def __init__(self, played: list[Act]) -> None:
        self._played = played
        self._live = Live(refresh_per_second=8)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)

    def update(self, jobs: Jobs, gpus: Gpus) -> None:
        """Draw the present state."""
        self._live.update(Group(_gpu_row(gpus), _job_table(self._played, jobs)))


def view(played: list[Act]) -> Lines | Screen:
    """The right form for where the output goes."""
    return Screen(played) if sys.stdout.isatty() else Lines(played)


def _gpu_row(gpus: Gpus) -> Text:
    text = Text("GPUs  ")
    for gpu in gpus:
        share = gpu["allocated_share"]
        style = "black on green" if share >= 1 else "black on yellow" if share else "dim"
        text.append(f" {gpu['index']}:{share:.0%} ", style)
        text.append(" ")
    return text


def _job_table(played: list[Act], jobs: Jobs) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "NAME", "TENANT", "STATE", "WHERE", "TRY", "WHAT IT SHOWS"):
        table.add_column(column, no_wrap=True)
    for act in played:
        job = jobs[act.job_id]
        state = Text(job["state"], STYLES.get(job["state"], ""))
        table.add_row(
            str(job["number"]),
            act.name,
            job["tenant_id"],
            state,
            _where(job),
            str(job["attempt"] or ""),
            act.shows,
        )
    return table


def _where(job: dict[str, Any]) -> str:
    """The devices that a job holds, the tasks of an array, or why it waits."""
    if job["array"] is not None:
        states = job["array"]["states"]
        counts = {name: len(IntervalSet.parse(tasks)) for name, tasks in states.items() if tasks}
        order = sorted(counts, key=lambda name: (name in ENDED, name))
        return cut(", ".join(f"{counts[name]} {name}" for name in order), WIDEST)
    if job["state"] in {"running", "scheduled"}:
        indices = sorted({gpu["index"] for part in job["allocation"] for gpu in part["gpus"]})
        return "GPU " + ",".join(map(str, indices)) if indices else "CPU"
    return cut(str(job["reason"]), WIDEST) if job["state"] == "pending" else ""


# --- `tgpu test`: is this installation sound? A server of its own, real jobs, and what must hold.
#
# Everything is private and temporary: ports, sockets, state. With `--quick` some seconds; without,
# the whole demonstration as well (a gang, an array, a preemption, a job that is retried).

SELF_CHECK_LONGEST_S = 60.0


def register_self_check(parser: ArgumentParser) -> None:
    """The options of `tgpu test`."""
    parser.add_argument("--quick", action="store_true", help="only the first checks: seconds")


def self_check(args: Namespace) -> int:
    """Check, and say what holds; exit code 1 if something does not."""
    import shutil
    import tempfile

    began = time.monotonic()
    state_dir = tempfile.mkdtemp(prefix="tgpu-test-")
    failures = 0
    try:
        words = ("--daemon", "--state-dir", state_dir, "--simulate", "2xA100-80GB")
        code = server_command("up", *words)
        if code:
            return code
        try:
            failures = _checked(state_dir)
        finally:
            server_command("down", "--state-dir", state_dir)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
    if not failures and not args.quick:
        args.gpus = "8xA100-80GB"
        failures = run(args)
    if failures:
        print(f"tgpu: test: {failures} checks failed", file=sys.stderr)
        return 1
    print(f"All as it should be, in {time.monotonic() - began:.0f} s.")
    return 0


def _checked(state_dir: str) -> int:
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
    """What must hold, and a function that says what does not."""
    yield "the server is healthy", _is_healthy
    yield "a job runs on its own GPU and its output is kept", _runs
    yield "the exit code of a job is learnt", _fails
    yield "what can never fit is refused at once", _is_refused
    yield "a running job can be cancelled", _is_cancelled


def _is_healthy(client: Client) -> str:
    health = client.health()
    return "" if health["status"] == "healthy" else f"it is {health['status']}: {health['checks']}"


def _runs(client: Client) -> str:
    job = client.submit(["/bin/sh", "-c", "echo on GPU $CUDA_VISIBLE_DEVICES"], gpus=1)
    ended = job.wait(timeout=SELF_CHECK_LONGEST_S)
    output = "".join(job.logs())
    if ended["state"] != "completed" or output.strip() not in {"on GPU 0", "on GPU 1"}:
        return f"it ended as {ended['state']} and wrote {output!r}"
    return ""


def _fails(client: Client) -> str:
    ended = client.submit(["/bin/sh", "-c", "exit 7"]).wait(timeout=SELF_CHECK_LONGEST_S)
    return "" if ended["exit_code"] == 7 else f"7 was expected and {ended['exit_code']} came"


def _is_refused(client: Client) -> str:
    from gpu_scheduler.model.errors import CallerError

    try:
        job = client.submit(["/bin/true"], gpus=99)
    except CallerError:
        return ""
    return f"{job.id} was accepted"


def _is_cancelled(client: Client) -> str:
    job = client.submit(["/bin/sleep", "600"], gpus=1)
    give_up = time.monotonic() + SELF_CHECK_LONGEST_S
    while job.info()["state"] != "running" and time.monotonic() < give_up:
        time.sleep(0.02)
    job.cancel()
    ended = job.wait(timeout=SELF_CHECK_LONGEST_S)
    return "" if ended["state"] == "cancelled" else f"it ended as {ended['state']}"
