"""A generated year of 1,000,000 jobs on 1,000 nodes with 8 GPUs each, in bounded memory.

Jobs take hours, so that a million of them keep 8,000 GPUs 90 % busy for about a year. Usually a
tenth of it is run; `--full` runs all. A run that takes longer than `max_seconds` is stopped and
counts as not finished. The floor is the peak before the simulation begins.
"""

from __future__ import annotations

from benchmarks.result import LESS, Result, result, rounded
from benchmarks.simulation import all_jobs, bare_events_per_second, peak_rss_mb, simulate
from gpu_scheduler.simulator.generator import WorkShape, generated_workload
from gpu_scheduler.simulator.workload import cluster_of

TARGET_MB = 512
FULL = 1_000_000
TENTH = FULL // 10
NODES = 1_000
SEED = 1
MEDIAN_RUN_S = 5 * 3_600 + 1_200
PERCENTS = (10, 50, 100)
DAY_MS = 86_400_000


def measure(
    repeats: int,  # noqa: ARG001 - long enough to be steady
    *,
    jobs: int = TENTH,
    max_seconds: float = 600,
) -> Result:
    """Run it once and note the peak on the way."""
    shape = WorkShape(jobs=jobs, tenants=20, users=400, median_run_s=MEDIAN_RUN_S)
    workload = generated_workload(shape, cluster_of(NODES, 8).nodes, SEED, name="year")
    floor = bare_events_per_second(all_jobs(workload))
    before_mb = peak_rss_mb()
    timing = simulate("year", workload, "fair", max_seconds=max_seconds, percents=PERCENTS)
    peak_mb = peak_rss_mb()
    return result(
        "year",
        peak_mb,
        "MB peak RSS",
        target=TARGET_MB,
        bound=LESS,
        also_met=timing.finished,
        floor=before_mb,
        repeats=1,
        finished=timing.finished,
        jobs=timing.ended,
        jobs_wanted=jobs,
        seconds=rounded(timing.watch.wall),
        cpu_seconds=rounded(timing.watch.cpu),
        jobs_per_second=rounded(timing.ended / timing.watch.wall),
        jobs_per_cpu_second=rounded(timing.ended / timing.watch.cpu),
        floor_jobs_per_second=rounded(floor),
        marks=timing.marks,
        cycles=timing.cycles,
        preemptions=timing.preemptions,
    )
