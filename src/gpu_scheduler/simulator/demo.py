"""The demonstration: one working day of four groups on a small cluster, made from a seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.cluster import cluster_of
from gpu_scheduler.simulator.generator import generate
from gpu_scheduler.simulator.shape import DAY_S, HOUR_S, WorkShape
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload

NODES = 8
GPUS_PER_NODE = 8
TENANTS = ("vision", "language", "robotics", "students")
SHAPE = WorkShape(
    jobs=20_000,
    load=1.0,
    tenants=len(TENANTS),
    users=24,
    gpu_mix=((1, 0.60), (2, 0.14), (4, 0.12), (8, 0.11), (16, 0.03)),
    longest_run_s=12 * HOUR_S,
)
"""A busy day: more is asked for in the afternoon than there is, and the night catches up."""


def demo_workload(seed: int) -> Workload:
    """All that is submitted within the first day, with names that people would choose."""
    nodes = cluster_of(NODES, GPUS_PER_NODE, model="H100", nodes_per_rack=4).nodes
    day = takewhile(lambda entry: entry.job.submit_ms < DAY_S * 1000, generate(SHAPE, nodes, seed))
    names = {f"tenant-{number}": name for number, name in enumerate(TENANTS, start=1)}
    jobs = [_renamed(entry, names) for entry in day]
    pool = Partition(
        name="all",
        nodes=nodes,
        jobs=jobs,
        tenants=tuple(Tenant(id=name) for name in TENANTS),
        total_jobs=len(jobs),
    )
    return Workload(name="demo: one day of four groups", partitions=[pool])


def _renamed(entry: TraceJob, names: dict[str, str]) -> TraceJob:
    return TraceJob(replace(entry.job, tenant=names[entry.job.tenant]), entry.run_ms)
