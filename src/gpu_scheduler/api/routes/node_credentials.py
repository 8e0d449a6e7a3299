"""Tokens for new nodes, and the keys of those that have joined: make, list, revoke. For admins."""

from __future__ import annotations

import secrets

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.operations import V1, Operation
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.control.messages import MakeJoinToken, RevokeJoinToken, RevokeNode
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.identity import JoinToken, NodeKey
from gpu_scheduler.wire.access import (
    JoinTokenForm,
    JoinTokenList,
    JoinTokenRequest,
    NewJoinToken,
    NodeKeyForm,
    NodeKeyList,
)
from gpu_scheduler.wire.answers import Removed
from gpu_scheduler.wire.handshake import JoinText, encoded, pin_of, secret_hash
from gpu_scheduler.wire.times import write_time

_REQUEST = msgspec.json.Decoder(JoinTokenRequest)
SECRET_BYTES = 32
DAY_S = 86_400
LONGEST_NAME = 64
TOKENS = f"{V1}/nodes/tokens"


async def create_join_token(context: Context, request: Request) -> Response:
    """A token for new nodes. Its secret is in this answer and nowhere else."""
    expect_admin(request.caller, "let nodes join")
    asked = await request.read(_REQUEST, context.settings.bounds.body_bytes)
    if request.caller.via:
        raise Forbidden(
            "whoever calls with a token cannot make another; do that on the machine itself"
        )
    if not asked.name.isprintable():
        raise InvalidRequest("the token's name holds a control character; remove it")
    most_days = context.settings.max_token_days
    if asked.expires_in_seconds > most_days * DAY_S:
        raise InvalidRequest(
            f"the token would be good for {asked.expires_in_seconds / DAY_S:g} days; at most "
            f"{most_days:g} are allowed (auth.max_token_days)"
        )
    now_ms = context.service.now_ms()
    secret = encoded(secrets.token_bytes(SECRET_BYTES))
    token = JoinToken(
        id=f"join-{secrets.token_hex(4)}",
        secret_hash=secret_hash(secret),
        name=asked.name,
        nodes=tuple(dict.fromkeys(asked.nodes)),
        uses=max(asked.uses, len(set(asked.nodes))),
        created_by=request.caller.user,
        created_ms=now_ms,
        expires_ms=now_ms + round(asked.expires_in_seconds * 1000),
    )
    text = JoinText(secret, _pin(context), plain=context.settings.plain_nodes)
    await context.service.apply(MakeJoinToken(token), request.caller)
    shown = msgspec.structs.asdict(_form(token, now_ms))
    return json_response(NewJoinToken(**shown, token=str(text)), status=201)


async def list_join_tokens(context: Context, request: Request) -> Response:
    """All tokens for new nodes."""
    expect_admin(request.caller, "see the tokens of nodes")
    context.parse_query(request)
    tokens = sorted(
        context.service.core.state.node_keys.tokens.values(),
        key=lambda token: (-token.created_ms, token.id),
    )
    now_ms = context.service.now_ms()
    return json_response(JoinTokenList([_form(token, now_ms) for token in tokens]))


async def revoke_join_token(context: Context, request: Request) -> Response:
    """Let nobody join with a token any more."""
    expect_admin(request.caller, "revoke a token of nodes")
    context.parse_query(request)
    token_id = _name(request.params["token_id"], "join token")
    await context.service.apply(RevokeJoinToken(token_id), request.caller)
    return json_response(Removed(id=token_id, message="Join token revoked", status="revoked"))


async def list_node_keys(context: Context, request: Request) -> Response:
    """The keys of all nodes that have joined."""
    expect_admin(request.caller, "see the keys of nodes")
    context.parse_query(request)
    keys = context.service.core.state.node_keys
    now_ms = context.service.now_ms()
    found = [_key_form(key, now_ms) for _, key in sorted(keys.nodes.items())]
    authority = "" if keys.authority is None else keys.authority.certificate
    return json_response(NodeKeyList(found, _pin(context), authority))


async def revoke_node(context: Context, request: Request) -> Response:
    """Believe the key of a node no more; an open session ends at once."""
    expect_admin(request.caller, "revoke the key of a node")
    context.parse_query(request)
    node_id = _name(request.params["node"], "node")
    await context.service.apply(RevokeNode(node_id), request.caller)
    return json_response(Removed(id=node_id, message="Key of the node revoked", status="revoked"))


def _name(text: str, what: str) -> str:
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise UnknownThing(f"that is the name of no {what}")
    return text


def _pin(context: Context) -> str:
    authority = context.service.core.state.node_keys.authority
    if authority is None:
        raise WrongState("there is no authority for nodes yet; try again in a moment")
    certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
    return pin_of(certificate.public_bytes(Encoding.DER))


def _form(token: JoinToken, now_ms: int) -> JoinTokenForm:
    state = "expired" if token.expires_ms <= now_ms else "active"
    if token.used >= token.uses:
        state = "used up"
    return JoinTokenForm(
        id=token.id,
        name=token.name,
        nodes=list(token.nodes),
        uses=token.uses,
        used=token.used,
        state="revoked" if token.revoked_ms else state,
        created_by=token.created_by,
        created_at=write_time(token.created_ms),
        expires_at=write_time(token.expires_ms),
        revoked_at=write_time(token.revoked_ms or None),
    )


def _key_form(key: NodeKey, now_ms: int) -> NodeKeyForm:
    state = "expired" if key.expires_ms <= now_ms else "active"
    return NodeKeyForm(
        node=key.node,
        fingerprint=key.fingerprint,
        state="revoked" if key.revoked_ms else state,
        token_id=key.token_id,
        issued_at=write_time(key.issued_ms),
        expires_at=write_time(key.expires_ms),
        revoked_at=write_time(key.revoked_ms or None),
    )


OPERATIONS = (
    Operation(
        method="POST",
        path=TOKENS,
        handler=create_join_token,
        name="create_join_token",
        summary="Make a token that new nodes join with; its secret is told this once (for admins).",
        tag="access",
        body=JoinTokenRequest,
        response=NewJoinToken,
        status=201,
        errors=(403, 409, 413, 415, 503),
        example={"uses": 20, "expires_in_seconds": 3600},
    ),
    Operation(
        method="GET",
        path=TOKENS,
        handler=list_join_tokens,
        name="list_join_tokens",
        summary="All tokens for new nodes, without their secrets (for admins).",
        tag="access",
        response=JoinTokenList,
        errors=(403,),
    ),
    Operation(
        method="DELETE",
        path=f"{TOKENS}/{{token_id}}",
        handler=revoke_join_token,
        name="revoke_join_token",
        summary="Let nobody join with a token any more (for admins).",
        tag="access",
        response=Removed,
        errors=(403, 404, 409, 503),
    ),
    Operation(
        method="GET",
        path=f"{V1}/nodes/keys",
        handler=list_node_keys,
        name="list_node_keys",
        summary="The keys of nodes that have joined, and the authority's certificate (for admins).",
        tag="access",
        response=NodeKeyList,
        errors=(403, 409),
    ),
    Operation(
        method="DELETE",
        path=f"{V1}/nodes/keys/{{node}}",
        handler=revoke_node,
        name="revoke_node",
        summary="Believe the key of a node no more, and end its session at once (for admins).",
        tag="access",
        response=Removed,
        errors=(403, 404, 409, 503),
    ),
)
