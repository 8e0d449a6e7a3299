"""Retries after a failure: automatic with back-off, or manual."""

import pytest

from gpu_scheduler.control.messages import Cancel, Retry
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import JobState
from tests.builders import HOUR, SECOND, a_job, a_node, after, an_array
from tests.scenarios.lab import Lab


def test_failed_job_is_retried_with_growing_backoff() -> None:
    lab = Lab(
        nodes=[a_node()], limits=CoreLimits(backoff_ms=10 * SECOND, max_backoff_ms=15 * SECOND)
    )
    lab.submit(a_job(number=1, retries=2))
    lab.ends("j1", exit_code=1)
    assert lab.running() == []
    assert lab.row("j1").reason == ("waiting until 1970-01-01 00:00:10 UTC before the next attempt")
    lab.at(10 * SECOND)
    assert lab.allocation("j1").attempt == 2
    lab.ends("j1", exit_code=1)
    lab.at(25 * SECOND - 1)
    assert lab.running() == []
    lab.at(25 * SECOND)
    lab.ends("j1", exit_code=1)
    assert lab.state("j1") is JobState.FAILED


def test_timed_out_job_is_not_retried() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, retries=3, max_runtime_ms=HOUR))
    lab.at(2 * HOUR)
    assert lab.state("j1") is JobState.FAILED
    assert lab.row("j1").attempt == 1


def test_job_can_be_cancelled_during_backoff() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1, retries=1))
    lab.ends("j1", exit_code=1)
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    lab.at(HOUR)
    assert lab.running() == []


def test_backoff_of_one_task_does_not_block_siblings() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0-2", retries=1))
    lab.ends("j1_0", exit_code=1)
    assert lab.running() == ["j1_1"]


def test_each_task_has_its_own_backoff() -> None:
    lab = Lab(nodes=[a_node(gpus=2)], limits=CoreLimits(backoff_ms=10 * SECOND))
    lab.submit(an_array(number=1, tasks="0-1", retries=1))
    lab.ends("j1_0", exit_code=1)
    lab.at(8 * SECOND)
    lab.ends("j1_1", exit_code=1)
    lab.at(10 * SECOND)
    assert lab.running() == ["j1_0"]
    lab.at(18 * SECOND)
    assert lab.running() == ["j1_0", "j1_1"]


def test_failed_job_can_be_retried_manually() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    lab.ends("j1", exit_code=1)
    lab.do(Retry("j1"))
    assert lab.running() == ["j1"]


def test_manual_retry_continues_attempt_count() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), an_array(number=2, tasks="0-1"))
    lab.ends("j1", "j2_0", "j2_1", exit_code=1)
    lab.do(Retry("j1"), Retry("j2"))
    assert [lab.allocation(name).id for name in lab.running()] == ["j1.2", "j2_0.2", "j2_1.2"]
    lab.ends("j1", "j2_0", "j2_1")
    assert lab.state("j1") is lab.state("j2") is JobState.COMPLETED


def test_job_cancelled_before_start_can_be_retried() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Cancel("j2"), Retry("j2"))
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_only_remembered_failed_or_cancelled_job_can_be_retried() -> None:
    lab = Lab(nodes=[a_node()], limits=CoreLimits(remembered_ends=1))
    lab.submit(a_job(number=1), a_job(number=2))
    lab.ends("j1", exit_code=1)
    lab.ends("j2")
    with pytest.raises(WrongState, match="is completed"):
        lab.tell(Retry("j2"))
    with pytest.raises(UnknownThing, match="not known"):
        lab.tell(Retry("j1"))


def test_retry_is_rejected_while_dependency_cannot_be_met() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1", exit_code=1)
    with pytest.raises(WrongState, match=r"depends on job j1 .afterok., which is already failed"):
        lab.tell(Retry("j2"))
    lab.do(Retry("j1"), Retry("j2"))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_failed_array_tasks_can_be_retried_manually() -> None:
    lab = Lab(nodes=[a_node(gpus=3)])
    lab.submit(an_array(number=1, tasks="0-2"))
    lab.ends("j1_0", exit_code=1)
    lab.do(Retry("j1"))
    assert lab.running() == ["j1_0", "j1_1", "j1_2"]
    with pytest.raises(WrongState, match="no failed or cancelled task"):
        lab.tell(Retry("j1"))


@pytest.mark.parametrize("is_over", [False, True])
def test_array_retry_includes_only_failed_tasks_by_default(*, is_over: bool) -> None:
    lab = Lab(nodes=[a_node(gpus=4)])
    lab.submit(an_array(number=1, tasks="0-3"))
    lab.do(Cancel("j1", IntervalSet.of([1])))
    lab.ends("j1_2", exit_code=1)
    lab.ends(*(["j1_0", "j1_3"] if is_over else ["j1_0"]))
    assert lab.tell(Retry("j1")).retried == IntervalSet.of([2])
    lab.cycle()
    others = [] if is_over else ["j1_3"]
    assert lab.running() == ["j1_2", *others]
    assert lab.tasks("j1")["cancelled"] == "1"
    with pytest.raises(WrongState, match="no failed task to retry; those that were cancelled"):
        lab.tell(Retry("j1"))
    assert lab.tell(Retry("j1", cancelled=True)).retried == IntervalSet.of([1])
    lab.cycle()
    assert lab.running() == ["j1_1", "j1_2", *others]
    lab.ends(*lab.running())
    assert lab.state("j1") is JobState.COMPLETED


def test_cancelled_tasks_are_retried_with_failed_ones_on_request() -> None:
    lab = Lab(nodes=[a_node(gpus=4)])
    lab.submit(an_array(number=1, tasks="0-3"))
    lab.ends("j1_2", exit_code=1)
    lab.do(Cancel("j1"))
    assert lab.tasks("j1") == {"failed": "2", "cancelled": "0-1,3"}
    lab.do(Retry("j1", cancelled=True))
    assert lab.running() == ["j1_0", "j1_1", "j1_2", "j1_3"]


def test_wholly_cancelled_array_is_retried_whole() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-1"))
    lab.do(Cancel("j1"))
    assert lab.tell(Retry("j1")).retried == IntervalSet.of([0, 1])


def test_retry_does_not_wait_for_dependency_met_before() -> None:
    lab = Lab(nodes=[a_node(gpus=4)], limits=CoreLimits(remembered_ends=1))
    lab.submit(a_job(number=1), an_array(number=2, tasks="0-1", dependencies=after("j1")))
    lab.ends("j1")
    lab.submit(a_job(number=3))
    lab.ends("j3", "j2_0", exit_code=1)
    lab.do(Retry("j2"))
    assert lab.running() == ["j2_0", "j2_1"]


def test_digest_of_first_image_is_stored_and_kept() -> None:
    lab = Lab(nodes=[a_node()], limits=CoreLimits(backoff_ms=SECOND))
    lab.submit(a_job(number=1, retries=2))
    lab.ends("j1", exit_code=1, image_digest="sha256:first")
    assert lab.row("j1").image_digest == "sha256:first"
    lab.at(SECOND)
    lab.ends("j1", exit_code=1, image_digest="sha256:second")
    assert lab.row("j1").image_digest == "sha256:first"


def test_tasks_of_array_run_image_of_first_task() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0-2"))
    lab.ends("j1_0", image_digest="sha256:first")
    assert lab.row("j1").image_digest == "sha256:first"
