"""Background tasks of a server are restarted after an error."""

import asyncio
from pathlib import Path

import pytest

from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.server.ha.leader import Components, Leader
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.memory import MemoryStore


def test_background_task_of_the_leader_restarts_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.server.background.RESTART_PAUSE_S", 0.0)

    async def run() -> None:
        begun = asyncio.Event()
        mistakes = iter([KeyError("a"), ZeroDivisionError()])

        async def fail_twice(*_: object) -> None:
            for mistake in mistakes:
                raise mistake
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr("gpu_scheduler.server.ha.leader.run_housekeeping", fail_twice)
        paths = Paths(str(tmp_path), str(tmp_path))
        components = Components(
            settings=Settings(), paths=paths, store=MemoryStore(), clock=SchedulerClock()
        )
        leader = await asyncio.to_thread(Leader, components)
        await leader.start()
        async with asyncio.timeout(60):
            await begun.wait()
        await leader.stop()

    asyncio.run(run())
