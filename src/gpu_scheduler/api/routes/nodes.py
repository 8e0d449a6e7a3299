"""Nodes: list and look at them; cordon, drain, label and remove them (for admins)."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.operations import V1, Operation
from gpu_scheduler.api.http.request import JSON, Asked, Request, Response, decode, json_response
from gpu_scheduler.api.routes.cluster import free_gpus, node_resources
from gpu_scheduler.control.messages import (
    ConfirmDead,
    Cordon,
    Drain,
    LabelNode,
    RemoveNode,
    Uncordon,
)
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing
from gpu_scheduler.model.node import Node, NodeState
from gpu_scheduler.wire.nodes import (
    AdapterForm,
    ClosedForm,
    CordonRequest,
    DrainRequest,
    NodeDetail,
    NodeForm,
    NodeList,
    NodePatch,
    NodeRemoved,
)
from gpu_scheduler.wire.tenants import per
from gpu_scheduler.wire.times import write_time

_CORDON = msgspec.json.Decoder(CordonRequest)
_DRAIN = msgspec.json.Decoder(DrainRequest)
_PATCH = msgspec.json.Decoder(NodePatch)


async def list_nodes(context: Context, request: Request) -> Response:
    """All nodes, with what is free of them."""
    context.parse_query(request)
    return json_response(
        NodeList([NodeForm(**_fields(context, resources)) for resources in node_resources(context)])
    )


async def get_node(context: Context, request: Request) -> Response:
    """One node, with what runs there."""
    context.parse_query(request)
    return _detail(context, request)


async def cordon_node(context: Context, request: Request) -> Response:
    """Give a node no new work."""
    expect_admin(request.caller, "have a node cordoned")
    asked = await _read(context, request, _CORDON)
    reason = _plain(asked.reason)
    await context.service.apply(
        Cordon(request.params["node"], request.caller.user, reason), request.caller
    )
    return _detail(context, request)


async def drain_node(context: Context, request: Request) -> Response:
    """Let a node become empty."""
    expect_admin(request.caller, "have a node drained")
    asked = await _read(context, request, _DRAIN)
    seconds = asked.deadline_seconds
    if asked.requeue:
        if seconds:
            raise InvalidRequest(
                f"requeue stops jobs at once, and deadline_seconds is {seconds:g}; leave out one"
            )
        seconds = 0
    within_ms = None if seconds is None else round(seconds * 1000)
    message = Drain(request.params["node"], request.caller.user, _plain(asked.reason), within_ms)
    await context.service.apply(message, request.caller)
    return _detail(context, request)


async def uncordon_node(context: Context, request: Request) -> Response:
    """Give a node work again."""
    expect_admin(request.caller, "have a node uncordoned")
    context.parse_query(request)
    await context.service.apply(Uncordon(request.params["node"]), request.caller)
    return _detail(context, request)


async def confirm_dead(context: Context, request: Request) -> Response:
    """Say that a node is dead, so that its jobs can run elsewhere."""
    expect_admin(request.caller, "have a node taken for dead")
    context.parse_query(request)
    message = ConfirmDead(request.params["node"], request.caller.user)
    await context.service.apply(message, request.caller)
    return _detail(context, request)


async def patch_node(context: Context, request: Request) -> Response:
    """Set labels of a node, or take them away."""
    expect_admin(request.caller, "change the labels of a node")
    asked = await request.read(_PATCH, context.settings.bounds.body_bytes)
    labels = tuple(sorted(asked.labels.items()))
    await context.service.apply(LabelNode(request.params["node"], labels), request.caller)
    return _detail(context, request)


async def remove_node(context: Context, request: Request) -> Response:
    """Forget a node."""
    expect_admin(request.caller, "have a node removed")
    context.parse_query(request)
    node_id = request.params["node"]
    await context.service.apply(RemoveNode(node_id), request.caller)
    return json_response(NodeRemoved(id=node_id, message=f"node {node_id} is forgotten"))


async def _read(context: Context, request: Request, decoder: msgspec.json.Decoder[Asked]) -> Asked:
    """The body as a form; none is an empty one."""
    data = await request.body(context.settings.bounds.body_bytes)
    if data.strip():
        request.expect_media(JSON)
    return decode(decoder, data.strip() or b"{}")


def _plain(reason: str) -> str:
    if not reason.isprintable():
        raise InvalidRequest("the reason holds a control character; remove it")
    return reason


def _detail(context: Context, request: Request) -> Response:
    node_id = request.params["node"]
    resources = context.service.core.state.cluster.index.by_id.get(node_id)
    if resources is None:
        known = ", ".join(resources.node.id for resources in node_resources(context)[:20]) or "none"
        raise UnknownThing(f"node '{node_id[:63]}' is not known; known: {known}")
    held = context.service.core.state.cluster.by_node.get(resources.ordinal, {})
    islands: dict[int, list[int]] = {}
    for device in resources.node.devices:
        islands.setdefault(device.island, []).append(device.index)
    return json_response(
        NodeDetail(
            **_fields(context, resources),
            jobs=sorted(allocation_id.rpartition(".")[0] for allocation_id in held),
            islands=[indices for _, indices in sorted(islands.items())],
            numa_nodes=resources.node.numa_nodes,
            direct_storage=resources.node.direct_storage,
            adapters=[
                AdapterForm(
                    name=adapter.name,
                    port=adapter.port,
                    link=adapter.link,
                    rate_gbps=adapter.rate_gbps,
                    numa_node=adapter.numa_node,
                    active=adapter.active,
                )
                for adapter in resources.node.adapters
            ],
        )
    )


def _fields(context: Context, resources: NodeResources) -> dict[str, Any]:
    """What every form of a node has."""
    node = resources.node
    found = context.service.telemetry.get(node.id)
    running = len(context.service.core.state.cluster.by_node.get(node.ordinal, ()))
    return {
        "id": node.id,
        "state": shown_state(node, running),
        "gpus": node.gpu_count,
        "free_gpus": free_gpus(resources),
        "cpu_cores": per(node.cpu_milli, 1000) or 0,
        "free_cpu_cores": per(resources.free_cpu, 1000) or 0,
        "memory_mb": node.memory_mb,
        "free_memory_mb": resources.free_memory,
        "gpu_models": sorted({device.model for device in node.devices}),
        "labels": dict(node.labels),
        "rack": node.rack,
        "running": running,
        "problem": "" if found is None else found.problem,
        "closed": _closed(node),
        "address": node.address,
        "version": node.version,
        "silent_since": write_time(node.silent_ms or None),
    }


def shown_state(node: Node, running: int) -> str:
    """One word for people: whether it is there comes first, then what was decided about it."""
    if node.state is not NodeState.ONLINE or node.closed is None:
        return node.state.value
    if not node.closed.drains:
        return "cordoned"
    return "draining" if running else "drained"


def _closed(node: Node) -> ClosedForm | None:
    closed = node.closed
    if closed is None:
        return None
    return ClosedForm(
        by=closed.by,
        reason=closed.reason,
        since=write_time(closed.since_ms),
        drains=closed.drains,
        requeue_at=write_time(closed.requeue_ms),
        is_fault=closed.is_fault,
    )


_ONE = f"{V1}/nodes/{{node}}"
_CHANGE = (403, 404, 413, 415, 503)
OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/nodes",
        handler=list_nodes,
        name="list_nodes",
        summary="All nodes, with what is free of them.",
        tag="nodes",
        response=NodeList,
    ),
    Operation(
        method="GET",
        path=_ONE,
        handler=get_node,
        name="get_node",
        summary="One node, with what runs there and its inventory.",
        tag="nodes",
        response=NodeDetail,
        errors=(404,),
    ),
    Operation(
        method="PATCH",
        path=_ONE,
        handler=patch_node,
        name="patch_node",
        summary="Set labels of a node, or take them away with null (for admins).",
        tag="nodes",
        body=NodePatch,
        response=NodeDetail,
        errors=_CHANGE,
        example={"labels": {"zone": "b", "old": None}},
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/cordon",
        handler=cordon_node,
        name="cordon_node",
        summary="Give a node no new work; what runs there goes on (for admins).",
        tag="nodes",
        body=CordonRequest,
        response=NodeDetail,
        errors=_CHANGE,
        example={"reason": "a fan is loud"},
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/drain",
        handler=drain_node,
        name="drain_node",
        summary="Let a node become empty, by its jobs' ends or by a deadline (for admins).",
        tag="nodes",
        body=DrainRequest,
        response=NodeDetail,
        errors=_CHANGE,
        example={"reason": "new driver", "deadline_seconds": 3600},
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/uncordon",
        handler=uncordon_node,
        name="uncordon_node",
        summary="Give a node work again that was cordoned or drained (for admins).",
        tag="nodes",
        response=NodeDetail,
        errors=(403, 404, 503),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/confirm-dead",
        handler=confirm_dead,
        name="confirm_dead",
        summary="Say that a silent node is dead: its jobs may run elsewhere (for admins).",
        tag="nodes",
        response=NodeDetail,
        errors=(403, 404, 409, 503),
    ),
    Operation(
        method="DELETE",
        path=_ONE,
        handler=remove_node,
        name="remove_node",
        summary="Forget a node that is empty and whose agent has gone (for admins).",
        tag="nodes",
        response=NodeRemoved,
        errors=(403, 404, 409, 503),
    ),
)
