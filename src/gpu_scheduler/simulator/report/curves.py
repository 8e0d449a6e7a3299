"""Runs as a bounded number of points: levels over time, distributions, errors of the forecast.

However many jobs a run has, a curve has a few hundred points, so a report stays small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpu_scheduler.simulator.outcomes import Outcomes, Run
from gpu_scheduler.simulator.promises import promise_errors_ms
from gpu_scheduler.simulator.report.axes import log_steps
from gpu_scheduler.simulator.timeline import Level, StepFunction, sampled_span
from gpu_scheduler.simulator.wording import HOUR, MINUTE

CDF_POINTS = 140

ERROR_EDGES_S = tuple(
    sign * edge
    for sign, edges in (
        (-1, (6 * HOUR, HOUR, 10 * MINUTE, MINUTE)),
        (1, (MINUTE, 10 * MINUTE, HOUR, 6 * HOUR)),
    )
    for edge in edges
)
"""Where one class of forecast errors ends and the next begins; negative is early."""


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """Equal spans of time that cover all runs; the fewer there are, the smoother the curve."""

    start_ms: int
    end_ms: int
    points: int

    @property
    def span_s(self) -> float:
        """The length of the whole grid."""
        return (self.end_ms - self.start_ms) / 1000

    def edge_ms(self, place: int) -> float:
        """Where a span begins; that of the last one plus one is the end of the grid."""
        return self.start_ms + (self.end_ms - self.start_ms) * place / self.points


def time_grid(runs: Iterable[Run], points: int) -> TimeGrid | None:
    """From the first sample of any run to the last; `None` without samples."""
    spans = [span for run in runs if (span := sampled_span(run)) is not None]
    if not spans:
        return None
    return TimeGrid(min(start for start, _ in spans), max(end for _, end in spans), points)


def over_time(run: Run, level: Level, grid: TimeGrid) -> list[float | None]:
    """The mean level in each span of the grid, summed over partitions; `None` after the end."""
    span = sampled_span(run)
    if span is None:
        return [None] * grid.points
    steps = [StepFunction(samples, level) for _, samples in sorted(run.samples.items())]
    means: list[float | None] = []
    for place in range(grid.points):
        start_ms, end_ms = grid.edge_ms(place), grid.edge_ms(place + 1)
        area = sum(step.area(start_ms, end_ms) for step in steps)
        means.append(area / (end_ms - start_ms) if start_ms < span[1] else None)
    return means


def log_grid(columns: Sequence[Sequence[int]]) -> list[float]:
    """Seconds from 1 to the longest duration (given in sorted milliseconds) of any run."""
    longest_s = max((column[-1] / 1000 for column in columns if column), default=0.0)
    return list(log_steps(1.0, max(10.0, longest_s), CDF_POINTS))


def share_below(ordered_ms: Sequence[int], grid_s: Sequence[float]) -> list[float | None]:
    """Which percentage of sorted durations is no longer than each point of the grid."""
    if not ordered_ms:
        return [None] * len(grid_s)
    # Half a millisecond more, so that no rounding leaves out the longest of all.
    return [
        100 * bisect_right(ordered_ms, point_s * 1000 + 0.5) / len(ordered_ms) for point_s in grid_s
    ]


def error_shares(outcomes: Outcomes) -> list[float] | None:
    """The percentage of promises in each class of errors; `None` if there are no promises."""
    counts = [0] * (len(ERROR_EDGES_S) + 1)
    edges_ms = [edge * 1000 for edge in ERROR_EDGES_S]
    for error_ms in promise_errors_ms(outcomes):
        counts[bisect_right(edges_ms, error_ms)] += 1
    total = sum(counts)
    return [100 * count / total for count in counts] if total else None
