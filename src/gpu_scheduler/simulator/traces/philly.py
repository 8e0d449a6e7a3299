"""Microsoft Philly (2017) as a plain table: arrivals, GPU counts and run times of one pool."""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import Layout, Row, read_rows, thousandths, whole_number
from gpu_scheduler.simulator.workload import Cluster, TraceJob, cluster_of

LAYOUT = Layout(
    name="a Philly job table",
    required=("submit_s", "gpu_num", "duration_s"),
    optional=("row", "submit_time"),
)
NODES = 352
GPUS_PER_NODE = 8
NO_GPU = "gpu_num 0"


def read_philly(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read the table; without `cluster`, 352 nodes of 8 GPUs as in the original."""
    nodes = (cluster or cluster_of(NODES, GPUS_PER_NODE)).nodes
    fit = Fit(nodes)
    members: dict[int, tuple[Request, ...]] = {}

    def trace_job(row: Row, number: int) -> TraceJob | None:
        gpus = whole_number(row["gpu_num"], "gpu_num")
        if gpus == 0:
            return None
        if gpus not in members:
            members[gpus] = fit.spread(Request(gpu_count=gpus))
        job = Job(
            id=str(whole_number(row["row"], "row")) if "row" in row else str(number - 1),
            number=number,
            submit_ms=thousandths(row["submit_s"], "submit_s"),
            members=members[gpus],
        )
        return TraceJob(job, thousandths(row["duration_s"], "duration_s"))

    intake = Intake(path)
    for line, made in read_rows(path, LAYOUT, trace_job):
        if made is None:
            intake.skip(NO_GPU)
        else:
            intake.add(made, line)
    return intake.pool(nodes)
