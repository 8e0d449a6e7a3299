"""A progress bar on a terminal's stderr; nothing at all in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

from gpu_scheduler.simulator.experiment import OnProgress

if TYPE_CHECKING:
    from rich.progress import Progress

REDRAW_S = 0.1
CLOCK_EVERY = 16
"""Jobs between two looks at the clock, which would otherwise cost more than the jobs."""


@contextmanager
def progress(
    policies: Sequence[str], total: int | None, *, quiet: bool = False
) -> Iterator[OnProgress | None]:
    """A bar for each policy with the jobs that have ended, or None where nobody looks."""
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
    """Counts jobs, and redraws ten times a second at most."""

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
