"""Rough start estimates from the work ahead."""

from contextlib import suppress

from gpu_scheduler.engine.forecast import SAMPLED, Foresight, forecast, foresee, rough_start_ms
from gpu_scheduler.model.tenant import Quota, Tenant
from tests.builders import a_job, a_node, a_policy, a_state, a_tenant, an_array, on, running

H = 3_600_000


def test_work_ahead_is_divided_by_all_gpus() -> None:
    jobs = [a_job(number=n, gpus=4, submit_ms=n) for n in range(1, 9)]
    state = a_state(policy=a_policy(), nodes=[a_node(gpus=8)], queue=jobs)
    assert rough_start_ms(state, 1, 0) == 1
    assert rough_start_ms(state, 8, 0) == 7 * 4 * H // 8
    assert rough_start_ms(state, 99, 0) is None


def test_running_jobs_count_with_remaining_time() -> None:
    held = running(a_job(number=1, gpus=8), on("n0", range(8)), end_ms=2 * H)
    state = a_state(nodes=[a_node(gpus=8)], held=[held], queue=[a_job(number=2)])
    assert rough_start_ms(state, 2, H) == 2 * H


def test_tenant_and_user_caps_bound_parallelism() -> None:
    jobs = [a_job(number=n, gpus=1, submit_ms=n) for n in range(1, 9)]
    jobs.append(a_job(number=9, gpus=8, tenant="nlp", submit_ms=0))
    nodes = [a_node(gpus=8), a_node(ordinal=1)]

    def rough(tenant: Tenant) -> int | None:
        return rough_start_ms(a_state(nodes=nodes, queue=jobs, tenants=[tenant]), 8, 0)

    by_cluster = (8 + 7) * H // 16
    assert rough(a_tenant()) == by_cluster
    assert rough(a_tenant(gpus=2)) == 7 * H // 2
    assert rough(a_tenant(gpus=2, user_quota=Quota(gpu_milli=1_000))) == 7 * H
    assert rough(a_tenant(gpus=2, elastic=True)) == by_cluster, "it may be lent more"


def test_array_counts_with_all_tasks() -> None:
    jobs = [an_array(number=1, tasks="0-15", gpus=1), a_job(number=2, submit_ms=1, cpus=1)]
    state = a_state(nodes=[a_node(gpus=8)], queue=jobs)
    assert rough_start_ms(state, 2, 0) == 2 * H


def test_long_queue_is_sampled_and_estimate_stays_close() -> None:
    count = 40 * SAMPLED
    jobs = [a_job(number=n, gpus=1, submit_ms=n) for n in range(1, count + 1)]
    state = a_state(nodes=[a_node(gpus=8)], queue=jobs)
    rough = rough_start_ms(state, count, 0)
    assert rough is not None
    assert abs(rough - (count - 1) * H // 8) < 0.05 * rough


def test_interrupted_forecast_keeps_partial_results() -> None:
    jobs = [a_job(number=n, gpus=8, submit_ms=n) for n in range(1, 9)]
    state = a_state(nodes=[a_node(gpus=8)], queue=jobs)
    asked = 0

    def until_the_third(job: object, ran_ms: int) -> int:
        nonlocal asked
        asked += 1
        if asked > 3:
            raise TimeoutError
        return H

    found = Foresight()
    with suppress(TimeoutError):
        foresee(state, 0, found, run_ms_of=until_the_third)
    assert found.starts == {1: 0, 2: H, 3: 2 * H, 4: 3 * H}
    assert forecast(state, 0)[1] == 0
