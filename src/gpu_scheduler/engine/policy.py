"""The scheduling policy: everything that can be chosen about how the engine decides.

A policy is a value. Policies with a name are in `presets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_scheduler.model.quota_tree import QuotaNode
from gpu_scheduler.model.request import TypicalShape
from gpu_scheduler.model.tenant import BudgetPeriod, Quota

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
ALL_RESERVATIONS = 1_000_000


class Queueing(StrEnum):
    """What happens behind a job that does not fit."""

    BLOCKING = "blocking"
    SKIP = "skip"
    RESERVE = "reserve"


class Ranking(StrEnum):
    """Which of the feasible places is taken."""

    PACK = "pack"
    SPREAD = "spread"
    RANDOM = "random"
    DOT_PRODUCT = "dot_product"
    CLUSTERING = "clustering"
    PACKING = "packing"
    BEST_FIT = "best_fit"
    FGD = "fgd"
    BALANCE = "balance"


class Preemption(StrEnum):
    """For which reason a waiting job may stop a running one."""

    NONE = "none"
    CLASS = "class"
    FEEDBACK = "feedback"
    REMAINING = "remaining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Who comes first, all in milliseconds of waiting, so that the weights can be compared.

    key = submission (unless `age` is off)
          - `class_point_ms` for every point of static class
          + `short_ms` for every doubling of the expected run time beyond `short_floor_ms` (and
            `short_gpu_percent` of that for every doubling of the GPUs), at most `short_cap_ms`
          + `expected_milli`/1000 x the expected run time (unbounded; for sjf and srtf)
          - `deadline_ms` for jobs with a deadline, at most the time that is left to it
    and, changing with use, + `fair_ms` for every fair share a tenant has had (and `user_fair_ms`
    likewise inside the tenant), at most `fair_cap` shares.
    """

    age: bool = True
    class_point_ms: int = MINUTE_MS
    short_ms: int = 0
    short_floor_ms: int = MINUTE_MS
    short_cap_ms: int = 0
    short_gpu_percent: int = 100
    expected_milli: int = 0
    deadline_ms: int = 0
    fair_ms: int = 0
    user_fair_ms: int = 0
    fair_cap: int = 4

    @property
    def is_fair(self) -> bool:
        """Tell whether the order depends on what accounts have used."""
        return self.fair_ms > 0 or self.user_fair_ms > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Levels of attained service: a job sinks one level at each threshold.

    A job never rises, unless `adapts`: then the site's own run times decide which thresholds are
    used (`priority.useful_thresholds`), and there may be none.

    A waiting job may stop a running one only of a strictly lower level, and only after
    `quantum_ms` of running. A job that has waited `protect_after_ms` in all becomes protected: it
    goes first, may stop all jobs that are not protected, and is not stopped. While protected jobs
    hold or ask for `protect_percent` of all GPUs, no further job becomes protected until it has
    waited `protect_at_latest_ms`: a queue in which all wait long keeps its short jobs moving.
    """

    thresholds_ms: tuple[int, ...] = ()
    adapts: bool = False
    by_gpus: bool = True
    quantum_ms: int = 0
    protect_after_ms: int = 0
    protect_percent: int = 100
    protect_at_latest_ms: int = 0
    tick_ms: int = MINUTE_MS

    @property
    def longest_unprotected_ms(self) -> int:
        """The wait after which every job is protected; 0 if jobs never are."""
        return max(self.protect_after_ms, self.protect_at_latest_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCost:
    """What an eviction costs besides `eviction_ms`, to choose victims by expected remaining work.

    A job that resumes needs `restart_ms` to get where it was. Jobs that report no checkpoints are
    taken to save their work every `checkpoint_every_ms` (0: never). A job is spared if it should
    end before its eviction would pay off, but for at most `spare_ms`.
    """

    restart_ms: int = 0
    checkpoint_every_ms: int = 0
    spare_ms: int = 30 * MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One complete choice.

    `reservations` blocked jobs keep a place and a time. `max_examined` bounds the work of one
    cycle, and `max_passed_over` how many jobs of one shape are tried that are too long to pass a
    reservation. At most `max_running` jobs (0: any number) run at once. `eviction_ms` is how long
    an eviction takes: a job that ends sooner is not evicted. With `restart`, victims are chosen by
    expected remaining work and the cost of restarting them, else by the work since their start or
    checkpoint alone. With `fills_gaps`, jobs that can be
    preempted may run on devices of an advance reservation if they are expected to end before it.
    By class, interactive jobs may stop batch jobs of their own tenant as long as their user holds
    no more than `interactive_gpu_milli` with them (0: they may not).
    `user_quota` holds for every user of a tenant that states no other. `quota_tree` are the nodes
    that the cluster begins with.
    """

    name: str = "custom"
    order: Order = field(default_factory=Order)
    queueing: Queueing = Queueing.RESERVE
    reservations: int = 1
    reserve_after_ms: int = 0
    ranking: Ranking = Ranking.PACK
    remainder_on_freest: bool = False
    preemption: Preemption = Preemption.NONE
    preempt_gap: int = 500
    feedback: Feedback = field(default_factory=Feedback)
    eviction_ms: int = MINUTE_MS
    restart: RestartCost | None = None
    max_victim_nodes: int = 32
    max_preempt_tries: int = 5
    max_examined: int = 5_000
    max_passed_over: int = 100
    max_running: int = 0
    interactive_gpu_milli: int = 0
    fills_gaps: bool = True
    user_quota: Quota = field(default_factory=Quota)
    quota_tree: tuple[QuotaNode, ...] = ()
    budget_period: BudgetPeriod = BudgetPeriod.TOTAL
    default_limit_ms: int = 7 * DAY_MS
    typical_shapes: tuple[TypicalShape, ...] = ()
    seed: int = 0
