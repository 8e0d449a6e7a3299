"""Guarantee: the same cluster state gives the same plan, byte for byte, whatever its history."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.forecast import forecast
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Snapshot
from tests.effort import examples
from tests.properties.dump import SHAPE_TABLES, contents, differences, dump_of
from tests.properties.rig import Rig
from tests.properties.strategies import EVERY_POLICY, Scenario, policies, scenarios

CACHES = tuple(f"cluster.{name}" for name in (*SHAPE_TABLES, "score_memory", "preemption_cache"))
"""What `decide` may remember in the state: answers that it would compute again."""
ROOT = Path(__file__).parents[2]


def after(scenario: Scenario, policy: str, most: int) -> tuple[int, ClusterState]:
    """The time, and the cluster state as updated through so many events."""
    rig = Rig(scenario, policy)
    for _ in range(most):
        if not rig.advance():
            break
    return rig.now_ms, rig.core.state.cluster


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """The same cluster state in another order."""
    chance = Random(seed)

    def mixed(items: tuple) -> tuple:  # type: ignore[type-arg]
        return tuple(chance.sample(items, len(items)))

    return Snapshot(
        nodes=mixed(snapshot.nodes),
        tenants=mixed(snapshot.tenants),
        waiting=mixed(snapshot.waiting),
        running=mixed(snapshot.running),
        reservations=mixed(snapshot.reservations),
        tenant_usage=mixed(snapshot.tenant_usage),
        user_usage=mixed(snapshot.user_usage),
        pools=mixed(snapshot.pools),
        advance_reservations=mixed(snapshot.advance_reservations),
    )


@settings(max_examples=examples(60))
@given(scenario=scenarios(), policy=policies(), most=st.integers(1, 12))
def test_repeated_decision_gives_same_plan_and_leaves_state_unchanged(
    scenario: Scenario, policy: str, most: int
) -> None:
    now_ms, cluster = after(scenario, policy, most)
    before, snapshot = dump_of(cluster), cluster.snapshot()

    first = decide(cluster, cluster.policy, now_ms)

    assert cluster.snapshot() == snapshot
    assert dump_of(cluster) == before
    assert decide(cluster, cluster.policy, now_ms).to_json() == first.to_json()


@pytest.mark.parametrize("policy", EVERY_POLICY)
@settings(max_examples=examples(15))
@given(scenario=scenarios(), most=st.integers(1, 12), is_rebuilt=st.booleans())
def test_decision_writes_into_no_field_of_the_state(
    policy: str, scenario: Scenario, most: int, is_rebuilt: bool
) -> None:
    """Every field of every object below the state is compared; a rebuilt state has empty caches."""
    now_ms, cluster = after(scenario, policy, most)
    if is_rebuilt:
        cluster = ClusterState.from_snapshot(cluster.snapshot(), cluster.policy)
    cluster.index.refresh()
    before = contents(cluster, "cluster", CACHES)

    decide(cluster, cluster.policy, now_ms)

    cluster.index.refresh()
    assert differences(before, contents(cluster, "cluster", CACHES)) == {}


@settings(max_examples=examples(60))
@given(scenario=scenarios(), policy=policies(), most=st.integers(1, 12))
def test_incremental_state_decides_like_rebuilt_one(
    scenario: Scenario, policy: str, most: int
) -> None:
    now_ms, cluster = after(scenario, policy, most)
    fresh = ClusterState.from_snapshot(cluster.snapshot(), cluster.policy)

    kept_plan = decide(cluster, cluster.policy, now_ms)
    fresh_plan = decide(fresh, cluster.policy, now_ms)

    assert kept_plan.to_json() == fresh_plan.to_json()
    assert forecast(cluster, now_ms) == forecast(fresh, now_ms)


@settings(max_examples=examples(60))
@given(scenario=scenarios(), policy=policies(), most=st.integers(1, 12))
def test_incremental_and_rebuilt_state_give_same_bytes(
    scenario: Scenario, policy: str, most: int
) -> None:
    now_ms, cluster = after(scenario, policy, most)
    fresh = ClusterState.from_snapshot(cluster.snapshot(), cluster.policy)

    kept_plan = decide(cluster, cluster.policy, now_ms)

    assert kept_plan.to_json() == decide(fresh, cluster.policy, now_ms).to_json()


@settings(max_examples=examples(60))
@given(scenario=scenarios(), policy=policies(), most=st.integers(1, 12), seed=st.integers(0, 1_000))
def test_snapshot_order_does_not_change_plan(
    scenario: Scenario, policy: str, most: int, seed: int
) -> None:
    now_ms, cluster = after(scenario, policy, most)
    snapshot = cluster.snapshot()
    one = ClusterState.from_snapshot(snapshot, cluster.policy)
    other = ClusterState.from_snapshot(shuffled(snapshot, seed), cluster.policy)

    plan, other_plan = (decide(p, p.policy, now_ms) for p in (one, other))

    assert other_plan.to_json() == plan.to_json()


CHILD = """
import sys
from tests.properties.generated import plans_of_some_histories
sys.stdout.write(plans_of_some_histories())
"""


@pytest.mark.slow
def test_processes_with_other_hash_seeds_give_same_bytes() -> None:
    answers = set()
    for seed in ("0", "1", "4242"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        }
        child = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.add(child.stdout)
    assert len(answers) == 1
    assert len(answers.pop()) > 1_000
