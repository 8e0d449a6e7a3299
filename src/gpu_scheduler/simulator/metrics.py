"""The metrics of a simulation run: outcomes and samples come in, one frozen `Measures` goes out.

`run_ms` of an outcome is work that counted; `lost_ms` comes on top of it, and both hold GPUs.
Percentiles are interpolated (see `Distribution`); means from samples are weighted by time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from operator import sub

from gpu_scheduler.ledger.report import StartForecast, accuracy_of
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI
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
    forecasts = list(_forecasts(outcomes))
    if not forecasts:
        return None
    accuracy = accuracy_of("all", forecasts)
    errors = sorted(abs(start_ms - promised_ms) for _, _, promised_ms, start_ms in forecasts)
    return ForecastError(
        jobs=accuracy.judged,
        kept_percent=100 * accuracy.kept / accuracy.judged,
        early_percent=100 * accuracy.early / accuracy.judged,
        late_percent=100 * accuracy.late / accuracy.judged,
        median_absolute_error_s=percentile(errors, 50) / 1000,
    )


def promise_errors_ms(outcomes: Outcomes) -> Iterator[int]:
    """First start minus forecast for each job that counts; negative is early."""
    for _, _, promised_ms, start_ms in _forecasts(outcomes):
        yield start_ms - promised_ms


def _forecasts(outcomes: Outcomes) -> Iterator[StartForecast]:
    """The forecasts of the jobs that waited, made at their submission."""
    for submit_ms, start_ms, promised_ms in zip(
        outcomes.numbers["submit_ms"],
        outcomes.numbers["first_start_ms"],
        outcomes.numbers["promised_start_ms"],
        strict=True,
    ):
        if promised_ms != NO_PROMISE and start_ms - submit_ms > SHORT_WAIT_MS:
            yield "forecast", submit_ms, promised_ms, start_ms


# Fairness between tenants. Over a whole run every tenant receives all the GPU time it requested,
# under any policy. So fairness is measured only while all tenants have waiting jobs and compete for
# the same GPUs.

# Plain tuples for speed: a run of a million jobs creates a million of them.
Span = tuple[int, int]
"""Time in milliseconds from the first up to, but not including, the second."""
Holding = tuple[str, float, int, int]
"""A tenant, the milli-GPUs it held, from when, and until when."""


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 if all values are equal (also if all are 0), 1/n if only one is not 0."""
    numbers = list(values)
    squares = sum(number * number for number in numbers)
    if not squares:
        return 1.0
    return float(sum(numbers) ** 2 / (len(numbers) * squares))


def jain_by_weight(received: Mapping[str, float], weights_milli: Mapping[str, int]) -> float:
    """Jain's index of the amount each tenant received per weight (1.0 if it has no weight)."""
    return jain(
        amount / weights_milli.get(tenant, WEIGHT_ONE_MILLI)
        for tenant, amount in sorted(received.items())
    )


def shared_backlog(backlogs: Mapping[str, Iterable[Span]]) -> list[Span]:
    """The spans in which every tenant has waiting jobs, sorted and without overlap."""
    shared: list[Span] | None = None
    for _, spans in sorted(backlogs.items()):
        merged = _merged(spans)
        shared = merged if shared is None else _overlap(shared, merged)
    return shared or []


def received_within(holdings: Iterable[Holding], windows: Sequence[Span]) -> dict[str, float]:
    """GPU-time (milli-GPU times milliseconds) that each tenant held inside the windows.

    The windows must be in order and must not overlap.
    """
    if not windows:
        return {}
    starts = [start_ms for start_ms, _ in windows]
    ends = [end_ms for _, end_ms in windows]
    before = [0, *accumulate(end_ms - start_ms for start_ms, end_ms in windows)]

    def covered(at_ms: int) -> int:
        """The total length of the windows before `at_ms`."""
        place = bisect_right(starts, at_ms) - 1
        if place < 0:
            return 0
        end_ms = ends[place]
        return before[place] + (at_ms if at_ms < end_ms else end_ms) - starts[place]

    received: dict[str, float] = defaultdict(float)
    for tenant, gpu_milli, start_ms, end_ms in holdings:
        received[tenant] += gpu_milli * (covered(end_ms) - covered(start_ms))
    return dict(received)


def holdings_of(outcomes: Outcomes) -> Iterator[Holding]:
    """The GPUs that each job held, from its first start to its end.

    The outcome of a preempted job does not say when it waited again; its GPU time is spread evenly.
    """
    numbers = outcomes.numbers
    tenants = outcomes.known["tenant"]
    for code, gpu_milli, start_ms, end_ms, run_ms, lost_ms in zip(
        outcomes.names["tenant"],
        numbers["gpu_milli"],
        numbers["first_start_ms"],
        numbers["end_ms"],
        numbers["run_ms"],
        numbers["lost_ms"],
        strict=True,
    ):
        if end_ms > start_ms:
            held_ms = run_ms + lost_ms
            span_ms = end_ms - start_ms
            held_milli = gpu_milli if held_ms >= span_ms else gpu_milli * held_ms / span_ms
            yield tenants[code], held_milli, start_ms, end_ms


def backlogs_of(outcomes: Outcomes) -> dict[str, list[Span]]:
    """When each tenant had a job that waited for its first start."""
    tenants = outcomes.known["tenant"]
    spans: list[list[Span]] = [[] for _ in tenants]
    for code, submit_ms, start_ms in zip(
        outcomes.names["tenant"],
        outcomes.numbers["submit_ms"],
        outcomes.numbers["first_start_ms"],
        strict=True,
    ):
        if start_ms > submit_ms:
            known = spans[code]
            # Jobs that end in sequence mostly waited at the same time, so few spans remain.
            if known and submit_ms <= known[-1][1] and start_ms >= known[-1][0]:
                known[-1] = (min(submit_ms, known[-1][0]), max(start_ms, known[-1][1]))
            else:
                known.append((submit_ms, start_ms))
    return dict(zip(tenants, spans, strict=True))


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start_ms, end_ms in sorted(spans):
        if merged and start_ms <= merged[-1][1]:
            if end_ms > merged[-1][1]:
                merged[-1] = (merged[-1][0], end_ms)
        else:
            merged.append((start_ms, end_ms))
    return merged


def _overlap(left: Sequence[Span], right: Sequence[Span]) -> list[Span]:
    both: list[Span] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start_ms = max(left[i][0], right[j][0])
        end_ms = min(left[i][1], right[j][1])
        if start_ms < end_ms:
            both.append((start_ms, end_ms))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


# All measures of one run.

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
    tenants = run.outcomes.known["tenant"]
    weights = {name: (weights_milli or {}).get(name, WEIGHT_ONE_MILLI) for name in tenants}
    totals = _totals(run.outcomes.names["tenant"], work.used, len(tenants))
    received = dict(zip(tenants, totals, strict=True))
    received_backlogged: dict[str, float] = {}
    # With a single tenant there is nothing to compare.
    windows = shared_backlog(backlogs_of(run.outcomes)) if len(tenants) > 1 else []
    if windows:
        received_backlogged = dict.fromkeys(tenants, 0.0)
        received_backlogged |= received_within(holdings_of(run.outcomes), windows)
    shares, entitled = _shares(received), _shares(weights)
    backlogged = _shares(received_backlogged)
    capacities = partition_capacities(run)
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
        jain=jain_by_weight(received, weights),
        jain_backlogged=jain_by_weight(received_backlogged, weights) if windows else None,
        backlogged_s=sum(end_ms - start_ms for start_ms, end_ms in windows) / 1000,
        preemptions=sum(numbers["preemptions"]),
        preempted_jobs=sum(1 for count in numbers["preemptions"] if count),
        lost_gpu_hours=lost / GPU_HOUR,
        lost_percent=100 * lost / (used - lost) if used > lost else 0.0,
        forecast=forecast_error(run.outcomes),
        tenants=tuple(
            TenantMeasures(
                **asdict(group),
                weight_milli=weights[group.name],
                share_percent=shares[group.name],
                entitled_share_percent=entitled[group.name],
                backlogged_share_percent=backlogged.get(group.name),
            )
            for group in _groups(run.outcomes, work, "tenant")
        ),
        partitions=tuple(
            PartitionMeasures(**asdict(group), capacity_gpu_milli=capacities.get(group.name))
            for group in _groups(run.outcomes, work, "partition")
        ),
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
