"""The life of a job from submission to end: states, limits, clocks and cancels."""

import pytest

from gpu_scheduler.control.jobs.attempt_progress import running_reason
from gpu_scheduler.control.messages import Cancel, ContainerProgress, Ended, Started
from gpu_scheduler.model.errors import AlreadyExists, UnknownThing, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import JobState
from tests.builders import HOUR, MINUTE, SECOND, a_job, a_node, a_policy, an_array
from tests.scenarios.lab import Lab

# --- states


def test_job_is_pending_scheduled_running_and_completed_in_order() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1))
    lab.at(HOUR)
    lab.ends("j1")
    assert lab.events("j1") == ["submitted", "scheduled", "running", "completed"]
    row = lab.row("j1")
    assert (row.state, row.exit_code, row.start_ms, row.end_ms) == (
        JobState.COMPLETED,
        0,
        0,
        HOUR,
    )
    assert lab.running() == []


def test_core_assigns_job_number_and_submit_time() -> None:
    lab = Lab(nodes=[a_node()])
    lab.at(5 * MINUTE)
    lab.submit(a_job(number=77, submit_ms=3), a_job(number=12))
    assert [(row.job.id, row.job.number, row.job.submit_ms) for row in lab.store.jobs()] == [
        ("j77", 1, 5 * MINUTE),
        ("j12", 2, 5 * MINUTE),
    ]


def test_id_of_ended_job_is_still_taken() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    with pytest.raises(AlreadyExists, match="'j1' is taken"):
        lab.submit(a_job(number=1))
    lab.ends("j1")
    with pytest.raises(AlreadyExists):
        lab.submit(a_job(number=1))


def test_nonzero_exit_fails_job_with_exit_code() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.ends("j1", exit_code=3)
    lab.ends("j2", exit_code=None, signal=9)
    assert (lab.state("j1"), lab.row("j1").exit_code) == (JobState.FAILED, 3)
    assert (lab.state("j2"), lab.row("j2").signal) == (JobState.FAILED, 9)


def test_repeated_report_changes_nothing() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    assert lab.tell(Started("j1.1")).writes == []
    lab.ends("j1")
    assert lab.tell(Ended("j1.1", exit_code=1)).writes == []
    assert lab.state("j1") is JobState.COMPLETED


# --- time limits and clocks


def test_time_limit_stops_job() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, max_runtime_ms=HOUR))
    lab.at(HOUR - 1)
    assert lab.stopped() == []
    lab.at(HOUR)
    assert lab.stopped() == [("j1.1", "timeout")]
    assert lab.state("j1") is JobState.FAILED


def test_default_limit_stops_job_without_limit() -> None:
    lab = Lab(nodes=[a_node()], policy=a_policy(default_limit_ms=2 * HOUR))
    lab.submit(a_job(number=1))
    lab.at(3 * HOUR)
    assert lab.stopped() == [("j1.1", "timeout")]


def test_cancelled_job_that_reaches_limit_while_stopping_is_cancelled() -> None:
    lab = Lab(nodes=[a_node()], obedient=False)
    lab.submit(a_job(number=1, max_runtime_ms=HOUR))
    lab.at(HOUR - SECOND)
    lab.do(Cancel("j1"))
    lab.at(HOUR)
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.stopped() == [("j1.1", "cancelled")]


def test_clock_stepping_back_does_no_harm() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.now_ms = HOUR
    lab.submit(a_job(number=1), a_job(number=2))
    lab.now_ms = HOUR - 10 * MINUTE
    lab.ends("j1")
    assert lab.running() == ["j2"]
    row = lab.row("j2")
    assert row.waited_ms == 0, "a wait is never negative"
    lab.now_ms = 2 * HOUR
    lab.ends("j2")
    assert lab.core.state.usage_totals.total("vision").gpu_milli_ms == 70 * MINUTE * 1000


# --- cancel


def test_waiting_job_is_cancelled_at_once_and_running_job_is_stopped_first() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], obedient=False)
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Cancel("j2"), Cancel("j1"), Cancel("j1"))
    assert lab.state("j2") is JobState.CANCELLED
    assert lab.state("j1") is JobState.RUNNING
    assert lab.stopped() == [("j1.1", "cancelled")]
    record = lab.core.state.jobs["j1"]
    assert str(running_reason(lab.core.state, record)).startswith("being cancelled: ")
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.events("j1") == ["submitted", "scheduled", "running", "cancelling", "cancelled"]


def test_job_shows_how_far_its_container_is_until_it_begins() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1))
    state, node = lab.core.state, lab.core.state.cluster.running["j1.1"]
    name = node.running.allocation.placements[0].node_id
    record = state.jobs["j1"]

    def now(phase: str) -> str:
        lab.do(ContainerProgress("j1.1", 0, name, phase))
        return str(running_reason(state, record) or "")

    assert now("pulling") == f"pulling its container image on {name}"
    assert now("pulling") == f"pulling its container image on {name}"
    assert now("creating") == f"creating its container on {name}"
    assert now("begun") == ""
    assert now("unknown word") == ""
    began = ["submitted", "scheduled", "running"]
    phases = ["pulling_image", "creating_container", "container_begun"]
    assert lab.events("j1") == [*began, *phases]


def test_pull_is_shown_until_last_member_has_its_image() -> None:
    lab = Lab(nodes=[a_node(gpus=1, ordinal=0), a_node(gpus=1, ordinal=1)])
    lab.submit(a_job(number=1, gpus=1, members=2))
    state = lab.core.state
    placed = state.cluster.running["j1.1"].running.allocation.placements
    for place in placed:
        lab.do(ContainerProgress("j1.1", place.member, place.node_id, "pulling"))
    lab.do(ContainerProgress("j1.1", placed[0].member, placed[0].node_id, "creating"))
    text = str(running_reason(state, state.jobs["j1"]))
    assert text == f"pulling its container image on {placed[1].node_id}"
    lab.ends("j1")
    assert state.container_phases == {}


def test_task_that_is_cancelled_says_so_and_its_array_does_not() -> None:
    lab = Lab(nodes=[a_node(gpus=2)], obedient=False)
    lab.submit(an_array(tasks="0-1", number=1))
    lab.do(Cancel("j1", IntervalSet.of([0])))
    state, record = lab.core.state, lab.core.state.jobs["j1"]
    assert "being cancelled" in str(running_reason(state, record, 0))
    assert running_reason(state, record, 1) is None
    assert running_reason(state, record) is None
    lab.do(Cancel("j1"))
    assert "being cancelled" in str(running_reason(state, record))


def test_ended_or_unknown_job_cannot_be_cancelled() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.ends("j1")
    with pytest.raises(WrongState, match="is already completed"):
        lab.tell(Cancel("j1"))
    with pytest.raises(UnknownThing, match="j9 is not known"):
        lab.tell(Cancel("j9"))


def test_cancel_overrides_preemption_in_progress() -> None:
    policy = a_policy(name="fair", fair_ms=0, user_fair_ms=0)
    lab = Lab(nodes=[a_node(gpus=1)], policy=policy, obedient=False)
    lab.submit(a_job(number=1, priority=250, estimate_ms=9 * HOUR))
    lab.at(HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.do(Cancel("j1"))
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.stopped() == [("j1.1", "preempted")]
    assert lab.state("j1") is JobState.CANCELLED


@pytest.mark.parametrize(
    ("detail", "cause"),
    [
        ("the machine was restarted: exit code unknown", "the machine was restarted"),
        ("", "its node did not report the cause"),
    ],
)
def test_unknown_exit_code_names_its_cause_in_reason_and_event(detail: str, cause: str) -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.do(Ended(lab.allocation("j1").id, None, detail=detail))
    assert cause in str(lab.row("j1").reason)
    (event,) = [e for _, e in lab.store.events(0, 100) if e.kind == "exit_unknown"]
    assert (event.job_id, dict(event.data)["attempt"]) == ("j1", 1)
    assert cause in str(dict(event.data)["cause"])


def test_end_that_is_known_or_was_ordered_has_no_event_of_unknown_exit() -> None:
    lab = Lab(nodes=[a_node()], obedient=False)
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Ended(lab.allocation("j1").id, 3), Cancel("j2"))
    lab.do(Ended(lab.allocation("j2").id, None))
    assert not [e for _, e in lab.store.events(0, 100) if e.kind == "exit_unknown"]
