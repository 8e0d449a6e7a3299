"""The jobs and nodes of a simulation, as trace readers and the generator produce them.

A workload is a set of partitions that share nothing; most have one. Jobs come in order of
submission and may be a lazy stream, so that a year of work does not have to fit into memory.
Every job fits the empty cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpu_scheduler.engine.placement.gangs import place_gang
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.errors import InvalidRequest, NeverFits
from gpu_scheduler.model.job import Job, split_over_nodes
from gpu_scheduler.model.node import (
    Device,
    DeviceMode,
    Node,
    canonical_model_name,
    short_model_name,
)
from gpu_scheduler.model.request import (
    MIG_SLICES,
    WHOLE_MILLI,
    Request,
    Topology,
    mig_share_milli,
)
from gpu_scheduler.model.tenant import Tenant


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job and its real run time, which only the trace knows."""

    job: Job
    run_ms: int


@dataclass(slots=True, kw_only=True)
class Partition:
    """Nodes with a queue of their own. `total_jobs` is for the progress bar, when known."""

    name: str
    nodes: tuple[Node, ...]
    jobs: Iterable[TraceJob]
    tenants: tuple[Tenant, ...] = ()
    total_jobs: int | None = None


@dataclass(slots=True, kw_only=True)
class Workload:
    """The input of one simulation."""

    name: str
    partitions: list[Partition] = field(default_factory=list)


# The nodes of a simulation. A cluster is one pool of nodes, or several named parts that share
# nothing (virtual clusters). `traces.detect` reads files with nodes.

DEFAULT_MODEL = "GPU"
DEFAULT_GPU_MEMORY_MB = 81_920
DEFAULT_CPU_MILLI_PER_GPU = 16_000
DEFAULT_MEMORY_MB_PER_GPU = 131_072
MOST_DEVICES = 2_000_000
"""A larger group is taken for a typing mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """`count` nodes of one kind.

    `island_size` GPUs each are joined by NVLink at `island_gbps`; 0 means all GPUs of a node.
    With `nodes_per_rack`, the nodes fill racks of their own instead of `rack`. With
    `mig_slices`, each GPU is split into so many slices of each profile.
    """

    id: str
    count: int = 1
    gpus: int = 8
    model: str = DEFAULT_MODEL
    gpu_memory_mb: int = DEFAULT_GPU_MEMORY_MB
    cpu_milli: int | None = None
    memory_mb: int | None = None
    rack: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    island_size: int = 0
    island_gbps: int = 0
    nodes_per_rack: int = 0
    mig_slices: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        """Refuse an empty group, and fill in CPU and memory in proportion to the GPUs."""
        for name in ("gpus", "gpu_memory_mb", "island_size", "island_gbps", "nodes_per_rack"):
            if getattr(self, name) < 0:
                raise InvalidRequest(
                    f"nodes '{self.id}': {name} is {getattr(self, name)}; expected 0 or more"
                )
        if self.count < 1:
            raise InvalidRequest(f"nodes '{self.id}': count is {self.count}; expected 1 or more")
        if self.count * max(1, self.gpus) > MOST_DEVICES:
            raise InvalidRequest(
                f"nodes '{self.id}': {self.count} nodes of {self.gpus} GPUs; "
                f"expected at most {MOST_DEVICES} GPUs or nodes"
            )
        split_milli = sum(mig_share_milli(profile) * count for profile, count in self.mig_slices)
        if split_milli > WHOLE_MILLI:
            raise InvalidRequest(
                f"nodes '{self.id}': mig_slices make more than one GPU; "
                f"expected at most {MIG_SLICES} of the slices that a profile begins with"
            )
        units = max(1, self.gpus)
        if self.cpu_milli is None:
            object.__setattr__(self, "cpu_milli", units * DEFAULT_CPU_MILLI_PER_GPU)
        if self.memory_mb is None:
            object.__setattr__(self, "memory_mb", units * DEFAULT_MEMORY_MB_PER_GPU)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Named parts that share nothing. A plain cluster has one part, named ''."""

    parts: tuple[tuple[str, tuple[Node, ...]], ...]

    @classmethod
    def pool(cls, nodes: Iterable[Node]) -> Cluster:
        """One part that holds all the nodes."""
        return cls((("", tuple(nodes)),))

    @property
    def is_divided(self) -> bool:
        """Tell whether jobs must name the part in which they run."""
        return len(self.parts) > 1 or any(name for name, _ in self.parts)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes as one pool, renumbered when they come from several parts."""
        nodes = [node for _, part in self.parts for node in part]
        if len(self.parts) == 1:
            return tuple(nodes)
        return tuple(replace(node, ordinal=ordinal) for ordinal, node in enumerate(nodes))

    @property
    def gpu_count(self) -> int:
        """GPUs of all parts."""
        return sum(node.gpu_count for _, part in self.parts for node in part)


def cluster_of(
    nodes: int,
    gpus_per_node: int,
    *,
    model: str = DEFAULT_MODEL,
    gpu_memory_mb: int = DEFAULT_GPU_MEMORY_MB,
    cpu_milli: int | None = None,
    memory_mb: int | None = None,
    gpus_per_island: int = 0,
    nodes_per_rack: int = 0,
) -> Cluster:
    """A pool of alike nodes; CPU and memory follow the GPUs unless they are given."""
    group = NodeGroup(
        id="node",
        count=nodes,
        gpus=gpus_per_node,
        model=model,
        gpu_memory_mb=gpu_memory_mb,
        cpu_milli=cpu_milli,
        memory_mb=memory_mb,
        island_size=gpus_per_island,
        nodes_per_rack=nodes_per_rack,
    )
    return Cluster.pool(nodes_of([group], always_number=True))


def nodes_of(groups: Iterable[NodeGroup], *, always_number: bool = False) -> tuple[Node, ...]:
    """The nodes of all groups in order. A single node of a group has the group's id."""
    nodes: list[Node] = []
    for group in groups:
        island_size = group.island_size or max(1, group.gpus)
        devices = tuple(
            Device(
                index=index,
                model=group.model,
                memory_mb=group.gpu_memory_mb,
                island=index // island_size,
                bandwidth_gbps=group.island_gbps,
                mode=DeviceMode.MIG if group.mig_slices else DeviceMode.WHOLE,
                mig_slices=group.mig_slices,
            )
            for index in range(group.gpus)
        )
        is_numbered = group.count > 1 or always_number
        width = max(3, len(str(group.count - 1)))
        for place in range(group.count):
            rack = f"rack-{place // group.nodes_per_rack}" if group.nodes_per_rack else group.rack
            nodes.append(
                Node(
                    id=f"{group.id}-{place:0{width}d}" if is_numbered else group.id,
                    ordinal=len(nodes),
                    cpu_milli=group.cpu_milli or 0,
                    memory_mb=group.memory_mb or 0,
                    devices=devices,
                    labels=group.labels,
                    rack=rack,
                )
            )
    return tuple(nodes)


class EmptyCluster:
    """The nodes without jobs: rejects jobs that can never run, and splits jobs over nodes.

    The engine itself places them, so the answer is the same as when a job is submitted.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Index the nodes."""
        self._nodes = tuple(nodes)
        self._index = NodeIndex()
        for node in self._nodes:
            self._index.add_node(node)
        self._spread: dict[Request, tuple[Request, ...]] = {}
        self._checked: set[tuple[Request, ...]] = set()
        self.gpu_count = sum(node.gpu_count for node in self._nodes)
        self.largest_node_gpus = max((node.gpu_count for node in self._nodes), default=0)

    def spread(self, request: Request) -> tuple[Request, ...]:
        """The request itself, or its parts when it needs whole GPUs of several nodes.

        Raises `NeverFits` when the empty cluster could not hold it.
        """
        if request in self._spread:
            return self._spread[request]
        if request.takes_whole_devices_only and request.gpu_count > self.gpu_count:
            raise NeverFits(f"{_description(request)} can never run: {self._offer()}")
        for node_gpus in (request.gpu_count, *self._node_sizes_below(request)):
            parts = split_over_nodes(request, node_gpus)
            if self._holds(parts):
                self._spread[request] = parts
                return parts
        raise NeverFits(f"{_description(request)} can never run: {self._offer()}")

    def check(self, members: tuple[Request, ...]) -> None:
        """Raise `NeverFits` unless the empty cluster could hold all members at once."""
        if members in self._checked:
            return
        for request, count in Counter(members).items():
            if not self._holds((request,)):
                raise NeverFits(f"{_description(request)} can never run: {self._offer()}")
            if not self._holds((request,) * count):
                raise NeverFits(
                    f"{count} times {_description(request)} can never run at once: {self._offer()}"
                )
        if not self._holds(members):
            gpus = sum(member.gpu_milli for member in members) / WHOLE_MILLI
            raise NeverFits(f"a gang of {gpus:g} GPUs can never run: {self._offer()}")
        self._checked.add(members)

    def models_like(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The models of the cluster with these names, as other systems may write them.

        Empty if none is wanted, or if the nodes do not name their models. Raises `NeverFits` when
        the cluster has none of them.
        """
        models = {device.model for node in self._nodes for device in node.devices}
        found: set[str] = set()
        for name in wanted:
            equal = {model for model in models if model.casefold() == name.casefold()}
            found |= equal or {model for model in models if _chip(model) == _chip(name)}
        if not found and any(wanted) and models != {DEFAULT_MODEL}:
            raise NeverFits(f"no node has GPUs of model {' or '.join(wanted)}: {self._offer()}")
        return tuple(sorted(found))

    def _holds(self, members: tuple[Request, ...]) -> bool:
        shapes = tuple(self._index.shape(member) for member in members)
        gang = JobShape(0, shapes, len(shapes), same_rack=False)
        transaction = Transaction(self._index)
        grants = place_gang(gang, transaction, self._index.find)
        transaction.undo()
        return grants is not None

    def _node_sizes_below(self, request: Request) -> list[int]:
        """The possible numbers of GPUs per node when the request is split, largest first."""
        if not request.takes_whole_devices_only or request.device_ids or request.contiguous:
            return []
        sizes = {
            (node_class.allowed_mask(request, model) & island).bit_count()
            for node_class in self._index.node_classes
            for model in node_class.models
            if not request.gpu_models or model in request.gpu_models
            for island in (
                node_class.islands
                if request.topology is Topology.REQUIRE_ISLAND
                else (node_class.everything,)
            )
        }
        return sorted((size for size in sizes if 0 < size < request.gpu_count), reverse=True)

    def _offer(self) -> str:
        if not self._nodes:
            return "the cluster has no nodes"
        largest = max(
            self._nodes, key=lambda node: (node.gpu_count, node.cpu_milli, node.memory_mb)
        )
        models = sorted({device.model for node in self._nodes for device in node.devices})
        return (
            f"the cluster has {self.gpu_count} GPUs ({', '.join(models) or 'none'}), and its "
            f"largest node {largest.gpu_count} GPUs, {largest.cpu_milli / 1000:g} CPU cores "
            f"and {largest.memory_mb} MiB"
        )


def _chip(model: str) -> str:
    """The chip of a model name: A100 of nvidia_a100-sxm4-80gb."""
    return canonical_model_name(short_model_name(model.replace("_", " "))).casefold()


def _description(request: Request) -> str:
    gpus = request.gpu_count if request.mig_profile else request.gpu_milli / WHOLE_MILLI
    parts = [
        f"{gpus:g} GPUs",
        request.mig_profile and f"MIG profile {request.mig_profile}",
        request.gpu_models and f"model {'|'.join(request.gpu_models)}",
        request.gpu_memory_mb and f"{request.gpu_memory_mb} MiB of GPU memory each",
        request.device_ids and f"devices {', '.join(map(str, request.device_ids))}",
        request.cpu_milli and f"{request.cpu_milli / 1000:g} CPU cores",
        request.memory_mb and f"{request.memory_mb} MiB",
        request.node_labels and f"labels {dict(request.node_labels)}",
        request.topology is Topology.REQUIRE_ISLAND and "one island",
        request.min_bandwidth_gbps and f"{request.min_bandwidth_gbps} Gbit/s",
    ]
    return "a request for " + ", ".join(part for part in parts if part)
