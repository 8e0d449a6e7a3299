"""Victim selection: only if sufficient, only preemptible jobs, cheapest first."""

from dataclasses import replace

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import Feedback, Policy, Preemption, RestartCost
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import PoolQuota, Running
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.plan import Plan, Reservation
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.model.tenant import Tenant
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
    waiting,
)

NOW = 10 * HOUR
WIDE = 40
"""More nodes than a search for one member examines."""
PARTS = {Pool.ONLINE: 60, Pool.BATCH: 40}
CLASS = a_policy(name="easy", preemption=Preemption.CLASS, class_point_ms=MINUTE)


def decided(state: ClusterState) -> Plan:
    return decide(state, state.policy, NOW)


def low(number: int, *places, **changes) -> Running:
    """A job of a low class that holds these places for another day."""
    of_running = {
        name: changes.pop(name)
        for name in (
            "start_ms",
            "checkpoint_ms",
            "preemptions",
            "backfilled",
            "overrun",
            "stopping",
        )
        if name in changes
    }
    values = {"priority": 250, "members": len(places), "gpus": 1}
    job = a_job(number=number, **(values | changes))
    return running(job, *places, end_ms=NOW + DAY, **of_running)


def urgent(**changes):
    return a_job(**({"number": 1, "priority": 2500, "submit_ms": NOW} | changes))


def victims(*held: Running, job=None, policy: Policy = CLASS, **changes) -> list[str]:
    values = {"nodes": [a_node(gpus=2)], "queue": [job or urgent()]}
    return evicted(decided(a_state(policy=policy, held=held, **(values | changes))))


# --- preemption reasons


@pytest.mark.parametrize(("gap", "stops"), [(499, []), (500, ["j8"]), (501, ["j8"])])
def test_preemptor_class_must_be_higher_by_gap(gap: int, stops: list[str]) -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, priority=750)
    assert victims(held, job=urgent(priority=750 + gap)) == stops


def test_nothing_is_preempted_without_preemption_reason() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2)
    assert victims(held, policy=a_policy(name="easy", class_point_ms=MINUTE)) == []


def test_age_is_no_preemption_reason() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, priority=750, submit_ms=NOW)
    assert victims(held, job=a_job(number=1, priority=750, submit_ms=0)) == []


def test_eviction_names_reason_and_reserves_place() -> None:
    state = a_state(
        policy=CLASS,
        nodes=[a_node(gpus=2)],
        held=[low(8, on("n0", [0, 1]), gpus=2)],
        queue=[urgent(gpus=2)],
    )
    plan = decided(state)
    eviction = plan.evictions[0]
    assert (eviction.allocation_id, eviction.for_job_id, eviction.ground) == ("j8.1", "j1", "class")
    assert [(r.job_id, r.claim) for r in plan.reservations] == [("j1", True)]
    reason = dict(plan.job_reasons)["j1"]
    assert reason.code is ReasonCode.CLAIMED
    assert str(reason) == "its place is being cleared of 1 job of a lower class"


def test_lent_place_is_reclaimed_within_same_class() -> None:
    tenants = [a_tenant(id=name, gpus=2, elastic=True) for name in ("vision", "speech")]
    held = [low(n, on("n0", [n - 10]), tenant="speech") for n in range(10, 14)]
    state = a_state(
        policy=CLASS,
        nodes=[a_node(gpus=4)],
        tenants=tenants,
        held=held,
        queue=[a_job(number=1, priority=250)],
    )
    plan = decided(state)
    assert len(plan.evictions) == 1
    assert plan.evictions[0].ground == "lent"
    told = str(dict(plan.job_reasons)["j1"])
    assert told == "its place is being cleared of 1 job on what was only lent"


def test_tenant_within_guarantee_is_not_reclaimed() -> None:
    tenants = [a_tenant(id=name, gpus=4, elastic=True) for name in ("vision", "speech")]
    held = [low(n, on("n0", [n - 10]), tenant="speech") for n in range(10, 14)]
    job = a_job(number=1, priority=250)
    assert victims(*held, job=job, nodes=[a_node(gpus=4)], tenants=tenants) == []


def test_lent_place_is_found_among_many_nodes_of_others() -> None:
    tenants = [a_tenant(id=name, gpus=2, elastic=True) for name in ("vision", "speech")]
    lent = [low(n, on(f"n{n}", [0]), tenant="speech") for n in range(3)]
    others = [low(100 + n, on(f"n{3 + n}", [0]), tenant="other") for n in range(WIDE)]
    job = a_job(number=10, priority=250)
    stopped = victims(*lent, *others, job=job, nodes=a_cluster(nodes=43, gpus=1), tenants=tenants)
    assert len(stopped) == 1


def test_interactive_job_finds_own_tenant_jobs_among_many_nodes() -> None:
    own = low(8, on("n0", [0]))
    others = [low(100 + n, on(f"n{1 + n}", [0]), tenant="other") for n in range(WIDE)]
    policy = replace(CLASS, interactive_gpu_milli=8000)
    job = a_job(number=1, priority=250, interactive=True)
    nodes = a_cluster(nodes=41, gpus=1)
    assert victims(own, *others, job=job, nodes=nodes, policy=policy) == ["j8"]


def test_online_reclaims_guarantee_among_many_online_nodes() -> None:
    lent = [low(100 + n, on(f"n{n}", [0])) for n in range(WIDE)]
    online = [low(200 + n, on(f"n{WIDE + n}", [0]), pool=Pool.ONLINE) for n in range(WIDE)]
    pools = [PoolQuota(pool=pool, percent=percent) for pool, percent in PARTS.items()]
    job = a_job(number=1, priority=250, pool=Pool.ONLINE)
    nodes = a_cluster(nodes=2 * WIDE, gpus=1)
    assert len(victims(*lent, *online, job=job, nodes=nodes, pools=pools)) == 1


@pytest.mark.parametrize(
    ("first", "priority"),
    [
        pytest.param(a_tenant(id="meek", can_preempt_others=False), 2500, id="may not preempt"),
        pytest.param(a_tenant(id="open"), 250, id="not borrowing"),
    ],
)
def test_job_without_victims_does_not_block_job_with_victims(first: Tenant, priority: int) -> None:
    tenants = [first, *(a_tenant(id=name, gpus=2, elastic=True) for name in ("vision", "speech"))]
    held = [low(n, on("n0", [n - 10]), tenant="speech") for n in range(10, 14)]
    queue = [
        a_job(number=1, tenant=first.id, priority=priority, submit_ms=0),
        a_job(number=2, priority=priority, submit_ms=NOW),
    ]
    nodes = [a_node(gpus=4)]
    plan = decided(a_state(policy=CLASS, nodes=nodes, tenants=tenants, held=held, queue=queue))
    assert [eviction.for_job_id for eviction in plan.evictions] == ["j2"]


def test_jobs_without_victims_do_not_exhaust_attempts_of_guaranteed_jobs() -> None:
    tenants = [a_tenant(id=name, gpus=2, elastic=True) for name in ("vision", "speech")]
    held = [low(n, on("n0", [n - 10]), tenant="speech") for n in range(10, 14)]
    others = [a_job(number=n, tenant="open", priority=250, cpus=n) for n in range(1, 9)]
    queue = [*others, a_job(number=9, priority=250, submit_ms=NOW)]
    nodes = [a_node(gpus=4)]
    plan = decided(a_state(policy=CLASS, nodes=nodes, tenants=tenants, held=held, queue=queue))
    assert [eviction.for_job_id for eviction in plan.evictions] == ["j9"]


def test_overrun_backfilled_job_yields_to_due_reservation_of_same_class() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, backfilled=True, overrun=True)
    due = Reservation(
        job_id="j1", job_number=1, at_ms=NOW, until_ms=NOW + HOUR, placements=(on("n0", [0, 1]),)
    )
    job = a_job(number=1, priority=250, gpus=2)
    assert victims(held, job=job, reservations=[due]) == ["j8"]
    assert victims(held, job=job) == []
    assert victims(held, job=job, reservations=[replace(due, at_ms=NOW + 1)]) == []


def test_postponed_reservation_is_due_since_first_promised_time() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, backfilled=True, overrun=True)
    put_off = Reservation(
        job_id="j1",
        job_number=1,
        at_ms=NOW + HOUR,
        until_ms=NOW + 2 * HOUR,
        placements=(on("n0", [0, 1]),),
        promised_ms=NOW,
    )
    job = a_job(number=1, priority=250, gpus=2)
    assert victims(held, job=job, reservations=[put_off]) == ["j8"]


# --- jobs that are not preempted


@pytest.mark.parametrize(
    "held",
    [
        low(8, on("n0", [0, 1]), gpus=2, preemptible=False),
        low(8, on("n0", [0, 1]), gpus=2, stopping=True),
        low(8, on("n0", [0, 1]), gpus=2, preemptions=3),
        replace(low(8, on("n0", [0, 1]), gpus=2), expected_end_ms=NOW + MINUTE),
    ],
    ids=["not preemptible", "stopping already", "preempted three times", "ends within the minute"],
)
def test_non_preemptible_jobs_are_not_preempted(held: Running) -> None:
    assert victims(held) == []


def test_job_ending_just_after_eviction_time_may_be_preempted() -> None:
    held = replace(low(8, on("n0", [0, 1]), gpus=2), expected_end_ms=NOW + MINUTE + 1)
    assert victims(held) == ["j8"]


def test_tenant_can_forbid_preemption_of_its_jobs() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, tenant="speech")
    assert victims(held, tenants=[a_tenant(id="speech", allow_preemption=False)]) == []


def test_tenant_can_be_forbidden_to_preempt_others() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, tenant="speech")
    assert victims(held, tenants=[a_tenant(id="vision", can_preempt_others=False)]) == []


def test_nothing_is_preempted_if_not_enough() -> None:
    held = [
        low(8, on("n0", [0])),
        low(9, on("n0", [1]), preemptible=False),
    ]
    assert victims(*held, job=urgent(gpus=2)) == []


def test_failed_node_is_searched_again_after_change() -> None:
    held = [low(8, on("n0", [0])), low(9, on("n0", [1]), preemptible=False)]
    state = a_state(
        policy=CLASS, nodes=[a_node(gpus=2)], held=held, queue=[waiting(urgent(gpus=2))]
    )
    assert evicted(decided(state)) == []
    state.finish("j9.1")
    state.start(low(7, on("n0", [1])))
    assert sorted(evicted(decided(state))) == ["j7", "j8"]


def test_nothing_is_preempted_if_job_fits_anyway() -> None:
    state = a_state(
        policy=CLASS, nodes=[a_node(gpus=2)], held=[low(8, on("n0", [0]))], queue=[urgent()]
    )
    plan = decided(state)
    assert (started(plan), evicted(plan)) == (["j1"], [])


def test_job_over_quota_preempts_nothing() -> None:
    held = low(8, on("n0", [0, 1]), gpus=2, tenant="speech")
    assert victims(held, tenants=[a_tenant(id="vision", gpus=0)]) == []


# --- cost of victims


def test_latest_started_job_is_first_victim() -> None:
    held = [low(8, on("n0", [0]), start_ms=HOUR), low(9, on("n0", [1]), start_ms=9 * HOUR)]
    assert victims(*held) == ["j9"]


def test_checkpointed_work_is_not_counted_as_lost() -> None:
    held = [
        low(8, on("n0", [0]), start_ms=HOUR, checkpoint_ms=NOW - MINUTE),
        low(9, on("n0", [1]), start_ms=9 * HOUR),
    ]
    assert victims(*held) == ["j8"]


def test_previously_preempted_job_costs_more() -> None:
    held = [
        low(8, on("n0", [0]), start_ms=9 * HOUR, preemptions=1),
        low(9, on("n0", [1]), start_ms=8 * HOUR + 30 * MINUTE),
    ]
    assert victims(*held) == ["j9"]


def test_many_gpus_cost_more_than_few() -> None:
    nodes = [a_node(gpus=6)]
    held = [
        low(8, on("n0", [0, 1, 2, 3]), gpus=4, start_ms=9 * HOUR),
        low(9, on("n0", [4, 5]), gpus=2, start_ms=9 * HOUR),
    ]
    assert victims(*held, job=urgent(gpus=2), nodes=nodes) == ["j9"]


def test_overrun_backfilled_job_is_first_victim() -> None:
    held = [
        low(8, on("n0", [0]), start_ms=HOUR, backfilled=True, overrun=True),
        low(9, on("n0", [1]), start_ms=NOW - MINUTE),
    ]
    assert victims(*held) == ["j8"]


def test_node_with_least_loss_is_chosen() -> None:
    nodes = a_cluster(nodes=2, gpus=2)
    held = [
        low(8, on("n0", [0, 1]), gpus=2, start_ms=HOUR),
        low(9, on("n1", [0, 1]), gpus=2, start_ms=9 * HOUR),
    ]
    assert victims(*held, job=urgent(gpus=2), nodes=nodes) == ["j9"]


def test_no_victim_is_needless() -> None:
    """The cheap job alone is not enough; with the large one gone, it need not go."""
    nodes = [a_node(gpus=4)]
    held = [
        low(8, on("n0", [0]), start_ms=NOW - MINUTE),
        low(9, on("n0", [1, 2, 3]), gpus=3, start_ms=HOUR),
    ]
    assert victims(*held, job=urgent(gpus=3), nodes=nodes) == ["j9"]


def test_gang_is_preempted_as_whole() -> None:
    nodes = a_cluster(nodes=2, gpus=2)
    held = low(8, on("n0", [0, 1]), on("n1", [0, 1]), gpus=2)
    state = a_state(policy=CLASS, nodes=nodes, held=[held], queue=[urgent(gpus=2)])
    assert [e.allocation_id for e in decided(state).evictions] == ["j8.1"]


def test_gang_gets_every_place_or_preempts_nothing() -> None:
    nodes = a_cluster(nodes=3, gpus=2)
    held = [low(8 + n, on(f"n{n}", [0, 1]), gpus=2) for n in range(3)]
    assert len(victims(*held, job=urgent(gpus=2, members=2), nodes=nodes)) == 2
    held[0] = low(8, on("n0", [0, 1]), gpus=2, preemptible=False)
    held[1] = low(9, on("n1", [0, 1]), gpus=2, preemptible=False)
    assert victims(*held, job=urgent(gpus=2, members=2), nodes=nodes) == []


def two_urgent_jobs() -> Plan:
    held = [low(8, on("n0", [0])), low(9, on("n0", [1]))]
    jobs = [urgent(number=1), urgent(number=2)]
    return decided(a_state(policy=CLASS, nodes=[a_node(gpus=2)], held=held, queue=jobs))


def test_victim_of_one_member_is_spared_if_others_make_room_for_all() -> None:
    cheap = low(8, on("n0", [0, 1]), gpus=2, start_ms=NOW - MINUTE)
    gang = low(9, on("n0", [2, 3]), on("n1", [0, 1]), gpus=2, start_ms=NOW - HOUR)
    nodes = [a_node(ordinal=0, gpus=4), a_node(ordinal=1, gpus=2)]
    assert victims(cheap, gang, job=urgent(members=2, gpus=2), nodes=nodes) == ["j9"]


def test_gang_frees_more_nodes_than_search_limit_of_one_member() -> None:
    held = [low(100 + n, on(f"n{n}", [0])) for n in range(WIDE)]
    nodes = a_cluster(nodes=WIDE, gpus=1)
    assert len(victims(*held, nodes=nodes, job=urgent(members=WIDE))) == WIDE


def test_gang_gets_all_nodes_freed_by_wide_gang() -> None:
    held = low(8, *(on(f"n{n}", [0]) for n in range(WIDE)))
    nodes = a_cluster(nodes=WIDE, gpus=1)
    assert victims(held, nodes=nodes, job=urgent(members=WIDE)) == ["j8"]


def test_two_urgent_jobs_do_not_claim_same_victim() -> None:
    plan = two_urgent_jobs()
    assert len(set(evicted(plan))) == len(evicted(plan))


def test_two_urgent_jobs_free_places_on_one_node_in_one_cycle() -> None:
    plan = two_urgent_jobs()
    assert sorted(evicted(plan)) == ["j8", "j9"]
    assert {eviction.for_job_id for eviction in plan.evictions} == {"j1", "j2"}


def test_due_reservation_does_not_take_place_claimed_in_same_cycle() -> None:
    due = Reservation(
        job_id="j2", job_number=2, at_ms=NOW, until_ms=NOW + HOUR, placements=(on("n1", [0]),)
    )
    state = a_state(
        policy=CLASS,
        nodes=a_cluster(nodes=2, gpus=2),
        held=[low(8, on("n0", [0, 1]), gpus=2)],
        queue=[urgent(gpus=2, members=2), a_job(number=2, gpus=1, priority=250, submit_ms=NOW)],
        reservations=[due],
    )
    plan = decided(state)
    assert (evicted(plan), started(plan)) == (["j8"], [])


def test_shares_are_freed_like_whole_devices() -> None:
    held = [low(8, on("n0", {0: 500}), gpus=0.5), low(9, on("n0", {0: 400}), gpus=0.4)]
    nodes = [a_node(gpus=1)]
    assert victims(*held, job=urgent(gpus=0.6), nodes=nodes) == ["j8"]
    assert sorted(victims(*held, job=urgent(gpus=1), nodes=nodes)) == ["j8", "j9"]


def test_labels_are_respected() -> None:
    nodes = [a_node(ordinal=0, gpus=1), a_node(ordinal=1, gpus=1, labels=(("zone", "a"),))]
    held = [low(8, on("n0", [0]), start_ms=9 * HOUR), low(9, on("n1", [0]), start_ms=HOUR)]
    assert victims(*held, job=urgent(node_labels=(("zone", "a"),)), nodes=nodes) == ["j9"]


# --- by attained service, by remaining time


FEEDBACK = a_policy(
    name="skip",
    preemption=Preemption.FEEDBACK,
    feedback=Feedback(thresholds_ms=(5 * HOUR,), by_gpus=False, quantum_ms=HOUR),
)


def ran(hours: float, **changes) -> Running:
    job = a_job(number=8)
    start_ms = NOW - round(hours * HOUR)
    return running(job, on("n0", [0]), start_ms=start_ms, end_ms=NOW + DAY, **changes)


@pytest.mark.parametrize(
    ("held", "stops"),
    [
        (ran(6), True),
        (ran(4), False),
        (ran(0.5, served_ms=6 * HOUR), False),
        (ran(2, served_ms=4 * HOUR), True),
        (ran(6, protected=True), False),
    ],
    ids=["demoted", "not yet", "within the quantum", "demoted in two attempts", "protected"],
)
def test_feedback_preempts_only_jobs_on_lower_level(held: Running, stops: bool) -> None:
    found = victims(held, job=a_job(number=1), policy=FEEDBACK, nodes=[a_node(gpus=1)])
    assert found == (["j8"] if stops else [])


def test_feedback_does_not_preempt_its_own_level() -> None:
    job = waiting(a_job(number=1), served_ms=6 * HOUR, expected_ms=DAY)
    assert victims(ran(6), job=job, policy=FEEDBACK, nodes=[a_node(gpus=1)]) == []


def test_protected_job_preempts_unprotected_ones() -> None:
    job = waiting(a_job(number=1), served_ms=6 * HOUR, expected_ms=DAY, protected=True)
    assert victims(ran(6), job=job, policy=FEEDBACK, nodes=[a_node(gpus=1)]) == ["j8"]
    assert victims(ran(2), job=job, policy=FEEDBACK, nodes=[a_node(gpus=1)]) == ["j8"]


def test_srtf_preempts_only_if_gain_exceeds_eviction_cost() -> None:
    policy = a_policy(name="srtf")
    held = running(a_job(number=8), on("n0", [0]), end_ms=NOW + 2 * HOUR)

    def stops(expected_ms: int) -> list[str]:
        job = waiting(a_job(number=1), expected_ms=expected_ms)
        return victims(held, job=job, policy=policy, nodes=[a_node(gpus=1)])

    assert stops(HOUR) == ["j8"]
    assert stops(2 * HOUR - policy.eviction_ms) == []


# --- by expected remaining work and the cost of a restart


RESTART = replace(CLASS, restart=RestartCost(restart_ms=10 * MINUTE, checkpoint_every_ms=HOUR))


def ends_at(held: Running, end_ms: int) -> Running:
    return replace(held, expected_end_ms=end_ms)


def test_job_that_soon_ends_is_spared_until_it_exceeds_its_expectation() -> None:
    soon = ends_at(low(8, on("n0", [0, 1]), gpus=2), NOW + 20 * MINUTE)
    assert victims(soon) == ["j8"]
    assert victims(soon, policy=RESTART) == []
    assert victims(replace(soon, overrun=True), policy=RESTART) == ["j8"]


def test_job_is_spared_for_no_longer_than_bound() -> None:
    held = ends_at(low(8, on("n0", [0, 1]), gpus=2), NOW + 40 * MINUTE)
    bounds = {spare: RestartCost(restart_ms=DAY, spare_ms=spare) for spare in (HOUR, 30 * MINUTE)}
    assert victims(held, policy=replace(CLASS, restart=bounds[HOUR])) == []
    assert victims(held, policy=replace(CLASS, restart=bounds[30 * MINUTE])) == ["j8"]


def test_of_equal_losses_job_with_more_left_to_run_is_victim() -> None:
    held = [low(8, on("n0", [0])), ends_at(low(9, on("n0", [1])), NOW + 2 * HOUR)]
    assert victims(*held, policy=RESTART) == ["j8"]
    held = [ends_at(held[0], NOW + 2 * HOUR), ends_at(held[1], NOW + DAY)]
    assert victims(*held, policy=RESTART) == ["j9"]


def test_without_checkpoints_recent_start_is_cheapest_and_with_them_age_does_not_count() -> None:
    old, young = low(8, on("n0", [0])), low(9, on("n0", [1]), start_ms=NOW - 2 * HOUR)
    young = ends_at(young, NOW + 3 * HOUR)
    assert victims(old, young) == ["j9"]
    assert victims(old, young, policy=replace(CLASS, restart=RestartCost())) == ["j9"]
    assert victims(old, young, policy=RESTART) == ["j8"]


def test_reclaim_of_what_was_lent_spares_no_job_for_its_restart() -> None:
    tenants = [a_tenant(id=name, gpus=2, elastic=True) for name in ("vision", "speech")]
    held = [
        ends_at(low(n, on("n0", [n - 10]), tenant="speech"), NOW + 5 * MINUTE)
        for n in range(10, 14)
    ]
    found = victims(
        *held,
        job=urgent(priority=250),
        policy=RESTART,
        nodes=[a_node(gpus=4)],
        tenants=tenants,
    )
    assert len(found) == 1
