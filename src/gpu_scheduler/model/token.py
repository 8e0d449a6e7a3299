"""A token: what somebody far away shows instead of an account that the kernel could see."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.caller import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """Who may call with it, as what, and until when. The secret itself is kept by nobody here.

    `uid` is that of the user when it was made: an account that was made anew is another one.
    Times are 0 where something has not happened.
    """

    id: str
    secret_hash: str
    name: str = ""
    user: str
    uid: int
    tenant: str
    role: Role = Role.USER
    created_by: str
    created_ms: int
    expires_ms: int
    last_used_ms: int = 0
    revoked_ms: int = 0

    @property
    def self_made(self) -> bool:
        """Tell whether its user made it, so that it is worth no more than that user is."""
        return self.created_by == self.user
