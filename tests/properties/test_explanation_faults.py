"""Guarantee: an error in a forecast or an explanation costs that answer, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpu_scheduler.api.expected_times import (
    FAILED_TIME,
    Explainer,
    describe_run_time,
    expected_queued_end,
    expected_running_end,
    expected_start,
    expected_times_of_new,
)
from gpu_scheduler.api.planning.planner import question_of
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.messages import Reserve, RunCycle, SetNode, Submit
from gpu_scheduler.engine import explain, forecast, what_if
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import ReservationSpec
from tests.builders import a_core, a_job, a_node, a_policy
from tests.effort import examples
from tests.properties.dump import SHAPE_TABLES, contents, differences
from tests.properties.test_engine_faults import Fault, Injected, engine_functions

FAULTS = engine_functions((".policy",))
CACHES = (
    *(f"state.cluster.{name}" for name in (*SHAPE_TABLES, "preemption_cache", "score_memory")),
    "state.start_ranges._known",
)
"""What a question may add: answers that a rebuilt state finds again."""
HOUR_MS = 3_600_000


@contextmanager
def failing_once(fault: Fault, countdown: int) -> Iterator[list[int]]:
    """Let the n-th call of a function fail, wherever that is; yields the calls so far."""
    calls = [0]

    def fails(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == countdown + 1:
            raise Injected
        return fault.original(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault.owner, fault.name, fails)
        yield calls


JOBS = st.lists(
    st.builds(
        a_job,
        id=st.just(""),
        number=st.just(0),
        gpus=st.sampled_from([0.5, 1, 2, 4]),
        members=st.sampled_from([1, 1, 2]),
        user=st.sampled_from(["ann", "bob"]),
        tenant=st.sampled_from(["t1", "t2"]),
        estimate_ms=st.sampled_from([0, HOUR_MS]),
    ),
    min_size=3,
    max_size=8,
)


def a_cluster(policy: str, jobs: list[Job], *, reserves: bool) -> Core:
    """Two nodes on which some of the jobs run, and on which a reservation may begin soon."""
    core = a_core(policy=a_policy(name=policy))
    for name, rack in (("n0", "r0"), ("n1", "r1")):
        core.apply(SetNode(a_node(id=name, ordinal=int(name[1]), gpus=4, rack=rack)), 0)
    for number, job in enumerate(jobs, start=1):
        core.apply(Submit(replace(job, name=str(number))), 0)
    if reserves:
        spec = ReservationSpec(tenant="default", gpus=2, start_ms=HOUR_MS, end_ms=2 * HOUR_MS)
        core.apply(Reserve(spec), 0)
    core.state.last_plan = core.apply(RunCycle(), 0).plan
    return core


def an_explainer(core: Core) -> Explainer:
    service = SimpleNamespace(
        core=core,
        last_plan=core.state.last_plan,
        loop_metrics=SimpleNamespace(messages=1),
        now_ms=lambda: 1,
        calendar_ms=lambda: 1,
    )
    return Explainer(service, clock=lambda: 0.0)  # type: ignore[arg-type]


def ask_everything(core: Core) -> None:
    """What pages, commands and background tasks ask about each job; none of it may raise."""
    explainer = an_explainer(core)
    cluster = core.state.cluster
    numbers = list(cluster.queue.entries)
    for number in numbers:
        if number not in cluster.queue.entries:
            continue  # the state is lost and will be read again
        entry = cluster.queue.entries[number]
        explainer.reason(entry.waiting.job.id)
        explainer.position(number)
        expected_start(explainer, entry.waiting.job.id)
        explainer.limit_start_ms(number)
        expected_queued_end(explainer, entry, FAILED_TIME)
        describe_run_time(explainer, entry.waiting.job)
    explainer.expected_starts(numbers)
    for running in list(cluster.running.values()):
        expected_running_end(explainer.service, running.running)
    expected_times_of_new(an_explainer(core), a_job(id="", number=0, gpus=4, members=2))


@pytest.mark.parametrize("policy", ["easy", "fair", "conservative"])
@settings(max_examples=examples(100))
@given(jobs=JOBS, reserves=st.booleans(), fault=st.sampled_from(FAULTS), part=st.floats(0, 1))
def test_error_in_a_question_leaves_the_state_as_it_was_or_marks_it_as_damaged(
    policy: str, jobs: list[Job], reserves: bool, fault: Fault, part: float
) -> None:
    """The control loop reads a damaged state again before it uses it."""
    core = a_cluster(policy, jobs, reserves=reserves)
    ask_everything(core)  # fills the caches
    with failing_once(fault, 1 << 60) as calls:
        ask_everything(core)
    core.state.cluster.index.refresh()
    before = contents(core.state, "state", CACHES)
    with capture_logs(), failing_once(fault, int(part * calls[0])):
        ask_everything(core)
    if not core.state.cluster.trials:
        core.state.cluster.index.refresh()
        assert differences(before, contents(core.state, "state", CACHES)) == {}


@pytest.mark.parametrize("policy", ["easy", "fair"])
@settings(max_examples=examples(100))
@given(jobs=JOBS, fault=st.sampled_from(FAULTS), countdown=st.integers(0, 60))
def test_error_in_the_plan_of_everything_keeps_what_was_found_before(
    policy: str, jobs: list[Job], fault: Fault, countdown: int
) -> None:
    """The answer has the trace, and its starts are those of the whole forecast."""
    core = a_cluster(policy, jobs, reserves=False)
    question = question_of(core.state, 1)
    whole = what_if.answer(question).base
    original = what_if.foresee

    def fails(*args: Any, **named: Any) -> None:
        with failing_once(fault, countdown):
            original(*args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(what_if, "foresee", fails)
        found = what_if.answer(question)
    if found.traces:
        assert "Injected" in found.traces[0]
        assert found.base.failed_at is not None
        assert found.base.starts.items() <= whole.starts.items()
    else:
        assert found.base.starts == whole.starts


def test_faults_reach_forecasts_and_explanations() -> None:
    """The list is not empty by mistake."""
    owners = {fault.owner for fault in FAULTS}
    assert {forecast, explain, explain.Reasons, ClusterState} <= owners
