"""The report of one workload on clusters of several sizes: waits and use over the number of nodes.

In come the measures by policy and number of nodes; out goes one HTML document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_scheduler.simulator.metrics import Measures
from gpu_scheduler.simulator.report.charts import (
    HOUR,
    MINUTE,
    Limit,
    LineChart,
    Policy,
    Tick,
    figure,
    number_label,
    time_label,
)
from gpu_scheduler.simulator.report.document import Markup, document, tag, write_document

MARGIN = 0.04
"""Free room beside the first and the last size, as a part of the axis."""

BySize = Mapping[str, Mapping[int, Measures]]
"""Measures by policy and number of nodes."""


def write_capacity_report(
    found: BySize,
    path: Path,
    *,
    wait_of: Callable[[Measures], float],
    wait_name: str,
    target_s: float | None,
    title: str,
    command: str,
) -> None:
    """Write the report; `wait_of` is the wait of interest, `target_s` the wished one."""
    longest_s = max((wait_of(run) for runs in found.values() for run in runs.values()), default=0)
    unit, unit_s = ("hours", HOUR) if longest_s >= 2 * HOUR else ("minutes", MINUTE)
    limit = None
    if target_s is not None:
        limit = Limit(value=target_s / unit_s, label=time_label(target_s))
    title_of_waits = f"{wait_name} wait in {unit}"
    waits = _chart(title_of_waits, found, lambda run: wait_of(run) / unit_s, number_label, limit)
    use = _chart("GPUs in use", found, lambda run: run.utilisation_percent, _percent, None)
    text = document(
        title,
        tag("header", tag("h1", title), tag("p", tag("code", command))),
        tag(
            "main",
            tag(
                "section",
                tag("h2", "By the number of nodes"),
                tag("div", waits, use, class_="pair"),
            ),
        ),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(text, path)


def _chart(
    title: str,
    found: BySize,
    value_of: Callable[[Measures], float],
    text_of: Callable[[float], str],
    limit: Limit | None,
) -> Markup:
    """A line for each policy over the sizes; a size that a policy did not try has no point."""
    sizes = sorted({size for runs in found.values() for size in runs})
    policies = [Policy(number, name) for number, name in enumerate(found)]
    step = (1 - 2 * MARGIN) / max(1, len(sizes) - 1)
    chart = LineChart(
        label=title,
        lines=[
            (
                policy,
                [
                    value_of(found[policy.name][size]) if size in found[policy.name] else None
                    for size in sizes
                ],
            )
            for policy in policies
        ],
        names=[f"{size} nodes" for size in sizes],
        ticks=[Tick(MARGIN + step * place, str(size)) for place, size in enumerate(sizes)],
        first=MARGIN,
        limit=limit,
        tick_text=text_of,
    )
    return figure(title, "By the number of nodes.", chart.draw(), policies, chart.tips())


def _percent(value: float) -> str:
    return f"{value:.0f} %"
