"""Guarantee: a forecast changes nothing and answers for every job that can run."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.forecast import forecast, forecast_start
from gpu_scheduler.engine.policy import Queueing
from gpu_scheduler.model.node import NodeState
from tests.effort import examples
from tests.properties.dump import dump_of
from tests.properties.rig import Rig
from tests.properties.strategies import Scenario, policies, scenarios


def run_partly(scenario: Scenario, policy: str, most: int) -> Rig:
    rig = Rig(scenario, policy)
    for _ in range(most):
        if not rig.advance():
            break
    return rig


@settings(max_examples=examples(60))
@given(scenario=scenarios(), policy=policies(), most=st.integers(1, 12))
def test_forecast_leaves_state_unchanged(scenario: Scenario, policy: str, most: int) -> None:
    rig = run_partly(scenario, policy, most)
    cluster = rig.core.state.cluster
    before, snapshot = dump_of(cluster), cluster.snapshot()

    first = forecast(cluster, rig.now_ms)

    assert cluster.snapshot() == snapshot
    assert dump_of(cluster) == before
    assert forecast(cluster, rig.now_ms) == first


def lasting_refusals(rig: Rig) -> set[int]:
    """Jobs that no end of another job can help: a budget is exhausted, or they fit no node."""
    state = rig.core.state
    return {
        entry.number
        for entry in state.cluster.queue.entries.values()
        if state.cluster.tenant(entry.waiting.job.tenant).quota.gpu_milli_ms is not None
        or state.cluster.tenant(entry.waiting.job.tenant).elastic
    }


@settings(max_examples=examples(80))
@given(scenario=scenarios(changes=False), policy=policies(), most=st.integers(1, 12))
def test_forecast_answers_for_every_job_that_can_run(
    scenario: Scenario, policy: str, most: int
) -> None:
    rig = run_partly(scenario, policy, most)
    cluster = rig.core.state.cluster
    if any(
        resources.node.state is not NodeState.ONLINE for resources in cluster.index.by_id.values()
    ):
        return
    if not all(d.takes_work for s in cluster.index.by_id.values() for d in s.node.devices):
        return
    if cluster.pools or (lasting_refusals(rig) and cluster.policy.queueing is Queueing.BLOCKING):
        return

    answers = forecast(cluster, rig.now_ms)

    expected = set(cluster.queue.entries) - lasting_refusals(rig)
    assert expected <= set(answers)
    for number in expected:
        assert answers[number] >= rig.now_ms
        assert forecast_start(cluster, rig.now_ms, number) == answers[number]
