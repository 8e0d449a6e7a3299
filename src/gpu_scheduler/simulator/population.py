"""Who submits generated work: users with recurring kinds of jobs, each with its own habits.

Kinds repeat, so that the past of a (user, job name) says something about its future.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gpu_scheduler.model.errors import InvalidRequest, NeverFits
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import WHOLE_MILLI, Request
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.shape import DAY_S, HOUR_S, MINUTE_S, WorkShape

FRACTIONS_MILLI = (100, 200, 250, 300, 500)
ROUND_LIMITS_S = (
    *(15 * MINUTE_S, 30 * MINUTE_S, HOUR_S, 2 * HOUR_S, 4 * HOUR_S, 8 * HOUR_S, 12 * HOUR_S),
    *(DAY_S, 2 * DAY_S, 3 * DAY_S, 7 * DAY_S, 14 * DAY_S),
)
FAILURE_S = (5, 300)
"""Between these times a failing job ends."""
NINE_IN_TEN = 1.2816
"""This many standard deviations above the middle lie nine of ten draws."""
BATCH_NAMES = ("train", "finetune", "pretrain", "evaluate", "distill", "infer", "simulate")
CPU_NAMES = ("preprocess", "tokenize", "convert", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A recurring job of one user. `share` is its part of all jobs.

    A run time is e to a normal draw around `log_median`, cut at `longest_s`.
    """

    tenant: str
    user: str
    name: str
    members: tuple[Request, ...]
    share: float
    log_median: float
    log_spread: float
    longest_s: int
    limit_s: int
    interactive: bool
    sweep_jobs: float

    @property
    def gpu_milli(self) -> int:
        """GPUs of all members."""
        return sum(member.gpu_milli for member in self.members)

    def run_s(self, chance: Random, fail_share: float) -> int:
        """One run time in whole seconds."""
        if chance.random() < fail_share:
            return min(chance.randint(*FAILURE_S), self.longest_s)
        drawn = math.exp(chance.gauss(self.log_median, self.log_spread))
        return max(1, min(round(drawn), self.longest_s))

    def mean_run_s(self, fail_share: float) -> float:
        """What `run_s` gives on average."""
        failing = sum(FAILURE_S) / 2
        return fail_share * failing + (1 - fail_share) * self._mean_cut_run_s()

    def _mean_cut_run_s(self) -> float:
        """The mean of a log-normal draw that is cut at its longest."""
        spread = self.log_spread
        log_longest = math.log(self.longest_s)
        if spread == 0:
            return math.exp(min(self.log_median, log_longest))
        distance = (log_longest - self.log_median) / spread
        below = math.exp(self.log_median + spread**2 / 2) * _normal_below(distance - spread)
        return below + self.longest_s * (1 - _normal_below(distance))


@dataclass(frozen=True, slots=True)
class Owner:
    """A user of a tenant."""

    tenant: str
    user: str


@dataclass(frozen=True, slots=True)
class Size:
    """A request that some share of all jobs makes, and the names such jobs bear."""

    members: tuple[Request, ...]
    share: float
    names: tuple[str, ...]
    is_small: bool


def kinds_of(shape: WorkShape, nodes: tuple[Node, ...], chance: Random) -> tuple[Kind, ...]:
    """Every user with some kinds of each size. Shares add up to 1."""
    owners = [
        Owner(f"tenant-{place % shape.tenants + 1}", f"user-{place + 1:03d}")
        for place in range(shape.users)
    ]
    kinds: list[Kind] = []
    for size in _sizes(shape, nodes):
        # A taste of their own, so that the busiest user is not the busiest at every size.
        weights = [
            math.exp(chance.gauss(0, 1)) / (place + 1) ** shape.user_skew
            for place in range(len(owners))
        ]
        total = sum(weights)
        for owner, weight in zip(owners, weights, strict=True):
            count = chance.randint(1, shape.kinds_per_user)
            for _ in range(count):
                share = size.share * weight / total / count
                kinds.append(_kind(shape, size, owner, share, len(kinds), chance))
    return tuple(kinds)


def _kind(
    shape: WorkShape, size: Size, owner: Owner, share: float, number: int, chance: Random
) -> Kind:
    interactive = size.is_small and chance.random() < shape.interactive_share
    sweeps = size.is_small and not interactive and chance.random() < shape.sweep_share
    name = "notebook" if interactive else chance.choice(size.names)
    gpus = max(1.0, sum(member.gpu_milli for member in size.members) / WHOLE_MILLI)
    log_median = math.log(shape.median_run_s * gpus**shape.size_exponent)
    log_median += chance.gauss(0, shape.kind_spread)
    # At least half of the runs of a kind end by themselves.
    log_median = min(log_median, math.log(shape.longest_run_s / 2))
    log_spread = chance.uniform(*shape.run_spread)
    long_run_s = math.exp(log_median + NINE_IN_TEN * log_spread)
    limit_s = _round_limit_s(long_run_s * chance.uniform(*shape.limit_factor), shape)
    if chance.random() >= shape.limit_share:
        limit_s = 0
    return Kind(
        tenant=owner.tenant,
        user=owner.user,
        name=f"{name}-{number}",
        members=size.members,
        share=share,
        log_median=log_median,
        log_spread=log_spread,
        longest_s=limit_s or shape.longest_run_s,
        limit_s=limit_s,
        interactive=interactive,
        sweep_jobs=max(2, shape.sweep_jobs) if sweeps else 1,
    )


def _round_limit_s(wanted_s: float, shape: WorkShape) -> int:
    """The next value that people write down, and never more than the longest run."""
    rounded = next((limit for limit in ROUND_LIMITS_S if limit >= wanted_s), ROUND_LIMITS_S[-1])
    return min(rounded, shape.longest_run_s)


def _sizes(shape: WorkShape, nodes: tuple[Node, ...]) -> tuple[Size, ...]:
    """The sizes that this cluster can run, with shares that add up to 1."""
    fit = Fit(nodes)
    found = [size for size in _wanted_sizes(shape, nodes, fit) if size.share > 0]
    if not any(member.gpu_milli for size in found for member in size.members):
        raise InvalidRequest(
            f"none of the GPU counts in gpu_mix fits a cluster of {fit.gpu_count} GPUs; "
            "use smaller counts or more nodes"
        )
    total = sum(size.share for size in found)
    return tuple(
        Size(size.members, size.share / total, size.names, size.is_small) for size in found
    )


def _wanted_sizes(shape: WorkShape, nodes: tuple[Node, ...], fit: Fit) -> Iterator[Size]:
    with_gpus = [node for node in nodes if node.devices]
    cpu_milli = min(
        [shape.cpu_milli_per_gpu, *(node.cpu_milli // node.gpu_count for node in with_gpus)]
    )
    memory_mb = min(
        [shape.memory_mb_per_gpu, *(node.memory_mb // node.gpu_count for node in with_gpus)]
    )
    device_mb = min((device.memory_mb for node in with_gpus for device in node.devices), default=0)

    def size(gpus_milli: int, share: float, names: tuple[str, ...]) -> Iterator[Size]:
        request = Request.for_gpus(
            gpus_milli,
            gpu_memory_mb_per_gpu=device_mb * gpus_milli // WHOLE_MILLI if gpus_milli < 1000 else 0,
            cpu_milli=cpu_milli * max(gpus_milli, WHOLE_MILLI) // WHOLE_MILLI,
            memory_mb=memory_mb * max(gpus_milli, WHOLE_MILLI) // WHOLE_MILLI,
        )
        try:
            yield Size(fit.spread(request), share, names, gpus_milli <= WHOLE_MILLI)
        except NeverFits:
            return

    largest = max(fit.largest_gpu_count, fit.gpu_count // 2)
    whole_share = 1 - shape.fraction_share - shape.cpu_only_share
    total = sum(weight for _, weight in shape.gpu_mix)
    for gpus, weight in shape.gpu_mix:
        if gpus <= largest:
            yield from size(gpus * WHOLE_MILLI, whole_share * weight / total, BATCH_NAMES)
    for fraction_milli in FRACTIONS_MILLI if fit.gpu_count else ():
        share = shape.fraction_share / len(FRACTIONS_MILLI)
        yield from size(fraction_milli, share, BATCH_NAMES)
    if cpu_milli:
        yield from size(0, shape.cpu_only_share, CPU_NAMES)


def _normal_below(distance: float) -> float:
    """The share of normal draws that lie below so many standard deviations."""
    return (1 + math.erf(distance / math.sqrt(2))) / 2
