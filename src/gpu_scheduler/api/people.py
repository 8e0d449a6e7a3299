"""Accounts of this machine: who has a uid, in which groups, and in which tenants that is.

Names and groups are remembered for a minute, as looking them up can be slow; tenants are asked for
anew whenever one has changed.
"""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_scheduler.model.caller import Caller, Role
from gpu_scheduler.model.roster import Roster

ROOT = 0
FORGET_NAMES_AFTER_S = 60.0
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Account:
    """An account as the system knows it; the primary group comes first."""

    name: str
    uid: int
    gid: int
    groups: tuple[str, ...]


class Directory:
    """Everybody on this machine. Root, whoever runs the server, and those named are admins."""

    def __init__(
        self,
        server_uid: int,
        admins: Sequence[str],
        roster: Callable[[], Roster],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`roster` gives the tenants as they are now."""
        self._server_uid = server_uid
        self._admins = frozenset(admins)
        self._roster = roster
        self._clock = clock
        self._named: dict[str, tuple[float, Account | None]] = {}
        self._known: dict[tuple[int, int | None, str], tuple[float, Roster, Caller]] = {}

    def caller(self, uid: int, gid: int | None = None, origin: str = "") -> Caller:
        """The account of a uid as a caller; the gid counts only where it has no name."""
        key = (uid, gid, origin)
        found = self._known.get(key)
        now = self._clock()
        roster = self._roster()
        if found is not None and found[1] is roster and found[0] > now:
            return found[2]
        caller = self._looked_up(account_of(uid, gid), roster, origin)
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        self._known[key] = (now + FORGET_NAMES_AFTER_S, roster, caller)
        return caller

    def named(self, name: str) -> Account | None:
        """The account of a name, if there is one."""
        found = self._named.get(name)
        now = self._clock()
        if found is not None and found[0] > now:
            return found[1]
        account = account_named(name)
        if len(self._named) > MOST_REMEMBERED:
            self._named.clear()
        self._named[name] = (now + FORGET_NAMES_AFTER_S, account)
        return account

    def _looked_up(self, account: Account, roster: Roster, origin: str) -> Caller:
        belonging = roster.belonging(account.name, account.groups)
        is_admin = account.uid in {ROOT, self._server_uid} or account.name in self._admins
        role = Role.TENANT_ADMIN if belonging.administers else Role.USER
        return Caller(
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            role=Role.ADMIN if is_admin else role,
            tenant=belonging.tenant,
            tenants=belonging.tenants,
            administers=belonging.administers,
            origin=origin,
        )


def account_of(uid: int, gid: int | None = None) -> Account:
    """What the system says about a uid; one without a name is called by its number."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, uid if gid is None else gid, ())
    return Account(found.pw_name, uid, found.pw_gid, _groups(found.pw_name, found.pw_gid))


def account_named(name: str) -> Account | None:
    """What the system says about a name, if there is such an account."""
    try:
        found = pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return account_of(found.pw_uid)


def _groups(user: str, primary: int) -> tuple[str, ...]:
    numbers = dict.fromkeys([primary, *os.getgrouplist(user, primary)])
    names = []
    for number in numbers:
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            names.append(str(number))
    return tuple(names)
