"""Arrays: one queue entry, many independent tasks."""

import pytest

from gpu_scheduler.control.messages import Cancel
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.intervals import MOST_RANGES, IntervalSet
from gpu_scheduler.model.job import JobState
from tests.builders import a_job, a_node, an_array
from tests.scenarios.lab import Lab


def test_array_respects_its_own_concurrency_limit() -> None:
    lab = Lab(nodes=[a_node(gpus=8)])
    lab.submit(an_array(number=1, tasks="0-4", at_once=2))
    assert lab.running() == ["j1_0", "j1_1"]
    assert dict(lab.last_plan.job_reasons)["j1"].get("running") == 2
    lab.ends("j1_0")
    assert lab.running() == ["j1_1", "j1_2"]


def test_array_starts_tasks_in_order_and_ends_with_last() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="3,5,8-9"))
    for task in (3, 5, 8, 9):
        assert lab.running() == [f"j1_{task}"]
        lab.ends(f"j1_{task}", exit_code=int(task == 5))
    assert lab.state("j1") is JobState.FAILED
    assert lab.tasks("j1") == {"completed": "3,8-9", "failed": "5"}


def test_range_of_array_tasks_can_be_cancelled() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1", IntervalSet.parse("1,5-8")))
    assert lab.stopped() == [("j1_1.1", "cancelled")]
    assert lab.tasks("j1") == {"cancelled": "1,5-8", "pending": "3-4,9", "running": "0,2"}
    assert lab.core.state.queued_tasks == 3


def test_cancelling_empty_task_set_cancels_nothing() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1", IntervalSet()))
    assert lab.tasks("j1") == {"pending": "2-9", "running": "0-1"}


def test_whole_array_can_be_cancelled() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.tasks("j1") == {"cancelled": "0-9"}
    assert lab.core.state.queued_tasks == 0


def test_array_ends_although_task_was_cancelled_while_awaiting_retry() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0", retries=1))
    lab.ends("j1_0", exit_code=1)
    lab.do(Cancel("j1"))
    assert lab.state("j1") is JobState.CANCELLED
    assert lab.tasks("j1") == {"cancelled": "0"}
    assert lab.core.state.jobs == {}


def test_task_cancel_is_rejected_for_plain_job() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    with pytest.raises(WrongState, match="not an array"):
        lab.tell(Cancel("j1", IntervalSet.parse("0")))


@pytest.mark.parametrize(("tasks", "missing"), [("500", 500), ("5-12", 10), ("0,20-30:2", 20)])
def test_unknown_tasks_are_rejected_and_no_other_task_is_cancelled(
    tasks: str, missing: int
) -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    lab.submit(an_array(number=1, tasks="0-9"))
    with pytest.raises(UnknownThing, match=f"has no task {missing}$"):
        lab.tell(Cancel("j1", IntervalSet.parse(tasks)))
    lab.cycle()
    assert lab.tasks("j1") == {"pending": "2-9", "running": "0-1"}
    assert lab.stopped() == []


def test_million_tasks_are_one_queue_entry() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(an_array(number=1, tasks="0-999998"))
    assert len(lab.core.state.cluster.queue) == 1
    assert lab.core.state.queued_tasks == 999_998


def test_cancels_that_split_array_into_very_many_ranges_are_rejected() -> None:
    """One user's array must not make each start and end slow for all."""
    lab = Lab(nodes=[a_node()])
    lab.submit(an_array(number=1, tasks=f"0-{4 * MOST_RANGES}", gpus=0, hold=True))
    every_second = IntervalSet.parse(f"1-{2 * MOST_RANGES - 3}:2")
    lab.do(Cancel("j1", every_second))
    more = IntervalSet.parse(f"{3 * MOST_RANGES}-{3 * MOST_RANGES + 4}:2")
    with pytest.raises(WrongState, match="at most 10,000 are supported"):
        lab.do(Cancel("j1", more))
    record = lab.core.state.job("j1")
    assert len(record.pending.ranges) == MOST_RANGES
    lab.do(Cancel("j1", IntervalSet.parse(f"0-{MOST_RANGES}")))
    assert len(record.pending.ranges) < MOST_RANGES
