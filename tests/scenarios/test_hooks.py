"""Failing prologs and epilogs: who is at fault, and the consequences for job and node."""

from dataclasses import replace
from typing import Any

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import StartOrder
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    Cordon,
    Drain,
    Ended,
    Fact,
    Retry,
    RunCycle,
    Started,
    Submit,
    Uncordon,
)
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Job, JobState
from gpu_scheduler.model.launch import EPILOG, PROLOG, HookFailure
from gpu_scheduler.model.node import NodeClosure, NodeState
from gpu_scheduler.model.plan import Allocation, Plan
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import EventRow
from tests.builders import a_cluster, a_core, a_job
from tests.interface.event_record import check_events

HOW = "exit code 3: no disk"
KEPT = CoreLimits(backoff_ms=1_000, hook_failure_drains=False)


class Bench:
    """A core whose orders are not executed: the test sends the reports of the nodes."""

    def __init__(self, nodes: int = 4, limits: CoreLimits | None = None, **job: Any) -> None:
        self.limits = limits or CoreLimits(backoff_ms=1_000)
        self.core = a_core(nodes=a_cluster(nodes=nodes, gpus=1), limits=self.limits)
        self.store = MemoryStore()
        self.store.commit(
            [resources.node for resources in self.core.state.cluster.index.by_id.values()]
        )
        self.now_ms = 0
        self.submit(a_job(number=1, **job))

    def submit(self, job: Job) -> None:
        self.tell(Submit(job))
        self.cycle()

    def tell(self, message: Command | Fact) -> None:
        outcome = self.core.apply(message, self.now_ms)
        self.store.commit([*outcome.writes, *self.core.ledger_writes()])
        check_events(outcome.writes)

    def cycle(self) -> None:
        for _ in range(10):
            outcome = self.core.apply(RunCycle(), self.now_ms)
            self.store.commit([*outcome.writes, *self.core.ledger_writes()])
            check_events(outcome.writes)
            if not any(isinstance(effect, StartOrder) for effect in outcome.effects):
                return

    def at(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.cycle()

    def again(self) -> None:
        """The server restarts or fails over, and the nodes reconnect."""
        self.core = Core(self.core.state.policy, self.core.state.predictor, self.limits)
        restore(self.core.state, self.store, self.now_ms)
        for resources in list(self.core.state.cluster.index.by_id.values()):
            self.core.state.cluster.set_node(replace(resources.node, state=NodeState.ONLINE))
        self.cycle()

    def prolog_fails(self, *members: int) -> str:
        """The prolog of these members fails; returns the node of the first of them."""
        nodes = {p.member: p.node_id for p in self.allocation.placements}
        blamed = [nodes[member] for member in members or (0,)]
        hooks = tuple(HookFailure(node, PROLOG, HOW) for node in dict.fromkeys(blamed))
        detail = f"node {blamed[0]}: the prolog '/etc/prolog' failed: {HOW}"
        end = Ended(self.allocation.id, exit_code=None, ran=False, detail=detail, hooks=hooks)
        self.tell(end)
        self.cycle()
        return blamed[0]

    def ends(self, **how: Any) -> None:
        self.tell(Started(self.allocation.id))
        self.tell(Ended(self.allocation.id, **how))
        self.cycle()

    @property
    def allocation(self) -> Allocation:
        (found,) = self.store.allocations()
        return found

    @property
    def where(self) -> str:
        return self.allocation.placements[0].node_id

    def job(self) -> Any:
        row = self.store.job("j1")
        assert row is not None
        return row

    def closed(self, node_id: str) -> NodeClosure | None:
        return next(node for node in self.store.nodes() if node.id == node_id).closed

    def events(self, *kinds: str) -> list[EventRow]:
        return [row for _, row in self.store.events(0) if row.kind in kinds]


# --- the job


def test_job_with_failed_prolog_starts_at_once_on_another_node() -> None:
    bench = Bench(retries=1)
    node = bench.prolog_fails()
    assert bench.where != node
    assert bench.allocation.attempt == 2
    assert (bench.job().state, bench.job().failures) == (JobState.SCHEDULED, 0)
    (attempt,) = bench.store.attempts("j1", None)
    assert attempt.detail == f"node {node}: the prolog '/etc/prolog' failed: {HOW}"


def test_failed_prolog_uses_no_user_retry() -> None:
    bench = Bench(retries=1)
    bench.prolog_fails()
    bench.ends(exit_code=1)
    assert bench.job().state is JobState.PENDING
    bench.at(10_000)
    bench.ends(exit_code=1)
    assert bench.job().state is JobState.FAILED
    assert bench.job().attempt == 3


def test_job_fails_with_reason_after_three_consecutive_failed_prologs() -> None:
    bench = Bench(retries=5)
    for _ in range(2):
        bench.prolog_fails()
    node = bench.prolog_fails()
    assert bench.job().state is JobState.FAILED
    assert bench.job().reason == (
        f"could not be started: node {node}: the prolog '/etc/prolog' failed: {HOW}; "
        "a prolog failed 3 times in a row; giving up"
    )


def test_failed_prologs_before_attempt_that_ran_are_not_counted() -> None:
    bench = Bench(nodes=6, retries=1)
    for _ in range(2):
        bench.prolog_fails()
    bench.ends(exit_code=1)
    bench.at(10_000)
    bench.prolog_fails()
    assert bench.job().state is JobState.SCHEDULED


def test_restart_keeps_prolog_failure_count_and_drained_node() -> None:
    bench = Bench()
    first = bench.prolog_fails()
    bench.again()
    second = bench.prolog_fails()
    bench.again()
    assert bench.where not in {first, second}
    bench.prolog_fails()
    assert bench.job().state is JobState.FAILED
    assert bench.closed(first) is not None
    assert bench.closed(second) is not None


def test_manual_retry_resets_prolog_failure_count() -> None:
    bench = Bench(nodes=6)
    for _ in range(3):
        bench.prolog_fails()
    bench.tell(Retry("j1"))
    bench.cycle()
    bench.prolog_fails()
    assert bench.job().state is JobState.SCHEDULED


def test_array_task_with_failed_prolog_is_requeued_and_count_survives_restart() -> None:
    bench = Bench(array=Array(tasks=IntervalSet.parse("0")))
    bench.prolog_fails()
    bench.again()
    bench.prolog_fails()
    bench.again()
    bench.prolog_fails()
    assert bench.job().state is JobState.FAILED
    assert len(bench.store.attempts("j1", 0)) == 3


def test_gang_with_failed_prolog_is_requeued_and_only_faulty_node_is_drained() -> None:
    bench = Bench(members=2)
    node = bench.prolog_fails(1)
    assert [n.id for n in bench.store.nodes() if n.closed] == [node]
    assert node not in {p.node_id for p in bench.allocation.placements}
    assert len(bench.allocation.placements) == 2


@pytest.mark.parametrize("limits", [None, KEPT], ids=["drained", "kept"])
def test_job_cancelled_during_prolog_is_cancelled(limits: CoreLimits | None) -> None:
    bench = Bench(limits=limits)
    bench.tell(Cancel("j1"))
    bench.prolog_fails()
    assert bench.job().state is JobState.CANCELLED


def test_prolog_retries_back_off_where_nodes_are_not_drained() -> None:
    bench = Bench(nodes=1, limits=KEPT)
    bench.prolog_fails()
    assert bench.job().state is JobState.PENDING
    assert bench.closed("n0") is None
    bench.at(999)
    assert bench.job().state is JobState.PENDING
    bench.at(1_000)
    bench.prolog_fails()
    bench.at(2_999)
    assert bench.job().state is JobState.PENDING
    bench.at(3_000)
    assert bench.job().state is JobState.SCHEDULED


def test_prolog_failure_reported_after_start_does_not_undo_run() -> None:
    bench = Bench()
    bench.tell(Started(bench.allocation.id))
    bench.prolog_fails()
    assert bench.job().state is JobState.FAILED


# --- the node


def test_node_with_failed_prolog_gets_no_jobs_and_shows_reason() -> None:
    bench = Bench(nodes=1)
    bench.prolog_fails()
    closed = bench.closed("n0")
    assert closed is not None
    assert (closed.drains, closed.is_fault, closed.by) == (True, True, "gpu-scheduler")
    assert closed.reason == f"the prolog of job j1 failed: {HOW}"
    assert bench.job().state is JobState.PENDING
    kinds = [row.kind for row in bench.events("hook_failed", "node_set_aside", "node_drained")]
    assert kinds == ["hook_failed", "node_set_aside", "node_drained"]
    (told,) = bench.events("hook_failed")
    assert (told.job_id, dict(told.data)) == ("j1", {"node": "n0", "hook": PROLOG, "detail": HOW})
    why = explain(bench.core.state.cluster, Plan(), 1)
    assert str(why) == "no node takes work: 1 x set aside as a prolog or epilog failed there"


def test_resumed_node_runs_waiting_jobs() -> None:
    bench = Bench(nodes=1)
    bench.prolog_fails()
    bench.tell(Uncordon("n0"))
    bench.cycle()
    assert (bench.where, bench.allocation.attempt) == ("n0", 2)
    bench.ends(exit_code=0)
    assert bench.job().state is JobState.COMPLETED


@pytest.mark.parametrize("said", [Cordon("n0", "ann", "fan"), Drain("n0", "ann", "fan")], ids=str)
def test_admin_decision_about_node_is_kept(said: Cordon | Drain) -> None:
    bench = Bench(nodes=1)
    bench.tell(said)
    bench.prolog_fails()
    closed = bench.closed("n0")
    assert closed is not None
    assert (closed.by, closed.reason, closed.is_fault) == ("ann", "fan", False)


def test_admin_drain_takes_over_automatically_drained_node_with_reason() -> None:
    bench = Bench(nodes=1)
    bench.prolog_fails()
    bench.tell(Drain("n0", "ann"))
    closed = bench.closed("n0")
    assert closed is not None
    assert (closed.by, closed.is_fault) == ("ann", False)
    assert closed.reason == f"the prolog of job j1 failed: {HOW}"


def test_failed_epilog_drains_node_and_keeps_job_result() -> None:
    bench = Bench(nodes=1)
    hooks = (HookFailure("n0", EPILOG, "exit code 1"),)
    bench.ends(exit_code=0, detail="the epilog 'sh' failed: exit code 1", hooks=hooks)
    assert bench.job().state is JobState.COMPLETED
    closed = bench.closed("n0")
    assert closed is not None
    assert closed.reason == "the epilog of job j1 failed: exit code 1"
    assert [dict(row.data)["hook"] for row in bench.events("hook_failed")] == [EPILOG]


def test_failed_epilog_after_failed_prolog_is_recorded_and_drains_node_once() -> None:
    bench = Bench(nodes=1)
    hooks = (HookFailure("n0", PROLOG, HOW), HookFailure("n0", EPILOG, "exit code 1"))
    bench.tell(Ended(bench.allocation.id, exit_code=None, ran=False, detail="no", hooks=hooks))
    assert len(bench.events("hook_failed")) == 2
    assert len(bench.events("node_set_aside")) == 1
    assert bench.job().state is JobState.PENDING
