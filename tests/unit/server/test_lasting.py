"""Parts of a server that nobody waits for outlive their mistakes."""

import asyncio
from pathlib import Path

import pytest

from gpu_scheduler.control.writer import SteadyClock
from gpu_scheduler.server.ha.leader import Leading
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.memory import MemoryStore


def test_a_part_of_the_leader_that_fails_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_scheduler.server.runtime.PAUSE_S", 0.0)

    async def run() -> None:
        begun = asyncio.Event()
        mistakes = iter([KeyError("a"), ZeroDivisionError()])

        async def keep_house(*_: object) -> None:
            for mistake in mistakes:
                raise mistake
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr("gpu_scheduler.server.ha.leader.keep_house", keep_house)
        paths = Paths(str(tmp_path), str(tmp_path))
        leading = Leading(Settings(), paths, MemoryStore(), SteadyClock())
        await leading.begin()
        async with asyncio.timeout(60):
            await begun.wait()
        await leading.end()

    asyncio.run(run())
