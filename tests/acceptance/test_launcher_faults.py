"""Faults around a launcher with running jobs: engines, disks, forks, processes."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent import launcher_client
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.jobs.orders import OrderTranslator
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.container import container_name
from gpu_scheduler.wire import agent_pb2 as pb
from tests.containers import why_no_containers
from tests.contract.test_runners import NAME, command, needs, work_of
from tests.hanging_directories import hanging_directory
from tests.launcher_rig import AS_ROOT, NOBODY, Rig, is_alive, start_until, with_launcher

pytestmark = pytest.mark.slow


async def until(true: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


# --- starting the launcher


def test_agent_retries_when_launcher_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [errno.EAGAIN, errno.ENOMEM, errno.ENOSPC]
    spawn = os.posix_spawn

    def spawned(*args: Any, **more: Any) -> int:
        if failures:
            number = failures.pop()
            raise OSError(number, os.strerror(number))
        return spawn(*args, **more)

    async def scenario(rig: Rig) -> None:
        await rig.hang_up()
        await rig.launcher.close()
        agent = await Launcher.connect(rig.directory / "agent")
        try:
            async with asyncio.timeout(60):
                await agent.start(rig.work("job-1.1", "sleep", "1000"))
                monkeypatch.setattr(launcher_client.os, "posix_spawn", spawned)
                os.kill(agent.pid, signal.SIGKILL)
                await until(lambda: not failures)
                assert [held[0] for held in await agent.held()] == ["job-1.1"]
        finally:
            failures.clear()
            await rig.open()
            with contextlib.suppress(OSError):
                await agent.close()

    with_launcher(scenario)


def test_agent_stops_while_second_launcher_waits_for_lock() -> None:
    """Two agents may start a launcher at the same time; the second one waits for the lock."""

    async def scenario(rig: Rig) -> None:
        await rig.hang_up()
        first = rig.launcher.pid
        rig.launcher._child = 0
        rig.launcher._start_launcher()
        second = rig.launcher._child
        assert second not in {0, first}
        try:
            async with asyncio.timeout(30):
                await rig.launcher.leave()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(second, signal.SIGKILL)
            await rig.open()
        assert rig.launcher.pid not in {first, second}

    with_launcher(scenario)


# --- containers


def with_engine(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    scenario: Callable[[Rig, Path], Awaitable[None]],
    first: str = "",
) -> None:
    """Run with an engine that fails while the file `broken` exists; `first` runs before."""
    if reason := why_no_containers():
        pytest.skip(reason)
    real = shutil.which("podman")
    script = f"""#!/bin/sh
case "$*" in *' run '*) exec {real} "$@";; esac
if test -e {tmp_path}/broken; then
    echo "$*" >> {tmp_path}/asked; echo 'cannot connect to the engine' >&2; exit 125
fi
{first}
exec {real} "$@"
"""
    (tmp_path / "podman").write_text(script)
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def run(rig: Rig) -> None:
        await scenario(rig, tmp_path / "broken")

    with_launcher(run)


async def a_container(rig: Rig, script: str) -> Work:
    """A running container that has printed `ready`."""
    work = work_of(rig, "container", script)
    await start_until(rig, work, "ready")
    return work


def test_container_whose_client_was_killed_is_not_reported_successful(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, _: Path) -> None:
        work = await a_container(rig, "echo ready; sleep 1000")
        os.kill((await rig.began(NAME)).pid, signal.SIGKILL)
        over = await rig.over(NAME)
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert "exit code unknown" in over.detail
        assert container_name(work) not in await command("podman", "ps", "--all")

    with_engine(monkeypatch, tmp_path, scenario)


def test_unresponsive_engine_is_not_taken_for_job_that_never_ran(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, broken: Path) -> None:
        done = rig.directory / "done"
        script = f"echo ready; while ! test -e {done}; do sleep 0.02; done; exit 3"
        await a_container(rig, script)
        broken.touch()
        done.touch()
        asked = tmp_path / "asked"
        await until(lambda: asked.exists() and asked.read_text().count("inspect") > 1)
        assert [over for _, _, over in await rig.launcher.held()] == [None]
        broken.unlink()
        over = await rig.over(NAME)
        assert (over.exit_code, over.ran) == (3, True)

    with_engine(monkeypatch, tmp_path, scenario)


def test_externally_removed_container_counts_as_having_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    removed = tmp_path / "removed"

    async def scenario(rig: Rig, _: Path) -> None:
        work = await a_container(rig, "echo ready; sleep 1000")
        await command("podman", "rm", "--force", "--time", "0", container_name(work))
        removed.touch()
        over = await rig.over(NAME)
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert "exit code unknown" in over.detail

    # The engine kills it before it removes it, so a query in between reports the signal.
    late = f'case "$*" in *inspect*) until [ -e {removed} ]; do sleep 0.05; done;; esac'
    with_engine(monkeypatch, tmp_path, scenario, first=late)


def test_engine_output_with_warnings_is_parsed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As podman on hosts with cgroup v1, and docker without its configuration."""

    async def scenario(rig: Rig, _: Path) -> None:
        over = await rig.run(work_of(rig, "container", "echo ran; exit 3"))
        assert (over.exit_code, over.ran, over.detail) == (3, True, "")

    warning = 'level=warning msg="Using cgroups-v1 which is deprecated"'
    with_engine(monkeypatch, tmp_path, scenario, first=f"echo '{warning}' >&2")


def test_job_with_unparsable_engine_output_is_not_reported_as_never_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, _: Path) -> None:
        work = work_of(rig, "container", "echo ran; exit 3")
        over = await rig.run(work)
        assert (over.exit_code, over.signal, over.ran) == (None, None, True)
        assert "exit code is unknown" in over.detail
        assert rig.log(work) == "ran\n"

    odd = """case "$*" in *' inspect '*) echo '{"Exit": "well"}'; exit 0;; esac"""
    with_engine(monkeypatch, tmp_path, scenario, first=odd)


# --- disks


@contextlib.asynccontextmanager
async def small_disk(rig: Rig) -> AsyncIterator[Path]:
    """The launcher's directory on a small file system."""
    if not AS_ROOT:
        pytest.skip("needs root")
    await rig.hang_up()
    await rig.launcher.leave()
    disk = rig.directory / "agent"
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]
    if subprocess.run(mount, check=False).returncode:
        await rig.open()
        pytest.skip("cannot mount a small file system here")
    try:
        await rig.open()
        yield disk
    finally:
        await rig.close()
        subprocess.run(["umount", "-l", disk], check=False)
        await rig.open()


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (disk / "filler").write_bytes(b"x" * (1 << 20))


def test_launcher_restarts_with_damaged_journal_on_full_disk() -> None:
    async def scenario(rig: Rig) -> None:
        async with small_disk(rig) as disk:
            await rig.launcher.start(rig.work("job-1.1", "sleep", "1000"))
            await rig.began("job-1.1")
            fill(disk)
            journal = disk / "attempts" / "journal"
            data = journal.read_bytes()
            torn = b'0badc0de {"kind":"began","allocation_id":"job-2.1","member":0'
            with journal.open("r+b") as file:
                file.seek(len(data.rstrip(b"\0")))
                file.write(torn)
            try:
                async with asyncio.timeout(20):
                    await rig.kill_launcher()
            finally:
                (disk / "filler").unlink()
            assert not list(journal.parent.glob("journal.bad-*"))
            assert not (await rig.over("job-2.1")).ran
            held = {name: over for name, _, over in await rig.launcher.held()}
            assert held["job-1.1"] is None

    with_launcher(scenario)


# --- after the launcher's death


@pytest.mark.parametrize("runner", ["process", "terminal", "tmux"])
def test_stop_warning_reaches_job_and_not_its_session_after_launcher_death(
    runner: str,
) -> None:
    if reason := needs(runner):
        pytest.skip(reason)

    async def scenario(rig: Rig) -> None:
        script = "trap 'echo warned; exit 5' USR1; echo ready; while :; do sleep 0.02; done"
        warning = {"warn_signal": "USR1", "warn_before_ms": 29_500, "grace_ms": 30_000}
        work = work_of(rig, runner, script, **warning)
        await start_until(rig, work, "ready")
        await rig.kill_launcher()
        await rig.launcher.stop(NAME, 0, "preempted")
        over = await rig.over(NAME)
        assert "warned" in rig.log(work)
        assert (over.exit_code, over.signal) == (None if runner == "process" else 5, None)

    with_launcher(scenario)


# --- helper commands


def test_background_process_of_helper_is_not_taken_for_job() -> None:
    """As the daemon by which several jobs of one user share a device."""
    if not AS_ROOT:
        pytest.skip("needs root")

    async def scenario(rig: Rig) -> None:
        who = {"uid": NOBODY, "gid": NOBODY, "user": "nobody"}
        left = rig.directory / "left"
        left.mkdir()
        os.chown(left, NOBODY, NOBODY)
        script = f"setsid sleep 1000 >/dev/null 2>&1 & echo $! > {left}/pid"
        plain = {"PATH": "/usr/bin:/bin"}
        await rig.launcher.run_helper(("sh", "-c", script), plain, (NOBODY, NOBODY, "nobody"))
        daemon = int((left / "pid").read_text())
        await rig.run(rig.work("job-1.1", "true", **who))
        assert is_alive(daemon)
        # A process that copies the marker is still part of its job.
        mark = f"$(tr '\\0' '\\n' < /proc/{daemon}/environ | grep ^TGPU_HELPER=)"
        hidden = f"setsid env {mark} sleep 1000 >/dev/null 2>&1 & echo $! > {left}/hidden"
        await rig.run(rig.work("job-2.1", "sh", "-c", hidden, **who))
        assert not is_alive(int((left / "hidden").read_text()))
        assert is_alive(daemon)
        os.kill(daemon, signal.SIGKILL)

    with_launcher(scenario)


# --- directories that hang


@pytest.mark.parametrize("members", [1, 2], ids=["alone", "gang"])
def test_job_with_hanging_directory_can_be_cancelled(members: int) -> None:
    async def scenario(rig: Rig) -> None:
        with hanging_directory(rig.directory / "gone") as gone:
            work = rig.work("job-1.1", "true", workdir=str(gone), members_here=members)
            await rig.launcher.start(work)
            await rig.launcher.stop("job-1.1", 0, "cancelled", 200)
            over = await rig.over("job-1.1")
        assert over.stopped_by == "cancelled"
        assert over.exit_code is None

    with_launcher(scenario)


def test_hanging_home_directory_blocks_no_order() -> None:
    """The agent has one event loop: heartbeats would stop, and the node would be lost."""
    directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
    places = {"dir": str(directory), "logs_dir": str(directory), "scratch_dir": str(directory)}
    config = AgentConfig(node="n0", targets=("unix:/nowhere",), **places)
    orders = OrderTranslator(config, NodeInventory(cpu_milli=1_000, memory_mb=1_000))
    with hanging_directory(directory / "home") as home:
        variables = {"HOME": str(home), "PATH": f"{home}/bin:/usr/bin"}
        start = pb.Start(job_id="job-1", argv=["true"], conda="ml", environment=variables)
        made: list[Work] = []
        order = pb.Order(allocation_id="job-1.1", start=start)
        thread = threading.Thread(target=lambda: made.append(orders.translate(order)), daemon=True)
        thread.start()
        thread.join(60)
    assert [work.workdir for work in made] == [str(home)]
    shutil.rmtree(directory, ignore_errors=True)


# --- what jobs inherit


def test_job_does_not_inherit_ignored_signals() -> None:
    ignored, blocked = signal.SIGUSR1, signal.SIGUSR2

    async def scenario(rig: Rig) -> None:
        for runner in ("process", "terminal"):
            work = rig.work(f"{runner}.1", "cat", "/proc/self/status", runner=runner)
            assert (await rig.run(work)).exit_code == 0
            found = dict(line.split(":", 1) for line in rig.log(work).splitlines() if ":" in line)
            # The C library reserves these signals.
            mine = sum(1 << (number - 1) for number in signal.valid_signals())
            masks = {name: int(found[name], 16) & mine for name in ("SigIgn", "SigBlk")}
            assert masks == {"SigIgn": 0, "SigBlk": 0}

    before = signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
    try:
        with_launcher(scenario)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {blocked})
        signal.signal(ignored, before)


def test_session_reports_its_end_when_its_directory_is_full() -> None:
    if not AS_ROOT:
        pytest.skip("needs root")

    async def scenario(rig: Rig) -> None:
        place = rig.directory / "scratch"
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place]
        if subprocess.run(mount, check=False).returncode:
            pytest.skip("cannot mount a small file system here")
        try:
            script = "dd if=/dev/zero of=$(dirname $TGPU_STOP_FILE)/full bs=4k; exit 4"
            over = await rig.run(rig.work("job-1.1", "sh", "-c", script, runner="terminal"))
            assert "No space left" in rig.log(rig.work("job-1.1"))
            assert (over.exit_code, over.signal) == (4, None)
        finally:
            subprocess.run(["umount", "-l", place], check=False)

    with_launcher(scenario)
