"""Nodes: list, show, cordon, drain, label, remove; their join tokens and keys (for admins)."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta, Struct

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.openapi import Removed, Router
from gpu_scheduler.api.http.request import (
    JSON,
    Body,
    Request,
    Response,
    decode,
    form_of,
    in_units,
    json_response,
)
from gpu_scheduler.api.routes.access import SECRET_BYTES, check_new_token
from gpu_scheduler.api.routes.cluster import free_gpus, node_resources
from gpu_scheduler.control.messages import (
    ConfirmDead,
    Cordon,
    Drain,
    LabelNode,
    MakeJoinToken,
    RemoveNode,
    RevokeJoinToken,
    RevokeNode,
    Uncordon,
)
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.identity import JoinToken, NodeKey
from gpu_scheduler.model.names import check_name
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.wire.handshake import JoinText, certificate_pin, encode_base64, secret_hash
from gpu_scheduler.wire.times import write_time

DAY_S = 86_400
Reason = Annotated[str, Meta(max_length=256)]


class ClosedForm(Struct):
    """Why a node takes no new work; a draining node requeues what still runs at `requeue_at`.

    `is_fault`: a failed prolog or epilog closed it, not a user.
    """

    by: str
    reason: str
    since: str | None
    drains: bool
    requeue_at: str | None
    is_fault: bool = False


class AdapterForm(Struct):
    """A port of a network adapter."""

    name: str
    port: int
    link: str
    rate_gbps: int
    numa_node: int
    active: bool


class NodeForm(Struct):
    """A node: its resources, and how much of them is free.

    `state` is online, cordoned, draining (jobs still run), drained, or, without heartbeats:
    suspect, lost or dead. `silent_since` is the time of the last heartbeat. `islands` are the GPUs
    that NVLink connects.
    """

    id: str
    state: str
    gpus: int
    free_gpus: int
    cpu_cores: float
    free_cpu_cores: float
    memory_mb: int
    free_memory_mb: int
    gpu_models: list[str]
    labels: dict[str, str]
    rack: str
    running: int
    problem: str = ""
    closed: ClosedForm | None = None
    address: str = ""
    version: str = ""
    silent_since: str | None = None
    islands: list[list[int]] = []


class NodeDetail(NodeForm, kw_only=True):
    """One node with its running jobs (or tasks) and its inventory."""

    jobs: list[str]
    numa_nodes: int
    direct_storage: bool
    adapters: list[AdapterForm]


class NodeList(Struct):
    """All nodes, in the order in which they joined."""

    nodes: list[NodeForm]


class CordonRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Why a node shall take no new work."""

    reason: Reason = ""


class DrainRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How to drain a node.

    Running jobs may finish; after `deadline_seconds`, or at once with `requeue`, they are stopped
    and requeued.
    """

    reason: Reason = ""
    deadline_seconds: Annotated[float, Meta(ge=0, le=366 * DAY_S)] | None = None
    requeue: bool = False


class NodePatch(Struct, forbid_unknown_fields=True):
    """Labels to set; null removes a label."""

    labels: Annotated[
        dict[Annotated[str, Meta(max_length=63)], Annotated[str, Meta(max_length=63)] | None],
        Meta(min_length=1, max_length=100),
    ]


class NodeRemoved(Struct):
    """A node was removed."""

    id: str
    message: str


NodeName = Annotated[str, Meta(max_length=63, pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class JoinTokenRequest(Struct, forbid_unknown_fields=True):
    """A token for new nodes: for `uses` nodes, or only for those in `nodes`."""

    uses: Annotated[int, Meta(ge=1, le=100_000)] = 1
    nodes: Annotated[list[NodeName], Meta(max_length=10_000)] = []
    name: Annotated[str, Meta(max_length=256)] = ""
    expires_in_seconds: Annotated[float, Meta(gt=0, le=36_500 * 86_400)] = 3600


class JoinTokenForm(Struct):
    """A token for new nodes. `state` is active, expired, revoked or used up."""

    id: str
    name: str
    nodes: list[str]
    uses: int
    used: int
    state: str
    created_by: str
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NewJoinToken(JoinTokenForm, kw_only=True):
    """A new token with its secret, which is shown only once."""

    token: str


class JoinTokenList(Struct):
    """All tokens for new nodes, the newest first."""

    tokens: list[JoinTokenForm]


class NodeKeyForm(Struct):
    """The key of a node. `state` is active, expired or revoked."""

    node: str
    fingerprint: str
    state: str
    token_id: str
    issued_at: str | None
    expires_at: str | None
    revoked_at: str | None


class NodeKeyList(Struct):
    """The keys of all nodes that have joined, by name; the authority's pin and certificate."""

    keys: list[NodeKeyForm]
    pin: str
    authority: str


_CHANGE = (403, 404, 413, 415, 503)
router = Router("nodes")


@router.operation("GET", "/nodes", response=NodeList)
async def list_nodes(context: Context, request: Request) -> Response:
    """All nodes with their free resources."""
    context.parse_query(request)
    return json_response(
        NodeList([NodeForm(**_fields(context, resources)) for resources in node_resources(context)])
    )


@router.operation("GET", "/nodes/{node}", response=NodeDetail, errors=(404,))
async def get_node(context: Context, request: Request) -> Response:
    """One node with its jobs and inventory."""
    context.parse_query(request)
    return _detail(context, request)


@router.operation(
    "POST",
    "/nodes/{node}/cordon",
    body=CordonRequest,
    response=NodeDetail,
    errors=_CHANGE,
    example={"reason": "a fan is loud"},
)
async def cordon_node(context: Context, request: Request) -> Response:
    """Cordon a node: no new jobs; running ones continue (for admins)."""
    expect_admin(request.caller, "cordon a node")
    body = await _read(context, request, CordonRequest)
    reason = _plain(body.reason)
    await context.service.apply(
        Cordon(request.params["node"], request.caller.user, reason), request.caller
    )
    return _detail(context, request)


@router.operation(
    "POST",
    "/nodes/{node}/drain",
    body=DrainRequest,
    response=NodeDetail,
    errors=_CHANGE,
    example={"reason": "new driver", "deadline_seconds": 3600},
)
async def drain_node(context: Context, request: Request) -> Response:
    """Drain a node: let its jobs end, or requeue them at a deadline (for admins)."""
    expect_admin(request.caller, "drain a node")
    body = await _read(context, request, DrainRequest)
    seconds = body.deadline_seconds
    if body.requeue:
        if seconds:
            raise InvalidRequest(
                f"requeue stops jobs at once, and deadline_seconds is {seconds:g}; leave out one"
            )
        seconds = 0
    within_ms = None if seconds is None else round(seconds * 1000)
    message = Drain(request.params["node"], request.caller.user, _plain(body.reason), within_ms)
    await context.service.apply(message, request.caller)
    return _detail(context, request)


@router.operation("POST", "/nodes/{node}/uncordon", response=NodeDetail, errors=(403, 404, 503))
async def uncordon_node(context: Context, request: Request) -> Response:
    """Uncordon a node that was cordoned or drained (for admins)."""
    expect_admin(request.caller, "uncordon a node")
    context.parse_query(request)
    await context.service.apply(Uncordon(request.params["node"]), request.caller)
    return _detail(context, request)


@router.operation(
    "POST", "/nodes/{node}/confirm-dead", response=NodeDetail, errors=(403, 404, 409, 503)
)
async def confirm_dead(context: Context, request: Request) -> Response:
    """Confirm that a silent node is dead: its jobs may run elsewhere (for admins)."""
    expect_admin(request.caller, "declare a node dead")
    context.parse_query(request)
    message = ConfirmDead(request.params["node"], request.caller.user)
    await context.service.apply(message, request.caller)
    return _detail(context, request)


@router.operation(
    "PATCH",
    "/nodes/{node}",
    body=NodePatch,
    response=NodeDetail,
    errors=_CHANGE,
    example={"labels": {"zone": "b", "old": None}},
)
async def patch_node(context: Context, request: Request) -> Response:
    """Set labels of a node, or remove them with null (for admins)."""
    expect_admin(request.caller, "change the labels of a node")
    body = await request.read_json(NodePatch, context.settings.bounds.body_bytes)
    labels = tuple(sorted(body.labels.items()))
    await context.service.apply(LabelNode(request.params["node"], labels), request.caller)
    return _detail(context, request)


@router.operation("DELETE", "/nodes/{node}", response=NodeRemoved, errors=(403, 404, 409, 503))
async def remove_node(context: Context, request: Request) -> Response:
    """Remove a node that is empty and whose agent has left (for admins)."""
    expect_admin(request.caller, "remove a node")
    context.parse_query(request)
    node_id = request.params["node"]
    await context.service.apply(RemoveNode(node_id), request.caller)
    return json_response(NodeRemoved(id=node_id, message=f"node {node_id} is removed"))


async def _read(context: Context, request: Request, kind: type[Body]) -> Body:
    """Read an optional JSON body; no body means no options."""
    data = await request.body(context.settings.bounds.body_bytes)
    if data.strip():
        request.expect_media(JSON)
    return decode(kind, data.strip() or b"{}")


def _plain(reason: str) -> str:
    if not reason.isprintable():
        raise InvalidRequest("the reason holds a control character; remove it")
    return reason


def _detail(context: Context, request: Request) -> Response:
    node_id = request.params["node"]
    resources = context.state.cluster.index.by_id.get(node_id)
    if resources is None:
        known = ", ".join(resources.node.id for resources in node_resources(context)[:20]) or "none"
        raise UnknownThing(f"node '{node_id[:63]}' is not known; known: {known}")
    held = context.state.cluster.by_node.get(resources.ordinal, {})
    return json_response(
        NodeDetail(
            **_fields(context, resources),
            jobs=sorted(allocation_id.rpartition(".")[0] for allocation_id in held),
            numa_nodes=resources.node.numa_nodes,
            direct_storage=resources.node.direct_storage,
            adapters=[form_of(AdapterForm, adapter) for adapter in resources.node.adapters],
        )
    )


def _fields(context: Context, resources: NodeResources) -> dict[str, Any]:
    """Return the fields that NodeForm and NodeDetail share."""
    node = resources.node
    readings = context.service.telemetry.get(node.id)
    running = len(context.state.cluster.by_node.get(node.ordinal, ()))
    islands: dict[int, list[int]] = {}
    for device in node.devices:
        islands.setdefault(device.island, []).append(device.index)
    return {
        "id": node.id,
        "state": shown_state(node, running),
        "gpus": node.gpu_count,
        "free_gpus": free_gpus(resources),
        "cpu_cores": in_units(node.cpu_milli, 1000) or 0,
        "free_cpu_cores": in_units(resources.free_cpu, 1000) or 0,
        "memory_mb": node.memory_mb,
        "free_memory_mb": resources.free_memory,
        "gpu_models": sorted({device.model for device in node.devices}),
        "labels": dict(node.labels),
        "rack": node.rack,
        "running": running,
        "problem": "" if readings is None else readings.problem,
        "closed": _closed(node),
        "address": node.address,
        "version": node.version,
        "silent_since": write_time(node.silent_ms or None),
        "islands": [indices for _, indices in sorted(islands.items())],
    }


def shown_state(node: Node, running: int) -> str:
    """Return the displayed state: whether it is online first, then cordoned or drained."""
    if node.state is not NodeState.ONLINE or node.closed is None:
        return node.state.value
    if not node.closed.drains:
        return "cordoned"
    return "draining" if running else "drained"


def _closed(node: Node) -> ClosedForm | None:
    closed = node.closed
    if closed is None:
        return None
    return form_of(
        ClosedForm,
        closed,
        since=write_time(closed.since_ms),
        requeue_at=write_time(closed.requeue_ms),
    )


# Join tokens and node keys

LONGEST_NAME = 64


@router.operation(
    "POST",
    "/nodes/tokens",
    tag="access",
    body=JoinTokenRequest,
    response=NewJoinToken,
    status=201,
    errors=(403, 409, 413, 415, 503),
    example={"uses": 20, "expires_in_seconds": 3600},
)
async def create_join_token(context: Context, request: Request) -> Response:
    """Create a join token for new nodes; its secret is shown only once (for admins)."""
    expect_admin(request.caller, "let nodes join")
    body = await request.read_json(JoinTokenRequest, context.settings.bounds.body_bytes)
    check_new_token(context, request.caller, body.name, body.expires_in_seconds)
    for node in body.nodes:
        check_name(node, "the name of a node")
    now_ms = context.service.now_ms()
    secret = encode_base64(secrets.token_bytes(SECRET_BYTES))
    token = JoinToken(
        id=f"join-{secrets.token_hex(4)}",
        secret_hash=secret_hash(secret),
        name=body.name,
        nodes=tuple(dict.fromkeys(body.nodes)),
        uses=max(body.uses, len(set(body.nodes))),
        created_by=request.caller.user,
        created_ms=now_ms,
        expires_ms=now_ms + round(body.expires_in_seconds * 1000),
    )
    text = JoinText(secret, _pin(context), plain=context.settings.plain_nodes)
    await context.service.apply(MakeJoinToken(token), request.caller)
    shown = msgspec.structs.asdict(_token_form(token, now_ms))
    return json_response(NewJoinToken(**shown, token=str(text)), status=201)


@router.operation("GET", "/nodes/tokens", tag="access", response=JoinTokenList, errors=(403,))
async def list_join_tokens(context: Context, request: Request) -> Response:
    """All join tokens, without their secrets (for admins)."""
    expect_admin(request.caller, "see the tokens of nodes")
    context.parse_query(request)
    tokens = sorted(
        context.state.node_keys.tokens.values(),
        key=lambda token: (-token.created_ms, token.id),
    )
    now_ms = context.service.now_ms()
    return json_response(JoinTokenList([_token_form(token, now_ms) for token in tokens]))


@router.operation(
    "DELETE",
    "/nodes/tokens/{token_id}",
    tag="access",
    response=Removed,
    errors=(403, 404, 409, 503),
)
async def revoke_join_token(context: Context, request: Request) -> Response:
    """Revoke a join token (for admins)."""
    expect_admin(request.caller, "revoke a token of nodes")
    context.parse_query(request)
    token_id = _name(request.params["token_id"], "join token")
    await context.service.apply(RevokeJoinToken(token_id), request.caller)
    return json_response(Removed(id=token_id, message="Join token revoked", status="revoked"))


@router.operation("GET", "/nodes/keys", tag="access", response=NodeKeyList, errors=(403, 409))
async def list_node_keys(context: Context, request: Request) -> Response:
    """The keys of nodes that have joined, and the authority's certificate (for admins)."""
    expect_admin(request.caller, "see the keys of nodes")
    context.parse_query(request)
    keys = context.state.node_keys
    now_ms = context.service.now_ms()
    forms = [_key_form(key, now_ms) for _, key in sorted(keys.nodes.items())]
    authority = "" if keys.authority is None else keys.authority.certificate
    return json_response(NodeKeyList(forms, _pin(context), authority))


@router.operation(
    "DELETE", "/nodes/keys/{node}", tag="access", response=Removed, errors=(403, 404, 409, 503)
)
async def revoke_node(context: Context, request: Request) -> Response:
    """Revoke the key of a node and end its session at once (for admins)."""
    expect_admin(request.caller, "revoke the key of a node")
    context.parse_query(request)
    node_id = _name(request.params["node"], "node")
    await context.service.apply(RevokeNode(node_id), request.caller)
    return json_response(Removed(id=node_id, message="Key of the node revoked", status="revoked"))


def _name(text: str, kind: str) -> str:
    if len(text) > LONGEST_NAME or not text.isprintable():
        raise UnknownThing(f"that is the name of no {kind}")
    return text


def _pin(context: Context) -> str:
    authority = context.state.node_keys.authority
    if authority is None:
        raise WrongState("there is no authority for nodes yet; try again in a moment")
    certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
    return certificate_pin(certificate.public_bytes(Encoding.DER))


def _token_form(token: JoinToken, now_ms: int) -> JoinTokenForm:
    state = "expired" if token.expires_ms <= now_ms else "active"
    if token.used >= token.uses:
        state = "used up"
    return form_of(
        JoinTokenForm,
        token,
        state="revoked" if token.revoked_ms else state,
        created_at=write_time(token.created_ms),
        expires_at=write_time(token.expires_ms),
        revoked_at=write_time(token.revoked_ms or None),
    )


def _key_form(key: NodeKey, now_ms: int) -> NodeKeyForm:
    state = "expired" if key.expires_ms <= now_ms else "active"
    return form_of(
        NodeKeyForm,
        key,
        state="revoked" if key.revoked_ms else state,
        issued_at=write_time(key.issued_ms),
        expires_at=write_time(key.expires_ms),
        revoked_at=write_time(key.revoked_ms or None),
    )
