"""The JSON schemas of nodes: state, resources, cordon and drain."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

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
    suspect, lost or dead. `silent_since` is the time of the last heartbeat.
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
    """One node with its running jobs (or tasks) and its inventory."""

    jobs: list[str]
    islands: list[list[int]]
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
