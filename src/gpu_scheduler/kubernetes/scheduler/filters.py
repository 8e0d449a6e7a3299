"""Which nodes Kubernetes allows for a pod: the rules that kube-scheduler's filters enforce.

Nodes and all pods that are bound to them come in; for a pod and a node the first rule that the node
breaks goes out, in words. The engine plans CPU, memory and GPUs itself, so a search leaves out
what others hold of those (`engine_plans`); before a pod is bound, everything is checked again
(`rejection`), together with what the same plan binds before it (`add`).

The rules are never laxer than those of kube-scheduler. A pod with a rule that cannot be judged is
refused as a whole (`refusal`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from gpu_scheduler.kubernetes.container_runtime import FIRST_DRA_KUBELET, kubelet_version
from gpu_scheduler.kubernetes.crds.conditions import ConditionStatus
from gpu_scheduler.kubernetes.dynamic_resources import DRIVER
from gpu_scheduler.kubernetes.names import GPU_RESOURCE, MIG_RESOURCE
from gpu_scheduler.kubernetes.objects import (
    LabelSelector,
    Node,
    Pod,
    PodAffinityTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
    once_per_object,
)
from gpu_scheduler.kubernetes.quantities import (
    CPU,
    MEMORY,
    PODS_RESOURCE,
    Amounts,
    InvalidQuantity,
    amounts,
    pod_requests,
)
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Objects,
    has_ended,
    is_being_deleted,
    is_bound,
    matches,
)
from gpu_scheduler.kubernetes.scheduler.volumes import (
    VolumeRules,
    node_selector_holds,
    volume_claims,
    volume_rejection,
    volume_rules,
)

PLANNED_BY_ENGINE = frozenset({CPU, MEMORY, GPU_RESOURCE})
UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
ANY_ADDRESS = ("", "0.0.0.0")  # noqa: S104 - compared, not listened on

HostPort = tuple[str, str, int]
"""Protocol, address and port."""


@dataclass(slots=True, kw_only=True)
class NodeLoad:
    """A node, and what the pods that are bound to it take."""

    node: Node
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    ports: list[HostPort] = field(default_factory=list)
    handles: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRules:
    """What is worked out once for a pod, for all nodes."""

    pod: Pod
    requests: Amounts
    ports: tuple[HostPort, ...]
    volumes: VolumeRules
    affinity: "AffinityCounts"
    spread: tuple["SpreadCounts", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityCounts:
    """Where the pods are that a pod must be near to, or away from.

    Sets of (topology key, value). `may_be_first`: no pod matches its affinity yet but itself.
    """

    near: frozenset[tuple[str, str]] = frozenset()
    away: frozenset[tuple[str, str]] = frozenset()
    may_be_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadCounts:
    """How many pods a spread constraint counts in each domain, and the least of them."""

    constraint: TopologySpreadConstraint
    by_domain: Mapping[str, int]
    least: int
    counts_itself: bool


class Filters:
    """The rules of one cluster; pods can be added as a plan binds them."""

    def __init__(self, objects: Objects) -> None:
        """Sum up what all bound pods take."""
        self._objects = objects
        self.loads: dict[str, NodeLoad] = {
            node.metadata.name: NodeLoad(node=node, allocatable=node_allocatable(node))
            for _, node in sorted(objects.nodes.items())
        }
        self._offering: frozenset[str] | None = None
        self._repelling: dict[str, tuple[Pod, str]] = {}
        """Pods with required anti-affinity, and their node, by uid."""
        for _, pod in sorted(objects.pods.items()):
            if is_bound(pod) and not has_ended(pod):
                self.add(pod, pod.spec.node_name)

    def add(self, pod: Pod, node: str) -> None:
        """A pod is on a node from now on."""
        load = self.loads.get(node)
        if load is None or pod.metadata.uid in load.pods:
            return
        load.pods[pod.metadata.uid] = pod
        load.ports += host_ports(pod)
        for resource, number in pod_requests(pod).items():
            load.used[resource] = load.used.get(resource, 0) + number
        load.used[PODS_RESOURCE] = load.used.get(PODS_RESOURCE, 0) + 1
        load.handles |= volume_rules(pod, self._objects).handles if pod.spec.volumes else set()
        if _anti_affinity(pod):
            self._repelling[pod.metadata.uid] = (pod, node)

    # --- one pod

    def refusal(self, pod: Pod) -> str:
        """Why a pod cannot be judged on any node; empty if it can."""
        try:
            pod_requests(pod)
        except InvalidQuantity as error:
            return str(error)
        return volume_rules(pod, self._objects).refusal

    def rules(self, pod: Pod) -> PodRules:
        """Work out what depends on the pod alone."""
        return PodRules(
            pod=pod,
            requests=pod_requests(pod),
            ports=tuple(host_ports(pod)),
            volumes=volume_rules(pod, self._objects),
            affinity=self._affinity_counts(pod),
            spread=tuple(self._spread_counts(pod)),
        )

    def signature(self, pod: Pod) -> bytes:
        """Pods with the same signature are allowed on the same nodes."""
        spec = pod.spec
        affinity = spec.affinity
        depends_on_labels = (
            bool(self._repelling)
            or bool(spec.topology_spread_constraints)
            or (affinity is not None and bool(affinity.pod_affinity.required))
        )
        return msgspec.json.encode(
            (
                pod.metadata.namespace,
                sorted(pod.metadata.labels.items()) if depends_on_labels else (),
                sorted(spec.node_selector.items()),
                spec.affinity,
                spec.tolerations,
                spec.topology_spread_constraints,
                # Nearly every pod has a volume with the token of its account; it excludes no node.
                pod.metadata.uid if any(volume_claims(pod)) else "",
                sorted(pod_requests(pod).items()),
                host_ports(pod),
                bool(spec.resource_claims),
            )
        )

    def rejection(self, rules: PodRules, node: str, *, engine_plans: bool = False) -> str:
        """The first rule that forbids the pod on the node, in words; empty if there is none."""
        load = self.loads.get(node)
        if load is None:
            return "gone"
        return (
            node_rejection(rules.pod, load.node)
            or self._driver_rejection(rules.pod, load.node)
            or _port_rejection(rules.ports, load.ports)
            or _room_rejection(rules.requests, load, engine_plans=engine_plans)
            or volume_rejection(rules.volumes, load.node, self._objects)
            or self._volume_limit_rejection(rules.volumes, load)
            or _affinity_rejection(rules, load.node)
            or self._repelled(rules.pod, load.node)
            or _spread_rejection(rules, load.node)
        )

    def _driver_rejection(self, pod: Pod, node: Node) -> str:
        """Why containers on a node would not get the devices of the pod's ResourceClaims.

        An agent offers a ResourceSlice only where they do; an older kubelet may have come since.
        """
        if not pod.spec.resource_claims:
            return ""
        if kubelet_version(node.status.node_info) < FIRST_DRA_KUBELET:
            return "with a kubelet older than 1.34, which ignores ResourceClaims"
        name = node.metadata.name
        status = self._objects.node_statuses.get(("", name))
        if status is None or name not in self._nodes_with_slices():
            conditions = () if status is None else status.status.conditions
            for one in conditions:
                if one.type == "DevicesInjectable" and one.status == ConditionStatus.FALSE:
                    return "whose container runtime does not inject devices by CDI"
            return "whose agent offers no devices to ResourceClaims"
        return ""

    def _nodes_with_slices(self) -> frozenset[str]:
        if self._offering is None:
            self._offering = frozenset(
                one.spec.pool.name
                for one in self._objects.resource_slices.values()
                if one.spec.driver == DRIVER
            )
        return self._offering

    # --- pods near and away

    def _affinity_counts(self, pod: Pod) -> AffinityCounts:
        affinity = pod.spec.affinity
        if affinity is None:
            return AffinityCounts()
        near_terms = affinity.pod_affinity.required
        away_terms = affinity.pod_anti_affinity.required
        if not near_terms and not away_terms:
            return AffinityCounts()
        near: set[tuple[str, str]] = set()
        away: set[tuple[str, str]] = set()
        for load in self.loads.values():
            labels = load.node.metadata.labels
            for other in load.pods.values():
                if near_terms and all(self._selects(term, pod, other) for term in near_terms):
                    near |= _domains(near_terms, labels)
                for term in away_terms:
                    if self._selects(term, pod, other):
                        away |= _domains((term,), labels)
        return AffinityCounts(
            near=frozenset(near),
            away=frozenset(away),
            may_be_first=not near and all(self._selects(term, pod, pod) for term in near_terms),
        )

    def _selects(self, term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
        """Tell whether a term of `owner` is about the pod `other`."""
        namespace = other.metadata.namespace
        if not term.namespaces and term.namespace_selector is None:
            if namespace != owner.metadata.namespace:
                return False
        elif namespace not in term.namespaces and not self._has_labels(
            namespace, term.namespace_selector
        ):
            return False
        return matches(term.label_selector, other.metadata.labels)

    def _has_labels(self, namespace: str, selector: LabelSelector | None) -> bool:
        found = self._objects.namespaces.get(("", namespace))
        return matches(selector, found.metadata.labels if found is not None else {})

    def _repelled(self, pod: Pod, node: Node) -> str:
        for other, place in self._repelling.values():
            if other.metadata.uid == pod.metadata.uid:
                continue
            labels = self.loads[place].node.metadata.labels
            for term in _anti_affinity(other):
                value = labels.get(term.topology_key)
                same = value is not None and node.metadata.labels.get(term.topology_key) == value
                if same and self._selects(term, other, pod):
                    return "kept free of such pods by the anti-affinity of others"
        return ""

    # --- spread

    def _spread_counts(self, pod: Pod) -> Iterator[SpreadCounts]:
        hard = [
            one
            for one in pod.spec.topology_spread_constraints
            if one.when_unsatisfiable == "DoNotSchedule"
        ]
        keys = [one.topology_key for one in hard]
        for constraint in hard:
            selector = _with_own_values(constraint, pod)
            by_domain: dict[str, int] = {}
            for load in self.loads.values():
                labels = load.node.metadata.labels
                if any(key not in labels for key in keys):
                    continue
                if constraint.node_affinity_policy == "Honor" and not _is_selected(pod, load.node):
                    continue
                if constraint.node_taints_policy == "Honor" and untolerated(pod, load.node):
                    continue
                domain = labels[constraint.topology_key]
                by_domain[domain] = by_domain.get(domain, 0) + sum(
                    other.metadata.namespace == pod.metadata.namespace
                    and not is_being_deleted(other)
                    and matches(selector, other.metadata.labels)
                    for other in load.pods.values()
                )
            least = min(by_domain.values(), default=0)
            if len(by_domain) < (constraint.min_domains or 1):
                least = 0
            yield SpreadCounts(
                constraint=constraint,
                by_domain=by_domain,
                least=least,
                counts_itself=matches(selector, pod.metadata.labels),
            )

    def _volume_limit_rejection(self, volumes: VolumeRules, load: NodeLoad) -> str:
        if not volumes.handles and not volumes.unbound:
            return ""
        csi_node = self._objects.csi_nodes.get(("", load.node.metadata.name))
        if csi_node is None:
            return ""
        added = {handle for handle in volumes.handles if handle not in load.handles}
        for driver in csi_node.spec.drivers:
            if driver.allocatable is None or driver.allocatable.count is None:
                continue
            new = sum(name == driver.name for name, _ in added)
            new += sum(
                self._objects.storage_classes["", claim.spec.storage_class_name or ""].provisioner
                == driver.name
                for claim in volumes.unbound
            )
            held = sum(name == driver.name for name, _ in load.handles)
            if new and held + new > driver.allocatable.count:
                return "at the limit of attached volumes"
        return ""


# --- rules about a node alone


def node_rejection(pod: Pod, node: Node) -> str:
    """Why the state, labels or taints of a node keep a pod away; empty if they do not."""
    if not is_ready(node):
        return "not ready"
    if node.spec.unschedulable and not _tolerates(pod.spec.tolerations, UNSCHEDULABLE):
        return "cordoned"
    if not _is_selected(pod, node):
        return "not selected by its node selector or node affinity"
    taint = untolerated(pod, node)
    if taint is not None:
        value = f"={taint.value}" if taint.value else ""
        return f"with the taint {taint.key}{value}:{taint.effect}"
    return ""


@once_per_object
def node_allocatable(node: Node) -> Amounts:
    """What a node has for pods."""
    return amounts(node.status.allocatable, up=False)


def is_ready(node: Node) -> bool:
    """Tell whether the kubelet of a node reports that it is ready, and the node stays."""
    if node.metadata.deletion_timestamp is not None:
        return False
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


def untolerated(pod: Pod, node: Node) -> Taint | None:
    """The first taint that keeps a pod away."""
    for taint in node.spec.taints:
        hard = taint.effect in ("NoSchedule", "NoExecute")
        if hard and not _tolerates(pod.spec.tolerations, taint):
            return taint
    return None


def _tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    for one in tolerations:
        if one.effect not in ("", taint.effect) or one.key not in ("", taint.key):
            continue
        if one.operator == "Exists":
            return True
        if one.operator in ("", "Equal") and one.key and one.value == taint.value:
            return True
    return False


def _is_selected(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity
    required = None if affinity is None else affinity.node_affinity.required
    return required is None or node_selector_holds(required, node)


# --- rules about what a node has


@once_per_object
def host_ports(pod: Pod) -> list[HostPort]:
    """The ports that a pod opens on its node."""
    containers = [
        *pod.spec.containers,
        *(one for one in pod.spec.init_containers if one.restart_policy == "Always"),
    ]
    return [
        (port.protocol or "TCP", port.host_ip, port.host_port)
        for container in containers
        for port in container.ports
        if port.host_port
    ]


def _port_rejection(wanted: tuple[HostPort, ...], taken: list[HostPort]) -> str:
    for protocol, address, port in wanted:
        for other_protocol, other_address, other_port in taken:
            if (protocol, port) == (other_protocol, other_port) and (
                address == other_address or address in ANY_ADDRESS or other_address in ANY_ADDRESS
            ):
                return f"with host port {port} in use"
    return ""


def _room_rejection(requests: Amounts, load: NodeLoad, *, engine_plans: bool) -> str:
    for resource, wanted in sorted({**requests, PODS_RESOURCE: 1}.items()):
        used = load.used.get(resource, 0)
        if engine_plans and (resource in PLANNED_BY_ENGINE or resource.startswith(MIG_RESOURCE)):
            used = 0
        if wanted > 0 and used + wanted > load.allocatable.get(resource, 0):
            return f"with too little {'room for pods' if resource == PODS_RESOURCE else resource}"
    return ""


# --- rules about other pods


def _anti_affinity(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity
    return () if affinity is None else affinity.pod_anti_affinity.required


def _domains(terms: tuple[PodAffinityTerm, ...], labels: Mapping[str, str]) -> set[tuple[str, str]]:
    return {
        (term.topology_key, labels[term.topology_key])
        for term in terms
        if term.topology_key in labels
    }


def _affinity_rejection(rules: PodRules, node: Node) -> str:
    affinity = rules.pod.spec.affinity
    if affinity is None:
        return ""
    labels = node.metadata.labels
    counts = rules.affinity
    if _domains(affinity.pod_anti_affinity.required, labels) & counts.away:
        return "next to pods that its anti-affinity excludes"
    for term in affinity.pod_affinity.required:
        value = labels.get(term.topology_key)
        if value is None:
            return f"without the label {term.topology_key} of its pod affinity"
        if not counts.may_be_first and (term.topology_key, value) not in counts.near:
            return "not near the pods of its affinity"
    return ""


def _spread_rejection(rules: PodRules, node: Node) -> str:
    for counts in rules.spread:
        key = counts.constraint.topology_key
        domain = node.metadata.labels.get(key)
        if domain is None:
            return f"without the label {key} of its topology spread"
        after = counts.by_domain.get(domain, 0) + counts.counts_itself
        if after - counts.least > counts.constraint.max_skew:
            return f"in a full part of its topology spread over {key}"
    return ""


def _with_own_values(constraint: TopologySpreadConstraint, pod: Pod) -> LabelSelector | None:
    """The selector with `matchLabelKeys`: only pods with the same values as the pod itself."""
    selector = constraint.label_selector
    own = {
        key: pod.metadata.labels[key]
        for key in constraint.match_label_keys
        if key in pod.metadata.labels
    }
    if selector is None or not own:
        return selector
    return msgspec.structs.replace(selector, match_labels={**selector.match_labels, **own})
