"""Who gives a command, and what of others' things that one may see and touch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TENANT = "default"
"""The tenant of everybody who belongs to no other."""
_JUST_DEFAULT = frozenset({DEFAULT_TENANT})


class Role(StrEnum):
    """What a caller may do.

    A viewer only looks, a user has jobs of its own, a tenant's admin may touch all jobs of that
    tenant, and an admin may do everything.
    """

    VIEWER = "viewer"
    USER = "user"
    TENANT_ADMIN = "tenant-admin"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """The higher, the more is allowed."""
        return list(Role).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A person or program, as the server itself has found out; never as a request says.

    `tenant` is where its jobs go if a request names none, `tenants` where they may go,
    `administers` where it may touch the jobs of others. A `confined` caller (one with a token) has
    nothing to do with its own jobs in other tenants either. `origin` is from where it calls, `via`
    by what it is known, if not by the kernel.
    """

    user: str
    uid: int | None = None
    gid: int | None = None
    role: Role = Role.USER
    tenant: str = DEFAULT_TENANT
    tenants: frozenset[str] = _JUST_DEFAULT
    administers: frozenset[str] = frozenset()
    confined: bool = False
    origin: str = ""
    via: str = ""

    @property
    def is_admin(self) -> bool:
        """Tell whether everything is allowed."""
        return self.role is Role.ADMIN

    @property
    def may_change(self) -> bool:
        """Tell whether the caller may change anything at all."""
        return self.role is not Role.VIEWER

    def may_see(self, owner: str, tenant: str = "") -> bool:
        """Tell whether a thing of this owner, in this tenant, may be seen in full."""
        if self.is_admin or tenant in self.administers:
            return True
        return self.user == owner and (not self.confined or tenant in self.tenants)

    def may_touch(self, owner: str, tenant: str = "") -> bool:
        """Tell whether it may be changed, too."""
        return self.may_change and self.may_see(owner, tenant)

    def may_submit_to(self, tenant: str) -> bool:
        """Tell whether jobs of the caller may be jobs of this tenant."""
        return self.is_admin or (self.may_change and tenant in self.tenants)


SYSTEM = Caller(user="gpu-scheduler", role=Role.ADMIN)
"""The scheduler itself, for what nobody asked for."""
