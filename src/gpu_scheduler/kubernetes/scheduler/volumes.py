"""Where the volumes of a pod allow it to be.

A pod goes in; out comes a rule for nodes, or why the pod cannot be judged. A claim with
WaitForFirstConsumer has no volume yet: the scheduler names the node in an annotation of the claim,
the storage driver makes the volume there, and only then is the pod bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_scheduler.kubernetes.objects import (
    Node,
    NodeSelector,
    NodeSelectorTerm,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from gpu_scheduler.kubernetes.quantities import MEMORY, amount
from gpu_scheduler.kubernetes.scheduler.objects_view import (
    Objects,
    has_ended,
    is_bound,
    matches,
    requirement_holds,
)

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
OLD_KINDS = (
    "gce_persistent_disk",
    "aws_elastic_block_store",
    "azure_disk",
    "cinder",
    "iscsi",
    "rbd",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRules:
    """What the volumes of one pod demand of a node.

    `unbound` are claims whose volume is made once the node is known. `handles` are the CSI volumes
    (driver, handle) that count against the limit of a node.
    """

    volumes: tuple[PersistentVolume, ...] = ()
    unbound: tuple[PersistentVolumeClaim, ...] = ()
    handles: frozenset[tuple[str, str]] = frozenset()
    refusal: str = ""


def volume_claims(pod: Pod) -> Iterator[str]:
    """The names of the PersistentVolumeClaims of a pod."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def volume_rules(pod: Pod, objects: Objects) -> VolumeRules:
    """Read the claims of a pod."""
    for volume in pod.spec.volumes:
        for kind in OLD_KINDS:
            if getattr(volume, kind) is not None:
                return VolumeRules(
                    refusal=f"its volume '{volume.name}' is of an old kind ({kind}) whose limits "
                    "this scheduler does not know; use a PersistentVolumeClaim"
                )
    found: list[PersistentVolume] = []
    unbound: list[PersistentVolumeClaim] = []
    handles: set[tuple[str, str]] = set()
    for name in volume_claims(pod):
        claim = objects.volume_claims.get((pod.metadata.namespace, name))
        if claim is None or claim.metadata.deletion_timestamp is not None:
            gone = "does not exist" if claim is None else "is being deleted"
            return VolumeRules(refusal=f"its PersistentVolumeClaim '{name}' {gone}")
        if "ReadWriteOncePod" in claim.spec.access_modes and _is_in_use(pod, name, objects):
            return VolumeRules(
                refusal=f"its PersistentVolumeClaim '{name}' is ReadWriteOncePod and another pod "
                "uses it"
            )
        if not claim.spec.volume_name:
            refusal = _why_not_provisioned(claim, objects)
            if refusal:
                return VolumeRules(refusal=refusal)
            unbound.append(claim)
            continue
        bound = objects.volumes.get(("", claim.spec.volume_name))
        if bound is None:
            return VolumeRules(
                refusal=f"the PersistentVolume '{claim.spec.volume_name}' of its claim '{name}' "
                "does not exist"
            )
        found.append(bound)
        if bound.spec.csi is not None:
            handles.add((bound.spec.csi.driver, bound.spec.csi.volume_handle))
    return VolumeRules(volumes=tuple(found), unbound=tuple(unbound), handles=frozenset(handles))


def volume_rejection(rules: VolumeRules, node: Node, objects: Objects) -> str:
    """Why a node cannot have these volumes; empty if it can."""
    for volume in rules.volumes:
        required = volume.spec.node_affinity.required
        if required is not None and not node_selector_holds(required, node):
            return "out of reach of its volume"
        if not _is_in_zone(volume, node):
            return "in another zone than its volume"
    for claim in rules.unbound:
        selected = claim.metadata.annotations.get(SELECTED_NODE, node.metadata.name)
        if selected != node.metadata.name:
            return "not the node that was selected for its volume"
        storage = objects.storage_classes["", claim.spec.storage_class_name or ""]
        if storage.allowed_topologies and not any(
            all(
                node.metadata.labels.get(one.key) in one.values
                for one in term.match_label_expressions
            )
            for term in storage.allowed_topologies
        ):
            return "outside the topology of its storage class"
        if _counts_capacity(storage, objects) and not _has_capacity(claim, node, objects):
            return "without enough capacity of its storage class"
    return ""


def _counts_capacity(storage: StorageClass, objects: Objects) -> bool:
    """Tell whether the driver of a class publishes what it can still make."""
    driver = objects.csi_drivers.get(("", storage.provisioner))
    return driver is not None and driver.spec.storage_capacity


def _has_capacity(claim: PersistentVolumeClaim, node: Node, objects: Objects) -> bool:
    """As kube-scheduler does: each claim of a pod is compared for itself."""
    wanted = amount(MEMORY, claim.spec.resources.requests.get("storage", "0"))
    for one in objects.storage_capacities.values():
        limit = one.maximum_volume_size or one.capacity
        if (
            one.storage_class_name == claim.spec.storage_class_name
            and limit
            and amount(MEMORY, limit, up=False) >= wanted
            and matches(one.node_topology, node.metadata.labels)
        ):
            return True
    return False


def node_selector_holds(selector: NodeSelector, node: Node) -> bool:
    """Tell whether one term of a node selector holds; one without terms never does."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(
        requirement_holds(one, node.metadata.labels) for one in term.match_expressions
    ) and all(one.key in fields and requirement_holds(one, fields) for one in term.match_fields)


def _why_not_provisioned(claim: PersistentVolumeClaim, objects: Objects) -> str:
    """Why a claim without a volume does not get one after the node is chosen."""
    name, kind = claim.metadata.name, claim.spec.storage_class_name
    storage = objects.storage_classes.get(("", kind or ""))
    if storage is None:
        return (
            f"its PersistentVolumeClaim '{name}' is not bound, and storage class "
            f"'{kind or ''}' does not exist"
        )
    if storage.volume_binding_mode != "WaitForFirstConsumer":
        return f"its PersistentVolumeClaim '{name}' is not bound yet"
    if storage.provisioner == NO_PROVISIONER:
        return (
            f"its PersistentVolumeClaim '{name}' is to be bound to one of several local volumes, "
            "which this scheduler does not choose; bind it first"
        )
    return ""


def _is_in_use(pod: Pod, claim: str, objects: Objects) -> bool:
    return any(
        claim in volume_claims(other)
        for (namespace, _), other in objects.pods.items()
        if namespace == pod.metadata.namespace
        and other.metadata.uid != pod.metadata.uid
        and is_bound(other)
        and not has_ended(other)
    )


def _is_in_zone(volume: PersistentVolume, node: Node) -> bool:
    """As kube-scheduler does: a node without any label of a zone is in all zones."""
    labels = node.metadata.labels
    if not any(key in labels for key in ZONE_LABELS):
        return True
    return all(
        labels.get(key) in volume.metadata.labels[key].split("__")
        for key in ZONE_LABELS
        if key in volume.metadata.labels
    )
