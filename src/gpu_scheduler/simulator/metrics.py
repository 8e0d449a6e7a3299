"""The metrics of a simulation run: outcomes and samples come in, one frozen `Measures` goes out.

`run_ms` of an outcome is work that counted; `lost_ms` comes on top of it, and both hold GPUs.
Percentiles are interpolated (see `Distribution`); means from samples are weighted by time.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import sub

from gpu_scheduler.ledger.report import tolerance_ms
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI
from gpu_scheduler.simulator.fairness import (
    backlogs_of,
    holdings_of,
    jain_by_weight,
    received_within,
    shared_backlog,
)
from gpu_scheduler.simulator.outcomes import (
    NO_PROMISE,
    Outcomes,
    Run,
    partition_capacities,
    sample_means,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, median, percentiles and maximum of durations; all 0 if there are none."""

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


SHORT_WAIT_MS = 60_000
"""Jobs that waited no longer than this do not count: they needed no forecast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastError:
    """Forecast starts against first starts, for jobs that had a forecast and waited.

    A forecast is kept if the job started within 10 % of the forecast wait or within 10 minutes,
    whichever is more. Kept, early and late add up to 100 %.
    """

    jobs: int
    kept_percent: float
    early_percent: float
    late_percent: float
    median_absolute_error_s: float


def forecast_error(outcomes: Outcomes) -> ForecastError | None:
    """Compare forecasts with first starts; `None` if no job that waited had a forecast."""
    errors: list[int] = []
    early = late = 0
    for error_ms, allowed_ms in _errors(outcomes):
        errors.append(abs(error_ms))
        if error_ms > allowed_ms:
            late += 1
        elif error_ms < -allowed_ms:
            early += 1
    if not errors:
        return None
    errors.sort()
    return ForecastError(
        jobs=len(errors),
        kept_percent=100 * (len(errors) - early - late) / len(errors),
        early_percent=100 * early / len(errors),
        late_percent=100 * late / len(errors),
        median_absolute_error_s=percentile(errors, 50) / 1000,
    )


def promise_errors_ms(outcomes: Outcomes) -> Iterator[int]:
    """First start minus forecast for each job that counts; negative is early."""
    for error_ms, _ in _errors(outcomes):
        yield error_ms


def _errors(outcomes: Outcomes) -> Iterator[tuple[int, int]]:
    """The error of each forecast, and the largest error of an accurate one."""
    for submit_ms, start_ms, promised_ms in zip(
        outcomes.numbers["submit_ms"],
        outcomes.numbers["first_start_ms"],
        outcomes.numbers["promised_start_ms"],
        strict=True,
    ):
        if promised_ms != NO_PROMISE and start_ms - submit_ms > SHORT_WAIT_MS:
            yield start_ms - promised_ms, tolerance_ms(submit_ms, promised_ms)


SLOWDOWN_BOUND_MS = 10_000
"""Shorter jobs count as this long, so that very short jobs do not dominate the mean."""
GPU_HOUR = 1000 * 3_600_000
"""One GPU for one hour, in milli-GPU times milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMeasures:
    """How the jobs of one tenant or one partition fared. `gpu_hours` includes lost work."""

    name: str
    jobs: int
    gpu_hours: float
    mean_wait_s: float
    mean_jct_s: float
    mean_bounded_slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMeasures(GroupMeasures):
    """How the jobs of one partition fared, and how large it is if that is known."""

    capacity_gpu_milli: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantMeasures(GroupMeasures):
    """How the jobs of one tenant fared, and what share of the GPU-time it received.

    `backlogged_share_percent` looks only at the time in which all tenants waited (`None`: there
    was no such time); `entitled_share_percent` is what the weights say.
    """

    weight_milli: int
    share_percent: float
    entitled_share_percent: float
    backlogged_share_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measures:
    """Everything the tables and the report say about one run.

    `used_gpu_hours` includes lost work. `None` means that the run does not tell.
    """

    policy: str
    workload: str
    jobs: int
    dropped_jobs: int
    failed_jobs: int
    never_ran_jobs: int
    capacity_gpu_milli: int
    wait: Distribution
    jct: Distribution
    mean_bounded_slowdown: float
    median_bounded_slowdown: float
    makespan_s: float
    used_gpu_hours: float
    utilisation_percent: float
    allocated_percent: float | None
    allocated_backlog_percent: float | None
    fragmentation_percent: float | None
    jain: float
    jain_backlogged: float | None
    backlogged_s: float
    preemptions: int
    preempted_jobs: int
    lost_gpu_hours: float
    lost_percent: float
    forecast: ForecastError | None
    tenants: tuple[TenantMeasures, ...]
    partitions: tuple[PartitionMeasures, ...]
    cycles: int
    wall_seconds: float


def measure(run: Run, weights_milli: Mapping[str, int] | None = None) -> Measures:
    """Measure one run; a tenant without a weight has 1.0."""
    work = _Work(run.outcomes)
    numbers = run.outcomes.numbers
    slowdowns = sorted(work.slowdowns)
    makespan_ms = max(numbers["end_ms"]) - min(numbers["submit_ms"]) if len(run.outcomes) else 0
    lost = sum(a * b for a, b in zip(numbers["gpu_milli"], numbers["lost_ms"], strict=True))
    used = sum(work.used)
    room = run.capacity_gpu_milli * makespan_ms
    samples = sample_means(run)
    fairness = _Fairness.of(run.outcomes, work, weights_milli or {})
    return Measures(
        policy=run.policy,
        workload=run.workload,
        jobs=len(run.outcomes),
        dropped_jobs=run.dropped_jobs,
        failed_jobs=run.failed_jobs,
        never_ran_jobs=run.never_ran_jobs,
        capacity_gpu_milli=run.capacity_gpu_milli,
        wait=distribution(numbers["wait_ms"]),
        jct=distribution(work.jct_ms),
        mean_bounded_slowdown=mean(slowdowns),
        median_bounded_slowdown=percentile(slowdowns, 50) if slowdowns else 0.0,
        makespan_s=makespan_ms / 1000,
        used_gpu_hours=used / GPU_HOUR,
        utilisation_percent=100 * used / room if room else 0.0,
        allocated_percent=samples.allocated_percent,
        allocated_backlog_percent=samples.allocated_backlog_percent,
        fragmentation_percent=samples.fragmentation_percent,
        jain=fairness.jain,
        jain_backlogged=fairness.jain_backlogged,
        backlogged_s=fairness.backlogged_ms / 1000,
        preemptions=sum(numbers["preemptions"]),
        preempted_jobs=sum(1 for count in numbers["preemptions"] if count),
        lost_gpu_hours=lost / GPU_HOUR,
        lost_percent=100 * lost / (used - lost) if used > lost else 0.0,
        forecast=forecast_error(run.outcomes),
        tenants=_tenants(run.outcomes, work, fairness),
        partitions=_partitions(run, work),
        cycles=run.cycles,
        wall_seconds=run.wall_seconds,
    )


class _Work:
    """Columns that follow from the outcomes' own, one entry per job."""

    def __init__(self, outcomes: Outcomes) -> None:
        numbers = outcomes.numbers
        bound = SLOWDOWN_BOUND_MS
        self.jct_ms = array("q", map(sub, numbers["end_ms"], numbers["submit_ms"]))
        self.used = [
            gpu_milli * (run_ms + lost_ms)
            for gpu_milli, run_ms, lost_ms in zip(
                numbers["gpu_milli"], numbers["run_ms"], numbers["lost_ms"], strict=True
            )
        ]
        self.slowdowns = [
            max(1.0, (wait_ms + run_ms) / (run_ms if run_ms > bound else bound))
            for wait_ms, run_ms in zip(numbers["wait_ms"], numbers["run_ms"], strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fairness:
    """What each tenant received, in all and while all waited."""

    weights_milli: Mapping[str, int]
    received: Mapping[str, float]
    jain: float
    backlogged_ms: int
    received_backlogged: Mapping[str, float]
    jain_backlogged: float | None

    @classmethod
    def of(cls, outcomes: Outcomes, work: _Work, weights_milli: Mapping[str, int]) -> _Fairness:
        tenants = outcomes.known["tenant"]
        totals = _totals(outcomes.names["tenant"], work.used, len(tenants))
        received = dict(zip(tenants, totals, strict=True))
        # With a single tenant there is nothing to compare.
        windows = shared_backlog(backlogs_of(outcomes)) if len(tenants) > 1 else []
        inside = dict.fromkeys(tenants, 0.0) | received_within(holdings_of(outcomes), windows)
        return cls(
            weights_milli={name: weights_milli.get(name, WEIGHT_ONE_MILLI) for name in tenants},
            received=received,
            jain=jain_by_weight(received, weights_milli),
            backlogged_ms=sum(end_ms - start_ms for start_ms, end_ms in windows),
            received_backlogged=inside if windows else {},
            jain_backlogged=jain_by_weight(inside, weights_milli) if windows else None,
        )


def _tenants(outcomes: Outcomes, work: _Work, fairness: _Fairness) -> tuple[TenantMeasures, ...]:
    shares = _shares(fairness.received)
    entitled = _shares(fairness.weights_milli)
    backlogged = _shares(fairness.received_backlogged)
    return tuple(
        TenantMeasures(
            **asdict(group),
            weight_milli=fairness.weights_milli[group.name],
            share_percent=shares[group.name],
            entitled_share_percent=entitled[group.name],
            backlogged_share_percent=backlogged.get(group.name),
        )
        for group in _groups(outcomes, work, "tenant")
    )


def _partitions(run: Run, work: _Work) -> tuple[PartitionMeasures, ...]:
    capacities = partition_capacities(run)
    return tuple(
        PartitionMeasures(**asdict(group), capacity_gpu_milli=capacities.get(group.name))
        for group in _groups(run.outcomes, work, "partition")
    )


def _groups(outcomes: Outcomes, work: _Work, kind: str) -> list[GroupMeasures]:
    """Sums and means of the jobs that share a name, in the order of names."""
    names = outcomes.known[kind]
    codes = outcomes.names[kind]
    jobs = Counter(codes)
    used = _totals(codes, work.used, len(names))
    waits = _totals(codes, outcomes.numbers["wait_ms"], len(names))
    jcts = _totals(codes, work.jct_ms, len(names))
    slowdowns = _totals(codes, work.slowdowns, len(names))
    return [
        GroupMeasures(
            name=name,
            jobs=jobs[code],
            gpu_hours=used[code] / GPU_HOUR,
            mean_wait_s=waits[code] / jobs[code] / 1000,
            mean_jct_s=jcts[code] / jobs[code] / 1000,
            mean_bounded_slowdown=slowdowns[code] / jobs[code],
        )
        for name, code in sorted(zip(names, range(len(names)), strict=True))
    ]


def _totals(codes: Iterable[int], values: Iterable[float], size: int) -> list[float]:
    totals = [0.0] * size
    for code, value in zip(codes, values, strict=True):
        totals[code] += value
    return totals


def _shares(amounts: Mapping[str, float]) -> dict[str, float]:
    """Percentages of the sum; equal ones where the sum is nothing."""
    total = sum(amounts.values())
    return {
        name: 100 * amount / total if total else 100 / len(amounts)
        for name, amount in amounts.items()
    }
