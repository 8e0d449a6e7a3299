"""Containers that outlive their launcher are removed by the next one; others are left alone."""

# ruff: noqa: ASYNC110, ASYNC240
# These tests poll files; their event loop has nothing else to do.

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.agent.runners.container import container_name
from tests.acceptance.test_hanging_engines import (
    SOON_MS,
    a_container,
    with_engine,
    with_real_engine,
)
from tests.containers import why_no_containers
from tests.contract.test_runners import NAME, command, work_of
from tests.launcher_rig import Rig, a_rig, is_alive, log_line, with_launcher

pytestmark = pytest.mark.slow


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


async def until_removed(work: Work) -> None:
    async with asyncio.timeout(30):
        while container_name(work) in await command("podman", "ps", "--all"):
            await asyncio.sleep(0.1)


def test_next_launcher_removes_container_left_by_previous_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Although its job was forgotten, and while another container runs that must stay."""

    async def scenario(rig: Rig, hangs: Path) -> None:
        work = work_of(rig, "container", "echo ready; exec sleep 1000", grace_ms=100)
        work = replace(work, engine_timeout_ms=SOON_MS)
        lasting = replace(
            work,
            allocation_id=f"{NAME}b",
            log_path=str(rig.directory / "logs" / "lasting.log"),
            scratch_dir=str(rig.directory / "scratch" / "lasting"),
        )
        await rig.launcher.start(lasting)
        await log_line(rig, lasting, "ready")
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        hangs.touch()
        await rig.launcher.stop(NAME, 0, "cancelled")
        assert "removed" in (await rig.over(NAME)).detail
        await rig.launcher.forget(NAME, 0)
        await rig.kill_launcher()
        hangs.unlink()
        await until_removed(work)
        assert container_name(lasting) in await command("podman", "ps")
        assert (lasting.allocation_id, 0, None) in await rig.launcher.held()

    with_real_engine(monkeypatch, tmp_path, scenario)


def test_stopping_launcher_records_container_for_later_removal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next launcher asks the same engine for the container, and serves orders meanwhile."""

    async def scenario(rig: Rig, hangs: Path) -> None:
        hangs.touch()
        work = a_container(rig)
        await rig.run(work)
        await rig.launcher.forget(NAME, 0)
        await rig.hang_up()
        await rig.launcher.leave()
        asked = tmp_path / "asked"
        before = asked.read_text().splitlines()
        rig.said.clear()
        await rig.open()
        assert (await rig.run(rig.work("next", "true"))).exit_code == 0

        def news() -> list[str]:
            return asked.read_text().splitlines()[len(before) :]

        await until(lambda: bool(news()))
        assert all(" rm " in f" {line} " and container_name(work) in line for line in news())

    with_engine(monkeypatch, tmp_path, "exec sleep 1000", scenario)


def test_launchers_on_one_machine_ignore_containers_of_each_other() -> None:
    """Each scheduler numbers its jobs from one, so their names are the same."""
    if reason := why_no_containers():
        pytest.skip(reason)

    async def scenario(rig: Rig) -> None:
        work = work_of(rig, "container", "echo ready; while :; do sleep 0.1; done")
        await rig.launcher.start(work)
        await log_line(rig, work, "ready")
        client = (await rig.began(NAME)).pid
        async with a_rig() as other:
            over = await other.run(work_of(other, "container", "exit 3"))
            assert (over.ran, over.exit_code) == (True, 3)
        assert is_alive(client)
        assert container_name(work) in await command("podman", "ps")

    with_launcher(scenario)
