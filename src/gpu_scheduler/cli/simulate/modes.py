"""The modes of `tgpu simulate`: each runs the simulator and renders the result.

A comparison of policies becomes tables, one JSON document or a report; the filling experiment
shows how much of a cluster each policy can allocate if no job ever ends. The report is written
first: if that fails, nothing has been printed. A pipe gets plain text.
"""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu_scheduler.cli.simulate.workload import (
    check_writable,
    generated,
    openb_lists,
    seed_of,
    trace_reading,
)
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.presets import PRESET_DESCRIPTIONS, PRESETS, preset
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.predict import training
from gpu_scheduler.predict.selection import ScoreTotals
from gpu_scheduler.simulator.experiment import (
    BELIEVE_THE_LIMIT,
    KNOW_THE_TRUTH,
    NO_LIMIT_MS,
    Conditions,
    Filling,
    OnProgress,
    PredictorChoice,
    VictimChoice,
    capacity_milli,
    fill_by_seed,
    predictor_choice,
    renamed_nodes,
    run_policies,
    tenant_weights_milli,
    total_tasks,
)
from gpu_scheduler.simulator.generator import demo_workload
from gpu_scheduler.simulator.metric_defs import count_text, gpus_text
from gpu_scheduler.simulator.metrics import Measures, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.range_quality import range_quality
from gpu_scheduler.simulator.report import write_report
from gpu_scheduler.simulator.tables import (
    comparison_tables,
    partition_table,
    print_tables,
    ranges_table,
    tenant_table,
    to_json,
)
from gpu_scheduler.simulator.traces.detect import write_trace
from gpu_scheduler.simulator.workload import Workload
from gpu_scheduler.simulator.world import Physics

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_POLICIES = ("fifo", "fair", "feedback")
DEMO_REPORT = Path("build/demo-report.html")
SCHEMA_VERSION = 1
_KNOWLEDGE = {
    PredictorChoice.ORACLE: "These policies know the true run times (oracle), as the literature "
    "assumes",
    PredictorChoice.STATED: "These policies take the stated limits and estimates as run times",
}
"""Notes below the table about what the policies knew of run times."""


def list_policies(*, as_json: bool = False) -> None:
    """Print all policies."""
    if as_json:
        predictors = dict.fromkeys(PRESETS, "history")
        predictors |= dict.fromkeys(BELIEVE_THE_LIMIT, "stated")
        predictors |= dict.fromkeys(KNOW_THE_TRUTH, "oracle")
        records = [
            {
                "policy": name,
                "about": PRESET_DESCRIPTIONS[name],
                "predictor": predictors[name],
                "needs_oracle": name in KNOW_THE_TRUTH,
            }
            for name in PRESETS
        ]
        print(json.dumps(records, indent=2))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("policy", "what it does", "needs oracle"):
        table.add_column(heading)
    for name in PRESETS:
        table.add_row(name, PRESET_DESCRIPTIONS[name], "yes" if name in KNOW_THE_TRUTH else "no")
    print_tables([table], Console())


def policies_named(names: Iterable[str]) -> list[Policy]:
    """The policies with these names, each once."""
    return [preset(name) for name in dict.fromkeys(names)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs of several policies on one workload. `skipped` counts rows of the trace by reason."""

    workload: Workload
    conditions: Conditions
    runs: list[Run]
    predictors: dict[str, PredictorChoice]
    skipped: dict[str, int]


def write_generated(args: Namespace) -> None:
    """Write generated work as a trace."""
    part = generated(args).partitions[0]
    count = write_trace(args.write_trace, part.jobs, nodes=part.nodes, tenants=part.tenants)
    if not args.quiet:
        print_line(f"{count} jobs written to {args.write_trace}")


def compare(args: Namespace) -> None:
    """Run every policy, then write the report and print; nothing is written before all runs end."""
    if args.demo and args.report is None:
        args.report = DEMO_REPORT
    policies = policies_named(args.policy or DEFAULT_POLICIES)
    if args.report is not None:
        check_writable(args.report)
    skipped: dict[str, int] = {}
    if args.demo:
        workload = demo_workload(seed_of(args))
    elif args.generate:
        workload = generated(args)
    else:
        reading = trace_reading(args)
        workload, skipped = reading.workload, reading.skipped
    conditions = conditions_of(args)
    names = [policy.name for policy in policies]
    with progress(names, total_tasks(workload), quiet=args.quiet) as on_progress:
        runs = run_policies(workload, policies, conditions, on_progress)
    comparison = Comparison(
        workload=workload,
        conditions=conditions,
        runs=runs,
        predictors={
            policy.name: predictor_choice(policy, workload, conditions.predictor)
            for policy in policies
        },
        skipped=skipped,
    )
    weights = tenant_weights_milli(workload)
    measures = [measure(run, weights) for run in runs]
    if args.report is not None:
        try:
            write_report(
                runs,
                measures,
                args.report,
                command=shlex.join(["tgpu", *sys.argv[1:]]),
                title=workload.name,
            )
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
            raise InvalidInput(problem, file=str(args.report)) from error
    if args.json:
        print_json(_document(comparison, measures))
    else:
        _print_tables(comparison, measures, args.by)
        if args.report is not None:
            print_line(f"Report: {args.report}")


def conditions_of(args: Namespace) -> Conditions:
    """The conditions of the options."""
    choice = PredictorChoice(args.predictor or "auto")
    if choice is PredictorChoice.LEARNED and not training.is_available():
        raise InvalidRequest(
            "--predictor learned trains a model; install it with pip install "
            "'gpu-scheduler[learned]'"
        )
    default = Physics()
    cost_ms, wide_ms = args.preemption_cost, args.wide_preemption_cost
    return Conditions(
        predictor=choice,
        physics=Physics(
            preemption_cost_ms=default.preemption_cost_ms if cost_ms is None else cost_ms,
            wide_preemption_cost_ms=default.wide_preemption_cost_ms if wide_ms is None else wide_ms,
            keeps_progress=not args.lose_progress,
            checkpoint_every_ms=args.checkpoint_every or 0,
        ),
        victims=VictimChoice(args.victims or "age"),
        forecasts=args.forecasts or args.forecast_every is not None,
        forecast_every=args.forecast_every or 1,
        default_limit_ms=args.default_limit or NO_LIMIT_MS,
        seed=seed_of(args),
    )


def print_json(document: dict[str, Any]) -> None:
    """Print one document; NaN and infinity raise, because JSON does not have them."""
    print(json.dumps(document, indent=2, allow_nan=False))


def print_line(text: str) -> None:
    """Print one line, not wrapped and not read as markup."""
    Console().print(Text(text), soft_wrap=True)


def _print_tables(comparison: Comparison, measures: list[Measures], by: str | None) -> None:
    console = Console()
    workload = comparison.workload
    gpus = gpus_text(comparison.runs[0].capacity_gpu_milli)
    nodes = sum(len(part.nodes) for part in workload.partitions)
    parts = len(workload.partitions)
    divided = f" in {count_text(parts)} partitions" if parts > 1 else ""
    plural = "" if nodes == 1 else "s"
    print_line(f"{workload.name}: {count_text(nodes)} node{plural} with {gpus} GPUs{divided}")
    print_line("")
    print_tables(comparison_tables(measures), console)
    ranges = {
        run.policy: quality
        for run in comparison.runs
        if (quality := range_quality(run.outcomes)) is not None
    }
    if ranges:
        print_tables([ranges_table(ranges)], console)
    if by is not None:
        table = tenant_table if by == "tenant" else partition_table
        print_tables([table(run) for run in measures], console)
    for note in _notes(comparison, measures):
        print_line(note)


def _notes(comparison: Comparison, measures: list[Measures]) -> list[str]:
    # Truncated, as in the tables of the literature.
    notes = [
        f"{run.policy}: mean wait {int(run.wait.mean_s):,} s, mean JCT {int(run.jct.mean_s):,} s."
        for run in measures
    ]
    for choice, note in _KNOWLEDGE.items():
        policies = [name for name, chosen in comparison.predictors.items() if chosen is choice]
        if policies:
            notes.append(f"{note}: {', '.join(policies)}.")
    notes.extend(
        _predictions_text(done.policy, done.predictions)
        for done in comparison.runs
        if done.predictions is not None
    )
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


def _mean_losses(totals: ScoreTotals) -> dict[str, float | None]:
    return {
        f"{name}_loss": round(getattr(totals, name) / totals.jobs, DECIMALS)
        if totals.jobs
        else None
        for name in ("history", "model", "used")
    }


def _predictions_document(totals: ScoreTotals | None) -> dict[str, float | None] | None:
    if totals is None:
        return None
    return {"jobs": totals.jobs, "trainings": totals.trainings, **_mean_losses(totals)}


def _predictions_text(policy: str, totals: ScoreTotals) -> str:
    """How well the predictors did, in one line."""
    if not totals.jobs:
        return f"{policy}: too few jobs to compare the model of run times with the history."
    losses = ", ".join(
        f"{name.removesuffix('_loss')} {loss:.4f}" for name, loss in _mean_losses(totals).items()
    )
    return (
        f"{policy}: mean loss of predictions of {count_text(totals.jobs)} jobs: {losses} "
        f"({count_text(totals.trainings)} trainings)."
    )


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
            "checkpoint_every_s": physics.checkpoint_every_ms / 1000 or None,
            "victims": conditions.victims.value,
            "default_limit_s": None if limit_ms == NO_LIMIT_MS else limit_ms / 1000,
            "seed": conditions.seed,
        },
        "runs": [
            to_json(measured)
            | {"predictor": comparison.predictors[measured.policy].value}
            | {"start_ranges": quality and asdict(quality)}
            | {"predictions": _predictions_document(run.predictions)}
            for run, measured, quality in zip(
                comparison.runs,
                measures,
                (range_quality(run.outcomes) for run in comparison.runs),
                strict=True,
            )
        ],
    }


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


# The filling experiment

FILL_POLICIES = ("best_fit", "fgd", "balance")
FILL_SEEDS = tuple(range(42, 52))
MARKS = (100, 130)
"""Requested per cent of the capacity at which the allocation is measured."""
BASELINE = "fgd"
DECIMALS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean, lowest and highest over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(mean=sum(values) / len(values), low=min(values), high=max(values))

    def document(self) -> dict[str, float]:
        """For JSON."""
        values = {"mean": self.mean, "min": self.low, "max": self.high}
        return {name: round(value, DECIMALS) for name, value in values.items()}


def fill(args: Namespace) -> None:
    """Fill the cluster once for each policy and seed, then print."""
    policies = policies_named(args.policy or FILL_POLICIES)
    seeds = args.seeds or list(FILL_SEEDS)
    nodes, pods = openb_lists(args)
    if args.rename_nodes is not None:
        nodes = renamed_nodes(nodes, args.rename_nodes)
    names = [policy.name for policy in policies]
    with progress(names, None, quiet=args.quiet) as on_progress:
        fillings = {
            policy.name: list(fill_by_seed(nodes, pods, policy, seeds, on_progress))
            for policy in policies
        }
    if args.json:
        print_json(_fill_document(fillings, seeds, capacity_milli(nodes), args.rename_nodes))
        return
    print_line(
        f"{args.trace.name}: {count_text(len(pods))} pods on {count_text(len(nodes))} nodes with "
        f"{gpus_text(capacity_milli(nodes))} GPUs, {len(seeds)} seeds"
    )
    print_line("")
    print_tables([_fill_table(fillings, mark) for mark in MARKS], Console())
    if BASELINE in fillings:
        print_line(f"Differences to {BASELINE} are per seed, in percentage points.")


def allocated_at(filling: Filling, mark: int) -> float:
    """Allocated per cent when `mark` per cent were requested, or at the last point before."""
    reached = max(percent for percent in filling.allocated_percent if percent <= mark)
    return filling.allocated_percent[reached]


def spread_at(fillings: Sequence[Filling], mark: int) -> Spread:
    """The allocated per cent over the seeds."""
    return Spread.of([allocated_at(filling, mark) for filling in fillings])


def difference_at(fillings: Sequence[Filling], baseline: Sequence[Filling], mark: int) -> Spread:
    """How many points more than the baseline, seed by seed."""
    return Spread.of(
        [
            allocated_at(ours, mark) - allocated_at(theirs, mark)
            for ours, theirs in zip(fillings, baseline, strict=True)
        ]
    )


def _fill_table(fillings: dict[str, list[Filling]], mark: int) -> Table:
    title = Text(f"Allocated when {mark}% of the GPUs were requested", style="bold")
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    headings = ["policy", "mean", "min", "max"]
    baseline = fillings.get(BASELINE)
    if baseline is not None:
        headings += [f"vs {BASELINE}", "min", "max"]
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    for name, results in fillings.items():
        spread = spread_at(results, mark)
        cells = [f"{value:.2f}%" for value in (spread.mean, spread.low, spread.high)]
        if baseline is not None:
            gap = difference_at(results, baseline, mark)
            cells += [f"{value:+.2f}" for value in (gap.mean, gap.low, gap.high)]
        table.add_row(name, *cells)
    return table


def _fill_document(
    fillings: dict[str, list[Filling]], seeds: list[int], gpu_milli: int, renamed: int | None
) -> dict[str, Any]:
    baseline = fillings.get(BASELINE)
    runs = []
    for name, results in fillings.items():
        run: dict[str, Any] = {"policy": name}
        for mark in MARKS:
            run[f"allocated_at_{mark}_percent"] = spread_at(results, mark).document() | {
                "by_seed": [round(allocated_at(filling, mark), DECIMALS) for filling in results]
            }
            if baseline is not None:
                gap = difference_at(results, baseline, mark)
                run[f"over_{BASELINE}_at_{mark}_points"] = gap.document()
        run["mean_dropped_jobs"] = sum(filling.dropped for filling in results) / len(results)
        runs.append(run)
    return {
        "schema_version": SCHEMA_VERSION,
        "capacity_gpu_milli": gpu_milli,
        "renamed_with_seed": renamed,
        "seeds": seeds,
        "fillings": runs,
    }
