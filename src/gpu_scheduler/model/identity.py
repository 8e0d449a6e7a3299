"""Callers and roles, API tokens, credentials of nodes, and the servers of a cluster.

Secrets are not stored: only hashes of tokens and fingerprints of keys. The exception is the private
key of the node certificate authority, so that every server of one database can sign; the store
encrypts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_TENANT = "default"
"""The tenant of users who belong to no other."""
_JUST_DEFAULT = frozenset({DEFAULT_TENANT})


class Role(StrEnum):
    """What a caller may do.

    A viewer only reads, a user manages own jobs, a tenant admin all jobs of that tenant, and an
    admin everything.
    """

    VIEWER = "viewer"
    USER = "user"
    TENANT_ADMIN = "tenant-admin"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """A higher rank allows more."""
        return list(Role).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An authenticated user or program; never as a request claims.

    `tenant` is the default tenant of its jobs, `tenants` those it may use, `administers` those in
    which it may change jobs of others. A `confined` caller (one with a token) has no access to its
    own jobs in other tenants. `origin` is the address of the caller, `via` the credential, if the
    kernel did not identify the caller.
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
        """Tell whether the caller may see all details of what this owner has in this tenant."""
        if self.is_admin or tenant in self.administers:
            return True
        return self.user == owner and (not self.confined or tenant in self.tenants)

    def may_touch(self, owner: str, tenant: str = "") -> bool:
        """Tell whether the caller may also change it."""
        return self.may_change and self.may_see(owner, tenant)

    def may_submit_to(self, tenant: str) -> bool:
        """Tell whether the caller may submit jobs to this tenant."""
        return self.is_admin or (self.may_change and tenant in self.tenants)


SYSTEM = Caller(user="gpu-scheduler", role=Role.ADMIN)
"""The scheduler itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """An API token: user, tenant, role and expiry; only the hash of its secret is stored.

    `uid` is that of the user at creation: a recreated account with another uid is another user.
    Times are 0 for what has not happened.
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
        """Tell whether its user created it, so that it grants no more than that user has."""
        return self.created_by == self.user


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The private certificate authority of nodes; certificate and key as PEM."""

    id: str = "nodes"
    certificate: str
    key: str
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Lets `uses` nodes join until it expires. With `nodes`, only these, even if they exist.

    Times are 0 for what has not happened.
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
    """The fingerprint of the key of a node.

    `former` is the key before it: a node may have missed the response to its renewal.
    """

    node: str
    fingerprint: str
    former: str = ""
    token_id: str
    issued_ms: int
    expires_ms: int
    revoked_ms: int = 0

    def is_good(self, fingerprint: str) -> bool:
        """Tell whether this fingerprint identifies the node."""
        return not self.revoked_ms and fingerprint in {self.fingerprint, self.former or None}


Identity = Authority | JoinToken | NodeKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMember:
    """A server of the cluster: its name, and its addresses for users and for agents.

    `home` identifies the installation, and stays the same after a restart.
    """

    name: str
    address: str
    agents: str = ""
    version: str = ""
    home: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """A standby server, and how long ago it was last seen."""

    name: str
    address: str
    version: str
    seen_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLease:
    """The leader lease as it was read. `left_s` is its remaining time; 0 or less: no leader."""

    term: int = 0
    holder: str = ""
    address: str = ""
    agents: str = ""
    left_s: float = 0.0
    standbys: tuple[Standby, ...] = ()
    database_ms: int = 0

    @property
    def is_held(self) -> bool:
        """Tell whether there was a leader when this was read."""
        return bool(self.holder) and self.left_s > 0
