"""A whole simulation, timed: jobs in, how long it took and how much memory it needed out."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from time import perf_counter

from benchmarks.progress import show
from benchmarks.stopwatch import Stopwatch
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.simulator.experiment import run_policy
from gpu_scheduler.simulator.workload import TraceJob, Workload

SHOWN_EVERY = 500


class OutOfTime(Exception):
    """The simulation was stopped before its end."""


@dataclass(slots=True)
class Timing:
    """What one simulation took. `marks` has jobs ended, seconds and peak MB by per cent.

    How many cycles and preemptions there were is known only of one that finished.
    """

    jobs: int
    ended: int = 0
    finished: bool = False
    watch: Stopwatch = field(default_factory=Stopwatch)
    marks: dict[str, dict[str, float]] = field(default_factory=dict)
    cycles: int | None = None
    preemptions: int | None = None


def simulate(
    name: str,
    workload: Workload,
    policy: str,
    *,
    max_seconds: float,
    percents: tuple[int, ...] = (),
) -> Timing:
    """Run a workload under a policy as `tgpu simulate` does; stop when it takes too long."""
    jobs = sum(part.total_jobs or 0 for part in workload.partitions)
    timing = Timing(jobs)
    began = perf_counter()
    due = {jobs * percent // 100: percent for percent in percents}

    def ended(_: str, count: int) -> None:
        timing.ended += count
        percent = due.get(timing.ended)
        seconds = perf_counter() - began
        if percent is not None:
            timing.marks[f"{percent}%"] = {
                "jobs": timing.ended,
                "seconds": round(seconds, 1),
                "peak_rss_mb": peak_rss_mb(),
            }
        if timing.ended % SHOWN_EVERY == 0:
            show(f"{name}: {timing.ended} of {jobs} jobs in {seconds:.0f} s")
        if seconds > max_seconds:
            raise OutOfTime

    with timing.watch.lap():
        try:
            run = run_policy(workload, preset(policy), on_progress=ended)
        except OutOfTime:
            return timing
    timing.finished = len(run.outcomes) == jobs
    timing.cycles = run.cycles
    timing.preemptions = sum(run.outcomes.numbers["preemptions"])
    return timing


def bare_events_per_second(jobs: Iterable[TraceJob]) -> float:
    """The floor: the same arrivals and ends through a heap, where every job starts at once."""
    watch = Stopwatch()
    count = 0
    ends: list[tuple[int, int]] = []
    with watch.lap():
        for count, trace in enumerate(jobs, start=1):
            now_ms = trace.job.submit_ms
            while ends and ends[0][0] <= now_ms:
                heappop(ends)
            heappush(ends, (now_ms + trace.run_ms, count))
    return count / watch.wall


def all_jobs(workload: Workload) -> Iterator[TraceJob]:
    """The jobs of one partition after the other."""
    for part in workload.partitions:
        yield from part.jobs


def peak_rss_mb() -> float:
    """The most that this process has ever held in memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
