"""Nodes as JSON says it: what they have, what is free of them, and what people decide."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

DAY_S = 86_400
Reason = Annotated[str, Meta(max_length=256)]


class ClosedForm(Struct):
    """A node takes no new work; if it drains, what still runs at `requeue_at` waits again.

    `is_fault`: nobody decided that, but a prolog or epilog failed there.
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
    """A node: what it has, and what is free of it.

    `state` is online, cordoned, draining (something still runs), drained, or, if nothing is heard
    of it: suspect, lost, or dead. `silent_since` says since when.
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


class NodeDetail(NodeForm, kw_only=True):
    """One node, with the jobs (or tasks) that run there and its inventory."""

    jobs: list[str]
    islands: list[list[int]]
    numa_nodes: int
    direct_storage: bool
    adapters: list[AdapterForm]


class NodeList(Struct):
    """All nodes, in the order in which they joined."""

    nodes: list[NodeForm]


class CordonRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Why a node is to take no new work."""

    reason: Reason = ""


class DrainRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a node is to become empty.

    What runs may end by itself; but after `deadline_seconds`, or at once with `requeue`, it is
    stopped and waits again for a place elsewhere.
    """

    reason: Reason = ""
    deadline_seconds: Annotated[float, Meta(ge=0, le=366 * DAY_S)] | None = None
    requeue: bool = False


class NodePatch(Struct, forbid_unknown_fields=True):
    """Labels to set; null takes one away."""

    labels: Annotated[
        dict[Annotated[str, Meta(max_length=63)], Annotated[str, Meta(max_length=63)] | None],
        Meta(min_length=1, max_length=100),
    ]


class NodeRemoved(Struct):
    """A node is forgotten."""

    id: str
    message: str
