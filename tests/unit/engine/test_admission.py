"""Quotas of tenants and pools, and borrowing between them."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.quota.admission import (
    Admission,
    Amounts,
    Holdings,
    job_amounts,
    never_admitted,
    pool_guarantees,
)
from gpu_scheduler.engine.quota.tree import TreeLimits
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.tenant import Tenant
from tests.builders import (
    HOUR,
    a_cluster,
    a_job,
    a_node,
    a_state,
    a_tenant,
    on,
    running,
)


def an_admission(
    *tenants: Tenant,
    held: dict[str, float] | None = None,
    pools: tuple[PoolQuota, ...] = (),
    held_by_pool: dict[Pool, float] | None = None,
    total: float = 16,
    **changes,
) -> Admission:
    holdings = Holdings()
    for tenant, gpus in (held or {}).items():
        holdings.tenants.setdefault(tenant, Amounts()).add(Amounts(gpu_milli=round(gpus * 1000)))
    holdings.pools = {pool: round(g * 1000) for pool, g in (held_by_pool or {}).items()}
    total_milli = round(total * 1000)
    by_pool = {pool.pool: pool for pool in pools}
    limits = TreeLimits(
        tenants={tenant.id: tenant for tenant in tenants},
        pools=by_pool,
        pool_guarantees=pool_guarantees(by_pool, total_milli=total_milli, usable_milli=total_milli),
    )
    return Admission(**({"limits": limits, "holdings": holdings, "tenant_usage": {}} | changes))


def refusal(admission: Admission, job: Job) -> Reason | None:
    return admission.refusal(job, job_amounts(job, job.max_runtime_ms or HOUR))


def elastic(tenant_id: str, gpus: float) -> Tenant:
    return a_tenant(id=tenant_id, gpus=gpus, elastic=True)


# --- strict quotas


def test_undeclared_tenant_has_no_limits() -> None:
    assert refusal(an_admission(), a_job(gpus=999)) is None


@pytest.mark.parametrize(
    ("quota", "job", "said"),
    [
        ({"gpus": 4}, {"gpus": 8}, "GPUs requested=8, quota=4, current=0"),
        ({"gpus": 0.5}, {"gpus": 0.75}, "GPUs requested=0.75, quota=0.50, current=0"),
        ({"cpu_milli": 4000}, {"cpus": 8}, "CPU cores requested=8, quota=4, current=0"),
        ({"memory_mb": 10}, {"memory_mb": 20}, "memory MiB requested=20, quota=10, current=0"),
        (
            {"gpu_memory_mb": 1000},
            {"gpus": 1, "gpu_memory_mb": 2000},
            "GPU memory MiB requested=2000, quota=1000, current=0",
        ),
        ({"concurrent_jobs": 0}, {}, "concurrent jobs requested=1, quota=0, current=0"),
        (
            {"gpu_milli_ms": 1000 * HOUR},
            {"gpus": 2, "max_runtime_ms": HOUR},
            "GPU-hours requested=2, quota=1, current=0",
        ),
    ],
)
def test_each_quota_rejects_with_its_numbers(quota, job, said) -> None:
    reason = refusal(an_admission(a_tenant(**quota)), a_job(**job))
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA
    assert str(reason) == f"quota exceeded for tenant vision: {said}"


def test_quota_can_be_used_up_exactly() -> None:
    admission = an_admission(a_tenant(gpus=4), held={"vision": 3.5})
    assert refusal(admission, a_job(gpus=0.5)) is None
    assert refusal(admission, a_job(gpus=0.51)) is not None


def test_cpu_job_is_not_limited_by_gpu_quota() -> None:
    admission = an_admission(a_tenant(gpus=1), held={"vision": 1})
    assert refusal(admission, a_job(gpus=0, cpus=4)) is None


def test_gpu_hours_count_spent_and_still_possible_usage() -> None:
    admission = an_admission(
        a_tenant(gpu_milli_ms=10 * 1000 * HOUR),
        tenant_usage={"vision": AccountUsage(spent_gpu_milli_ms=6 * 1000 * HOUR)},
    )
    admission.holdings.tenants.setdefault("vision", Amounts()).add(
        Amounts(gpu_milli_ms=3 * 1000 * HOUR)
    )
    assert refusal(admission, a_job(max_runtime_ms=HOUR)) is None
    reason = refusal(admission, a_job(max_runtime_ms=2 * HOUR))
    assert str(reason).endswith("GPU-hours requested=2, quota=10, current=9")


# --- elastic quotas


def test_strict_tenant_does_not_borrow() -> None:
    admission = an_admission(a_tenant(id="vision", gpus=4), elastic("speech", 4))
    assert refusal(admission, a_job(gpus=5)) is not None


def test_elastic_tenant_borrows_only_idle_capacity_of_others() -> None:
    admission = an_admission(elastic("vision", 4), elastic("speech", 4), held={"vision": 4})
    assert refusal(admission, a_job(gpus=4)) is None
    assert refusal(admission, a_job(gpus=5)) is not None


def test_capacity_recently_used_by_owner_is_not_lent() -> None:
    admission = an_admission(
        elastic("vision", 4),
        elastic("speech", 4),
        held={"vision": 4, "speech": 1},
        tenant_usage={"speech": AccountUsage(recent_gpu_milli=3000)},
    )
    assert refusal(admission, a_job(gpus=1)) is None
    assert refusal(admission, a_job(gpus=2)) is not None


def test_owner_with_waiting_jobs_lends_nothing() -> None:
    admission = an_admission(
        elastic("vision", 4),
        elastic("speech", 4),
        held={"vision": 4},
        waiting={("speech", "", Pool.BATCH): 1000},
    )
    assert refusal(admission, a_job(gpus=1)) is not None
    assert refusal(admission, a_job(tenant="speech", gpus=4)) is None


def test_capacity_already_borrowed_cannot_be_borrowed_again() -> None:
    tenants = (elastic("vision", 4), elastic("speech", 4), elastic("robots", 4))
    admission = an_admission(*tenants, held={"vision": 4, "robots": 7})
    assert refusal(admission, a_job(gpus=1)) is None
    assert refusal(admission, a_job(gpus=2)) is not None


def test_borrowing_job_must_be_preemptible() -> None:
    admission = an_admission(elastic("vision", 4), elastic("speech", 4), held={"vision": 4})
    assert refusal(admission, a_job(gpus=1, preemptible=False)) is not None


def test_strict_quotas_and_tenants_without_quota_lend_nothing() -> None:
    strict = a_tenant(id="speech", gpus=4)
    admission = an_admission(elastic("vision", 4), strict, a_tenant(id="free"), held={"vision": 4})
    assert refusal(admission, a_job(gpus=1)) is not None


def test_borrowing_and_guarantee_are_distinguished() -> None:
    admission = an_admission(
        elastic("vision", 4), a_tenant(id="strict", gpus=1), held={"vision": 5}
    )
    tree = admission.tree
    assert tree.accounts["*"].at("vision").borrowed == 1000
    assert tree.leaf("strict", "ann") is None
    assert tree.leaf("nobody", "ann") is None
    admission.add(a_job(), Amounts(gpu_milli=2000), -1)
    assert not tree.accounts["*"].at("vision").borrowed
    inside, outside = (a_job(gpus=gpus) for gpus in (1, 2))
    assert tree.right(inside, job_amounts(inside, HOUR))
    assert not tree.right(outside, job_amounts(outside, HOUR))
    assert not tree.right(a_job(tenant="strict"), job_amounts(inside, HOUR))


def test_tenant_whose_jobs_are_never_preempted_does_not_borrow() -> None:
    speech = elastic("speech", 4)
    vision = elastic("vision", 4)
    assert refusal(an_admission(speech, vision, held={"vision": 4}), a_job(gpus=1)) is None
    firm = replace(vision, allow_preemption=False)
    assert refusal(an_admission(speech, firm, held={"vision": 4}), a_job(gpus=1)) is not None
    assert refusal(an_admission(speech, firm, held={"vision": 3}), a_job(gpus=1)) is None


# --- pools


def pools(*, online: int, batch: int, elastic: bool) -> tuple[PoolQuota, ...]:
    return (
        PoolQuota(pool=Pool.ONLINE, percent=online, elastic=elastic),
        PoolQuota(pool=Pool.BATCH, percent=batch, elastic=elastic),
    )


def test_strict_pool_holds_its_percentage_of_all_gpus() -> None:
    admission = an_admission(pools=pools(online=25, batch=75, elastic=False))
    assert refusal(admission, a_job(gpus=12)) is None
    reason = refusal(admission, a_job(gpus=13))
    assert str(reason) == "the batch pool may hold 12 GPUs and holds 0, so 13 more do not fit"
    assert refusal(admission, a_job(gpus=5, pool=Pool.ONLINE)) is not None


def test_elastic_pool_holds_idle_capacity_of_other() -> None:
    admission = an_admission(
        pools=pools(online=25, batch=75, elastic=True), held_by_pool={Pool.ONLINE: 1}
    )
    assert refusal(admission, a_job(gpus=15)) is None
    assert refusal(admission, a_job(gpus=16)) is not None
    assert refusal(admission, a_job(gpus=15, preemptible=False)) is not None


def test_reason_of_an_elastic_pool_says_what_it_is_guaranteed_and_what_would_free_gpus() -> None:
    admission = an_admission(
        pools=pools(online=25, batch=75, elastic=True),
        held_by_pool={Pool.ONLINE: 3, Pool.BATCH: 12},
    )
    assert str(refusal(admission, a_job(gpus=2))) == (
        "the batch pool is guaranteed 12 GPUs and holds 12, so 2 more wait until jobs of the "
        "batch pool end, or the other pool has idle GPUs to lend"
    )
    assert str(refusal(admission, a_job(gpus=2, preemptible=False))) == (
        "the batch pool is guaranteed 12 GPUs and holds 12, so 2 more wait until jobs of the "
        "batch pool end: a job that cannot be preempted does not borrow"
    )
    firm = a_job(gpus=13, preemptible=False)
    assert str(admission.never_admitted(firm, job_amounts(firm, HOUR))) == (
        "the batch pool is guaranteed 12 GPUs and holds 12, so 13 more do not fit: a job that "
        "cannot be preempted does not borrow"
    )


def test_pool_without_quota_and_cpu_jobs_are_unlimited() -> None:
    only_online = pools(online=25, batch=75, elastic=False)[:1]
    assert refusal(an_admission(pools=only_online), a_job(gpus=16)) is None
    none_left = pools(online=100, batch=0, elastic=False)
    assert refusal(an_admission(pools=none_left), a_job(gpus=0, cpus=1)) is None


def test_strict_pool_lends_nothing() -> None:
    online, batch = pools(online=25, batch=75, elastic=True)
    strict = PoolQuota(pool=Pool.ONLINE, percent=online.percent, elastic=False)
    assert refusal(an_admission(pools=(strict, batch)), a_job(gpus=13)) is not None


def test_full_pool_reason_shows_fractional_gpus() -> None:
    admission = an_admission(
        pools=pools(online=50, batch=50, elastic=False), held_by_pool={Pool.BATCH: 6.5}, total=15
    )
    reason = refusal(admission, a_job(gpus=1.5))
    assert str(reason) == (
        "the batch pool may hold 7.50 GPUs and holds 6.50, so 1.50 more wait until jobs of the "
        "batch pool end"
    )


# --- reclaiming


def test_reclaimable_is_what_is_held_beyond_quota() -> None:
    admission = an_admission(
        elastic("vision", 4), a_tenant(id="strict", gpus=1), held={"vision": 5.5, "strict": 1}
    )
    assert admission.tree.accounts["*"].at("vision").borrowed == 1500


def test_pool_borrows_what_it_holds_beyond_guarantee() -> None:
    held = {Pool.BATCH: 10, Pool.ONLINE: 2}
    admission = an_admission(pools=pools(online=50, batch=50, elastic=True), held_by_pool=held)
    assert admission.tree.pools.at(Pool.BATCH).borrowed == 2000
    assert not admission.tree.pools.at(Pool.ONLINE).borrowed
    strict = an_admission(pools=pools(online=50, batch=50, elastic=False), held_by_pool=held)
    assert admission.tree.lends(Pool.BATCH)
    assert not strict.tree.lends(Pool.BATCH)


def test_pool_may_reclaim_up_to_its_guarantee() -> None:
    admission = an_admission(
        pools=pools(online=50, batch=50, elastic=True),
        held_by_pool={Pool.BATCH: 10, Pool.ONLINE: 2},
    )
    inside, outside = (a_job(gpus=gpus, pool=Pool.ONLINE) for gpus in (6, 7))
    batch = a_job(gpus=1)

    def may_reclaim(admission: Admission, job: Job) -> bool:
        return admission.tree.pool_right(job, job_amounts(job, HOUR)) is not None

    assert may_reclaim(admission, inside)
    assert not may_reclaim(admission, outside)
    assert not may_reclaim(admission, batch)
    strict = an_admission(pools=pools(online=50, batch=50, elastic=False))
    assert not may_reclaim(strict, inside)
    assert not may_reclaim(an_admission(), inside)


# --- elastic gangs


@pytest.mark.parametrize(
    ("held", "least", "most"), [(0, 2, 8), (3, 2, 7), (8, 2, 2), (9, 2, 0), (9, 1, 1), (4, 8, 0)]
)
def test_elastic_gang_members_are_bounded_by_quota(held, least, most) -> None:
    admission = an_admission(a_tenant(gpus=10), held={"vision": held})
    gang = a_job(gpus=1, members=8, min_members=least)
    assert admission.most_members(gang, HOUR) == most


def test_elastic_gang_members_are_bounded_by_pool_and_gpu_memory() -> None:
    gang = a_job(gpus=1, members=8, min_members=1)
    half = an_admission(pools=pools(online=50, batch=50, elastic=False), total=10)
    assert half.most_members(gang, HOUR) == 5
    memory = an_admission(a_tenant(gpu_memory_mb=250_000))
    greedy = a_job(gpus=1, members=8, min_members=1, gpu_memory_mb=80_000)
    assert memory.most_members(greedy, HOUR) == 3


@pytest.mark.parametrize(("held", "members"), [(0, 4), (1.5, 2), (4, 0), (5, 0)])
def test_members_within_online_guarantee_are_counted(held: float, members: int) -> None:
    gang = a_job(gpus=1, members=8, min_members=2, pool=Pool.ONLINE)
    admission = an_admission(
        pools=pools(online=25, batch=75, elastic=True), held_by_pool={Pool.ONLINE: held}, total=16
    )
    assert admission.members_within_guarantee(gang) == members
    assert admission.members_within_guarantee(replace(gang, pool=Pool.BATCH)) == 0


def test_plain_job_has_one_member_or_none() -> None:
    admission = an_admission(a_tenant(gpus=1))
    assert admission.most_members(a_job(gpus=1), HOUR) == 1
    assert admission.most_members(a_job(gpus=2), HOUR) == 0


# --- requests that are never admitted


@pytest.mark.parametrize(
    ("tenant", "job", "never"),
    [
        (a_tenant(gpus=4), {"gpus": 4}, False),
        (a_tenant(gpus=4), {"gpus": 5}, True),
        (elastic("vision", 4), {"gpus": 12}, False),
        (elastic("vision", 4), {"gpus": 13}, True),
        (elastic("vision", 4), {"gpus": 4, "preemptible": False}, False),
        (elastic("vision", 4), {"gpus": 5, "preemptible": False}, True),
        (elastic("vision", 4), {"gpus": 2, "members": 3, "min_members": 2}, False),
        (a_tenant(cpu_milli=1000), {"cpus": 2}, True),
        (a_tenant(gpu_memory_mb=79_999), {"gpu_memory_mb": 80_000}, True),
        (a_tenant(gpu_memory_mb=80_000), {"gpu_memory_mb": 80_000}, False),
    ],
)
def test_job_that_no_ending_job_makes_room_for_is_never_admitted(tenant, job, never) -> None:
    held = [running(a_job(number=9, gpus=2), on("n0", [0, 1]))]
    state = a_state(nodes=a_cluster(nodes=2), tenants=[tenant, elastic("speech", 8)], held=held)
    assert (never_admitted(state, a_job(**job)) is not None) == never


def test_never_admitted_reason_names_what_is_held() -> None:
    held = [running(a_job(number=9, gpus=2), on("n0", [0, 1]))]
    state = a_state(nodes=[a_node()], tenants=[elastic("vision", 4)], held=held)
    assert str(never_admitted(state, a_job(gpus=5, preemptible=False))) == (
        "quota exceeded for tenant vision: GPUs requested=5, quota=4, current=2"
    )


@pytest.mark.parametrize(
    ("elastic_pools", "job", "never"),
    [
        (False, {"gpus": 4}, False),
        (False, {"gpus": 5}, True),
        (True, {"gpus": 8}, False),
        (True, {"gpus": 5, "preemptible": False}, True),
    ],
)
def test_request_over_pool_maximum_is_never_admitted(elastic_pools, job, never) -> None:
    halves = pools(online=50, batch=50, elastic=elastic_pools)
    reason = never_admitted(a_state(nodes=[a_node()], pools=halves), a_job(**job))
    assert (reason is not None) == never
    assert reason is None or reason.code is ReasonCode.POOL
    assert never_admitted(a_state(pools=halves), a_job(**job)) is None, "no node is known yet"


# --- amounts


def test_mig_slice_counts_with_memory_of_profile() -> None:
    amounts = job_amounts(a_job(gpus=2, mig_profile="1g.10gb"), HOUR)
    assert (amounts.gpu_milli, amounts.gpu_memory_mb) == (284, 20_480)


@pytest.mark.parametrize(
    ("fields", "memory_mb"),
    [
        ({"gpus": 2}, 0),
        ({"gpus": 2, "gpu_memory_mb": 60_000}, 60_000),
        ({"gpus": 1.5, "gpu_memory_mb_per_gpu": 100}, 200),
        ({"gpus": 0.5, "gpu_memory_mb": 30}, 30),
        ({"gpus": 1, "gpu_memory_mb": 30, "members": 3}, 90),
    ],
)
def test_gpu_memory_counts_as_requested(fields, memory_mb) -> None:
    assert job_amounts(a_job(**fields), HOUR).gpu_memory_mb == memory_mb


def test_gang_counts_with_members_that_start() -> None:
    gang = a_job(gpus=2, cpus=4, members=3, memory_mb=10)
    assert job_amounts(gang, HOUR).gpu_milli == 6000
    two = job_amounts(gang, HOUR, members=2)
    assert (two.gpu_milli, two.cpu_milli, two.memory_mb, two.jobs) == (4000, 8000, 20, 1)
    assert two.gpu_milli_ms == 4000 * HOUR


def test_holdings_copy_is_independent() -> None:
    holdings = Holdings()
    job = a_job(gpus=2)
    holdings.add(job, job_amounts(job, HOUR))
    copy = holdings.copy()
    copy.add(job, job_amounts(job, HOUR))
    assert holdings.of("vision").gpu_milli == 2000
    assert copy.of("vision").gpu_milli == 4000
    assert (holdings.pools[Pool.BATCH], copy.pools[Pool.BATCH]) == (2000, 4000)
    copy.add(job, job_amounts(job, HOUR), -1)
    assert copy.of("vision").jobs == 1
