"""Usage report of a period: runs come in; sums, waiting times and run times come out.

A run that crosses a boundary of the period or of a slice is split there, so slices add up to the
period. A run counts as started or ended in the period that contains that time; its energy is spread
evenly over its run time. Also the accuracy of start forecasts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpu_scheduler.ledger.cost import Bill, PriceList, priced_bill
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.job import JobState

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One attempt: its usage interval and measurements.

    `waited_ms` is its queue time, known for a first attempt. `devices` are node, index and share of
    each device.
    """

    interval: UsageInterval
    name: str = ""
    waited_ms: int | None = None
    devices: tuple[tuple[str, int, int], ...] = ()
    measured_ms: int = 0
    busy_percent_ms: int = 0
    peak_percent: int = 0

    @property
    def mean_percent(self) -> float | None:
        """Mean utilisation of its devices; None if not measured."""
        return self.busy_percent_ms / self.measured_ms if self.measured_ms else None


@dataclass(slots=True)
class UsageSums:
    """Amounts in the ledger's units (thousandths or MiB, times ms), and counts of runs."""

    gpu_milli_ms: int = 0
    gpu_memory_mb_ms: int = 0
    cpu_milli_ms: int = 0
    memory_mb_ms: int = 0
    energy_uj: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    measured_ms: int = 0
    busy_percent_ms: int = 0

    def add(self, part: UsageInterval) -> None:
        """Add an interval."""
        span_ms = part.duration_ms
        self.gpu_milli_ms += part.gpu_milli * span_ms
        self.gpu_memory_mb_ms += part.gpu_memory_mb * span_ms
        self.cpu_milli_ms += part.cpu_milli * span_ms
        self.memory_mb_ms += part.memory_mb * span_ms
        self.energy_uj += part.energy_uj


_ENDS = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.PREEMPTED: "preempted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of durations in ms; all 0 without values."""

    count: int = 0
    mean_ms: float = 0.0
    median_ms: int = 0
    p90_ms: int = 0
    max_ms: int = 0

    @classmethod
    def of(cls, values: Iterable[int]) -> Percentiles:
        """By nearest rank: every figure but the mean is one of the values."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(
            count=len(ordered),
            mean_ms=sum(ordered) / len(ordered),
            median_ms=_rank(ordered, 50),
            p90_ms=_rank(ordered, 90),
            max_ms=ordered[-1],
        )


@dataclass(slots=True)
class Report:
    """All figures of one period. `edges` are the boundaries of its slices, including both ends.

    Billed usage is kept by `terms`: parts of the period without a price change. `tenant_slices` are
    the thousandths of GPUs times ms of each tenant in each slice.
    """

    edges: Sequence[int]
    terms: Sequence[int]
    total: UsageSums = field(default_factory=UsageSums)
    tenants: dict[str, UsageSums] = field(default_factory=dict)
    users: dict[tuple[str, str], UsageSums] = field(default_factory=dict)
    slices: list[UsageSums] = field(default_factory=list)
    tenant_slices: list[dict[str, int]] = field(default_factory=list)
    devices: dict[tuple[str, int], int] = field(default_factory=dict)
    waits_ms: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    run_times_ms: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    idlers: list[Run] = field(default_factory=list)
    parts: dict[tuple[int, str, str, str], UsageInterval] = field(default_factory=dict)

    def bill(self, prices: PriceList) -> Bill:
        """The bill. Prices may change only at the times that `report` was given."""
        priced = ((part, prices.at(self.terms[key[0]])) for key, part in self.parts.items())
        return priced_bill(priced, prices.first.currency)

    def all_waits_ms(self) -> Iterator[int]:
        """The waiting times of all accounts, unsorted."""
        return (wait for waits in self.waits_ms.values() for wait in waits)

    def all_run_times_ms(self) -> Iterator[int]:
        """The run times of all accounts, unsorted."""
        return (run for runs in self.run_times_ms.values() for run in runs)


def report(
    runs: Iterable[Run],
    edges: Sequence[int],
    *,
    prices_change: Sequence[int] = (),
    is_idler: Callable[[Run], bool] = lambda run: False,  # noqa: ARG005
    most_idlers: int = 20,
) -> Report:
    """Sum up runs over the period from the first edge to the last; each run only once."""
    inner = (moment_ms for moment_ms in prices_change if edges[0] < moment_ms < edges[-1])
    terms = (edges[0], *inner, edges[-1])
    found = Report(
        edges=edges,
        terms=terms,
        slices=[UsageSums() for _ in edges[1:]],
        tenant_slices=[{} for _ in edges[1:]],
    )
    for run in runs:
        _add_run(found, run)
        if is_idler(run) and within(run.interval, edges[0], edges[-1]) is not None:
            found.idlers.append(run)
            if len(found.idlers) > 4 * most_idlers:
                found.idlers = _worst(found.idlers, most_idlers)
    found.idlers = _worst(found.idlers, most_idlers)
    return found


def within(interval: UsageInterval, start_ms: int, end_ms: int) -> UsageInterval | None:
    """The part between two times with its part of the energy; None if it is empty."""
    part = interval.within(start_ms, end_ms)
    if part is None or not interval.energy_uj:
        return part
    before = _energy_until(interval, part.start_ms)
    return replace(part, energy_uj=_energy_until(interval, part.end_ms) - before)


def _add_run(found: Report, run: Run) -> None:
    interval, edges = run.interval, found.edges
    account = (interval.tenant, interval.user)
    part = within(interval, edges[0], edges[-1])
    if part is not None:
        for sums in _sums_of(found, account):
            sums.add(part)
        for term, piece in _pieces(interval, found.terms):
            _add_part(found, term, piece)
        for node_id, index, share_milli in run.devices:
            key = (node_id, index)
            found.devices[key] = found.devices.get(key, 0) + share_milli * part.duration_ms
        for place, piece in _pieces(interval, edges):
            found.slices[place].add(piece)
            used = found.tenant_slices[place]
            used[interval.tenant] = used.get(interval.tenant, 0) + piece.gpu_milli_ms
    _count_ends(found, run, account)


def _count_ends(found: Report, run: Run, account: tuple[str, str]) -> None:
    """Count start and end of a run in the period and slice that contain them."""
    interval, edges = run.interval, found.edges
    if edges[0] <= interval.start_ms < edges[-1]:
        for sums in _sums_of(found, account, interval.start_ms):
            sums.started += 1
        if run.waited_ms is not None:
            found.waits_ms.setdefault(account, []).append(run.waited_ms)
    name = _ENDS.get(interval.outcome) if interval.outcome is not None else None
    if name is not None and edges[0] <= interval.end_ms < edges[-1]:
        for sums in _sums_of(found, account, interval.end_ms):
            setattr(sums, name, getattr(sums, name) + 1)
            sums.measured_ms += run.measured_ms
            sums.busy_percent_ms += run.busy_percent_ms
        found.run_times_ms.setdefault(account, []).append(interval.duration_ms)


def _sums_of(
    found: Report, account: tuple[str, str], at_ms: int | None = None
) -> Iterator[UsageSums]:
    """The sums to which an account adds; with a time also that of its slice."""
    yield found.total
    yield found.tenants.setdefault(account[0], UsageSums())
    yield found.users.setdefault(account, UsageSums())
    if at_ms is not None:
        yield found.slices[bisect_right(found.edges, at_ms) - 1]


def _pieces(interval: UsageInterval, edges: Sequence[int]) -> Iterator[tuple[int, UsageInterval]]:
    first = max(0, bisect_right(edges, interval.start_ms) - 1)
    for place in range(first, len(edges) - 1):
        if edges[place] >= interval.end_ms:
            return
        piece = within(interval, edges[place], edges[place + 1])
        if piece is not None:
            yield place, piece


def _add_part(found: Report, term: int, part: UsageInterval) -> None:
    """Keep one interval for each term, account and model: all that a bill is made of.

    Amounts are kept as those of one millisecond, so that they add up exactly.
    """
    span_ms = part.duration_ms
    for model, milli in (*part.gpu_models, ("", 0)):
        key = (term, part.tenant, part.user, model)
        old = found.parts.get(key)
        is_rest = not model
        gpu = milli * span_ms + (old.gpu_milli if old else 0)
        found.parts[key] = UsageInterval(
            allocation_id="",
            job_id="",
            tenant=part.tenant,
            user=part.user,
            attempt=1,
            start_ms=0,
            end_ms=1,
            gpu_milli=gpu,
            gpu_models=((model, gpu),) if gpu else (),
            cpu_milli=(old.cpu_milli if old else 0) + (part.cpu_milli * span_ms if is_rest else 0),
            memory_mb=(old.memory_mb if old else 0) + (part.memory_mb * span_ms if is_rest else 0),
            energy_uj=(old.energy_uj if old else 0) + (part.energy_uj if is_rest else 0),
        )


def _energy_until(interval: UsageInterval, at_ms: int) -> int:
    """Energy up to a time; always rounded the same way, so that parts add up."""
    if not interval.duration_ms:
        return interval.energy_uj
    return interval.energy_uj * (at_ms - interval.start_ms) // interval.duration_ms


def _worst(runs: list[Run], most: int) -> list[Run]:
    """The runs that wasted most GPU time, the worst first."""

    def wasted(run: Run) -> float:
        return run.interval.gpu_milli_ms * (100 - (run.mean_percent or 0)) / 100

    return sorted(runs, key=lambda run: (-wasted(run), run.interval.allocation_id))[:most]


def _rank(ordered: Sequence[int], percent: int) -> int:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


LEAST_TOLERANCE_MS = 600_000
TOLERANCE_PERCENT = 10

StartForecast = tuple[str, int, int, int]
"""Method of the forecast, when it was made, the forecast start and the real start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastAccuracy:
    """Counts and errors of forecasts; errors are in milliseconds, without sign."""

    basis: str
    judged: int = 0
    kept: int = 0
    late: int = 0
    early: int = 0
    median_error_ms: int = 0
    p90_error_ms: int = 0

    @property
    def kept_percent(self) -> float | None:
        """The percentage of accurate forecasts; None without forecasts."""
        return round(100 * self.kept / self.judged, 1) if self.judged else None


def tolerance_ms(made_ms: int, promised_ms: int) -> int:
    """The largest error of an accurate forecast."""
    return max(LEAST_TOLERANCE_MS, (promised_ms - made_ms) * TOLERANCE_PERCENT // 100)


LEAST_JUDGED_MS = 60_000
"""A job that waited no longer needed no range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRanges:
    """How many ranges were right, of jobs that then waited over a minute."""

    judged: int = 0
    within: int = 0
    early: int = 0
    late: int = 0

    @property
    def within_percent(self) -> float | None:
        """The percentage of starts within their range; None without ranges."""
        return round(100 * self.within / self.judged, 1) if self.judged else None


def place_in_range(earliest_ms: int, latest_ms: int, start_ms: int) -> str:
    """Tell whether a start was `within` its range, `early` or `late`."""
    if start_ms < earliest_ms:
        return "early"
    return "late" if start_ms > latest_ms else "within"


def kept_ranges(ranges: Iterable[tuple[int, int, int, int]]) -> KeptRanges:
    """Count ranges: when each was made, its ends, and the real start."""
    counts = Counter(
        place_in_range(earliest_ms, latest_ms, start_ms)
        for made_ms, earliest_ms, latest_ms, start_ms in ranges
        if start_ms - made_ms > LEAST_JUDGED_MS
    )
    return KeptRanges(judged=counts.total(), **counts)


def forecast_accuracy(forecasts: Iterable[StartForecast]) -> list[ForecastAccuracy]:
    """The accuracy of all forecasts, then by method."""
    by_basis: dict[str, list[StartForecast]] = {}
    everything: list[StartForecast] = []
    for forecast in forecasts:
        everything.append(forecast)
        by_basis.setdefault(forecast[0], []).append(forecast)
    return [
        accuracy_of("all", everything),
        *(accuracy_of(basis, of_basis) for basis, of_basis in sorted(by_basis.items())),
    ]


def accuracy_of(basis: str, forecasts: Sequence[StartForecast]) -> ForecastAccuracy:
    """The accuracy of some forecasts, taken together."""
    kept = late = early = 0
    errors = sorted(abs(start_ms - promised_ms) for _, _, promised_ms, start_ms in forecasts)
    for _, made_ms, promised_ms, start_ms in forecasts:
        error = start_ms - promised_ms
        if abs(error) <= tolerance_ms(made_ms, promised_ms):
            kept += 1
        elif error > 0:
            late += 1
        else:
            early += 1
    return ForecastAccuracy(
        basis=basis,
        judged=len(forecasts),
        kept=kept,
        late=late,
        early=early,
        median_error_ms=errors[len(errors) // 2] if errors else 0,
        p90_error_ms=errors[len(errors) * 9 // 10] if errors else 0,
    )
