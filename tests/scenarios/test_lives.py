"""The way of a job from submission to its end, whatever happens on the way."""

import pytest

from gpu_scheduler.control.book import Limits
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    Hold,
    NodeFenced,
    Release,
    Reprioritise,
    Retry,
    SetNode,
    Started,
    Submit,
)
from gpu_scheduler.model.errors import AlreadyExists, InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Dependency, DependencyKind
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.states import JobState
from tests.builders import HOUR, MINUTE, SECOND, a_cluster, a_job, a_node, a_policy, an_array
from tests.scenarios.lab import Lab


def after(job_id: str, kind: str = "afterok") -> tuple[Dependency, ...]:
    return (Dependency(DependencyKind(kind), job_id),)


# --- a plain life


def test_a_job_is_pending_then_scheduled_then_running_then_completed() -> None:
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


def test_the_core_numbers_jobs_and_stamps_their_submission() -> None:
    lab = Lab(nodes=[a_node()])
    lab.at(5 * MINUTE)
    lab.submit(a_job(number=77, submit_ms=3), a_job(number=12))
    assert [(row.job.id, row.job.number, row.job.submit_ms) for row in lab.store.jobs()] == [
        ("j77", 1, 5 * MINUTE),
        ("j12", 2, 5 * MINUTE),
    ]


def test_an_id_is_taken_also_by_a_job_that_has_ended() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    with pytest.raises(AlreadyExists, match="'j1' is taken"):
        lab.submit(a_job(number=1))
    lab.ends("j1")
    with pytest.raises(AlreadyExists):
        lab.submit(a_job(number=1))


def test_a_job_that_exits_with_an_error_has_failed_with_its_exit_code() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.ends("j1", exit_code=3)
    lab.ends("j2", exit_code=None, signal=9)
    assert (lab.state("j1"), lab.row("j1").exit_code) == (JobState.FAILED, 3)
    assert (lab.state("j2"), lab.row("j2").signal) == (JobState.FAILED, 9)


def test_a_fact_that_is_told_twice_changes_nothing() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    assert lab.tell(Started("j1.1")).writes == []
    lab.ends("j1")
    assert lab.tell(Ended("j1.1", exit_code=1)).writes == []
    assert lab.state("j1") is JobState.COMPLETED


# --- time limits and clocks


def test_a_time_limit_stops_a_job() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, max_runtime_ms=HOUR))
    lab.at(HOUR - 1)
    assert lab.stopped() == []
    lab.at(HOUR)
    assert lab.stopped() == [("j1.1", "timeout")]
    assert lab.state("j1") is JobState.FAILED


def test_a_job_without_a_limit_is_stopped_by_the_default_limit() -> None:
    lab = Lab(nodes=[a_node()], policy=a_policy(default_limit_ms=2 * HOUR))
    lab.submit(a_job(number=1))
    lab.at(3 * HOUR)
    assert lab.stopped() == [("j1.1", "timeout")]


def test_a_cancelled_job_that_reaches_its_limit_while_stopping_is_cancelled() -> None:
    lab = Lab(nodes=[a_node()], obedient=False)
    lab.submit(a_job(number=1, max_runtime_ms=HOUR))
    lab.at(HOUR - SECOND)
    lab.do(Cancel("j1"))
    lab.at(HOUR)
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.stopped() == [("j1.1", "cancelled")]


def test_a_clock_that_steps_back_does_no_harm() -> None:
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
    assert lab.core.book.accounts.total("vision").gpu_milli_ms == 70 * MINUTE * 1000


# --- hold, release, begin time, priority


def test_a_held_job_waits_until_it_is_released() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, hold=True))
    assert lab.running() == []
    assert lab.row("j1").reason == "held; release it to let it start"
    lab.do(Release("j1"))
    assert lab.running() == ["j1"]


def test_only_a_waiting_job_can_be_held() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Hold("j2"))
    lab.ends("j1")
    assert lab.running() == []
    lab.do(Release("j2"))
    with pytest.raises(WrongState, match="only a pending job can be held"):
        lab.tell(Hold("j2"))


def test_a_released_job_that_still_waits_for_another_says_so() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, hold=True, dependencies=after("j1")))
    lab.do(Hold("j2"), Release("j2"))
    assert lab.row("j2").reason == "waiting for job j1 (afterok)"
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_a_job_does_not_begin_before_its_time() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, begin_ms=HOUR))
    lab.at(HOUR - 1)
    assert lab.running() == []
    assert "not to begin before" in lab.row("j1").reason
    assert lab.core.next_timer_ms() == HOUR
    lab.at(HOUR)
    assert lab.running() == ["j1"]


def test_a_waiting_job_can_be_given_another_priority() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(class_point_ms=MINUTE, reservations=0))
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3))
    lab.do(Reprioritise("j3", 2500))
    lab.ends("j1")
    assert lab.running() == ["j3"]
    with pytest.raises(WrongState, match="priority of a pending job"):
        lab.tell(Reprioritise("j3", 1))


def test_a_priority_that_is_not_allowed_changes_nothing() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    with pytest.raises(InvalidRequest, match="allowed is 0 to 10000"):
        lab.tell(Reprioritise("j2", 99_999))
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_another_priority_or_a_hold_does_not_make_a_job_forget_how_long_it_has_waited() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.at(HOUR)
    lab.do(Reprioritise("j2", 800))
    waiting = lab.core.book.picture.queue.entries[2].waiting
    assert waiting.waited_at(HOUR) == HOUR


def test_time_on_hold_is_not_waiting_for_a_turn() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1, estimate_ms=9 * HOUR), a_job(number=2))
    lab.at(HOUR)
    lab.do(Hold("j2"))
    lab.at(3 * HOUR)
    lab.do(Release("j2"))
    lab.at(4 * HOUR)
    waiting = lab.core.book.picture.queue.entries[2].waiting
    assert waiting.waited_at(4 * HOUR) == 2 * HOUR
    lab.ends("j1")
    assert lab.row("j2").waited_ms == 2 * HOUR


def test_a_hold_a_release_and_another_priority_are_history() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Hold("j2"), Hold("j2"), Release("j2"), Release("j2"), Reprioritise("j2", 800))
    assert lab.events("j2") == ["submitted", "held", "released", "reprioritised"]


def test_the_waiting_tasks_of_an_array_can_be_held_and_moved_while_others_run() -> None:
    policy = a_policy(class_point_ms=MINUTE, reservations=0)
    lab = Lab(nodes=[a_node(gpus=1)], policy=policy)
    lab.submit(an_array(number=1, tasks="0-2"), a_job(number=2))
    lab.do(Hold("j1"))
    lab.ends("j1_0")
    assert lab.running() == ["j2"]
    lab.do(Reprioritise("j1", 2500), Release("j1"))
    lab.submit(a_job(number=3))
    lab.ends("j2")
    assert lab.running() == ["j1_1"]


def test_an_array_does_not_forget_how_long_it_has_waited_when_a_task_comes_back() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(an_array(number=1, tasks="0-9", requeue_on_node_loss=True))
    lab.at(HOUR)
    lab.do(NodeFenced("n0"))
    waiting = lab.core.book.picture.queue.entries[1].waiting
    assert str(waiting.tasks) == "0,2-9"
    assert waiting.waited_at(HOUR) == HOUR


# --- dependencies


def test_a_job_waits_for_the_job_it_depends_on() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    assert lab.row("j2").reason == "waiting for job j1 (afterok)"
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_a_dependency_that_can_no_longer_be_met_ends_the_job_with_the_reason() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1", exit_code=1)
    assert lab.state("j2") is JobState.CANCELLED
    assert lab.row("j2").reason == "job j1 ended as failed, so afterok can never be met"


@pytest.mark.parametrize(
    ("kind", "exit_code", "runs"),
    [
        ("afterok", 0, True),
        ("afterok", 1, False),
        ("afterany", 0, True),
        ("afterany", 1, True),
        ("afternotok", 0, False),
        ("afternotok", 1, True),
    ],
)
@pytest.mark.parametrize("submitted_late", [False, True])
def test_every_kind_of_dependency(kind, exit_code, runs, submitted_late) -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    dependent = a_job(number=2, dependencies=after("j1", kind))
    if not submitted_late:
        lab.submit(dependent)
    lab.ends("j1", exit_code=exit_code)
    if submitted_late:
        lab.submit(dependent)
    assert lab.running() == (["j2"] if runs else [])
    assert lab.state("j2") is (JobState.RUNNING if runs else JobState.CANCELLED)


def test_a_job_cannot_depend_on_one_that_nobody_knows() -> None:
    lab = Lab(nodes=[a_node()])
    with pytest.raises(InvalidRequest, match="depends on job j9, which is not known"):
        lab.submit(a_job(number=1, dependencies=after("j9")))


def test_a_job_with_two_dependencies_waits_for_both() -> None:
    lab = Lab(nodes=[a_node()])
    both = after("j1") + after("j2", "afterany")
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3, dependencies=both))
    lab.ends("j1")
    assert "j3" not in lab.running()
    lab.ends("j2", exit_code=1)
    assert lab.running() == ["j3"]


def test_a_job_can_wait_for_a_whole_array() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(an_array(number=1, tasks="0-1"), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1_0")
    assert "j2" not in lab.running()
    lab.ends("j1_1")
    assert lab.running() == ["j2"]


def test_a_long_chain_of_dependencies_ends_when_its_first_job_fails() -> None:
    lab = Lab(nodes=[a_node()])
    length = 2_000
    lab.tell(Submit(a_job(number=1)))
    for number in range(2, length + 1):
        lab.tell(Submit(a_job(number=number, dependencies=after(f"j{number - 1}"))))
    lab.cycle()
    lab.ends("j1", exit_code=1)
    assert lab.state(f"j{length}") is JobState.CANCELLED
    assert lab.core.book.queued_tasks == 0


# --- retries


def test_a_failed_job_is_tried_again_with_growing_pauses() -> None:
    lab = Lab(nodes=[a_node()], limits=Limits(backoff_ms=10 * SECOND, max_backoff_ms=15 * SECOND))
    lab.submit(a_job(number=1, retries=2))
    lab.ends("j1", exit_code=1)
    assert lab.running() == []
    assert lab.row("j1").reason == f"waiting until {10 * SECOND} before the next attempt"
    lab.at(10 * SECOND)
    assert lab.allocation("j1").attempt == 2
    lab.ends("j1", exit_code=1)
    lab.at(25 * SECOND - 1)
    assert lab.running() == []
    lab.at(25 * SECOND)
    lab.ends("j1", exit_code=1)
    assert lab.state("j1") is JobState.FAILED


def test_a_timeout_is_not_tried_again() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, retries=3, max_runtime_ms=HOUR))
    lab.at(2 * HOUR)
    assert lab.state("j1") is JobState.FAILED
    assert lab.row("j1").attempt == 1


def test_a_job_can_be_cancelled_during_its_pause() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, retries=1))
    lab.ends("j1", exit_code=1)
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    lab.at(HOUR)
    assert lab.running() == []


def test_the_pause_of_one_task_does_not_hold_up_its_siblings() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0-2", retries=1))
    lab.ends("j1_0", exit_code=1)
    assert lab.running() == ["j1_1"]


def test_each_task_has_a_pause_of_its_own() -> None:
    lab = Lab(nodes=[a_node(gpus=2)], limits=Limits(backoff_ms=10 * SECOND))
    lab.submit(an_array(number=1, tasks="0-1", retries=1))
    lab.ends("j1_0", exit_code=1)
    lab.at(8 * SECOND)
    lab.ends("j1_1", exit_code=1)
    lab.at(10 * SECOND)
    assert lab.running() == ["j1_0"]
    lab.at(18 * SECOND)
    assert lab.running() == ["j1_0", "j1_1"]


def test_a_failed_job_can_be_retried_by_hand() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.ends("j1", exit_code=1)
    lab.do(Retry("j1"))
    assert lab.running() == ["j1"]


def test_a_retry_counts_attempts_on() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), an_array(number=2, tasks="0-1"))
    lab.ends("j1", "j2_0", "j2_1", exit_code=1)
    lab.do(Retry("j1"), Retry("j2"))
    assert [lab.allocation(name).id for name in lab.running()] == ["j1.2", "j2_0.2", "j2_1.2"]
    lab.ends("j1", "j2_0", "j2_1")
    assert lab.state("j1") is lab.state("j2") is JobState.COMPLETED


def test_a_job_that_was_cancelled_before_it_started_can_be_retried() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Cancel("j2"), Retry("j2"))
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_only_a_job_that_failed_or_was_cancelled_and_is_remembered_can_be_retried() -> None:
    lab = Lab(nodes=[a_node()], limits=Limits(remembered_ends=1))
    lab.submit(a_job(number=1), a_job(number=2))
    lab.ends("j1", exit_code=1)
    lab.ends("j2")
    with pytest.raises(WrongState, match="has completed"):
        lab.tell(Retry("j2"))
    with pytest.raises(UnknownThing, match="not known"):
        lab.tell(Retry("j1"))


def test_a_retry_is_refused_while_its_dependency_cannot_be_met() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1", exit_code=1)
    with pytest.raises(WrongState, match=r"depends on job j1 .afterok., which ended as failed"):
        lab.tell(Retry("j2"))
    lab.do(Retry("j1"), Retry("j2"))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_the_failed_tasks_of_an_array_can_be_retried_by_hand() -> None:
    lab = Lab(nodes=[a_node(gpus=3)])
    lab.submit(an_array(number=1, tasks="0-2"))
    lab.ends("j1_0", exit_code=1)
    lab.do(Retry("j1"))
    assert lab.running() == ["j1_0", "j1_1", "j1_2"]
    with pytest.raises(WrongState, match="no failed or cancelled task"):
        lab.tell(Retry("j1"))


def test_a_retry_does_not_wait_for_a_dependency_that_was_met_long_ago() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], limits=Limits(remembered_ends=1))
    lab.submit(a_job(number=1), an_array(number=2, tasks="0-1", dependencies=after("j1")))
    lab.ends("j1")
    lab.submit(a_job(number=3))
    lab.ends("j3", "j2_0", exit_code=1)
    lab.do(Retry("j2"))
    assert lab.running() == ["j2_0", "j2_1"]


# --- arrays


def test_an_array_runs_as_many_tasks_at_once_as_it_allows_itself() -> None:
    lab = Lab(nodes=[a_node(gpus=8)])
    lab.submit(an_array(number=1, tasks="0-4", at_once=2))
    assert lab.running() == ["j1_0", "j1_1"]
    assert dict(lab.last_plan.job_reasons)["j1"].get("running") == 2
    lab.ends("j1_0")
    assert lab.running() == ["j1_1", "j1_2"]


def test_an_array_takes_its_tasks_in_order_and_ends_with_the_last() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="3,5,8-9"))
    for task in (3, 5, 8, 9):
        assert lab.running() == [f"j1_{task}"]
        lab.ends(f"j1_{task}", exit_code=int(task == 5))
    assert lab.state("j1") is JobState.FAILED
    assert lab.tasks("j1") == {"completed": "3,8-9", "failed": "5"}


def test_a_range_of_an_array_can_be_cancelled() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1", IntervalSet.parse("1,5-8")))
    assert lab.stopped() == [("j1_1.1", "cancelled")]
    assert lab.tasks("j1") == {"cancelled": "1,5-8", "pending": "3-4,9", "running": "0,2"}
    assert lab.core.book.queued_tasks == 3


def test_cancelling_no_task_at_all_cancels_nothing() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1", IntervalSet()))
    assert lab.tasks("j1") == {"pending": "2-9", "running": "0-1"}


def test_a_whole_array_can_be_cancelled() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.tasks("j1") == {"cancelled": "0-9"}
    assert lab.core.book.queued_tasks == 0


def test_an_array_ends_although_a_task_was_cancelled_while_it_waited_for_another_attempt() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0", retries=1))
    lab.ends("j1_0", exit_code=1)
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.tasks("j1") == {"cancelled": "0"}
    assert lab.core.book.lives == {}


def test_only_an_array_has_tasks_to_cancel() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    with pytest.raises(WrongState, match="not an array"):
        lab.tell(Cancel("j1", IntervalSet.parse("0")))


def test_a_million_tasks_are_one_entry_in_the_queue() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0-999998"))
    assert len(lab.core.book.picture.queue) == 1
    assert lab.core.book.queued_tasks == 999_998


# --- cancel


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_stopped_first() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], obedient=False)
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Cancel("j2"), Cancel("j1"), Cancel("j1"))
    assert lab.state("j2") is JobState.CANCELLED
    assert lab.state("j1") is JobState.RUNNING
    assert lab.stopped() == [("j1.1", "cancelled")]
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.state("j1") is JobState.CANCELLED


def test_a_job_that_ended_or_never_was_cannot_be_cancelled() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.ends("j1")
    with pytest.raises(UnknownThing, match="has ended as completed"):
        lab.tell(Cancel("j1"))
    with pytest.raises(UnknownThing, match="j9 is not known"):
        lab.tell(Cancel("j9"))


def test_a_person_who_cancels_outweighs_a_preemption_under_way() -> None:
    policy = a_policy(name="fair", fair_ms=0, user_fair_ms=0)
    lab = Lab(nodes=[a_node(gpus=1)], policy=policy, obedient=False)
    lab.submit(a_job(number=1, priority=250, estimate_ms=9 * HOUR))
    lab.at(HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.do(Cancel("j1"))
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.stopped() == [("j1.1", "preempted")]
    assert lab.state("j1") is JobState.CANCELLED


# --- nodes


def test_a_job_that_was_submitted_before_any_node_is_divided_when_nodes_come() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpus=8))
    lab.do(*(SetNode(node) for node in a_cluster(nodes=2, gpus=4)))
    assert lab.nodes_of("j1") == ["n0", "n1"]


def test_a_job_that_was_submitted_before_any_node_says_that_it_never_fits() -> None:
    lab = Lab()
    lab.submit(a_job(number=1, gpu_models=("H100",)), a_job(number=2))
    lab.do(SetNode(a_node()))
    assert lab.running() == ["j2"]
    assert "no known node could run it even when empty" in lab.row("j1").reason
    lab.do(SetNode(a_node(ordinal=1, device={"model": "H100"})))
    assert lab.nodes_of("j1") == ["n1"]


def test_a_job_on_a_fenced_node_runs_elsewhere_if_it_may_be_repeated() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1, requeue_on_node_loss=True))
    assert lab.nodes_of("j1") == ["n0"]
    lab.at(HOUR)
    lab.do(NodeFenced("n0"))
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.allocation("j1").attempt == 2


def test_a_job_on_a_fenced_node_has_failed_if_it_may_not_be_repeated() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(a_job(number=1))
    lab.do(NodeFenced("n0"))
    assert lab.state("j1") is JobState.FAILED
    assert lab.store.nodes()[0].state is NodeState.LOST


def test_a_lost_node_takes_work_again_when_it_comes_back() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.do(NodeFenced("n0"))
    lab.submit(a_job(number=1))
    assert lab.running() == []
    lab.do(SetNode(a_node(gpus=1)))
    assert lab.running() == ["j1"]


def test_a_draining_node_lets_its_jobs_end_and_takes_no_more() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(a_job(number=1))
    lab.do(SetNode(a_node(gpus=2, state=NodeState.DRAINING)))
    lab.submit(a_job(number=2))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.running() == []
    lab.do(SetNode(a_node(gpus=2)))
    assert lab.running() == ["j2"]


def test_a_hot_device_gets_no_new_work_until_it_has_cooled() -> None:
    def node(*, hot: bool):
        return a_node(gpus=1, device={"hot": hot, "temperature_c": 90 if hot else 60})

    lab = Lab(nodes=[node(hot=False)])
    lab.submit(a_job(number=1))
    lab.do(SetNode(node(hot=True)))
    assert lab.running() == ["j1"], "what runs is left alone"
    lab.submit(a_job(number=2))
    lab.ends("j1")
    assert lab.running() == []
    lab.do(SetNode(node(hot=False)))
    assert lab.running() == ["j2"]
