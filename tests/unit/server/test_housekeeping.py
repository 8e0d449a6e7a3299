"""Logs of ended jobs are deleted, logs of other jobs are kept."""

import asyncio
import os
from pathlib import Path

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, SetNode, Started, Submit
from gpu_scheduler.server.background.housekeeping import DAY_MS, delete_logs
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core, a_job, a_node

START_MS = 1_800_000_000_000


def an_old_log(logs: Path, job_id: str) -> None:
    """Last written when the jobs were submitted."""
    directory = logs / job_id
    directory.mkdir()
    log = directory / f"{job_id}.1.0.log"
    log.touch()
    for path in (log, directory):
        os.utime(path, (START_MS / 1000, START_MS / 1000))


def test_logs_are_deleted_by_the_end_of_the_job(tmp_path: Path) -> None:
    now = [START_MS]

    async def run() -> None:
        loop = Loop(MemoryStore(), lambda: a_core(nodes=[]), lambda: now[0])
        loop.start()
        await loop.apply(SetNode(a_node()))
        for _ in range(3):
            await loop.apply(Submit(a_job(id="")))
        await loop.apply(Started("job-1.1"))
        await loop.apply(Ended("job-1.1", exit_code=0))
        now[0] = START_MS + 9 * DAY_MS
        await loop.apply(Ended("job-2.1", exit_code=0))
        for name in ("job-1", "job-2", "job-3", "job-99"):
            an_old_log(tmp_path, name)
        assert await asyncio.to_thread(delete_logs, loop, tmp_path, now[0] - 7 * DAY_MS) == 2
        await loop.close()

    asyncio.run(run())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job-2", "job-3"]
