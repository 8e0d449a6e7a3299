"""Guarantee: every job is accounted for, and nothing is left behind."""

from collections import Counter

from hypothesis import given, settings

from gpu_scheduler.ledger.decayed_usage import account_of
from gpu_scheduler.model.job import ENDED
from gpu_scheduler.model.plan import Plan
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import (
    TENANTS,
    USERS,
    Scenario,
    policies,
    scenarios,
)


def finished(scenario: Scenario, policy: str) -> Rig:
    """Run until all jobs end; a job that can never run is not cancelled and fails the test."""
    rig = Rig(scenario, policy)
    rig.run()
    return rig


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies())
def test_nothing_is_left_after_all_jobs_end(scenario: Scenario, policy: str) -> None:
    rig = finished(scenario, policy)
    state, cluster = rig.core.state, rig.core.state.cluster

    assert rig.waiting() == []
    assert all(row.state in ENDED for row in rig.store.jobs())
    assert state.queued_tasks == 0
    assert not rig.store.allocations()
    assert not state.by_allocation
    assert not state.dependents
    assert not len(cluster.queue)
    assert not cluster.queue.groups
    assert not cluster.running
    assert not cluster.ends
    assert not cluster.reservations
    assert not cluster.running_tasks
    assert not cluster.by_class
    assert not any(cluster.by_node.values())
    assert not any(cluster.holdings.pools.values())
    for amounts in cluster.holdings.tenants.values():
        assert not any(getattr(amounts, name) for name in amounts.__slots__)
    for tenant in TENANTS:
        assert state.decayed_usage.held(account_of(tenant, None)) == 0
        assert all(state.decayed_usage.held(account_of(tenant, user)) == 0 for user in USERS)


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies())
def test_ledger_has_gpu_time_of_every_attempt(scenario: Scenario, policy: str) -> None:
    rig = finished(scenario, policy)

    for tenant in TENANTS:
        charged = rig.core.state.usage_totals.total(account_of(tenant, None)).gpu_milli_ms
        assert charged == rig.audit.gpu_milli_ms[tenant]
        by_user = sum(
            rig.core.state.usage_totals.total(account_of(tenant, user)).gpu_milli_ms
            for user in USERS
        )
        assert by_user == charged


@settings(max_examples=examples(100))
@given(scenario=scenarios(limits=False), policy=policies())
def test_state_store_and_plan_agree_after_every_plan(scenario: Scenario, policy: str) -> None:
    seen: Counter[str] = Counter()

    def check(rig: Rig, plan: Plan) -> None:
        cluster = rig.core.state.cluster
        held = {a.id: a for a in rig.store.allocations()}
        assert held.keys() == cluster.running.keys() == rig.audit.held.keys()
        for allocation_id, entry in cluster.running.items():
            assert entry.running.allocation == held[allocation_id]
            placements = tuple(grant.placement() for grant in entry.grants)
            assert placements == held[allocation_id].placements
        newest = [a for a in held.values() if a.start_ms == rig.now_ms and a.id not in seen]
        seen.update(a.id for a in newest)
        assert sorted((a.job_id, str(a.task), a.placements) for a in newest) == sorted(
            (start.job_id, str(start.task), start.placements) for start in plan.starts
        )
        assert tuple(r for _, r in sorted(cluster.reservations.items())) == plan.reservations
        for eviction in plan.evictions:
            assert cluster.running[eviction.allocation_id].running.stopping

    Rig(scenario, policy, watch=check).run()
