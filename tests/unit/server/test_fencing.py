"""The fencing command as a process: its end, its output, and its timeout."""

import asyncio
import os
import signal
import time

import pytest

from gpu_scheduler.server.background.fencing import Child


def run(*argv: str) -> tuple[int, bytes]:
    async def scenario() -> tuple[int, bytes]:
        child = Child(argv, {"PATH": "/usr/bin:/bin", "TGPU_NODE": "n7"})
        try:
            return await child.ended(), child.output
        finally:
            child.close()

    return asyncio.run(scenario())


def test_exit_code_and_output_of_command_are_returned() -> None:
    assert run("sh", "-c", "echo power off $TGPU_NODE; exit 3") == (3, b"power off n7\n")
    assert run("sh", "-c", "kill -9 $$") == (-9, b"")
    assert run("true") == (0, b"")


def test_only_end_of_long_output_is_kept() -> None:
    code, output = run("sh", "-c", "yes | head -c 1000000; echo last")
    assert (code, output[-5:], len(output)) == (0, b"last\n", 64 * 1024)


def test_missing_command_is_error() -> None:
    with pytest.raises(FileNotFoundError):
        run("/nowhere/fence")


def test_command_that_times_out_is_killed_with_its_children() -> None:
    async def scenario() -> int:
        child = Child(("sh", "-c", "sleep 600 & echo $!; wait"), {"PATH": "/usr/bin:/bin"})
        while not child.output.endswith(b"\n"):  # noqa: ASYNC110 - what it says is all there is
            await asyncio.sleep(0.01)
        child.close()
        return int(child.output)

    sleeper = asyncio.run(scenario())
    give_up = time.monotonic() + 60
    while os.path.exists(f"/proc/{sleeper}/root") and time.monotonic() < give_up:  # noqa: PTH110
        time.sleep(0.01)
    with pytest.raises(OSError):  # noqa: PT011 - it is gone, or waits for burial by another
        os.readlink(f"/proc/{sleeper}/exe")  # noqa: PTH115


def test_command_that_dies_late_is_reaped_later_without_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        child = Child(("sleep", "600"), {"PATH": "/usr/bin:/bin"})
        pid = child._pid
        with monkeypatch.context() as kernel:
            kernel.setattr(os, "killpg", lambda *_: None)
            child.close()
        os.kill(pid, signal.SIGKILL)  # it still exists
        async with asyncio.timeout(60):
            while os.path.exists(f"/proc/{pid}"):  # noqa: ASYNC110, ASYNC240, PTH110
                await asyncio.sleep(0.01)

    asyncio.run(scenario())
