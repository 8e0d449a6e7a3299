"""The ResourceSlice of a node: its GPUs and MIG slices, as DRA offers them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_scheduler.kubernetes.crds.node_status import (
    Gpu,
    GpuNodeStatusStatus,
    HealthState,
)
from gpu_scheduler.kubernetes.dynamic_resources import DRIVER, device_name
from gpu_scheduler.kubernetes.objects import OwnerReference

MOST_DEVICES = 128
"""What Kubernetes accepts in one slice; no node has more."""
LONGEST_TEXT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceState:
    """What is stored: the devices, and the generation of the pool, which grows with each change."""

    devices: tuple[dict[str, Any], ...] = ()
    generation: int = 0

    @staticmethod
    def of(content: dict[str, Any]) -> SliceState:
        spec = content["spec"]
        return SliceState(devices=tuple(spec["devices"]), generation=spec["pool"]["generation"])


def slice_name(node: str) -> str:
    """The name of the slice of a node."""
    return f"{node}-{DRIVER}"


def resource_slice(
    node: str, status: GpuNodeStatusStatus, owner: OwnerReference, stored: SliceState
) -> dict[str, Any] | None:
    """The slice to write; None if the stored one has the same devices."""
    devices = [one for gpu in status.gpus if gpu.uuid for one in _devices(gpu)][:MOST_DEVICES]
    if stored.generation and list(stored.devices) == devices:
        return None
    return {
        "metadata": {
            "ownerReferences": [
                {
                    "apiVersion": owner.api_version,
                    "kind": owner.kind,
                    "name": owner.name,
                    "uid": owner.uid,
                }
            ]
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {
                "name": node,
                "generation": stored.generation + 1,
                "resourceSliceCount": 1,
            },
            "devices": devices,
        },
    }


def _devices(gpu: Gpu) -> list[dict[str, Any]]:
    """A GPU, or its MIG slices in place of it."""
    shared = {
        "index": {"int": gpu.index},
        "model": {"string": gpu.model[:LONGEST_TEXT]},
        "healthy": {"bool": gpu.health.state is HealthState.HEALTHY},
        **({"island": {"int": gpu.island}} if gpu.island is not None else {}),
        **({"numaNode": {"int": gpu.numa_node}} if gpu.numa_node is not None else {}),
    }
    if not gpu.mig_slices:
        return [
            {
                "name": device_name(gpu.uuid),
                "attributes": {
                    "uuid": {"string": gpu.uuid},
                    "type": {"string": "gpu"},
                    **shared,
                },
                "capacity": {"memory": {"value": f"{gpu.memory_mib}Mi"}},
            }
        ]
    return [
        {
            "name": device_name(piece.uuid),
            "attributes": {
                "uuid": {"string": piece.uuid},
                "type": {"string": "mig"},
                "profile": {"string": piece.profile},
                "parent": {"string": gpu.uuid},
                **shared,
            },
        }
        for piece in gpu.mig_slices
    ]
