"""The GPUs and nodes of a fleet in the form of GET /gpus and GET /nodes.

Inventory, health and readings are those of the GpuNodeStatuses; who holds a GPU stands in the pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.kubernetes.crds.node_status import Gpu
from gpu_scheduler.kubernetes.fleet.jobs import FleetJob, held_gpus
from gpu_scheduler.kubernetes.objects import Node
from gpu_scheduler.kubernetes.quantities import CPU, MEMORY
from gpu_scheduler.kubernetes.scheduler.devices import MIB, Inventory, inventories
from gpu_scheduler.kubernetes.scheduler.filters import Filters
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.node import Device, NodeState, device_problem, device_state, node_problem
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.wire.times import write_time

CORDONED = {
    "by": "",
    "reason": "",
    "since": None,
    "drains": False,
    "requeue_at": None,
    "is_fault": False,
}
"""What the API tells of a node on which kubectl forbids new pods."""


@dataclass(slots=True)
class _Use:
    """Who holds one GPU, and how much of it."""

    share_milli: int = 0
    memory_mb: int = 0
    jobs: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)


def gpu_documents(objects: Objects, jobs: Iterable[FleetJob], now_ms: int) -> list[dict[str, Any]]:
    """All GPUs, node by node."""
    uses = _uses(jobs)
    return [
        _gpu_document(inventory, device, uses.get((name, device.index), _Use()))
        for name, inventory in sorted(inventories(objects, now_ms).items())
        for device in inventory.node.devices
    ]


def _gpu_document(inventory: Inventory, device: Device, use: _Use) -> dict[str, Any]:
    gpu = inventory.gpus.get(device.index)
    return {
        "node": inventory.node.id,
        "index": device.index,
        "uuid": device.uuid,
        "model": device.model,
        "memory_mb": device.memory_mb,
        "state": device_state(device, jobs=len(use.jobs), share_milli=use.share_milli),
        "allocated_share": use.share_milli / WHOLE_MILLI,
        "allocated_memory_mb": use.memory_mb,
        "jobs": use.jobs,
        "users": use.users,
        "paused": device.paused,
        "utilisation_percent": None if gpu is None else gpu.utilization_percent,
        "utilisation_mean_percent": None,
        "utilisation_peak_percent": None,
        "memory_used_mb": None if gpu is None else gpu.memory_used_mib,
        "temperature_c": None if gpu is None else gpu.temperature_celsius,
        "power_watts": None if gpu is None else gpu.power_watts,
        "processes": list(_processes(gpu)),
        "why": device_problem(device) or node_problem(inventory.node),
        "mig": [f"{count} x {profile}" for profile, count in device.mig_slices],
    }


def _processes(gpu: Gpu | None) -> Iterator[dict[str, Any]]:
    for one in () if gpu is None else gpu.foreign_processes:
        yield {
            "pid": one.pid,
            "user": one.user,
            "memory_mb": one.memory_mib,
            "job_id": "",
            "command": one.command,
            "leaked": False,
        }


def node_documents(objects: Objects, jobs: Iterable[FleetJob], now_ms: int) -> list[dict[str, Any]]:
    """All nodes by name, each with what GET /nodes/NODE tells."""
    jobs = list(jobs)
    uses = _uses(jobs)
    loads = Filters(objects).loads
    jobs_of: dict[str, list[str]] = {}
    for job in jobs:
        for place in dict.fromkeys(one.pod.spec.node_name for one in job.placed):
            jobs_of.setdefault(place, []).append(job.id)
    documents = []
    for name, inventory in sorted(inventories(objects, now_ms).items()):
        node, load, held = inventory.node, loads[name], jobs_of.get(name, [])
        takes_work = node.state is NodeState.ONLINE and not load.node.spec.unschedulable
        free = [
            device
            for device in node.devices
            if (name, device.index) not in uses and not device_problem(device)
        ]
        islands: dict[int, list[int]] = {}
        for device in node.devices:
            islands.setdefault(device.island, []).append(device.index)
        status = objects.node_statuses.get(("", name))
        documents.append(
            {
                "id": name,
                "state": _state(node.state, load.node),
                "gpus": len(node.devices),
                "free_gpus": len(free) if takes_work else 0,
                "cpu_cores": node.cpu_milli / 1000,
                "free_cpu_cores": max(0, node.cpu_milli - load.used.get(CPU, 0)) / 1000,
                "memory_mb": node.memory_mb,
                "free_memory_mb": max(0, node.memory_mb - -(-load.used.get(MEMORY, 0) // MIB)),
                "gpu_models": sorted({device.model for device in node.devices}),
                "labels": dict(load.node.metadata.labels),
                "rack": node.rack,
                "running": len(held),
                "problem": _problem(status),
                "closed": CORDONED if load.node.spec.unschedulable else None,
                "address": "",
                "version": "" if status is None else status.status.agent_version,
                "silent_since": _not_ready_since(load.node),
                "islands": [indices for _, indices in sorted(islands.items())],
                "jobs": sorted(held),
                "numa_nodes": len({gpu.numa_node for gpu in inventory.gpus.values()} - {None}),
                "direct_storage": False,
                "adapters": [
                    {
                        "name": one.name,
                        "port": one.port,
                        "link": one.link,
                        "rate_gbps": one.rate_gbps,
                        "numa_node": -1 if one.numa_node is None else one.numa_node,
                        "active": one.active,
                    }
                    for one in (() if status is None else status.status.adapters)
                ],
            }
        )
    return documents


def find_node(documents: Iterable[dict[str, Any]], name: str) -> dict[str, Any]:
    """One node."""
    found = {one["id"]: one for one in documents}
    if name not in found:
        known = ", ".join(list(found)[:20]) or "none"
        raise UnknownThing(f"node '{name[:63]}' is not known; known: {known}")
    return found[name]


def _uses(jobs: Iterable[FleetJob]) -> dict[tuple[str, int], _Use]:
    uses: dict[tuple[str, int], _Use] = {}
    for job in jobs:
        for member in job.placed:
            for gpu in held_gpus(member):
                use = uses.setdefault((member.pod.spec.node_name, gpu["index"]), _Use())
                use.share_milli += round(gpu["share"] * WHOLE_MILLI)
                use.memory_mb += gpu["memory_mb"]
                use.jobs.append(job.id)
                if job.namespace not in use.users:
                    use.users.append(job.namespace)
    return uses


def _state(state: NodeState, node: Node) -> str:
    if state is NodeState.ONLINE and node.spec.unschedulable:
        return "cordoned"
    return state.value


def _problem(status: Any) -> str:
    """What the agent says is wrong with the node as a whole."""
    if status is None:
        return "no agent reports its GPUs"
    return next(
        (one.message for one in status.status.conditions if one.status == "False" and one.message),
        "",
    )


def _not_ready_since(node: Node) -> str | None:
    for one in node.status.conditions:
        if one.type == "Ready" and one.status != "True" and one.last_transition_time is not None:
            return write_time(int(one.last_transition_time.timestamp() * 1000))
    return None
