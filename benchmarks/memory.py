"""Memory for each waiting job: 100,000 jobs submitted to the core, as a server would hold them.

Every job is decoded on its own, so its request and its texts are objects of its own until the core
decides to share them. The value counts what Python allocates (tracemalloc); what the process grows
by stands beside it. The floor is a dictionary with nothing but each job's own texts and numbers.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

from benchmarks.cluster import any_request, distinct, large_cluster
from benchmarks.progress import show
from benchmarks.result import LESS, Result, result, rounded
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import SetNode, Submit
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.predictors import Stated

TARGET_BYTES = 1_500
JOBS = 100_000
TENANTS = 100
SHAPES = 500
NODES = 100
PAGE_BYTES = 4_096
SEED = 1


def measure(repeats: int) -> Result:  # noqa: ARG001 - bytes do not vary as times do
    """Count with the process first, then with tracemalloc, then the floor."""
    resident = _grown(_resident_bytes, _core())
    tracemalloc.start()
    allocated = _grown(_allocated_bytes, _core())
    floor = _grown(_allocated_bytes, _Texts())
    tracemalloc.stop()
    return result(
        "memory",
        allocated,
        "bytes/pending job",
        target=TARGET_BYTES,
        bound=LESS,
        floor=floor,
        repeats=1,
        resident_bytes=rounded(resident),
        pending=JOBS,
    )


class _Texts:
    """The floor: what a job says, and nothing to find it by but its id."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[object, ...]] = {}

    def apply(self, message: Submit, now_ms: int) -> None:
        job = message.job
        texts = (job.tenant, job.user, job.name, job.command, job.priority, now_ms)
        self.kept[job.id] = texts


def _core() -> Core:
    core = Core(preset("fair"), Stated())
    for node in large_cluster(NODES):
        core.apply(SetNode(node), 0)
    return core


def _grown(bytes_now: Callable[[], int], holder: Core | _Texts) -> float:
    """By how much submitting all jobs makes the process larger, for each of them."""
    chance = Random(SEED)
    requests = distinct(lambda: any_request(chance), SHAPES)
    gc.collect()
    before = bytes_now()
    for number in range(1, JOBS + 1):
        if number % 10_000 == 0:
            show(f"memory: {number} of {JOBS}")
        holder.apply(Submit(_job(number, chance, requests)), number)
    gc.collect()
    return (bytes_now() - before) / JOBS


def _job(number: int, chance: Random, requests: list[Request]) -> Job:
    """A job with texts of its own, as it comes from a socket."""
    return Job(
        id=f"job-{number}",
        number=0,
        submit_ms=0,
        tenant=f"tenant-{chance.randrange(TENANTS)}",
        user=f"user-{chance.randrange(4)}",
        name=f"train-{number % 50}",
        command=("python", f"train-{number % 50}.py", f"--seed={number}"),
        members=(_copy(chance.choice(requests)),),
        max_runtime_ms=3_600_000 * chance.randrange(1, 48),
    )


def _copy(request: Request) -> Request:
    return Request(
        gpu_count=request.gpu_count,
        gpu_share_milli=request.gpu_share_milli,
        gpu_models=tuple(sorted(request.gpu_models)),
        cpu_milli=request.cpu_milli,
        memory_mb=request.memory_mb,
    )


def _allocated_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


def _resident_bytes() -> int:
    """What the process holds in memory at this moment."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
