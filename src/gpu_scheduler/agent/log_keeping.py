"""Logs stay on their node for a while after the job, and then go.

While a job is held here, its directory of logs is marked again and again; so how long ago it ended
is known from the files alone, whoever was restarted in between.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Container
from pathlib import Path

import structlog

from gpu_scheduler.agent.launcher_client import Launcher

PAUSE_S = 600.0
DAY_S = 86_400.0
log = structlog.get_logger("agent")


async def keep_logs(launcher: Launcher, logs_dir: Path, days: float) -> None:
    """Until cancelled: drop what is older than that."""
    while True:
        jobs = {job_of(allocation_id) for allocation_id, _, _ in await launcher.held()}
        before_s = time.time() - days * DAY_S
        dropped = await asyncio.to_thread(drop_old_logs, logs_dir, jobs, before_s)
        if dropped:
            log.info("old logs are dropped", jobs=dropped)
        await asyncio.sleep(PAUSE_S)


def drop_old_logs(logs_dir: Path, held: Container[str], before_s: float) -> int:
    """Remove the logs of jobs that were last held, or last written, before then; how many."""
    dropped = 0
    for directory in _directories(logs_dir):
        try:
            if directory.name in held:
                os.utime(directory)
            elif _last_s(directory) < before_s:
                shutil.rmtree(directory)
                dropped += 1
        except OSError as error:
            # A disk that fails now may work later.
            log.warning("a log cannot be looked after", error=str(error))
    return dropped


def _directories(logs_dir: Path) -> list[Path]:
    """None, if they cannot be listed: that must not end the agent."""
    try:
        return list(logs_dir.iterdir())
    except OSError as error:
        log.warning("the logs cannot be looked after", error=str(error))
        return []


def job_of(allocation_id: str) -> str:
    """The job of an attempt: job-12 for job-12.1 and for job-12_7.1."""
    return allocation_id.rpartition(".")[0].partition("_")[0]


def _last_s(directory: Path) -> float:
    return max(file.stat().st_mtime for file in [directory, *directory.iterdir()])
