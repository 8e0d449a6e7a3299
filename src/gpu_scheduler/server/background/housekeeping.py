"""What has to be done now and then: archive old jobs, drop old history, logs and answers."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.settings.groups.operations import RetentionSettings
from gpu_scheduler.store.contract import Cutoffs

PAUSE_S = 600.0
BREATH_S = 0.05
DAY_MS = 86_400_000
ANSWERS_KEPT_MS = DAY_MS
log = structlog.get_logger("server")


async def keep_house(loop: Loop, retention: RetentionSettings, logs_dir: Path) -> None:
    """Until cancelled, in small steps, so that nobody waits for it."""
    while True:
        try:
            await _once(loop, retention, logs_dir)
        except (SchedulerError, OSError) as error:
            log.warning("house not kept, later again", error=str(error))
        await asyncio.sleep(PAUSE_S)


async def _once(loop: Loop, retention: RetentionSettings, logs_dir: Path) -> None:
    now_ms = loop.now_ms()
    archived = await _archive(loop, now_ms - round(retention.archive_after_days * DAY_MS))
    dropped = await _forget(loop, now_ms, retention)
    logs_before_ms = now_ms - round(retention.logs_days * DAY_MS)
    logs = await asyncio.to_thread(drop_logs, loop, logs_dir, logs_before_ms)
    if archived or dropped or logs:
        log.info("kept house", archived=archived, dropped=dropped, logs=logs)


async def _archive(loop: Loop, before_ms: int) -> int:
    total = 0
    while count := await loop.maintain(lambda: loop.store.archive(ended_before_ms=before_ms)):
        total += count
        await asyncio.sleep(BREATH_S)
    return total


async def _forget(loop: Loop, now_ms: int, retention: RetentionSettings) -> int:
    before = Cutoffs(
        answers_ms=now_ms - ANSWERS_KEPT_MS,
        events_ms=now_ms - round(retention.events_days * DAY_MS),
        environments_ms=now_ms - round(retention.environments_days * DAY_MS),
        hours_ms=now_ms - round(retention.readings_days * DAY_MS),
        audit_ms=now_ms - round(retention.audit_days * DAY_MS),
    )
    total = 0
    while count := await loop.maintain(lambda: loop.store.forget(before)):
        total += count
        await asyncio.sleep(BREATH_S)
    return total


def drop_logs(loop: Loop, logs_dir: Path, before_ms: int) -> int:
    """Remove the logs of jobs that ended before then; those of a job that has not ended, never.

    A job that nobody knows any more has ended when its logs were last written.
    """
    dropped = 0
    for directory in logs_dir.iterdir():
        try:
            if _last_written_ms(directory) < before_ms and _ended(loop, directory.name, before_ms):
                shutil.rmtree(directory)
                dropped += 1
        except OSError:
            continue
    return dropped


def _last_written_ms(directory: Path) -> float:
    return max(file.stat().st_mtime for file in [directory, *directory.iterdir()]) * 1000


def _ended(loop: Loop, job_id: str, before_ms: int) -> bool:
    if job_id in loop.core.state.jobs:
        return False
    row = loop.store.job(job_id)
    return row is None or (row.end_ms is not None and row.end_ms < before_ms)
