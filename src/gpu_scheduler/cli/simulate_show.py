"""A comparison as tables, as one JSON document, and as a report.

The report is written first: when it fails, nothing has been printed. A pipe gets plain text.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gpu_scheduler.cli.simulate_policies import footnotes
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.simulator.experiment import (
    NO_LIMIT_MS,
    Conditions,
    PredictorChoice,
    tenant_weights_milli,
)
from gpu_scheduler.simulator.measures import Measures, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.report import write_report
from gpu_scheduler.simulator.tables import (
    comparison_tables,
    partition_table,
    print_tables,
    tenant_table,
    to_json,
)
from gpu_scheduler.simulator.wording import count_text, gpus_text
from gpu_scheduler.simulator.workload import Workload

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of several policies on one workload, and what they knew. `skipped` counts rows."""

    workload: Workload
    conditions: Conditions
    runs: list[Run]
    predictors: dict[str, PredictorChoice]
    skipped: dict[str, int]


def show(comparison: Comparison, args: Namespace) -> None:
    """Write the report if one is wanted, then print."""
    weights = tenant_weights_milli(comparison.workload)
    measures = [measure(run, weights) for run in comparison.runs]
    if args.report is not None:
        _write_report(comparison, measures, args.report)
    if args.json:
        print_json(_document(comparison, measures))
    else:
        _print_tables(comparison, measures, args.by)
        if args.report is not None:
            say(f"Report: {args.report}")


def print_json(document: dict[str, Any]) -> None:
    """One document on stdout; a value that JSON does not know is our fault and must not pass."""
    print(json.dumps(document, indent=2, allow_nan=False))


def say(text: str) -> None:
    """One line on stdout, never folded and never taken for markup."""
    Console().print(Text(text), soft_wrap=True)


def _print_tables(comparison: Comparison, measures: list[Measures], by: str | None) -> None:
    console = Console()
    say(_headline(comparison))
    say("")
    print_tables(comparison_tables(measures), console)
    if by is not None:
        table = tenant_table if by == "tenant" else partition_table
        print_tables([table(run) for run in measures], console)
    for note in _notes(comparison, measures):
        say(note)


def _headline(comparison: Comparison) -> str:
    workload = comparison.workload
    gpus = gpus_text(comparison.runs[0].capacity_gpu_milli)
    nodes = sum(len(part.nodes) for part in workload.partitions)
    parts = len(workload.partitions)
    divided = f" in {count_text(parts)} partitions" if parts > 1 else ""
    plural = "" if nodes == 1 else "s"
    return f"{workload.name}: {count_text(nodes)} node{plural} with {gpus} GPUs{divided}"


def _notes(comparison: Comparison, measures: list[Measures]) -> list[str]:
    # Cut, not rounded, as the tables of the literature are.
    notes = [
        f"{run.policy}: mean wait {int(run.wait.mean_s):,} s, mean JCT {int(run.jct.mean_s):,} s."
        for run in measures
    ]
    notes += footnotes(comparison.predictors)
    for reason, count in comparison.skipped.items():
        notes.append(f"Left out of the trace: {count_text(count)} rows with {reason}.")
    for run in measures:
        if run.failed_jobs:
            notes.append(
                f"{run.policy}: {count_text(run.failed_jobs)} jobs stopped at their limit."
            )
        if run.never_ran_jobs:
            notes.append(
                f"{run.policy}: {count_text(run.never_ran_jobs)} jobs never ran, as what they "
                "depend on ended otherwise or the GPU-hours of their tenant were used up."
            )
        if run.dropped_jobs:
            notes.append(f"{run.policy}: {count_text(run.dropped_jobs)} jobs refused.")
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
