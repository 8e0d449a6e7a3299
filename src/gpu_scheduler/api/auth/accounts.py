"""The accounts of this machine, asked for beside the event loop and remembered for a while.

They may live in a directory service (SSSD, LDAP, NIS) that takes seconds or hangs, and a look-up
cannot be ended. So what is not remembered is looked up in a thread, a few at a time, once however
many ask for it, and is waited for only so long. What grows old is still used while it is looked up
anew, so that whoever comes again and again does not wait; nothing is used for more than a minute.
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
FORGOTTEN_S = 60.0
PATIENCE_S = 10.0
MOST_REMEMBERED = 10_000
MOST_AT_ONCE = 8
MOST_WAITING = 1_000
log = structlog.get_logger("api")
T = TypeVar("T")
Key = int | str
"""A uid, or a name."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the system knows it; the primary group comes first."""

    name: str
    uid: int
    gid: int
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CachedAccount:
    """What was found: new until a moment, and used until another. None: there is no such one."""

    account: Account | None
    fresh_until: float
    used_until: float


class AccountLookup:
    """A look-up that is under way. The answer is why it failed, empty if it did not."""

    def __init__(self, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        """Nobody has answered yet."""
        self.key = key
        self.loop = loop
        self.answer: asyncio.Future[str] = loop.create_future()
        self.is_late = False

    def __str__(self) -> str:
        """What is asked."""
        return f"uid {self.key}" if isinstance(self.key, int) else f"user '{self.key[:80]}'"


class LookupPending(Exception):
    """It is not known yet, and is being looked up: `Accounts.when_known` waits for that."""

    def __init__(self, question: AccountLookup) -> None:
        """The question is somebody's, and perhaps of several."""
        super().__init__(str(question))
        self.question = question


class Accounts:
    """Accounts by uid and by name. All of it but the look-ups belongs to one event loop."""

    def __init__(
        self,
        look_up: Callable[[Key], Account | None] | None = None,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look_up` runs in threads, and may take as long as it likes."""
        self._look_up = look_up or account_of
        self._patience_s = patience_s
        self.clock = clock
        self._known: dict[Key, CachedAccount] = {}
        self._asked: dict[Key, AccountLookup] = {}
        self._waiting: deque[AccountLookup] = deque()
        self._busy = 0

    def found(self, key: Key) -> CachedAccount:
        """Return the cached account of a uid or name, or raise `LookupPending`."""
        found = self._known.get(key)
        now = self.clock()
        if found is not None and found.fresh_until > now:
            return found
        question = self._asked.get(key)
        if question is None and len(self._waiting) < MOST_WAITING:
            question = self._ask(key)
        if found is not None and found.used_until > now:
            return found
        if question is None:
            raise ClusterError(
                f"{len(self._waiting):,} accounts are waiting to be looked up on this server; does "
                "its directory service (SSSD, LDAP, NIS) answer?"
            )
        raise LookupPending(question)

    def of(self, uid: int, gid: int | None = None) -> Account:
        """The account of a uid; one without a name is called by its number, and has the gid."""
        return self.found(uid).account or unnamed_account(uid, gid)

    def named(self, name: str) -> Account | None:
        """The account of a name, if there is one."""
        return self.found(name).account

    async def when_known(self, ask: Callable[[], T]) -> T:
        """What `ask` finds; where that has to be looked up, it is waited for, and asked again."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + self._patience_s
        while True:
            try:
                return ask()
            except LookupPending as unanswered:
                question = unanswered.question
            await asyncio.wait([question.answer], timeout=max(0.0, give_up - clock()))
            if not question.answer.done():
                raise self._too_late(question)
            if problem := question.answer.result():
                raise ClusterError(
                    f"the account of {question} could not be looked up on this server: {problem}"
                )

    def _too_late(self, question: AccountLookup) -> ClusterError:
        text = (
            f"the account of {question} could not be looked up within {self._patience_s:g} s on "
            "this server; does its directory service (SSSD, LDAP, NIS) answer?"
        )
        if not question.is_late:
            question.is_late = True
            log.warning("an account cannot be looked up", problem=text)
        return ClusterError(text)

    # --- beside the loop

    def _ask(self, key: Key) -> AccountLookup:
        question = self._asked[key] = AccountLookup(key, asyncio.get_running_loop())
        self._waiting.append(question)
        self._start_next()
        return question

    def _start_next(self) -> None:
        if not self._waiting or self._busy >= MOST_AT_ONCE:
            return
        self._busy += 1
        question = self._waiting.popleft()
        # Not of an executor: the end of the program would wait for those that hang.
        thread = threading.Thread(target=self._answer, args=(question,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            question.loop.call_soon(self._hear, question, None, str(error))

    def _answer(self, question: AccountLookup) -> None:
        account, problem = None, ""
        try:
            account = self._look_up(question.key)
        except Exception as error:  # noqa: BLE001 - whatever it is, who asks must hear of it
            problem = str(error) or type(error).__name__
        # A loop that has ended hears nothing more, and need not.
        with contextlib.suppress(RuntimeError):
            question.loop.call_soon_threadsafe(self._hear, question, account, problem)

    def _hear(self, question: AccountLookup, account: Account | None, problem: str) -> None:
        self._busy -= 1
        del self._asked[question.key]
        if not problem:
            self._remember(question.key, account)
        question.answer.set_result(problem)
        self._start_next()

    def _remember(self, key: Key, account: Account | None) -> None:
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        now = self.clock()
        # Who was not there may be by now: that is not used once it is old.
        used_s = FRESH_S if account is None else FORGOTTEN_S
        found = self._known[key] = CachedAccount(account, now + FRESH_S, now + used_s)
        if account is not None:
            self._known[account.uid] = found


def unnamed_account(uid: int, gid: int | None) -> Account:
    """A uid that is nobody's account."""
    return Account(str(uid), uid, uid if gid is None else gid, ())


def account_of(key: Key) -> Account | None:
    """What the system says about a uid or a name, for as long as that takes."""
    try:
        entry = pwd.getpwuid(key) if isinstance(key, int) else pwd.getpwnam(key)
        if not isinstance(key, int):
            # Several names may have one uid, and only one of them is the account's.
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
    """What os.getgrouplist says, which would keep all other threads waiting until it returns."""
    room = 64
    while True:
        numbers = (ctypes.c_uint32 * room)()
        count = ctypes.c_int(room)
        name = os.fsencode(user)
        if _LIBRARY.getgrouplist(name, ctypes.c_uint32(primary), numbers, ctypes.byref(count)) >= 0:
            return numbers[: count.value]
        room = max(2 * room, count.value)


_LIBRARY = ctypes.CDLL(None)


# --- People: who has a uid or a name on this machine, and in which tenants that is.
#
# Accounts are remembered for a while; tenants are asked for anew whenever one has changed. What is
# not remembered is looked up beside the event loop, and `when_known` waits for it.

ROOT = 0


class Directory:
    """Everybody on this machine. Root, whoever runs the server, and those named are admins."""

    def __init__(
        self,
        server_uid: int,
        admins: Sequence[str],
        roster: Callable[[], TenantDirectory],
        accounts: Accounts | None = None,
    ) -> None:
        """`roster` gives the tenants as they are now."""
        self._server_uid = server_uid
        self._admins = frozenset(admins)
        self._roster = roster
        self._accounts = accounts or Accounts()
        self._clock = self._accounts.clock
        self._known: dict[tuple[int, int | None, str], tuple[float, TenantDirectory, Caller]] = {}

    def caller(self, uid: int, gid: int | None = None, origin: str = "") -> Caller:
        """The account of a uid as a caller; the gid counts only where it has no name.

        Raises `LookupPending` if it has to be waited for.
        """
        key = (uid, gid, origin)
        found = self._known.get(key)
        now = self._clock()
        roster = self._roster()
        if found is not None and found[1] is roster and found[0] > now:
            return found[2]
        known = self._accounts.found(uid)
        caller = self._as_caller(known.account or unnamed_account(uid, gid), roster, origin)
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (known.fresh_until, roster, caller)
        return caller

    def account(self, uid: int, gid: int | None = None) -> Account:
        """The account of a uid; one without a name is called by its number."""
        return self._accounts.of(uid, gid)

    def named(self, name: str) -> Account | None:
        """The account of a name, if there is one."""
        return self._accounts.named(name)

    async def when_known(self, ask: Callable[[], T]) -> T:
        """What `ask` finds here; whatever has to be looked up for that is waited for.

        It is asked again after each wait, so it must change nothing before it has found all.
        """
        return await self._accounts.when_known(ask)

    def _as_caller(self, account: Account, roster: TenantDirectory, origin: str) -> Caller:
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
