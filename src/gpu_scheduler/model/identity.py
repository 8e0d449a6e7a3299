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


# --- A token: what somebody far away shows instead of an account that the kernel could see.


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


# --- How nodes are known: the authority that vouches for them, tokens to join with, and their keys.
#
# Secrets of tokens are kept by nobody here, only their hashes; of a node's key only the fingerprint
# of its public half. The authority's private key is kept in the store, so that every server of one
# database can sign.


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A private certificate authority; both parts as PEM."""

    id: str = "nodes"
    certificate: str
    key: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Lets so many nodes join until a time. With `nodes`, only those, also in place of others.

    Times are 0 where something has not happened.
    """

    id: str
    secret_hash: str
    name: str = ""
    nodes: tuple[str, ...] = ()
    uses: int = 1
    used: int = 0
    created_by: str
    created_ms: int
    expires_ms: int
    revoked_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKey:
    """The key by which a node is known, by its fingerprint.

    `former` is the one before it: a node may have missed the answer to its renewal.
    """

    node: str
    fingerprint: str
    former: str = ""
    token_id: str
    issued_ms: int
    expires_ms: int
    revoked_ms: int = 0

    def is_good(self, fingerprint: str) -> bool:
        """Tell whether somebody with that key is this node."""
        return not self.revoked_ms and fingerprint in {self.fingerprint, self.former or None}


Identity = Authority | JoinToken | NodeKey


# --- Servers of one cluster, and which of them leads.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMember:
    """A server of the cluster: its name, where people and other servers reach it, and agents.

    `home` is the installation that it runs from, the same when it is started again.
    """

    name: str
    address: str
    agents: str = ""
    version: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A server that does not lead, and how long ago it said that it is there."""

    name: str
    address: str
    version: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """Who leads, as it was read. `left_s` is how long that still holds; not positive: nobody."""

    term: int = 0
    holder: str = ""
    address: str = ""
    agents: str = ""
    left_s: float = 0.0
    standbys: tuple[Standby, ...] = ()
    database_ms: int = 0

    @property
    def is_held(self) -> bool:
        """Tell whether somebody led when this was read."""
        return bool(self.holder) and self.left_s > 0
