"""The whole cluster state as one frozen value: it can be saved, compared and rebuilt from."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.tenant import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that could start now as far as holds, times and dependencies go.

    `expected_ms` is frozen when it enters the queue. `attained_ms` is run time it keeps from
    earlier attempts, `served_ms` all it has had, kept or lost,
    `since_ms` when this wait began. A `protected` job has waited so long that it goes first and is
    no longer preempted by feedback.
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
        """The sum of all its waits until now."""
        return self.waited_ms + max(0, now_ms - self.since_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An allocation, and what the engine must know of it to plan around it."""

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
    """What a tenant or user has had lately.

    `usage` is decayed GPU time, `recent_gpu_milli` an average of what it held lately, and
    `spent_gpu_milli_ms` counts against a budget of GPU hours, until `turns_ms` (0: for ever).
    """

    usage: int = 0
    recent_gpu_milli: int = 0
    spent_gpu_milli_ms: int = 0
    turns_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolQuota:
    """The part of all GPUs that a pool may hold. Elastic pools lend what they leave idle."""

    pool: Pool
    percent: int
    elastic: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a decision depends on, in a canonical order."""

    nodes: tuple[Node, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    running: tuple[Running, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    tenant_usage: tuple[tuple[str, AccountUsage], ...] = ()
    user_usage: tuple[tuple[tuple[str, str], AccountUsage], ...] = ()
    pools: tuple[PoolQuota, ...] = ()
    advance_reservations: tuple[AdvanceReservation, ...] = ()
    resume_after: int = 0
