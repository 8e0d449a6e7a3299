"""The metrics by which runs are compared: name, value, text, and which direction is better.

The terminal tables, the JSON output and the report all take their columns from here, so that a
metric has the same name and unit everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from gpu_scheduler.simulator.format import (
    count_text,
    duration_text,
    index_text,
    percent_text,
    ratio_text,
)
from gpu_scheduler.simulator.metrics import Measures

NOTHING = "–"  # noqa: RUF001 - a dash for "no value", not a minus


class Better(Enum):
    """Which of two values is the better one."""

    LOW = "low"
    HIGH = "high"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One measure: `key` (with its unit) for machines, `label` and `text_of` for people."""

    key: str
    label: str
    meaning: str
    value: Callable[[Measures], float | None]
    text_of: Callable[[float], str]
    better: Better = Better.LOW

    def text(self, measures: Measures) -> str:
        """The value as displayed; a dash if the run has none."""
        value = self.value(measures)
        return NOTHING if value is None else self.text_of(value)


def best_rows(column: Column, measures: Sequence[Measures]) -> frozenset[int]:
    """The row numbers of the best runs; empty if all runs show the same value.

    Values are compared as they are displayed: `4h 05m` and `4h 05m` are a tie.
    """
    values = {
        row: value
        for row, run in enumerate(measures)
        if run.jobs and (value := column.value(run)) is not None
    }
    texts = {column.text_of(value) for value in values.values()}
    if column.better is Better.NEITHER or len(texts) < 2:
        return frozenset()
    best = min(values.values()) if column.better is Better.LOW else max(values.values())
    return frozenset(
        row for row, value in values.items() if column.text_of(value) == column.text_of(best)
    )


JOBS = Column(
    key="jobs",
    label="jobs",
    meaning="Jobs (and tasks of arrays) that ended.",
    value=lambda m: m.jobs,
    text_of=count_text,
    better=Better.NEITHER,
)
MEAN_WAIT = Column(
    key="mean_wait_s",
    label="mean wait",
    meaning="Total time a job spent in the queue, including time after a preemption.",
    value=lambda m: m.wait.mean_s,
    text_of=duration_text,
)
MEDIAN_WAIT = Column(
    key="median_wait_s",
    label="median wait",
    meaning="Half of the jobs waited no longer than this.",
    value=lambda m: m.wait.median_s,
    text_of=duration_text,
)
P99_WAIT = Column(
    key="p99_wait_s",
    label="p99 wait",
    meaning="One job in a hundred waited longer than this.",
    value=lambda m: m.wait.p99_s,
    text_of=duration_text,
)
MEAN_JCT = Column(
    key="mean_jct_s",
    label="mean JCT",
    meaning="Job completion time: from submission to end.",
    value=lambda m: m.jct.mean_s,
    text_of=duration_text,
)
P99_JCT = Column(
    key="p99_jct_s",
    label="p99 JCT",
    meaning="One job in a hundred took longer than this from submission to end.",
    value=lambda m: m.jct.p99_s,
    text_of=duration_text,
)
SLOWDOWN = Column(
    key="mean_bounded_slowdown",
    label="slowdown",
    meaning="Mean of (wait + run) / run, never below 1; runs shorter than 10 s count as 10 s.",
    value=lambda m: m.mean_bounded_slowdown,
    text_of=ratio_text,
)
MAKESPAN = Column(
    key="makespan_s",
    label="makespan",
    meaning="From the first submission to the last end.",
    value=lambda m: m.makespan_s,
    text_of=duration_text,
)
UTILISATION = Column(
    key="utilisation_percent",
    label="used",
    meaning="Share of the GPU time until the last job ended that was allocated to jobs.",
    value=lambda m: m.utilisation_percent,
    text_of=percent_text,
    better=Better.HIGH,
)
ALLOCATED_BACKLOG = Column(
    key="allocated_backlog_percent",
    label="packing",
    meaning="Share of the GPUs allocated on average while jobs waited.",
    value=lambda m: m.allocated_backlog_percent,
    text_of=percent_text,
    better=Better.HIGH,
)
FRAGMENTATION = Column(
    key="fragmentation_percent",
    label="fragments",
    meaning="Average share of GPUs that were free but that no waiting job could use.",
    value=lambda m: m.fragmentation_percent,
    text_of=percent_text,
)
FAIRNESS = Column(
    key="jain_backlogged",
    label="fairness",
    meaning="Jain's index of GPU time per weight while all tenants waited; 1 is perfectly even.",
    value=lambda m: m.jain_backlogged,
    text_of=index_text,
    better=Better.HIGH,
)
PREEMPTIONS = Column(
    key="preemptions",
    label="preempted",
    meaning="Number of times a running job was preempted.",
    value=lambda m: m.preemptions,
    text_of=count_text,
)
LOST = Column(
    key="lost_percent",
    label="lost",
    meaning="Work repeated after a preemption and its overhead, in percent of useful work.",
    value=lambda m: m.lost_percent,
    text_of=percent_text,
)
FORECAST = Column(
    key="forecast_kept_percent",
    label="forecast",
    meaning=(
        "Of the jobs that waited over a minute: share that started within 10 % of the "
        "forecast wait, or within 10 minutes of the forecast start."
    ),
    value=lambda m: None if m.forecast is None else m.forecast.kept_percent,
    text_of=percent_text,
    better=Better.HIGH,
)

TAIL = (
    Column(
        key="p90_wait_s",
        label="p90 wait",
        meaning="One job in ten waited longer than this.",
        value=lambda m: m.wait.p90_s,
        text_of=duration_text,
    ),
    Column(
        key="p999_wait_s",
        label="p99.9 wait",
        meaning="One job in a thousand waited longer than this.",
        value=lambda m: m.wait.p999_s,
        text_of=duration_text,
    ),
    Column(
        key="max_wait_s",
        label="longest wait",
        meaning="No job waited longer than this.",
        value=lambda m: m.wait.max_s,
        text_of=duration_text,
    ),
    Column(
        key="median_jct_s",
        label="median JCT",
        meaning="Half of the jobs took no longer than this from submission to end.",
        value=lambda m: m.jct.median_s,
        text_of=duration_text,
    ),
    Column(
        key="p90_jct_s",
        label="p90 JCT",
        meaning="One job in ten took longer than this from submission to end.",
        value=lambda m: m.jct.p90_s,
        text_of=duration_text,
    ),
    Column(
        key="p999_jct_s",
        label="p99.9 JCT",
        meaning="One job in a thousand took longer than this from submission to end.",
        value=lambda m: m.jct.p999_s,
        text_of=duration_text,
    ),
    Column(
        key="max_jct_s",
        label="longest JCT",
        meaning="No job took longer than this from submission to end.",
        value=lambda m: m.jct.max_s,
        text_of=duration_text,
    ),
)
"""The tail of the distributions: the jobs that waited or took longest."""
SERVICE = (MEAN_WAIT, MEDIAN_WAIT, P99_WAIT, MEAN_JCT, P99_JCT, SLOWDOWN, FORECAST)
"""Quality of service for users."""
CLUSTER = (
    MAKESPAN,
    UTILISATION,
    ALLOCATED_BACKLOG,
    FRAGMENTATION,
    FAIRNESS,
    PREEMPTIONS,
    LOST,
)
"""Efficiency of the cluster and the cost of preemption."""
