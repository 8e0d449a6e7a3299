"""The numbers behind the charts, as HTML tables that scroll sideways on a narrow screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_scheduler.simulator.metric_defs import (
    CLUSTER,
    JOBS,
    NOTHING,
    SERVICE,
    best_rows,
    count_text,
    duration_text,
    gpus_text,
    percent_text,
    ratio_text,
)
from gpu_scheduler.simulator.metrics import Distribution, GroupMeasures, Measures
from gpu_scheduler.simulator.report.charts import Policy, swatch
from gpu_scheduler.simulator.report.document import Markup, joined, tag

MOST_ROWS = 100
"""Longer tables end with a line that says how much was left out."""

_SPREAD = ("mean", "median", "p90", "p99", "p99.9", "longest")
_GROUP = ("jobs", "GPU-hours", "mean wait", "mean JCT", "slowdown")


def comparison_table(measures: Sequence[Measures], policies: Sequence[Policy]) -> Markup:
    """One row per policy, the best value of each column emphasised."""
    columns = (JOBS, *SERVICE, *CLUSTER)
    best = {column.key: best_rows(column, measures) for column in columns}
    rows = [
        (
            _policy_cell(policy),
            *(
                tag("td", column.text(run), class_="best" if row in best[column.key] else None)
                for column in columns
            ),
        )
        for row, (run, policy) in enumerate(zip(measures, policies, strict=True))
    ]
    headings = (
        tag("th", "policy"),
        *(tag("th", column.label, title=column.meaning) for column in columns),
    )
    return _table(headings, rows)


def spread_table(measures: Sequence[Measures], policies: Sequence[Policy]) -> Markup:
    """Waits and completion times of each policy with all their percentiles."""
    rows = []
    for run, policy in zip(measures, policies, strict=True):
        cells = (*_spread_texts(run.wait), *_spread_texts(run.jct))
        rows.append((_policy_cell(policy), *(tag("td", cell) for cell in cells)))
    names = [f"wait, {name}" for name in _SPREAD] + [f"JCT, {name}" for name in _SPREAD]
    return _table(_headings("policy", *names), rows)


def tenant_table(run: Measures) -> Markup:
    """One row per tenant of one run."""
    rows = []
    for tenant in run.tenants:
        backlogged = tenant.backlogged_share_percent
        cells = (
            *_group_texts(tenant),
            f"{tenant.weight_milli / 1000:g}",
            percent_text(tenant.share_percent),
            NOTHING if backlogged is None else percent_text(backlogged),
            percent_text(tenant.entitled_share_percent),
        )
        rows.append((tag("th", tenant.name), *(tag("td", cell) for cell in cells)))
    shares = ("weight", "share of GPU-time", "share while all wait", "share by weight")
    return _table(_headings("tenant", *_GROUP, *shares), rows)


def partition_table(run: Measures) -> Markup:
    """One row per partition of one run."""
    rows = []
    for partition in run.partitions:
        capacity = partition.capacity_gpu_milli
        cells = (*_group_texts(partition), NOTHING if capacity is None else gpus_text(capacity))
        rows.append((tag("th", partition.name), *(tag("td", cell) for cell in cells)))
    return _table(_headings("partition", *_GROUP, "GPUs"), rows)


def forecast_table(measures: Sequence[Measures], policies: Sequence[Policy]) -> Markup:
    """The accuracy of the forecasts under each policy."""
    rows = []
    for run, policy in zip(measures, policies, strict=True):
        if run.forecast:
            cells = (
                count_text(run.forecast.jobs),
                percent_text(run.forecast.kept_percent),
                percent_text(run.forecast.early_percent),
                percent_text(run.forecast.late_percent),
                duration_text(run.forecast.median_absolute_error_s),
            )
            rows.append((_policy_cell(policy), *(tag("td", cell) for cell in cells)))
    return _table(_headings("policy", "forecasts", "kept", "early", "late", "median error"), rows)


def folded(title: str, *content: Markup) -> Markup:
    """Content that is hidden until the reader opens it."""
    return tag("details", tag("summary", title), *content)


def _table(headings: Iterable[Markup], rows: Sequence[Sequence[Markup]]) -> Markup:
    body = [tag("tr", *row) for row in rows[:MOST_ROWS]]
    left_out = len(rows) - MOST_ROWS
    rest = tag("p", f"and {count_text(left_out)} more", class_="rest") if left_out > 0 else Markup()
    table = tag("table", tag("thead", tag("tr", *headings)), tag("tbody", *body))
    return joined(tag("div", table, class_="scroll", tabindex="0"), rest)


def _headings(*names: str) -> list[Markup]:
    return [tag("th", name) for name in names]


def _policy_cell(policy: Policy) -> Markup:
    return tag("th", swatch(policy), policy.name)


def _spread_texts(spread: Distribution) -> tuple[str, ...]:
    values = (
        spread.mean_s,
        spread.median_s,
        spread.p90_s,
        spread.p99_s,
        spread.p999_s,
        spread.max_s,
    )
    return tuple(duration_text(value) for value in values)


def _group_texts(group: GroupMeasures) -> tuple[str, ...]:
    return (
        count_text(group.jobs),
        count_text(group.gpu_hours),
        duration_text(group.mean_wait_s),
        duration_text(group.mean_jct_s),
        ratio_text(group.mean_bounded_slowdown),
    )
