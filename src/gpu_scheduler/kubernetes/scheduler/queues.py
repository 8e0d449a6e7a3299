"""GpuQueues as tenants of the engine: the only place that knows how the two correspond.

The engine gives a tenant one quota of GPUs over all models, strict or elastic (guaranteed, with
unlimited borrowing). What a GpuQueue says beyond that is refused with a sentence, never ignored:
claims of such a queue wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_scheduler.kubernetes.crds.queue import ANY_MODEL, GpuQueue
from gpu_scheduler.kubernetes.scheduler.objects_view import Key
from gpu_scheduler.model.errors import InvalidRequest
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
    refusals: Mapping[str, str]
    """Queues that the engine cannot enforce as they are written, with the reason."""
    preemptible: Mapping[str, bool]
    _of_namespace: Mapping[str, str]
    _only_for: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, queues: Mapping[Key, GpuQueue]) -> "Queues":
        """Translate all queues."""
        tenants: dict[str, Tenant] = {}
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
                tenants[name] = _tenant(name, queue)
            except InvalidRequest as error:
                refusals[name] = str(error)
        return cls(
            tenants=tenants,
            refusals=refusals,
            preemptible=preemptible,
            _of_namespace=of_namespace,
            _only_for=only_for,
        )

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


def _tenant(name: str, queue: GpuQueue) -> Tenant:
    spec = queue.spec
    if spec.parent:
        raise InvalidRequest(f"GpuQueue '{name}' has a parent, which is not supported yet")
    if any(quota.model != ANY_MODEL for quota in spec.quotas):
        raise InvalidRequest(
            f"GpuQueue '{name}' has a quota for one GPU model, which is not supported yet; "
            "use model '*'"
        )
    if spec.budget is not None:
        raise InvalidRequest(
            f"GpuQueue '{name}' has a budget of GPU-hours, which is not supported yet; leave it out"
        )
    gpu_milli = None
    is_elastic = False
    for quota in spec.quotas:
        gpu_milli = quota.guaranteed * WHOLE_MILLI
        is_elastic = quota.borrowing_limit is None
        if quota.borrowing_limit:
            raise InvalidRequest(
                f"GpuQueue '{name}' limits borrowing to {quota.borrowing_limit} GPUs, which is not "
                "supported yet; leave it out, or set it to 0"
            )
        if quota.lending_limit is not None:
            raise InvalidRequest(
                f"GpuQueue '{name}' limits lending, which is not supported yet; leave it out"
            )
    return Tenant(
        id=name,
        quota=Quota(
            gpu_milli=gpu_milli,
            concurrent_jobs=spec.max_running_claims,
            pending_jobs=spec.max_pending_claims,
        ),
        tier=Tier(spec.tier.value),
        weight_milli=spec.weight * WEIGHT_ONE_MILLI,
        elastic=is_elastic,
        allow_preemption=spec.preemptible is not False,
        can_preempt_others=spec.can_preempt_others is not False,
    )
