"""Guarantee: preemption terminates, and every eviction is justified."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.policy import RestartCost
from tests.effort import examples
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import BRISK, PREEMPTING, Scenario, policies, scenarios

PHYSICS = {
    "ideal": StopBehaviour(),
    "progress is lost": StopBehaviour(keeps_progress=False),
    "stops take long": StopBehaviour(stop_ms=90_000),
}
MOMENTS = 200


def run_partly(rig: Rig) -> Rig:
    for _ in range(MOMENTS):
        if not rig.advance():
            break
    return rig


@settings(max_examples=examples(80))
@given(
    scenario=scenarios(limits=False, changes=False),
    policy=policies(PREEMPTING),
    physics=st.sampled_from(tuple(PHYSICS)),
)
def test_finite_workload_drains_under_every_preempting_policy(
    scenario: Scenario, policy: str, physics: str
) -> None:
    rig = Rig(scenario, policy, PHYSICS[physics])

    rig.run()

    assert rig.waiting() == []


@settings(max_examples=examples(60))
@given(
    scenario=scenarios(limits=False, changes=False),
    policy=policies(PREEMPTING),
    physics=st.sampled_from(tuple(PHYSICS)),
    restart_ms=st.sampled_from([0, 60_000, 1_800_000]),
    checkpoint_every_ms=st.sampled_from([0, 600_000]),
)
def test_finite_workload_drains_with_victims_by_expected_remaining_work(
    scenario: Scenario, policy: str, physics: str, restart_ms: int, checkpoint_every_ms: int
) -> None:
    restart = RestartCost(restart_ms=restart_ms, checkpoint_every_ms=checkpoint_every_ms)
    rig = Rig(scenario, replace(BRISK[policy], restart=restart), PHYSICS[physics])

    rig.run()

    assert rig.waiting() == []


@settings(max_examples=examples(60))
@given(scenario=scenarios(changes=False), policy=policies(PREEMPTING))
def test_no_job_is_evicted_twice_at_same_time(scenario: Scenario, policy: str) -> None:
    rig = run_partly(Rig(scenario, policy))

    counts: Counter[tuple[int, str]] = Counter()
    for at_ms, plan in rig.record.plans:
        for eviction in plan.evictions:
            counts[at_ms, eviction.allocation_id.rsplit(".", 1)[0]] += 1
    assert max(counts.values(), default=0) <= 1


@settings(max_examples=examples(60))
@given(scenario=scenarios(changes=False), policy=policies(PREEMPTING))
def test_preemptor_starts_as_soon_as_victims_are_gone(scenario: Scenario, policy: str) -> None:
    rig = run_partly(Rig(scenario, policy, StopBehaviour()))

    started = {(at_ms, s.job_id) for at_ms, plan in rig.record.plans for s in plan.starts}
    wanted = {(at_ms, e.for_job_id) for at_ms, plan in rig.record.plans for e in plan.evictions}
    assert wanted <= started


@settings(max_examples=examples(60))
@given(scenario=scenarios(limits=False, changes=False))
def test_no_job_is_evicted_by_class_more_often_than_tenant_allows(scenario: Scenario) -> None:
    rig = run_partly(Rig(scenario, "fair"))

    counts: Counter[str] = Counter()
    for _, plan in rig.record.plans:
        counts.update(eviction.allocation_id.rsplit(".", 1)[0] for eviction in plan.evictions)
    allowed = max(tenant.max_preemptions for tenant in scenario.tenants)
    assert max(counts.values(), default=0) <= allowed
