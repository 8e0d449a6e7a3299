"""Policies by name: those of the literature, to compare with, and our own."""

from __future__ import annotations

from difflib import get_close_matches

from gpu_scheduler.engine.policy import (
    ALL_RESERVATIONS,
    DAY_MS,
    MINUTE_MS,
    Feedback,
    Order,
    Policy,
    Preemption,
    Queueing,
    Ranking,
)
from gpu_scheduler.model.errors import UnknownThing

_BY_SUBMISSION = Order(class_point_ms=0)
_BY_LENGTH = Order(age=False, class_point_ms=0, expected_milli=1000)

PRESETS: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy(
            name="fifo",
            order=_BY_SUBMISSION,
            queueing=Queueing.BLOCKING,
            remainder_on_freest=True,
        ),
        Policy(
            name="sjf",
            order=_BY_LENGTH,
            queueing=Queueing.BLOCKING,
            remainder_on_freest=True,
        ),
        Policy(
            name="srtf",
            order=_BY_LENGTH,
            queueing=Queueing.SKIP,
            preemption=Preemption.REMAINING,
            remainder_on_freest=True,
        ),
        Policy(
            name="las",
            order=_BY_SUBMISSION,
            queueing=Queueing.SKIP,
            preemption=Preemption.FEEDBACK,
            feedback=Feedback(thresholds_ms=(18_000_000,), tick_ms=MINUTE_MS),
            remainder_on_freest=True,
        ),
        Policy(name="skip", order=_BY_SUBMISSION, queueing=Queueing.SKIP, remainder_on_freest=True),
        Policy(name="easy", order=_BY_SUBMISSION, reservations=1),
        Policy(name="conservative", order=_BY_SUBMISSION, reservations=ALL_RESERVATIONS),
        *(
            Policy(
                name=ranking.value, order=_BY_SUBMISSION, queueing=Queueing.SKIP, ranking=ranking
            )
            for ranking in (
                Ranking.RANDOM,
                Ranking.DOT_PRODUCT,
                Ranking.CLUSTERING,
                Ranking.PACKING,
                Ranking.BEST_FIT,
                Ranking.FGD,
                Ranking.BALANCE,
            )
        ),
        Policy(
            name="short",
            order=Order(
                class_point_ms=0,
                short_ms=2_881_000,
                short_cap_ms=50_000_000,
                short_gpu_percent=50,
            ),
            reserve_after_ms=200_000_000,
            remainder_on_freest=True,
        ),
        Policy(
            name="feedback",
            order=_BY_SUBMISSION,
            reserve_after_ms=DAY_MS,
            preemption=Preemption.FEEDBACK,
            feedback=Feedback(
                thresholds_ms=(1_000_000, 10_000_000, 100_000_000, 1_000_000_000),
                adapts=True,
                by_gpus=False,
                quantum_ms=300_000,
                protect_after_ms=DAY_MS,
                protect_percent=25,
                protect_at_latest_ms=5 * DAY_MS,
                tick_ms=300_000,
            ),
            remainder_on_freest=True,
        ),
        Policy(
            name="fair",
            order=Order(fair_ms=7 * DAY_MS, user_fair_ms=DAY_MS, deadline_ms=DAY_MS),
            preemption=Preemption.CLASS,
        ),
    )
}

PRESET_DESCRIPTIONS: dict[str, str] = {
    "fifo": "first come, first served; a job that does not fit blocks all behind it",
    "sjf": "shortest job first; a job that does not fit blocks all behind it",
    "srtf": "shortest remaining time first; preempts longer jobs",
    "las": "least attained service: two levels at 5 GPU-hours, preempts the lower (Tiresias)",
    "skip": "first come, first served; a job that does not fit is skipped",
    "easy": "first come, first served; backfill that never delays the first in line",
    "conservative": "first come, first served; backfill that delays no job",
    "random": "a random place that fits",
    "dot_product": "the place with the smallest dot product of free resources and request",
    "clustering": "the place that holds requests of the same size",
    "packing": "shared GPUs first, then used nodes, then empty ones",
    "best_fit": "the place with the least left free",
    "fgd": "the place where fragmentation grows least (fragmentation gradient descent)",
    "balance": "the place whose free resources are most useful for common requests",
    "short": "short and small jobs first by history; long waits get a reservation",
    "feedback": "new jobs first: long-running jobs are preempted and resume later",
    "fair": "fair share of tenants and users, priority classes, backfill, preemption by class",
}
"""What each preset does, in one line."""


LITERATURE: dict[str, tuple[str, str]] = {
    "fcfs": ("fifo", "the same"),
    "srsf": ("srtf", "the nearest; it orders by remaining time without the number of GPUs"),
    "tiresias": ("las", "its discretised LAS with two levels"),
    "2dlas": ("las", "the same"),
    "qssf": ("short", "the nearest; short and small jobs first, by history"),
    "helios": ("short", "the nearest to its QSSF"),
    "mlfq": ("feedback", "the nearest; its levels are decades of run time"),
    "drf": ("fair", "the nearest; it shares GPUs by weight, not dominant resources"),
    "themis": ("fair", "the nearest; it shares GPUs by weight, without auctions"),
    "gandiva": ("feedback", "the nearest; jobs that have run long are preempted"),
    "gavel": ("fair", "the nearest; it does not count with throughputs by model"),
    "fairshare": ("fair", "the nearest to Slurm's priority/multifactor"),
    "multifactor": ("fair", "the nearest to Slurm's priority/multifactor"),
    "backfill": ("easy", "the same; 'conservative' reserves for every job"),
    "easybackfill": ("easy", "the same"),
    "conservativebackfill": ("conservative", "the same"),
    "firstfit": ("skip", "the nearest; what does not fit is skipped"),
    "dotprod": ("dot_product", "the same"),
}
"""Policies by their names in the literature, without hyphens: ours, and how near it is."""


def preset(name: str) -> Policy:
    """A policy by its name."""
    policy = PRESETS.get(name)
    if policy is None:
        known = LITERATURE.get(name.lower().replace("-", "").replace("_", ""))
        if known is not None:
            ours, how = known
            raise UnknownThing(f"policy '{name}' is '{ours}' here ({how}); use '{ours}'")
        close = get_close_matches(name.lower(), PRESETS, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else "."
        raise UnknownThing(f"policy '{name}' is not known{hint} Known: {', '.join(PRESETS)}")
    return policy
