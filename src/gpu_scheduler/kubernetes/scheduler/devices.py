"""The GPUs of nodes as the engine sees them, and the leases that say which pod holds which GPU.

A Lease `gpu-<node>-<index>` exists while a pod holds the GPU or a part of it. Creating it is the
lock: the API server lets one creation succeed. Parts of a shared GPU are entries of one lease,
which is replaced only at the version that was read.

Each entry tells the whole assignment that it is a part of (`start`, `members`, `devices`), so that
after a crash the next leader knows whether the assignment was complete.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from gpu_scheduler.kubernetes.crds.node_status import (
    Gpu,
    GpuMode,
    GpuNodeStatus,
    HealthState,
)
from gpu_scheduler.kubernetes.names import (
    DEVICE_LEASE_LABEL,
    GPU_RESOURCE,
    HOLDERS_ANNOTATION,
    INDEX_ANNOTATION,
    NODE_ANNOTATION,
    RACK_LABELS,
    device_lease_name,
)
from gpu_scheduler.kubernetes.objects import Lease, Node, Value, once_per_object
from gpu_scheduler.kubernetes.quantities import CPU, MEMORY
from gpu_scheduler.kubernetes.scheduler.filters import is_ready, node_allocatable
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects
from gpu_scheduler.model.node import (
    Device,
    DeviceMode,
    ForeignUse,
    Health,
    NodeState,
    short_model_name,
)
from gpu_scheduler.model.node import Node as EngineNode
from gpu_scheduler.model.request import WHOLE_MILLI

MIB = 1 << 20
AGENT_TIMEOUT_MS = 300_000
"""A GpuNodeStatus that is older says nothing about the health of the GPUs."""


class Holder(Value, frozen=True, kw_only=True):
    """A pod that holds a GPU or a part of it.

    `uuid` is that of the GPU or MIG slice (of the GPU: its index if no agent reports it).
    `start` names the assignment of `members` pods that were decided together; this pod gets the
    `devices` (indices) of the node, and was at this `attempt` then.
    """

    uid: str
    namespace: str
    pod: str
    share_milli: int = WHOLE_MILLI
    memory_mib: int = 0
    profile: str = ""
    uuid: str = ""
    start: str = ""
    members: int = 1
    devices: tuple[int, ...] = ()
    attempt: str = ""
    since_ms: int = 0
    """When it was given; a lease of shared parts is older than its last holder."""


_HOLDERS = msgspec.json.Decoder(tuple[Holder, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A GPU that a pod holds by a lease."""

    node: str
    index: int
    holder: Holder
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLeases:
    """All device leases, by GPU and by the uid of the pod that holds one."""

    by_device: Mapping[tuple[str, int], tuple[Holder, ...]] = field(default_factory=dict)
    by_pod: Mapping[str, tuple[HeldDevice, ...]] = field(default_factory=dict)
    unreadable: tuple[Lease, ...] = ()
    """Leases of ours that somebody has changed; their GPUs count as taken."""

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> "DeviceLeases":
        """Read the leases."""
        by_device: dict[tuple[str, int], tuple[Holder, ...]] = {}
        by_pod: dict[str, list[HeldDevice]] = {}
        unreadable = []
        for lease in sorted(leases, key=lambda one: one.key):
            place = lease_device(lease)
            holders = lease_holders(lease)
            if place is None or holders is None:
                unreadable.append(lease)
                continue
            by_device[place] = holders
            for holder in holders:
                held = HeldDevice(node=place[0], index=place[1], holder=holder, lease=lease)
                by_pod.setdefault(holder.uid, []).append(held)
        return cls(
            by_device=by_device,
            by_pod={uid: tuple(held) for uid, held in by_pod.items()},
            unreadable=tuple(unreadable),
        )


def lease_device(lease: Lease) -> tuple[str, int] | None:
    """The node and index of the GPU of a lease."""
    annotations = lease.metadata.annotations
    node, index = annotations.get(NODE_ANNOTATION, ""), annotations.get(INDEX_ANNOTATION, "")
    if not index.isdecimal() or lease.metadata.name != device_lease_name(node, int(index)):
        return None
    return node, int(index)


@once_per_object
def lease_holders(lease: Lease) -> tuple[Holder, ...] | None:
    """The pods that hold the GPU of a lease; None if that cannot be read."""
    try:
        return _HOLDERS.decode(lease.metadata.annotations.get(HOLDERS_ANNOTATION, "[]"))
    except msgspec.MsgspecError:
        return None


def lease_manifest(
    namespace: str, node: str, index: int, holders: Iterable[Holder], now: datetime
) -> dict[str, object]:
    """A lease for these holders."""
    told = tuple(holders)
    return {
        "metadata": {
            "name": device_lease_name(node, index),
            "namespace": namespace,
            "labels": {DEVICE_LEASE_LABEL: "true"},
            "annotations": lease_annotations(node, index, told),
        },
        "spec": {
            "holderIdentity": f"{told[0].namespace}/{told[0].pod}",
            "acquireTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def lease_annotations(node: str, index: int, holders: tuple[Holder, ...]) -> dict[str, str]:
    """What the scheduler writes on a lease."""
    return {
        NODE_ANNOTATION: node,
        INDEX_ANNOTATION: str(index),
        HOLDERS_ANNOTATION: msgspec.json.encode(holders).decode(),
    }


# --- nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The GPUs of one node: what the engine plans with, and what the agent told of each."""

    node: EngineNode
    gpus: Mapping[int, Gpu]
    """By index; empty if the node has no GpuNodeStatus."""


def inventories(objects: Objects, now_ms: int) -> dict[str, Inventory]:
    """The nodes as the engine sees them, by name."""
    return {
        node.metadata.name: _inventory(node, ordinal, objects, now_ms)
        for ordinal, (_, node) in enumerate(sorted(objects.nodes.items()))
    }


def _inventory(node: Node, ordinal: int, objects: Objects, now_ms: int) -> Inventory:
    name = node.metadata.name
    allocatable = node_allocatable(node)
    labels = node.metadata.labels
    status = objects.node_statuses.get(("", name))
    gpus = {gpu.index: gpu for gpu in status.status.gpus} if status is not None else {}
    if status is None:
        # Nothing is known about connections, so every GPU is an island of its own.
        devices = tuple(
            Device(index=index, island=index) for index in range(allocatable.get(GPU_RESOURCE, 0))
        )
    else:
        devices = reported_devices(status, now_ms)
    return Inventory(
        node=EngineNode(
            id=name,
            ordinal=ordinal,
            cpu_milli=max(0, allocatable.get(CPU, 0)),
            memory_mb=max(0, allocatable.get(MEMORY, 0)) // MIB,
            devices=devices,
            rack=next((labels[label] for label in RACK_LABELS if label in labels), ""),
            state=NodeState.ONLINE if is_ready(node) else NodeState.LOST,
        ),
        gpus=gpus,
    )


def reported_devices(status: GpuNodeStatus, now_ms: int) -> tuple[Device, ...]:
    """The GPUs of a GpuNodeStatus as the engine sees them, by index."""
    gpus = {gpu.index: gpu for gpu in status.status.gpus}
    return tuple(_device(gpu, status, now_ms) for _, gpu in sorted(gpus.items()))


def _device(gpu: Gpu, status: GpuNodeStatus, now_ms: int) -> Device:
    """A GPU of a GpuNodeStatus. One that must not get work is unhealthy, paused, hot or foreign."""
    profiles: dict[str, int] = {}
    for one in gpu.mig_slices:
        profiles[one.profile] = profiles.get(one.profile, 0) + 1
    healthy, why = _health(gpu, status, now_ms)
    foreign = gpu.foreign_processes[0] if gpu.foreign_processes else None
    island = -1 - gpu.index if gpu.island is None else gpu.island
    return Device(
        index=gpu.index,
        uuid=gpu.uuid,
        model=short_model_name(gpu.model),
        memory_mb=gpu.memory_mib,
        mode=DeviceMode.MIG if gpu.mode is GpuMode.MIG and profiles else DeviceMode.WHOLE,
        mig_slices=tuple(sorted(profiles.items())) if gpu.mode is GpuMode.MIG else (),
        island=island,
        bandwidth_gbps=_island_bandwidth(gpu, status),
        temperature_c=gpu.temperature_celsius or 0,
        hot=gpu.is_hot,
        health=Health.HEALTHY if healthy else Health.UNHEALTHY,
        paused=gpu.index in status.spec.paused_gpus or (gpu.mode is GpuMode.MIG and not profiles),
        foreign=None
        if foreign is None
        else ForeignUse(
            pid=foreign.pid,
            user=foreign.user,
            memory_mb=foreign.memory_mib,
            command=foreign.command,
        ),
        why=why,
    )


def _health(gpu: Gpu, status: GpuNodeStatus, now_ms: int) -> tuple[bool, str]:
    heartbeat = status.status.heartbeat_time
    if heartbeat is not None and now_ms - heartbeat.timestamp() * 1000 > AGENT_TIMEOUT_MS:
        return False, "the agent of its node does not report"
    if gpu.health.state is HealthState.HEALTHY:
        return True, ""
    return False, gpu.health.reason or f"its health is {gpu.health.state.value}"


def _island_bandwidth(gpu: Gpu, status: GpuNodeStatus) -> int:
    """The slowest connection of a GPU to another one of its island; 0 if one has none."""
    if gpu.island is None:
        return 0
    others = {
        one.index
        for one in status.status.gpus
        if one.island == gpu.island and one.index != gpu.index
    }
    speeds: dict[int, int] = {}
    for link in status.status.links:
        if gpu.index in (link.a, link.b):
            other = link.b if link.a == gpu.index else link.a
            speeds[other] = max(speeds.get(other, 0), link.bandwidth_gbps)
    return min((speeds.get(other, 0) for other in others), default=0)
