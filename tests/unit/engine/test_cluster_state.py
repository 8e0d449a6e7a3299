"""The cluster state: every change updates its indexes, and its snapshot rebuilds it."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.state.cluster_state import SPARE_SHAPES, ClusterState
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.node import DeviceMode, NodeClosure, NodeState
from gpu_scheduler.model.plan import DeviceShare, Placement, Reservation
from gpu_scheduler.model.tenant import Tier
from tests.builders import (
    HOUR,
    MINUTE,
    a_cluster,
    a_job,
    a_node,
    a_policy,
    a_state,
    a_tenant,
    an_array,
    on,
    running,
    started,
    waiting,
)

FAIR = a_policy(name="fair")


def a_full_state() -> ClusterState:
    return a_state(
        policy=FAIR,
        nodes=a_cluster(nodes=3, racks=2, gpus=4),
        tenants=[a_tenant(gpus=8, elastic=True), a_tenant(id="speech", tier=Tier.HIGH)],
        pools=[PoolQuota(pool=Pool.ONLINE, percent=50)],
        held=[
            running(a_job(number=90, gpus=2, cpus=4), on("n0", [0, 1])),
            running(a_job(number=91, gpus=0.5), on("n1", {0: 500}), end_ms=2 * HOUR),
            running(a_job(number=92, gpus=4, members=1), on("n2", range(4)), end_ms=3 * HOUR),
        ],
        queue=[
            a_job(number=1, gpus=4),
            a_job(number=2, gpus=0.5, tenant="speech", user="bob"),
            a_job(number=3, gpus=4, members=3),
            an_array(number=4, gpus=1, tasks="0-5", at_once=2),
        ],
        reservations=[
            Reservation(
                job_id="j3",
                job_number=3,
                at_ms=3 * HOUR,
                until_ms=4 * HOUR,
                placements=tuple(on(f"n{n}", range(4)) for n in range(3)),
            )
        ],
        tenant_usage={"vision": AccountUsage(usage=7), "speech": AccountUsage(usage=3)},
        user_usage={("vision", "ada"): AccountUsage(usage=7)},
    )


def test_state_rebuilt_from_snapshot_gives_same_plan() -> None:
    state = a_full_state()
    rebuilt = ClusterState.from_snapshot(state.snapshot(), FAIR)
    assert rebuilt.snapshot() == state.snapshot()
    for now_ms in (0, MINUTE, HOUR):
        assert decide(rebuilt, FAIR, now_ms).to_json() == decide(state, FAIR, now_ms).to_json()


def test_ended_allocations_hold_nothing() -> None:
    state = a_full_state()
    for allocation in ("j90.1", "j91.1", "j92.1"):
        state.finish(allocation)
    assert state.index.free_devices == 12
    assert (len(state.ends), state.running, state.by_class) == (0, {}, {})
    assert state.running_tasks == {}
    assert state.holdings.of("vision").gpu_milli == 0


def test_allocation_cannot_be_held_twice() -> None:
    held = running(a_job(number=9), on("n0", [0]))
    state = a_state(nodes=[a_node()], held=[held])
    with pytest.raises(InternalError, match=r"allocation j9\.1 exists twice"):
        state.start(held)


def test_rejected_allocation_changes_nothing() -> None:
    held = running(a_job(number=9), on("n0", [0]))
    state = a_state(nodes=[a_node()], held=[held])
    before = (state.index.free_devices, state.index.resources("n0").busy)
    with pytest.raises(InternalError):
        state.start(running(a_job(number=9), on("n0", [1])))
    assert (state.index.free_devices, state.index.resources("n0").busy) == before


def test_rejected_node_is_not_counted() -> None:
    state = a_state(nodes=[a_node()])
    with pytest.raises(InternalError, match="two nodes have the ordinal 0"):
        state.set_node(a_node(id="other"))
    assert state.total_gpu_milli == 8000


def test_gpu_total_follows_nodes_joining_and_leaving() -> None:
    state = a_state(nodes=a_cluster(nodes=2))
    state.set_node(a_node(ordinal=0, labels=(("zone", "a"),)))
    assert state.total_gpu_milli == 16_000
    state.remove_node("n1")
    assert state.total_gpu_milli == 8000


def test_unavailable_unheld_gpus_are_counted_as_unusable() -> None:
    closed = NodeClosure(since_ms=1)
    split = {"mode": DeviceMode.MIG, "mig_slices": (("1g.10gb", 7),)}
    nodes = [a_node(), a_node(ordinal=1), a_node(ordinal=2, gpus=1, device=split)]
    a_slice = Placement(0, "n2", (DeviceShare(0, 142, 0, "1g.10gb"),), cpu_milli=0, memory_mb=0)
    held = [
        running(a_job(number=1, gpus=2), on("n0", [0, 1])),
        running(a_job(number=2, gpus=0.3), on("n0", {2: 300})),
        running(a_job(number=3, mig_profile="1g.10gb"), a_slice),
    ]
    state = a_state(nodes=nodes, held=held)
    assert state.usable_gpu_milli == state.total_gpu_milli == 17_000
    state.set_node(replace(nodes[1], state=NodeState.SUSPECT))
    assert state.usable_gpu_milli == 17_000, "it may be back in a moment"
    state.set_node(replace(nodes[1], state=NodeState.LOST))
    assert state.usable_gpu_milli == 9000
    state.set_node(replace(nodes[2], closed=closed))
    assert state.usable_gpu_milli == 8142
    state.set_node(replace(nodes[0], closed=closed))
    assert state.usable_gpu_milli == 2442
    assert ClusterState.from_snapshot(state.snapshot(), state.policy).usable_gpu_milli == 2442
    for entry in list(state.running):
        state.finish(entry)
    assert state.usable_gpu_milli == 0
    state.remove_node("n1")
    state.set_node(nodes[0])
    assert (state.usable_gpu_milli, state.total_gpu_milli) == (8000, 9000)


def test_node_with_unknown_mig_profile_can_be_closed() -> None:
    split = {"mode": DeviceMode.MIG, "mig_slices": (("1c.3g.40gb", 2),)}
    node = a_node(gpus=1, device=split)
    state = a_state(nodes=[node])
    state.set_node(replace(node, closed=NodeClosure(since_ms=1)))
    assert (state.usable_gpu_milli, state.total_gpu_milli) == (0, 1000)


def test_victims_are_found_after_node_with_high_ordinal_joins() -> None:
    held = running(a_job(number=9, priority=250), on("n0", range(8)))
    wanted = a_job(number=1, gpus=8, priority=2500)
    state = a_state(policy=FAIR, nodes=[a_node()], held=[held], queue=[wanted])
    state.set_node(a_node(ordinal=1000, gpus=1))
    assert [eviction.allocation_id for eviction in decide(state, FAIR, 0).evictions] == ["j9.1"]


def test_shapes_without_queued_jobs_are_forgotten() -> None:
    state = a_state(policy=FAIR, nodes=[a_node(gpus=1)], queue=[a_job(number=1, gpus=2)])
    shape = state.queue.entries[1].shape
    for number in range(2, 3 * SPARE_SHAPES):
        state.enqueue(waiting(a_job(number=number, memory_mb=number)))
        state.dequeue(number)
    assert len(state.job_shapes) + state.index.shape_count <= SPARE_SHAPES + 8
    assert state.job_shapes[shape.id] is shape
    fresh = ClusterState.from_snapshot(state.snapshot(), FAIR)
    assert decide(fresh, FAIR, 0).to_json() == decide(state, FAIR, 0).to_json()


def test_tier_change_reorders_queue_and_keeps_reservations() -> None:
    policy = a_policy(name="easy", class_point_ms=MINUTE)
    state = a_state(
        policy=policy,
        nodes=[a_node(gpus=1)],
        tenants=[a_tenant(), a_tenant(id="speech")],
        queue=[a_job(number=1), a_job(number=2, tenant="speech")],
    )
    kept = Reservation(
        job_id="j2", job_number=2, at_ms=HOUR, until_ms=2 * HOUR, placements=(on("n0", [0]),)
    )
    state.set_reservations((kept,))
    assert [entry.number for entry in state.queue.in_order()] == [1, 2]
    state.set_tenant(a_tenant(id="speech", tier=Tier.CRITICAL))
    assert [entry.number for entry in state.queue.in_order()] == [2, 1]
    assert state.reservations == {2: kept}


def test_tier_change_applies_to_running_jobs() -> None:
    state = a_state(
        nodes=[a_node()], tenants=[a_tenant()], held=[running(a_job(number=9), on("n0", [0]))]
    )
    state.set_tenant(a_tenant(tier=Tier.LOW))
    assert list(state.by_class) == [750]
    assert state.index.free_devices == 7


def test_reservation_of_job_that_left_queue_is_dropped() -> None:
    state = a_full_state()
    assert list(state.reservations) == [3]
    state.dequeue(3)
    assert state.reservations == {}


def test_decide_rejects_another_policy_than_the_state_was_built_for() -> None:
    state = a_state(nodes=[a_node()])
    with pytest.raises(InternalError, match="built for policy 'easy', not 'fair'"):
        decide(state, FAIR, 0)


def test_cycle_examines_no_more_jobs_than_its_budget() -> None:
    policy = a_policy(name="skip", max_examined=3)
    jobs = [a_job(number=n, submit_ms=n) for n in range(1, 9)]
    plan = decide(a_state(policy=policy, nodes=[a_node()], queue=jobs), policy, 10)
    assert (plan.examined, plan.complete, started(plan)) == (3, False, ["j1", "j2", "j3"])


def test_cycle_examines_identical_jobs_once() -> None:
    policy = a_policy(name="skip")
    jobs = [a_job(number=n, gpus=8, submit_ms=n) for n in range(1, 100)]
    plan = decide(a_state(policy=policy, nodes=[a_node()], queue=jobs), policy, 100)
    assert started(plan) == ["j1"]
    assert plan.examined == 2
