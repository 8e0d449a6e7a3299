"""Accounts of this machine: cached look-ups by uid or name, and the callers made from them.

Accounts may come from a directory service (SSSD, LDAP, NIS) that takes seconds or hangs, and a
look-up cannot be cancelled. So threads look accounts up, a few at a time and each account once, and
requests wait for them with a timeout. An entry that expires is still used while it is refreshed, so
that a regular caller does not wait; no entry is used for more than a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import grp
import os
import pwd
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.tenant import TenantDirectory

FRESH_S = 30.0
USABLE_S = 60.0
LOOKUP_TIMEOUT_S = 10.0
MOST_CACHED = 10_000
MOST_THREADS = 8
MOST_WAITING = 1_000
log = structlog.get_logger("api")
T = TypeVar("T")
Key = int | str
"""A uid, or a name."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account of the system; the primary group comes first."""

    name: str
    uid: int
    gid: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CachedAccount:
    """A cached look-up: when to refresh it, and until when it is used. None: no such account."""

    account: Account | None
    fresh_until: float
    used_until: float


class AccountLookup:
    """A look-up that is running. Its `result` is why it failed; empty if it did not."""

    def __init__(self, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        """Create a look-up whose result is set on `loop`."""
        self.key = key
        self.loop = loop
        self.result: asyncio.Future[str] = loop.create_future()
        self.is_late = False

    def __str__(self) -> str:
        """Return what is looked up, for messages."""
        return f"uid {self.key}" if isinstance(self.key, int) else f"user '{self.key[:80]}'"


class LookupPending(Exception):
    """An account is being looked up; `Accounts.wait_for` waits for it."""

    def __init__(self, lookup: AccountLookup) -> None:
        """Several requests may wait for the same look-up."""
        super().__init__(str(lookup))
        self.lookup = lookup


class Accounts:
    """Cached accounts by uid and by name. Everything but the look-ups runs on one event loop."""

    def __init__(
        self,
        look_up: Callable[[Key], Account | None] | None = None,
        *,
        timeout_s: float = LOOKUP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_up` runs in threads and may block."""
        self._look_up = look_up or account_of
        self._timeout_s = timeout_s
        self.clock = clock
        self._known: dict[Key, CachedAccount] = {}
        self._lookups: dict[Key, AccountLookup] = {}
        self._waiting: deque[AccountLookup] = deque()
        self._busy = 0

    def cached(self, key: Key) -> CachedAccount:
        """Return the cached account of a uid or name, or raise `LookupPending`."""
        entry = self._known.get(key)
        now = self.clock()
        if entry is not None and entry.fresh_until > now:
            return entry
        lookup = self._lookups.get(key)
        if lookup is None and len(self._waiting) < MOST_WAITING:
            lookup = self._start_lookup(key)
        if entry is not None and entry.used_until > now:
            return entry
        if lookup is None:
            raise ClusterError(
                f"{len(self._waiting):,} accounts are waiting to be looked up on this server; does "
                "its directory service (SSSD, LDAP, NIS) answer?"
            )
        raise LookupPending(lookup)

    def of(self, uid: int, gid: int | None = None) -> Account:
        """Return the account of a uid; without one, an account named by its number with `gid`."""
        return self.cached(uid).account or unnamed_account(uid, gid)

    def named(self, name: str) -> Account | None:
        """Return the account of a name, if there is one."""
        return self.cached(name).account

    async def wait_for(self, find: Callable[[], T]) -> T:
        """Return what `find` returns; call it again after each look-up it has to wait for.

        So `find` must not change anything before it succeeds.
        """
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._timeout_s
        while True:
            try:
                return find()
            except LookupPending as pending:
                lookup = pending.lookup
            await asyncio.wait([lookup.result], timeout=max(0.0, give_up - clock()))
            if not lookup.result.done():
                raise self._timed_out(lookup)
            if problem := lookup.result.result():
                raise ClusterError(
                    f"the account of {lookup} could not be looked up on this server: {problem}"
                )

    def _timed_out(self, lookup: AccountLookup) -> ClusterError:
        text = (
            f"the account of {lookup} could not be looked up within {self._timeout_s:g} s on "
            "this server; does its directory service (SSSD, LDAP, NIS) answer?"
        )
        if not lookup.is_late:
            lookup.is_late = True
            log.warning("account look-up timed out", problem=text)
        return ClusterError(text)

    # Look-ups in threads

    def _start_lookup(self, key: Key) -> AccountLookup:
        lookup = self._lookups[key] = AccountLookup(key, asyncio.get_running_loop())
        self._waiting.append(lookup)
        self._start_next()
        return lookup

    def _start_next(self) -> None:
        if not self._waiting or self._busy >= MOST_THREADS:
            return
        self._busy += 1
        lookup = self._waiting.popleft()
        # Not an executor: the program could not end while a look-up hangs.
        thread = threading.Thread(target=self._run, args=(lookup,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            lookup.loop.call_soon(self._finish, lookup, None, str(error))

    def _run(self, lookup: AccountLookup) -> None:
        account, problem = None, ""
        try:
            account = self._look_up(lookup.key)
        except Exception as error:  # noqa: BLE001 - reported to the waiting requests
            problem = str(error) or type(error).__name__
        # The event loop may have been closed.
        with contextlib.suppress(RuntimeError):
            lookup.loop.call_soon_threadsafe(self._finish, lookup, account, problem)

    def _finish(self, lookup: AccountLookup, account: Account | None, problem: str) -> None:
        self._busy -= 1
        del self._lookups[lookup.key]
        if not problem:
            self._cache(lookup.key, account)
        lookup.result.set_result(problem)
        self._start_next()

    def _cache(self, key: Key, account: Account | None) -> None:
        if len(self._known) > MOST_CACHED:
            self._known.clear()
        now = self.clock()
        # An account that did not exist may have been created: such an entry just expires.
        used_s = FRESH_S if account is None else USABLE_S
        entry = self._known[key] = CachedAccount(account, now + FRESH_S, now + used_s)
        if account is not None:
            self._known[account.uid] = entry


def unnamed_account(uid: int, gid: int | None) -> Account:
    """Return an account for a uid that has none, named by its number."""
    return Account(str(uid), uid, uid if gid is None else gid, ())


def account_of(key: Key) -> Account | None:
    """Look up a uid or a name in the system's account database; may block."""
    try:
        entry = pwd.getpwuid(key) if isinstance(key, int) else pwd.getpwnam(key)
        if not isinstance(key, int):
            # Several names may share a uid; use the one that the uid maps back to.
            entry = pwd.getpwuid(entry.pw_uid)
    except (KeyError, ValueError):
        return None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, _groups(entry.pw_name, entry.pw_gid))


def _groups(user: str, primary: int) -> tuple[str, ...]:
    names = []
    for number in dict.fromkeys([primary, *group_numbers(user, primary)]):
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return tuple(names)


def group_numbers(user: str, primary: int) -> list[int]:
    """Return what os.getgrouplist does, but without holding the GIL while it blocks."""
    room = 64
    while True:
        numbers = (ctypes.c_uint32 * room)()
        count = ctypes.c_int(room)
        name = os.fsencode(user)
        if _LIBRARY.getgrouplist(name, ctypes.c_uint32(primary), numbers, ctypes.byref(count)) >= 0:
            return numbers[: count.value]
        room = max(2 * room, count.value)


_LIBRARY = ctypes.CDLL(None)


ROOT = 0


class Directory:
    """Callers by account, with their tenants. Root, the server's user and `admins` are admins.

    Callers are cached until their account expires or a tenant changes.
    """

    def __init__(
        self,
        server_uid: int,
        admins: Sequence[str],
        roster: Callable[[], TenantDirectory],
        accounts: Accounts | None = None,
    ) -> None:
        """`roster` returns the current members of all tenants."""
        self._server_uid = server_uid
        self._admins = frozenset(admins)
        self._roster = roster
        self.accounts = accounts or Accounts()
        self._clock = self.accounts.clock
        self._known: dict[tuple[int, int | None, str], tuple[float, TenantDirectory, Caller]] = {}

    def caller(self, uid: int, gid: int | None = None, origin: str = "") -> Caller:
        """Return the caller for a uid; the gid is used only if the uid has no account.

        Raises `LookupPending` while the account is looked up.
        """
        key = (uid, gid, origin)
        entry = self._known.get(key)
        now = self._clock()
        roster = self._roster()
        if entry is not None and entry[1] is roster and entry[0] > now:
            return entry[2]
        known = self.accounts.cached(uid)
        caller = self._caller_of(known.account or unnamed_account(uid, gid), roster, origin)
        if len(self._known) > MOST_CACHED:
            self._known.clear()
        self._known[key] = (known.fresh_until, roster, caller)
        return caller

    def _caller_of(self, account: Account, roster: TenantDirectory, origin: str) -> Caller:
        membership = roster.membership(account.name, account.groups)
        is_admin = account.uid in {ROOT, self._server_uid} or account.name in self._admins
        role = Role.TENANT_ADMIN if membership.administers else Role.USER
        return Caller(
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            role=Role.ADMIN if is_admin else role,
            tenant=membership.tenant,
            tenants=membership.tenants,
            administers=membership.administers,
            origin=origin,
        )
