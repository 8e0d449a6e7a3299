"""What a member of a gang is told of the others: variables and files, for what people train with.

The same names are set when a member is prepared and when it is committed; only then are all values
final. RANK and its like are for one process per member; PET_* are torchrun's own names for its
options, with a member as what torchrun calls a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gpu_scheduler.wire import agent_pb2 as pb

HOSTFILE = "hostfile"
MACHINEFILE = "machinefile"
RENDEZVOUS_NAMES = (
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    *("NODE_RANK", "NNODES", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"),
    *("PET_MASTER_ADDR", "PET_MASTER_PORT", "TGPU_NODELIST", "TGPU_HOSTFILE", "TGPU_MACHINEFILE"),
)
LOOPBACK = "127.0.0.1"


class Adapter(Protocol):
    """A network adapter that NCCL can use, such as mlx5_0."""

    @property
    def name(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def numa_node(self) -> int: ...
    @property
    def active(self) -> bool: ...


def rendezvous_environment(
    rendezvous: pb.Rendezvous, port: int, scratch_dir: str
) -> dict[str, str]:
    """Who the member is, how many there are, and where they meet."""
    places = list(rendezvous.nodes) or list(rendezvous.hosts)
    rank, size = rendezvous.rank, rendezvous.world_size
    here = places[rank] if rank < len(places) else ""
    nodes = list(dict.fromkeys(places))
    address = LOOPBACK if len(nodes) <= 1 else rendezvous.master_address
    master_port = str(rendezvous.master_port or port)
    gpus = rendezvous.gpus[rank] if rank < len(rendezvous.gpus) else 0
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": master_port,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(places[:rank].count(here)),
        "LOCAL_WORLD_SIZE": str(places.count(here) or 1),
        "NODE_RANK": str(nodes.index(here) if here in nodes else 0),
        "NNODES": str(len(nodes) or 1),
        "PET_NNODES": str(size),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(gpus or 1),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": master_port,
        "TGPU_NODELIST": ",".join(dict.fromkeys(rendezvous.hosts)),
        "TGPU_HOSTFILE": f"{scratch_dir}/{HOSTFILE}",
        "TGPU_MACHINEFILE": f"{scratch_dir}/{MACHINEFILE}",
    }


def rendezvous_files(rendezvous: pb.Rendezvous) -> dict[str, str]:
    """The hosts with their slots: as Open MPI and DeepSpeed read them, and as MPICH does.

    A slot is a GPU; a member without one has one slot.
    """
    slots: dict[str, int] = {}
    for rank, host in enumerate(rendezvous.hosts):
        gpus = rendezvous.gpus[rank] if rank < len(rendezvous.gpus) else 0
        slots[host] = slots.get(host, 0) + (gpus or 1)
    return {
        HOSTFILE: "".join(f"{host} slots={count}\n" for host, count in slots.items()),
        MACHINEFILE: "".join(f"{host}:{count}\n" for host, count in slots.items()),
    }


def nccl_hints(
    adapters: Sequence[Adapter], near: Iterable[int], interface: str = ""
) -> dict[str, str]:
    """Which adapters and which interface NCCL should use.

    Those on the NUMA nodes of the member's devices, or all that are active if none of these is.
    """
    hints: dict[str, str] = {}
    numa = {node for node in near if node >= 0}
    active = [adapter for adapter in adapters if adapter.active]
    chosen = [adapter for adapter in active if adapter.numa_node in numa] or active
    if chosen:
        names = sorted({f"{adapter.name}:{adapter.port or 1}" for adapter in chosen})
        # The sign says that names are meant exactly: mlx5_1 is not mlx5_10.
        hints["NCCL_IB_HCA"] = "=" + ",".join(names)
    if interface:
        hints["NCCL_SOCKET_IFNAME"] = f"={interface}"
        hints["GLOO_SOCKET_IFNAME"] = interface
    return hints
