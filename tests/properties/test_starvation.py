"""Guarantee: no job that can run starves; its wait is bounded by a formula.

wait <= gap + 2 x (jobs ahead + 1) x longest run
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.presets import PRESETS
from gpu_scheduler.engine.priority import largest_gap_ms
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.request import Request
from tests.effort import examples
from tests.properties.rig import Rig
from tests.properties.strategies import (
    ANY_REQUEST,
    HARDWARE,
    PRIORITIES,
    STEP_MS,
    WHOLE,
    Scenario,
    Step,
    Work,
    brisk,
    nodes,
    works,
)

NAMES = ("easy", "conservative", "fair", "short", "feedback")
POLICIES = {name: brisk(PRESETS[name]) for name in NAMES}
LATER = 40


@st.composite
def job_in_long_stream(
    draw: st.DrawFn, requests: tuple[Request, ...], priorities: tuple[int, ...]
) -> Scenario:
    """One job amid a long stream of later, shorter jobs."""
    steps = []
    for number in range(draw(st.integers(0, 2))):
        work = draw(works(f"a{number}", requests=requests, manners=False, arrays=False))
        steps.append(Step(0, work))
    victim = draw(
        works("victim", requests=requests, manners=False, arrays=False, priorities=PRIORITIES[:1])
    )
    steps.append(Step(0, victim))
    templates = [
        draw(
            works(
                "template",
                requests=requests,
                manners=False,
                arrays=False,
                gangs=False,
                priorities=priorities,
                longest=3,
            )
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    pauses = draw(st.lists(st.sampled_from((0, 1, STEP_MS // 2, STEP_MS)), min_size=1, max_size=3))
    for number in range(LATER):
        work = templates[number % len(templates)]
        job = replace(work.job, id=f"b{number}")
        steps.append(Step(pauses[number % len(pauses)], Work(job, work.run_ms)))
    return Scenario(nodes=draw(nodes(most=2, plain=True)), steps=tuple(steps))


def longest_wait_ms(rig: Rig, scenario: Scenario, policy: Policy) -> int:
    """The bound for that job."""
    works_ = [step.deed for step in scenario.steps if isinstance(step.deed, Work)]
    span = max(PRIORITIES) - min(PRIORITIES)
    gap_ms = largest_gap_ms(policy.order, span)
    if policy.feedback.protect_after_ms:
        gap_ms = policy.feedback.longest_unprotected_ms + policy.feedback.quantum_ms
    submitted = rig.record.submitted
    ahead = sum(1 for at_ms in submitted.values() if at_ms <= submitted["victim"] + gap_ms)
    longest_ms = max(work.run_ms for work in works_)
    after_ms = max(gap_ms, policy.reserve_after_ms)
    return after_ms + 2 * (ahead + 1) * longest_ms


def holds_for(
    scenario: Scenario, policy: Policy, thresholds_ms: Sequence[tuple[int, ...]] = ()
) -> None:
    """Run the scenario; with `thresholds_ms`, the levels change to the next of them each time."""
    rig = Rig(scenario, policy)
    for number in range(600):
        if not rig.advance():
            break
        if thresholds_ms:
            levels = thresholds_ms[number % len(thresholds_ms)]
            rig.core.state.cluster.set_thresholds(levels)
    if "victim" in rig.record.refused:
        return
    assert ("victim", None) in rig.record.first_starts, "it has never started"
    waited_ms = rig.record.first_starts["victim", None] - rig.record.submitted["victim"]
    assert waited_ms <= longest_wait_ms(rig, scenario, policy)


@settings(max_examples=examples(60))
@given(scenario=job_in_long_stream(WHOLE, PRIORITIES[:1]), policy=st.sampled_from(NAMES))
def test_job_starts_in_time_under_stream_of_same_class(scenario: Scenario, policy: str) -> None:
    holds_for(scenario, POLICIES[policy])


@settings(max_examples=examples(60))
@given(scenario=job_in_long_stream(ANY_REQUEST, PRIORITIES), policy=st.sampled_from(NAMES))
def test_job_starts_in_time_under_stream_of_higher_classes(scenario: Scenario, policy: str) -> None:
    holds_for(scenario, POLICIES[policy])


@settings(max_examples=examples(60))
@given(
    scenario=job_in_long_stream(WHOLE, PRIORITIES[:1]),
    thresholds_ms=st.lists(
        st.sampled_from(((), (1,), (STEP_MS,), (STEP_MS // 2, 3 * STEP_MS), (9 * STEP_MS,))),
        min_size=1,
        max_size=5,
    ),
)
def test_job_starts_in_time_however_feedback_levels_change(
    scenario: Scenario, thresholds_ms: list[tuple[int, ...]]
) -> None:
    holds_for(scenario, POLICIES["feedback"], thresholds_ms)


@pytest.mark.parametrize("policy", NAMES)
def test_wide_job_is_not_starved_by_narrow_ones_of_higher_class(policy: str) -> None:
    wide = Job(id="victim", number=0, submit_ms=0, members=(Request(gpu_count=2),), priority=250)
    steps = [Step(0, Work(replace(wide, id="first", members=(Request(gpu_count=1),)), STEP_MS))]
    steps.append(Step(0, Work(wide, STEP_MS)))
    for number in range(150):
        narrow = replace(wide, id=f"b{number}", members=(Request(gpu_count=1),), priority=500)
        steps.append(Step(STEP_MS // 2, Work(narrow, STEP_MS)))
    node = Node(id="n0", ordinal=0, cpu_milli=8_000, memory_mb=64_000, devices=HARDWARE[1])

    holds_for(Scenario(nodes=(node,), steps=tuple(steps)), POLICIES[policy])
