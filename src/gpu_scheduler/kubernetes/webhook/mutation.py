"""The change to a new pod: its manifest goes in, a JSON patch goes out. Pure.

A container sees its GPUs by NVIDIA_VISIBLE_DEVICES (for the runtime) and CUDA_VISIBLE_DEVICES (for
programs). Both point at the annotation that the scheduler writes when it assigns the pod, so they
have a value when the container starts, and a value of the user cannot claim other GPUs. A container
with devices of a ResourceClaim is left alone: the agent sets its variables. If only some containers
of a pod ask for GPUs, the others get none.

With Dynamic Resource Allocation, a pod that asks for GPUs by its GpuClaim alone gets a
ResourceClaim for all its containers instead of the variables. The scheduler makes this claim when
it assigns the pod, and the agent then gives exactly its devices to the containers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_scheduler.kubernetes.dynamic_resources import POD_CLAIM
from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    CLAIM_ANNOTATION,
    GPU_RESOURCE,
    MIG_RESOURCE,
    SCHEDULER_NAME,
)

VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
ALLOCATED: dict[str, Any] = {
    "valueFrom": {
        "fieldRef": {
            "apiVersion": "v1",
            "fieldPath": f"metadata.annotations['{ALLOCATED_ANNOTATION}']",
        }
    }
}
NOTHING = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}

Patch = list[dict[str, Any]]


def patch_of(pod: Mapping[str, Any], *, claim_name: str = "") -> Patch:
    """The operations of the JSON patch; none for a pod of another scheduler.

    With a `claim_name`, GPUs of a GpuClaim are given by a ResourceClaim of that name.
    """
    spec = pod.get("spec") or {}
    if spec.get("schedulerName") != SCHEDULER_NAME:
        return []
    containers = [
        (f"/spec/{kind}/{place}", container)
        for kind in ("initContainers", "containers")
        for place, container in enumerate(spec.get(kind) or ())
    ]
    only_some = any(_asks_for_gpus(one) or _has_claims(one) for _, one in containers)
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    if (
        claim_name
        and annotations.get(CLAIM_ANNOTATION)
        and not only_some
        and not spec.get("resourceClaims")
    ):
        return _claim_patch(containers, claim_name)
    patch: Patch = []
    for path, container in containers:
        if _has_claims(container):
            continue
        gets_none = only_some and not _asks_for_gpus(container)
        wanted = [
            {"name": name, "value": NOTHING[name]} if gets_none else {"name": name, **ALLOCATED}
            for name in VARIABLES
        ]
        before = container.get("env") or []
        after = [*wanted, *(one for one in before if one.get("name") not in VARIABLES)]
        if after != before:
            patch.append({"op": "add", "path": f"{path}/env", "value": after})
    return patch


def _claim_patch(containers: list[tuple[str, Any]], claim_name: str) -> Patch:
    """Let all containers use one ResourceClaim."""
    entry = {"name": POD_CLAIM, "resourceClaimName": claim_name}
    patch: Patch = [{"op": "add", "path": "/spec/resourceClaims", "value": [entry]}]
    for path, container in containers:
        resources = {**(container.get("resources") or {}), "claims": [{"name": POD_CLAIM}]}
        patch.append({"op": "add", "path": f"{path}/resources", "value": resources})
    return patch


def _asks_for_gpus(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    names = {*(resources.get("limits") or ()), *(resources.get("requests") or ())}
    return any(name == GPU_RESOURCE or name.startswith(MIG_RESOURCE) for name in names)


def _has_claims(container: Mapping[str, Any]) -> bool:
    return bool((container.get("resources") or {}).get("claims"))
