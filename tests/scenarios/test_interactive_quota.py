"""Interactive jobs of a tenant at its limit preempt batch jobs of that tenant."""

from typing import Any

import pytest

from gpu_scheduler.control.messages import Cancel, Checkpointed, SetTenant
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Job, JobState, Pool
from gpu_scheduler.model.tenant import Quota
from tests.builders import DAY, HOUR, MINUTE, a_cluster, a_job, a_node, a_policy, a_tenant, an_array
from tests.scenarios.lab import Lab

POLICY = a_policy(name="fair", interactive_gpu_milli=1_000)
FULL = "quota exceeded for tenant vision: GPUs requested=1, quota=4, current=4"


def a_lab(*, limit: dict[str, Any] | None = None, **changes: Any) -> Lab:
    """A node with eight GPUs, and a tenant `vision` that may hold four by default."""
    tenants = [a_tenant(id="vision", **({"gpus": 4} if limit is None else limit))]
    values = {
        "policy": POLICY,
        "nodes": [a_node(gpus=8)],
        "tenants": [*tenants, a_tenant(id="nlp")],
    }
    return Lab(**(values | changes))


def batch(number: int, **changes: Any) -> Job:
    return a_job(**({"number": number, "user": "ben", "estimate_ms": DAY} | changes))


def shell(number: int, **changes: Any) -> Job:
    return a_job(**({"number": number, "user": "ann", "interactive": True} | changes))


def why(lab: Lab, job_id: str) -> str:
    """The explanation of a waiting job."""
    assert lab.last_plan is not None
    state = lab.core.state
    return str(explain(state.cluster, lab.last_plan, state.job(job_id).job.number))


# --- successful preemption


def test_interactive_job_at_quota_preempts_batch_job_of_same_tenant() -> None:
    lab = a_lab()
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)), batch(5, tenant="nlp"))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.running() == ["j2", "j3", "j4", "j5", "j9"]
    assert lab.stopped() == [("j1.1", "preempted")]
    assert lab.state("j1") is JobState.PENDING
    evicting = [row.data for _, row in lab.store.events() if row.kind == "evicting"]
    assert evicting == [(("for", "j9"), ("ground", "interactive"))]


def test_preempted_batch_job_resumes_after_interactive_job_ends() -> None:
    lab = a_lab()
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    lab.submit(batch(10))
    assert lab.running() == ["j2", "j3", "j4", "j9"]
    assert why(lab, "j1") == FULL
    lab.ends("j9")
    assert lab.running() == ["j1", "j2", "j3", "j4"]


def test_interactive_preemption_at_quota_works_on_full_cluster() -> None:
    lab = a_lab(nodes=a_cluster(nodes=2, gpus=4))
    lab.submit(*(batch(n, tenant="nlp") for n in (1, 2)), *(batch(n) for n in (3, 4, 5, 6)))
    lab.submit(*(batch(n, tenant="nlp") for n in (7, 8)))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == [("j3.1", "preempted")]
    assert "j9" in lab.running()


@pytest.mark.parametrize(
    ("limit", "wish"),
    [
        pytest.param({"gpus": 4}, {}, id="GPUs"),
        pytest.param({"concurrent_jobs": 4}, {}, id="jobs at once"),
        pytest.param({"concurrent_jobs": 4}, {"gpus": 0, "cpus": 1}, id="jobs at once, CPU only"),
        pytest.param({"cpu_milli": 16_000}, {}, id="CPU cores"),
        pytest.param({"memory_mb": 40_000}, {}, id="memory"),
        pytest.param({"gpu_memory_mb": 40_000}, {}, id="GPU memory"),
        pytest.param({"user_quota": Quota(gpu_milli=4_000)}, {"user": "ben"}, id="GPUs of a user"),
        pytest.param({"user_quota": Quota(concurrent_jobs=4)}, {"user": "ben"}, id="user's jobs"),
        pytest.param({"gpus": 4, "elastic": True}, {"preemptible": False}, id="elastic"),
    ],
)
def test_every_concurrent_limit_is_kept_by_preempting_one_job(
    limit: dict[str, Any], wish: dict[str, Any]
) -> None:
    lab = a_lab(limit=limit)
    size = {"cpus": 4, "memory_mb": 10_000, "gpu_memory_mb": 10_000}
    if wish.get("gpus") == 0:
        size.pop("gpu_memory_mb")
    lab.submit(*(batch(n, **size) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9, **(size | wish)))
    assert lab.running() == ["j2", "j3", "j4", "j9"]


def test_job_count_limit_is_kept_by_preempting_own_job() -> None:
    policy = a_policy(name="fair", interactive_gpu_milli=1_000, max_running=3)
    lab = a_lab(limit={}, policy=policy)
    lab.submit(batch(1, tenant="nlp"), batch(2), batch(3, tenant="nlp"))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.running() == ["j1", "j3", "j9"]


def test_pool_quota_is_kept_by_preempting_own_job() -> None:
    lab = a_lab(limit={}, pools=[PoolQuota(pool=Pool.BATCH, percent=50, elastic=False)])
    lab.submit(batch(1, tenant="nlp", gpus=2), batch(2), batch(3))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.running() == ["j1", "j3", "j9"]


def test_array_task_is_preempted_like_job() -> None:
    lab = a_lab()
    lab.submit(an_array(number=1, tasks="0-9", user="ben", estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == [("j1_0.1", "preempted")]
    assert lab.running() == ["j1_1", "j1_2", "j1_3", "j9"]


# --- victims


def test_job_that_loses_least_work_is_preempted() -> None:
    lab = a_lab()
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(5 * HOUR)
    lab.tell(Checkpointed("j3.1"))
    lab.at(6 * HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == [("j3.1", "preempted")]


def test_job_without_the_scarce_resource_is_not_preempted() -> None:
    lab = a_lab()
    lab.submit(*(batch(n, gpus=2) for n in (1, 2)))
    lab.at(5 * HOUR)
    lab.submit(*(batch(n, gpus=0, cpus=1) for n in (3, 4)))
    lab.at(6 * HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == [("j1.1", "preempted")], "jobs without a GPU lose less, but help nobody"


def test_one_victim_that_frees_quota_and_room_is_preferred_to_two() -> None:
    """The cheapest job on the node makes room, but not in the CPU quota."""
    lab = a_lab(limit={"cpu_milli": 40_000}, nodes=[a_node(gpus=2, cpus=64)])
    lab.submit(batch(1, cpus=36))
    lab.at(HOUR)
    lab.submit(batch(2, cpus=4))
    lab.at(2 * HOUR)
    lab.submit(shell(9, cpus=30))
    assert lab.stopped() == [("j1.1", "preempted")]
    assert lab.running() == ["j2", "j9"]


def test_user_limit_never_preempts_other_users_of_tenant() -> None:
    lab = a_lab(limit={"user_quota": Quota(gpu_milli=2_000)})
    lab.submit(batch(1), batch(2), *(batch(n, user="ann", preemptible=False) for n in (3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == []
    assert why(lab, "j9") == (
        "user ann may hold 2 GPUs and holds 2, so 1 more do not fit; 0 would; "
        "no batch job of user ann may be stopped for it"
    )


def test_at_user_limit_other_users_are_not_preempted_for_room() -> None:
    """Its own jobs have no GPU, so only another user's could make room on the node."""
    lab = a_lab(limit={"user_quota": Quota(concurrent_jobs=2)}, nodes=[a_node(gpus=2)])
    lab.submit(batch(1), batch(2), *(batch(n, user="ann", gpus=0, cpus=1) for n in (3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == []
    assert why(lab, "j9").endswith(
        "; stopping batch jobs of user ann would not make room on any node"
    )


def test_tenant_limit_never_preempts_other_tenants() -> None:
    """By class it could preempt them, but it is over its quota."""
    policy = a_policy(name="fair", interactive_gpu_milli=2_000)
    lab = a_lab(limit={"gpus": 2}, policy=policy, nodes=[a_node(gpus=4)])
    lab.submit(batch(1), batch(2, preemptible=False))
    lab.submit(*(batch(n, tenant="nlp", priority=250) for n in (3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9, gpus=2, priority=2500))
    assert lab.stopped() == []
    assert why(lab, "j9") == (
        "quota exceeded for tenant vision: GPUs requested=2, quota=2, current=2; "
        "stopping the only batch job of tenant vision that may be stopped would not be enough"
    )


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param({"interactive": True}, id="interactive"),
        pytest.param({"preemptible": False}, id="not preemptible"),
        pytest.param({"pool": Pool.ONLINE}, id="online"),
        pytest.param({"priority": 1249}, id="could preempt it back"),
    ],
)
def test_protected_jobs_are_not_preempted_at_quota(kept: dict[str, Any]) -> None:
    lab = a_lab()
    lab.submit(*(batch(n, **kept) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    assert lab.stopped() == []
    assert why(lab, "j9") == f"{FULL}; no batch job of tenant vision may be stopped for it"


# --- no preemption


def test_interactive_job_beyond_cap_waits_with_reason() -> None:
    lab = a_lab()
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(8), shell(9))
    assert lab.running() == ["j2", "j3", "j4", "j8"]
    assert why(lab, "j9") == (
        f"{FULL}; it stops no batch job for that, as user ann would hold more than 1 GPUs with "
        "interactive jobs"
    )


def test_budget_limit_preempts_nobody() -> None:
    lab = a_lab(limit={"gpus": 4, "gpu_milli_ms": 100 * 1000 * HOUR})
    lab.submit(*(batch(n, max_runtime_ms=24 * HOUR) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9, max_runtime_ms=5 * HOUR))
    assert lab.stopped() == []
    assert why(lab, "j9") == (
        "quota exceeded for tenant vision: GPU-hours requested=5, quota=100, current=96"
    )


def test_nothing_is_preempted_when_no_node_has_room_anyway() -> None:
    lab = a_lab(nodes=[*a_cluster(nodes=1, gpus=2), a_node(ordinal=1, gpus=4, cpus=4)])
    lab.submit(batch(1, tenant="nlp", gpus=2, cpus=64))
    lab.submit(*(batch(n, tenant="nlp", gpus=0, cpus=4) for n in (2,)))
    lab.submit(*(batch(n) for n in (3, 4, 5, 6)))
    lab.at(HOUR)
    lab.submit(shell(9, cpus=1))
    assert lab.stopped() == []
    assert why(lab, "j9") == (
        f"{FULL}; stopping batch jobs of tenant vision would not make room on any node"
    )


# --- waiting for victims


def test_quota_freed_by_victim_is_kept_for_preemptor() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    said = "stops job j1 of its own tenant, and starts when that has ended"
    assert why(lab, "j9") == said
    lab.submit(batch(10, priority=1200), batch(11, tenant="nlp"))
    lab.at(HOUR + 5 * MINUTE)
    assert lab.stopped() == [("j1.1", "preempted")], "nobody else is stopped while it waits"
    assert why(lab, "j9") == said
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.running() == ["j11", "j2", "j3", "j4", "j9"]


def test_already_stopping_job_is_awaited_instead_of_preempting_another() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.tell(Cancel("j2"))
    lab.submit(shell(9))
    assert [name for name, _ in lab.stopped()] == ["j2.1"]
    assert why(lab, "j9") == f"{FULL}; the jobs that are being stopped already free enough"
    lab.ends("j2", exit_code=None, signal=15)
    assert lab.running() == ["j1", "j3", "j4", "j9"]


def test_two_interactive_jobs_preempt_one_job_each() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(8), shell(9, user="eve"))
    assert [name for name, _ in lab.stopped()] == ["j1.1", "j2.1"]
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.running() == ["j2", "j3", "j4", "j8"]
    lab.ends("j2", exit_code=None, signal=15)
    assert lab.running() == ["j3", "j4", "j8", "j9"]


def test_quota_reduced_during_preemption_is_respected() -> None:
    lab = a_lab(obedient=False)
    lab.submit(*(batch(n) for n in (1, 2, 3, 4)))
    lab.at(HOUR)
    lab.submit(shell(9))
    lab.do(SetTenant(a_tenant(id="vision", gpus=3)))
    assert [name for name, _ in lab.stopped()] == ["j1.1", "j2.1"]
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.running() == ["j2", "j3", "j4"]
    lab.ends("j2", exit_code=None, signal=15)
    assert lab.running() == ["j3", "j4", "j9"]


def test_preemptor_by_class_keeps_its_place_when_quota_is_used_meanwhile() -> None:
    nodes = [a_node(gpus=2), a_node(ordinal=1, gpus=1)]
    lab = a_lab(limit={"gpus": 2}, nodes=nodes, obedient=False)
    lab.submit(batch(1, tenant="nlp", gpus=2, priority=250), batch(2, tenant="nlp", priority=250))
    lab.at(HOUR)
    lab.submit(batch(3, gpus=2, priority=2500))
    assert [name for name, _ in lab.stopped()] == ["j1.1"]
    lab.ends("j2")
    lab.submit(batch(4, priority=2600))
    assert lab.running() == ["j1"]
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.running() == ["j3"], "somebody was stopped for it"
