"""Manifests of Kubernetes objects for tests, and the view that the scheduler decides from."""

import json
from datetime import UTC, datetime
from itertools import count
from typing import Any

from gpu_scheduler.kubernetes.agent.resource_slice import SliceState, resource_slice, slice_name
from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS
from gpu_scheduler.kubernetes.crds.node_status import GPU_NODE_STATUSES
from gpu_scheduler.kubernetes.crds.queue import GPU_QUEUES
from gpu_scheduler.kubernetes.crds.reservation import GPU_RESERVATIONS
from gpu_scheduler.kubernetes.dynamic_resources import (
    DEVICE_CLASSES,
    DRIVER,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    device_name,
)
from gpu_scheduler.kubernetes.names import (
    CLAIM_ANNOTATION,
    GPU_RESOURCE,
    SCHEDULER_NAME,
    device_lease_name,
)
from gpu_scheduler.kubernetes.objects import (
    CSI_DRIVERS,
    CSI_NODES,
    DISRUPTION_BUDGETS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    STORAGE_CAPACITIES,
    STORAGE_CLASSES,
    VOLUME_CLAIMS,
    VOLUMES,
    OwnerReference,
)
from gpu_scheduler.kubernetes.scheduler.devices import Holder, lease_manifest
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects

Manifest = dict[str, Any]

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
NAMESPACE = "ml"

FIELDS: dict[str, Any] = {
    "nodes": NODES,
    "pods": PODS,
    "claims": GPU_CLAIMS,
    "node_statuses": GPU_NODE_STATUSES,
    "queues": GPU_QUEUES,
    "reservations": GPU_RESERVATIONS,
    "leases": LEASES,
    "namespaces": NAMESPACES,
    "volume_claims": VOLUME_CLAIMS,
    "volumes": VOLUMES,
    "storage_classes": STORAGE_CLASSES,
    "csi_nodes": CSI_NODES,
    "csi_drivers": CSI_DRIVERS,
    "storage_capacities": STORAGE_CAPACITIES,
    "budgets": DISRUPTION_BUDGETS,
    "resource_claims": RESOURCE_CLAIMS,
    "device_classes": DEVICE_CLASSES,
    "resource_slices": RESOURCE_SLICES,
}
_BY_KIND = {resource.kind: (name, resource) for name, resource in FIELDS.items()}
_ages = count(1)


def objects_of(*manifests: Manifest) -> Objects:
    """The view of a cluster with these objects."""
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for manifest in manifests:
        field, resource = _BY_KIND[manifest["kind"]]
        one = resource.decoder.decode(json.dumps(manifest))
        found.setdefault(field, {})[one.key] = one
    return Objects(**found)


def meta(name: str, namespace: str = "", **more: Any) -> Manifest:
    """Metadata; every object is a second younger than the one before."""
    age = next(_ages)
    created = datetime.fromtimestamp(NOW.timestamp() - 100_000 + age, UTC)
    given = {
        "name": name,
        "uid": f"uid-{name}-{age}",
        "creationTimestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **more,
    }
    return {**given, "namespace": namespace} if namespace else given


def a_node(
    name: str,
    *,
    gpus: int = 8,
    cpu: str = "64",
    memory: str = "256Gi",
    labels: dict[str, str] | None = None,
    ready: bool = True,
    kubelet: str = "v1.35.0",
    more: dict[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    amounts = {"cpu": cpu, "memory": memory, "pods": "110", "ephemeral-storage": "100Gi"}
    if gpus:
        amounts[GPU_RESOURCE] = str(gpus)
    amounts |= more or {}
    return {
        "kind": "Node",
        "metadata": meta(name, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "nodeInfo": {"kubeletVersion": kubelet},
        },
    }


def a_pod(
    name: str,
    *,
    gpus: int = 0,
    claim: str = "",
    node: str = "",
    namespace: str = NAMESPACE,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    requests: dict[str, str] | None = None,
    ports: tuple[int, ...] = (),
    scheduler: str = SCHEDULER_NAME,
    phase: str = "",
    owner: Manifest | None = None,
    **spec: Any,
) -> Manifest:
    told = dict(annotations or {})
    if claim:
        told[CLAIM_ANNOTATION] = claim
    wanted = dict(requests or {})
    if gpus:
        wanted[GPU_RESOURCE] = str(gpus)
    container: Manifest = {"name": "main", "image": "busybox", "resources": {"requests": wanted}}
    if gpus:
        container["resources"]["limits"] = {GPU_RESOURCE: str(gpus)}
    if ports:
        container["ports"] = [{"containerPort": port, "hostPort": port} for port in ports]
    metadata = meta(name, namespace, labels=labels or {}, annotations=told)
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    made: Manifest = {"schedulerName": scheduler, "containers": [container], **spec}
    if node:
        made["nodeName"] = node
    status = {"phase": phase or ("Running" if node else "Pending")}
    return {"kind": "Pod", "metadata": metadata, "spec": made, "status": status}


def an_owner(kind: str, name: str) -> Manifest:
    return {
        "apiVersion": "batch/v1",
        "kind": kind,
        "name": name,
        "uid": f"uid-{kind}-{name}",
        "controller": True,
    }


def a_claim(name: str, *, namespace: str = NAMESPACE, **spec: Any) -> Manifest:
    annotations = spec.pop("annotations", {})
    devices = spec.pop("devices", {"count": 1})
    return {
        "kind": "GpuClaim",
        "metadata": meta(name, namespace, annotations=annotations),
        "spec": {"devices": devices, **spec},
    }


def a_queue(name: str, **spec: Any) -> Manifest:
    return {"kind": "GpuQueue", "metadata": meta(name), "spec": spec}


def a_reservation(name: str, *, count: int = 1, **spec: Any) -> Manifest:
    """GPUs for the queue `team` from one hour to two hours from now."""
    times = {"startTime": "2026-05-04T13:00:00Z", "endTime": "2026-05-04T14:00:00Z"}
    return {
        "kind": "GpuReservation",
        "metadata": meta(name, generation=1),
        "spec": {"queue": "team", "count": count, **times, **spec},
    }


def a_gpu(index: int, node: str = "n", **more: Any) -> Manifest:
    return {
        "index": index,
        "uuid": f"GPU-{node}-{index}",
        "model": "NVIDIA H100 80GB HBM3",
        "memoryMiB": 81920,
        "island": 0,
        **more,
    }


def a_node_status(name: str, gpus: list[Manifest], **spec: Any) -> Manifest:
    links = spec.pop("links", [])
    heartbeat = spec.pop("heartbeat", NOW.strftime("%Y-%m-%dT%H:%M:%SZ"))
    return {
        "kind": "GpuNodeStatus",
        "metadata": meta(name),
        "spec": spec,
        "status": {"heartbeatTime": heartbeat, "gpus": gpus, "links": links},
    }


def a_lease(pod: Manifest, node: str, index: int, **more: Any) -> Manifest:
    """The lease of a GPU that a pod holds."""
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    holder = Holder(uid=uid, namespace=NAMESPACE, pod=name, devices=(index,), **more)
    made: Manifest = lease_manifest("gpu-scheduler", node, index, (holder,), NOW)
    made["metadata"] = meta(device_lease_name(node, index), "gpu-scheduler") | made["metadata"]
    return {"kind": "Lease", **made}


# --- Dynamic Resource Allocation


def a_device_class(name: str = DRIVER, *selectors: str, **spec: Any) -> Manifest:
    expressions = (f"device.driver == '{DRIVER}'", *selectors)
    return {
        "kind": "DeviceClass",
        "metadata": meta(name),
        "spec": {"selectors": [{"cel": {"expression": one}} for one in expressions], **spec},
    }


def a_resource_slice(node: str, gpus: list[Manifest]) -> Manifest:
    """What the agent of a node offers, by the GPUs of its GpuNodeStatus."""
    status = GPU_NODE_STATUSES.decoder.decode(json.dumps(a_node_status(node, gpus))).status
    owner = OwnerReference(api_version="v1", kind="Node", name=node, uid=f"uid-{node}")
    made = resource_slice(node, status, owner, SliceState())
    assert made is not None
    return {"kind": "ResourceSlice", **made, "metadata": meta(slice_name(node))}


def a_dra_node(name: str, gpus: list[Manifest] | int = 4, **more: Any) -> list[Manifest]:
    """A node whose agent offers its GPUs to ResourceClaims."""
    made = [a_gpu(n, name) for n in range(gpus)] if isinstance(gpus, int) else gpus
    node = a_node(name, gpus=len(made), **more)
    return [node, a_node_status(name, made), a_resource_slice(name, made)]


def a_request(name: str = "gpus", *selectors: str, **exactly: Any) -> Manifest:
    asked = {"deviceClassName": DRIVER, **exactly}
    if selectors:
        asked["selectors"] = [{"cel": {"expression": one}} for one in selectors]
    return {"name": name, "exactly": asked}


def a_resource_claim(
    name: str,
    *requests: Manifest,
    devices: Manifest | None = None,
    allocated: tuple[str, ...] = (),
    node: str = "",
    reserved_for: Manifest | None = None,
    **metadata: Any,
) -> Manifest:
    """A claim, if need be with devices of a node, given by UUID."""
    status: Manifest = {}
    if allocated:
        results = [
            {"request": "gpus", "driver": DRIVER, "pool": node, "device": device_name(uuid)}
            for uuid in allocated
        ]
        status["allocation"] = {"devices": {"results": results}}
    if reserved_for is not None:
        pod = reserved_for["metadata"]
        consumer = {"resource": "pods", "name": pod["name"], "uid": pod["uid"]}
        status["reservedFor"] = [consumer]
    return {
        "kind": "ResourceClaim",
        "metadata": meta(name, NAMESPACE, **metadata),
        "spec": {"devices": {"requests": list(requests or (a_request(),)), **(devices or {})}},
        "status": status,
    }


def a_claiming_pod(name: str, *claims: str, **more: Any) -> Manifest:
    """A pod whose container uses these ResourceClaims."""
    made = a_pod(name, **more)
    made["spec"]["resourceClaims"] = [
        {"name": f"c{place}", "resourceClaimName": claim} for place, claim in enumerate(claims)
    ]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "c0"}] if claims else []
    return made
