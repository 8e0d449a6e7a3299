"""The policies that can be named, each in one line; names to policies."""

from __future__ import annotations

import json
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.presets import PRESETS, preset
from gpu_scheduler.simulator.experiment import (
    BELIEVE_THE_LIMIT,
    KNOW_THE_TRUTH,
    PredictorChoice,
)
from gpu_scheduler.simulator.tables import print_tables

ABOUT: dict[str, str] = {
    "fifo": "first come, first served; who does not fit holds up all behind",
    "sjf": "shortest job first; who does not fit holds up all behind",
    "srtf": "shortest remaining time first; stops longer jobs",
    "las": "least attained service: two levels at 5 GPU-hours, stops the lower (Tiresias)",
    "skip": "first come, first served; who does not fit is passed over",
    "easy": "first come, first served; backfill that never delays the first in line",
    "conservative": "first come, first served; backfill that delays nobody",
    "random": "any place that fits, by lot",
    "dot_product": "the place where free amounts times the request is least",
    "clustering": "the place that holds requests of the same size",
    "packing": "shared GPUs first, then used nodes, then empty ones",
    "best_fit": "the place that is left with the least",
    "fgd": "the place where fragmentation grows least (fragmentation gradient descent)",
    "balance": "the place whose rest is worth most to the usual requests",
    "short": "short and small jobs first by history, long waits get a reservation",
    "feedback": "new jobs first: who has run long gives way and goes on later",
    "fair": "tenants and users by fair share, classes, backfill, preemption by class",
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
    """The policies in the order in which they were named, each once."""
    return [preset(name) for name in dict.fromkeys(names)]


def _record(name: str) -> dict[str, object]:
    return {
        "policy": name,
        "about": ABOUT.get(name, ""),
        "predictor": _knowledge(name),
        "needs_oracle": name in KNOW_THE_TRUTH,
    }


def footnotes(choices: dict[str, PredictorChoice]) -> list[str]:
    """What a reader of the table must know about what the policies knew."""
    notes = {
        PredictorChoice.ORACLE: "Knowing the true run times (oracle), as the literature assumes",
        PredictorChoice.STATED: "Believing the stated limits and estimates",
    }
    lines = []
    for choice, note in notes.items():
        those = [name for name, chosen in choices.items() if chosen is choice]
        if those:
            lines.append(f"{note}: {', '.join(those)}.")
    return lines


def _knowledge(name: str) -> str:
    if name in KNOW_THE_TRUTH:
        return "oracle"
    return "stated" if name in BELIEVE_THE_LIMIT else "history"
