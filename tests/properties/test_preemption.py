"""Promise: evictions come to an end, and there are no more of them than there is reason for."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.rig import Physics, Rig
from tests.properties.strategies import PREEMPTING, Scenario, policies, scenarios

PHYSICS = (Physics(), Physics(keeps_progress=False), Physics(stop_ms=90_000))


@settings(max_examples=120)
@given(
    scenario=scenarios(limits=False, changes=False),
    policy=policies(PREEMPTING),
    physics=st.sampled_from(PHYSICS),
)
def test_a_finite_set_of_jobs_drains_under_every_preempting_policy(
    scenario: Scenario, policy: str, physics: Physics
) -> None:
    rig = Rig(scenario, policy, physics)

    rig.run()

    assert rig.waiting() == []


@settings(max_examples=80)
@given(
    scenario=scenarios(changes=False), policy=policies(PREEMPTING), stop_ms=st.sampled_from((0, 1))
)
def test_nobody_is_evicted_twice_at_one_moment(
    scenario: Scenario, policy: str, stop_ms: int
) -> None:
    rig = Rig(scenario, policy, Physics(stop_ms=stop_ms))
    for _ in range(200):
        if not rig.advance():
            break
    seen: set[tuple[int, str, str]] = set()
    for at_ms, plan in rig.record.plans:
        for eviction in plan.evictions:
            key = (at_ms, eviction.job_id, eviction.for_job_id)
            if rig.core.book.picture.policy.name and eviction.allocation_id:
                assert (*key[:2], eviction.allocation_id) not in seen
                seen.add((*key[:2], eviction.allocation_id))


@settings(max_examples=80)
@given(scenario=scenarios(limits=False, changes=False), policy=policies(("fair",)))
def test_by_class_nobody_is_evicted_more_often_than_its_tenant_allows(
    scenario: Scenario, policy: str
) -> None:
    rig = Rig(scenario, policy)
    for _ in range(400):
        if not rig.advance():
            break
    counts: dict[tuple[str, str], int] = {}
    for _, plan in rig.record.plans:
        for eviction in plan.evictions:
            task = eviction.allocation_id.rsplit(".", 1)[0]
            counts[eviction.job_id, task] = counts.get((eviction.job_id, task), 0) + 1
    assert max(counts.values(), default=0) <= max(t.max_preemptions for t in scenario.tenants)
