"""Levels over time: samples in, exact means over any span out.

A sample's level holds until the next sample. Sums over partitions need no common sampling
times, because means over the same span may be added.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.outcomes import Run, Sample

Level = Callable[[Sample], float]


class StepFunction:
    """A level that changes at given times: 0 before the first, then held after the last."""

    def __init__(self, samples: Sequence[Sample], level: Level) -> None:
        """Sum the area up once, so that every later question is two look-ups."""
        ordered = sorted(samples, key=lambda sample: sample.at_ms)
        self._times = [sample.at_ms for sample in ordered]
        self._levels = [level(sample) for sample in ordered]
        self._areas = [0.0] * len(ordered)
        for place in range(1, len(ordered)):
            width = self._times[place] - self._times[place - 1]
            self._areas[place] = self._areas[place - 1] + self._levels[place - 1] * width

    def area(self, start_ms: float, end_ms: float) -> float:
        """Level times milliseconds between two moments."""
        return self._area_until(end_ms) - self._area_until(start_ms)

    def _area_until(self, at_ms: float) -> float:
        place = bisect_right(self._times, at_ms) - 1
        if place < 0:
            return 0.0
        return self._areas[place] + self._levels[place] * (at_ms - self._times[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMeans:
    """What the samples say on average, in percent of the capacity; `None` where they say nothing.

    `allocated_backlog_percent` looks, in each partition, only at the time in which jobs wait.
    """

    allocated_percent: float | None
    allocated_backlog_percent: float | None
    fragmentation_percent: float | None


def sample_means(run: Run) -> SampleMeans:
    """Average the samples of all partitions over time."""
    span = sampled_span(run)
    if span is None or run.capacity_gpu_milli == 0:
        return SampleMeans(
            allocated_percent=None, allocated_backlog_percent=None, fragmentation_percent=None
        )

    def percent(level: Level) -> float:
        area = sum(
            StepFunction(samples, level).area(*span) for _, samples in sorted(run.samples.items())
        )
        return 100 * area / (run.capacity_gpu_milli * (span[1] - span[0]))

    return SampleMeans(
        allocated_percent=percent(lambda sample: sample.allocated_gpu_milli),
        allocated_backlog_percent=_allocated_backlog_percent(run, span),
        fragmentation_percent=percent(lambda sample: sample.fragmented_gpu_milli),
    )


def sampled_span(run: Run) -> tuple[int, int] | None:
    """From the first to the last sample of any partition, or `None` if that is no time at all."""
    times = [sample.at_ms for samples in run.samples.values() for sample in samples]
    if not times or min(times) == max(times):
        return None
    return min(times), max(times)


def partition_capacities(run: Run) -> Mapping[str, int]:
    """The capacity of each partition; a single partition has all of it. Empty if not known."""
    if run.partition_gpu_milli:
        return run.partition_gpu_milli
    return dict.fromkeys(run.samples, run.capacity_gpu_milli) if len(run.samples) == 1 else {}


def _allocated_backlog_percent(run: Run, span: tuple[int, int]) -> float | None:
    capacities = partition_capacities(run)
    held = 0.0
    could_hold = 0.0
    for name, samples in sorted(run.samples.items()):
        if name not in capacities:
            return None
        allocated = StepFunction(samples, lambda s: s.allocated_gpu_milli if s.waiting_jobs else 0)
        backlogged = StepFunction(samples, lambda s: 1 if s.waiting_jobs else 0)
        held += allocated.area(*span)
        could_hold += backlogged.area(*span) * capacities[name]
    return 100 * held / could_hold if could_hold else None
