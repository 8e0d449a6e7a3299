"""The parameters of generated work, each with a default that looks like a shared GPU cluster.

The defaults follow what published GPU traces show: most jobs take one GPU and a few minutes, most
GPU time goes to a few large and long ones, and people ask for more time than they need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import read_priority

MINUTE_S = 60
HOUR_S = 60 * MINUTE_S
DAY_S = 24 * HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkShape:
    """How many jobs, how large, how long, whose and when.

    A `share` lies between 0 and 1. Time 0 is midnight before a Monday.
    """

    jobs: int = 10_000
    """How many jobs to make."""
    load: float = 0.9
    """Offered GPU time over GPU capacity, in the long run; above 1 the queue grows for ever."""
    tenants: int = 6
    users: int = 60
    """Users go round the tenants by number, so the first tenant is the busiest."""
    user_skew: float = 1.0
    """Zipf exponent: the n-th user submits 1/n^skew as many jobs as the first."""
    kinds_per_user: int = 3
    """At most how many recurring jobs a user has of each size."""
    gpu_mix: tuple[tuple[int, float], ...] = (
        (1, 0.62),
        (2, 0.12),
        (4, 0.09),
        (8, 0.12),
        (16, 0.03),
        (32, 0.015),
        (64, 0.005),
    )
    """GPU counts and their weights. Counts above half of the cluster and one node are left out."""
    fraction_share: float = 0.12
    """Share of jobs with 0.1 to 0.5 GPU."""
    cpu_only_share: float = 0.06
    """Share of jobs without a GPU."""
    interactive_share: float = 0.05
    """Share of the fractional and one-GPU kinds that are interactive sessions."""
    median_run_s: int = 15 * MINUTE_S
    """Median run time of a typical one-GPU kind."""
    kind_spread: float = 1.5
    """Standard deviation of the logarithm of the median, between kinds."""
    run_spread: tuple[float, float] = (0.2, 1.2)
    """Standard deviation of the logarithm of the run time within a kind: from, to."""
    size_exponent: float = 0.25
    """The median grows with the GPU count to this power."""
    longest_run_s: int = 7 * DAY_S
    fail_share: float = 0.12
    """Share of jobs that fail within the first minutes."""
    limit_share: float = 0.85
    """Share of kinds whose user states a limit."""
    limit_factor: tuple[float, float] = (1.2, 6.0)
    """How far people overestimate a long run: from, to; then rounded up to 1 h, 4 h, 12 h ..."""
    sweep_share: float = 0.25
    """Share of the kinds up to one GPU that are submitted as sweeps of many jobs at once."""
    sweep_jobs: int = 12
    """Mean number of jobs in a sweep."""
    sweep_gap_s: int = 5
    """At most how many seconds lie between two jobs of a sweep."""
    day_swing: float = 0.7
    """How far arrivals swing around the mean over the day: 0 not at all, 1 down to nothing."""
    peak_hour: float = 15.0
    weekend_factor: float = 0.5
    """Arrivals on Saturday and Sunday over those on a working day."""
    priorities: tuple[tuple[str, float], ...] = (
        ("low", 0.12),
        ("normal", 0.76),
        ("high", 0.10),
        ("urgent", 0.02),
    )
    """Names or numbers of priorities and their weights."""
    cpu_milli_per_gpu: int = 4_000
    memory_mb_per_gpu: int = 16_384
    """What a GPU brings along; less where a node has less per GPU."""

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        for item in fields(self):
            _check_number(item.name, getattr(self, item.name))
        if self.load == 0 or not self.gpu_mix or not self.priorities:
            raise InvalidRequest("load, gpu_mix and priorities must not be 0 or empty")
        for name in ("run_spread", "limit_factor"):
            low, high = getattr(self, name)
            if low > high:
                raise InvalidRequest(f"{name} goes from {low} to {high}; it must not fall")
        if self.fraction_share + self.cpu_only_share >= 1:
            raise InvalidRequest("fraction_share and cpu_only_share leave no job with whole GPUs")
        if any(gpus < 1 for gpus, _ in self.gpu_mix):
            raise InvalidRequest("gpu_mix holds a count below 1; use the shares for less than 1")
        for weights in (self.gpu_mix, self.priorities):
            if sum(weight for _, weight in weights) <= 0:
                raise InvalidRequest("the weights of gpu_mix and of priorities must not all be 0")
        for name, _ in self.priorities:
            read_priority(name)


_AT_LEAST_ONE = frozenset(
    {
        "jobs",
        "tenants",
        "users",
        "kinds_per_user",
        "median_run_s",
        "longest_run_s",
        "sweep_jobs",
    }
)
_AT_MOST_ONE = frozenset({"day_swing"})


def _check_number(name: str, value: object) -> None:
    """Walk into pairs; every number must be finite and 0 or more, and shares at most 1."""
    if isinstance(value, tuple):
        for item in value:
            _check_number(name, item)
    elif isinstance(value, (int, float)):
        if not math.isfinite(value) or value < 0:
            raise InvalidRequest(f"{name} is {value}; it must be 0 or more")
        if name in _AT_LEAST_ONE and value < 1:
            raise InvalidRequest(f"{name} is {value}; it must be 1 or more")
        if (name in _AT_MOST_ONE or name.endswith("_share")) and value > 1:
            raise InvalidRequest(f"{name} is {value}; it must lie between 0 and 1")
