"""How nodes are known: the authority that vouches for them, tokens to join with, and their keys.

Secrets of tokens are kept by nobody here, only their hashes; of a node's key only the fingerprint
of its public half. The authority's private key is kept in the store, so that every server of one
database can sign.
"""

from __future__ import annotations

from dataclasses import dataclass


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
