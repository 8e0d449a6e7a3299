"""Container engines that hang: jobs still end, and unknown results are reported as unknown."""

# ruff: noqa: ASYNC110, ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher_protocol import Over, Work
from gpu_scheduler.agent.runners.container import ContainerRunner, container_name
from tests.containers import why_no_containers
from tests.contract.test_runners import NAME, command, work_of
from tests.launcher_rig import Rig, is_alive, log_line, with_launcher

pytestmark = pytest.mark.slow

SOON_MS = 1_000
REAL_MS = 4_000
"""A working engine answers within this time, even on a busy machine."""
Scenario = Callable[[Rig, Path], Awaitable[None]]


def with_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: str, scenario: Scenario
) -> None:
    """Run with an engine that hangs on every query while the file `hangs` exists."""
    script = f"""#!/bin/sh
case "$*" in *' run '*|'run '*) {run};; esac
if test -e {tmp_path}/hangs; then
    echo "$*" >> {tmp_path}/asked; exec sleep 1000
fi
exec {shutil.which("podman")} "$@"
"""
    (tmp_path / "podman").write_text(script)
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if not ContainerRunner().is_podman:
        pytest.skip("this machine uses docker")

    async def with_rig(rig: Rig) -> None:
        await scenario(rig, tmp_path / "hangs")

    with_launcher(with_rig)


def with_real_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scenario: Scenario) -> None:
    """The same with real containers."""
    if reason := why_no_containers():
        pytest.skip(reason)
    real = shutil.which("podman")
    assert real is not None
    try:
        with_engine(monkeypatch, tmp_path, f'exec {real} "$@"', scenario)
    finally:
        (tmp_path / "hangs").unlink(missing_ok=True)
        asyncio.run(remove_all(real))


async def remove_all(engine: str) -> None:
    """Remove what a failed test has left."""
    ours = ("--filter", f"name=tgpu-{NAME}", "--format", "{{.Names}}")
    for name in (await command(engine, "ps", "--all", *ours)).split():
        await command(engine, "rm", "--force", "--ignore", "--time", "0", name)


def a_container(rig: Rig, **more: object) -> Work:
    work = rig.work(NAME, "true", runner="container", image="x", engine_timeout_ms=SOON_MS)
    return replace(work, **more)  # type: ignore[arg-type]


def inside(work: Work) -> list[int]:
    """The processes of its container."""
    own = f"TGPU_ALLOCATION_ID={work.allocation_id}".encode()
    found = []
    for pid in processes.all_pids():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if own in variables and any(v.startswith(b"TGPU_LAUNCHER=") for v in variables):
            found.append(pid)
    return found


def assert_unknown(over: Over, why: str) -> None:
    assert (over.exit_code, over.signal, over.ran) == (None, None, True)
    assert over.stopped_by == why
    assert "unknown" in over.detail


def test_job_can_be_cancelled_while_its_engine_hangs_at_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        hangs.touch()
        work = a_container(rig, engine_timeout_ms=2_000)
        await rig.launcher.start(work)
        client = (await rig.began(NAME)).pid
        await rig.launcher.stop(NAME, 0, "cancelled", 100)
        over = await rig.over(NAME)
        assert_unknown(over, "cancelled")
        assert "does not answer" in over.detail
        assert not is_alive(client)

    with_engine(monkeypatch, tmp_path, "exec sleep 1000", scenario)


def test_job_whose_engine_hangs_at_start_fails_after_timeout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        hangs.touch()
        over = await rig.run(a_container(rig))
        assert_unknown(over, "")
        assert "has not begun the container" in over.detail
        assert "removed when the engine is back" in over.detail
        assert over.detail.count("unknown") == 1

    with_engine(monkeypatch, tmp_path, "exec sleep 1000", scenario)


def test_launcher_waits_while_engine_pulls_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The engine says that there is no such container yet, which counts as an answer."""

    async def scenario(rig: Rig, _: Path) -> None:
        work = a_container(rig)
        await rig.launcher.start(work)
        client = (await rig.began(NAME)).pid
        asked = tmp_path / "asked"
        async with asyncio.timeout(20):
            while not asked.exists() or asked.read_text().count("inspect") < 3:
                await asyncio.sleep(0.02)
        assert is_alive(client)

    answers = f'echo "$*" >> {tmp_path}/asked; echo "Error: no such container" >&2; exit 125'
    with_engine(monkeypatch, tmp_path, f"exec sleep 1000;; *) {answers}", scenario)


def test_time_limit_ends_container_whose_engine_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        work = work_of(rig, "container", "trap '' TERM; echo ready; while :; do sleep 1; done")
        times = {"limit_ms": 12_000, "grace_ms": 100, "engine_timeout_ms": REAL_MS}
        work = replace(work, **times)  # type: ignore[arg-type]
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        hangs.touch()
        ran = inside(work)
        assert ran
        over = await rig.over(NAME)
        assert over.stopped_by == "timeout"
        assert over.exit_code is None
        # Nothing of the job runs when its devices are allocated to the next.
        assert not any(is_alive(pid) for pid in ran)
        assert inside(work) == []
        # The engine removes its record of the container when it works again.
        hangs.unlink()
        async with asyncio.timeout(60):
            while container_name(work) in await command("podman", "ps", "--all"):
                await asyncio.sleep(0.1)

    with_real_engine(monkeypatch, tmp_path, scenario)


def test_container_receives_stop_signal_while_its_engine_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        script = "trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
        work = replace(work_of(rig, "container", script), engine_timeout_ms=REAL_MS)
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        hangs.touch()
        await rig.launcher.stop(NAME, 0, "cancelled", 20_000)
        over = await rig.over(NAME)
        assert "asked" in rig.log(work)
        assert_unknown(over, "cancelled")

    with_real_engine(monkeypatch, tmp_path, scenario)


def test_container_is_not_reported_completed_when_engine_hangs_at_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        done = rig.directory / "done"
        script = f"echo ready; while ! test -e {done}; do sleep 0.02; done; exit 0"
        work = replace(work_of(rig, "container", script), engine_timeout_ms=REAL_MS)
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        hangs.touch()
        done.touch()
        over = await rig.over(NAME)
        assert_unknown(over, "")
        assert "its client ended with exit code 0" in over.detail

    with_real_engine(monkeypatch, tmp_path, scenario)


def test_running_container_is_left_alone_while_its_engine_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def scenario(rig: Rig, hangs: Path) -> None:
        done = rig.directory / "done"
        script = f"echo ready; while ! test -e {done}; do sleep 0.02; done; exit 3"
        work = replace(work_of(rig, "container", script), engine_timeout_ms=REAL_MS)
        hangs.touch()
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        asked = tmp_path / "asked"
        async with asyncio.timeout(20):
            while not asked.exists() or "inspect" not in asked.read_text():
                await asyncio.sleep(0.02)
            # The query has timed out when its process is gone.
            while any(b"sleep\x001000" in _command_line(pid) for pid in _below(rig)):
                await asyncio.sleep(0.02)
        hangs.unlink()
        done.touch()
        over = await rig.over(NAME)
        assert (over.exit_code, over.ran) == (3, True)

    with_real_engine(monkeypatch, tmp_path, scenario)


def _below(rig: Rig) -> set[int]:
    return processes.descendants([rig.launcher.pid], processes.family())


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
