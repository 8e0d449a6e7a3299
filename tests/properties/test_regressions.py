"""The smallest failing cases that the other property tests have found; each must stay fixed."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.control.messages import Cancel, Retry
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.forecast import forecast
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import NeverFits
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Job, Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Quota, Tenant
from tests.properties import test_reservations
from tests.properties.dump import dump_of
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import BRISK, HARDWARE, SMALL, STEP_MS, Scenario, Step, Work

ONE = Request(gpu_count=1)
TWO = Request(gpu_count=2)
FOUR = Request(gpu_count=4)
HALF = Request(gpu_count=1, gpu_share_milli=500)
MIXED, SMALLS, PAIR, SPLIT = HARDWARE[3], HARDWARE[2], HARDWARE[1], HARDWARE[4]


def node(hardware: tuple = PAIR, ordinal: int = 0, **changes: Any) -> Node:  # type: ignore[type-arg]
    values = {"id": f"n{ordinal}", "cpu_milli": 8_000, "memory_mb": 64_000} | changes
    return Node(ordinal=ordinal, devices=hardware, **values)


def work(name: str, *members: Request, steps: int = 1, exits: tuple = (), **changes: Any) -> Work:  # type: ignore[type-arg]
    job = Job(id=name, number=0, submit_ms=0, members=members, **changes)
    return Work(job, steps * STEP_MS, exits)


def array(last: int, max_running: int = 0) -> Array:
    return Array(tasks=IntervalSet(((0, last),)), max_running=max_running)


def story(nodes: list[Node], *actions: object, **changes: Any) -> Scenario:
    """A sequence of steps; a number between them is a pause."""
    steps, pause_ms = [], 0
    for deed in actions:
        if isinstance(deed, int):
            pause_ms = deed
        else:
            steps.append(Step(pause_ms, deed))
            pause_ms = 0
    return Scenario(nodes=tuple(nodes), steps=tuple(steps), **changes)


def run_to_end(scenario: Scenario, policy: str, physics: StopBehaviour | None = None) -> Rig:
    rig = Rig(scenario, policy, physics)
    rig.run()
    assert rig.waiting() == []
    return rig


# --- quotas


def test_optional_gang_members_stay_within_quota() -> None:
    tenant = Tenant(id="t1", quota=Quota(gpu_milli=2_000))
    gang = work("gang", ONE, ONE, ONE, min_members=2, tenant="t1")
    rig = Rig(story([node(SMALLS)], gang, tenants=(tenant,)), "easy")

    rig.advance()

    rig.audit.check_quota(tenant)


def test_job_of_one_pool_does_not_wait_because_another_is_full() -> None:
    pools = (
        PoolQuota(pool=Pool.ONLINE, percent=50, elastic=False),
        PoolQuota(pool=Pool.BATCH, percent=50, elastic=False),
    )
    batch = [work(name, ONE, pool=Pool.BATCH) for name in ("b1", "b2")]
    online = work("o1", ONE, pool=Pool.ONLINE)
    rig = Rig(story([node(PAIR)], *batch, online, pools=pools), "skip")

    rig.advance()

    assert ("o1", None) in rig.record.first_starts


def test_requested_gpu_memory_counts_against_quota() -> None:
    tenant = Tenant(id="t1", quota=Quota(gpu_memory_mb=10_000))
    jobs = [work(name, replace(ONE, gpu_memory_mb=6_000), tenant="t1") for name in ("j1", "j2")]
    rig = Rig(story([node(PAIR)], *jobs, tenants=(tenant,)), "easy")

    rig.advance()

    assert len(rig.audit.held) == 1


# --- arrays


@pytest.mark.parametrize("policy", ["las", "feedback"])
def test_array_tasks_do_not_evict_each_other_in_circles(policy: str) -> None:
    run_to_end(story([node(PAIR)], work("j", ONE, steps=6, array=array(4))), policy)


def test_array_can_be_cancelled_while_failed_task_awaits_retry() -> None:
    failing = work("j", ONE, exits=(1,), retries=1, array=array(1))
    run_to_end(story([node(PAIR)], failing, STEP_MS, Cancel("j")), "easy")


def test_retried_task_gets_unused_allocation_id() -> None:
    failing = work("j", ONE, exits=(1,), array=array(2))
    run_to_end(story([node(HARDWARE[0])], failing, 2 * STEP_MS + 1, Retry("j")), "easy")


def test_all_array_tasks_with_reservation_start_when_there_is_room() -> None:
    wide = work("wide", FOUR)
    tasks = work("tasks", ONE, array=array(3))
    rig = Rig(story([node(SMALLS)], wide, tasks), "easy")
    while rig.now_ms < STEP_MS:
        rig.advance()

    assert len(rig.audit.held) == 4


# --- preemption


@pytest.mark.parametrize("policy", ["las", "feedback"])
def test_jobs_that_lose_progress_do_not_evict_each_other_for_ever(policy: str) -> None:
    jobs = [work(name, TWO, steps=5) for name in ("j0", "j1")]
    run_to_end(story([node(PAIR)], *jobs), policy, StopBehaviour(keeps_progress=False))


def check_preemptors_start(rig: Rig) -> None:
    started = {(at_ms, s.job_id) for at_ms, plan in rig.record.plans for s in plan.starts}
    wanted = {(at_ms, e.for_job_id) for at_ms, plan in rig.record.plans for e in plan.evictions}
    assert wanted <= started


def test_place_being_freed_is_kept_for_preemptor() -> None:
    long = work("long", ONE, steps=4, priority=250)
    wide = work("wide", TWO, priority=250)
    narrow = work("narrow", ONE, priority=2500)

    rig = run_to_end(story([node(PAIR)], long, 3 * STEP_MS, wide, narrow), "feedback")

    check_preemptors_start(rig)


def test_nothing_is_evicted_for_job_blocked_by_higher_reservation() -> None:
    firm = work("firm", ONE, steps=2, priority=250, preemptible=False)
    soft = work("soft", ONE, steps=2, priority=250)
    middle = work("middle", ONE, Request(gpu_count=1, gpu_extra_milli=500), steps=2)
    top = work("top", TWO, TWO, priority=2500)

    rig = run_to_end(story([node(SMALLS)], firm, soft, STEP_MS, middle, top), "fair")

    check_preemptors_start(rig)


def test_place_is_freed_only_where_whole_gang_then_fits() -> None:
    shares = Request(gpu_count=2, gpu_share_milli=300, gpu_memory_mb=9_000)
    gang = work(
        "gang",
        Request(gpu_count=3, contiguous=True),
        replace(HALF, device_ids=(1,)),
        ONE,
        min_members=2,
    )
    nodes = [node(PAIR, 0, rack="r1"), node(SMALLS, 1, rack="r1")]
    first = work("first", shares, steps=2)

    rig = run_to_end(story(nodes, first, work("pair", ONE, ONE, steps=3), STEP_MS, gang), "srtf")

    check_preemptors_start(rig)


def test_nothing_is_evicted_for_gang_whose_rack_would_not_fit() -> None:
    nodes = [node(PAIR, 0, rack="r1"), node(PAIR, 1, rack="r2"), node(PAIR, 2, rack="r2")]
    low = [work(f"low{n}", TWO, steps=12, priority=0) for n in range(3)]
    low[1] = replace(low[1], job=replace(low[1].job, preemptible=False))
    gang = work("gang", TWO, TWO, priority=2500, same_rack=True)
    rig = Rig(story(nodes, *low, STEP_MS, gang), "fair")
    while rig.now_ms < STEP_MS:
        rig.advance()

    assert rig.record.evictions == 0


# --- places


def test_job_whose_labels_and_gpus_are_on_no_common_node_is_rejected() -> None:
    nodes = [node(PAIR, 0), node((), 1, labels=(("zone", "a"),))]
    job = work("j", Request(gpu_count=1, node_labels=(("zone", "a"),)))
    rig = Rig(story(nodes), "easy")

    assert not rig.submit(job)


def test_gang_of_shares_for_one_rack_is_accepted_where_it_fits() -> None:
    nodes = [node(HARDWARE[0], 0, rack="r1"), node(HARDWARE[0], 1, rack="r2")]
    rig = Rig(story(nodes), "easy")

    try:
        assert rig.submit(work("j", HALF, HALF, same_rack=True))
    except NeverFits:
        pytest.fail("two halves fit on one GPU of a rack")


@pytest.mark.parametrize("policy", ["fgd", "balance"])
def test_share_for_named_device_starts_there(policy: str) -> None:
    run_to_end(story([node(PAIR)], work("j", replace(HALF, device_ids=(1,)))), policy)


SCORED = ("random", "dot_product", "clustering", "packing", "best_fit", "fgd", "balance")


@pytest.mark.parametrize("policy", SCORED)
def test_ranking_does_not_take_used_device_for_free(policy: str) -> None:
    memory_only = Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=50_000)
    first = work("m", memory_only)
    run_to_end(story([node(PAIR)], first, work("j", TWO), work("k", memory_only)), policy)


@pytest.mark.parametrize("policy", SCORED)
def test_ranking_sees_freed_mig_slices(policy: str) -> None:
    slices = work("j", Request(gpu_count=2, mig_profile="1g.10gb"), array=array(3))
    run_to_end(story([node(SPLIT)], slices), policy)


# --- reservations

CALM = test_reservations.CALM


@pytest.mark.parametrize(
    "scenario",
    [
        story(
            [node(SMALLS)],
            work("j0", ONE),
            work("j1", ONE),
            work("wide", Request(gpu_count=3, contiguous=True)),
            work("late", ONE, steps=2),
        ),
        story(
            [node(MIXED)],
            work("j0", ONE),
            work("j1", ONE),
            work("wide", TWO),
            work("late", ONE, steps=2),
        ),
        story(
            [node(PAIR)],
            work("j0", replace(HALF, gpu_share_milli=600), steps=1),
            work("j1", HALF, steps=4),
            work("wide", ONE),
            work("late", replace(HALF, gpu_share_milli=400), steps=3),
        ),
    ],
    ids=["contiguous", "two models", "shares"],
)
@pytest.mark.parametrize("policy", ["easy", "conservative", "short"])
def test_later_job_does_not_take_reserved_devices(scenario: Scenario, policy: str) -> None:
    test_reservations.holds_for(scenario, CALM[policy])


def test_early_start_of_older_reservation_does_not_delay_younger_one() -> None:
    scenario = story(
        [node(SMALLS), node(SMALLS, 1)],
        work("j0", FOUR, FOUR),
        work("j1", TWO),
        work("j2", ONE, FOUR, ONE, min_members=2),
        work("j3", FOUR),
    )
    test_reservations.holds_for(scenario, CALM["conservative"])


# --- determinism


def state_after(scenario: Scenario, policy: str, moments: int = 1) -> tuple[int, ClusterState]:
    rig = Rig(scenario, policy)
    for _ in range(moments):
        rig.advance()
    return rig.now_ms, rig.core.state.cluster


@pytest.mark.parametrize("policy", ["easy", "best_fit"])
def test_two_shares_released_at_once_leave_nothing_in_index(policy: str) -> None:
    pair = Request(gpu_count=2, gpu_share_milli=500)
    _, empty = state_after(story([node(PAIR)]), policy, 0)
    before = dump_of(empty)["index"]["part_rows"]

    _, after = state_after(story([node(PAIR)], work("j", pair)), policy, 2)

    assert dump_of(after)["index"]["part_rows"] == before


def test_random_placement_depends_only_on_state() -> None:
    nodes = [node(PAIR, ordinal) for ordinal in range(8)]
    rig = Rig(story(nodes), "random")
    rig.submit(work("j", ONE))
    cluster = rig.core.state.cluster

    plans = {decide(cluster, cluster.policy, 0).to_json() for _ in range(8)}

    assert len(plans) == 1


def test_node_order_does_not_change_plan() -> None:
    nodes = [node(PAIR, 0), node(PAIR, 1, cpu_milli=4_000)]
    plans: set[tuple[Any, ...]] = set()
    for order in (nodes, nodes[::-1]):
        rig = Rig(story(order), "easy")
        rig.submit(work("j", ONE))
        plan: Plan = decide(rig.core.state.cluster, rig.core.state.policy, 0)
        plans.add(plan.starts)

    assert len(plans) == 1


def test_shape_numbers_in_plan_do_not_depend_on_history() -> None:
    rig = Rig(story([node(PAIR)], work("gone", HALF)), "fifo")
    rig.run()
    for name in ("a", "b"):
        rig.submit(work(name, TWO))
    cluster = rig.core.state.cluster
    fresh = ClusterState.from_snapshot(cluster.snapshot(), cluster.policy)

    plans = {decide(p, p.policy, rig.now_ms).to_json() for p in (cluster, fresh)}

    assert len(plans) == 1


# --- forecasts


def test_forecast_includes_quotas_becoming_free() -> None:
    tenant = Tenant(id="t1", quota=Quota(gpu_milli=1_000))
    jobs = [work(name, ONE, tenant="t1") for name in ("a", "b")]
    now_ms, cluster = state_after(story([node(PAIR)], *jobs, tenants=(tenant,)), "easy")

    assert set(forecast(cluster, now_ms)) == set(cluster.queue.entries)


def test_forecast_includes_array_tasks_ending() -> None:
    tasks = work("j", ONE, array=array(3, max_running=1))
    now_ms, cluster = state_after(story([node(PAIR)], tasks), "easy")

    assert set(forecast(cluster, now_ms)) == set(cluster.queue.entries)


def test_calm_policies_have_preemption_off() -> None:
    assert all(policy.preemption is Preemption.NONE for policy in CALM.values())
    assert SMALL in {device.model for device in MIXED}
    assert set(SCORED) <= set(BRISK)
