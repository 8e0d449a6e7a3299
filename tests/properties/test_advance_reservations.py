"""Guarantee: only authorised jobs run on GPUs of an advance reservation."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.control.messages import CancelReservation, Reserve
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.forecast import forecast
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import AdvanceReservation, Placement, ReservationSpec
from tests.effort import examples
from tests.properties.dump import dump_of
from tests.properties.rig import Rig, StopBehaviour
from tests.properties.strategies import (
    BRISK,
    STEP_MS,
    TENANTS,
    USERS,
    Scenario,
    Step,
    policies,
    scenarios,
)

EVICTION_MS = STEP_MS // 4


def is_excluded(
    reservations: Iterable[AdvanceReservation], job: Job, placements: tuple[Placement, ...]
) -> bool:
    """Tell whether a placement uses devices that are reserved for others."""
    used = {(p.node_id, share.index) for p in placements for share in p.devices}
    return any(
        (node_id, index) in used
        for reservation in reservations
        if not reservation.admits(job)
        for node_id, indices in reservation.devices
        for index in indices
    )


@st.composite
def reservations(draw: st.DrawFn) -> object:
    """A reservation is made or cancelled."""
    if draw(st.integers(0, 4)) == 0:
        return CancelReservation(f"res-{draw(st.integers(1, 3))}")
    start_ms = draw(st.integers(0, 20)) * STEP_MS
    return Reserve(
        ReservationSpec(
            tenant=draw(st.sampled_from(TENANTS)),
            user=draw(st.sampled_from(("", "", *USERS))),
            gpus=draw(st.integers(1, 3)),
            start_ms=start_ms,
            end_ms=start_ms + draw(st.integers(1, 15)) * STEP_MS,
            preempts=draw(st.booleans()),
        )
    )


@st.composite
def reserved(draw: st.DrawFn) -> Scenario:
    """A history in which GPUs are reserved now and then."""
    scenario = draw(scenarios(most_jobs=6))
    steps = list(scenario.steps)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(steps)))
        steps.insert(place, Step(0, draw(reservations())))
    return replace(scenario, steps=tuple(steps))


def a_rig(scenario: Scenario, policy: str, stop_ms: int = 0) -> Rig:
    return Rig(
        scenario,
        replace(BRISK[policy], eviction_ms=EVICTION_MS),
        StopBehaviour(stop_ms=stop_ms),
    )


def intruders(rig: Rig) -> list[str]:
    """Jobs that hold devices reserved by others at this moment.

    A reservation that begins at once may find jobs that are still being stopped for it.
    """
    windows = [
        window
        for window in rig.core.state.cluster.advance_reservations.values()
        if window.start_ms <= rig.now_ms < window.end_ms
        and rig.now_ms >= window.made_ms + EVICTION_MS
    ]
    return [
        allocation.id
        for job, allocation in rig.audit.held.values()
        if is_excluded(windows, job, allocation.placements)
    ]


@settings(max_examples=examples(80))
@given(scenario=reserved(), policy=policies(), stop_ms=st.sampled_from((0, EVICTION_MS // 2)))
def test_no_unauthorised_job_runs_on_reserved_gpus(
    scenario: Scenario, policy: str, stop_ms: int
) -> None:
    rig = a_rig(scenario, policy, stop_ms)
    while rig.advance():
        assert intruders(rig) == [], (
            f"at {rig.now_ms}: {rig.core.state.cluster.advance_reservations}"
        )


@settings(max_examples=examples(40))
@given(scenario=reserved(), policy=policies(), most=st.integers(1, 12))
def test_decision_around_reservations_is_repeatable_and_pure(
    scenario: Scenario, policy: str, most: int
) -> None:
    rig = a_rig(scenario, policy)
    for _ in range(most):
        if not rig.advance():
            break
    cluster = rig.core.state.cluster
    before, snapshot = dump_of(cluster), cluster.snapshot()
    fresh = ClusterState.from_snapshot(snapshot, cluster.policy)

    plan = decide(cluster, cluster.policy, rig.now_ms)
    starts = forecast(cluster, rig.now_ms)

    assert cluster.snapshot() == snapshot
    assert dump_of(cluster) == before
    assert decide(fresh, cluster.policy, rig.now_ms).to_json() == plan.to_json()
    assert forecast(fresh, rig.now_ms) == starts


@settings(max_examples=examples(30))
@given(scenario=reserved(), policy=policies())
def test_reservations_block_no_job_for_ever(scenario: Scenario, policy: str) -> None:
    rig = a_rig(scenario, policy)
    rig.run()
    assert (
        not rig.core.state.cluster.advance_reservations or not rig.core.state.cluster.queue.entries
    )
