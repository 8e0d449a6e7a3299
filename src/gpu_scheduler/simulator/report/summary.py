"""The cards at the top: for each question the best policy, and what it gains over the first."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.simulator.columns import (
    ALLOCATED_BACKLOG,
    FAIRNESS,
    FORECAST,
    MEAN_JCT,
    MEAN_WAIT,
    P99_WAIT,
    UTILISATION,
    Better,
    Column,
    best_rows,
)
from gpu_scheduler.simulator.measures import Measures
from gpu_scheduler.simulator.report.figure import Policy, swatch
from gpu_scheduler.simulator.report.markup import Markup, joined, tag
from gpu_scheduler.simulator.wording import percent_text

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
