"""What came out of a simulation, kept in columns so that a million jobs stay small."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpu_scheduler.predict.selection import ScoreTotals

NO_PROMISE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one job (or one task of an array) fared.

    `wait_ms` sums all waits, `lost_ms` all work that had to be done again plus overheads.
    `promised_start_ms` is the start that was forecast at submission, or `NO_PROMISE`.
    """

    partition: str
    tenant: str
    user: str
    gpu_milli: int
    submit_ms: int
    first_start_ms: int
    end_ms: int
    wait_ms: int
    run_ms: int
    preemptions: int = 0
    lost_ms: int = 0
    promised_start_ms: int = NO_PROMISE


_NAMES = ("partition", "tenant", "user")
_NUMBERS = tuple(column.name for column in fields(Outcome) if column.name not in _NAMES)


class Outcomes:
    """Outcomes in columns: integers in arrays, names by number."""

    def __init__(self) -> None:
        """Start empty."""
        self.numbers: dict[str, array[int]] = {name: array("q") for name in _NUMBERS}
        self.names: dict[str, array[int]] = {name: array("l") for name in _NAMES}
        self.known: dict[str, list[str]] = {name: [] for name in _NAMES}
        self._codes: dict[str, dict[str, int]] = {name: {} for name in _NAMES}

    def __len__(self) -> int:
        """How many outcomes there are."""
        return len(self.numbers["end_ms"])

    def add(self, outcome: Outcome) -> None:
        """Keep one outcome."""
        for name in _NUMBERS:
            self.numbers[name].append(getattr(outcome, name))
        for name in _NAMES:
            text = getattr(outcome, name)
            codes = self._codes[name]
            code = codes.get(text)
            if code is None:
                code = codes[text] = len(codes)
                self.known[name].append(text)
            self.names[name].append(code)

    def __iter__(self) -> Iterator[Outcome]:
        """Rebuild the outcomes one by one, in the order in which the jobs ended."""
        for row in range(len(self)):
            values: dict[str, Any] = {name: column[row] for name, column in self.numbers.items()}
            for name, column in self.names.items():
                values[name] = self.known[name][column[row]]
            yield Outcome(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of one partition at one moment."""

    at_ms: int
    waiting_jobs: int
    waiting_gpu_milli: int
    running_jobs: int
    allocated_gpu_milli: int
    fragmented_gpu_milli: int


@dataclass(slots=True, kw_only=True)
class Run:
    """One policy on one workload. Samples are per partition and thinned to a bounded number.

    `partition_gpu_milli` divides the capacity among partitions; one partition needs no such entry.
    `dropped_jobs` were refused; `failed_jobs` were stopped at their limit, and have outcomes;
    `never_ran_jobs` ended without a start, as what they depend on ended otherwise or the GPU-hours
    of their tenant were used up.
    """

    policy: str
    workload: str
    capacity_gpu_milli: int
    outcomes: Outcomes = field(default_factory=Outcomes)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    partition_gpu_milli: dict[str, int] = field(default_factory=dict)
    dropped_jobs: int = 0
    failed_jobs: int = 0
    never_ran_jobs: int = 0
    cycles: int = 0
    wall_seconds: float = 0.0
    predictions: ScoreTotals | None = None
    """How well run times were predicted, where predictors were compared."""


# Levels over time: samples in, exact means over any span out. A sample's level holds until the
# next sample. Sums over partitions need no common sampling times, because means over the same
# span may be added.

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
