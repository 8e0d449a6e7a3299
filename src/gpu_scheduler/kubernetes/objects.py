"""The objects of Kubernetes that a scheduler reads and writes, with only the fields that it needs.

JSON of the API server goes in, frozen values come out; unknown fields (such as managedFields) are
dropped while decoding. A resource whose type leaves out fields is marked partial: its objects can
be created and patched, but never replaced, because a replacement would delete what was dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, wraps
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of an object."""


class OwnerReference(Value, frozen=True, kw_only=True):
    """The object that this one belongs to and is deleted with."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(Value, frozen=True, kw_only=True):
    """Name, identity and version of an object; complete but for managedFields."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Object(Value, frozen=True, kw_only=True, dict=True):
    """What every object has. Version and kind are those of its resource; lists leave them out."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name


ObjectT = TypeVar("ObjectT", bound=Object)
ResultT = TypeVar("ResultT")


def once_per_object(function: Callable[[ObjectT], ResultT]) -> Callable[[ObjectT], ResultT]:
    """Work something out once for each version of an object, and keep it there.

    Objects are frozen, and a new version is a new object. Callers must not change the result.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def remembered(one: ObjectT) -> ResultT:
        known: dict[str, Any] = one.__dict__
        if name not in known:
            known[name] = function(one)
        result: ResultT = known[name]
        return result

    return remembered


OtherT = TypeVar("OtherT")


def once_per_pair(
    function: Callable[[ObjectT, OtherT], ResultT],
) -> Callable[[ObjectT, OtherT], ResultT]:
    """Work something out once for a version of an object beside another value, and keep it there.

    Only the last other value is remembered, by its identity.
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def remembered(one: ObjectT, other: OtherT) -> ResultT:
        known: dict[str, Any] = one.__dict__
        if name not in known or known[name][0] is not other:
            known[name] = (other, function(one, other))
        result: ResultT = known[name][1]
        return result

    return remembered


class ListMeta(Value, frozen=True, kw_only=True):
    """The version of a list, and where its next page begins."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class ObjectList(msgspec.Struct, Generic[ObjectT], frozen=True, kw_only=True):
    """A page of objects; Go writes an empty list as null at times."""

    metadata: ListMeta = ListMeta()
    items: list[ObjectT] | None = None


@dataclass(frozen=True, kw_only=True)
class Resource(Generic[ObjectT]):
    """A kind of object, where the API serves it, and the type its JSON is decoded to."""

    type: type[ObjectT]
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True
    is_partial: bool = False

    @property
    def api_version(self) -> str:
        """Group and version, as manifests write them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of an object, or of all objects of a namespace, or of all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if name and self.is_namespaced and not namespace:
            raise ValueError(f"{self.kind} {name!r} was named without its namespace")
        parts = [root]
        if self.is_namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[ObjectT]:
        """Decodes one object."""
        return msgspec.json.Decoder(self.type)

    @cached_property
    def list_decoder(self) -> msgspec.json.Decoder[ObjectList[ObjectT]]:
        """Decodes a page of a list."""
        # A type that is only known at run time cannot be written as a type expression.
        form: Any = ObjectList
        return msgspec.json.Decoder(form[self.type])


# --- pods


class Condition(Value, frozen=True, kw_only=True):
    """One observed aspect of an object."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    last_transition_time: datetime | None = None


class ContainerClaim(Value, frozen=True, kw_only=True):
    """A ResourceClaim of the pod that a container uses; with a request, only a part of it."""

    name: str
    request: str = ""


class ResourceRequirements(Value, frozen=True, kw_only=True):
    """What a container asks for, as Kubernetes quantities, and the claims that it uses."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    claims: tuple[ContainerClaim, ...] = ()


class ContainerPort(Value, frozen=True, kw_only=True):
    """A port that a container opens on its node, if `host_port` is set."""

    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class Container(Value, frozen=True, kw_only=True):
    """A container or init container."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


class LabelRequirement(Value, frozen=True, kw_only=True):
    """A key that must (not) exist, or have one of some values."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Value, frozen=True, kw_only=True):
    """Which objects are selected by their labels; an empty one selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()


class NodeSelectorTerm(Value, frozen=True, kw_only=True):
    """Rules about the labels and fields of a node; all must hold, and an empty term never does."""

    match_expressions: tuple[LabelRequirement, ...] = ()
    match_fields: tuple[LabelRequirement, ...] = ()


class NodeSelector(Value, frozen=True, kw_only=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Value, frozen=True, kw_only=True):
    """Which nodes a pod may be assigned to."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(Value, frozen=True, kw_only=True):
    """Pods near which, or away from which, a pod must be."""

    topology_key: str
    label_selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None


class PodAffinity(Value, frozen=True, kw_only=True):
    """The required terms of pod affinity or pod anti-affinity."""

    required: tuple[PodAffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Value, frozen=True, kw_only=True):
    """The required rules about nodes and other pods; preferences are dropped."""

    node_affinity: NodeAffinity = NodeAffinity()
    pod_affinity: PodAffinity = PodAffinity()
    pod_anti_affinity: PodAffinity = PodAffinity()


class TopologySpreadConstraint(Value, frozen=True, kw_only=True):
    """How evenly pods are spread over the values of a node label."""

    max_skew: int = 1
    topology_key: str
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()


class ClaimSource(Value, frozen=True, kw_only=True):
    """A volume by the name of its PersistentVolumeClaim."""

    claim_name: str


class Volume(Value, frozen=True, kw_only=True):
    """A volume of a pod, as far as it limits the nodes; a kind that is set is not None."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: Any = None
    csi: Any = None
    gce_persistent_disk: Any = None
    aws_elastic_block_store: Any = None
    azure_disk: Any = None
    cinder: Any = None
    iscsi: Any = None
    rbd: Any = None


class PodResourceClaim(Value, frozen=True, kw_only=True):
    """Devices of a pod by Dynamic Resource Allocation: a claim, or a template for one."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class Toleration(Value, frozen=True, kw_only=True):
    """Which taint a pod accepts."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class SchedulingGate(Value, frozen=True, kw_only=True):
    """While a pod has one it must not be scheduled."""

    name: str


class PodSpec(Value, frozen=True, kw_only=True):
    """What a pod asks for."""

    scheduler_name: str = ""
    node_name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()
    overhead: dict[str, str] = {}
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None


class ContainerStatus(Value, frozen=True, kw_only=True):
    """What a node has given to a container, which differs from the spec while it is resized."""

    name: str
    allocated_resources: dict[str, str] = {}
    resources: ResourceRequirements | None = None


class PodResourceClaimStatus(Value, frozen=True, kw_only=True):
    """The ResourceClaim that was made from a template for a pod; none if none is needed."""

    name: str
    resource_claim_name: str | None = None


class PodStatus(Value, frozen=True, kw_only=True):
    """How far a pod has come."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    start_time: datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()


class Pod(Object, frozen=True, kw_only=True):
    """A pod, as far as a scheduler reads it."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# --- nodes


class Taint(Value, frozen=True, kw_only=True):
    """Keeps pods away that do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Value, frozen=True, kw_only=True):
    """Whether a node accepts pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeSystemInfo(Value, frozen=True, kw_only=True):
    """The versions that decide which devices a node can give to a pod."""

    kubelet_version: str = ""
    container_runtime_version: str = ""


class NodeStatus(Value, frozen=True, kw_only=True):
    """What a node has."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()


class Node(Object, frozen=True, kw_only=True):
    """A node, as far as a scheduler reads it."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- leases


class LeaseSpec(Value, frozen=True, kw_only=True):
    """Who holds a lease and since when; times are text with microseconds, as Go requires them."""

    holder_identity: str = ""
    lease_duration_seconds: int | None = None
    acquire_time: str = ""
    renew_time: str = ""
    lease_transitions: int | None = None
    strategy: str = ""
    preferred_holder: str = ""


class Lease(Object, frozen=True, kw_only=True):
    """A lock that expires unless its holder renews it."""

    spec: LeaseSpec = LeaseSpec()


# --- what limits where a pod may go


class ConfigMap(Object, frozen=True, kw_only=True):
    """Texts by name."""

    data: dict[str, str] = {}


class Namespace(Object, frozen=True, kw_only=True):
    """A namespace, for its labels."""


class PersistentVolumeClaimSpec(Value, frozen=True, kw_only=True):
    """The volume that a claim has, or the class that will make one."""

    volume_name: str = ""
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ()
    resources: ResourceRequirements = ResourceRequirements()


class PersistentVolumeClaimStatus(Value, frozen=True, kw_only=True):
    """Whether a claim has a volume."""

    phase: str = ""


class PersistentVolumeClaim(Object, frozen=True, kw_only=True):
    """A request for storage."""

    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class VolumeNodeAffinity(Value, frozen=True, kw_only=True):
    """Which nodes can mount a volume."""

    required: NodeSelector | None = None


class CsiVolume(Value, frozen=True, kw_only=True):
    """A volume of a storage driver."""

    driver: str
    volume_handle: str = ""


class PersistentVolumeSpec(Value, frozen=True, kw_only=True):
    """Where a volume is."""

    node_affinity: VolumeNodeAffinity = VolumeNodeAffinity()
    csi: CsiVolume | None = None


class PersistentVolume(Object, frozen=True, kw_only=True):
    """A volume."""

    spec: PersistentVolumeSpec = PersistentVolumeSpec()


class TopologyExpression(Value, frozen=True, kw_only=True):
    """A label of a node, and the values that are allowed."""

    key: str
    values: tuple[str, ...] = ()


class TopologyTerm(Value, frozen=True, kw_only=True):
    """Labels of a node that must all have allowed values."""

    match_label_expressions: tuple[TopologyExpression, ...] = ()


class StorageClass(Object, frozen=True, kw_only=True):
    """How volumes of a class are made, and when."""

    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class CsiDriverAllocatable(Value, frozen=True, kw_only=True):
    """The limit of a storage driver on a node."""

    count: int | None = None


class CsiNodeDriver(Value, frozen=True, kw_only=True):
    """A storage driver on a node."""

    name: str
    allocatable: CsiDriverAllocatable | None = None


class CsiNodeSpec(Value, frozen=True, kw_only=True):
    """The storage drivers of a node."""

    drivers: tuple[CsiNodeDriver, ...] = ()


class CsiNode(Object, frozen=True, kw_only=True):
    """The storage drivers of the node of the same name."""

    spec: CsiNodeSpec = CsiNodeSpec()


class CsiDriverSpec(Value, frozen=True, kw_only=True):
    """What a storage driver expects of a scheduler."""

    storage_capacity: bool = False


class CsiDriver(Object, frozen=True, kw_only=True):
    """A storage driver of the cluster."""

    spec: CsiDriverSpec = CsiDriverSpec()


class StorageCapacity(Object, frozen=True, kw_only=True):
    """How much a storage driver can still make of one class on some nodes."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str = ""
    maximum_volume_size: str = ""


class DisruptionBudgetSpec(Value, frozen=True, kw_only=True):
    """Which pods a budget protects."""

    selector: LabelSelector | None = None


class DisruptionBudgetStatus(Value, frozen=True, kw_only=True):
    """How many of these pods may be evicted now."""

    disruptions_allowed: int = 0
    current_healthy: int = 0
    expected_pods: int = 0


class DisruptionBudget(Object, frozen=True, kw_only=True):
    """A PodDisruptionBudget: how many pods of a group may be evicted."""

    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()


class Event(Object, frozen=True, kw_only=True):
    """A line of the history of an object, as kubectl shows it; only its name is read back."""


PODS = Resource(type=Pod, kind="Pod", plural="pods", is_partial=True)
NODES = Resource(type=Node, kind="Node", plural="nodes", is_namespaced=False, is_partial=True)
LEASES = Resource(type=Lease, kind="Lease", plural="leases", group="coordination.k8s.io")
CONFIG_MAPS = Resource(type=ConfigMap, kind="ConfigMap", plural="configmaps", is_partial=True)
NAMESPACES = Resource(
    type=Namespace, kind="Namespace", plural="namespaces", is_namespaced=False, is_partial=True
)
VOLUME_CLAIMS = Resource(
    type=PersistentVolumeClaim,
    kind="PersistentVolumeClaim",
    plural="persistentvolumeclaims",
    is_partial=True,
)
VOLUMES = Resource(
    type=PersistentVolume,
    kind="PersistentVolume",
    plural="persistentvolumes",
    is_namespaced=False,
    is_partial=True,
)
STORAGE_CLASSES = Resource(
    type=StorageClass,
    kind="StorageClass",
    plural="storageclasses",
    group="storage.k8s.io",
    is_namespaced=False,
    is_partial=True,
)
CSI_NODES = Resource(
    type=CsiNode,
    kind="CSINode",
    plural="csinodes",
    group="storage.k8s.io",
    is_namespaced=False,
    is_partial=True,
)
CSI_DRIVERS = Resource(
    type=CsiDriver,
    kind="CSIDriver",
    plural="csidrivers",
    group="storage.k8s.io",
    is_namespaced=False,
    is_partial=True,
)
STORAGE_CAPACITIES = Resource(
    type=StorageCapacity,
    kind="CSIStorageCapacity",
    plural="csistoragecapacities",
    group="storage.k8s.io",
    is_partial=True,
)
DISRUPTION_BUDGETS = Resource(
    type=DisruptionBudget,
    kind="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    group="policy",
    is_partial=True,
)
EVENTS = Resource(type=Event, kind="Event", plural="events", is_partial=True)
