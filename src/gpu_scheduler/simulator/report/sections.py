"""The charts of the report, section by section. A section without data says so in a sentence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.metric_defs import (
    HOUR,
    MINUTE,
    count_text,
    duration_text,
    gpus_text,
    percent_text,
)
from gpu_scheduler.simulator.metrics import Measures, TenantMeasures, promise_errors_ms
from gpu_scheduler.simulator.outcomes import Level, Outcomes, Run, StepFunction, sampled_span
from gpu_scheduler.simulator.report.charts import (
    Bar,
    BarGroup,
    Limit,
    LineChart,
    Policy,
    figure,
    log_steps,
    log_time_ticks,
    lying_bars,
    standing_bars,
    time_label,
    time_ticks,
)
from gpu_scheduler.simulator.report.document import Markup, joined, tag

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
    return list(log_steps(1.0, max(10.0, longest_s), CDF_POINTS))


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


# The charts, section by section. A section without data says so in a sentence.

MOST_TENANTS = 10
QUEUE_POINTS = 200
CLUSTER_POINTS = 90
"""Fewer, because allocation changes with every job and would only show as noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All that a section may draw: runs, measures and policies in the same order."""

    runs: Sequence[Run]
    measures: Sequence[Measures]
    policies: Sequence[Policy]


def queue_charts(study: Study) -> Markup:
    """The waiting jobs and GPUs over time."""
    grid = time_grid(study.runs, QUEUE_POINTS)
    if grid is None:
        return _nothing("The runs carry no samples, so nothing can be drawn over time.")
    return joined(
        _over_time(
            study,
            grid,
            "Waiting jobs",
            "Jobs in the queue, over the time since the start.",
            lambda sample: sample.waiting_jobs,
            unit="jobs",
        ),
        _over_time(
            study,
            grid,
            "Waiting GPUs",
            "GPUs that the jobs in the queue ask for, over the time since the start.",
            lambda sample: sample.waiting_gpu_milli / 1000,
            unit="GPUs",
        ),
    )


def cluster_charts(study: Study) -> Markup:
    """What the machines did, over time."""
    grid = time_grid(study.runs, CLUSTER_POINTS)
    if grid is None:
        return _nothing("The runs carry no samples, so nothing can be drawn over time.")
    capacity = max(run.capacity_gpu_milli for run in study.runs)
    return joined(
        _over_time(
            study,
            grid,
            "Allocated GPUs",
            "GPUs that jobs hold. The space below the dashed line stands idle.",
            lambda sample: sample.allocated_gpu_milli / 1000,
            unit="GPUs",
            limit=Limit(value=capacity / 1000, label=f"capacity {gpus_text(capacity)} GPUs"),
        ),
        _over_time(
            study,
            grid,
            "Fragmentation",
            "GPUs that are free but that no waiting job can use.",
            lambda sample: sample.fragmented_gpu_milli / 1000,
            unit="GPUs",
        ),
    )


def distribution_charts(study: Study) -> Markup:
    """How waits and completion times are spread over jobs."""
    if not any(run.jobs for run in study.measures):
        return _nothing("No job came to its end.")
    waits = [sorted(run.outcomes.numbers["wait_ms"]) for run in study.runs]
    jcts = [
        sorted(
            end_ms - submit_ms
            for submit_ms, end_ms in zip(
                run.outcomes.numbers["submit_ms"], run.outcomes.numbers["end_ms"], strict=True
            )
        )
        for run in study.runs
    ]
    return joined(
        _shares_below(
            study,
            waits,
            "Wait",
            "Share of jobs that waited no longer than this. Further left and higher is better.",
        ),
        _shares_below(
            study,
            jcts,
            "Completion time",
            "Share of jobs that ended within this time of their submission.",
        ),
    )


def fairness_charts(study: Study) -> Markup:
    """What each tenant received and how long it waited."""
    names = _largest_tenants(study.measures)
    if not names:
        return _nothing("The runs have no tenants.")
    contended = all(run.jain_backlogged is not None for run in study.measures)
    when = "while all tenants waited" if contended else "over the whole run"
    more = f" The {MOST_TENANTS} largest tenants." if len(names) == MOST_TENANTS else ""

    def share(tenant: TenantMeasures) -> float:
        backlogged = tenant.backlogged_share_percent
        return backlogged if contended and backlogged is not None else tenant.share_percent

    return joined(
        figure(
            "GPU-time received",
            f"Share of the GPU-time {when}; the mark is the share by weight.{more}",
            _tenant_bars(study, names, "GPU-time per tenant", share, percent_text, marked=True),
            study.policies,
        ),
        figure(
            "Mean wait per tenant",
            f"A fair policy keeps bars of one colour alike where weights are alike.{more}",
            _tenant_bars(
                study, names, "Mean wait per tenant", lambda t: t.mean_wait_s, duration_text
            ),
            study.policies,
        ),
    )


def forecast_chart(study: Study) -> Markup:
    """The errors of the forecast starts."""
    series = [
        (policy, shares)
        for run, policy in zip(study.runs, study.policies, strict=True)
        if (shares := error_shares(run.outcomes)) is not None
    ]
    if not series:
        return _nothing("No job that waited for more than a minute had a forecast start.")
    edges = [f"{'-' if edge < 0 else '+'}{time_label(abs(edge))}" for edge in ERROR_EDGES_S]
    return figure(
        "Error of the forecast",
        "First start minus the start forecast at submission, for jobs that waited over a minute.",
        standing_bars("Error of the forecast", edges, series, ("early", "late")),
        [policy for policy, _ in series],
    )


def preemption_charts(study: Study) -> Markup:
    """How often jobs were preempted, and what it cost."""
    if not any(run.preemptions or run.lost_gpu_hours for run in study.measures):
        return _nothing("No job was preempted and no work was lost.")
    pairs = list(zip(study.measures, study.policies, strict=True))
    counts = [
        Bar(policy=policy, value=run.preemptions, text=count_text(run.preemptions))
        for run, policy in pairs
    ]
    losses = [
        Bar(policy=policy, value=run.lost_gpu_hours, text=_loss_text(run)) for run, policy in pairs
    ]
    return joined(
        figure(
            "Preemptions",
            "Number of times a running job was preempted.",
            lying_bars("Preemptions", [BarGroup(name=b.policy.name, bars=[b]) for b in counts]),
            [],
        ),
        figure(
            "Lost work",
            "GPU-hours of work done twice and of overheads, and their share of useful work.",
            lying_bars("Lost work", [BarGroup(name=b.policy.name, bars=[b]) for b in losses]),
            [],
        ),
    )


def _over_time(
    study: Study,
    grid: TimeGrid,
    title: str,
    note: str,
    level: Level,
    *,
    unit: str,
    limit: Limit | None = None,
) -> Markup:
    middles_s = [(place + 0.5) * grid.span_s / grid.points for place in range(grid.points)]
    chart = LineChart(
        label=f"{title} over time",
        lines=[
            (policy, over_time(run, level, grid))
            for run, policy in zip(study.runs, study.policies, strict=True)
        ],
        names=[duration_text(middle_s) for middle_s in middles_s],
        ticks=time_ticks(grid.span_s),
        first=0.5 / grid.points,
        unit=unit,
        limit=limit,
    )
    return figure(title, note, chart.draw(), study.policies, chart.tips())


def _shares_below(study: Study, columns: Sequence[Sequence[int]], title: str, note: str) -> Markup:
    grid_s = log_grid(columns)
    chart = LineChart(
        label=f"{title}: cumulative distribution",
        lines=[
            (policy, share_below(column, grid_s))
            for column, policy in zip(columns, study.policies, strict=True)
        ],
        names=[f"up to {duration_text(point_s)}" for point_s in grid_s],
        ticks=log_time_ticks(grid_s[0], grid_s[-1]),
        unit="%",
        top=100.0,
        tick_text=lambda step: f"{step:g}%",
    )
    return figure(title, note, chart.draw(), study.policies, chart.tips())


def _largest_tenants(measures: Sequence[Measures]) -> list[str]:
    """Those with the most GPU-time under the first policy that knows them, the largest first."""
    hours: dict[str, float] = {}
    for run in measures:
        for tenant in run.tenants:
            hours.setdefault(tenant.name, tenant.gpu_hours)
    return sorted(hours, key=lambda name: (-hours[name], name))[:MOST_TENANTS]


def _tenant_bars(
    study: Study,
    names: Sequence[str],
    label: str,
    value: Callable[[TenantMeasures], float],
    text: Callable[[float], str],
    *,
    marked: bool = False,
) -> Markup:
    found = [{tenant.name: tenant for tenant in run.tenants} for run in study.measures]
    groups = []
    for name in names:
        bars = [
            Bar(policy=policy, value=value(tenants[name]), text=text(value(tenants[name])))
            for tenants, policy in zip(found, study.policies, strict=True)
            if name in tenants
        ]
        mark = next(t[name].entitled_share_percent for t in found if name in t) if marked else None
        mark_text = "" if mark is None else f"{percent_text(mark)} by weight"
        groups.append(BarGroup(name=name, bars=bars, mark=mark, mark_text=mark_text))
    return lying_bars(label, groups)


def _loss_text(run: Measures) -> str:
    return f"{count_text(run.lost_gpu_hours)} ({percent_text(run.lost_percent)})"


def _nothing(sentence: str) -> Markup:
    return tag("p", sentence, class_="nothing")
