"""`tgpu test`: is this installation sound? A server of its own, real jobs, and what must hold.

Everything is private and temporary: ports, sockets, state. With `--quick` some seconds; without,
the whole demonstration as well (a gang, an array, a preemption, a job that is retried).
"""

from __future__ import annotations

import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterator

    from gpu_scheduler.client.client import Client

LONGEST_S = 60.0


def register(parser: ArgumentParser) -> None:
    """The options of `tgpu test`."""
    parser.add_argument("--quick", action="store_true", help="only the first checks: seconds")


def run(args: Namespace) -> int:
    """Check, and say what holds; exit code 1 if something does not."""
    import shutil
    import tempfile

    from gpu_scheduler.cli.demo import run as run_demo
    from gpu_scheduler.cli.demo import server_command

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
        failures = run_demo(args)
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
    ended = job.wait(timeout=LONGEST_S)
    output = "".join(job.logs())
    if ended["state"] != "completed" or output.strip() not in {"on GPU 0", "on GPU 1"}:
        return f"it ended as {ended['state']} and wrote {output!r}"
    return ""


def _fails(client: Client) -> str:
    ended = client.submit(["/bin/sh", "-c", "exit 7"]).wait(timeout=LONGEST_S)
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
    give_up = time.monotonic() + LONGEST_S
    while job.info()["state"] != "running" and time.monotonic() < give_up:
        time.sleep(0.02)
    job.cancel()
    ended = job.wait(timeout=LONGEST_S)
    return "" if ended["state"] == "cancelled" else f"it ended as {ended['state']}"
