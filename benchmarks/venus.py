"""A month of a real cluster (Helios Venus, September 2020) under the default policy.

23,859 jobs in 15 virtual clusters. The trace is looked for in TGPU_TRACES_DIR.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.result import LESS, Result, result, rounded, skipped
from benchmarks.simulation import all_jobs, bare_events_per_second, peak_rss_mb, simulate
from gpu_scheduler.simulator.traces.detect import read_cluster, read_trace

TARGET_SECONDS = 60
FOLDER = "helios_venus_sept2020"
MAX_SECONDS = 600


def measure(repeats: int) -> Result:  # noqa: ARG001 - long enough to be steady
    """Run the month once."""
    root = os.environ.get("TGPU_TRACES_DIR", "")
    if not root:
        return skipped("venus", "TGPU_TRACES_DIR is not set: no folder with published traces")
    folder = Path(root) / FOLDER
    if not folder.is_dir():
        return skipped("venus", f"TGPU_TRACES_DIR has no folder {FOLDER}")
    cluster = read_cluster(folder / "vc_nodes.csv")
    workload = read_trace(folder / "jobs.csv.gz", cluster=cluster).workload
    floor = bare_events_per_second(all_jobs(workload))
    timing = simulate("venus", workload, "fair", max_seconds=MAX_SECONDS)
    return result(
        "venus",
        timing.watch.wall,
        "s",
        target=TARGET_SECONDS,
        bound=LESS,
        also_met=timing.finished,
        floor=timing.jobs / floor,
        repeats=1,
        cpu_value=timing.watch.cpu,
        finished=timing.finished,
        jobs=timing.ended,
        jobs_per_second=rounded(timing.ended / timing.watch.wall),
        jobs_per_cpu_second=rounded(timing.ended / timing.watch.cpu),
        cycles=timing.cycles,
        preemptions=timing.preemptions,
        peak_rss_mb=peak_rss_mb(),
    )
