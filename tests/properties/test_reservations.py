"""Guarantee: no job of the same or a lower class delays a reservation."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.policy import ALL_RESERVATIONS, Policy, Preemption
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.model.request import Request
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import (
    ANY_REQUEST,
    BRISK,
    PAUSES,
    PRIORITIES,
    WHOLE,
    Scenario,
    Step,
    nodes,
    works,
)

EASY = BRISK["easy"]
CALM = {
    "easy": EASY,
    "three": replace(EASY, reservations=3),
    "conservative": replace(EASY, reservations=ALL_RESERVATIONS),
    "fair": replace(BRISK["fair"], preemption=Preemption.NONE),
    "short": replace(BRISK["short"], reserve_after_ms=0),
}
"""Policies with reservations and without preemption, so that every delay comes from a start."""


@st.composite
def streams(
    draw: st.DrawFn,
    requests: tuple[Request, ...],
    *,
    gangs: bool,
    arrays: bool = False,
    priorities: tuple[int, ...] = PRIORITIES,
) -> Scenario:
    """Jobs that run exactly as long as expected, on nodes that do not change."""
    steps = []
    for number in range(draw(st.integers(2, 9))):
        work = draw(
            works(
                f"j{number}",
                requests=requests,
                gangs=gangs,
                arrays=arrays,
                manners=False,
                priorities=priorities,
            )
        )
        steps.append(Step(draw(st.sampled_from(PAUSES)), work))
    return Scenario(nodes=draw(nodes(most=2, plain=True)), steps=tuple(steps))


class Witness:
    """Remembers when each reservation was due, and what has started since."""

    def __init__(self) -> None:
        """Nothing is reserved yet."""
        self._due_ms: dict[str, int] = {}
        self._class: dict[str, int] = {}

    def __call__(self, rig: Rig, plan: Plan) -> None:
        """Compare a plan with the one before."""
        for record in rig.core.state.jobs.values():
            self._class[record.job.id] = record.job.priority
        started = {start.job_id for start in plan.starts}
        reserved = {reservation.job_id: reservation.at_ms for reservation in plan.reservations}
        highest = max((self._class[job_id] for job_id in (*started, *reserved)), default=-1)
        for job_id, due_ms in self._due_ms.items():
            if job_id in started or job_id not in rig.core.state.jobs:
                continue
            if highest > self._class[job_id]:
                continue  # A higher class started or has a reservation: it may delay.
            assert job_id in reserved, f"{job_id} lost its reservation at {rig.now_ms}"
            allowed_ms = max(due_ms, rig.now_ms + 1) if due_ms > rig.now_ms else due_ms
            assert reserved[job_id] <= allowed_ms, (
                f"at {rig.now_ms} the start of {job_id} went from {due_ms} to {reserved[job_id]} "
                f"by {sorted(started)}"
            )
        # A delay caused by a higher class now may be visible only in the next plan.
        self._due_ms = {
            job_id: at_ms for job_id, at_ms in reserved.items() if self._class[job_id] >= highest
        }


def holds_for(scenario: Scenario, policy: Policy) -> None:
    Rig(scenario, policy, watch=Witness()).run()


@settings(max_examples=examples(100))
@given(scenario=streams(WHOLE, gangs=False), policy=st.sampled_from(tuple(CALM)))
def test_whole_gpu_jobs_do_not_delay_reservation(scenario: Scenario, policy: str) -> None:
    holds_for(scenario, CALM[policy])


@settings(max_examples=examples(100))
@given(scenario=streams(ANY_REQUEST, gangs=False), policy=st.sampled_from(tuple(CALM)))
def test_shares_and_constrained_jobs_do_not_delay_reservation(
    scenario: Scenario, policy: str
) -> None:
    holds_for(scenario, CALM[policy])


@settings(max_examples=examples(100))
@given(scenario=streams(WHOLE, gangs=True), policy=st.sampled_from(tuple(CALM)))
def test_gangs_do_not_delay_reservation_and_keep_their_own(scenario: Scenario, policy: str) -> None:
    holds_for(scenario, CALM[policy])


@settings(max_examples=examples(100))
@given(
    scenario=streams(WHOLE, gangs=False, arrays=True, priorities=(750,)),
    policy=st.sampled_from(tuple(CALM)),
)
def test_array_tasks_do_not_delay_reservation(scenario: Scenario, policy: str) -> None:
    holds_for(scenario, CALM[policy])
