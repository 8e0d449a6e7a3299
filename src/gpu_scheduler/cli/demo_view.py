"""What the demo shows: a live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_scheduler.cli.demo import ENDED, Act
from gpu_scheduler.cli.output import cut
from gpu_scheduler.model.intervals import IntervalSet

WIDEST = 40

STYLES = {
    "running": "green",
    "scheduled": "cyan",
    "pending": "yellow",
    "completed": "dim",
    "failed": "red",
    "cancelled": "red",
}
Jobs = dict[str, dict[str, Any]]
Gpus = Sequence[dict[str, Any]]


class Lines:
    """One line whenever a job changes its state."""

    def __init__(self, played: list[Act]) -> None:
        self._acts = {act.job_id: act for act in played}
        self._seen: dict[str, tuple[Any, ...]] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up."""

    def update(self, jobs: Jobs, gpus: Gpus) -> None:  # noqa: ARG002 - the table shows them
        """Print what is new."""
        for job_id, job in jobs.items():
            now = (job["state"], job["attempt"], job["preemptions"])
            if self._seen.get(job_id) != now:
                self._seen[job_id] = now
                act = self._acts[job_id]
                state, where = job["state"], _where(job)
                print(f"{job_id:<8} {act.name:<10} {state:<10} {where:<{WIDEST}} {act.shows}")
        sys.stdout.flush()


class Screen:
    """A table that is drawn anew."""

    def __init__(self, played: list[Act]) -> None:
        self._played = played
        self._live = Live(refresh_per_second=8)

    def __enter__(self) -> Screen:
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self._live.__exit__(*details)

    def update(self, jobs: Jobs, gpus: Gpus) -> None:
        """Draw the present state."""
        self._live.update(Group(_gpu_row(gpus), _job_table(self._played, jobs)))


def view(played: list[Act]) -> Lines | Screen:
    """The right form for where the output goes."""
    return Screen(played) if sys.stdout.isatty() else Lines(played)


def _gpu_row(gpus: Gpus) -> Text:
    text = Text("GPUs  ")
    for gpu in gpus:
        share = gpu["allocated_share"]
        style = "black on green" if share >= 1 else "black on yellow" if share else "dim"
        text.append(f" {gpu['index']}:{share:.0%} ", style)
        text.append(" ")
    return text


def _job_table(played: list[Act], jobs: Jobs) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("JOB", "NAME", "TENANT", "STATE", "WHERE", "TRY", "WHAT IT SHOWS"):
        table.add_column(column, no_wrap=True)
    for act in played:
        job = jobs[act.job_id]
        state = Text(job["state"], STYLES.get(job["state"], ""))
        table.add_row(
            str(job["number"]),
            act.name,
            job["tenant_id"],
            state,
            _where(job),
            str(job["attempt"] or ""),
            act.shows,
        )
    return table


def _where(job: dict[str, Any]) -> str:
    """The devices that a job holds, the tasks of an array, or why it waits."""
    if job["array"] is not None:
        states = job["array"]["states"]
        counts = {name: len(IntervalSet.parse(tasks)) for name, tasks in states.items() if tasks}
        order = sorted(counts, key=lambda name: (name in ENDED, name))
        return cut(", ".join(f"{counts[name]} {name}" for name in order), WIDEST)
    if job["state"] in {"running", "scheduled"}:
        indices = sorted({gpu["index"] for part in job["allocation"] for gpu in part["gpus"]})
        return "GPU " + ",".join(map(str, indices)) if indices else "CPU"
    return cut(str(job["reason"]), WIDEST) if job["state"] == "pending" else ""
