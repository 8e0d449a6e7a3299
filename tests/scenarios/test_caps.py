"""Caps and budgets of users and tenants: what waits, what is rejected, and the messages."""

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import Ended, SetNode, SetTenant
from gpu_scheduler.control.restore import restore
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.ledger.units import Period
from gpu_scheduler.model.errors import QuotaTooSmall, TooManyJobs
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.tenant import BudgetPeriod, Quota
from tests.builders import Stated, a_job, a_node, a_policy, a_tenant, an_array
from tests.scenarios.lab import Lab

H = 3_600_000
GPU_HOUR = 1000 * H


def a_lab(period: BudgetPeriod = BudgetPeriod.TOTAL, **limits: int) -> Lab:
    policy = a_policy(name="fair", user_quota=Quota(**limits), budget_period=period)
    return Lab(policy=policy, nodes=[a_node(gpus=8)], tenants=[a_tenant(id="vision")])


def job(name: str, user: str = "ann", *, gpus: float = 1, hours: int = 1, **more: object) -> Job:
    return a_job(id=name, user=user, gpus=gpus, max_runtime_ms=hours * H, **more)


def why(lab: Lab, number: int) -> str:
    assert lab.last_plan is not None
    return str(explain(lab.core.state.cluster, lab.last_plan, number))


def test_users_at_their_caps_with_whole_gpus_and_with_shares_wait_each_for_their_own() -> None:
    lab = a_lab(gpu_milli=1_000)
    lab.submit(job("a1", gpus=1), job("b1", "ben", gpus=0.5))
    lab.submit(job("a2"), job("b2", "ben"))
    assert lab.running() == ["a1", "b1"]
    assert why(lab, 3).startswith("user ann may hold 1 GPUs and holds 1, so 1 more")
    assert why(lab, 4).startswith("user ben may hold 1 GPUs and holds 0.50, so 1 more")


def test_user_over_cap_waits_while_others_run() -> None:
    lab = a_lab(gpu_milli=2_000)
    lab.submit(job("a1", gpus=2), job("a2", gpus=1), job("b1", "ben", gpus=2))
    assert lab.running() == ["a1", "b1"]
    assert why(lab, 2) == "user ann may hold 2 GPUs and holds 2, so 1 more do not fit; 0 would"
    lab.ends("a1")
    assert lab.running() == ["a2", "b1"]


def test_request_over_whole_cap_is_rejected_with_what_would_fit() -> None:
    lab = a_lab(gpu_milli=2_000)
    with pytest.raises(QuotaTooSmall) as refused:
        lab.submit(job("a1", gpus=3))
    assert str(refused.value) == (
        "job a1 asks for 3 GPUs, and user 'ann' may hold 2 at once in tenant 'vision'; ask for 2 "
        "or fewer, or have the limit raised"
    )


def test_running_jobs_per_user_are_capped() -> None:
    lab = a_lab(concurrent_jobs=1)
    lab.submit(job("a1"), job("a2"), job("b1", "ben"))
    assert lab.running() == ["a1", "b1"]
    assert why(lab, 2).startswith("user ann may hold 1 concurrent jobs and holds 1")


def test_queued_jobs_per_user_are_capped_and_more_are_rejected() -> None:
    lab = a_lab(pending_jobs=3)
    lab.submit(*(job(f"f{n}", "zoe", gpus=8, hours=9) for n in range(2)))
    lab.submit(an_array(id="a1", tasks="0-1", user="ann", gpus=1))
    lab.submit(job("a2"))
    with pytest.raises(TooManyJobs) as refused:
        lab.submit(job("a3"))
    assert str(refused.value) == (
        "user 'ann' may have 3 jobs waiting and has 3, so 1 more do not fit; submit 0 or fewer, or "
        "wait until some have started"
    )
    lab.submit(job("b1", "ben"))
    lab.ends("f0")
    lab.ends("f1")
    assert lab.core.state.queued_of == {}
    lab.submit(job("a3"))


def test_queued_jobs_are_counted_after_restart() -> None:
    lab = a_lab(pending_jobs=3)
    lab.store.commit([*lab.core.state.cluster.snapshot().nodes, a_tenant(id="vision")])
    lab.now_ms = H
    lab.submit(job("f1", "zoe", gpus=8, hours=9))
    lab.submit(*(job(f"a{n}", gpus=2) for n in range(3)))
    assert lab.core.state.queued_of == {("vision", "ann"): 3}
    lab.store.commit(lab.core.ledger_writes())
    lab.core = Core(lab.core.state.policy, Stated())
    restore(lab.core.state, lab.store, lab.now_ms)
    assert lab.core.state.queued_of == {("vision", "ann"): 3}
    with pytest.raises(TooManyJobs):
        lab.submit(job("a3"))
    lab.do(SetNode(a_node(gpus=8)), Ended(lab.allocation("f1").id))
    assert lab.running() == ["a0", "a1", "a2"]
    assert (lab.core.state.queued_of, lab.core.state.queued_tasks) == ({}, 0)


def test_tenant_overrides_default_user_cap() -> None:
    lab = a_lab(gpu_milli=1_000)
    lab.do(SetTenant(a_tenant(id="vision", user_quota=Quota(gpu_milli=4_000))))
    lab.submit(job("a1", gpus=4))
    assert lab.running() == ["a1"]


def test_job_over_exhausted_budget_waits_for_next_month() -> None:
    lab = a_lab(BudgetPeriod.MONTH, gpu_milli_ms=10 * GPU_HOUR)
    lab.submit(job("a1", gpus=8))
    lab.now_ms = H
    lab.ends("a1")
    lab.submit(job("a2", gpus=2, hours=2), job("b1", "ben", gpus=2, hours=2))
    assert lab.running() == ["b1"]
    assert why(lab, 2) == (
        "the budget of user ann is 10 GPU-hours a month: 8 are used or set aside for what runs, so "
        "4 more do not fit; 2 are left, and the next month begins at 1970-02-01 00:00 UTC"
    )
    lab.ends("b1")
    lab.at(Period.MONTH.next_after(0))
    assert lab.running() == ["a2"]


def test_weekly_budget_starts_on_monday_and_survives_restart() -> None:
    lab = a_lab(BudgetPeriod.WEEK, gpu_milli_ms=10 * GPU_HOUR)
    lab.store.commit(list(lab.core.state.cluster.snapshot().nodes))
    lab.submit(job("a1", gpus=8))
    lab.now_ms = H
    lab.tell(Ended(lab.allocation("a1").id))
    lab.store.commit(lab.core.ledger_writes())
    core = Core(lab.core.state.policy, Stated())
    restore(core.state, lab.store, lab.now_ms)
    assert core.state.weekly_usage.spent(("vision", "ann"), lab.now_ms) == 8 * GPU_HOUR
    lab.submit(job("a2", gpus=3))
    assert lab.running() == []
    monday = Period.WEEK.next_after(lab.now_ms)
    assert "the next week begins at 1970-01-05 00:00 UTC" in why(lab, 2)
    lab.at(monday)
    assert lab.running() == ["a2"]


def test_request_over_whole_budget_is_rejected() -> None:
    lab = a_lab(gpu_milli_ms=10 * GPU_HOUR)
    with pytest.raises(QuotaTooSmall, match=r"the whole budget of user 'ann' .* is 10; ask for"):
        lab.submit(job("a1", gpus=6, hours=2))


def test_tenant_budget_has_period() -> None:
    lab = a_lab()
    budget = {"gpu_milli_ms": 8 * GPU_HOUR, "budget_period": BudgetPeriod.WEEK}
    lab.do(SetTenant(a_tenant(id="vision", **budget)))
    lab.submit(job("a1", gpus=8))
    lab.now_ms = H
    lab.ends("a1")
    lab.submit(job("b1", "ben"))
    assert why(lab, 2).startswith("the budget of tenant vision is 8 GPU-hours a week: 8 are used")
