"""The fair policy shares by weight among three tenants of equal weight and unequal demand."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.predict.history import History
from gpu_scheduler.simulator.generator import WorkShape, generate
from gpu_scheduler.simulator.metrics import measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.workload import Partition, TraceJob, cluster_of
from gpu_scheduler.simulator.world import Physics, World
from tests.simulation.exact_record import check_run

pytestmark = pytest.mark.slow

DEMAND = {"large": (2.0, 1_600), "middle": (0.8, 640), "small": (0.5, 400)}


def work(tenant: str, load: float, jobs: int, seed: int) -> list[TraceJob]:
    shape = WorkShape(load=load, tenants=1, users=6, jobs=jobs)
    nodes = cluster_of(8, 8).nodes
    return [
        TraceJob(
            replace(entry.job, id=f"{tenant}-{entry.job.id}", tenant=tenant, priority=750),
            entry.run_ms,
        )
        for entry in generate(shape, nodes, seed)
    ]


def fairness(policy: str) -> tuple[float, float]:
    """Jain's index while all three are backlogged, and for how many hours they were."""
    jobs = [
        entry
        for seed, (tenant, (load, count)) in enumerate(DEMAND.items(), start=1)
        for entry in work(tenant, load, count, seed)
    ]
    jobs.sort(key=lambda entry: (entry.job.submit_ms, entry.job.id))
    run = Run(policy=policy, workload="unequal", capacity_gpu_milli=64_000)
    part = Partition(name="all", nodes=cluster_of(8, 8).nodes, jobs=jobs)
    World(part, preset(policy), History(), Physics(), run).run()
    measures = measure(run, dict.fromkeys(DEMAND, 1_000))
    check_run(f"unequal-{policy}", run, measures)
    index, hours = measures.jain_backlogged, measures.backlogged_s / 3600
    assert index is not None
    print(f"{policy}: Jain's index {index:.3f} over {hours:.0f} h")  # noqa: T201 - shown with -rP
    return index, hours


def test_fair_shares_by_weight_while_all_are_backlogged() -> None:
    index, hours = fairness("fair")
    assert hours > 24
    assert index >= 0.95


def test_fifo_favours_tenants_with_most_demand() -> None:
    assert fairness("fifo")[0] < fairness("fair")[0]
