"""The objects of Kubernetes that a scheduler reads and writes, with only the fields that it needs.

JSON of the API server goes in, frozen values come out; unknown fields (such as managedFields) are
dropped while decoding. A resource whose type leaves out fields is marked partial: its objects can
be created and patched, but never replaced, because a replacement would delete what was dropped.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
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


class Object(Value, frozen=True, kw_only=True):
    """What every object has. Version and kind are those of its resource; lists leave them out."""

    metadata: ObjectMeta = ObjectMeta()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name


ObjectT = TypeVar("ObjectT", bound=Object)


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


class ResourceRequirements(Value, frozen=True, kw_only=True):
    """What a container asks for, as Kubernetes quantities."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


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
    resources: ResourceRequirements = ResourceRequirements()
    ports: tuple[ContainerPort, ...] = ()
    restart_policy: str = ""


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
    overhead: dict[str, str] = {}
    termination_grace_period_seconds: int | None = None


class PodStatus(Value, frozen=True, kw_only=True):
    """How far a pod has come."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    nominated_node_name: str = ""
    start_time: datetime | None = None


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


PODS = Resource(type=Pod, kind="Pod", plural="pods", is_partial=True)
NODES = Resource(type=Node, kind="Node", plural="nodes", is_namespaced=False, is_partial=True)
LEASES = Resource(type=Lease, kind="Lease", plural="leases", group="coordination.k8s.io")
