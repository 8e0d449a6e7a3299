"""`feedback` on generated work of many shapes, none of which its parameters were chosen on.

It must never be much worse than the better of two extremes: backfilling in the order of submission
(`easy`), which is best where all jobs take about as long, and least attained service (`las`), which
is best where run times have a long tail.
"""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Device, Node
from gpu_scheduler.model.request import Request
from gpu_scheduler.simulator.experiment import run_policy
from gpu_scheduler.simulator.metrics import measure
from gpu_scheduler.simulator.workload import Partition, TraceJob, Workload

pytestmark = pytest.mark.slow
NODES, GPUS = 8, 8
JOBS = 400
MOST_WORSE = 1.05

Draw = Callable[[Random], float]


def heavy_tail(chance: Random) -> float:
    return min(300 * chance.paretovariate(1.1), 1e6)


def log_normal(chance: Random) -> float:
    return min(chance.lognormvariate(6.8, 1.8), 6e5)


def bimodal(chance: Random) -> float:
    return chance.uniform(300, 900) if chance.random() < 0.9 else chance.uniform(30_000, 60_000)


def narrow(chance: Random) -> int:
    return chance.choices((1, 2, 4, 8), (70, 12, 10, 8))[0]


def steadily(chance: Random, gap_s: float) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += chance.expovariate(1 / gap_s)
        yield at_s


def in_bursts(chance: Random, gap_s: float) -> Iterator[float]:
    at_s = 0.0
    while True:
        at_s += chance.expovariate(1 / (100 * gap_s))
        yield from sorted(at_s + chance.uniform(0, 60) for _ in range(100))


SHAPES: dict[str, tuple[Draw, Callable[[Random], int], Callable[..., Iterator[float]]]] = {
    "heavy tail": (heavy_tail, narrow, steadily),
    "bimodal": (bimodal, narrow, steadily),
    "bursts": (log_normal, narrow, in_bursts),
}


def workload(shape: str, load: float, seed: int) -> Workload:
    """Jobs of this shape that offer so much work to 64 GPUs."""
    run_time, gpus, arrivals = SHAPES[shape]
    chance = Random(seed)
    work = [(run_time(chance), gpus(chance)) for _ in range(JOBS)]
    gap_s = sum(run_s * count for run_s, count in work) / JOBS / (NODES * GPUS * load)
    submitted = sorted(at_s for at_s, _ in zip(arrivals(chance, gap_s), work, strict=False))
    jobs = []
    for number, (at_s, (run_s, count)) in enumerate(zip(submitted, work, strict=True), start=1):
        members = (Request(gpu_count=min(count, GPUS)),) * max(1, count // GPUS)
        job = Job(id=f"j{number}", number=number, submit_ms=int(at_s * 1000), members=members)
        jobs.append(TraceJob(job, max(1, int(run_s)) * 1000))
    devices = tuple(Device(index=index, model="A100", memory_mb=80_000) for index in range(GPUS))
    nodes = tuple(
        Node(id=f"n{place}", ordinal=place, cpu_milli=64_000, memory_mb=512_000, devices=devices)
        for place in range(NODES)
    )
    return Workload(name=shape, partitions=[Partition(name="all", nodes=nodes, jobs=jobs)])


@pytest.mark.parametrize("load", [0.8, 1.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_feedback_is_never_much_worse_than_backfilling_or_attained_service(
    shape: str, load: float
) -> None:
    mean_s = {
        name: measure(run_policy(workload(shape, load, seed=1), preset(name))).jct.mean_s
        for name in ("easy", "las", "feedback")
    }
    print(shape, load, {name: round(value) for name, value in mean_s.items()})  # noqa: T201
    assert mean_s["feedback"] <= MOST_WORSE * min(mean_s["easy"], mean_s["las"])
