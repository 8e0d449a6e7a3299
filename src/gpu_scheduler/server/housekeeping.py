"""What has to be done now and then: archive old jobs, drop old history, logs and answers."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.settings.groups import RetentionSettings

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
    logs = await asyncio.to_thread(_drop_logs, logs_dir, retention.logs_days)
    if archived or dropped or logs:
        log.info("kept house", archived=archived, dropped=dropped, logs=logs)


async def _archive(loop: Loop, before_ms: int) -> int:
    total = 0
    while count := await loop.maintain(lambda: loop.store.archive(ended_before_ms=before_ms)):
        total += count
        await asyncio.sleep(BREATH_S)
    return total


async def _forget(loop: Loop, now_ms: int, retention: RetentionSettings) -> int:
    events_before_ms = now_ms - round(retention.events_days * DAY_MS)

    def forget() -> int:
        return loop.store.forget(
            answers_before_ms=now_ms - ANSWERS_KEPT_MS,
            events_before_ms=events_before_ms,
            environments_before_ms=now_ms - round(retention.environments_days * DAY_MS),
        )

    total = 0
    while count := await loop.maintain(forget):
        total += count
        await asyncio.sleep(BREATH_S)
    return total


def _drop_logs(logs_dir: Path, days: float) -> int:
    """Remove the logs of jobs that have written nothing for so long."""
    before = time.time() - days * 86_400
    dropped = 0
    for directory in logs_dir.iterdir():
        try:
            if max(file.stat().st_mtime for file in [directory, *directory.iterdir()]) < before:
                shutil.rmtree(directory)
                dropped += 1
        except OSError:
            continue
    return dropped
