"""The packing experiment of the fragmentation literature, on the production engine.

Requests arrive one by one and never end; a request that fits nowhere is dropped. The result is how
much of the cluster is allocated when the requests add up to its capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import Policy, TypicalShape
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.snapshot import Running, Waiting

FOR_EVER_MS = 1 << 50
MOST = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Allocated percentage by requested percentage of capacity, and the dropped and placed jobs."""

    allocated_percent: dict[int, float]
    dropped: int
    placed: int


def fill(
    nodes: Sequence[Node],
    jobs: Iterable[Job],
    policy: Policy,
    on_progress: Callable[[int], None] | None = None,
) -> Filling:
    """Let the jobs arrive in order, and decide about each at once."""
    cluster = ClusterState(policy)
    for node in nodes:
        cluster.set_node(node)
    arrived = allocated = dropped = placed = 0
    bins: dict[int, tuple[int, int]] = {}
    for now_ms, job in enumerate(jobs):
        cluster.enqueue(Waiting(job=job, expected_ms=FOR_EVER_MS))
        plan = decide(cluster, policy, now_ms)
        cluster.dequeue(job.number)
        arrived += job.gpu_milli
        if plan.starts:
            start = plan.starts[0]
            allocation = Allocation(
                id=job.id,
                job_id=job.id,
                task=None,
                attempt=1,
                placements=start.placements,
                start_ms=now_ms,
            )
            cluster.start(Running(job=job, allocation=allocation, expected_end_ms=FOR_EVER_MS))
            allocated += job.gpu_milli
            placed += 1
        else:
            dropped += 1
        percent = (arrived * 200 // cluster.total_gpu_milli + 1) // 2
        total, count = bins.get(percent, (0, 0))
        bins[percent] = (total + allocated, count + 1)
        if on_progress is not None:
            on_progress(1)
    return Filling(
        allocated_percent={
            percent: 100 * total / count / cluster.total_gpu_milli
            for percent, (total, count) in sorted(bins.items())
        },
        dropped=dropped,
        placed=placed,
    )


def typical_shapes(jobs: Sequence[Job], percent: int = 100) -> tuple[TypicalShape, ...]:
    """The distinct requests of a list, most frequent first, until they cover enough of it."""
    counts: dict[TypicalShape, int] = {}
    for job in jobs:
        request = job.members[0]
        shape = TypicalShape(
            cpu_milli=request.cpu_milli,
            memory_mb=0,
            gpu_count=request.gpu_count,
            gpu_share_milli=request.gpu_share_milli if request.gpu_count else 0,
            gpu_models=request.gpu_models,
            count=0,
        )
        counts[shape] = counts.get(shape, 0) + 1
    chosen: list[TypicalShape] = []
    covered = 0
    for shape, count in sorted(counts.items(), key=_most_frequent):
        if covered * 100 >= percent * len(jobs):
            break
        chosen.append(replace(shape, count=count))
        covered += count
    return tuple(chosen)


def _most_frequent(item: tuple[TypicalShape, int]) -> tuple[int, int, int, int]:
    shape, count = item
    return (-count, shape.cpu_milli, shape.gpu_share_milli, shape.gpu_count)


def capacity_milli(nodes: Sequence[Node]) -> int:
    """All GPUs of the nodes."""
    return sum(node.gpu_count for node in nodes) * WHOLE_MILLI
