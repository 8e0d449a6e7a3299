"""One partition on virtual time: every job of a trace is accounted for."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.job import Dependency, DependencyKind, Job
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Quota, Tenant
from gpu_scheduler.simulator.metrics import Measures, measure
from gpu_scheduler.simulator.outcomes import Run
from gpu_scheduler.simulator.predictors import Stated
from gpu_scheduler.simulator.workload import Partition, TraceJob
from gpu_scheduler.simulator.world import Physics, World
from tests.builders import HOUR, MINUTE, a_cluster, a_job, an_array

GPU_HOUR = 1000 * HOUR


def simulated(*jobs: tuple[Job, int], nodes: int = 1, tenants: tuple[Tenant, ...] = ()) -> Run:
    """A run of jobs with their true run times under plain FIFO."""
    part = Partition(
        name="main",
        nodes=a_cluster(nodes=nodes),
        jobs=[TraceJob(job, run_ms) for job, run_ms in jobs],
        tenants=tenants,
    )
    run = Run(policy="fifo", workload="test", capacity_gpu_milli=8_000 * nodes)
    World(part, preset("fifo"), Stated(), Physics(), run).run()
    return run


def measured(*jobs: tuple[Job, int], nodes: int = 1) -> Measures:
    return measure(simulated(*jobs, nodes=nodes))


def after(kind: DependencyKind, other: int) -> tuple[Dependency, ...]:
    return (Dependency(kind, f"j{other}"),)


def test_job_stopped_at_limit_has_used_exactly_what_it_held() -> None:
    measures = measured((a_job(number=1, gpus=8, max_runtime_ms=HOUR), 10 * HOUR))
    assert (measures.failed_jobs, measures.makespan_s) == (1, 3600)
    assert measures.used_gpu_hours == 8
    assert measures.utilisation_percent == 100
    assert measures.allocated_percent == 100


def test_elastic_gang_has_used_gpus_of_running_members() -> None:
    gang = replace(a_job(number=1), members=(Request(gpu_count=8),) * 4, min_members=2)
    measures = measured((gang, HOUR), nodes=3)
    assert measures.used_gpu_hours == 24
    assert measures.utilisation_percent == 100


@pytest.mark.parametrize("submit_ms", [0, 2 * HOUR], ids=["before the end", "after the end"])
def test_job_with_unsatisfiable_dependency_never_runs_and_is_counted(
    submit_ms: int,
) -> None:
    cut = a_job(number=1, max_runtime_ms=MINUTE)
    unmet = a_job(
        number=2, submit_ms=submit_ms, dependencies=after(DependencyKind.AFTER_OK, other=1)
    )
    met = a_job(
        number=3, submit_ms=submit_ms, dependencies=after(DependencyKind.AFTER_NOT_OK, other=1)
    )
    run = simulated((cut, HOUR), (unmet, HOUR), (met, HOUR))
    assert (len(run.outcomes), run.failed_jobs, run.never_ran_jobs) == (2, 1, 1)


def test_jobs_behind_such_job_are_counted_and_arrays_by_tasks() -> None:
    first = a_job(number=1)
    tasks = replace(
        an_array(number=2, tasks="0-4"), dependencies=after(DependencyKind.AFTER_NOT_OK, other=1)
    )
    last = a_job(number=3, dependencies=after(DependencyKind.AFTER_OK, other=2))
    run = simulated((first, HOUR), (tasks, HOUR), (last, HOUR))
    assert (len(run.outcomes), run.never_ran_jobs) == (1, 6)


def test_jobs_over_exhausted_gpu_hours_never_run_and_are_counted() -> None:
    poor = Tenant(id="vision", quota=Quota(gpu_milli_ms=3 * GPU_HOUR))
    jobs = [(a_job(number=n, max_runtime_ms=2 * HOUR), 2 * HOUR) for n in (1, 2, 3)]
    behind = a_job(
        number=4, max_runtime_ms=HOUR, dependencies=after(DependencyKind.AFTER_OK, other=3)
    )
    run = simulated(*jobs, (behind, HOUR), tenants=(poor,))
    assert (len(run.outcomes), run.never_ran_jobs) == (1, 3)


def test_free_gpus_are_no_fragments_while_no_waiting_job_could_use_them() -> None:
    later = a_job(number=2, begin_ms=10 * HOUR)
    without_gpu = [a_job(number=n, gpus=0, cpus=64) for n in (3, 4, 5)]
    measures = measured(
        (a_job(number=1), HOUR), (later, HOUR), *((job, HOUR) for job in without_gpu)
    )
    assert measures.wait.max_s > 0
    assert measures.fragmentation_percent == 0
