"""Queue order and backfill."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.forecast import forecast_start
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.presets import PRESETS
from gpu_scheduler.model.tenant import Tier
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    a_cluster,
    a_job,
    a_node,
    a_policy,
    a_request,
    a_tenant,
    an_array,
)
from tests.scenarios.lab import Lab


def test_cpu_jobs_pass_waiting_gpu_jobs_under_blocking_fifo() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="fifo"))
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3), a_job(number=4, gpus=0, cpus=8))
    assert lab.running() == ["j1", "j4"]


@pytest.mark.parametrize("name", list(PRESETS))
def test_cpu_jobs_pass_waiting_gpu_jobs_under_every_policy(name: str) -> None:
    lab = Lab(nodes=[a_node(gpus=8)], policy=a_policy(name=name))
    lab.submit(
        a_job(number=1, gpus=8, cpus=8),
        *(a_job(number=n, gpus=n % 8 + 1, cpus=n % 4, user=f"u{n % 3}") for n in range(2, 20)),
        a_job(number=20, gpus=0, cpus=8, estimate_ms=DAY),
    )
    running = lab.running()
    assert len(running) < 12
    assert "j20" in running


def test_cpu_jobs_pass_waiting_gpu_jobs_under_reservations() -> None:
    lab = Lab(nodes=[a_node(gpus=1, cpus=64)], policy=a_policy(name="easy"))
    lab.submit(
        a_job(number=1, cpus=8, estimate_ms=HOUR),
        a_job(number=2, cpus=8, estimate_ms=HOUR),
        a_job(number=3, gpus=0, cpus=48, estimate_ms=DAY),
    )
    assert lab.running() == ["j1", "j3"]


def test_cpu_jobs_do_not_take_cpu_needed_by_reservation() -> None:
    lab = Lab(nodes=[a_node(gpus=1, cpus=64)], policy=a_policy(name="easy"))
    lab.submit(
        a_job(number=1, cpus=8, estimate_ms=HOUR),
        a_job(number=2, cpus=32, estimate_ms=HOUR),
        a_job(number=3, gpus=0, cpus=48, estimate_ms=DAY),
        a_job(number=4, gpus=0, cpus=48, estimate_ms=HOUR),
    )
    assert lab.running() == ["j1", "j4"]


def test_gpu_jobs_do_not_pass_a_blocked_gpu_job_under_blocking_fifo() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="fifo"))
    lab.submit(a_job(number=1, gpus=3), a_job(number=2, gpus=2), a_job(number=3, gpus=1))
    assert lab.running() == ["j1"]


def test_short_job_backfills_before_reservation_and_long_one_does_not() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="easy"))
    lab.submit(
        a_job(number=1, gpus=3, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=4, estimate_ms=HOUR),
        a_job(number=3, gpus=1, estimate_ms=3 * HOUR),
        a_job(number=4, gpus=1, estimate_ms=2 * HOUR),
    )
    assert lab.running() == ["j1", "j4"]
    lab.at(2 * HOUR)
    lab.ends("j1", "j4")
    assert lab.running() == ["j2"]


def test_all_fitting_array_tasks_start_when_reservation_is_due() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="easy"))
    lab.submit(a_job(number=1, gpus=4), an_array(number=2, tasks="0-9", gpus=1))
    assert lab.running() == ["j1"]
    lab.now_ms = HOUR
    lab.ends("j1")
    assert lab.running() == ["j2_0", "j2_1", "j2_2", "j2_3"]


def test_gang_members_together_do_not_delay_reservation() -> None:
    """Each member of j3 (2 GPUs and 1 GPU) would leave room for j2; both together would not."""
    lab = Lab(nodes=[a_node(gpus=8)], policy=a_policy(name="easy"))
    parts = (a_request(gpus=2), a_request(gpus=1))
    lab.submit(
        a_job(number=1, gpus=5, estimate_ms=HOUR),
        a_job(number=2, gpus=6, estimate_ms=HOUR),
        replace(a_job(number=3, estimate_ms=DAY), members=parts, min_members=2),
    )
    assert lab.running() == ["j1"]
    lab.at(HOUR)
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_aging_lifts_low_priority_job_past_high_one() -> None:
    policy = a_policy(name="easy", class_point_ms=MINUTE, reservations=0)
    low = a_job(number=1, gpus=4, priority=250)
    behind = 1250 * MINUTE

    def first_after(wait_ms: int) -> list[str]:
        lab = Lab(nodes=[a_node(gpus=4)], policy=policy)
        lab.submit(a_job(number=9, id="busy", gpus=4), low)
        lab.at(wait_ms)
        lab.submit(a_job(number=2, gpus=4, priority=1500))
        lab.ends("busy")
        return lab.running()

    assert first_after(behind - MINUTE) == ["j2"]
    assert first_after(behind + MINUTE) == ["j1"]


def test_tenant_tier_weighs_as_much_as_job_priority() -> None:
    lab = Lab(
        nodes=[a_node(gpus=1)],
        policy=a_policy(name="easy", class_point_ms=MINUTE),
        tenants=[a_tenant(id="high", tier=Tier.HIGH), a_tenant(id="low", tier=Tier.LOW)],
    )
    lab.submit(a_job(number=9, id="busy"))
    lab.submit(a_job(number=1, tenant="low", priority=2500))
    lab.submit(a_job(number=2, tenant="high", priority=750))
    lab.ends("busy")
    assert lab.running() == ["j2"]


@pytest.mark.parametrize(
    ("one", "other"),
    [({"tenant": "vision"}, {"tenant": "speech"}), ({"user": "ada"}, {"user": "bob"})],
    ids=["tenant", "user of one tenant"],
)
def test_tenant_with_less_usage_goes_first(one: dict[str, str], other: dict[str, str]) -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="fair", preemption=Preemption.NONE))
    lab.submit(a_job(number=1, **one))
    lab.at(HOUR)
    lab.submit(a_job(number=2, **one), a_job(number=3, **other))
    lab.ends("j1")
    assert lab.running() == ["j3"]


def test_two_tenants_without_history_share_first_cycle() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], policy=a_policy(name="fair", preemption=Preemption.NONE))
    lab.submit(
        *(a_job(number=n, tenant="vision") for n in range(1, 9)),
        *(a_job(number=n, tenant="speech") for n in range(9, 17)),
    )
    tenants = [lab.row(name).job.tenant for name in lab.running()]
    assert (tenants.count("vision"), tenants.count("speech")) == (4, 4)


def test_tenant_with_double_weight_gets_double_share_over_time() -> None:
    lab = Lab(
        nodes=[a_node(gpus=1)],
        policy=a_policy(name="fair", preemption=Preemption.NONE, user_fair_ms=0),
        tenants=[a_tenant(id="big", weight_milli=2000), a_tenant(id="small")],
    )
    jobs = [a_job(number=n, tenant="big" if n % 2 else "small") for n in range(1, 121)]
    lab.submit(*jobs)
    for hour in range(1, 61):
        lab.at(hour * HOUR)
        lab.ends(*lab.running())
    tenants = [lab.row(name).job.tenant for name in lab.ever_started()[:60]]
    assert 37 <= tenants.count("big") <= 43


def test_close_deadline_lets_job_pass_and_distant_one_does_not() -> None:
    def first(deadline_ms: int) -> list[str]:
        lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="easy", deadline_ms=DAY))
        lab.submit(a_job(number=9, id="busy"))
        lab.submit(a_job(number=1), a_job(number=2, deadline_ms=deadline_ms))
        lab.ends("busy")
        return lab.running()

    assert first(deadline_ms=3 * HOUR) == ["j2"]
    assert first(deadline_ms=7 * DAY) == ["j1"]


def test_forecast_gives_start_time_of_waiting_job() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], policy=a_policy(name="easy"))
    lab.submit(
        a_job(number=1, gpus=4, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=4, estimate_ms=3 * HOUR),
        a_job(number=3, gpus=4),
    )
    cluster = lab.core.state.cluster
    assert forecast_start(cluster, 0, 2) == 2 * HOUR
    assert forecast_start(cluster, 0, 3) == 5 * HOUR


def test_small_job_is_not_starved_by_jobs_that_cannot_start() -> None:
    """The budget of a cycle counts examined jobs; the next cycle continues where it ended."""
    lab = Lab(nodes=[a_node(gpus=4, cpus=64)], policy=a_policy(name="easy", max_examined=4))
    lab.submit(
        a_job(number=1, gpus=3, estimate_ms=HOUR),
        a_job(number=2, gpus=4, estimate_ms=HOUR),
        *(a_job(number=n, gpus=1, estimate_ms=DAY) for n in range(3, 13)),
        a_job(number=13, gpus=0, cpus=1),
    )
    assert "j13" in lab.running()


@pytest.mark.parametrize("policy", ["easy", "skip"])
def test_job_comes_up_although_shape_of_last_examined_job_was_dropped(policy: str) -> None:
    """In the third cycle no GPU is free, so the shape of job 6 is dropped, where it resumes."""
    lab = Lab(nodes=[a_node(gpus=4, cpus=64)], policy=a_policy(name=policy, max_examined=4))
    lab.submit(
        a_job(number=1, gpus=2, cpus=8, estimate_ms=2 * HOUR),
        a_job(number=2, gpus=0, cpus=60),
        a_job(number=3, gpus=0, cpus=61),
        a_job(number=4, gpus=4),
        a_job(number=5, gpus=2, estimate_ms=HOUR),
        a_job(number=6, gpus=3),
        a_job(number=7, gpus=0, cpus=1, estimate_ms=HOUR),
    )
    assert lab.running() == ["j1", "j5", "j7"]


@pytest.mark.parametrize("policy", ["easy", "fair", "feedback", "skip"])
def test_array_larger_than_budget_of_cycle_starts_all_tasks_that_fit(policy: str) -> None:
    lab = Lab(nodes=[a_node(gpus=8, cpus=64)], policy=a_policy(name=policy, max_examined=3))
    lab.submit(
        a_job(number=1, gpus=2),
        a_job(number=2, gpus=8),
        an_array(number=3, tasks="0-9", gpus=0, cpus=1),
        a_job(number=4, gpus=0, cpus=2),
    )
    assert len(lab.running()) == 12


@pytest.mark.parametrize("policy", ["easy", "fair"])
def test_reservation_holds_in_cycles_that_skip_its_job(policy: str) -> None:
    """Each cycle examines one job, and goes on behind the job that has the reservation."""
    lab = Lab(nodes=[a_node(gpus=8)], policy=a_policy(name=policy, max_examined=1))
    lab.submit(a_job(number=1, gpus=8, estimate_ms=HOUR))
    lab.submit(*(a_job(number=n, gpus=n, estimate_ms=HOUR) for n in range(3, 7)))
    reserved = lab.core.state.cluster.reservations
    assert [(one.job_id, one.at_ms) for one in reserved.values()] == [("j3", HOUR)]


def test_started_job_counts_in_the_fair_shares_of_later_cycles() -> None:
    """Otherwise one account starts job after job before its use shows."""
    lab = Lab(nodes=[a_node(gpus=2)], policy=a_policy(name="fair"))
    lab.submit(a_job(number=1, user="ann", estimate_ms=HOUR), a_job(number=2, user="cid"))
    lab.submit(a_job(number=3, user="ann"), a_job(number=4, user="bob"))
    lab.ends("j2")
    assert lab.running() == ["j1", "j4"]


def test_least_used_rack_is_kept_whole_for_large_jobs() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=4))
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3, gpus=4))
    assert lab.nodes_of("j3") == ["n1"]
