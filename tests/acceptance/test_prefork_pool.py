"""The pre-fork pool when launcher, fork server or children are killed."""

# ruff: noqa: ASYNC110, ASYNC220
# These tests poll files; their event loop has nothing else to do.

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_scheduler.agent.spawn.prefork_pool import MAX_FREE
from tests.launcher_rig import Rig, is_alive, with_launcher

LIMIT = {"memory_mb": 256}
SLOW_TO_DIE = """
import os, signal, sys
from gpu_scheduler.agent.spawn.spawner import Spawner
fill = Spawner.fill
def killed_first(self, child, launch):
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return fill(self, child, launch)
Spawner.fill = killed_first
from gpu_scheduler.agent.launcher.__main__ import main
main(["--dir", sys.argv[1]])
"""
"""A launcher whose pre-forked children are killed at the moment when they are needed."""


def groups_of(pid: int) -> list[Path]:
    """The cgroups of the pre-fork pool among those of a process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    found = (line.split(":", 2)[1:] for line in lines)
    return [Path(f"/sys/fs/cgroup/{name}{path}") for name, path in found if "/seat-" in path]


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def waiting(rig: Rig) -> dict[int, list[Path]]:
    """The waiting children and their cgroups."""
    found = {pid: groups_of(pid) for pid in children_of(rig.launcher.pid)}
    return {pid: groups for pid, groups in found.items() if groups}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.02)


async def a_full_pool(rig: Rig, name: str = "job-1.1") -> dict[int, list[Path]]:
    """Run a job with a limit, and wait until the pool is full."""
    assert (await rig.run(rig.work(name, "true", **LIMIT))).exit_code == 0
    if rig.launcher.capabilities["memory"] != "cgroup v1":
        pytest.skip("nobody has to wait where processes can begin in their groups")
    await until(lambda: len(waiting(rig)) >= MAX_FREE)
    await rig.launcher.held()  # it knows all of them when it answers
    return waiting(rig)


def test_preforked_children_end_with_launcher_and_their_cgroups_are_removed() -> None:
    async def scenario(rig: Rig) -> None:
        seats = await a_full_pool(rig)
        await rig.kill_launcher()
        await until(lambda: not any(map(is_alive, seats)))
        await until(lambda: not any(path.exists() for paths in seats.values() for path in paths))
        later = await a_full_pool(rig, "job-2.1")
        assert not later.keys() & seats.keys()

    with_launcher(scenario)


def test_ended_children_leave_no_cgroup_even_when_stopped_by_signal() -> None:
    seen: list[Path] = []

    async def scenario(rig: Rig) -> None:
        seats = await a_full_pool(rig)
        for pid in seats:
            os.kill(pid, signal.SIGSTOP)
        work = rig.work("job-2.1", "true", **LIMIT, max_processes=50)
        assert (await rig.run(work)).exit_code == 0
        seen.extend(path for paths in seats.values() for path in paths)

    with_launcher(scenario)
    assert seen
    assert not [path for path in seen if path.exists()]


def test_launcher_forks_itself_when_fork_server_dies_during_request() -> None:
    async def scenario(rig: Rig) -> None:
        seats = await a_full_pool(rig)
        (fork_server,) = set(children_of(rig.launcher.pid)) - seats.keys()
        os.kill(rig.launcher.pid, signal.SIGSTOP)
        os.kill(fork_server, signal.SIGKILL)
        helper = rig.launcher.run_helper(
            ("true",), {"PATH": "/usr/bin:/bin"}, (os.geteuid(), 0, "")
        )
        asked = asyncio.create_task(helper)
        await asyncio.sleep(0.1)  # the order waits for it when it continues
        os.kill(rig.launcher.pid, signal.SIGCONT)
        try:
            async with asyncio.timeout(20):
                await asked
        except TimeoutError:
            for pid in (*seats, rig.launcher.pid):
                os.kill(pid, signal.SIGKILL)
            raise

    with_launcher(scenario)


def test_job_runs_although_its_preforked_child_is_killed() -> None:
    async def scenario(rig: Rig) -> None:
        seats = await a_full_pool(rig)
        over = await rig.run(rig.work("job-2.1", "sh", "-c", "exit 3", **LIMIT))
        assert (over.exit_code, over.detail) == (3, "")
        assert not all(map(is_alive, seats)), "one of them was to be its child"

    async def run(directory: Path) -> None:
        words = [sys.executable, "-c", SLOW_TO_DIE, str(directory / "agent")]
        launcher = subprocess.Popen(words, start_new_session=True)
        try:
            rig = Rig(directory)
            await until((directory / "agent" / "launcher.sock").exists)
            await rig.open()
            assert rig.launcher.pid == launcher.pid
            await scenario(rig)
            await rig.close()
        finally:
            launcher.kill()
            launcher.wait()

    place = Path(tempfile.mkdtemp(prefix="tgpu-"))
    try:
        asyncio.run(run(place))
    finally:
        shutil.rmtree(place, ignore_errors=True)
