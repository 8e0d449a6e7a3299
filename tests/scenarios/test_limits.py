"""Quotas are never exceeded, and a rejection names the quota, the request and the usage."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.messages import Cancel, Submit, SubmitAll
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.forecast import forecast_start
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import CallerError, NeverFits, QueueFull, QuotaTooSmall
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.tenant import BudgetPeriod
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

QUIET = a_policy(name="fair", preemption=Preemption.NONE)
HALF_EACH = [
    PoolQuota(pool=Pool.ONLINE, percent=50, elastic=False),
    PoolQuota(pool=Pool.BATCH, percent=50, elastic=False),
]


def held_gpus(lab: Lab, tenant: str) -> float:
    jobs = {a.id: lab.row(a.job_id).job.tenant for a in lab.store.allocations()}
    return sum(a.gpu_milli for a in lab.store.allocations() if jobs[a.id] == tenant) / 1000


def reasons(lab: Lab) -> dict[str, str]:
    assert lab.last_plan is not None
    return {job_id: str(reason) for job_id, reason in lab.last_plan.job_reasons}


def test_request_over_whole_quota_is_rejected_with_quota_request_and_usage() -> None:
    lab = Lab(nodes=a_cluster(nodes=2), tenants=[a_tenant(id="vision", gpus=4)])
    lab.submit(a_job(number=1, gpus=2))
    with pytest.raises(QuotaTooSmall) as refusal:
        lab.submit(a_job(number=2, gpus=8))
    assert str(refusal.value) == (
        "quota exceeded for tenant vision: GPUs requested=8, quota=4, current=2"
    )
    assert refusal.value.code == "quota_exceeded"
    assert "j2" not in lab.core.state.jobs


def test_rejection_shows_large_numbers_in_full() -> None:
    lab = Lab(nodes=[a_node(memory_mb=4_000_000)], tenants=[a_tenant(memory_mb=1_234_567)])
    with pytest.raises(QuotaTooSmall, match=r"memory MiB requested=2345678, quota=1234567"):
        lab.submit(a_job(memory_mb=2_345_678))


def test_gpu_hour_rejection_counts_spent_hours() -> None:
    lab = Lab(nodes=[a_node()], tenants=[a_tenant(gpu_milli_ms=10 * 1000 * HOUR)])
    lab.submit(a_job(number=1, gpus=1, max_runtime_ms=4 * HOUR))
    lab.at(3 * HOUR)
    lab.ends("j1")
    with pytest.raises(
        QuotaTooSmall, match=r"GPU-hours requested=12, quota=10, current=3; .* a shorter --time"
    ):
        lab.submit(a_job(number=2, gpus=4, max_runtime_ms=3 * HOUR))


def test_job_over_current_quota_waits_with_reason() -> None:
    lab = Lab(nodes=a_cluster(nodes=2), tenants=[a_tenant(id="vision", gpus=4)])
    lab.submit(a_job(number=1, gpus=3), a_job(number=2, gpus=2))
    assert lab.running() == ["j1"]
    assert reasons(lab)["j2"] == (
        "quota exceeded for tenant vision: GPUs requested=2, quota=4, current=3"
    )
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_elastic_gang_does_not_grow_beyond_tenant_quota() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], tenants=[a_tenant(id="vision", gpus=3)])
    lab.submit(a_job(number=1, gpus=1, members=6, min_members=2))
    assert 2 <= held_gpus(lab, "vision") <= 3


@pytest.mark.parametrize(
    "policy", [pytest.param("easy", id="reserved"), pytest.param("fair", id="preempting")]
)
def test_elastic_gang_with_reservation_does_not_grow_beyond_quota(
    policy: str,
) -> None:
    tenants = [a_tenant(id="vision", gpus=3), a_tenant(id="nlp")]
    t4 = [a_node(ordinal=n, gpus=1, device={"model": "T4"}) for n in (1, 2)]
    lab = Lab(policy=a_policy(name=policy), nodes=[a_node(gpus=2), *t4], tenants=tenants)
    lab.submit(a_job(number=1, tenant="nlp", priority=250, gpus=2, gpu_models=("A100",)))
    lab.at(MINUTE)
    first, others = a_request(gpus=2, gpu_models=("A100",)), a_request(gpus=1, gpu_models=("T4",))
    lab.submit(replace(a_job(number=2), members=(first, others, others), min_members=1))
    lab.at(HOUR)
    lab.ends(*(name for name in ("j1",) if name in lab.running()))
    assert len(lab.allocation("j2").placements) == 2


def test_elastic_gang_does_not_grow_beyond_pool_quota() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], pools=HALF_EACH)
    lab.submit(a_job(number=1, gpus=1, members=6, min_members=2))
    assert 2 <= held_gpus(lab, "vision") <= 4


def test_gpu_memory_quota_counts_requested_memory() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], tenants=[a_tenant(gpu_memory_mb=100_000)])
    lab.submit(a_job(number=1, gpus=2), a_job(number=2, gpus=2, gpu_memory_mb=60_000))
    lab.submit(a_job(number=3, gpus=2, gpu_memory_mb=60_000))
    assert lab.running() == ["j1", "j2"], "what states nothing counts nothing"


@pytest.mark.parametrize(
    ("quota", "job", "resource"),
    [
        ({"gpu_memory_mb": 100_000}, {"gpu_memory_mb": 60_000}, "GPU memory MiB"),
        ({"cpu_milli": 15_000}, {"cpus": 8}, "CPU cores"),
        ({"memory_mb": 1500}, {"memory_mb": 1000}, "memory MiB"),
        ({"concurrent_jobs": 1}, {}, "concurrent jobs"),
        ({"gpu_milli_ms": 1500 * HOUR}, {"max_runtime_ms": HOUR}, "GPU-hours"),
        ({"gpus": 1.5}, {}, "GPUs"),
    ],
)
def test_every_quota_blocks_second_job(quota, job, resource) -> None:
    lab = Lab(nodes=[a_node()], tenants=[a_tenant(**quota)])
    lab.submit(a_job(number=1, **job), a_job(number=2, **job))
    assert lab.running() == ["j1"]
    assert f": {resource} requested=" in reasons(lab)["j2"]


def test_unused_gpu_hours_return_to_budget() -> None:
    lab = Lab(nodes=[a_node()], tenants=[a_tenant(gpu_milli_ms=1000 * 5 * HOUR)])
    lab.submit(
        a_job(number=1, max_runtime_ms=4 * HOUR),
        a_job(number=2, max_runtime_ms=4 * HOUR),
    )
    assert lab.running() == ["j1"]
    lab.at(HOUR)
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_tenant_over_quota_does_not_block_others() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], tenants=[a_tenant(id="vision", gpus=1)])
    lab.submit(*(a_job(number=n) for n in (1, 2, 3)), a_job(number=4, tenant="speech"))
    assert lab.running() == ["j1", "j4"]


def test_full_pool_does_not_block_other_pool_of_same_tenant() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], pools=HALF_EACH)
    lab.submit(
        a_job(number=1, gpus=2, pool=Pool.BATCH),
        a_job(number=2, gpus=2, pool=Pool.BATCH),
        a_job(number=3, gpus=2, pool=Pool.ONLINE),
    )
    assert lab.running() == ["j1", "j3"]


def test_strict_pool_is_enforced_with_reason() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], pools=HALF_EACH)
    lab.submit(a_job(number=1, gpus=3.5), a_job(number=2, gpus=1))
    assert reasons(lab)["j2"] == (
        "the batch pool may hold 4 GPUs and holds 3.50, so 1 more wait until jobs of the batch "
        "pool end"
    )


def test_request_over_strict_pool_is_rejected_at_submit() -> None:
    lab = Lab(nodes=[a_node(gpus=8)], pools=HALF_EACH)
    with pytest.raises(CallerError, match="the batch pool may hold 4 GPUs and holds 0, so 6 more"):
        lab.submit(a_job(number=1, gpus=6))


def test_elastic_pool_borrows_idle_capacity() -> None:
    pools = [PoolQuota(pool=Pool.ONLINE, percent=50), PoolQuota(pool=Pool.BATCH, percent=50)]
    lab = Lab(nodes=[a_node(gpus=8)], pools=pools)
    lab.submit(*(a_job(number=n, gpus=2) for n in range(1, 5)))
    assert len(lab.running()) == 4


def test_elastic_pool_reclaims_lent_capacity() -> None:
    pools = [PoolQuota(pool=Pool.ONLINE, percent=50), PoolQuota(pool=Pool.BATCH, percent=50)]
    lab = Lab(nodes=[a_node(gpus=8)], pools=pools, policy=a_policy(name="fair"))
    lab.submit(*(a_job(number=n, gpus=2, estimate_ms=9 * HOUR) for n in range(1, 5)))
    lab.at(HOUR)
    lab.submit(a_job(number=5, gpus=2, pool=Pool.ONLINE))
    assert "j5" in lab.running()
    assert len(lab.running()) == 4


def test_elastic_tenant_borrows_capacity_unused_by_other() -> None:
    tenants = [
        a_tenant(id="vision", gpus=4, elastic=True),
        a_tenant(id="speech", gpus=4, elastic=True),
    ]
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants)
    lab.submit(*(a_job(number=n) for n in range(1, 10)))
    assert held_gpus(lab, "vision") == 8


def test_lent_gpu_is_reclaimed_when_owner_needs_it() -> None:
    tenants = [
        a_tenant(id="vision", gpus=4, elastic=True),
        a_tenant(id="speech", gpus=4, elastic=True),
    ]
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants, policy=a_policy(name="fair"))
    lab.submit(*(a_job(number=n, estimate_ms=9 * HOUR) for n in range(1, 9)))
    lab.at(HOUR)
    lab.submit(*(a_job(number=n, tenant="speech") for n in range(9, 13)))
    assert (held_gpus(lab, "vision"), held_gpus(lab, "speech")) == (4, 4)


def test_reclaim_leaves_borrower_its_guarantee() -> None:
    """The quotas guarantee 8 of 6 GPUs; one GPU is lent, so one is reclaimed and not three."""
    tenants = [
        a_tenant(id="vision", gpus=4, elastic=True),
        a_tenant(id="speech", gpus=4, elastic=True),
    ]
    lab = Lab(nodes=[a_node(gpus=6)], tenants=tenants, policy=a_policy(name="fair"))
    lab.submit(*(a_job(number=n, estimate_ms=9 * HOUR) for n in range(1, 6)))
    assert held_gpus(lab, "vision") == 5
    lab.at(HOUR)
    lab.submit(a_job(number=6, tenant="speech", gpus=4))
    assert held_gpus(lab, "vision") >= 4


def test_already_stopping_job_is_not_reclaimed_twice() -> None:
    """Of 8 GPUs 4 are lent and being reclaimed: the other 4 are guaranteed to their holders."""
    tenants = [
        a_tenant(id="vision", gpus=4, elastic=True),
        a_tenant(id="speech", gpus=8, elastic=True),
    ]
    policy = a_policy(name="fair")
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants, policy=policy, obedient=False)
    lab.submit(*(a_job(number=n, gpus=4, estimate_ms=DAY) for n in (1, 2)))
    assert held_gpus(lab, "vision") == 8
    lab.at(HOUR)
    lab.submit(*(a_job(number=n, gpus=4, tenant="speech") for n in (3, 4)))
    assert len(lab.stopped()) == 1
    lab.at(HOUR + MINUTE)
    assert len(lab.stopped()) == 1


def test_cancelled_jobs_count_as_reclaimed() -> None:
    tenants = [
        a_tenant(id="vision", gpus=2, elastic=True),
        a_tenant(id="speech", gpus=8, elastic=True),
    ]
    policy = a_policy(name="fair")
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants, policy=policy, obedient=False)
    lab.submit(*(a_job(number=n, gpus=2, estimate_ms=DAY) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.do(*(Cancel(f"j{n}") for n in (1, 2, 3)))
    lab.submit(a_job(number=5, gpus=8, tenant="speech"))
    assert {why for _, why in lab.stopped()} == {"cancelled"}
    lab.ends("j1", "j2", "j3", exit_code=None, signal=15)
    assert lab.running() == ["j4"]


def test_job_that_cannot_borrow_does_not_block_one_that_can() -> None:
    tenants = [
        a_tenant(id="vision", gpus=2, elastic=True),
        a_tenant(id="speech", gpus=6, elastic=True),
    ]
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants)
    lab.submit(
        a_job(number=1, gpus=2),
        a_job(number=2, gpus=2, preemptible=False),
        a_job(number=3, gpus=2),
    )
    assert lab.running() == ["j1", "j3"]


def test_job_over_quota_that_may_never_borrow_is_rejected_at_submit() -> None:
    tenants = [
        a_tenant(id="vision", gpus=2, elastic=True),
        a_tenant(id="speech", gpus=6, elastic=True),
    ]
    lab = Lab(nodes=[a_node(gpus=8)], tenants=tenants)
    with pytest.raises(QuotaTooSmall):
        lab.submit(a_job(number=1, gpus=4, preemptible=False))


def test_job_that_fits_no_known_node_is_rejected_at_submit() -> None:
    lab = Lab(nodes=[a_node(gpus=8, cpus=16)])
    with pytest.raises(NeverFits, match=r"no node offers 1 GPU \(H100\); the largest node has 8"):
        lab.submit(a_job(number=1, gpu_models=("H100",)))
    with pytest.raises(NeverFits, match="64 CPU cores"):
        lab.submit(a_job(number=1, cpus=64))
    with pytest.raises(NeverFits, match="no node offers 1 GPU with index 8 or 9; the largest"):
        lab.submit(a_job(number=1, device_ids=(8, 9)))
    with pytest.raises(NeverFits, match="no node offers a place, labels zone=a"):
        lab.submit(a_job(number=1, gpus=0, node_labels=(("zone", "a"),)))
    assert lab.core.state.queued_tasks == 0


def test_labels_found_only_on_too_small_node_are_rejected_at_submit() -> None:
    small = a_node(ordinal=0, gpus=2, labels=(("zone", "a"),))
    lab = Lab(nodes=[small, a_node(ordinal=1, gpus=8)])
    with pytest.raises(NeverFits):
        lab.submit(a_job(number=1, gpus=8, node_labels=(("zone", "a"),)))


def test_full_queue_rejects_with_remaining_capacity() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], limits=CoreLimits(max_queued_tasks=5))
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3))
    with pytest.raises(QueueFull, match="4 tasks were submitted and the queue has room for 3 of 5"):
        lab.submit(an_array(number=4, tasks="1-4"))
    lab.submit(an_array(number=4, tasks="1-3"))
    with pytest.raises(QueueFull, match="1 task was submitted and the queue has room for 0 of 5"):
        lab.submit(a_job(number=5))


def test_forecast_includes_array_concurrency_limit() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(an_array(number=1, tasks="0-3", at_once=1, estimate_ms=2 * HOUR))
    assert forecast_start(lab.core.state.cluster, 0, 1) == 2 * HOUR


def test_forecast_and_dry_run_change_no_usage() -> None:
    budget = replace(a_tenant(gpu_milli_ms=100_000 * HOUR), budget_period=BudgetPeriod.MONTH)
    lab = Lab(nodes=[a_node(gpus=1)], tenants=[budget])
    long = {"max_runtime_ms": 90 * HOUR, "estimate_ms": 90 * HOUR}
    lab.submit(a_job(number=1, **long))
    lab.at(89 * HOUR)
    lab.ends("j1")
    lab.at(40 * DAY)
    short = {"max_runtime_ms": 20 * HOUR, "estimate_ms": 5 * HOUR}
    lab.submit(a_job(number=2, **short), a_job(number=3, **short))
    cluster = lab.core.state.cluster
    before = dict(cluster.tenant_usage)
    expected = forecast_start(cluster, lab.now_ms, 3)
    assert expected is not None
    lab.tell(SubmitAll((Submit(a_job(number=9, id="", **short)),), dry_run=True))
    assert cluster.tenant_usage == before
    assert forecast_start(cluster, lab.now_ms, 3) == expected
