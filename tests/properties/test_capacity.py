"""Guarantees: no GPU is allocated beyond its capacity, gangs are all or nothing, quotas hold."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.plan import Plan
from tests.effort import examples
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import Scenario, policies, scenarios

MOMENTS = 200


def go(rig: Rig) -> None:
    """Run for some time, not to the end: jobs that never run do not matter here."""
    for _ in range(MOMENTS):
        if not rig.advance():
            return


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies(), stop_ms=st.sampled_from((0, 90_000)))
def test_no_device_or_node_exceeds_capacity_and_every_gang_is_whole(
    scenario: Scenario, policy: str, stop_ms: int
) -> None:
    go(Rig(scenario, policy, StopBehaviour(stop_ms=stop_ms)))


@settings(max_examples=examples(100))
@given(scenario=scenarios(changes=False), policy=policies())
def test_strict_quota_is_never_exceeded(scenario: Scenario, policy: str) -> None:
    def check(rig: Rig, plan: Plan) -> None:
        for tenant in rig.audit.tenants.values():
            rig.audit.check_quota(tenant)

    go(Rig(scenario, policy, watch=check))


@settings(max_examples=examples(100))
@given(scenario=scenarios(changes=False), policy=policies())
def test_tenant_exceeds_guarantee_only_by_capacity_lent_at_start(
    scenario: Scenario, policy: str
) -> None:
    def check(rig: Rig, plan: Plan) -> None:
        if len(plan.starts) == 1:
            tenant = rig.core.state.job(plan.starts[0].job_id).job.tenant
            rig.audit.check_loan(rig.audit.tenants[tenant])

    go(Rig(scenario, policy, watch=check))


@settings(max_examples=examples(100))
@given(scenario=scenarios(changes=False), policy=policies())
def test_pool_stays_within_its_quota_and_unused_capacity_of_other(
    scenario: Scenario, policy: str
) -> None:
    def check(rig: Rig, plan: Plan) -> None:
        if len(plan.starts) == 1:
            pool = rig.core.state.job(plan.starts[0].job_id).job.pool
            if pool in rig.audit.pools:
                rig.audit.check_pool(rig.audit.pools[pool])

    go(Rig(scenario, policy, watch=check))


@settings(max_examples=examples(60))
@given(scenario=scenarios(changes=False), policy=policies())
def test_gpu_time_budget_is_never_exceeded(scenario: Scenario, policy: str) -> None:
    rig = Rig(scenario, policy)
    for _ in range(MOMENTS):
        going_on = rig.advance()
        for tenant in rig.audit.tenants.values():
            limit = tenant.quota.gpu_milli_ms
            assert limit is None or rig.audit.gpu_milli_ms[tenant.id] <= limit
        if not going_on:
            return
