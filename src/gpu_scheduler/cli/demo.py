"""`tgpu demo`: a scheduler of its own on declared GPUs, real jobs of three tenants, all to look at.

Starts a server in a temporary directory, runs a little of everything that it can do, shows it as
it happens, checks that all came out as it should, and leaves nothing behind.
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable
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
    from gpu_scheduler.cli.output import counted
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
    from gpu_scheduler.cli.demo_view import view

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
    from gpu_scheduler.cli.output import aligned, terminal_width

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
