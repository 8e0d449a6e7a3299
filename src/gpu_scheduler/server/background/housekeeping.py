"""Housekeeping: archive and delete old rows and logs; tune Python's garbage collector."""

from __future__ import annotations

import asyncio
import gc
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.settings.groups.operations import RetentionSettings
from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.rows import NewJobs, Write

INTERVAL_S = 600.0
STEP_PAUSE_S = 0.05
DAY_MS = 86_400_000
ANSWER_RETENTION_MS = DAY_MS
YOUNG_OBJECTS = 50_000
MANY_JOBS = 200
"""A submission of this many jobs is frozen: far more than the other objects of one request."""
FEW_JOBS = 30_000
"""With this many jobs a full collection takes about a tenth of a second."""
log = structlog.get_logger("server")


async def run_housekeeping(loop: Loop, retention: RetentionSettings, logs_dir: Path) -> None:
    """Clean up in small steps that do not delay other work, until cancelled."""
    while True:
        try:
            now_ms = loop.now_ms()
            archive_before_ms = now_ms - round(retention.archive_after_days * DAY_MS)
            archived = await _repeat(
                loop, partial(loop.store.archive, ended_before_ms=archive_before_ms)
            )
            cutoffs = Cutoffs(
                responses_ms=now_ms - ANSWER_RETENTION_MS,
                events_ms=now_ms - round(retention.events_days * DAY_MS),
                environments_ms=now_ms - round(retention.environments_days * DAY_MS),
                hours_ms=now_ms - round(retention.readings_days * DAY_MS),
                audit_ms=now_ms - round(retention.audit_days * DAY_MS),
            )
            deleted = await _repeat(loop, partial(loop.store.delete_expired, cutoffs))
            logs_before_ms = now_ms - round(retention.logs_days * DAY_MS)
            logs = await asyncio.to_thread(delete_logs, loop, logs_dir, logs_before_ms)
            if archived or deleted or logs:
                log.info("housekeeping done", archived=archived, deleted=deleted, logs=logs)
        except (SchedulerError, OSError) as error:
            log.warning("housekeeping failed; will retry", error=str(error))
        await asyncio.sleep(INTERVAL_S)


async def _repeat(loop: Loop, step: Callable[[], int]) -> int:
    """Run a step until it finds nothing more to do; return the number of rows."""
    total = 0
    while count := await loop.maintain(step):
        total += count
        await asyncio.sleep(STEP_PAUSE_S)
    return total


def delete_logs(loop: Loop, logs_dir: Path, before_ms: int) -> int:
    """Delete the logs of jobs that ended before a time; never those of a job that has not ended.

    For a job that is not stored any more, the last write to its logs counts as its end.
    """
    deleted = 0
    for directory in logs_dir.iterdir():
        try:
            if _last_written_ms(directory) < before_ms and _ended(loop, directory.name, before_ms):
                shutil.rmtree(directory)
                deleted += 1
        except OSError:
            continue
    return deleted


def _last_written_ms(directory: Path) -> float:
    return max(file.stat().st_mtime for file in [directory, *directory.iterdir()]) * 1000


def _ended(loop: Loop, job_id: str, before_ms: int) -> bool:
    if job_id in loop.core.state.jobs:
        return False
    row = loop.store.job(job_id)
    return row is None or (row.end_ms is not None and row.end_ms < before_ms)


def tune_gc() -> None:
    """Collect less often, and exclude all objects that exist now.

    With the default thresholds, collection takes a third of the time of a large submission.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


class GcTuner:
    """Excludes waiting jobs from garbage collection while there are many of them.

    A server keeps many small, acyclic values for a long time: its waiting jobs. Reference counting
    frees them, but every full collection still traverses all of them and stops the process for a
    quarter of a second with 200,000 jobs. So large submissions are frozen. A cycle that is frozen
    by chance is found once most jobs have ended.
    """

    def __init__(self, count_jobs: Callable[[], int]) -> None:
        self._count_jobs = count_jobs
        self._has_frozen = False

    def on_commit(self, writes: list[Write]) -> None:
        """Freeze the objects of a large submission."""
        if any(isinstance(write, NewJobs) and len(write.jobs) >= MANY_JOBS for write in writes):
            self._has_frozen = True
            gc.freeze()

    async def run(self) -> None:
        """Collect frozen objects now and then, until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.collect_if_few()

    def collect_if_few(self) -> None:
        """Unfreeze and collect if that takes little time."""
        if self._has_frozen and self._count_jobs() <= FEW_JOBS:
            self.close()
            gc.collect()

    def close(self) -> None:
        """Unfreeze everything: after the leader has stopped, all of it may be garbage."""
        self._has_frozen = False
        gc.unfreeze()
