"""What an agent asks of the machine that it runs on, apart from devices: its clocks,
its name and its accounts.

A protocol, so that one program can hold many agents whose machines differ.
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

from gpu_scheduler.agent.accounts import Login, Logins
from gpu_scheduler.agent.work import NOT_BEGUN, Over

# --- Room on the disk of a node: without, no work can begin there, whatever it is.
#
# A directory comes in, a reason why nothing can be written there goes out.

LEAST_BYTES = 4 << 20
LEAST_FILES = 64
"""A job needs a few of each before it runs: its records, its log, its scratch directory."""
TRIED_BYTES = 256 << 10

_DISK_ERRORS = tuple(
    os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
)


def is_about_disk(detail: str) -> bool:
    """Tell whether an error may come from a disk that is full or broken, be it which it may."""
    said = detail.lower()
    return any(one in said for one in _DISK_ERRORS)


def disk_trouble(directory: Path, *, is_suspect: bool) -> str:
    """Why nothing can be written; empty if it can. Where it is suspect, that is tried."""
    try:
        free = os.statvfs(directory)
        if free.f_bavail * free.f_frsize < LEAST_BYTES:
            return f"the disk of {directory} is full: less than {LEAST_BYTES >> 20} MiB are free"
        if free.f_files and free.f_favail < LEAST_FILES:
            return f"the disk of {directory} is full: it can hold no more files"
        if is_suspect:
            _try_to_write(directory)
    except OSError as error:
        return f"nothing can be written to {directory}: {error.strerror}"
    return ""


def _try_to_write(directory: Path) -> None:
    """As a job would; nothing of it stays."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(TRIED_BYTES))
        file.flush()
        os.fsync(file.fileno())


# --- What an agent asks of the machine that it runs on, apart from devices: its clocks,

PATIENCE_S = 5.0
"""So long a disk may take to answer."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Machine(Protocol):
    """The clocks of a node, and which of its runs this is."""

    def wall_ms(self) -> int:
        """The time of day, which can be set."""
        ...

    def boot_ms(self) -> int:
        """Since the machine was started, also while it was suspended; it cannot be set."""
        ...

    def boot_id(self) -> str:
        """Names this run of the machine; empty if nobody knows."""
        ...

    def known_login(self, uid: int) -> Login | None:
        """The account of a uid, if that can be said without asking."""
        ...

    async def login(self, uid: int) -> Login:
        """The account of a uid; NoAnswer if nobody says."""
        ...

    async def trouble(self, directory: Path, *, is_suspect: bool) -> str:
        """Why nothing can be written there; one that is suspect is tried, not only asked."""
        ...


class ThisMachine:
    """The machine of this process."""

    def __init__(self) -> None:
        self._logins = Logins()
        self._look: asyncio.Task[str] | None = None

    def wall_ms(self) -> int:
        """The time of day."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """Since the machine was started."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """Names this run of the machine."""
        try:
            return BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def known_login(self, uid: int) -> Login | None:
        """The account of a uid, if it was looked up a short time ago."""
        return self._logins.known(uid)

    async def login(self, uid: int) -> Login:
        """The account of a uid, also from a directory service."""
        return await self._logins.of(uid)

    async def trouble(self, directory: Path, *, is_suspect: bool) -> str:
        """Why nothing can be written there."""
        hangs = f"{directory} does not answer"
        if self._look is not None and not await _is_done(self._look):
            return hangs  # one more would only hang as well
        look = asyncio.to_thread(disk_trouble, directory, is_suspect=is_suspect)
        self._look = task = asyncio.create_task(look)
        return task.result() if await _is_done(task) else hangs


async def _is_done(task: asyncio.Task[str]) -> bool:
    await asyncio.wait({task}, timeout=PATIENCE_S)
    return task.done()


# --- Whether work can begin on this node at all: not while its disk is full or broken.
#
# Servers are told, and place work elsewhere until it is mended; what runs here is not touched. Work
# that met the full disk before anybody knew of it is the node's failure and not its own.

log = structlog.get_logger("agent")


class Fitness:
    """Of one node. `unfit` says why no work can begin; empty if it can."""

    def __init__(self, machine: Machine, directory: Path, changed: Callable[[], None]) -> None:
        """`changed` is called when it has become fit or unfit."""
        self.unfit = ""
        self._machine = machine
        self._directory = directory
        self._changed = changed

    async def watch(self, every_s: float) -> None:
        """Look now and then, until cancelled: before any work has to find out."""
        while True:
            await self._look(is_suspect=bool(self.unfit))
            await asyncio.sleep(every_s)

    async def blame(self, over: Over) -> Over:
        """How work that could not begin ended: by the node, if that is so, to be tried again."""
        await self._look(is_suspect=True)
        if not self.unfit:
            return over
        return replace(over, stopped_by=NOT_BEGUN, detail=f"{over.detail}; {self.unfit}")

    async def _look(self, *, is_suspect: bool) -> None:
        unfit = await self._machine.trouble(self._directory, is_suspect=is_suspect)
        if unfit == self.unfit:
            return
        if unfit:
            log.warning("no work can begin here", reason=unfit)
        else:
            log.info("work can begin here again")
        self.unfit = unfit
        self._changed()


def may_be_the_disk(over: Over) -> bool:
    """Tell whether work could not begin for a reason that a disk can be to blame for."""
    is_refused = not over.ran and not over.stopped_by and not over.prolog_failed
    return is_refused and is_about_disk(over.detail)
