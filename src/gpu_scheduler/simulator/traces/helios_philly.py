"""Job logs by virtual cluster: Helios (SenseTime, 2020) and Philly (Microsoft, 2017).

Helios has jobs by virtual cluster, each with its own nodes. Both the published layout (submit_time,
duration) and an extract with seconds (submit_s, duration_s, vc_row) are read. CPUs are ignored
unless `use_cpus`, as in published simulations. Philly is a plain table of one pool, or has virtual
clusters as well.
"""

from __future__ import annotations

from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.simulator.traces.collector import (
    Intake,
    Reading,
    from_midnight,
    partition_of,
)
from gpu_scheduler.simulator.traces.parsing import (
    Layout,
    Row,
    read_rows,
    read_unique,
    thousandths,
    unexpected,
    whole_number,
)
from gpu_scheduler.simulator.workload import (
    Cluster,
    EmptyCluster,
    NodeGroup,
    Partition,
    TraceJob,
    cluster_of,
    nodes_of,
)

HELIOS_LAYOUT = Layout(
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
VC_LAYOUT = Layout(
    name="nodes by virtual cluster",
    required=("vc", "nodes", "gpus_per_node"),
    optional=("cpu_cores", "memory_mb", "model", "gpu_memory_mb"),
)
PHILLY_LAYOUT = Layout(
    name="a Philly job table",
    required=("gpu_num", "duration_s"),
    one_of=(("submit_s", "submit_time"),),
    optional=("row", "vc", "submit_s_since_2017_10_01"),
)
PHILLY_NODES = 352
PHILLY_GPUS_PER_NODE = 8
NO_GPU = "gpu_num 0"


def read_helios(path: Path, cluster: Cluster, *, use_cpus: bool = False) -> Reading:
    """Read a job log: a partition for each virtual cluster, or one pool if the nodes form one.

    Jobs are sorted by submission, then by `vc_row`. Jobs without GPUs are skipped and counted.
    """
    parts = dict(cluster.parts) if cluster.is_divided else {"": cluster.nodes}
    empty_parts = {name: EmptyCluster(nodes) for name, nodes in parts.items()}
    has_dates = False

    def read_job(row: Row, number: int) -> TraceJob | str:
        nonlocal has_dates
        gpus = whole_number(row["gpu_num"], "gpu_num")
        if gpus == 0:
            return NO_GPU
        has_dates = "submit_s" not in row
        vc = row.get("vc", "").strip()
        job_id = row["job_id"].strip()
        if not job_id:
            raise InvalidRequest("job_id is empty; expected an id for each job")
        # Ties inside a second follow the order inside the virtual cluster.
        number = whole_number(row["vc_row"], "vc_row") if "vc_row" in row else number
        submit_ms = _date_ms(row) if has_dates else thousandths(row["submit_s"], "submit_s")
        cpus = whole_number(row.get("cpu_num") or "0", "cpu_num") if use_cpus else 0
        part = empty_parts.get(vc if cluster.is_divided else "")
        if part is None:
            raise unexpected(vc, "vc", f"one of {', '.join(parts)}, the parts in --cluster")
        job = Job(
            id=job_id,
            number=number,
            submit_ms=submit_ms,
            tenant=vc or "default",
            user=row["user"],
            name=row.get("jobname", ""),
            members=part.spread(Request(gpu_count=gpus, cpu_milli=cpus * 1000)),
        )
        column = "duration_s" if "duration_s" in row else "duration"
        return TraceJob(job, thousandths(row[column], column))

    intake = Intake(path, read_rows(path, HELIOS_LAYOUT, read_job))
    jobs = from_midnight(intake.jobs()) if has_dates else intake.jobs()
    if not cluster.is_divided:
        return intake.reading([partition_of("all", cluster.nodes, jobs)])
    return intake.reading(_by_virtual_cluster(jobs, parts))


def _by_virtual_cluster(
    jobs: list[TraceJob], parts: dict[str, tuple[Node, ...]]
) -> list[Partition]:
    """A partition for each virtual cluster, which is the tenant of its jobs."""
    by_vc: dict[str, list[TraceJob]] = {name: [] for name in parts}
    for entry in jobs:
        by_vc[entry.job.tenant].append(entry)
    return [
        partition_of(name, nodes, by_vc[name], (Tenant(id=name),)) for name, nodes in parts.items()
    ]


def _date_ms(row: Row) -> int:
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


def read_vc_nodes(path: Path) -> Cluster:
    """Read how many nodes each virtual cluster has: vc, nodes, gpus_per_node."""

    def read_group(row: Row, _number: int) -> NodeGroup:
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

    groups = read_unique(path, VC_LAYOUT, read_group, "virtual cluster", attrgetter("id"))
    return Cluster(
        tuple((name, nodes_of([group], always_number=True)) for name, group in groups.items())
    )


def read_philly(path: Path, cluster: Cluster | None = None) -> Reading:
    """Read the table; without `cluster`, 352 nodes of 8 GPUs as in the original.

    Where rows name their virtual cluster and `cluster` is divided into such, each that has jobs is
    a partition, and jobs submitted in the same second keep the order of their rows. Without
    `submit_s`, times are the dates in `submit_time`.
    """
    cluster = cluster or cluster_of(PHILLY_NODES, PHILLY_GPUS_PER_NODE)
    parts = dict(cluster.parts)
    empty_parts = {name: EmptyCluster(nodes) for name, nodes in parts.items()}
    empty_pool = EmptyCluster(cluster.nodes)
    has_dates = is_divided = False

    def read_job(row: Row, number: int) -> TraceJob | str:
        nonlocal has_dates, is_divided
        gpus = whole_number(row["gpu_num"], "gpu_num")
        if gpus == 0:
            return NO_GPU
        has_dates = "submit_s" not in row
        vc = row.get("vc", "").strip()
        is_divided = "vc" in row and cluster.is_divided
        part = empty_parts.get(vc) if is_divided else empty_pool
        if part is None:
            raise unexpected(vc, "vc", f"one of {', '.join(parts)}, the parts in --cluster")
        job_id = str(whole_number(row["row"], "row")) if "row" in row else str(number - 1)
        job = Job(
            id=f"{vc}-{job_id}" if vc else job_id,
            number=number,
            submit_ms=_date_ms(row) if has_dates else thousandths(row["submit_s"], "submit_s"),
            tenant=vc or "default",
            members=part.spread(Request(gpu_count=gpus)),
        )
        return TraceJob(job, thousandths(row["duration_s"], "duration_s"))

    intake = Intake(path, read_rows(path, PHILLY_LAYOUT, read_job))
    jobs = from_midnight(intake.jobs()) if has_dates else intake.jobs()
    if not is_divided:
        return intake.reading([partition_of("all", cluster.nodes, jobs)])
    used = {entry.job.tenant for entry in jobs}
    return intake.reading(
        _by_virtual_cluster(jobs, {name: parts[name] for name in parts if name in used})
    )
