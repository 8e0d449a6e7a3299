"""The charts of the report, section by section. A section without data says so in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.measures import Measures, TenantMeasures
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report.axes import log_time_ticks, time_label, time_ticks
from gpu_scheduler.simulator.report.bar_chart import Bar, BarGroup, lying_bars, standing_bars
from gpu_scheduler.simulator.report.curves import (
    ERROR_EDGES_S,
    TimeGrid,
    error_shares,
    log_grid,
    over_time,
    share_below,
    time_grid,
)
from gpu_scheduler.simulator.report.figure import Policy, figure
from gpu_scheduler.simulator.report.line_chart import Limit, LineChart
from gpu_scheduler.simulator.report.markup import Markup, joined, tag
from gpu_scheduler.simulator.timeline import Level
from gpu_scheduler.simulator.wording import (
    count_text,
    duration_text,
    gpus_text,
    percent_text,
)

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
    """Who waited, over time."""
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
            "GPUs that are free, yet in pieces that no waiting job can use.",
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
    """How far promises were off."""
    series = [
        (policy, shares)
        for run, policy in zip(study.runs, study.policies, strict=True)
        if (shares := error_shares(run.outcomes)) is not None
    ]
    if not series:
        return _nothing("No job that waited for more than a minute was promised a start.")
    edges = [f"{'-' if edge < 0 else '+'}{time_label(abs(edge))}" for edge in ERROR_EDGES_S]
    return figure(
        "Error of the forecast",
        "First start minus the start promised at submission, for jobs that waited over a minute.",
        standing_bars("Error of the forecast", edges, series, ("early", "late")),
        [policy for policy, _ in series],
    )


def preemption_charts(study: Study) -> Markup:
    """How often jobs had to give way, and what it cost."""
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
            "How often a running job had to give way.",
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
