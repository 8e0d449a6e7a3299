"""The report of one workload on clusters of several sizes: waits and use over the number of nodes.

In come the measures by policy and number of nodes; out goes one HTML document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gpu_scheduler.simulator.metric_defs import HOUR, MINUTE, duration_text
from gpu_scheduler.simulator.metrics import Measures
from gpu_scheduler.simulator.report.document import Chart, Page, Section, Series, write_document

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
    sizes = sorted({size for runs in found.values() for size in runs})

    def lines(value_of: Callable[[Measures], float]) -> list[Series]:
        """One for each policy; a size that a policy did not try has no point."""
        return [
            Series(
                name=name,
                values=[round(value_of(runs[size]), 3) if size in runs else None for size in sizes],
            )
            for name, runs in found.items()
        ]

    waits = lines(lambda run: wait_of(run) / unit_s)
    if target_s is not None:
        name = f"target {duration_text(target_s)}"
        waits.append(Series(name=name, values=[target_s / unit_s] * len(sizes), dashed=True))
    charts = [
        Chart(title=title, note="", axis="nodes", points=sizes, series=series, unit=unit)
        for title, series, unit in (
            (f"{wait_name} wait in {unit}", waits, unit),
            ("GPUs in use", lines(lambda run: run.utilisation_percent), "%"),
        )
    ]
    section = Section(name="By the number of nodes", blocks=charts)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_document(Page(title=title, facts=[], command=command, sections=[section]), path)
