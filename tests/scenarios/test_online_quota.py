"""Online jobs of a tenant at its limit, whose batch jobs borrow capacity."""

from typing import Any

import pytest

from gpu_scheduler.engine.explain import explain
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Job, JobState, Pool
from gpu_scheduler.model.tenant import Quota
from tests.builders import DAY, HOUR, a_cluster, a_job, a_tenant
from tests.scenarios.lab import Lab

POOLS = (PoolQuota(pool=Pool.ONLINE, percent=25), PoolQuota(pool=Pool.BATCH, percent=75))


def a_lab(**changes: Any) -> Lab:
    """Four nodes of eight GPUs, eight of them guaranteed to online work; `vision` may hold all."""
    values = {
        "policy": preset("fair"),
        "nodes": a_cluster(nodes=4),
        "pools": POOLS,
        "tenants": [a_tenant(id="vision", gpus=32), a_tenant(id="nlp")],
    }
    return Lab(**(values | changes))


def batch(number: int, gpus: float = 8, **changes: Any) -> Job:
    return a_job(**({"number": number, "gpus": gpus, "user": "ben", "estimate_ms": DAY} | changes))


def online(number: int, gpus: float = 4, **changes: Any) -> Job:
    return a_job(number=number, gpus=gpus, pool=Pool.ONLINE, **({"user": "ann"} | changes))


def why(lab: Lab, job_id: str) -> str:
    """The explanation of a waiting job."""
    assert lab.last_plan is not None
    state = lab.core.state
    return str(explain(state.cluster, lab.last_plan, state.job(job_id).job.number))


def test_online_job_reclaims_from_own_tenant_up_to_quota() -> None:
    lab = a_lab()
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(online(11))
    assert lab.state("j11") is JobState.RUNNING
    assert len(lab.stopped()) == 1
    evicting = [row.data for _, row in lab.store.events() if row.kind == "evicting"]
    assert evicting == [(("for", "j11"), ("ground", "lent"))]
    lab.submit(online(12), online(13))
    assert lab.running() == ["j11", "j12", "j2", "j3", "j4"], "online has its part, and no more"
    assert len(lab.stopped()) == 1, "the rest of that place and quota was enough"


def test_online_job_starts_after_victims_and_keeps_freed_quota() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.submit(online(11, gpus=8))
    (stopped,) = [name.partition(".")[0] for name, _ in lab.stopped()]
    assert "on what was only lent" in why(lab, "j11") or "stops job" in why(lab, "j11")
    lab.submit(batch(20, gpus=1), batch(21, gpus=1, tenant="nlp"))
    lab.cycle()
    assert len(lab.stopped()) == 1
    lab.ends(stopped, exit_code=None, signal=15)
    assert lab.state("j11") is JobState.RUNNING
    assert lab.state(stopped) is JobState.PENDING


def test_tenant_limit_reclaims_only_from_own_tenant() -> None:
    lab = a_lab(tenants=[a_tenant(id="vision", gpus=16), a_tenant(id="nlp")])
    lab.submit(batch(1, tenant="nlp"), batch(2, tenant="nlp"), batch(3), batch(4))
    lab.at(HOUR)
    lab.submit(online(11))
    assert lab.state("j11") is JobState.RUNNING
    assert lab.stopped() == [("j3.1", "preempted")]


def test_user_limit_reclaims_only_from_same_user() -> None:
    lab = a_lab(tenants=[a_tenant(id="vision", user_quota=Quota(gpu_milli=16_000))])
    lab.submit(batch(1), batch(2), batch(3, user="ann"), batch(4, user="ann"))
    lab.at(HOUR)
    lab.submit(online(11))
    assert lab.state("j11") is JobState.RUNNING
    assert lab.stopped() == [("j3.1", "preempted")]


@pytest.mark.parametrize("more", [{"preemptible": False}, {"gpus": 0, "cpus": 1}])
def test_job_within_its_guarantee_is_not_reclaimed(more: dict[str, Any]) -> None:
    """The tenant runs as many jobs as it may, and batch work stays within its guarantee."""
    lab = a_lab(tenants=[a_tenant(id="vision", concurrent_jobs=3)])
    lab.submit(*(batch(n, **more) for n in (1, 2, 3)))
    lab.submit(online(11))
    assert lab.state("j11") is JobState.PENDING
    assert lab.stopped() == []


def test_nothing_is_reclaimed_when_lent_capacity_is_not_enough() -> None:
    """The CPU limit is exceeded, and the one borrowing job has little CPU."""
    lab = a_lab(tenants=[a_tenant(id="vision", cpu_milli=35_000)])
    lab.submit(*(batch(n, cpus=10, preemptible=False) for n in (1, 2, 3)), batch(4, cpus=1))
    assert len(lab.running()) == 4
    lab.submit(online(11, cpus=20))
    assert lab.state("j11") is JobState.PENDING
    assert lab.stopped() == []
    assert "would not be enough" in why(lab, "j11")


def test_reclaim_stops_no_more_jobs_than_were_lent() -> None:
    """Four GPUs are lent, so four jobs may be reclaimed; for the CPU it would have to be five."""
    lab = a_lab(tenants=[a_tenant(id="vision", cpu_milli=28_000)])
    lab.submit(*(batch(n, gpus=1, cpus=1) for n in range(1, 29)))
    lab.submit(online(31, cpus=5))
    assert lab.state("j31") is JobState.PENDING
    assert lab.stopped() == []
    lab.submit(online(32, cpus=4))
    assert lab.state("j32") is JobState.RUNNING
    assert len(lab.stopped()) == 4


def test_online_budget_limit_preempts_nobody() -> None:
    lab = a_lab(tenants=[a_tenant(id="vision", gpus=32, gpu_milli_ms=32_000 * 8 * DAY)])
    lab.submit(*(batch(n, max_runtime_ms=8 * DAY) for n in (1, 2, 3, 4)))
    assert len(lab.running()) == 4
    lab.submit(online(11, max_runtime_ms=HOUR))
    assert lab.state("j11") is JobState.PENDING
    assert lab.stopped() == []


def test_reclaimed_job_does_not_preempt_online_job_in_turn() -> None:
    lab = a_lab()
    lab.submit(*(batch(n, priority=10_000) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(online(11, gpus=8, priority=0))
    for hour in range(2, 30):
        lab.at(hour * HOUR // 2)
    assert lab.state("j11") is JobState.RUNNING
    assert len(lab.stopped()) == 1
