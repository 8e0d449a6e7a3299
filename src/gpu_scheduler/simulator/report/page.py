"""The report as one page, and the page as one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from gpu_scheduler.simulator.report.charts import Policy, swatch
from gpu_scheduler.simulator.report.data_tables import (
    comparison_table,
    folded,
    forecast_table,
    partition_table,
    spread_table,
    tenant_table,
)
from gpu_scheduler.simulator.report.document import Markup, document, joined, tag, write_document
from gpu_scheduler.simulator.report.sections import (
    Study,
    cluster_charts,
    distribution_charts,
    fairness_charts,
    forecast_chart,
    preemption_charts,
    queue_charts,
)

# The cards at the top: for each metric the best policy, and its gain over the first policy.

_CARDS = (
    (MEAN_WAIT, "Mean wait"),
    (P99_WAIT, "99th percentile of waits"),
    (MEAN_JCT, "Mean completion time"),
    (UTILISATION, "GPU-time used"),
    (ALLOCATED_BACKLOG, "Packing while jobs wait"),
    (FAIRNESS, "Fairness while all wait"),
    (FORECAST, "Forecasts kept"),
)
_MOST_CARDS = 6


def summary_cards(measures: Sequence[Measures], policies: Sequence[Policy]) -> Markup:
    """Up to six cards; a measure that no run has gets none."""
    cards = [
        _card(column, title, measures, policies)
        for column, title in _CARDS
        if any(column.value(run) is not None for run in measures)
    ]
    return tag("div", *cards[:_MOST_CARDS], class_="cards")


def _card(
    column: Column, title: str, measures: Sequence[Measures], policies: Sequence[Policy]
) -> Markup:
    best = sorted(best_rows(column, measures))
    if len(measures) == 1:
        row, foot = 0, Markup()
    elif not best:
        row = next(row for row, run in enumerate(measures) if column.value(run) is not None)
        foot = joined("the same for every policy")
    else:
        row = best[0]
        others = f" and {len(best) - 1} more" if len(best) > 1 else ""
        gain = _gain(column, row, measures)
        foot = joined(swatch(policies[row]), tag("b", policies[row].name), others, gain)
    return tag(
        "div",
        tag("h3", title),
        tag("strong", column.text(measures[row])),
        tag("p", foot) if foot else tag("p", column.meaning),
        class_="card stat",
        title=column.meaning,
    )


def _gain(column: Column, row: int, measures: Sequence[Measures]) -> Markup:
    """How far the best is from the first policy, or from the worst if the first is the best."""
    value = column.value(measures[row])
    other = 0 if row else _worst_row(column, measures)
    other_value = column.value(measures[other])
    if value is None or not other_value:
        return Markup()
    if column.key.endswith("_s"):
        text = f"{percent_text(100 * (1 - value / other_value))} less than"
    elif column.key.endswith("_percent"):
        text = f"{abs(value - other_value):.1f} points over"
    else:
        text = f"{abs(value - other_value):.3f} over"
    return tag("span", f"{text} {measures[other].policy}", class_="gain")


def _worst_row(column: Column, measures: Sequence[Measures]) -> int:
    values = [
        (value, row) for row, run in enumerate(measures) if (value := column.value(run)) is not None
    ]
    return (max(values) if column.better is Better.LOW else min(values))[1]


def write_report(
    runs: list[Run], measures: list[Measures], path: Path, *, command: str, title: str
) -> Path:
    """Write the report of some runs and their measures (in the same order); return its path."""
    text = page(runs, measures, command=command, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(text, path)
    return path


def page(runs: Sequence[Run], measures: Sequence[Measures], *, command: str, title: str) -> str:
    """The whole document. The same runs give the same text, byte for byte."""
    study = Study(
        runs=runs,
        measures=measures,
        policies=[Policy(number, run.policy) for number, run in enumerate(runs)],
    )
    return document(
        title,
        _header(study, command=command, title=title),
        _navigation(),
        tag(
            "main",
            *(
                tag("section", tag("h2", name), content(study), id=anchor)
                for anchor, name, content in _SECTIONS
            ),
        ),
    )


def _header(study: Study, *, command: str, title: str) -> Markup:
    policies = (tag("span", swatch(p), p.name, class_="chip") for p in study.policies)
    facts = [
        ("Workload", joined(", ".join(dict.fromkeys(run.workload for run in study.runs)))),
        ("Cluster", joined(_cluster_text(study))),
        ("Policies", joined(*policies)),
    ]
    if command:
        facts.append(("Command", tag("code", command)))
    if notes := _notes(study):
        facts.append(("Note", joined(notes)))
    return tag(
        "header",
        tag("p", "Simulation report", class_="kicker"),
        tag("h1", title),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", text)) for name, text in facts)),
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


def _notes(study: Study) -> str:
    """What a reader must know before comparing: work that not every policy brought to an end."""
    notes = []
    for run in study.measures:
        if run.dropped_jobs:
            notes.append(f"{run.policy}: {_counted(run.dropped_jobs, 'job')} left out.")
        if run.failed_jobs:
            notes.append(f"{run.policy}: {_counted(run.failed_jobs, 'job')} failed.")
        if run.never_ran_jobs:
            notes.append(f"{run.policy}: {_counted(run.never_ran_jobs, 'job')} never ran.")
    return " ".join(notes)


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def _navigation() -> Markup:
    links = (tag("a", name, href=f"#{anchor}") for anchor, name, _ in _SECTIONS)
    return tag("nav", *links, aria_label="Sections")


def _summary(study: Study) -> Markup:
    table = comparison_table(study.measures, study.policies)
    return joined(
        summary_cards(study.measures, study.policies), tag("div", table, class_="card compare")
    )


def _queue(study: Study) -> Markup:
    return _side_by_side(queue_charts(study))


def _cluster(study: Study) -> Markup:
    several = any(len(run.partitions) > 1 for run in study.measures)
    tables = _folded_by_policy("Partitions", study, partition_table) if several else Markup()
    return joined(_side_by_side(cluster_charts(study)), tables)


def _waits(study: Study) -> Markup:
    table = spread_table(study.measures, study.policies)
    return joined(_side_by_side(distribution_charts(study)), folded("All percentiles", table))


def _fairness(study: Study) -> Markup:
    known = any(run.tenants for run in study.measures)
    tables = _folded_by_policy("Tenants", study, tenant_table) if known else Markup()
    return joined(_side_by_side(fairness_charts(study)), tables)


def _forecast(study: Study) -> Markup:
    if not any(run.forecast for run in study.measures):
        return forecast_chart(study)
    table = forecast_table(study.measures, study.policies)
    note = "Kept: within 10 % of the forecast wait, or within 10 minutes."
    card = tag("div", tag("h3", "Forecasts"), tag("p", note), table, class_="card")
    return _side_by_side(joined(forecast_chart(study), card))


def _preemption(study: Study) -> Markup:
    return _side_by_side(preemption_charts(study))


def _meanings(study: Study) -> Markup:
    words = [(column.label, column.meaning) for column in (JOBS, *SERVICE, *CLUSTER)]
    effort = ", ".join(
        f"{run.policy} {duration_text(run.wall_seconds)} for {count_text(run.cycles)} cycles"
        for run in study.measures
        if run.cycles
    )
    if effort:
        words.append(("effort", f"What the simulation itself took: {effort}."))
    return tag(
        "dl",
        *(tag("div", tag("dt", word), tag("dd", meaning)) for word, meaning in words),
        class_="card words",
    )


_SECTIONS: tuple[tuple[str, str, Callable[[Study], Markup]], ...] = (
    ("summary", "Summary", _summary),
    ("queue", "Queue", _queue),
    ("cluster", "Cluster", _cluster),
    ("waits", "Waits", _waits),
    ("fairness", "Fairness", _fairness),
    ("forecast", "Forecast", _forecast),
    ("preemption", "Preemption", _preemption),
    ("meaning", "Meaning", _meanings),
)


def _side_by_side(content: Markup) -> Markup:
    return tag("div", content, class_="pair")


def _folded_by_policy(title: str, study: Study, table: Callable[[Measures], Markup]) -> Markup:
    parts = []
    for run, policy in zip(study.measures, study.policies, strict=True):
        parts.append(tag("h4", swatch(policy), policy.name))
        parts.append(table(run))
    return folded(title, *parts)
