"""Holds, begin times and priority changes of waiting jobs."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.messages import Cancel, Hold, NodeFenced, Release, Reprioritise, Retry
from gpu_scheduler.model.errors import InvalidRequest, WrongState
from gpu_scheduler.model.job import Job, JobState
from tests.builders import HOUR, MINUTE, a_cluster, a_job, a_node, a_policy, after, an_array
from tests.scenarios.lab import Lab


def test_held_job_waits_until_release() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, hold=True))
    assert lab.running() == []
    assert lab.row("j1").reason == "held; release it to let it start"
    lab.do(Release("j1"))
    assert lab.running() == ["j1"]


@pytest.mark.parametrize("job", [a_job(number=1), an_array(number=1, tasks="0-3")])
def test_job_cancelled_while_held_is_not_to_be_released(job: Job) -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(replace(job, hold=True))
    lab.do(Cancel("j1"))
    assert (lab.row("j1").state, lab.row("j1").reason) == (JobState.CANCELLED, "")
    lab.do(Retry("j1", cancelled=True))
    assert lab.row("j1").reason == "held; release it to let it start"


def test_only_waiting_job_can_be_held() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Hold("j2"))
    lab.ends("j1")
    assert lab.running() == []
    lab.do(Release("j2"))
    with pytest.raises(WrongState, match="only a pending job can be held"):
        lab.tell(Hold("j2"))


def test_released_job_reports_unmet_dependency() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, hold=True, dependencies=after("j1")))
    lab.do(Hold("j2"), Release("j2"))
    assert lab.row("j2").reason == "waiting for job j1 (afterok)"
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_job_does_not_start_before_begin_time() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, begin_ms=HOUR))
    lab.at(HOUR - 1)
    assert lab.running() == []
    assert "not to begin before" in lab.row("j1").reason
    assert lab.core.next_timer_ms() == HOUR
    lab.at(HOUR)
    assert lab.running() == ["j1"]


def test_priority_of_waiting_job_can_be_changed() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(class_point_ms=MINUTE, reservations=0))
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3))
    lab.do(Reprioritise("j3", 2500))
    lab.ends("j1")
    assert lab.running() == ["j3"]
    with pytest.raises(WrongState, match="priority of a pending job"):
        lab.tell(Reprioritise("j3", 1))


def test_invalid_priority_changes_nothing() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    with pytest.raises(InvalidRequest, match="allowed is 0 to 10000"):
        lab.tell(Reprioritise("j2", 99_999))
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_priority_change_or_hold_keeps_waiting_time() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.at(HOUR)
    lab.do(Reprioritise("j2", 800))
    waiting = lab.core.state.cluster.queue.entries[2].waiting
    assert waiting.waited_at(HOUR) == HOUR


def test_time_on_hold_does_not_count_as_waiting() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1, estimate_ms=9 * HOUR), a_job(number=2))
    lab.at(HOUR)
    lab.do(Hold("j2"))
    lab.at(3 * HOUR)
    lab.do(Release("j2"))
    lab.at(4 * HOUR)
    waiting = lab.core.state.cluster.queue.entries[2].waiting
    assert waiting.waited_at(4 * HOUR) == 2 * HOUR
    lab.ends("j1")
    assert lab.row("j2").waited_ms == 2 * HOUR


def test_hold_release_and_priority_change_are_recorded_as_events() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Hold("j2"), Hold("j2"), Release("j2"), Release("j2"), Reprioritise("j2", 800))
    assert lab.events("j2") == ["submitted", "held", "released", "reprioritised"]


def test_waiting_array_tasks_can_be_held_and_reprioritised_while_others_run() -> None:
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


def test_array_keeps_waiting_time_when_task_is_requeued() -> None:
    lab = Lab(nodes=a_cluster(nodes=2, gpus=1))
    lab.submit(an_array(number=1, tasks="0-9", requeue_on_node_loss=True))
    lab.at(HOUR)
    lab.do(NodeFenced("n0"))
    waiting = lab.core.state.cluster.queue.entries[1].waiting
    assert str(waiting.tasks) == "0,2-9"
    assert waiting.waited_at(HOUR) == HOUR
