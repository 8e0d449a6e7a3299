"""Job leases enforced by real launchers that lose their agent, are frozen or are killed."""

# ruff: noqa: ASYNC110
# These tests poll files; their event loop has nothing else to do.

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher import lease_watchdog, processes
from gpu_scheduler.agent.launcher.lease_watchdog import PID_FILE, Watchdog
from gpu_scheduler.agent.launcher.loop import now_ms
from gpu_scheduler.agent.launcher_client import OrderRefused
from gpu_scheduler.agent.launcher_protocol import Work
from tests.launcher_rig import Rig, is_alive, with_launcher

SCATTERED = (
    "setsid sleep 600 & (sleep 600 &) ; trap '' TERM; echo ready; while :; do sleep 600; done"
)
"""Processes in another session, orphans, and a shell that ignores SIGTERM."""


async def until(true: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.02)


def leased(rig: Rig, name: str, lease_ms: int, script: str = SCATTERED, **more: object) -> Work:
    return rig.work(name, "sh", "-c", script, lease_ms=lease_ms, leased_ms=now_ms(), **more)


def belonging(rig: Rig, name: str) -> set[int]:
    """All processes whose environment names the job."""
    mark = f"{zlib.crc32(str((rig.directory / 'agent').resolve()).encode()):08x}"
    return {pid for pid in processes.all_pids() if processes.owner(pid, mark) == (name, 0)}


def until_ms(rig: Rig) -> int:
    """When the lease of the only leased job expires, as its watchdog reads it."""
    (lease,) = lease_watchdog.read_leases(str(rig.directory / "agent"))
    return lease.until_ms


def watchdog_pid(rig: Rig) -> int:
    try:
        return int((rig.directory / "agent" / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


async def running(rig: Rig, work: Work) -> int:
    """Start a job and wait for all its processes and the watchdog; returns when its lease began.

    The lease is renewed meanwhile, because that may take longer on a busy machine.
    """

    def is_there() -> bool:
        log = Path(work.log_path)
        return log.exists() and "ready" in rig.log(work) and is_alive(watchdog_pid(rig))

    await rig.launcher.start(work)
    await rig.began(work.allocation_id)
    asked_ms = work.leased_ms
    async with asyncio.timeout(30):
        while not is_there():
            asked_ms = now_ms()
            await rig.launcher.renew(asked_ms)
            await asyncio.sleep(0.02)
    return asked_ms


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_job_runs_only_while_its_lease_is_renewed() -> None:
    async def scenario(rig: Rig) -> None:
        work = leased(rig, "job-1.1", 3_000)
        await running(rig, work)
        asked_ms = 0
        for _ in range(16):
            asked_ms = now_ms()
            await rig.launcher.renew(asked_ms)
            await asyncio.sleep(0.2)
            assert belonging(rig, "job-1.1")
        over = await rig.over("job-1.1")
        assert (over.signal, over.stopped_by, over.ran) == (signal.SIGKILL, "lease", True)
        assert now_ms() >= asked_ms + 3_000, "it had been renewed"
        assert not belonging(rig, "job-1.1")
        assert lease_watchdog.read_leases(str(rig.directory / "agent")) == []

    with_launcher(scenario)


def test_job_is_terminated_before_its_lease_expires() -> None:
    async def scenario(rig: Rig) -> None:
        script = "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
        work = leased(rig, "job-1.1", 6_000, script, grace_ms=10_000)
        await running(rig, work)
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.stopped_by) == (3, "lease")
        assert "saved" in rig.log(work)

    with_launcher(scenario)


@pytest.mark.slow
def test_long_grace_period_does_not_outlast_lease() -> None:
    async def scenario(rig: Rig) -> None:
        work = leased(rig, "job-1.1", 3_000, grace_ms=600_000)
        await running(rig, work)
        await rig.launcher.stop("job-1.1", 0, "preempted")
        over = await rig.over("job-1.1")
        assert (over.signal, over.stopped_by) == (signal.SIGKILL, "preempted")

    with_launcher(scenario)


def test_jobs_without_lease_continue_when_another_lease_expires() -> None:
    async def scenario(rig: Rig) -> None:
        plain = rig.work("job-2.1", "sh", "-c", "echo ready; exec sleep 600")
        await running(rig, leased(rig, "job-1.1", 2_000))
        await rig.launcher.start(plain)
        await rig.began("job-2.1")
        await rig.over("job-1.1")
        assert [over for _, _, over in await rig.launcher.held() if over is None] == [None]
        assert belonging(rig, "job-2.1")

    with_launcher(scenario)


@pytest.mark.slow
def test_job_does_not_outlive_its_lease_when_launcher_is_frozen() -> None:
    async def scenario(rig: Rig) -> None:
        asked_ms = await running(rig, leased(rig, "job-1.1", 3_000))
        assert len(belonging(rig, "job-1.1")) >= 3
        with frozen(rig.launcher.pid):
            await until(lambda: not belonging(rig, "job-1.1"))
            assert now_ms() >= asked_ms + 3_000
        over = await rig.over("job-1.1")
        assert (over.signal, over.stopped_by) == (signal.SIGKILL, "lease")

    with_launcher(scenario)


def test_job_does_not_outlive_its_lease_without_launcher_and_agent() -> None:
    async def scenario(rig: Rig) -> None:
        await running(rig, leased(rig, "job-1.1", 3_000))
        await rig.launcher.renew(now_ms())
        pid = rig.launcher.pid
        await rig.hang_up()
        await rig.launcher.close()
        os.kill(pid, signal.SIGKILL)
        assert len(belonging(rig, "job-1.1")) >= 3
        await until(lambda: not belonging(rig, "job-1.1"))
        await until(lambda: not is_alive(watchdog_pid(rig)))
        await rig.open()
        over = await rig.over("job-1.1")
        assert (over.exit_code, over.stopped_by) == (None, "lease")
        assert "exit code unknown" in over.detail

    with_launcher(scenario)


def test_next_launcher_enforces_leases_of_previous_one() -> None:
    async def scenario(rig: Rig) -> None:
        work = leased(rig, "job-1.1", 60_000)
        await running(rig, work)
        first, former = watchdog_pid(rig), rig.launcher.pid
        asked_ms = now_ms()
        await rig.launcher.renew(asked_ms)
        assert until_ms(rig) == asked_ms + 60_000
        await rig.kill_launcher()
        await until(lambda: watchdog_pid(rig) != first and not is_alive(first))
        assert (until_ms(rig), rig.launcher.pid == former) == (asked_ms + 60_000, False)
        renewed_ms = now_ms()
        await rig.launcher.renew(renewed_ms)
        assert until_ms(rig) == renewed_ms + 60_000
        assert belonging(rig, "job-1.1")

    with_launcher(scenario)


@pytest.mark.slow
def test_leases_hold_when_watchdog_is_killed_or_frozen() -> None:
    async def scenario(rig: Rig) -> None:
        await running(rig, leased(rig, "job-1.1", 6_000))
        first = watchdog_pid(rig)
        os.kill(first, signal.SIGKILL)
        await until(lambda: watchdog_pid(rig) not in {0, first})
        with frozen(watchdog_pid(rig)):
            over = await rig.over("job-1.1")
        assert over.stopped_by == "lease"

    with_launcher(scenario)


def test_launcher_thawed_after_lease_expiry_cannot_renew_it() -> None:
    """As when the whole machine is suspended: launcher, watchdog and job."""

    async def scenario(rig: Rig) -> None:
        work = leased(rig, "job-1.1", 2_000, "echo ready; exec sleep 600")
        asked_ms = await running(rig, work)
        job = next(iter(belonging(rig, "job-1.1")))
        with frozen(rig.launcher.pid, watchdog_pid(rig)):
            await until(lambda: now_ms() > asked_ms + 2_100)
            assert is_alive(job)
            # When the launcher thaws, the renewal waits in its socket, before any timer.
            renewal = asyncio.create_task(rig.launcher.renew(now_ms()))
            await asyncio.sleep(0.1)
        await renewal
        over = await rig.over("job-1.1")
        assert over.stopped_by == "lease"

    with_launcher(scenario)


def test_job_with_expired_lease_never_starts() -> None:
    async def scenario(rig: Rig) -> None:
        work = rig.work("job-1.1", "touch", "ran", lease_ms=100, leased_ms=now_ms() - 200)
        over = await rig.run(work)
        assert (over.ran, over.stopped_by) == (False, "lease")
        assert not (rig.directory / "ran").exists()

    with_launcher(scenario)


def test_lease_renewal_with_future_time_is_rejected() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(OrderRefused, match="ahead"):
            await rig.launcher.renew(now_ms() + 60_000)

    with_launcher(scenario)


def test_watchdog_spares_process_that_reuses_pid(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        form = {"boot": processes.boot_id(), "pid": stranger.pid, "ticks": 1, "uid": os.getuid()}
        for number, boot in enumerate((processes.boot_id(), "another run of the machine")):
            groups = {"groups": (), "kill": (), **form, "boot": boot}
            lease_watchdog.write_lease(str(tmp_path), (f"job-{number}.1", 0), 1, groups)
        watchdog = Watchdog(str(tmp_path), "mark")
        for _ in range(5):
            watchdog.check()
        assert stranger.poll() is None
        assert watchdog.check()[1] == 0, "nothing is left to watch"
    finally:
        stranger.kill()
        stranger.wait()
