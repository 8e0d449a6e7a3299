"""People: who has a uid or a name on this machine, and in which tenants that is.

Accounts are remembered for a while; tenants are asked for anew whenever one has changed. What is
not remembered is looked up beside the event loop, and `when_known` waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from gpu_scheduler.api.accounts import Account, Accounts, nameless
from gpu_scheduler.model.caller import Caller, Role
from gpu_scheduler.model.roster import Roster

ROOT = 0
MOST_REMEMBERED = 10_000
T = TypeVar("T")


class Directory:
    """Everybody on this machine. Root, whoever runs the server, and those named are admins."""

    def __init__(
        self,
        server_uid: int,
        admins: Sequence[str],
        roster: Callable[[], Roster],
        accounts: Accounts | None = None,
    ) -> None:
        """`roster` gives the tenants as they are now."""
        self._server_uid = server_uid
        self._admins = frozenset(admins)
        self._roster = roster
        self._accounts = accounts or Accounts()
        self._clock = self._accounts.clock
        self._known: dict[tuple[int, int | None, str], tuple[float, Roster, Caller]] = {}

    def caller(self, uid: int, gid: int | None = None, origin: str = "") -> Caller:
        """The account of a uid as a caller; the gid counts only where it has no name.

        Raises `Unanswered` if it has to be waited for.
        """
        key = (uid, gid, origin)
        found = self._known.get(key)
        now = self._clock()
        roster = self._roster()
        if found is not None and found[1] is roster and found[0] > now:
            return found[2]
        known = self._accounts.found(uid)
        caller = self._as_caller(known.account or nameless(uid, gid), roster, origin)
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

    def _as_caller(self, account: Account, roster: Roster, origin: str) -> Caller:
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
