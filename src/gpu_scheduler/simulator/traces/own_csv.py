"""Our own CSV: a header row and one job in each row. It holds no nodes; they come beside it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from gpu_scheduler.simulator.cluster import Cluster
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.files import replacing
from gpu_scheduler.simulator.traces.intake import Intake, Reading
from gpu_scheduler.simulator.traces.job_fields import JOB_COLUMNS, REQUIRED_COLUMNS, JobReader
from gpu_scheduler.simulator.traces.job_text import JobWriter
from gpu_scheduler.simulator.traces.tables import Layout, read_rows
from gpu_scheduler.simulator.workload import TraceJob

LAYOUT = Layout(
    name="a trace in CSV",
    required=REQUIRED_COLUMNS,
    optional=tuple(column for column in JOB_COLUMNS if column not in REQUIRED_COLUMNS),
)


def read_csv(path: Path, cluster: Cluster) -> Reading:
    """Read the jobs and put them on one pool of nodes."""
    nodes = cluster.nodes
    intake = Intake(path)
    for line, trace_job in read_rows(path, LAYOUT, JobReader(Fit(nodes)).trace_job):
        intake.add(trace_job, line)
    return intake.pool(nodes)


def write_csv(path: Path, jobs: Iterable[TraceJob]) -> int:
    """Write the jobs, which may be a stream; the number of jobs comes back."""
    writer = JobWriter(lists_members=False)
    count = 0
    with replacing(path) as text:
        table = csv.DictWriter(text, JOB_COLUMNS, restval="", lineterminator="\n")
        table.writeheader()
        for trace_job in jobs:
            table.writerow(writer.record(trace_job)[0])
            count += 1
    return count
