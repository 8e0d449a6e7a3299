"""The report as one page: a summary, then the sections, and what the measures mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_scheduler.simulator.metric_defs import (
    ALLOCATED_BACKLOG,
    CLUSTER,
    FAIRNESS,
    FORECAST,
    JOBS,
    MEAN_JCT,
    MEAN_WAIT,
    P99_WAIT,
    SERVICE,
    UTILISATION,
    Better,
    Column,
    best_rows,
    count_text,
    duration_text,
    gpus_text,
    percent_text,
)
from gpu_scheduler.simulator.metrics import Measures
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report import document
from gpu_scheduler.simulator.report.document import Figure, Figures, Page, Section, Table
from gpu_scheduler.simulator.report.sections import (
    Study,
    cluster,
    fairness,
    forecasts,
    preemption,
    queue,
    waits,
)

# For each metric the best policy, and its gain over the first policy.
_FIGURES = (
    (MEAN_WAIT, "mean wait"),
    (P99_WAIT, "99th percentile of waits"),
    (MEAN_JCT, "mean completion time"),
    (UTILISATION, "GPU-time used"),
    (ALLOCATED_BACKLOG, "packing while jobs wait"),
    (FAIRNESS, "fairness while all wait"),
    (FORECAST, "forecasts kept"),
)
_MOST_FIGURES = 6


def write_report(
    runs: list[Run], measures: list[Measures], path: Path, *, command: str, title: str
) -> Path:
    """Write the report of some runs and their measures (in the same order); return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document.write_document(page(runs, measures, command=command, title=title), path)
    return path


def page(runs: Sequence[Run], measures: Sequence[Measures], *, command: str, title: str) -> Page:
    """The content of the report."""
    study = Study(runs=runs, measures=measures)
    facts = [
        ("Workload", ", ".join(dict.fromkeys(run.workload for run in runs))),
        ("Cluster", _cluster_text(study)),
        ("Policies", ", ".join(study.policies)),
        ("Note", " ".join(_notes(measures))),
    ]
    sections = [
        Section(name="Summary", blocks=[summary(measures), comparison_table(measures)]),
        Section(name="Queue", blocks=queue(study)),
        Section(name="Cluster", blocks=cluster(study)),
        Section(name="Waits", blocks=waits(study)),
        Section(name="Fairness", blocks=fairness(study)),
        Section(name="Forecast", blocks=forecasts(study)),
        Section(name="Preemption", blocks=preemption(study)),
        Section(name="Meaning", blocks=[_meanings(measures)]),
    ]
    known = [fact for fact in facts if fact[1]]
    return Page(title=title, facts=known, command=command, sections=sections)


def summary(measures: Sequence[Measures]) -> Figures:
    """Up to six figures; a measure that no run has gets none."""
    known = [pair for pair in _FIGURES if any(pair[0].value(run) is not None for run in measures)]
    return Figures(figures=[_figure(*pair, measures) for pair in known[:_MOST_FIGURES]])


def _figure(column: Column, name: str, measures: Sequence[Measures]) -> Figure:
    best = sorted(best_rows(column, measures))
    if len(measures) == 1:
        row, foot = 0, ""
    elif not best:
        rows = [row for row, run in enumerate(measures) if column.value(run) is not None]
        row = rows[0]
        names = ", ".join(measures[row].policy for row in rows)
        if len(rows) == len(measures):
            foot = "the same for every policy"
        elif len(rows) == 1:
            foot = f"{names}; no value for the others"
        else:
            foot = f"the same for {names}; no value for the others"
    else:
        row = best[0]
        others = f" and {len(best) - 1} more" if len(best) > 1 else ""
        foot = f"{measures[row].policy}{others}{_gain(column, row, measures)}"
    return Figure(name=name, value=column.text(measures[row]), foot=foot)


def _gain(column: Column, row: int, measures: Sequence[Measures]) -> str:
    """How far the best is from the first policy, or from the worst if the first is the best."""
    value = column.value(measures[row])
    other = 0 if row else _worst_row(column, measures)
    other_value = column.value(measures[other])
    if value is None or not other_value:
        return ""
    if column.key.endswith("_s"):
        text = f"{percent_text(100 * (1 - value / other_value))} less than"
    elif column.key.endswith("_percent"):
        text = f"{abs(value - other_value):.1f} points over"
    else:
        text = f"{abs(value - other_value):.3f} over"
    return f", {text} {measures[other].policy}"


def _worst_row(column: Column, measures: Sequence[Measures]) -> int:
    values = [
        (value, row) for row, run in enumerate(measures) if (value := column.value(run)) is not None
    ]
    return (max(values) if column.better is Better.LOW else min(values))[1]


def comparison_table(measures: Sequence[Measures]) -> Table:
    """One row per policy; the best values of each column are marked."""
    columns = (JOBS, *SERVICE, *CLUSTER)
    return Table(
        columns=[
            document.Column(name="policy", right=False),
            *(document.Column(name=one.label, meaning=one.meaning) for one in columns),
        ],
        rows=[[run.policy, *(one.text(run) for one in columns)] for run in measures],
        best=[
            (row, place)
            for place, one in enumerate(columns, start=1)
            for row in sorted(best_rows(one, measures))
        ],
    )


def _cluster_text(study: Study) -> str:
    gpus = dict.fromkeys(gpus_text(run.capacity_gpu_milli) for run in study.runs)
    parts = [f"{' / '.join(gpus)} GPUs"]
    for noun, count in (
        ("partition", max((len(run.partitions) for run in study.measures), default=0)),
        ("tenant", max((len(run.tenants) for run in study.measures), default=0)),
        ("job", max((run.jobs for run in study.measures), default=0)),
    ):
        parts.append(_counted(count, noun))
    return " · ".join(parts)


def _notes(measures: Sequence[Measures]) -> Iterable[str]:
    """What a reader must know before comparing: work that not every policy brought to an end."""
    for run in measures:
        if run.dropped_jobs:
            yield f"{run.policy}: {_counted(run.dropped_jobs, 'job')} left out."
        if run.failed_jobs:
            yield f"{run.policy}: {_counted(run.failed_jobs, 'job')} failed."
        if run.never_ran_jobs:
            yield f"{run.policy}: {_counted(run.never_ran_jobs, 'job')} never ran."


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def _meanings(measures: Sequence[Measures]) -> Table:
    rows = [[column.label, column.meaning] for column in (JOBS, *SERVICE, *CLUSTER)]
    effort = ", ".join(
        f"{run.policy} {duration_text(run.wall_seconds)} for {count_text(run.cycles)} cycles"
        for run in measures
        if run.cycles
    )
    if effort:
        rows.append(["effort", f"What the simulation itself took: {effort}."])
    columns = [document.Column(name=name, right=False) for name in ("measure", "meaning")]
    return Table(columns=columns, rows=rows)
