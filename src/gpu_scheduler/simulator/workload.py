"""The jobs and nodes of a simulation, as trace readers and the generator produce them.

A workload is a set of partitions that share nothing; most have one. Jobs come in order of
submission and may be a lazy stream, so that a year of work does not have to fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Device, DeviceMode, Node
from gpu_scheduler.model.request import MIG_SLICES, WHOLE_MILLI, mig_share_milli
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
# nothing (virtual clusters). `traces.cluster_file` reads files with nodes.

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
    With `nodes_per_rack`, the nodes fill racks of their own instead of standing in `rack`. With
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
        nodes.extend(_nodes(group, len(nodes), always_number=always_number))
    return tuple(nodes)


def _nodes(group: NodeGroup, first_ordinal: int, *, always_number: bool) -> Iterator[Node]:
    devices = _devices(group)
    width = max(3, len(str(group.count - 1)))
    for place in range(group.count):
        alone = group.count == 1 and not always_number
        rack = f"rack-{place // group.nodes_per_rack}" if group.nodes_per_rack else group.rack
        yield Node(
            id=group.id if alone else f"{group.id}-{place:0{width}d}",
            ordinal=first_ordinal + place,
            cpu_milli=group.cpu_milli or 0,
            memory_mb=group.memory_mb or 0,
            devices=devices,
            labels=group.labels,
            rack=rack,
        )


def _devices(group: NodeGroup) -> tuple[Device, ...]:
    island_size = group.island_size or max(1, group.gpus)
    return tuple(
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
