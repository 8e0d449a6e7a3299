"""Alibaba's openb node and pod lists (2023), and the arrival order of the experiments on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from random import Random

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import (
    Layout,
    Row,
    choices,
    read_rows,
    read_unique,
    thousandths,
    unexpected,
    whole_number,
)
from gpu_scheduler.simulator.workload import Cluster, EmptyCluster, NodeGroup, TraceJob, nodes_of

NODE_LAYOUT = Layout(
    name="an openb node list",
    required=("sn", "cpu_milli", "memory_mib", "gpu"),
    optional=("model",),
)
POD_LAYOUT = Layout(
    name="an openb pod list",
    required=("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"),
    optional=(
        "gpu_spec",
        "qos",
        "pod_phase",
        "creation_time",
        "deletion_time",
        "scheduled_time",
    ),
)
NEVER_SCHEDULED = "no scheduled_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One row of a pod list. `run_ms` is None for a pod that was never scheduled."""

    name: str
    request: Request
    qos: str = ""
    created_ms: int = 0
    run_ms: int | None = None

    def job(self, *, number: int, submit_ms: int) -> Job:
        """The pod as a job."""
        return Job(id=self.name, number=number, submit_ms=submit_ms, members=(self.request,))


def read_nodes(path: Path) -> tuple[Node, ...]:
    """The nodes by name; their order gives the ordinals."""
    groups = read_unique(path, NODE_LAYOUT, _node_group, "node", attrgetter("id"))
    return nodes_of(groups[name] for name in sorted(groups))


def read_pods(path: Path) -> list[Pod]:
    """All pods in the order of the file, scheduled or not."""
    return list(read_unique(path, POD_LAYOUT, _pod, "pod", attrgetter("name")).values())


def read_openb(path: Path, cluster: Cluster) -> Reading:
    """The pods as jobs at their own times. Pods that never ran are skipped and counted."""
    nodes = cluster.nodes
    empty = EmptyCluster(nodes)

    def read_fitting_pod(row: Row, number: int) -> Pod:
        pod = _pod(row, number)
        empty.check((pod.request,))
        return pod

    entries = (
        (
            line,
            NEVER_SCHEDULED
            if pod.run_ms is None
            else TraceJob(pod.job(number=line, submit_ms=pod.created_ms), pod.run_ms),
        )
        for line, pod in read_rows(path, POD_LAYOUT, read_fitting_pod)
    )
    return Intake(path, entries).pool(nodes)


def arrivals(pods: Iterable[Pod], seed: int, capacity_milli: int, tune: float = 1.3) -> list[Pod]:
    """Pods in the order of arrival: all of them shuffled, then more drawn with replacement.

    Ends before the pod that would exceed `tune` times the GPU capacity. A pod drawn again gets a
    new name.
    """
    chance = Random(seed)
    by_name = sorted(pods, key=lambda pod: pod.name)
    if not any(pod.request.gpu_milli for pod in by_name):
        raise InvalidRequest("no pod requests a GPU, so the pods cannot fill the GPU capacity")
    limit_milli = int(capacity_milli * tune)
    order = list(by_name)
    chance.shuffle(order)
    arrived: list[Pod] = []
    arrived_milli = 0
    copies: Counter[str] = Counter()
    while True:
        place = len(arrived)
        pod = order[place] if place < len(order) else chance.choice(by_name)
        arrived_milli += pod.request.gpu_milli
        if arrived_milli > limit_milli:
            return arrived
        if place >= len(order):
            copies[pod.name] += 1
            pod = replace(pod, name=f"{pod.name}-copy-{copies[pod.name]}")
        arrived.append(pod)


def _node_group(row: Row, _number: int) -> NodeGroup:
    name = row["sn"].strip()
    if not name:
        raise InvalidRequest("sn is empty; expected the name of a node")
    return NodeGroup(
        id=name,
        gpus=whole_number(row["gpu"], "gpu"),
        model=row.get("model") or "GPU",
        gpu_memory_mb=0,
        cpu_milli=whole_number(row["cpu_milli"], "cpu_milli"),
        memory_mb=whole_number(row["memory_mib"], "memory_mib"),
    )


def _pod(row: Row, _number: int) -> Pod:
    name = row["name"].strip()
    if not name:
        raise InvalidRequest("name is empty; expected the name of a pod")
    gpus = whole_number(row["num_gpu"], "num_gpu")
    share_milli = whole_number(row["gpu_milli"] or "0", "gpu_milli")
    if gpus and not share_milli:
        raise unexpected(row["gpu_milli"], "gpu_milli", "1 to 1000 for a pod with GPUs")
    models = row.get("gpu_spec", "")
    request = Request(
        gpu_count=gpus,
        gpu_share_milli=share_milli if gpus else 1000,
        gpu_models=tuple(sorted(set(choices(models, "gpu_spec")))) if models else (),
        cpu_milli=whole_number(row["cpu_milli"], "cpu_milli"),
        memory_mb=whole_number(row["memory_mib"], "memory_mib"),
    )
    return Pod(
        name=name,
        request=request,
        qos=row.get("qos", ""),
        created_ms=thousandths(row.get("creation_time") or "0", "creation_time"),
        run_ms=_run_ms(row),
    )


def _run_ms(row: Row) -> int | None:
    if not row.get("scheduled_time"):
        return None
    scheduled_ms = thousandths(row["scheduled_time"], "scheduled_time")
    deleted_ms = thousandths(row.get("deletion_time", ""), "deletion_time")
    if deleted_ms < scheduled_ms:
        raise unexpected(
            row["deletion_time"], "deletion_time", f"at least {row['scheduled_time']}, its start"
        )
    return deleted_ms - scheduled_ms
