"""Logs stay on their node for a while after the job, and then go.

While a job is held here, its directory of logs is marked again and again; so how long ago it ended
is known from the files alone, whoever was restarted in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import struct
import time
from collections.abc import Container
from pathlib import Path

import structlog

from gpu_scheduler.agent.launcher_client import Launcher

PAUSE_S = 600.0
DAY_S = 86_400.0
_GET_FLAGS, _SET_FLAGS = 0x8008_6601, 0x4008_6602
"""FS_IOC_GETFLAGS and FS_IOC_SETFLAGS, as most machines number them."""
_UNRELATED = 0x0002_0000
"""FS_TOPDIR_FL, `chattr +T`: directories in here have nothing to do with each other."""
_FLAGS = struct.Struct("l")
log = structlog.get_logger("agent")


def make_logs_dir(logs_dir: Path) -> None:
    """Make the place for logs, and tell the file system to spread what is in it.

    Else ext4 puts the directories of all jobs close together. Where it has no journal it then
    steps, for each new file, over all that were deleted nearby in the last minutes: measured, up
    to 0.5 ms for each job where 0.05 ms do. Other file systems may not know what this means.
    """
    logs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = os.open(logs_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            (flags,) = _FLAGS.unpack(fcntl.ioctl(directory, _GET_FLAGS, _FLAGS.pack(0)))
            fcntl.ioctl(directory, _SET_FLAGS, _FLAGS.pack(flags | _UNRELATED))
    finally:
        os.close(directory)


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
    for directory in logs_dir.iterdir():
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


def job_of(allocation_id: str) -> str:
    """The job of an attempt: job-12 for job-12.1 and for job-12_7.1."""
    return allocation_id.rpartition(".")[0].partition("_")[0]


def _last_s(directory: Path) -> float:
    return max(file.stat().st_mtime for file in [directory, *directory.iterdir()])
