"""GpuQueue: a node of the quota tree; what is guaranteed, borrowed and lent, and the fair share."""

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec

from gpu_scheduler.kubernetes.crds.claim import Name
from gpu_scheduler.kubernetes.crds.conditions import Conditions
from gpu_scheduler.kubernetes.crds.definition import Column, CustomResource
from gpu_scheduler.kubernetes.crds.schema import Rule, a_set, documented, keyed_by
from gpu_scheduler.kubernetes.objects import Object, Value

ANY_MODEL = "*"


class QueueTier(StrEnum):
    """How important a queue is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Period(StrEnum):
    """The period of a budget; weeks begin on Monday, days at midnight UTC."""

    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


class GpuQuota(Value, frozen=True, kw_only=True):
    """The quota for GPUs of one model."""

    model: Annotated[
        str,
        documented(
            "The GPU model, such as H100; * stands for GPUs of all models together.",
            min_length=1,
            max_length=63,
        ),
    ] = ANY_MODEL
    guaranteed: Annotated[
        int,
        documented(
            "GPUs that the queue can always have, by preemption of borrowers if needed.", ge=0
        ),
    ]
    borrowing_limit: Annotated[
        int | None,
        documented(
            "How many idle GPUs of other queues it may use in addition; absent means any number, "
            "0 none.",
            minimum=0,
        ),
    ] = None
    lending_limit: Annotated[
        int | None,
        documented(
            "How many of its guaranteed GPUs others may use while they are idle; absent means all, "
            "0 none.",
            minimum=0,
        ),
    ] = None

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="!has(self.lendingLimit) || self.lendingLimit <= self.guaranteed",
            message="a queue cannot lend more GPUs than it is guaranteed",
            field=".lendingLimit",
        ),
    )


class GpuBudget(Value, frozen=True, kw_only=True):
    """GPU-hours that the queue may use."""

    gpu_hours: Annotated[int, documented("The GPU-hours of one period.", ge=0)]
    period: Annotated[Period, documented("When the budget starts again.")] = Period.MONTH


class GpuQueueSpec(Value, frozen=True, kw_only=True):
    """What the queue is entitled to."""

    parent: Annotated[
        str,
        documented(
            "The queue that this one is a part of. The queues of one parent share its quota.",
            max_length=253,
        ),
    ] = ""
    namespaces: Annotated[
        tuple[Name, ...],
        documented(
            "Namespaces whose claims use this queue unless they name another; only these may use "
            "it if there are any.",
            max_length=1024,
            **a_set(),
        ),
    ] = ()
    quotas: Annotated[
        tuple[GpuQuota, ...],
        documented(
            "The quota for each GPU model; without any, the queue only uses idle GPUs.",
            max_length=64,
            **keyed_by("model"),
        ),
    ] = ()
    weight: Annotated[
        int,
        documented(
            "The share of idle GPUs, relative to the other queues of the same parent.",
            ge=1,
            le=1_000_000,
        ),
    ] = 1
    tier: Annotated[
        QueueTier, documented("How important the queue is: low, medium, high or critical.")
    ] = QueueTier.MEDIUM
    preemptible: Annotated[
        bool | None,
        documented(
            "Whether claims of the queue may be evicted for more urgent ones; default true."
        ),
    ] = None
    can_preempt_others: Annotated[
        bool | None,
        documented("Whether claims of the queue may evict less urgent ones; default true."),
    ] = None
    max_running_claims: Annotated[
        int | None, documented("At most so many claims run at once.", minimum=0)
    ] = None
    max_pending_claims: Annotated[
        int | None, documented("At most so many claims wait at once.", minimum=0)
    ] = None
    budget: Annotated[GpuBudget | None, documented("GPU-hours that the queue may use.")] = None


class QueueUsage(Value, frozen=True, kw_only=True):
    """The use of GPUs of one model."""

    model: Annotated[str, documented("The GPU model; * for all.", max_length=63)]
    allocated: Annotated[float, documented("GPUs in use.", ge=0)] = 0
    borrowed: Annotated[float, documented("GPUs in use beyond the guaranteed ones.", ge=0)] = 0
    lent: Annotated[float, documented("Guaranteed GPUs that others use.", ge=0)] = 0


class GpuQueueStatus(Value, frozen=True, kw_only=True):
    """What the queue uses."""

    pending_claims: Annotated[int, documented("Claims that wait.", ge=0)] = 0
    running_claims: Annotated[int, documented("Claims that have GPUs.", ge=0)] = 0
    guaranteed_gpus: Annotated[int, documented("Guaranteed GPUs of all models.", ge=0)] = (
        msgspec.field(default=0, name="guaranteedGPUs")
    )
    allocated_gpus: Annotated[float, documented("GPUs in use, of all models.", ge=0)] = (
        msgspec.field(default=0, name="allocatedGPUs")
    )
    borrowed_gpus: Annotated[float, documented("GPUs in use beyond the guaranteed ones.", ge=0)] = (
        msgspec.field(default=0, name="borrowedGPUs")
    )
    fair_share_percent: Annotated[
        float | None, documented("The share of the GPUs that the weight gives.")
    ] = None
    recent_share_percent: Annotated[
        float | None, documented("The share that the queue has used recently.")
    ] = None
    used_gpu_hours: Annotated[
        float | None, documented("GPU-hours used in the current period of the budget.")
    ] = msgspec.field(default=None, name="usedGPUHours")
    usage: Annotated[
        tuple[QueueUsage, ...],
        documented("The use by GPU model.", max_length=64, **keyed_by("model")),
    ] = ()
    observed_generation: Annotated[
        int | None, documented("The generation of the spec that this status is about.", minimum=0)
    ] = None
    conditions: Conditions = ()


class GpuQueue(Object, frozen=True, kw_only=True):
    """A part of the GPUs of the cluster for a team: guaranteed GPUs, limits for borrowing and
    lending, and a weight for the rest. Queues form a tree.
    """

    spec: Annotated[GpuQueueSpec, documented("What the queue is entitled to.")]
    status: Annotated[GpuQueueStatus, documented("What the queue uses.")] = GpuQueueStatus()

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            expression="!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            message="a queue cannot be its own parent",
            field=".spec.parent",
        ),
    )


GPU_QUEUES = CustomResource(
    type=GpuQueue,
    kind="GpuQueue",
    plural="gpuqueues",
    is_namespaced=False,
    short_names=("gqueue",),
    columns=(
        Column(name="Parent", path=".spec.parent"),
        Column(name="Weight", path=".spec.weight", type="integer"),
        Column(name="Guaranteed", path=".status.guaranteedGPUs", type="integer"),
        Column(name="Allocated", path=".status.allocatedGPUs", type="number"),
        Column(name="Borrowed", path=".status.borrowedGPUs", type="number"),
        Column(name="Running", path=".status.runningClaims", type="integer"),
        Column(name="Pending", path=".status.pendingClaims", type="integer"),
        Column(name="Tier", path=".spec.tier", is_wide=True),
        Column(name="Share %", path=".status.recentSharePercent", type="number", is_wide=True),
    ),
)
