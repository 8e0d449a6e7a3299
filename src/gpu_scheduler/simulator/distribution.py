"""Mean, median, percentiles and maximum of many durations, from one sort."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How durations are spread. Of no durations at all, every figure is 0."""

    mean_s: float
    median_s: float
    p90_s: float
    p99_s: float
    p999_s: float
    max_s: float


def distribution(durations_ms: Iterable[int]) -> Distribution:
    """Describe durations given in milliseconds, in any order."""
    ordered = sorted(durations_ms)
    if not ordered:
        return Distribution(mean_s=0, median_s=0, p90_s=0, p99_s=0, p999_s=0, max_s=0)
    return Distribution(
        mean_s=sum(ordered) / len(ordered) / 1000,
        median_s=percentile(ordered, 50) / 1000,
        p90_s=percentile(ordered, 90) / 1000,
        p99_s=percentile(ordered, 99) / 1000,
        p999_s=percentile(ordered, 99.9) / 1000,
        max_s=ordered[-1] / 1000,
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which that much of a sorted, non-empty sequence lies.

    Between two ranks the value is interpolated in a straight line, as numpy and pandas do by
    default, so that published figures can be compared.
    """
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (rank - below)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
