"""Who gives a command."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a caller may do: a user only with its own jobs, an admin with everything."""

    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A person or program, as the server itself has found out; never as a request says."""

    user: str
    uid: int | None = None
    gid: int | None = None
    role: Role = Role.USER
    tenant: str = "default"

    @property
    def is_admin(self) -> bool:
        """Tell whether everything is allowed."""
        return self.role is Role.ADMIN

    def may_touch(self, owner: str) -> bool:
        """Tell whether a thing of this owner may be seen in full and changed."""
        return self.is_admin or self.user == owner


SYSTEM = Caller(user="gpu-scheduler", role=Role.ADMIN)
"""The scheduler itself, for what nobody asked for."""
