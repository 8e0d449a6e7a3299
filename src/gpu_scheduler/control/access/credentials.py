"""API tokens of users; join tokens and keys of nodes.

Only hashes and fingerprints of secrets come here.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.effects import DisconnectOrder, Outcome
from gpu_scheduler.control.messages import (
    JoinNode,
    KeepAuthority,
    MakeJoinToken,
    MakeToken,
    NodeKeyMessage,
    RenewNode,
    RevokeJoinToken,
    RevokeNode,
    RevokeToken,
    UseToken,
)
from gpu_scheduler.control.state import ControlState, NodeKeys
from gpu_scheduler.model.errors import AlreadyExists, Forbidden, UnknownThing, WrongState
from gpu_scheduler.model.identity import Identity, JoinToken, NodeKey, Token


def change_node_credentials(
    state: ControlState, message: NodeKeyMessage, now_ms: int, outcome: Outcome
) -> None:
    """Change the authority, a join token or the key of a node; or raise and change nothing."""
    keys = state.node_keys
    changed: tuple[Identity, ...] = ()
    match message:
        case KeepAuthority(authority):
            if keys.authority is not None:
                raise AlreadyExists("the certificate authority of nodes already exists")
            changed = (authority,)
        case MakeJoinToken(token):
            if token.id in keys.tokens:
                raise AlreadyExists(f"join token {token.id} exists; try again")
            changed = (token,)
        case RevokeJoinToken(token_id):
            token = _token(keys, token_id)
            if token.revoked_ms:
                raise WrongState(f"join token {token.id} is already revoked")
            changed = (replace(token, revoked_ms=max(1, now_ms)),)
        case JoinNode():
            changed = _joined(state, message, now_ms)
            outcome.effects.append(DisconnectOrder(message.node_id))
        case RenewNode(node_id, former, fingerprint, expires_ms):
            key = _key(keys, node_id)
            if not key.is_good(former):
                raise Forbidden(f"this is not the key of node '{node_id}', or it has been revoked")
            key = replace(key, fingerprint=fingerprint, former=former)
            changed = (replace(key, issued_ms=now_ms, expires_ms=expires_ms),)
        case RevokeNode(node_id):
            key = _key(keys, node_id)
            if key.revoked_ms:
                raise WrongState(f"the key of node '{node_id}' is already revoked")
            changed = (replace(key, revoked_ms=max(1, now_ms)),)
            outcome.effects.append(DisconnectOrder(node_id))
    keys.keep(*changed)
    outcome.writes += changed


def check_token(keys: NodeKeys, token_id: str, node_id: str, now_ms: int) -> JoinToken:
    """The join token, if the node may join with it, or has joined and repeats its request."""
    token = _token(keys, token_id)
    if token.revoked_ms:
        raise Forbidden(f"join token {token_id} has been revoked; ask for another one")
    if token.expires_ms <= now_ms:
        raise Forbidden(f"join token {token_id} has expired; ask for another one")
    if token.used >= token.uses and _joined_with(keys, token_id, node_id) is None:
        raise _used_up(token)
    return token


def _used_up(token: JoinToken) -> Forbidden:
    return Forbidden(
        f"join token {token.id} is used up: {token.uses} node{'s' * (token.uses != 1)} may use "
        f"it, and {token.used} joined with it; make another with 'tgpu node token create'"
    )


def _joined_with(keys: NodeKeys, token_id: str, node_id: str) -> NodeKey | None:
    """The valid key of a node that joined with this token."""
    key = keys.nodes.get(node_id)
    return key if key and key.token_id == token_id and not key.revoked_ms else None


def _joined(state: ControlState, message: JoinNode, now_ms: int) -> tuple[Identity, ...]:
    keys, node_id = state.node_keys, message.node_id
    token = check_token(keys, message.token_id, node_id, now_ms)
    same = _joined_with(keys, token.id, node_id)
    if same is not None and same.fingerprint == message.fingerprint:
        # The node missed the response and repeats its request.
        return (replace(same, issued_ms=now_ms, expires_ms=message.expires_ms),)
    if token.used >= token.uses:
        raise _used_up(token)
    if token.nodes and node_id not in token.nodes:
        raise Forbidden(
            f"join token {token.id} is for {', '.join(token.nodes)} and not for '{node_id}'"
        )
    old = keys.nodes.get(node_id)
    has_key = old is not None and not old.revoked_ms
    is_known = node_id in state.cluster.index.by_id
    if not token.nodes and (has_key or (is_known and old is None)):
        raise Forbidden(
            f"node '{node_id}' already exists, and a token for any node cannot replace it; "
            f"create one with 'tgpu node token create --node {node_id}', or first "
            f"'tgpu node revoke {node_id}'"
        )
    key = NodeKey(
        node=node_id,
        fingerprint=message.fingerprint,
        token_id=token.id,
        issued_ms=now_ms,
        expires_ms=message.expires_ms,
    )
    return replace(token, used=token.used + 1), key


def _token(keys: NodeKeys, token_id: str) -> JoinToken:
    token = keys.tokens.get(token_id)
    if token is None:
        raise UnknownThing(
            f"join token '{token_id}' is not known; 'tgpu node token list' shows all"
        )
    return token


def _key(keys: NodeKeys, node_id: str) -> NodeKey:
    key = keys.nodes.get(node_id)
    if key is None:
        raise UnknownThing(f"node '{node_id}' has no key here; 'tgpu nodes' shows all nodes")
    return key


def change_token(
    state: ControlState, message: MakeToken | RevokeToken | UseToken, now_ms: int, outcome: Outcome
) -> None:
    """Create or revoke an API token, or update its last use."""
    match message:
        case MakeToken(token):
            if token.id in state.tokens:
                raise AlreadyExists(f"token {token.id} exists; try again")
        case RevokeToken(token_id):
            token = _known(state, token_id)
            if token.revoked_ms:
                raise WrongState(f"token {token_id} is already revoked")
            token = replace(token, revoked_ms=max(1, now_ms))
        case UseToken(token_id):
            token = replace(_known(state, token_id), last_used_ms=now_ms)
    state.tokens[token.id] = token
    state.token_ids[token.secret_hash] = token.id
    outcome.writes.append(token)


def _known(state: ControlState, token_id: str) -> Token:
    token = state.tokens.get(token_id)
    if token is None:
        raise UnknownThing(f"token '{token_id}' is not known; 'tgpu token list' shows yours")
    return token
