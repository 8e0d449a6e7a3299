"""All objects that a decision depends on, as one frozen value, and questions about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_scheduler.kubernetes.crds.claim import GpuClaim
from gpu_scheduler.kubernetes.crds.node_status import GpuNodeStatus
from gpu_scheduler.kubernetes.crds.queue import GpuQueue
from gpu_scheduler.kubernetes.crds.reservation import GpuReservation
from gpu_scheduler.kubernetes.dynamic_resources import DeviceClass, ResourceClaim, ResourceSlice
from gpu_scheduler.kubernetes.objects import (
    CsiDriver,
    CsiNode,
    DisruptionBudget,
    LabelRequirement,
    LabelSelector,
    Lease,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageCapacity,
    StorageClass,
)

Key = tuple[str, str]
ENDED_PHASES = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Objects by namespace and name; those without a namespace have an empty one."""

    nodes: Mapping[Key, Node] = field(default_factory=dict)
    pods: Mapping[Key, Pod] = field(default_factory=dict)
    claims: Mapping[Key, GpuClaim] = field(default_factory=dict)
    node_statuses: Mapping[Key, GpuNodeStatus] = field(default_factory=dict)
    queues: Mapping[Key, GpuQueue] = field(default_factory=dict)
    reservations: Mapping[Key, GpuReservation] = field(default_factory=dict)
    leases: Mapping[Key, Lease] = field(default_factory=dict)
    """Only the leases of devices."""
    namespaces: Mapping[Key, Namespace] = field(default_factory=dict)
    volume_claims: Mapping[Key, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[Key, PersistentVolume] = field(default_factory=dict)
    storage_classes: Mapping[Key, StorageClass] = field(default_factory=dict)
    csi_nodes: Mapping[Key, CsiNode] = field(default_factory=dict)
    csi_drivers: Mapping[Key, CsiDriver] = field(default_factory=dict)
    storage_capacities: Mapping[Key, StorageCapacity] = field(default_factory=dict)
    budgets: Mapping[Key, DisruptionBudget] = field(default_factory=dict)
    resource_claims: Mapping[Key, ResourceClaim] = field(default_factory=dict)
    device_classes: Mapping[Key, DeviceClass] = field(default_factory=dict)
    resource_slices: Mapping[Key, ResourceSlice] = field(default_factory=dict)
    """Only the slices of our driver."""
    serves_claims: bool = True
    """Whether the cluster has ResourceClaims and this scheduler allocates them."""


def has_ended(pod: Pod) -> bool:
    """Tell whether all containers of a pod have ended, so that it holds nothing."""
    return pod.status.phase in ENDED_PHASES


def is_bound(pod: Pod) -> bool:
    """Tell whether a pod is assigned to a node."""
    return bool(pod.spec.node_name)


def is_being_deleted(pod: Pod) -> bool:
    """Tell whether a pod was told to end."""
    return pod.metadata.deletion_timestamp is not None


def matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Tell whether a selector selects these labels; none selects nothing, an empty one all."""
    if selector is None:
        return False
    wanted = selector.match_labels.items()
    return all(labels.get(key) == value for key, value in wanted) and all(
        requirement_holds(one, labels) for one in selector.match_expressions
    )


def requirement_holds(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    """Tell whether labels meet one requirement; one with an unknown operator is never met."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement, value)
        case _:
            return False


def _compares(requirement: LabelRequirement, value: str | None) -> bool:
    if value is None or len(requirement.values) != 1:
        return False
    try:
        has, limit = int(value), int(requirement.values[0])
    except ValueError:
        return False
    return has > limit if requirement.operator == "Gt" else has < limit
