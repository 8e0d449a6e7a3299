"""The agent's machine apart from its GPUs: clocks, boot id, user accounts and disk health.

`Machine` is a protocol, so that one test process can run many agents on machines that differ.
`DiskHealth` checks whether jobs can start on this node. While the disk is full or broken the server
is informed and places jobs elsewhere; running jobs are not touched. A job that could not start
because of the disk is reported as a failure of the node, not of the job.
"""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from gpu_scheduler.agent.accounts import Account, AccountCache
from gpu_scheduler.agent.work import NOT_BEGUN, Over

MIN_FREE_BYTES = 4 << 20
MIN_FREE_INODES = 64
"""A job needs a few of each before it runs: journal records, log, scratch directory."""
TEST_WRITE_BYTES = 256 << 10
DISK_TIMEOUT_S = 5.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DISK_ERRORS = tuple(
    os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
)
log = structlog.get_logger("agent")


class Machine(Protocol):
    """The clocks, boot id, accounts and disk of one node."""

    def wall_ms(self) -> int:
        """The time of day; an administrator can set it."""
        ...

    def boot_ms(self) -> int:
        """Time since boot, including suspend; it cannot be set."""
        ...

    def boot_id(self) -> str:
        """Identifies this boot of the machine; empty if unknown."""
        ...

    def cached_account(self, uid: int) -> Account | None:
        """The account of a uid, if it is cached."""
        ...

    async def account(self, uid: int) -> Account:
        """The account of a uid; raises AccountLookupTimeout."""
        ...

    async def disk_problem(self, directory: Path, *, test_write: bool) -> str:
        """Why nothing can be written to the directory; empty if it can."""
        ...


class LocalMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self._accounts = AccountCache()
        self._disk_check: asyncio.Task[str] | None = None

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        try:
            return BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def cached_account(self, uid: int) -> Account | None:
        return self._accounts.cached(uid)

    async def account(self, uid: int) -> Account:
        return await self._accounts.get(uid)

    async def disk_problem(self, directory: Path, *, test_write: bool) -> str:
        """Check in a thread with a timeout; while a check hangs, no other one is started."""
        hangs = f"{directory} does not answer"
        if self._disk_check is not None and not await _is_done(self._disk_check):
            return hangs
        check = asyncio.to_thread(disk_problem, directory, test_write=test_write)
        self._disk_check = task = asyncio.create_task(check)
        return task.result() if await _is_done(task) else hangs


async def _is_done(task: asyncio.Task[str]) -> bool:
    await asyncio.wait({task}, timeout=DISK_TIMEOUT_S)
    return task.done()


def disk_problem(directory: Path, *, test_write: bool) -> str:
    """Why nothing can be written to a directory; empty if it can. `test_write` writes a file."""
    try:
        free = os.statvfs(directory)
        if free.f_bavail * free.f_frsize < MIN_FREE_BYTES:
            return f"the disk of {directory} is full: less than {MIN_FREE_BYTES >> 20} MiB are free"
        if free.f_files and free.f_favail < MIN_FREE_INODES:
            return f"the disk of {directory} is full: it can hold no more files"
        if test_write:
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(bytes(TEST_WRITE_BYTES))
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        return f"nothing can be written to {directory}: {error.strerror}"
    return ""


class DiskHealth:
    """Whether jobs can start on this node. `problem` says why not; empty if they can."""

    def __init__(self, machine: Machine, directory: Path, on_change: Callable[[], None]) -> None:
        """`on_change` is called when `problem` changes."""
        self.problem = ""
        self._machine = machine
        self._directory = directory
        self._on_change = on_change

    async def watch(self, interval_s: float) -> None:
        """Check the disk periodically until cancelled."""
        while True:
            await self._check(test_write=bool(self.problem))
            await asyncio.sleep(interval_s)

    async def blame_node_for(self, over: Over) -> Over:
        """The report of a job that could not start, as a node failure if the disk is the cause.

        The server retries a job that ended by a node failure.
        """
        await self._check(test_write=True)
        if not self.problem:
            return over
        return replace(over, stopped_by=NOT_BEGUN, detail=f"{over.detail}; {self.problem}")

    async def _check(self, *, test_write: bool) -> None:
        problem = await self._machine.disk_problem(self._directory, test_write=test_write)
        if problem == self.problem:
            return
        if problem:
            log.warning("jobs cannot start on this node", reason=problem)
        else:
            log.info("jobs can start on this node again")
        self.problem = problem
        self._on_change()


def may_be_disk_failure(over: Over) -> bool:
    """Tell whether a job could not start, with an error that a full or broken disk causes."""
    failed_to_start = not over.ran and not over.stopped_by and not over.prolog_failed
    detail = over.detail.lower()
    return failed_to_start and any(error in detail for error in _DISK_ERRORS)
