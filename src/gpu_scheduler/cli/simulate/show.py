"""Renders a comparison of policies: tables, one JSON document or a report; and a progress bar.

The report is written first: if that fails, nothing has been printed. A pipe gets plain text.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu_scheduler.engine.policy import PRESETS, Policy, preset
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.simulator.experiment import (
    BELIEVE_THE_LIMIT,
    KNOW_THE_TRUTH,
    NO_LIMIT_MS,
    Conditions,
    OnProgress,
    PredictorChoice,
    tenant_weights_milli,
)
from gpu_scheduler.simulator.format import count_text, gpus_text
from gpu_scheduler.simulator.metrics import Measures, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report import write_report
from gpu_scheduler.simulator.tables import (
    comparison_tables,
    partition_table,
    print_tables,
    tenant_table,
    to_json,
)
from gpu_scheduler.simulator.workload import Workload

if TYPE_CHECKING:
    from rich.progress import Progress

ABOUT: dict[str, str] = {
    "fifo": "first come, first served; a job that does not fit blocks all behind it",
    "sjf": "shortest job first; a job that does not fit blocks all behind it",
    "srtf": "shortest remaining time first; preempts longer jobs",
    "las": "least attained service: two levels at 5 GPU-hours, preempts the lower (Tiresias)",
    "skip": "first come, first served; a job that does not fit is skipped",
    "easy": "first come, first served; backfill that never delays the first in line",
    "conservative": "first come, first served; backfill that delays no job",
    "random": "a random place that fits",
    "dot_product": "the place with the smallest dot product of free resources and request",
    "clustering": "the place that holds requests of the same size",
    "packing": "shared GPUs first, then used nodes, then empty ones",
    "best_fit": "the place with the least left free",
    "fgd": "the place where fragmentation grows least (fragmentation gradient descent)",
    "balance": "the place whose free resources are most useful for common requests",
    "short": "short and small jobs first by history; long waits get a reservation",
    "feedback": "new jobs first: long-running jobs are preempted and resume later",
    "fair": "fair share of tenants and users, priority classes, backfill, preemption by class",
}
"""What a policy does, in one line."""
DEFAULT_POLICIES = ("fifo", "fair", "feedback")


def list_policies(*, as_json: bool = False) -> None:
    """Print all policies."""
    if as_json:
        print(json.dumps([_record(name) for name in PRESETS], indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("policy", "what it does", "needs oracle"):
        table.add_column(heading)
    for name in PRESETS:
        table.add_row(name, ABOUT.get(name, ""), "yes" if name in KNOW_THE_TRUTH else "no")
    print_tables([table], Console())


def policies_named(names: Iterable[str]) -> list[Policy]:
    """The policies with these names, each once."""
    return [preset(name) for name in dict.fromkeys(names)]


def _record(name: str) -> dict[str, object]:
    return {
        "policy": name,
        "about": ABOUT.get(name, ""),
        "predictor": _knowledge(name),
        "needs_oracle": name in KNOW_THE_TRUTH,
    }


def footnotes(choices: dict[str, PredictorChoice]) -> list[str]:
    """Notes below the table about what the policies knew of run times."""
    notes = {
        PredictorChoice.ORACLE: "Knowing the true run times (oracle), as the literature assumes",
        PredictorChoice.STATED: "Believing the stated limits and estimates",
    }
    lines = []
    for choice, note in notes.items():
        policies = [name for name, chosen in choices.items() if chosen is choice]
        if policies:
            lines.append(f"{note}: {', '.join(policies)}.")
    return lines


def _knowledge(name: str) -> str:
    if name in KNOW_THE_TRUTH:
        return "oracle"
    return "stated" if name in BELIEVE_THE_LIMIT else "history"


SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of several policies on one workload. `skipped` counts rows of the trace by reason."""

    workload: Workload
    conditions: Conditions
    runs: list[Run]
    predictors: dict[str, PredictorChoice]
    skipped: dict[str, int]


def show(comparison: Comparison, args: Namespace) -> None:
    """Write the report if requested, then print."""
    weights = tenant_weights_milli(comparison.workload)
    measures = [measure(run, weights) for run in comparison.runs]
    if args.report is not None:
        _write_report(comparison, measures, args.report)
    if args.json:
        print_json(_document(comparison, measures))
    else:
        _print_tables(comparison, measures, args.by)
        if args.report is not None:
            print_line(f"Report: {args.report}")


def print_json(document: dict[str, Any]) -> None:
    """Print one document; NaN and infinity raise, because JSON does not have them."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_line(text: str) -> None:
    """Print one line, not wrapped and not read as markup."""
    Console().print(Text(text), soft_wrap=True)


def _print_tables(comparison: Comparison, measures: list[Measures], by: str | None) -> None:
    console = Console()
    print_line(_headline(comparison))
    print_line("")
    print_tables(comparison_tables(measures), console)
    if by is not None:
        table = tenant_table if by == "tenant" else partition_table
        print_tables([table(run) for run in measures], console)
    for note in _notes(comparison, measures):
        print_line(note)


def _headline(comparison: Comparison) -> str:
    workload = comparison.workload
    gpus = gpus_text(comparison.runs[0].capacity_gpu_milli)
    nodes = sum(len(part.nodes) for part in workload.partitions)
    parts = len(workload.partitions)
    divided = f" in {count_text(parts)} partitions" if parts > 1 else ""
    plural = "" if nodes == 1 else "s"
    return f"{workload.name}: {count_text(nodes)} node{plural} with {gpus} GPUs{divided}"


def _notes(comparison: Comparison, measures: list[Measures]) -> list[str]:
    # Truncated, as in the tables of the literature.
    notes = [
        f"{run.policy}: mean wait {int(run.wait.mean_s):,} s, mean JCT {int(run.jct.mean_s):,} s."
        for run in measures
    ]
    notes += footnotes(comparison.predictors)
    for reason, count in comparison.skipped.items():
        notes.append(f"Skipped in the trace: {count_text(count)} rows with {reason}.")
    for run in measures:
        if run.failed_jobs:
            notes.append(
                f"{run.policy}: {count_text(run.failed_jobs)} jobs stopped at their limit."
            )
        if run.never_ran_jobs:
            notes.append(
                f"{run.policy}: {count_text(run.never_ran_jobs)} jobs never ran: a "
                "dependency was not met, or the GPU-hours of their tenant were used up."
            )
        if run.dropped_jobs:
            notes.append(f"{run.policy}: {count_text(run.dropped_jobs)} jobs rejected.")
    return notes


def _document(comparison: Comparison, measures: list[Measures]) -> dict[str, Any]:
    workload, conditions = comparison.workload, comparison.conditions
    physics = conditions.physics
    limit_ms = conditions.default_limit_ms
    return {
        "schema_version": SCHEMA_VERSION,
        "workload": {
            "name": workload.name,
            "nodes": sum(len(part.nodes) for part in workload.partitions),
            "capacity_gpu_milli": comparison.runs[0].capacity_gpu_milli,
            "partitions": len(workload.partitions),
            "skipped_rows": comparison.skipped,
        },
        "conditions": {
            "preemption_cost_s": physics.preemption_cost_ms / 1000,
            "wide_preemption_cost_s": physics.wide_preemption_cost_ms / 1000,
            "keeps_progress": physics.keeps_progress,
            "default_limit_s": None if limit_ms == NO_LIMIT_MS else limit_ms / 1000,
            "seed": conditions.seed,
        },
        "runs": [
            to_json(run) | {"predictor": comparison.predictors[run.policy].value}
            for run in measures
        ],
    }


def _write_report(comparison: Comparison, measures: list[Measures], path: Path) -> None:
    try:
        write_report(
            comparison.runs,
            measures,
            path,
            command=shlex.join(["tgpu", *sys.argv[1:]]),
            title=comparison.workload.name,
        )
    except OSError as error:
        raise InvalidInput(
            f"cannot be written: {error.strerror or error}", file=str(path)
        ) from error


REDRAW_S = 0.1
CLOCK_EVERY = 16
"""Jobs between two readings of the clock, which would otherwise cost more than the jobs."""


@contextmanager
def progress(
    policies: Sequence[str], total: int | None, *, quiet: bool = False
) -> Iterator[OnProgress | None]:
    """A bar for each policy with its ended jobs; None if stderr is not a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )
    with bars:
        yield _Bars(bars, policies, total).advance


class _Bars:
    """Counts jobs, and redraws at most ten times a second."""

    def __init__(self, bars: Progress, policies: Sequence[str], total: int | None) -> None:
        self._bars = bars
        self._tasks = {name: bars.add_task(name, total=total, start=False) for name in policies}
        self._done = dict.fromkeys(policies, 0)
        self._counted = 0
        self._next_s = 0.0
        self._current = ""

    def advance(self, policy: str, ended: int) -> None:
        if policy != self._current:
            self._finish()
            self._current = policy
            self._bars.start_task(self._tasks[policy])
        self._done[policy] += ended
        self._counted += 1
        if self._counted % CLOCK_EVERY == 0 and monotonic() >= self._next_s:
            self._next_s = monotonic() + REDRAW_S
            self._redraw()

    def _finish(self) -> None:
        if self._current:
            self._redraw()
            self._bars.stop_task(self._tasks[self._current])

    def _redraw(self) -> None:
        self._bars.update(self._tasks[self._current], completed=self._done[self._current])
        self._bars.refresh()
