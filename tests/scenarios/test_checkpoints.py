"""Checkpoints and failed starts survive a server restart."""

import pytest

from gpu_scheduler.control.messages import Checkpointed, Ended, NodeFenced, NodeLost, NodeSilent
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, JobState
from gpu_scheduler.store.rows import JobRow, TaskRow
from tests.builders import DAY, HOUR, MINUTE, SECOND, a_job, a_node, a_policy
from tests.scenarios.lab import Lab
from tests.scenarios.test_gang_commits import LIMITS, Bench
from tests.scenarios.test_lost_nodes import found, restart, two_nodes

BY_CLASS = a_policy(name="fair", fair_ms=0, user_fair_ms=0)


def saving(**job: object) -> Lab:
    """A job that has run for two hours, with a checkpoint after one."""
    lab = two_nodes()
    job = {"requeue_on_node_loss": True, "estimate_ms": DAY, **job}
    lab.submit(a_job(number=1, **job))  # type: ignore[arg-type]
    lab.at(HOUR)
    lab.tell(Checkpointed(lab.orders[0].id))
    lab.at(2 * HOUR)
    return lab


def test_restarted_server_knows_last_checkpoint() -> None:
    lab = saving()
    before = lab.core.state.cluster.running["j1.1"].running.checkpoint_ms
    restart(lab)
    assert lab.core.state.cluster.running["j1.1"].running.checkpoint_ms == before == HOUR


def test_job_of_dead_node_keeps_checkpoint_after_failover() -> None:
    lab = saving()
    restart(lab)
    lab.do(found("n1"))
    lab.do(NodeSilent("n0"), NodeLost("n0"), NodeFenced("n0"))
    assert lab.nodes_of("j1") == ["n1"]
    assert lab.row("j1").attained_ms == HOUR - 1_000


def test_array_task_keeps_checkpoint_after_failover() -> None:
    lab = saving(array=Array(tasks=IntervalSet.parse("3")))
    restart(lab)
    lab.do(found("n1"))
    lab.do(NodeSilent("n0"), NodeLost("n0"), NodeFenced("n0"))
    (task,) = lab.store.tasks("j1")
    assert (task.attempt, task.attained_ms) == (2, HOUR - 1_000)


def test_next_attempt_starts_without_checkpoint() -> None:
    lab = saving()
    lab.do(NodeSilent("n0"), NodeLost("n0"), NodeFenced("n0"))
    restart(lab)
    assert lab.core.state.cluster.running["j1.2"].running.checkpoint_ms == 0


def test_checkpoint_time_is_as_reported_and_not_before_start() -> None:
    lab = saving()
    lab.tell(Checkpointed("j1.1", ago_ms=30 * MINUTE))
    running = lab.core.state.cluster.running["j1.1"].running
    assert running.checkpoint_ms == 90 * MINUTE
    lab.tell(Checkpointed("j1.1", ago_ms=80 * MINUTE))
    running = lab.core.state.cluster.running["j1.1"].running
    assert running.checkpoint_ms == 90 * MINUTE, "it is told again, and was known"
    fresh = two_nodes()
    fresh.submit(a_job(number=1))
    fresh.at(MINUTE)
    fresh.tell(Checkpointed("j1.1", ago_ms=DAY))
    (entry,) = fresh.core.state.cluster.running.values()
    assert entry.running.checkpoint_ms == entry.running.allocation.start_ms


def test_frequent_checkpoints_are_not_written_every_second() -> None:
    lab = saving()
    writes = []
    for _ in range(30):
        lab.at(lab.now_ms + SECOND)
        writes += lab.tell(Checkpointed("j1.1")).writes
    assert 0 < sum(isinstance(write, JobRow | TaskRow) for write in writes) <= 3
    assert lab.core.state.cluster.running["j1.1"].running.checkpoint_ms == lab.now_ms


def test_checkpoint_just_before_end_counts_as_progress() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=BY_CLASS, obedient=False)
    lab.submit(a_job(number=1, priority=250, estimate_ms=DAY))
    lab.at(HOUR)
    lab.submit(a_job(number=2, priority=2500))
    lab.tell(Checkpointed("j1.1"))
    lab.ends("j1", exit_code=None, signal=15)
    assert lab.row("j1").attained_ms == HOUR


@pytest.mark.parametrize(
    "job", [{}, {"array": Array(tasks=IntervalSet.parse("0"))}], ids=["plain", "array"]
)
def test_failed_starts_are_counted_over_restarts(job: dict[str, object]) -> None:
    bench = Bench(**job)
    late = "member 1 on n1 was not prepared within 60 s"
    for attempt in range(1, LIMITS.max_misstarts + 1):
        assert bench.state is JobState.SCHEDULED, f"attempt {attempt}"
        bench.again()
        bench.at(bench.now_ms + 60_000)
        bench.tell(Ended(bench.allocation.id, exit_code=None, ran=False, detail=late))
        bench.again()
        for node in bench.store.nodes():
            bench.core.state.cluster.set_node(node)
        bench.at(bench.now_ms + 20_000)
    assert bench.state is JobState.FAILED
