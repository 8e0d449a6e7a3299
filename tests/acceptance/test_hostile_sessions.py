"""A session runs as the job's user, so the launcher must not trust its messages."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.launcher_rig import Rig, is_alive, log_line, with_launcher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("tmux"), reason="tmux is not installed"),
]

# The real launcher, but the user has replaced the shim before it started.
EXCHANGED = """
import sys
from gpu_scheduler.agent.runners import session
session.__file__ = sys.argv[2] + "/session.py"
"""
START = """
import sys
from gpu_scheduler.agent.launcher.__main__ import main
sys.exit(main(["--dir", sys.argv[1]]))
"""
FAILING = """
from gpu_scheduler.agent.launcher.{module} import {owner}
before = {owner}.{name}
left = ["job-1.1"]
def failing(*values, **more):
    for value in values:
        key = getattr(value, "key", (getattr(value, "allocation_id", ""),))
        if key[0] in left:
            left.clear()
            raise RuntimeError("never expected")
    return before(*values, **more)
{owner}.{name} = failing
"""
HEAD = """
import json, os, socket, subprocess, sys, time
gate = socket.socket(socket.AF_UNIX)
gate.connect(sys.argv[1])
def order():
    data = b""
    while not data.endswith(b"\\n"):
        data += gate.recv(65536)
    return json.loads(data)
def say(text):
    gate.sendall(text)
    time.sleep(1000)
"""


def with_shim(shim: str, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a scenario against a launcher whose sessions run this shim."""

    async def run(rig: Rig) -> None:
        (rig.directory / "shim.py").write_text(HEAD + shim, encoding="utf-8")
        await scenario(rig)

    with_changed_launcher(EXCHANGED, run)


def with_changed_launcher(change: str, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    """Run a scenario against a launcher with an injected fault, which must survive it."""

    async def run(rig: Rig) -> None:
        await rig.hang_up()
        await rig.launcher.leave()
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", change + START, rig.directory / "agent", rig.directory]
        )
        async with asyncio.timeout(20):
            while not await answers(rig):
                await asyncio.sleep(0.02)
        await rig.open()
        try:
            await scenario(rig)
            assert (await rig.run(rig.work("job-99.1", "sh", "-c", "exit 3"))).exit_code == 3
            assert rig.launcher.pid == process.pid
        finally:
            await rig.close()
            process.wait(20)
            await rig.open()

    with_launcher(run)


async def answers(rig: Rig) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(rig.directory / "agent" / "launcher.sock")
    except OSError:
        return False
    writer.close()
    return True


@pytest.mark.parametrize(
    "word",
    [
        "x\\n",
        "[1]\\n",
        '{"began": "7"}\\n',
        '{"began": 0}\\n',
        '{"began": -1}\\n',
        '{"began": 1}\\n',
        '{"began": 1e999}\\n',
        '{"began": ' + "9" * 5000 + "}\\n",
        "[" * 60_000 + "\\n",
        "y" * 70_000,
    ],
)
def test_malformed_session_message_fails_only_its_own_job(word: str) -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(rig.work("job-1.1", "true", runner="tmux", grace_ms=200))
        assert over.exit_code is None
        assert "did not answer as it should" in over.detail

    with_shim(f"order(); say(b'{word}')", scenario)


def test_session_message_in_pieces_is_reassembled() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "true", runner="tmux", grace_ms=200)
        await rig.launcher.start(work)
        began = await rig.began("job-1.1")
        assert is_alive(began.pid)

    shim = """
order()
job = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
for letter in json.dumps({"began": job}):
    gate.sendall(letter.encode())
    time.sleep(0.005)
say(b"\\n")
"""
    with_shim(shim, scenario)


def test_session_error_with_invalid_unicode_is_reported_and_session_ended() -> None:
    async def scenario(rig: Rig) -> None:
        over = await rig.run(rig.work("job-1.1", "true", runner="tmux", grace_ms=200))
        assert not over.ran
        assert over.detail.startswith("no? ")
        assert len(over.detail) <= 2000

    with_shim("order(); say(b'{\"error\": \"no\\\\ud800 ' + b'z' * 9000 + b'\"}\\n')", scenario)


def test_session_can_report_only_its_own_process_as_job() -> None:
    """Signals go to the process group that the session names, so it must not name another."""

    async def scenario(rig: Rig) -> None:
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        try:
            (rig.directory / "victim").write_text(str(other.pid), encoding="ascii")
            work = rig.work(
                "job-1.1",
                "true",
                runner="tmux",
                limit_ms=500,
                warn_signal="KILL",
                warn_before_ms=400,
                grace_ms=200,
            )
            over = await rig.run(work)
            assert "did not answer as it should" in over.detail
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()

    shim = """
order()
place = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
victim = open(place + "/victim").read()
say(b'{"began": %s}\\n' % victim.encode())
"""
    with_shim(shim, scenario)


def test_session_that_does_not_read_its_order_blocks_no_other_job() -> None:
    async def scenario(rig: Rig) -> None:
        big = {"PATH": "/usr/bin:/bin", **{f"V{n}": "x" * 100_000 for n in range(20)}}
        work = rig.work("job-1.1", "true", runner="tmux", environment=big, grace_ms=200)
        await rig.launcher.start(work)
        assert (await rig.run(rig.work("job-2.1", "true"))).exit_code == 0
        await rig.launcher.stop("job-1.1", 0, "cancelled", 0)
        (rig.directory / "read").touch()
        over = await rig.over("job-1.1")
        assert (over.ran, over.stopped_by) == (False, "cancelled")

    shim = """
place = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
while not os.path.exists(place + "/read"):
    time.sleep(0.02)
while gate.recv(65536):
    pass
time.sleep(1000)
"""
    with_shim(shim, scenario)


def test_long_order_reaches_session_complete() -> None:
    async def scenario(rig: Rig) -> None:
        big = {"PATH": "/usr/bin:/bin", **{f"V{n}": "x" * 100_000 for n in range(10)}}
        work = rig.work("job-1.1", "sh", "-c", 'echo "${#V9}"', runner="tmux", environment=big)
        assert (await rig.run(work)).exit_code == 0
        assert rig.log(work) == "100000\n"

    with_launcher(scenario)


def test_session_gate_accepts_only_its_own_shim() -> None:
    """Another process of the same user connects first and is rejected."""

    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "sh", "-c", "echo ran", runner="tmux")
        thief = subprocess.Popen(
            [sys.executable, "-I", "-c", THIEF, work.scratch_dir, rig.directory / "over"],
            stdout=subprocess.PIPE,
        )
        assert thief.stdout is not None
        assert await asyncio.to_thread(thief.stdout.readline) == b"ready\n"
        assert (await rig.run(work)).exit_code == 0
        await log_line(rig, work, "ran")
        (rig.directory / "over").touch()
        said, _ = await asyncio.to_thread(thief.communicate)
        assert said in {b"nothing\n", b"too late\n"}
        assert not list(Path(work.scratch_dir).glob("gate*"))

    with_launcher(scenario)


THIEF = """
import glob, os, socket, sys
print("ready", flush=True)
found = []
while not found and not os.path.exists(sys.argv[2]):
    found = glob.glob(sys.argv[1] + "/gate-*")
thief = socket.socket(socket.AF_UNIX)
thief.settimeout(10)
try:
    thief.connect(found[0])
    print(thief.recv(65536).decode()[:80] or "nothing")
except (IndexError, OSError):
    print("too late")
"""


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("lifecycle.start", "log_rotation", "open_log"),
        ("lifecycle.start_gate", "StartGate", "record_start"),
        ("lifecycle.start_gate", "StartGate", "set_running"),
        ("lifecycle.start", "Starter", "_child_ended"),
        ("lifecycle.stop", "Stopper", "watch_limits"),
        ("lifecycle.cleanup", "Cleanup", "_end_processes"),
        ("lifecycle.cleanup", "Cleanup", "_finish"),
    ],
)
@pytest.mark.parametrize("runner", ["process", "tmux"])
def test_launcher_fault_fails_one_job_and_leaves_no_process(
    module: str, owner: str, name: str, runner: str
) -> None:
    if (runner, name) == ("tmux", "_child_ended"):
        pytest.skip("only children of the launcher end there")

    async def scenario(rig: Rig) -> None:
        bystander = rig.work("job-2.1", "sleep", "1000")
        await rig.launcher.start(bystander)
        began = await rig.began("job-2.1")
        work = rig.work("job-1.1", "sleep", "0.2", runner=runner, grace_ms=200)
        over = await rig.run(work)
        assert "the launcher failed over this job" in over.detail
        assert is_alive(began.pid)
        await rig.launcher.stop("job-2.1", 0, "cancelled", 0)
        assert (await rig.over("job-2.1")).stopped_by == "cancelled"

    with_changed_launcher(FAILING.format(module=module, owner=owner, name=name), scenario)
