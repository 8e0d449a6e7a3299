"""Pre-forked children inside cgroup v1: taken by jobs, killed, left behind."""

# ruff: noqa: ASYNC110, ASYNC240
# These tests poll files; their event loop has nothing else to do.

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_scheduler.agent.cgroups import PREFIX
from gpu_scheduler.agent.spawn.prefork_pool import MAX_FREE
from tests.launcher_rig import AS_ROOT, Rig, with_launcher

CPU = Path("/sys/fs/cgroup/cpu")
pytestmark = pytest.mark.skipif(
    not AS_ROOT or not (CPU / "cpu.shares").exists(),
    reason="needs root, and control groups of version 1 (processes begin in those of version 2)",
)


def waiting(rig: Rig, kind: str = "cpu") -> dict[int, Path]:
    """The children that wait for a job, with their cgroups."""
    found = {}
    for children in Path(f"/proc/{rig.launcher.pid}/task").glob("*/children"):
        for pid in map(int, children.read_text(encoding="ascii").split()):
            try:
                groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
            named = {e.split(":")[1]: e.split(":")[2] for e in groups.splitlines()}
            if (
                Path(named[kind]).name.startswith(PREFIX)
                and b"gpu_scheduler.agent.launcher" in command
            ):
                found[pid] = CPU / named["cpu"].lstrip("/")
    return found


async def all_wait(rig: Rig, kind: str = "cpu") -> dict[int, Path]:
    """Wait until the pool is full, with these kinds of limits, and the launcher knows it."""
    async with asyncio.timeout(30):
        while len(found := waiting(rig, kind)) < MAX_FREE:
            await asyncio.sleep(0.02)
    await rig.launcher.held()  # it knows all of them when it answers
    return found


async def gone(path: Path) -> None:
    async with asyncio.timeout(20):
        while path.exists():
            await asyncio.sleep(0.02)


def test_second_job_takes_preforked_child_with_its_own_limits() -> None:
    async def scenario(rig: Rig) -> None:
        first = rig.work("job-1.1", "true", cpu_milli=500)
        assert (await rig.run(first)).exit_code == 0
        await all_wait(rig)
        script = "cut -d: -f2,3 /proc/self/cgroup; cat; sleep 60"
        work = rig.work("job-2.1", "sh", "-c", script, cpu_milli=1500, memory_mb=300)
        await rig.launcher.start(work)
        pid = (await rig.began("job-2.1")).pid
        groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")
        named = {e.split(":")[1]: e.split(":")[2] for e in groups.splitlines()}
        quota = (CPU / named["cpu"].lstrip("/") / "cpu.cfs_quota_us").read_text(encoding="ascii")
        assert int(quota) == 150_000
        limit = Path("/sys/fs/cgroup/memory" + named["memory"]) / "memory.limit_in_bytes"
        assert int(limit.read_text(encoding="ascii")) == 300 << 20
        await rig.launcher.stop("job-2.1", 0, "cancelled", 0)
        await rig.over("job-2.1")
        # From now on waiting children are prepared for both kinds of limits, needed or not.
        await all_wait(rig, "memory")
        plain = rig.work("job-3.1", "cat", "/proc/self/cgroup", cpu_milli=700)
        assert (await rig.run(plain)).exit_code == 0
        assert rig.log(plain).count(f"/{PREFIX}") >= 2

    with_launcher(scenario)


def test_killed_preforked_child_affects_no_job() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.run(rig.work("job-1.1", "true", cpu_milli=500))
        for pid, group in (await all_wait(rig)).items():
            os.kill(pid, signal.SIGKILL)
            await gone(group)
        for number in range(2, 12):
            over = await rig.run(rig.work(f"job-{number}.1", "sh", "-c", "exit 7", cpu_milli=500))
            assert over.exit_code == 7

    with_launcher(scenario)


def test_cgroups_of_preforked_children_are_removed_at_stop_and_after_death() -> None:
    async def scenario(rig: Rig) -> None:
        await rig.run(rig.work("job-1.1", "true", cpu_milli=500))
        left = await all_wait(rig)
        home = next(iter(left.values())).parent
        running = rig.work("job-2.1", "sleep", "60", cpu_milli=500)
        await rig.launcher.start(running)
        job = (await rig.began("job-2.1")).pid
        left.pop(job, None)
        await rig.kill_launcher()
        for group in left.values():
            await gone(group)
        os.kill(job, 0)
        assert (await rig.run(rig.work("job-3.1", "true", cpu_milli=500))).exit_code == 0
        await all_wait(rig)
        homes.append(home)

    homes: list[Path] = []
    with_launcher(scenario)
    assert not homes[0].exists()
