"""The cluster state as one frozen value, to save, compare and replay decisions."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation, ResumePoint
from gpu_scheduler.model.request import TypicalShape
from gpu_scheduler.model.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A queue entry: a job without holds, unmet dependencies or a later begin time.

    `expected_ms`: expected run time, fixed when it is queued. `attained_ms`: run time kept from
    earlier attempts; `served_ms`: all run time, kept or lost. `since_ms`: start of this wait. A
    `protected` job has waited so long that it goes first and is not preempted by feedback.
    """

    job: Job
    expected_ms: int
    tasks: IntervalSet | None = None
    since_ms: int = 0
    attained_ms: int = 0
    served_ms: int = 0
    waited_ms: int = 0
    preemptions: int = 0
    protected: bool = False

    def waited_at(self, now_ms: int) -> int:
        """The total waiting time until now."""
        return self.waited_ms + max(0, now_ms - self.since_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A running allocation with what the engine needs to plan around it."""

    job: Job
    allocation: Allocation
    expected_end_ms: int
    limit_end_ms: int = 0
    checkpoint_ms: int = 0
    attained_ms: int = 0
    served_ms: int = 0
    waited_ms: int = 0
    preemptions: int = 0
    backfilled: bool = False
    overrun: bool = False
    stopping: bool = False
    protected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUsage:
    """The recent usage of a tenant or user.

    `usage`: decayed GPU time. `recent_gpu_milli`: recent average of milli-GPUs in use.
    `spent_gpu_milli_ms`: use of the GPU-hours budget, which is reset at `turns_ms` (0: never).
    """

    usage: int = 0
    recent_gpu_milli: int = 0
    spent_gpu_milli_ms: int = 0
    turns_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuota:
    """The percentage of all GPUs that a pool may hold. Elastic pools lend idle capacity."""

    pool: Pool
    percent: int
    elastic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a scheduling decision depends on, in a canonical order.

    `demand` is what recent jobs asked for, for rankings that ask what free resources are good for;
    `thresholds_ms` the levels of attained service (None: those of the policy).
    """

    nodes: tuple[Node, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    running: tuple[Running, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    tenant_usage: tuple[tuple[str, AccountUsage], ...] = ()
    user_usage: tuple[tuple[tuple[str, str], AccountUsage], ...] = ()
    node_usage: tuple[tuple[str, AccountUsage], ...] = ()
    pools: tuple[PoolQuota, ...] = ()
    advance_reservations: tuple[AdvanceReservation, ...] = ()
    resume_after: ResumePoint | None = None
    demand: tuple[TypicalShape, ...] = ()
    thresholds_ms: tuple[int, ...] | None = None
