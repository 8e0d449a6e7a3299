"""The metrics by which runs are compared: name, value, text, and which direction is better.

The terminal tables, the JSON output and the report all take their columns from here, so that a
metric has the same name and unit everywhere. Also numbers as text for people: durations, counts,
percentages; JSON output does not use these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from gpu_scheduler.simulator.metrics import Measures

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def duration_text(seconds: float) -> str:
    """Two units at most, such as `42s`, `5m 07s`, `4h 05m` or `2d 03h`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    # Round first, then split: 59.7 s is a minute, not "60s".
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m {whole % MINUTE:02d}s"
    minutes = round(seconds / MINUTE)
    if minutes < DAY // MINUTE:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / HOUR)
    return f"{hours // 24}d {hours % 24:02d}h"


def count_text(number: float) -> str:
    """With thousands separators: `12,345`; one decimal for fractions below 10."""
    if number and abs(number) < 10 and number != round(number):
        return f"{number:.1f}"
    return f"{round(number):,}"


def percent_text(percent: float) -> str:
    """One decimal: `83.4%`."""
    return f"{percent:.1f}%"


def ratio_text(ratio: float) -> str:
    """Three significant digits, for slowdowns: `1.04`, `12.3`, `1,240`."""
    if ratio < 9.995:
        return f"{ratio:.2f}"
    if ratio < 99.95:
        return f"{ratio:.1f}"
    return f"{ratio:,.0f}"


def index_text(index: float) -> str:
    """Three decimals, for an index between 0 and 1."""
    return f"{index:.3f}"


def gpus_text(gpu_milli: int) -> str:
    """GPUs with as many decimals as they need: `8`, `0.5`, `1,024`."""
    return f"{gpu_milli / 1000:,.3f}".rstrip("0").rstrip(".")


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


def _duration(key: str, label: str, path: str, meaning: str) -> Column:
    """A column of seconds; `path` names the attribute of `Measures`."""
    return Column(
        key=key, label=label, meaning=meaning, value=attrgetter(path), text_of=duration_text
    )


def _percent(key: str, label: str, meaning: str, better: Better = Better.LOW) -> Column:
    """A column of percentages; `key` names the attribute of `Measures`."""
    return Column(
        key=key,
        label=label,
        meaning=meaning,
        value=attrgetter(key),
        text_of=percent_text,
        better=better,
    )


JOBS = Column(
    key="jobs",
    label="jobs",
    meaning="Jobs (and tasks of arrays) that ended.",
    value=lambda m: m.jobs,
    text_of=count_text,
    better=Better.NEITHER,
)
MEAN_WAIT = _duration(
    "mean_wait_s",
    "mean wait",
    "wait.mean_s",
    "Total time a job spent in the queue, including time after a preemption.",
)
P99_WAIT = _duration(
    "p99_wait_s", "p99 wait", "wait.p99_s", "One job in a hundred waited longer than this."
)
MEAN_JCT = _duration(
    "mean_jct_s", "mean JCT", "jct.mean_s", "Job completion time: from submission to end."
)
SLOWDOWN = Column(
    key="mean_bounded_slowdown",
    label="slowdown",
    meaning="Mean of (wait + run) / run, never below 1; runs shorter than 10 s count as 10 s.",
    value=lambda m: m.mean_bounded_slowdown,
    text_of=ratio_text,
)
UTILISATION = _percent(
    "utilisation_percent",
    "used",
    "Share of the GPU time until the last job ended that was allocated to jobs.",
    Better.HIGH,
)
ALLOCATED_BACKLOG = _percent(
    "allocated_backlog_percent",
    "packing",
    "Share of the GPUs allocated on average while jobs waited.",
    Better.HIGH,
)
FRAGMENTATION = _percent(
    "fragmentation_percent",
    "fragments",
    "Average share of GPUs that were free but that no waiting job could use.",
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
LOST = _percent(
    "lost_percent",
    "lost",
    "Work repeated after a preemption and its overhead, in percent of useful work.",
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

SERVICE = (
    MEAN_WAIT,
    _duration(
        "median_wait_s",
        "median wait",
        "wait.median_s",
        "Half of the jobs waited no longer than this.",
    ),
    P99_WAIT,
    MEAN_JCT,
    _duration(
        "p99_jct_s",
        "p99 JCT",
        "jct.p99_s",
        "One job in a hundred took longer than this from submission to end.",
    ),
    SLOWDOWN,
    FORECAST,
)
"""Quality of service for users."""
TAIL = tuple(
    _duration(key, label, path, meaning)
    for key, label, path, meaning in (
        ("p90_wait_s", "p90 wait", "wait.p90_s", "One job in ten waited longer than this."),
        (
            "p999_wait_s",
            "p99.9 wait",
            "wait.p999_s",
            "One job in a thousand waited longer than this.",
        ),
        ("max_wait_s", "longest wait", "wait.max_s", "No job waited longer than this."),
        (
            "median_jct_s",
            "median JCT",
            "jct.median_s",
            "Half of the jobs took no longer than this from submission to end.",
        ),
        (
            "p90_jct_s",
            "p90 JCT",
            "jct.p90_s",
            "One job in ten took longer than this from submission to end.",
        ),
        (
            "p999_jct_s",
            "p99.9 JCT",
            "jct.p999_s",
            "One job in a thousand took longer than this from submission to end.",
        ),
        (
            "max_jct_s",
            "longest JCT",
            "jct.max_s",
            "No job took longer than this from submission to end.",
        ),
    )
)
"""The tail of the distributions: the jobs that waited or took longest."""
CLUSTER = (
    _duration("makespan_s", "makespan", "makespan_s", "From the first submission to the last end."),
    UTILISATION,
    ALLOCATED_BACKLOG,
    FRAGMENTATION,
    FAIRNESS,
    PREEMPTIONS,
    LOST,
)
"""Efficiency of the cluster and the cost of preemption."""
