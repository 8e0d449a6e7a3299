"""GpuQueues as tenants and the quota tree of the engine: the only place that knows how they
correspond.

A queue that contradicts another one, and all below it, is refused with a sentence, never ignored:
its claims wait. So is a budget of GPU-hours, because no object keeps what ended pods have used.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_scheduler.kubernetes.crds.queue import ANY_MODEL, GpuQueue
from gpu_scheduler.kubernetes.scheduler.objects_view import Key
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import canonical_model_name
from gpu_scheduler.model.quota_tree import InvalidNode, NodeQuota, QuotaNode, checked_tree
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import (
    WEIGHT_ONE_MILLI,
    Quota,
    Tenant,
    Tier,
)

DEFAULT_QUEUE = "default"
"""The tenant of pods for which there is no queue; it has no limits unless a GpuQueue names some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The queues of a cluster: tenants by name, and for a namespace the queue that it uses."""

    tenants: Mapping[str, Tenant]
    tree: tuple[QuotaNode, ...]
    refusals: Mapping[str, str]
    """Queues that the engine cannot enforce as they are written, with the reason."""
    preemptible: Mapping[str, bool]
    _of_namespace: Mapping[str, str]
    _only_for: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, queues: Mapping[Key, GpuQueue]) -> "Queues":
        """Translate all queues."""
        nodes: dict[str, QuotaNode] = {}
        refusals: dict[str, str] = {}
        preemptible: dict[str, bool] = {}
        of_namespace: dict[str, str] = {}
        only_for: dict[str, tuple[str, ...]] = {}
        for (_, name), queue in sorted(queues.items()):
            only_for[name] = queue.spec.namespaces
            preemptible[name] = queue.spec.preemptible is not False
            for namespace in queue.spec.namespaces:
                of_namespace.setdefault(namespace, name)
            try:
                nodes[name] = _quota_node(name, queue)
            except InvalidRequest as error:
                refusals[name] = str(error)
        tree = _consistent(nodes, refusals)
        tenants = {node.name: _tenant(node.name, queues["", node.name]) for node in tree}
        return cls(
            tenants=tenants,
            tree=tree,
            refusals=refusals,
            preemptible=preemptible,
            _of_namespace=of_namespace,
            _only_for=only_for,
        )

    def namespaces(self, name: str) -> tuple[str, ...]:
        """The only namespaces that may use a queue; none if all may."""
        return self._only_for.get(name, ())

    def choose(self, namespace: str, wanted: str) -> tuple[str, str]:
        """The queue of a pod, and why it may not use that one (empty: it may)."""
        name = wanted or self._of_namespace.get(namespace, DEFAULT_QUEUE)
        if name in self.refusals:
            return name, self.refusals[name]
        if name not in self._only_for:
            if not wanted or wanted == DEFAULT_QUEUE:
                return DEFAULT_QUEUE, ""
            return name, f"its GpuQueue '{name}' does not exist"
        allowed = self._only_for[name]
        if allowed and namespace not in allowed:
            return name, f"its GpuQueue '{name}' is not open to namespace '{namespace}'"
        return name, ""


def _consistent(nodes: dict[str, QuotaNode], refusals: dict[str, str]) -> tuple[QuotaNode, ...]:
    """The queues that make a tree together; what contradicts itself or others is refused."""
    while True:
        for name, node in list(nodes.items()):
            if node.parent in refusals:
                refusals[name] = (
                    f"GpuQueue '{name}' is below '{node.parent}': " + (refusals[node.parent])
                )
                del nodes[name]
        try:
            return checked_tree(nodes.values())
        except InvalidNode as error:
            refusals[error.node] = f"GpuQueue '{error.node}' cannot be used: {error}"
            del nodes[error.node]


def _quota_node(name: str, queue: GpuQueue) -> QuotaNode:
    spec = queue.spec
    if spec.budget is not None:
        raise InvalidRequest(
            f"GpuQueue '{name}' has a budget of GPU-hours, which is not supported yet; leave it out"
        )
    return QuotaNode(
        name=name,
        parent=spec.parent,
        quotas=tuple(
            NodeQuota(
                model=ANY_MODEL if quota.model == ANY_MODEL else canonical_model_name(quota.model),
                guaranteed_milli=quota.guaranteed * WHOLE_MILLI,
                borrowing_limit_milli=_milli(quota.borrowing_limit),
                lending_limit_milli=_milli(quota.lending_limit),
            )
            for quota in spec.quotas
        ),
        weight_milli=spec.weight * WEIGHT_ONE_MILLI,
    )


def _milli(gpus: int | None) -> int | None:
    return None if gpus is None else gpus * WHOLE_MILLI


def _tenant(name: str, queue: GpuQueue) -> Tenant:
    spec = queue.spec
    return Tenant(
        id=name,
        quota=Quota(concurrent_jobs=spec.max_running_claims, pending_jobs=spec.max_pending_claims),
        tier=Tier(spec.tier.value),
        weight_milli=spec.weight * WEIGHT_ONE_MILLI,
        allow_preemption=spec.preemptible is not False,
        can_preempt_others=spec.can_preempt_others is not False,
    )
