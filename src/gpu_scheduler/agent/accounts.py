"""User accounts (name, home directory, shell) by uid, and look-ups that may hang.

The accounts may come from a directory service (SSSD, LDAP, NIS) and a home directory may be on a
file server. Either can hang, and a hanging system call cannot be cancelled. So each look-up runs in
a thread of its own with a timeout, and is not repeated while the thread hangs. A slow account
delays only the jobs of that user; the agent's event loop never blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import pwd
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

LOOKUP_TIMEOUT_S = 10.0
CACHE_TTL_S = 60.0
MAX_CACHED = 10_000
STAT_TIMEOUT_S = 0.5
T = TypeVar("T")


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
