"""The agent's machine apart from its GPUs: clocks, boot id, user accounts and disk health.

The accounts may come from a directory service (SSSD, LDAP, NIS) and a home directory may be on a
file server. Either can hang, and a hanging system call cannot be cancelled. So each look-up runs in
a thread of its own with a timeout, and is not repeated while the thread hangs. A slow account
delays only the jobs of that user; the agent's event loop never blocks.

`Machine` is a protocol, so that one test process can run many agents on machines that differ.
`DiskHealth` checks whether jobs can start on this node. While the disk is full or broken the server
is informed and places jobs elsewhere; running jobs are not touched. A job that could not start
because of the disk is reported as a failure of the node, not of the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from gpu_scheduler.agent.launcher_protocol import NOT_BEGUN, Over

T = TypeVar("T")
LOOKUP_TIMEOUT_S = 10.0
CACHE_TTL_S = 60.0
MAX_CACHED = 10_000
STAT_TIMEOUT_S = 0.5
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user account. The name is empty if the uid has no account."""

    name: str = ""
    home: str = "/"
    shell: str = "/bin/sh"


class AccountLookupTimeout(Exception):
    """The account could not be looked up in time; the message says what to check."""


class AccountCache:
    """Accounts by uid. An expired entry is still used when the directory service hangs."""

    def __init__(
        self,
        look_up: Callable[[int], Account] | None = None,
        *,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_up` may block; it runs in a thread."""
        self._look_up = look_up or look_up_account
        self._timeout_s = LOOKUP_TIMEOUT_S if timeout_s is None else timeout_s
        self._clock = clock
        self._cached: dict[int, tuple[float, Account]] = {}
        self._pending: dict[int, asyncio.Future[None]] = {}

    def cached(self, uid: int) -> Account | None:
        """The account of a uid, if its cache entry has not expired."""
        entry = self._cached.get(uid)
        return entry[1] if entry is not None and entry[0] > self._clock() else None

    async def get(self, uid: int) -> Account:
        """The account of a uid, an expired entry on timeout; raises AccountLookupTimeout."""
        if (account := self.cached(uid)) is not None:
            return account
        pending = self._pending.get(uid)
        if pending is None or pending.done():
            pending = self._pending[uid] = self._start_lookup(uid)
        await asyncio.wait([pending], timeout=self._timeout_s)
        entry = self._cached.get(uid)
        if entry is None:
            raise AccountLookupTimeout(
                f"the account of uid {uid} could not be looked up within {self._timeout_s:g} s on "
                "this node; does its directory service (SSSD, LDAP, NIS) answer?"
            )
        return entry[1]

    def _start_lookup(self, uid: int) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()

        def store(account: Account | None) -> None:
            if account is not None:
                if len(self._cached) >= MAX_CACHED:
                    self._cached.clear()
                self._cached[uid] = (self._clock() + CACHE_TTL_S, account)
            self._pending.pop(uid, None)
            if not finished.done():
                finished.set_result(None)

        def look_up() -> None:
            account = None
            with contextlib.suppress(OSError):
                account = self._look_up(uid)
            # The event loop may have been closed in the meantime.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(store, account)

        threading.Thread(target=look_up, name="account", daemon=True).start()
        return finished


def look_up_account(uid: int) -> Account:
    """Ask the system for an account; this may block."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account()
    return Account(name=entry.pw_name, home=entry.pw_dir, shell=entry.pw_shell or Account().shell)


def replace_file(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a file of the agent for its owner alone, whole or not at all; `sync`: onto the disk."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)


_hanging: dict[str, threading.Thread] = {}


def call_with_timeout(key: str, call: Callable[[], T], default: T) -> T:
    """The result of a call that may hang, or `default` after a short timeout.

    While an earlier call with the same key hangs, no other one is made.
    """
    earlier = _hanging.get(key)
    if earlier is not None and earlier.is_alive():
        return default
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(call()), name="stat", daemon=True)
    thread.start()
    thread.join(STAT_TIMEOUT_S)
    if thread.is_alive():
        _hanging[key] = thread
        return default
    _hanging.pop(key, None)
    return results[0] if results else default


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
