"""The core: messages in, writes and effects out, and errors without side effects."""

from collections.abc import Callable

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Outcome, StartOrder
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.messages import (
    Cancel,
    Checkpointed,
    Ended,
    Hold,
    NodeFenced,
    Release,
    Reprioritise,
    Retry,
    RunCycle,
    SetNode,
    SetPools,
    SetTenant,
    Started,
    Submit,
)
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.state.cluster_state import SPARE_SHAPES
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InternalError, NeverFits, SchedulerError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Dependency, DependencyKind, JobState, Pool
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import EventRow, JobRow, Removed, TaskRow
from tests.builders import HOUR, a_core, a_job, a_node, a_policy, a_tenant, an_array


def a_busy_core() -> Core:
    """One job runs, one waits for the GPU, one is held, one waits for another."""
    core = a_core(nodes=[a_node(gpus=1)], tenants=[a_tenant(gpus=4)])
    core.apply(Submit(a_job(number=1)), 0)
    core.apply(Submit(a_job(number=2)), 0)
    core.apply(Submit(a_job(number=3, hold=True)), 0)
    after = (Dependency(DependencyKind.AFTER_OK, "j1"),)
    core.apply(Submit(a_job(number=4, dependencies=after)), 0)
    core.apply(RunCycle(), 0)
    core.apply(Started("j1.1"), 0)
    return core


def state_of(core: Core) -> object:
    state = core.state
    return (
        state.cluster.snapshot(),
        {job_id: record.row() for job_id, record in state.jobs.items()},
        dict(state.ended),
        state.queued_tasks,
        state.next_number,
        state.cluster.index.free_devices,
        state.cluster.total_gpu_milli,
        state.usage_totals.to_rows(),
        state.decayed_usage.to_rows(),
    )


def test_start_writes_allocation_and_order() -> None:
    core = a_core(nodes=[a_node(gpus=1)])
    outcome = core.apply(Submit(a_job(number=1)), 5)
    assert [type(write) for write in outcome.writes] == [EventRow, JobRow]
    assert core.wants_cycle
    outcome = core.apply(RunCycle(), 6)
    assert [type(write) for write in outcome.writes] == [JobRow, Allocation, EventRow]
    (order,) = outcome.effects
    assert isinstance(order, StartOrder)
    assert (order.allocation.id, order.allocation.start_ms) == ("j1.1", 6)
    assert outcome.plan is not None
    assert not core.wants_cycle


def test_tasks_starting_together_write_array_row_once() -> None:
    core = a_core(nodes=[a_node(gpus=8)])
    core.apply(Submit(an_array(number=1, tasks="0-9")), 5)
    outcome = core.apply(RunCycle(), 6)
    (row,) = [write for write in outcome.writes if isinstance(write, JobRow)]
    assert (row.state, dict(row.tasks)) == (
        JobState.SCHEDULED,
        {JobState.PENDING: IntervalSet.of([8, 9]), JobState.SCHEDULED: IntervalSet.of(range(8))},
    )
    assert len([write for write in outcome.writes if isinstance(write, TaskRow)]) == 8


def test_batch_writes_final_array_row_once() -> None:
    core = a_core(nodes=[a_node(gpus=4)])
    core.apply(Submit(an_array(number=1, tasks="0-3")), 5)
    core.apply(RunCycle(), 6)
    done = Outcome()
    for number in (0, 1, 2):
        done.merge(core.apply_in_batch(Started(f"j1_{number}.1"), 7))
    done.merge(core.apply_in_batch(Ended("j1_1.1"), 8))
    assert not [write for write in done.writes if isinstance(write, JobRow)]
    done.add_array_rows()
    (row,) = [write for write in done.writes if isinstance(write, JobRow)]
    assert dict(row.tasks) == {
        JobState.COMPLETED: IntervalSet.of([1]),
        JobState.RUNNING: IntervalSet.of([0, 2]),
        JobState.SCHEDULED: IntervalSet.of([3]),
    }


def test_cycle_without_changes_decides_nothing() -> None:
    core = a_busy_core()
    assert core.apply(RunCycle(), 1).plan is None


def test_end_removes_allocation_and_records_job() -> None:
    core = a_busy_core()
    writes = core.apply(Ended("j1.1"), HOUR).writes
    assert Removed(Allocation, "j1.1") in writes
    rows = [write for write in writes if isinstance(write, JobRow) and write.job.id == "j1"]
    assert rows[-1].state is JobState.COMPLETED


@pytest.mark.parametrize(
    "message",
    [
        Submit(a_job(number=1)),
        Submit(a_job(number=9, gpus=8)),
        Submit(a_job(number=9, gpu_models=("H100",))),
        Submit(a_job(number=9, dependencies=(Dependency(DependencyKind.AFTER_OK, "jx"),))),
        Submit(an_array(number=9, tasks="0-999999999")),
        Hold("j1"),
        Hold("jx"),
        Release("jx"),
        Reprioritise("j1", 5),
        Reprioritise("j2", -5),
        Cancel("jx"),
        Cancel("j2", IntervalSet.parse("0")),
        Retry("j2"),
        Retry("jx"),
        NodeFenced("nx"),
        SetNode(a_node(ordinal=0, id="other")),
        SetNode(a_node(ordinal=0, gpus=2)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_error_leaves_everything_unchanged(message) -> None:
    core = a_busy_core()
    before = state_of(core)
    with pytest.raises(SchedulerError):
        core.apply(message, HOUR)
    assert state_of(core) == before


def test_unknown_message_type_is_rejected() -> None:
    with pytest.raises(InternalError, match="the core has no handler for str"):
        a_core().apply("hello", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("fact", [Started("gone.1"), Ended("gone.1"), Checkpointed("gone.1")])
def test_reports_about_released_allocation_change_nothing(fact) -> None:
    core = a_busy_core()
    before = state_of(core)
    outcome = core.apply(fact, 1)
    assert (outcome.writes, outcome.effects) == ([], [])
    assert state_of(core) == before


def test_nodes_tenants_and_pools_can_be_set() -> None:
    core = a_core()
    assert core.apply(SetNode(a_node()), 0).writes == [a_node()]
    assert core.apply(SetTenant(a_tenant(gpus=1)), 0).writes == [a_tenant(gpus=1)]
    pool = PoolQuota(pool=Pool.BATCH, percent=50)
    assert core.apply(SetPools((pool,)), 0).writes == [pool]
    assert core.state.cluster.pools[Pool.BATCH].percent == 50
    assert core.state.cluster.has_quotas


def test_ended_jobs_are_remembered_up_to_limit() -> None:
    core = a_core(nodes=[a_node()], limits=CoreLimits(remembered_ends=2))
    for number in (1, 2, 3):
        core.apply(Submit(a_job(number=number)), 0)
    core.apply(RunCycle(), 0)
    for number in (1, 2, 3):
        core.apply(Ended(f"j{number}.1"), 1)
    assert list(core.state.ended) == ["j2", "j3"]
    core.apply(Submit(a_job(number=1)), 2)
    assert "j1" in core.state.jobs


def test_next_timer_is_earliest_due_event() -> None:
    core = a_core(nodes=[a_node()], policy=a_policy(default_limit_ms=9 * HOUR))
    assert core.next_timer_ms() is None
    core.apply(Submit(a_job(number=1)), 0)
    core.apply(RunCycle(), 0)
    assert core.next_timer_ms() == 9 * HOUR
    core.apply(Submit(a_job(number=2, begin_ms=HOUR)), 0)
    assert core.next_timer_ms() == HOUR
    core.apply(RunCycle(), HOUR)
    assert core.next_timer_ms() == 9 * HOUR


def test_expected_end_of_overrunning_job_is_extended() -> None:
    core = a_core(nodes=[a_node()])
    core.apply(Submit(a_job(number=1, estimate_ms=HOUR)), 0)
    core.apply(RunCycle(), 0)
    core.apply(RunCycle(), 2 * HOUR)
    running = core.state.cluster.running["j1.1"].running
    assert running.overrun
    assert running.expected_end_ms > 2 * HOUR


def test_overruns_wake_core_a_bounded_number_of_times() -> None:
    core = a_core(nodes=[a_node(gpus=1)])
    core.apply(Submit(a_job(number=1, estimate_ms=1)), 0)
    core.apply(Submit(a_job(number=2)), 0)
    core.apply(RunCycle(), 0)
    core.state.predictor.exceed = lambda job, elapsed_ms, now_ms: elapsed_ms + 1  # type: ignore[method-assign]
    wakes, now_ms = 0, 0
    while (at_ms := core.next_timer_ms()) is not None and at_ms < 24 * HOUR:
        assert at_ms > now_ms
        now_ms = at_ms
        core.apply(RunCycle(), now_ms)
        wakes += 1
    assert 10 < wakes < 1_500


def test_usage_is_cached_only_for_waiting_or_lending_accounts() -> None:
    lender = a_tenant(id="lender", gpus=4, elastic=True)
    core = a_core(nodes=[a_node(gpus=1)], policy=a_policy(name="fair"), tenants=[lender])
    for number in range(1, 6):
        core.apply(Submit(a_job(number=number, tenant=f"t{number}")), 0)
    core.apply(RunCycle(), 0)
    core.apply(Cancel("j3"), 1)
    core.apply(RunCycle(), 1)
    assert sorted(core.state.cluster.tenant_usage) == ["lender", "t2", "t4", "t5"]


def test_array_has_no_task_without_number() -> None:
    record = JobRecord(an_array(number=1))
    with pytest.raises(InternalError, match="has no task without a number"):
        record.task(None)


@pytest.mark.parametrize(
    ("happen", "state"),
    [
        (lambda record: record.task(0).move_to(JobState.SCHEDULED), JobState.SCHEDULED),
        (lambda record: None, JobState.PENDING),
    ],
)
def test_array_shows_state_of_its_most_active_task(
    happen: Callable[[JobRecord], None], state: JobState
) -> None:
    record = JobRecord(an_array(number=1, tasks="0-3"))
    happen(record)
    assert record.state is state


def test_rejected_submissions_of_ever_new_shapes_are_forgotten() -> None:
    """They never queue, and still the server must not remember each of them."""
    core = a_core(nodes=[a_node()])
    for memory_mb in range(1, 2_600):
        with pytest.raises(NeverFits):
            core.apply(Submit(a_job(id="", number=0, gpus=64, memory_mb=memory_mb)), 0)
    cluster = core.state.cluster
    remembered = (cluster.job_shapes, cluster.gang_verdicts, cluster.index._shape_of)
    assert max(map(len, remembered)) <= SPARE_SHAPES
