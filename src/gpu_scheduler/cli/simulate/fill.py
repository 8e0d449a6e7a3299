"""`tgpu simulate --fill`: how much of a cluster each policy can allocate if no job ever ends."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpu_scheduler.cli.simulate.show import (
    SCHEMA_VERSION,
    policies_named,
    print_json,
    print_line,
    progress,
)
from gpu_scheduler.cli.simulate.work import openb_lists
from gpu_scheduler.simulator.experiment import fill_by_seed, renamed_nodes
from gpu_scheduler.simulator.format import count_text, gpus_text
from gpu_scheduler.simulator.packing import Filling, capacity_milli
from gpu_scheduler.simulator.tables import print_tables

DEFAULT_POLICIES = ("best_fit", "fgd", "balance")
DEFAULT_SEEDS = tuple(range(42, 52))
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


def run_fill(args: Namespace) -> None:
    """Fill the cluster once for each policy and seed, then print."""
    policies = policies_named(args.policy or DEFAULT_POLICIES)
    seeds = args.seeds or list(DEFAULT_SEEDS)
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
        print_json(_document(fillings, seeds, capacity_milli(nodes), args.rename_nodes))
        return
    print_line(
        f"{args.trace.name}: {count_text(len(pods))} pods on {count_text(len(nodes))} nodes with "
        f"{gpus_text(capacity_milli(nodes))} GPUs, {len(seeds)} seeds"
    )
    print_line("")
    print_tables([_table(fillings, mark) for mark in MARKS], Console())
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


def _table(fillings: dict[str, list[Filling]], mark: int) -> Table:
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


def _document(
    fillings: dict[str, list[Filling]], seeds: list[int], gpu_milli: int, renamed: int | None
) -> dict[str, Any]:
    baseline = fillings.get(BASELINE)
    runs = []
    for name, results in fillings.items():
        run: dict[str, Any] = {"policy": name}
        for mark in MARKS:
            run[f"allocated_at_{mark}_percent"] = _numbers(spread_at(results, mark)) | {
                "by_seed": [round(allocated_at(filling, mark), DECIMALS) for filling in results]
            }
            if baseline is not None:
                gap = difference_at(results, baseline, mark)
                run[f"over_{BASELINE}_at_{mark}_points"] = _numbers(gap)
        run["mean_dropped_jobs"] = sum(filling.dropped for filling in results) / len(results)
        runs.append(run)
    return {
        "schema_version": SCHEMA_VERSION,
        "capacity_gpu_milli": gpu_milli,
        "renamed_with_seed": renamed,
        "seeds": seeds,
        "fillings": runs,
    }


def _numbers(spread: Spread) -> dict[str, Any]:
    return {
        "mean": round(spread.mean, DECIMALS),
        "min": round(spread.low, DECIMALS),
        "max": round(spread.high, DECIMALS),
    }
