"""Where the golden tests find published traces and tables."""

import csv
import os
from functools import cache
from pathlib import Path

import pytest

from gpu_scheduler.simulator.metrics import Measures, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.traces.helios_philly import read_helios, read_philly, read_vc_nodes
from gpu_scheduler.simulator.workload import Workload

TRACES = os.environ.get("TGPU_TRACES_DIR", "")
needs_traces = pytest.mark.skipif(
    not TRACES, reason="TGPU_TRACES_DIR is not set: it names the folder with the public traces"
)


def trace(*parts: str) -> Path:
    """A file in the folder of traces."""
    return Path(TRACES, *parts)


@cache
def venus() -> Workload:
    """Helios Venus, September 2020: fifteen virtual clusters."""
    folder = trace("helios_venus_sept2020")
    cluster = read_vc_nodes(folder / "vc_nodes.csv")
    return read_helios(folder / "jobs.csv.gz", cluster).workload


def philly() -> Workload:
    """Four virtual clusters of Microsoft Philly."""
    folder = trace("philly_vc4")
    return read_philly(folder / "jobs.csv.gz", read_vc_nodes(folder / "vc_nodes.csv")).workload


def published_seconds(kind: str, policy: str) -> dict[str, int]:
    """The published means by virtual cluster ('all' for the total), truncated to seconds."""
    path = trace("helios_venus_sept2020", f"expected_avg_{kind}_s_by_vc.csv")
    with path.open(newline="") as file:
        return {row[""]: int(row[policy]) for row in csv.DictReader(file)}


def by_partition_seconds(run: Run, kind: str) -> dict[str, float]:
    """Mean JCT or queue in seconds by virtual cluster, and over all jobs."""
    sums: dict[str, list[float]] = {}
    for outcome in run.outcomes:
        jct_ms = outcome.end_ms - outcome.submit_ms
        value = (jct_ms if kind == "jct" else outcome.wait_ms) / 1000
        for name in (outcome.partition, "all"):
            sums.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in sums.items()}


def shown(run: Run) -> Measures:
    """The metrics of a run; the main ones are printed to the log."""
    measures = measure(run)
    print(  # noqa: T201 - pytest shows it with -rP
        f"{run.workload}/{run.policy}: JCT {measures.jct.mean_s:,.0f} s, "
        f"wait {measures.wait.mean_s:,.0f} s, p99.9 {measures.wait.p999_s:,.0f} s"
    )
    return measures
