"""The rows of how nodes are known: one table for the authority, for join tokens and for keys."""

from __future__ import annotations

from typing import Any

from gpu_scheduler.model.node_key import Authority, Identity, JoinToken, NodeKey
from gpu_scheduler.store.codec import Whole

_FORMS: dict[str, Whole[Any]] = {
    "authority": Whole(Authority),
    "join": Whole(JoinToken),
    "key": Whole(NodeKey),
}
_KINDS: dict[type, str] = {Authority: "authority", JoinToken: "join", NodeKey: "key"}


def identity_key(identity: Identity) -> tuple[str, str]:
    """The kind of an identity, and its id in that kind."""
    own = identity.node if isinstance(identity, NodeKey) else identity.id
    return _KINDS[type(identity)], own


def identity_values(identity: Identity) -> tuple[str, str, str]:
    """The columns: kind, id and the whole of it."""
    kind, own = identity_key(identity)
    return kind, own, _FORMS[kind].encode(identity)


def identity_of(row: tuple[Any, ...]) -> Identity:
    """What was kept."""
    found: Identity = _FORMS[row[0]].decode(row[1])
    return found
