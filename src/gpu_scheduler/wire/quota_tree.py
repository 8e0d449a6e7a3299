"""The schema of a node of the quota tree in the settings, and its conversion."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from gpu_scheduler.model.node import canonical_model_name
from gpu_scheduler.model.quota_tree import ANY_MODEL, NodeQuota, QuotaNode
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI, BudgetPeriod
from gpu_scheduler.wire.tenants import GPU_HOUR, Amount, Weight

ModelName = Annotated[str, Meta(min_length=1, max_length=128)]


class QuotaFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GPUs of one model, or of all models together. An omitted limit means no limit."""

    guaranteed_gpus: Annotated[
        Amount | None,
        Meta(
            description="GPUs that it can always have; they include those of its children. "
            "Without this, the sum of those of its models"
        ),
    ] = None
    max_gpus: Annotated[
        Amount | None, Meta(description="GPUs that it may hold at most, with what it borrows")
    ] = None
    borrowing_limit: Annotated[
        Amount | None, Meta(description="GPUs that it may borrow beyond its guarantee")
    ] = None
    lending_limit: Annotated[
        Amount | None, Meta(description="GPUs of its idle guarantee that it lends at most")
    ] = None

    def quota(self, model: str, otherwise_milli: int = 0) -> NodeQuota:
        """The limits for GPUs of a model; `otherwise_milli` is guaranteed if nothing else is."""
        guaranteed = _milli(self.guaranteed_gpus)
        return NodeQuota(
            model=model,
            guaranteed_milli=otherwise_milli if guaranteed is None else guaranteed,
            maximum_milli=_milli(self.max_gpus),
            borrowing_limit_milli=_milli(self.borrowing_limit),
            lending_limit_milli=_milli(self.lending_limit),
        )


class QuotaNodeFields(QuotaFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the quota tree: its place, limits, weight and budget."""

    parent: Annotated[
        str, Meta(description="the node that it is a part of; without one, the whole cluster")
    ] = ""
    models: Annotated[
        dict[ModelName, QuotaFields],
        Meta(description="the same four limits for single GPU models, as `tgpu gpus` shows them"),
    ] = field(default_factory=dict)
    weight: Annotated[
        Weight | None,
        Meta(
            description="its fair share among the children of its parent; without one, the "
            "`fair_share_weight` of the tenant, or 1"
        ),
    ] = None
    budget_gpu_hours: Annotated[
        Amount | None, Meta(description="GPU-hours that it may use in a period")
    ] = None
    budget_period: Annotated[
        BudgetPeriod, Meta(description="`total`, `week` or `month`; as in `limits.budget_period`")
    ] = BudgetPeriod.MONTH


def read_quota_node(name: str, fields: QuotaNodeFields) -> QuotaNode:
    """Return the node that the fields describe."""
    quotas = [
        each.quota(canonical_model_name(model)) for model, each in sorted(fields.models.items())
    ]
    total = fields.quota(ANY_MODEL, sum(quota.guaranteed_milli for quota in quotas))
    if total != NodeQuota():
        quotas.insert(0, total)
    hours = fields.budget_gpu_hours
    return QuotaNode(
        name=name,
        parent=fields.parent,
        quotas=tuple(quotas),
        weight_milli=None
        if fields.weight is None
        else max(1, round(fields.weight * WEIGHT_ONE_MILLI)),
        budget_gpu_milli_ms=None if hours is None else round(hours * GPU_HOUR),
        budget_period=fields.budget_period,
    )


def _milli(gpus: float | None) -> int | None:
    return None if gpus is None else round(gpus * WHOLE_MILLI)
