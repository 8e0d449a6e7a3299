"""Reservations of waiting jobs, and backfill around them."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.plan import Placement, Plan, Reservation
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.model.request import Topology
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    a_cluster,
    a_job,
    a_node,
    a_policy,
    a_state,
    an_array,
    on,
    running,
    started,
    waiting,
)

EASY = a_policy(name="easy")
CONSERVATIVE = a_policy(name="conservative")


def decided(state: ClusterState, now_ms: int = 0) -> Plan:
    return decide(state, state.policy, now_ms)


def reserved(plan: Plan) -> dict[str, tuple[int, list[str]]]:
    """Time and place of the reservations of jobs."""
    return {
        r.job_id: (r.at_ms, [placement.node_id for placement in r.placements])
        for r in plan.reservations
    }


def busy(gpus: int, *, until: int, node: str = "n0", number: int = 99, first: int = 0):
    job = a_job(number=number, gpus=gpus)
    return running(job, on(node, range(first, first + gpus)), end_ms=until)


def test_first_blocked_job_reserves_earliest_place() -> None:
    state = a_state(
        nodes=a_cluster(nodes=2, gpus=4),
        held=[busy(3, until=2 * HOUR), busy(4, until=HOUR, node="n1", number=98)],
        queue=[a_job(number=1, gpus=4)],
    )
    assert reserved(decided(state)) == {"j1": (HOUR, ["n1"])}


def test_later_job_backfills_only_if_head_is_not_delayed() -> None:
    def passes(gpus: int, estimate_ms: int) -> bool:
        state = a_state(
            nodes=[a_node(gpus=8)],
            held=[busy(4, until=HOUR)],
            queue=[a_job(number=1, gpus=6), a_job(number=2, gpus=gpus, estimate_ms=estimate_ms)],
        )
        return "j2" in started(decided(state))

    assert passes(gpus=4, estimate_ms=HOUR), "it ends in time"
    assert not passes(gpus=4, estimate_ms=HOUR + 1), "it would be in the way"
    assert passes(gpus=2, estimate_ms=DAY), "there is room beside the head"
    assert not passes(gpus=3, estimate_ms=DAY)


def test_two_jobs_do_not_both_get_room_beside_head() -> None:
    state = a_state(
        nodes=[a_node(gpus=8)],
        held=[busy(4, until=HOUR)],
        queue=[
            a_job(number=1, gpus=6),
            a_job(number=2, gpus=1, estimate_ms=DAY),
            a_job(number=3, gpus=2, estimate_ms=DAY),
            a_job(number=4, gpus=1, estimate_ms=DAY),
        ],
    )
    plan = decided(state)
    assert started(plan) == ["j2", "j4"]
    reasons = dict(plan.job_reasons)
    assert reasons["j3"].code is ReasonCode.RESERVED
    assert reasons["j3"].get("job") == "j1"


def test_starts_before_reservation_are_marked_backfilled() -> None:
    state = a_state(
        nodes=[a_node(gpus=8)],
        held=[busy(2, until=HOUR)],
        queue=[
            a_job(number=1, gpus=2),
            a_job(number=2, gpus=8),
            a_job(number=3, gpus=1, estimate_ms=MINUTE),
        ],
    )
    assert [(s.job_id, s.backfilled) for s in decided(state).starts] == [
        ("j1", False),
        ("j3", True),
    ]


def test_easy_protects_head_and_conservative_protects_all() -> None:
    """j3 would leave j1 its 3 GPUs at one o'clock, and keep j2 from its 4 at two."""

    def starts(policy) -> list[str]:
        state = a_state(
            policy=policy,
            nodes=[a_node(gpus=4)],
            held=[busy(2, until=HOUR)],
            queue=[
                a_job(number=1, gpus=3),
                a_job(number=2, gpus=4),
                a_job(number=3, gpus=1, estimate_ms=3 * HOUR),
            ],
        )
        return started(decided(state))

    assert starts(EASY) == ["j3"]
    assert starts(CONSERVATIVE) == []


def test_conservative_chains_reservations() -> None:
    state = a_state(
        policy=CONSERVATIVE,
        nodes=[a_node(gpus=4)],
        held=[busy(4, until=HOUR)],
        queue=[
            a_job(number=1, gpus=4, estimate_ms=2 * HOUR),
            a_job(number=2, gpus=4, estimate_ms=HOUR),
            a_job(number=3, gpus=2, estimate_ms=HOUR),
        ],
    )
    times = {job: at_ms for job, (at_ms, _) in reserved(decided(state)).items()}
    assert times == {"j1": HOUR, "j2": 3 * HOUR, "j3": 4 * HOUR}


def test_conservative_uses_gap_between_two_reservations() -> None:
    state = a_state(
        policy=CONSERVATIVE,
        nodes=[a_node(gpus=4)],
        held=[busy(4, until=HOUR)],
        queue=[
            a_job(number=1, gpus=3, estimate_ms=2 * HOUR),
            a_job(number=2, gpus=4, estimate_ms=HOUR),
            a_job(number=3, gpus=1, estimate_ms=2 * HOUR),
        ],
    )
    assert reserved(decided(state))["j3"] == (HOUR, ["n0"])


def test_reservation_does_not_move_for_equally_early_place() -> None:
    nodes = a_cluster(nodes=2, gpus=4)
    held = [busy(4, until=HOUR), busy(4, until=HOUR, node="n1", number=98)]
    kept = Reservation(
        job_id="j1", job_number=1, at_ms=HOUR, until_ms=2 * HOUR, placements=(on("n1", range(4)),)
    )
    state = a_state(nodes=nodes, held=held, queue=[a_job(number=1, gpus=4)], reservations=[kept])
    plan = decided(state, MINUTE)
    assert reserved(plan) == {"j1": (HOUR, ["n1"])}
    assert plan.reservations[0].slips == 0


def test_delayed_reservation_moves_to_better_place_and_counts_it() -> None:
    nodes = a_cluster(nodes=2, gpus=4)
    held = [busy(4, until=3 * HOUR), busy(4, until=2 * HOUR, node="n1", number=98)]
    kept = Reservation(
        job_id="j1", job_number=1, at_ms=HOUR, until_ms=2 * HOUR, placements=(on("n0", range(4)),)
    )
    state = a_state(nodes=nodes, held=held, queue=[a_job(number=1, gpus=4)], reservations=[kept])
    plan = decided(state, HOUR)
    assert reserved(plan) == {"j1": (2 * HOUR, ["n1"])}
    assert plan.reservations[0].slips == 1


def test_job_now_first_does_not_take_reserved_place() -> None:
    kept = Reservation(
        job_id="j2", job_number=2, at_ms=HOUR, until_ms=2 * HOUR, placements=(on("n0", range(4)),)
    )
    state = a_state(
        nodes=[a_node(gpus=4)],
        held=[busy(4, until=HOUR)],
        queue=[a_job(number=1, gpus=4), a_job(number=2, gpus=4, submit_ms=5)],
        reservations=[kept],
    )
    state.finish("j99.1")
    assert started(decided(state, HOUR)) == ["j2"]


def a_reservation(number: int, at_ms: int, *places: Placement, **changes: Any) -> Reservation:
    """A reservation for an hour."""
    return Reservation(
        job_id=f"j{number}",
        job_number=number,
        at_ms=at_ms,
        until_ms=at_ms + HOUR,
        placements=places,
        **changes,
    )


def test_older_reservation_that_could_start_earlier_keeps_younger_one_in_place() -> None:
    whole = on("n0", range(4))
    state = a_state(
        policy=a_policy(name="easy", reservations=2),
        nodes=[a_node(gpus=4)],
        held=[busy(2, until=HOUR)],
        queue=[
            a_job(number=1, gpus=2, estimate_ms=DAY),
            a_job(number=2, gpus=4, estimate_ms=HOUR),
        ],
        reservations=[
            a_reservation(1, 2 * HOUR, on("n0", [0, 1])),
            a_reservation(2, HOUR, whole, made_ms=1),
        ],
    )
    plan = decided(state, MINUTE)
    assert started(plan) == []
    assert reserved(plan) == {"j1": (2 * HOUR, ["n0"]), "j2": (HOUR, ["n0"])}


def test_reservation_serves_one_array_task() -> None:
    place = on("n0", [0])
    state = a_state(
        policy=a_policy(name="easy", reservations=2),
        nodes=[a_node(gpus=1)],
        queue=[an_array(number=1, estimate_ms=HOUR), a_job(number=2, estimate_ms=HOUR)],
        reservations=[
            a_reservation(1, MINUTE, place),
            a_reservation(2, HOUR + MINUTE, place, made_ms=1),
        ],
    )
    plan = decided(state, MINUTE)
    assert started(plan) == ["j1_0"]
    assert reserved(plan) == {"j1": (2 * HOUR + MINUTE, ["n0"]), "j2": (HOUR + MINUTE, ["n0"])}


def test_claimed_place_is_kept_even_from_higher_classes() -> None:
    state = a_state(
        policy=a_policy(name="easy", class_point_ms=MINUTE),
        nodes=[a_node(gpus=4)],
        queue=[a_job(number=1, gpus=4, priority=750), a_job(number=2, gpus=4, priority=2500)],
        reservations=[a_reservation(1, MINUTE, on("n0", range(4)), claim=True)],
    )
    assert started(decided(state, MINUTE)) == ["j1"]


@pytest.mark.parametrize(("priority", "starts"), [(2500, ["j2"]), (750, []), (250, [])])
def test_only_higher_class_may_delay_reservation(priority: int, starts: list[str]) -> None:
    state = a_state(
        policy=a_policy(name="easy", class_point_ms=MINUTE),
        nodes=[a_node(gpus=4)],
        held=[busy(2, until=HOUR)],
        queue=[
            a_job(number=1, gpus=4, priority=750),
            a_job(number=2, gpus=2, priority=priority, estimate_ms=DAY),
        ],
        reservations=[a_reservation(1, HOUR, on("n0", range(4)))],
    )
    assert started(decided(state)) == starts


def test_gang_gets_reservation_when_enough_jobs_have_ended() -> None:
    nodes = a_cluster(nodes=3, gpus=4)
    held = [
        busy(4, until=3 * HOUR),
        busy(4, until=HOUR, node="n1", number=98),
        busy(4, until=2 * HOUR, node="n2", number=97),
    ]
    state = a_state(nodes=nodes, held=held, queue=[a_job(number=1, gpus=4, members=2)])
    assert reserved(decided(state)) == {"j1": (2 * HOUR, ["n1", "n2"])}


def test_gang_with_two_members_on_one_node_keeps_reservation() -> None:
    nodes = a_cluster(nodes=2, gpus=4)
    held = [busy(4, until=HOUR), busy(4, until=HOUR, node="n1", number=98)]
    state = a_state(nodes=nodes, held=held, queue=[a_job(number=1, gpus=2, members=2)])
    first = decided(state)
    state.set_reservations(first.reservations)
    second = decided(state, MINUTE)
    assert reserved(second) == reserved(first)
    assert second.reservations[0].made_ms == 0


def test_labelled_job_waits_for_node_with_labels() -> None:
    nodes = [a_node(ordinal=0, gpus=4), a_node(ordinal=1, gpus=4, labels=(("zone", "a"),))]
    held = [busy(4, until=HOUR), busy(4, until=2 * HOUR, node="n1", number=98)]
    job = a_job(number=1, gpus=4, node_labels=(("zone", "a"),))
    state = a_state(nodes=nodes, held=held, queue=[job])
    assert reserved(decided(state)) == {"j1": (2 * HOUR, ["n1"])}


def test_job_that_needs_island_reserves_whole_one() -> None:
    held = [busy(4, until=2 * HOUR), busy(1, until=HOUR, number=98, first=4)]
    job = a_job(number=1, gpus=4, topology=Topology.REQUIRE_ISLAND)
    state = a_state(nodes=[a_node(gpus=8, islands=2)], held=held, queue=[job])
    plan = decided(state)
    assert reserved(plan) == {"j1": (HOUR, ["n0"])}
    assert [d.index for d in plan.reservations[0].placements[0].devices] == [4, 5, 6, 7]


def test_no_reservation_when_no_expected_end_helps() -> None:
    nodes = [a_node(gpus=4, device={"paused": True})]
    plan = decided(a_state(nodes=nodes, queue=[a_job(number=1, gpus=1)]))
    assert plan.reservations == ()
    assert [reason.code for _, reason in plan.shape_reasons] == [ReasonCode.RESOURCES]


def test_job_that_has_not_waited_long_enough_gets_no_reservation() -> None:
    policy = a_policy(name="easy", reserve_after_ms=HOUR)
    state = a_state(
        policy=policy,
        nodes=[a_node(gpus=4)],
        held=[busy(3, until=5 * HOUR)],
        queue=[a_job(number=1, gpus=4)],
    )
    assert reserved(decided(state, HOUR - 1)) == {}
    assert list(reserved(decided(state, HOUR))) == ["j1"]


def test_expected_run_time_is_capped_by_time_limit() -> None:
    job = a_job(number=2, gpus=1, max_runtime_ms=HOUR)
    state = a_state(
        nodes=[a_node(gpus=4)],
        held=[busy(3, until=HOUR)],
        queue=[a_job(number=1, gpus=4), waiting(job, expected_ms=DAY)],
    )
    assert started(decided(state)) == ["j2"]


def test_stopping_job_is_expected_to_end_at_once() -> None:
    stopping = replace(busy(4, until=DAY), stopping=True)
    state = a_state(nodes=[a_node(gpus=4)], held=[stopping], queue=[a_job(number=1, gpus=4)])
    at_ms, _ = reserved(decided(state))["j1"]
    assert at_ms <= MINUTE


def test_decision_leaves_state_unchanged() -> None:
    state = a_state(
        nodes=a_cluster(nodes=2, gpus=4),
        held=[busy(3, until=HOUR)],
        queue=[a_job(number=n, gpus=g) for n, g in enumerate((4, 4, 1, 0.5, 1.5, 6), start=1)],
    )
    before = state.snapshot()
    free = state.index.free_devices
    assert decided(state).to_json() == decided(state).to_json()
    assert state.snapshot() == before
    assert state.index.free_devices == free
