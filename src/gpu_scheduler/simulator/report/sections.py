"""The content of each section, in a bounded number of points and rows.

A section without data says so in a sentence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpu_scheduler.simulator.metric_defs import (
    HOUR,
    MINUTE,
    NOTHING,
    count_text,
    duration_text,
    gpus_text,
    percent_text,
    ratio_text,
)
from gpu_scheduler.simulator.metrics import (
    Distribution,
    GroupMeasures,
    Measures,
    TenantMeasures,
    promise_errors_ms,
)
from gpu_scheduler.simulator.outcomes import Level, Outcomes, Run, StepFunction, sampled_span
from gpu_scheduler.simulator.report.document import (
    Bar,
    BarRow,
    Bars,
    Block,
    Chart,
    Column,
    Series,
    Table,
    Text,
    bounded_table,
)

# Curves of a run. A curve has at most a few hundred points, so that a report stays small.

CDF_POINTS = 140

ERROR_EDGES_S = tuple(
    sign * edge
    for sign, edges in (
        (-1, (6 * HOUR, HOUR, 10 * MINUTE, MINUTE)),
        (1, (MINUTE, 10 * MINUTE, HOUR, 6 * HOUR)),
    )
    for edge in edges
)
"""Where one class of forecast errors ends and the next begins; negative is early."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Equal spans of time that cover all runs; the fewer there are, the smoother the curve."""

    start_ms: int
    end_ms: int
    points: int

    @property
    def span_s(self) -> float:
        """The length of the whole grid."""
        return (self.end_ms - self.start_ms) / 1000

    def edge_ms(self, place: int) -> float:
        """Where a span begins; that of the last one plus one is the end of the grid."""
        return self.start_ms + (self.end_ms - self.start_ms) * place / self.points


def time_grid(runs: Iterable[Run], points: int) -> TimeGrid | None:
    """From the first sample of any run to the last; `None` without samples."""
    spans = [span for run in runs if (span := sampled_span(run)) is not None]
    if not spans:
        return None
    return TimeGrid(min(start for start, _ in spans), max(end for _, end in spans), points)


def over_time(run: Run, level: Level, grid: TimeGrid) -> list[float | None]:
    """The mean level in each span of the grid, summed over partitions; `None` after the end."""
    span = sampled_span(run)
    if span is None:
        return [None] * grid.points
    steps = [StepFunction(samples, level) for _, samples in sorted(run.samples.items())]
    means: list[float | None] = []
    for place in range(grid.points):
        start_ms, end_ms = grid.edge_ms(place), grid.edge_ms(place + 1)
        area = sum(step.area(start_ms, end_ms) for step in steps)
        means.append(area / (end_ms - start_ms) if start_ms < span[1] else None)
    return means


def log_grid(columns: Sequence[Sequence[int]]) -> list[float]:
    """Seconds from 1 to the longest duration (given in sorted milliseconds) of any run."""
    longest_s = max((column[-1] / 1000 for column in columns if column), default=0.0)
    high_s = max(10.0, longest_s)
    factor = high_s ** (1 / (CDF_POINTS - 1))
    return [*(factor**place for place in range(CDF_POINTS - 1)), high_s]


def share_below(ordered_ms: Sequence[int], grid_s: Sequence[float]) -> list[float | None]:
    """Which percentage of sorted durations is no longer than each point of the grid."""
    if not ordered_ms:
        return [None] * len(grid_s)
    # Half a millisecond more, so that no rounding leaves out the longest of all.
    return [
        100 * bisect_right(ordered_ms, point_s * 1000 + 0.5) / len(ordered_ms) for point_s in grid_s
    ]


def error_shares(outcomes: Outcomes) -> list[float] | None:
    """The percentage of forecasts in each class of errors; `None` if there are no forecasts."""
    counts = [0] * (len(ERROR_EDGES_S) + 1)
    edges_ms = [edge * 1000 for edge in ERROR_EDGES_S]
    for error_ms in promise_errors_ms(outcomes):
        counts[bisect_right(edges_ms, error_ms)] += 1
    total = sum(counts)
    return [100 * count / total for count in counts] if total else None


# The sections.

MOST_TENANTS = 10
QUEUE_POINTS = 200
CLUSTER_POINTS = 90
"""Fewer, because allocation changes with every job and would only show as noise."""
_NO_SAMPLES = Text(text="The runs carry no samples, so nothing can be drawn over time.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All that a section may show: runs and measures in the same order."""

    runs: Sequence[Run]
    measures: Sequence[Measures]

    @property
    def policies(self) -> list[str]:
        """The names of the runs."""
        return [run.policy for run in self.runs]

    def lines(self, columns: Sequence[Sequence[float | None]]) -> list[Series]:
        """A line for each run, given its values."""
        return [
            Series(
                name=policy,
                values=[None if value is None else round(value, 2) for value in values],
            )
            for policy, values in zip(self.policies, columns, strict=True)
        ]


def queue(study: Study) -> list[Block]:
    """The waiting jobs and GPUs over time."""
    grid = time_grid(study.runs, QUEUE_POINTS)
    if grid is None:
        return [_NO_SAMPLES]
    return [
        _over_time(
            study, grid, "Waiting jobs", "Jobs in the queue.", lambda one: one.waiting_jobs, "jobs"
        ),
        _over_time(
            study,
            grid,
            "Waiting GPUs",
            "GPUs that the jobs in the queue request.",
            lambda one: one.waiting_gpu_milli / 1000,
            "GPUs",
        ),
    ]


def cluster(study: Study) -> list[Block]:
    """What the machines did, over time; then the partitions."""
    grid = time_grid(study.runs, CLUSTER_POINTS)
    if grid is None:
        return [_NO_SAMPLES]
    allocated = _over_time(
        study,
        grid,
        "Allocated GPUs",
        "GPUs that jobs hold. The space below the dashed line is idle.",
        lambda sample: sample.allocated_gpu_milli / 1000,
        "GPUs",
    )
    capacity = max(run.capacity_gpu_milli for run in study.runs)
    limit = Series(
        name=f"capacity {gpus_text(capacity)} GPUs",
        values=[capacity / 1000] * grid.points,
        dashed=True,
    )
    fragmentation = _over_time(
        study,
        grid,
        "Fragmentation",
        "GPUs that are free but that no waiting job can use.",
        lambda sample: sample.fragmented_gpu_milli / 1000,
        "GPUs",
    )
    tables: list[Block] = []
    if any(len(run.partitions) > 1 for run in study.measures):
        tables = [partition_table(run) for run in study.measures]
    return [replace(allocated, series=[*allocated.series, limit]), fragmentation, *tables]


def waits(study: Study) -> list[Block]:
    """How waits and completion times are spread over jobs."""
    if not any(run.jobs for run in study.measures):
        return [Text(text="No job came to its end.")]
    return [
        _shares_below(
            study,
            "Wait",
            "Share of jobs that waited no longer than this. Further left and higher is better.",
            lambda run: run.outcomes.numbers["wait_ms"],
        ),
        _shares_below(
            study,
            "Completion time",
            "Share of jobs that ended within this time of their submission.",
            lambda run: [
                end_ms - submit_ms
                for submit_ms, end_ms in zip(
                    run.outcomes.numbers["submit_ms"], run.outcomes.numbers["end_ms"], strict=True
                )
            ],
        ),
        spread_table(study.measures),
    ]


def fairness(study: Study) -> list[Block]:
    """What each tenant received and how long it waited."""
    names = _largest_tenants(study.measures)
    if not names:
        return [Text(text="The runs have no tenants.")]
    contended = all(run.jain_backlogged is not None for run in study.measures)
    when = "while all tenants waited" if contended else "over the whole run"
    more = f" The {MOST_TENANTS} largest tenants." if len(names) == MOST_TENANTS else ""

    def share(tenant: TenantMeasures) -> float:
        backlogged = tenant.backlogged_share_percent
        return backlogged if contended and backlogged is not None else tenant.share_percent

    received = _tenant_bars(study, names, share, percent_text)
    entitled = {tenant.name: tenant.entitled_share_percent for tenant in _tenants(study.measures)}
    return [
        Bars(
            title="GPU-time received",
            note=f"Share of the GPU-time {when}.{more}",
            first="tenant",
            series=study.policies,
            rows=[replace(row, note=percent_text(entitled[row.name])) for row in received],
            last="share by weight",
        ),
        Bars(
            title="Mean wait per tenant",
            note=f"Under a fair policy, waits are alike where weights are alike.{more}",
            first="tenant",
            series=study.policies,
            rows=_tenant_bars(study, names, lambda one: one.mean_wait_s, duration_text),
        ),
        *(tenant_table(run) for run in study.measures),
    ]


def forecasts(study: Study) -> list[Block]:
    """The errors of the forecast starts, and how many forecasts were kept."""
    series = [
        (run.policy, shares)
        for run in study.runs
        if (shares := error_shares(run.outcomes)) is not None
    ]
    if not series:
        text = "No job that waited for more than a minute had a forecast start."
        return [Text(text=text)]
    errors = Bars(
        title="Error of the forecast",
        note="First start minus the start forecast at submission, for waits over a minute.",
        first="error",
        series=[name for name, _ in series],
        rows=[
            BarRow(name=name, bars=[_percent_bar(shares[place]) for _, shares in series])
            for place, name in enumerate(_error_names())
        ],
    )
    known = any(run.forecast for run in study.measures)
    return [errors, *([forecast_table(study.measures)] if known else [])]


def preemption(study: Study) -> list[Block]:
    """How often jobs were preempted, and what it cost."""
    if not any(run.preemptions or run.lost_gpu_hours for run in study.measures):
        return [Text(text="No job was preempted and no work was lost.")]

    def bars(title: str, note: str, bar_of: Callable[[Measures], Bar]) -> Bars:
        rows = [BarRow(name=run.policy, bars=[bar_of(run)]) for run in study.measures]
        return Bars(title=title, note=note, first="policy", series=[title.lower()], rows=rows)

    return [
        bars(
            "Preemptions",
            "Number of times a running job was preempted.",
            lambda run: Bar(value=run.preemptions, text=count_text(run.preemptions)),
        ),
        bars(
            "Lost GPU-hours",
            "GPU-hours of work done twice and of overheads, and their share of useful work.",
            lambda run: Bar(value=run.lost_gpu_hours, text=_loss_text(run)),
        ),
    ]


def _over_time(
    study: Study, grid: TimeGrid, title: str, note: str, level: Level, unit: str
) -> Chart:
    return Chart(
        title=title,
        note=note,
        axis="elapsed",
        points=[
            round((place + 0.5) * grid.span_s / grid.points, 1) for place in range(grid.points)
        ],
        series=study.lines([over_time(run, level, grid) for run in study.runs]),
        unit=unit,
    )


def _shares_below(
    study: Study, title: str, note: str, durations_ms: Callable[[Run], Sequence[int]]
) -> Chart:
    columns = [sorted(durations_ms(run)) for run in study.runs]
    grid_s = log_grid(columns)
    return Chart(
        title=title,
        note=note,
        axis="log",
        points=[round(point_s, 3) for point_s in grid_s],
        series=study.lines([share_below(column, grid_s) for column in columns]),
        unit="%",
    )


def _tenants(measures: Sequence[Measures]) -> list[TenantMeasures]:
    """Each tenant as the first policy measured it that knows it."""
    found: dict[str, TenantMeasures] = {}
    for run in measures:
        for tenant in run.tenants:
            found.setdefault(tenant.name, tenant)
    return list(found.values())


def _largest_tenants(measures: Sequence[Measures]) -> list[str]:
    """Those with the most GPU-time, the largest first."""
    ordered = sorted(_tenants(measures), key=lambda tenant: (-tenant.gpu_hours, tenant.name))
    return [tenant.name for tenant in ordered[:MOST_TENANTS]]


def _tenant_bars(
    study: Study,
    names: Sequence[str],
    value: Callable[[TenantMeasures], float],
    text: Callable[[float], str],
) -> list[BarRow]:
    found = [{tenant.name: tenant for tenant in run.tenants} for run in study.measures]

    def bar(tenant: TenantMeasures | None) -> Bar | None:
        if tenant is None:
            return None
        return Bar(value=round(value(tenant), 2), text=text(value(tenant)))

    return [BarRow(name=name, bars=[bar(tenants.get(name)) for tenants in found]) for name in names]


def _percent_bar(percent: float) -> Bar:
    return Bar(value=round(percent, 2), text=percent_text(percent))


def _error_names() -> list[str]:
    """The names of the classes of errors."""
    late = [_edge_text(edge) for edge in ERROR_EDGES_S if edge > 0]
    early = [_edge_text(-edge) for edge in ERROR_EDGES_S if edge < 0]
    return [
        f"early by more than {early[0]}",
        *(f"early by {low} to {high}" for high, low in pairwise(early)),
        f"within {late[0]}",
        *(f"late by {low} to {high}" for low, high in pairwise(late)),
        f"late by more than {late[-1]}",
    ]


def _edge_text(seconds: int) -> str:
    return f"{seconds // HOUR} h" if seconds >= HOUR else f"{seconds // MINUTE} min"


def _loss_text(run: Measures) -> str:
    return f"{count_text(run.lost_gpu_hours)} ({percent_text(run.lost_percent)})"


# The numbers behind the charts.

_SPREAD = ("mean", "median", "p90", "p99", "p99.9", "longest")
_GROUP = ("jobs", "GPU-hours", "mean wait", "mean JCT", "slowdown")


def spread_table(measures: Sequence[Measures]) -> Table:
    """Waits and completion times of each policy with all their percentiles."""
    names = [f"{what}, {name}" for what in ("wait", "JCT") for name in _SPREAD]
    rows = [[run.policy, *_spread_texts(run.wait), *_spread_texts(run.jct)] for run in measures]
    return bounded_table(_columns("policy", *names), rows, "All percentiles")


def tenant_table(run: Measures) -> Table:
    """One row per tenant of one run."""
    shares = ("weight", "share of GPU-time", "share while all wait", "share by weight")
    rows = []
    for tenant in run.tenants:
        backlogged = tenant.backlogged_share_percent
        rows.append(
            [
                tenant.name,
                *_group_texts(tenant),
                f"{tenant.weight_milli / 1000:g}",
                percent_text(tenant.share_percent),
                NOTHING if backlogged is None else percent_text(backlogged),
                percent_text(tenant.entitled_share_percent),
            ]
        )
    columns = _columns("tenant", *_GROUP, *shares)
    return bounded_table(columns, rows, f"Tenants under {run.policy}")


def partition_table(run: Measures) -> Table:
    """One row per partition of one run."""
    rows = []
    for partition in run.partitions:
        capacity = partition.capacity_gpu_milli
        gpus = NOTHING if capacity is None else gpus_text(capacity)
        rows.append([partition.name, *_group_texts(partition), gpus])
    columns = _columns("partition", *_GROUP, "GPUs")
    return bounded_table(columns, rows, f"Partitions under {run.policy}")


def forecast_table(measures: Sequence[Measures]) -> Table:
    """The accuracy of the forecasts under each policy."""
    rows = [
        [
            run.policy,
            count_text(run.forecast.jobs),
            percent_text(run.forecast.kept_percent),
            percent_text(run.forecast.early_percent),
            percent_text(run.forecast.late_percent),
            duration_text(run.forecast.median_absolute_error_s),
        ]
        for run in measures
        if run.forecast
    ]
    names = ("forecasts", "kept", "early", "late", "median error")
    title = "Forecasts; kept: within 10 % of the forecast wait, or within 10 minutes"
    return bounded_table(_columns("policy", *names), rows, title)


def _columns(first: str, *others: str) -> list[Column]:
    return [Column(name=first, right=False), *(Column(name=name) for name in others)]


def _spread_texts(spread: Distribution) -> list[str]:
    values = (
        spread.mean_s,
        spread.median_s,
        spread.p90_s,
        spread.p99_s,
        spread.p999_s,
        spread.max_s,
    )
    return [duration_text(value) for value in values]


def _group_texts(group: GroupMeasures) -> list[str]:
    return [
        count_text(group.jobs),
        count_text(group.gpu_hours),
        duration_text(group.mean_wait_s),
        duration_text(group.mean_jct_s),
        ratio_text(group.mean_bounded_slowdown),
    ]
