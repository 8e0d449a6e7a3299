"""Helios job logs (SenseTime, 2020): jobs by virtual cluster, each with its own nodes.

Both the published layout (submit_time, duration) and an extract with seconds (submit_s,
duration_s, vc_row) are read. CPUs are ignored unless `use_cpus`, as in published simulations.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.fit import Fit
from gpu_scheduler.simulator.traces.collector import Intake, Reading, tenants_named_in
from gpu_scheduler.simulator.traces.parsing import (
    Layout,
    Row,
    read_rows,
    thousandths,
    unexpected,
    whole_number,
)
from gpu_scheduler.simulator.workload import Cluster, NodeGroup, Partition, TraceJob, nodes_of

LAYOUT = Layout(
    name="a Helios job log",
    required=("job_id", "user", "gpu_num"),
    one_of=(("submit_s", "submit_time"), ("duration_s", "duration")),
    optional=(
        "vc",
        "jobname",
        "cpu_num",
        "node_num",
        "state",
        "start_time",
        "end_time",
        "queue",
        "vc_row",
    ),
)
NODE_LAYOUT = Layout(
    name="nodes by virtual cluster",
    required=("vc", "nodes", "gpus_per_node"),
    optional=("cpu_cores", "memory_mb", "model", "gpu_memory_mb"),
)
NO_GPU = "gpu_num 0"
DAY_MS = 86_400_000


def read_helios(path: Path, cluster: Cluster, *, use_cpus: bool = False) -> Reading:
    """Read a job log: a partition for each virtual cluster, or one pool if the nodes form one.

    Jobs are sorted by submission, then by `vc_row`. Jobs without GPUs are skipped and counted.
    """
    reader = _HeliosReader(cluster, use_cpus=use_cpus)
    intake = Intake(path)
    for line, trace_job in read_rows(path, LAYOUT, reader.trace_job):
        if trace_job is None:
            intake.skip(NO_GPU)
        else:
            intake.add(trace_job, line)
    jobs = intake.finish()
    if not reader.has_submit_s:
        jobs = _from_first_midnight(jobs)
    if not cluster.is_divided:
        partitions = [_partition("all", cluster, jobs, tenants_named_in(jobs))]
    else:
        by_vc: dict[str, list[TraceJob]] = {name: [] for name, _ in cluster.parts}
        for entry in jobs:
            by_vc[entry.job.tenant].append(entry)
        partitions = [
            _partition(name, Cluster.pool(nodes), by_vc[name], (Tenant(id=name),))
            for name, nodes in cluster.parts
        ]
    return intake.reading(partitions)


def read_vc_nodes(path: Path) -> Cluster:
    """Read how many nodes each virtual cluster has: vc, nodes, gpus_per_node."""

    def group(row: Row, _number: int) -> NodeGroup:
        if not row["vc"].strip():
            raise InvalidRequest("vc is empty; expected the name of a virtual cluster")
        return NodeGroup(
            id=row["vc"].strip(),
            count=whole_number(row["nodes"], "nodes"),
            gpus=whole_number(row["gpus_per_node"], "gpus_per_node"),
            model=row.get("model") or "GPU",
            gpu_memory_mb=whole_number(row.get("gpu_memory_mb") or "0", "gpu_memory_mb"),
            cpu_milli=thousandths(row.get("cpu_cores") or "0", "cpu_cores"),
            memory_mb=whole_number(row.get("memory_mb") or "0", "memory_mb"),
        )

    parts: dict[str, NodeGroup] = {}
    for line, made in read_rows(path, NODE_LAYOUT, group):
        if made.id in parts:
            raise InvalidInput(
                f"virtual cluster {made.id!r} appears twice; expected each once",
                file=str(path),
                line=line,
            )
        parts[made.id] = made
    if not parts:
        raise InvalidInput(
            "the file has no virtual clusters; expected at least one", file=str(path)
        )
    return Cluster(
        tuple((name, nodes_of([made], always_number=True)) for name, made in parts.items())
    )


class _HeliosReader:
    """Turns rows into jobs; checks each job against the nodes of its virtual cluster."""

    def __init__(self, cluster: Cluster, *, use_cpus: bool) -> None:
        self._divided = cluster.is_divided
        self._use_cpus = use_cpus
        parts = cluster.parts if self._divided else (("", cluster.nodes),)
        self._fits = {name: Fit(nodes) for name, nodes in parts}
        self._members: dict[tuple[str, int, int], tuple[Request, ...]] = {}
        self.has_submit_s = False

    def trace_job(self, row: Row, number: int) -> TraceJob | None:
        gpus = whole_number(row["gpu_num"], "gpu_num")
        if gpus == 0:
            return None
        self.has_submit_s = "submit_s" in row
        vc = row.get("vc", "").strip()
        job_id = row["job_id"].strip()
        if not job_id:
            raise InvalidRequest("job_id is empty; expected an id for each job")
        job = Job(
            id=job_id,
            # Ties inside a second follow the order inside the virtual cluster.
            number=whole_number(row["vc_row"], "vc_row") if "vc_row" in row else number,
            submit_ms=_submit_ms(row),
            tenant=vc or "default",
            user=row["user"],
            name=row.get("jobname", ""),
            members=self._request(vc, gpus, row),
        )
        column = "duration_s" if "duration_s" in row else "duration"
        return TraceJob(job, thousandths(row[column], column))

    def _request(self, vc: str, gpus: int, row: Row) -> tuple[Request, ...]:
        cpus = whole_number(row.get("cpu_num") or "0", "cpu_num") if self._use_cpus else 0
        part = vc if self._divided else ""
        key = (part, gpus, cpus)
        members = self._members.get(key)
        if members is None:
            if part not in self._fits:
                raise unexpected(vc, "vc", f"one of {', '.join(self._fits)}, which have nodes")
            request = Request(gpu_count=gpus, cpu_milli=cpus * 1000)
            members = self._members[key] = self._fits[part].spread(request)
        return members


def _submit_ms(row: Row) -> int:
    if "submit_s" in row:
        return thousandths(row["submit_s"], "submit_s")
    text = row["submit_time"]
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise unexpected(text, "submit_time", "a time such as 2020-09-01 00:02:34") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise unexpected(text, "submit_time", "a time after 1970")
    return milliseconds


def _from_first_midnight(jobs: list[TraceJob]) -> list[TraceJob]:
    """Shift times so that 0 is the midnight before the first job; days stay aligned."""
    start_ms = jobs[0].job.submit_ms // DAY_MS * DAY_MS
    return [
        TraceJob(replace(entry.job, submit_ms=entry.job.submit_ms - start_ms), entry.run_ms)
        for entry in jobs
    ]


def _partition(
    name: str, cluster: Cluster, jobs: list[TraceJob], tenants: tuple[Tenant, ...]
) -> Partition:
    return Partition(
        name=name, nodes=cluster.nodes, jobs=jobs, tenants=tenants, total_jobs=len(jobs)
    )
