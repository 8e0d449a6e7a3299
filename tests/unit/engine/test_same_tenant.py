"""Same-tenant preemption for interactive jobs over a tenant limit."""

from typing import Any

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.reasons import Reason, ReasonCode
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    a_cluster,
    a_job,
    a_node,
    a_policy,
    a_state,
    a_tenant,
    evicted,
    on,
    running,
    started,
)

NOW = 10 * HOUR
POLICY = a_policy(name="fair", interactive_gpu_milli=8_000)


def decided(state: ClusterState) -> Plan:
    return decide(state, state.policy, NOW)


def batch(number: int, *places: Any, start_ms: int = 0, **changes: Any) -> Running:
    """A batch job of user `ben` that holds these places for another day."""
    values = {"number": number, "user": "ben", "members": len(places), "gpus": 1}
    return running(a_job(**(values | changes)), *places, start_ms=start_ms, end_ms=NOW + DAY)


def shell(number: int = 1, **changes: Any) -> Job:
    return a_job(**({"number": number, "interactive": True, "submit_ms": NOW} | changes))


def a_full_tenant(*held: Running, limit: dict[str, Any], **changes: Any) -> ClusterState:
    values = {"policy": POLICY, "nodes": a_cluster(nodes=2, gpus=4), "queue": [shell()]}
    return a_state(**(values | {"tenants": [a_tenant(**limit)], "held": held} | changes))


def test_free_place_is_reserved_and_cheapest_job_is_preempted_anywhere() -> None:
    held = [batch(8, on("n0", [0])), batch(9, on("n1", [0]), start_ms=NOW - HOUR)]
    plan = decided(a_full_tenant(*held, limit={"gpus": 2}))
    assert evicted(plan) == ["j9"]
    assert started(plan) == [], "not before the other one has left"
    (kept,) = plan.reservations
    assert (kept.job_id, kept.claim, kept.at_ms) == ("j1", True, NOW + 1)


def test_node_is_chosen_by_total_cost_of_all_victims() -> None:
    """On n0 the victim holds little CPU, so that another one would have to be preempted too."""
    held = [
        batch(7, on("n0", [0]), cpus=1, start_ms=NOW - HOUR),
        batch(8, on("n1", [0]), cpus=8, start_ms=NOW - 2 * HOUR),
        batch(9, on("n1", [1]), cpus=8, start_ms=0),
    ]
    nodes = [a_node(ordinal=0, gpus=1), a_node(ordinal=1, gpus=2)]
    job = shell(cpus=8)
    plan = decided(a_full_tenant(*held, limit={"cpu_milli": 17_000}, nodes=nodes, queue=[job]))
    assert evicted(plan) == ["j8"]


def test_elastic_gang_starts_at_minimum_and_all_victims_stop_together() -> None:
    held = [batch(n, on("n0", [n - 6])) for n in (6, 7, 8, 9)]
    job = shell(members=3, min_members=2)
    plan = decided(a_full_tenant(*held, limit={"gpus": 4}, queue=[job], nodes=[a_node(gpus=4)]))
    assert evicted(plan) == ["j6", "j7"]
    assert [len(kept.placements) for kept in plan.reservations] == [2]


@pytest.mark.parametrize(
    ("others", "stops"),
    [
        pytest.param(("n1", "n3"), [], id="neither rack would have room"),
        pytest.param(("n1",), ["j8", "j9"], id="one rack has room"),
    ],
)
def test_nothing_is_preempted_for_rack_gang_unless_whole_rack_fits(
    others: tuple[str, ...], stops: list[str]
) -> None:
    """Two racks of two nodes with a GPU each; the tenant runs on the first node of both."""
    held = [batch(8, on("n0", [0])), batch(9, on("n2", [0]))]
    held += [batch(50 + n, on(name, [0]), tenant="nlp") for n, name in enumerate(others)]
    nodes = a_cluster(nodes=4, racks=2, gpus=1)
    job = shell(members=2, same_rack=True)
    plan = decided(a_full_tenant(*held, limit={"gpus": 2}, nodes=nodes, queue=[job]))
    assert sorted(evicted(plan)) == stops
    assert [[p.node_id for p in kept.placements] for kept in plan.reservations if kept.claim] == (
        [["n3", "n2"]] if stops else []
    )


def test_hopeless_jobs_do_not_exhaust_attempts_of_others() -> None:
    held = [batch(90 + n, on("n0", [n]), user="eve", preemptible=False) for n in range(3)]
    held.append(batch(99, on("n0", [3])))
    jobs = [shell(n, user=f"u{n}", gpus=3) for n in range(1, 9)] + [shell(20, submit_ms=NOW + 1)]
    plan = decided(a_full_tenant(*held, limit={"gpus": 4}, queue=jobs))
    assert evicted(plan) == ["j99"]


def test_same_state_gives_same_plan_and_is_unchanged() -> None:
    held = [batch(n, on("n0", [n - 6]), user=f"u{n % 2}") for n in (6, 7, 8, 9)]
    queue = [shell(1, gpus=2), shell(2, user="eve"), a_job(number=3, user="ben")]
    state = a_full_tenant(*held, limit={"gpus": 4}, queue=queue)
    before = state.snapshot()
    plan = decided(state)
    assert len(evicted(plan)) == 3
    assert state.snapshot() == before
    assert decided(state).to_json() == plan.to_json()
    assert decided(ClusterState.from_snapshot(before, POLICY)).to_json() == plan.to_json()
    assert state.holdings.of("vision").gpu_milli == 4_000


def test_place_is_not_freed_again_while_victim_stops() -> None:
    held = [batch(8, on("n0", [0])), batch(9, on("n0", [1]))]
    state = a_full_tenant(*held, limit={"gpus": 2})
    plan = decided(state)
    state.set_reservations(plan.reservations)
    leaving = state.running[plan.evictions[0].allocation_id].running
    state.finish(leaving.allocation.id)
    state.start(running(leaving.job, *leaving.allocation.placements, stopping=True))
    again = decide(state, POLICY, NOW + MINUTE)
    assert evicted(again) == []
    assert [kept.claim for kept in again.reservations] == [True]
    assert dict(again.job_reasons)["j1"] == Reason(
        ReasonCode.OWN_WORK, (("jobs", "job j8"), ("victims", 1))
    )


def test_reason_counts_victims_and_names_the_first() -> None:
    held = [batch(10 + n, on("n0", [n]) if n < 4 else on("n1", [n - 4])) for n in range(8)]
    plan = decided(a_full_tenant(*held, limit={"gpus": 8}, queue=[shell(gpus=4, members=2)]))
    assert str(dict(plan.job_reasons)["j1"]) == (
        "stops jobs j10, j11, j12, j13, j14, and 3 more of its own tenant, "
        "and starts when that has ended"
    )
