"""Gangs over nodes in the core: committed once, timed out, resized when members are lost."""

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import CommitOrder, StartOrder, StopOrder
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    NodeFenced,
    Prepared,
    Retry,
    RunCycle,
    SetNode,
    Started,
    Submit,
)
from gpu_scheduler.control.restore import read_ended, recall, restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Job, JobState
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_cluster, a_core, a_job
from tests.interface.event_record import check_events

LIMITS = CoreLimits(
    prepare_timeout_ms=60_000,
    gang_start_timeout_ms=30_000,
    start_timeout_ms=10_000,
    backoff_ms=1_000,
    max_misstarts=3,
)
HOSTS = ("10.0.0.1", "10.0.0.2")


class Bench:
    """A core whose orders are not executed: the test sends the reports of the nodes."""

    def __init__(self, nodes: int = 2, **job: object) -> None:
        self.core = a_core(nodes=a_cluster(nodes=nodes, gpus=4), limits=LIMITS)
        self.store = MemoryStore()
        self.store.commit([node.node for node in self.core.state.cluster.index.by_id.values()])
        self.now_ms = 0
        self.said: list[object] = []
        self.tell(Submit(a_job(number=1, **({"members": 2, "gpus": 4} | job))))  # type: ignore[arg-type]
        self.cycle()

    def tell(self, message: object) -> list[object]:
        outcome = self.core.apply(message, self.now_ms)  # type: ignore[arg-type]
        self.store.commit([*outcome.writes, *self.core.ledger_writes()])
        check_events(outcome.writes)
        self.said += outcome.effects
        return list(outcome.effects)

    def cycle(self) -> list[object]:
        return self.tell(RunCycle())

    def at(self, now_ms: int) -> list[object]:
        self.now_ms = now_ms
        return self.cycle()

    def again(self) -> None:
        """Restart the server from the store."""
        self.core = Core(self.core.state.policy, self.core.state.predictor, LIMITS)
        restore(self.core.state, self.store, self.now_ms)

    def prepared(self) -> list[object]:
        return self.tell(Prepared(self.allocation.id, 4711, HOSTS))

    @property
    def allocation(self) -> Allocation:
        (found,) = self.store.allocations()
        return found

    @property
    def state(self) -> JobState:
        row = self.store.job("j1")
        assert row is not None
        return row.state

    @property
    def job(self) -> Job:
        row = self.store.job("j1")
        assert row is not None
        return row.job

    def events(self) -> list[str]:
        return [row.kind for _, row in self.store.events()]

    def data(self, kind: str) -> list[dict[str, object]]:
        return [dict(row.data) for _, row in self.store.events() if row.kind == kind]


def test_commit_is_stored_with_rendezvous_before_it_is_ordered() -> None:
    bench = Bench()
    assert bench.allocation.is_held_back
    bench.now_ms = 500
    (order,) = bench.prepared()
    assert isinstance(order, CommitOrder)
    assert order.allocation == bench.allocation
    rendezvous = bench.allocation.rendezvous
    assert rendezvous is not None
    assert (rendezvous.at_ms, rendezvous.port, rendezvous.hosts) == (500, 4711, HOSTS)
    assert bench.state is JobState.SCHEDULED
    assert bench.events() == ["submitted", "scheduled", "prepared"]


def test_gang_is_committed_once_despite_repeated_prepared_reports() -> None:
    bench = Bench()
    assert len(bench.prepared()) == 1
    bench.now_ms = 900
    assert bench.tell(Prepared(bench.allocation.id, 9, ("a", "b"))) == []
    assert bench.allocation.rendezvous is not None
    assert bench.allocation.rendezvous.port == 4711


def test_stopping_gang_is_never_committed() -> None:
    bench = Bench()
    bench.tell(Cancel("j1"))
    assert bench.prepared() == []
    assert bench.allocation.is_held_back


def test_single_node_gang_needs_no_commit() -> None:
    bench = Bench(nodes=1, members=2, gpus=2)
    assert not bench.allocation.is_held_back
    assert bench.prepared() == []


def test_gang_not_prepared_in_time_is_stopped_and_retried() -> None:
    bench = Bench()
    assert not [order for order in bench.at(59_999) if isinstance(order, StopOrder)]
    (stop,) = bench.at(60_000)
    assert stop == StopOrder("j1.1", "not_begun")
    assert bench.prepared() == []
    late = "member 1 on n1 was not prepared within 60 s"
    bench.tell(Ended("j1.1", exit_code=None, ran=False, stopped_by="not_begun", detail=late))
    assert bench.state is JobState.PENDING
    assert bench.store.attempts("j1")[0].detail == late
    bench.at(70_000)
    assert bench.allocation.id == "j1.2"


def test_gang_that_is_repeatedly_late_fails_with_reason() -> None:
    bench = Bench()
    late = "member 1 on n1 was not prepared within 60 s"
    for attempt in range(1, LIMITS.max_misstarts + 1):
        bench.at(bench.now_ms + 60_000)
        bench.tell(Ended(f"j1.{attempt}", exit_code=None, ran=False, detail=late))
        bench.at(bench.now_ms + 20_000)
    assert bench.state is JobState.FAILED
    row = bench.store.job("j1")
    assert row is not None
    assert row.reason == f"could not be started: {late}"


def test_member_that_does_not_start_after_commit_stops_whole_gang() -> None:
    bench = Bench()
    bench.now_ms = 50_000
    bench.prepared()
    assert bench.at(60_000) == [], "the time to prepare is over for who is prepared"
    assert bench.at(79_999) == []
    assert bench.at(80_000) == [StopOrder("j1.1", "not_begun")]
    bench.tell(Ended("j1.1", exit_code=None, signal=15, stopped_by="not_begun", detail="late"))
    assert bench.state is JobState.PENDING


def test_started_gang_is_not_timed_out() -> None:
    bench = Bench()
    bench.prepared()
    bench.tell(Started("j1.1"))
    bench.at(200_000)
    assert not [order for order in bench.said if isinstance(order, StopOrder)]


def test_restarted_server_continues_from_stored_gang_state() -> None:
    held_back = Bench()
    held_back.again()
    assert [type(order) for order in held_back.prepared()] == [CommitOrder]
    held_back.again()
    assert held_back.prepared() == [], "the commit was stored, and is said to who asks again"
    assert held_back.at(30_000) == [StopOrder("j1.1", "not_begun")]


def test_gang_times_out_after_long_server_outage() -> None:
    bench = Bench()
    bench.now_ms = 3_600_000
    bench.again()
    assert bench.cycle() == [StopOrder("j1.1", "not_begun")]
    assert bench.prepared() == []


def test_committed_gang_gets_time_to_report_after_long_server_outage() -> None:
    bench = Bench()
    bench.prepared()
    bench.now_ms = 3_600_000
    bench.again()
    assert bench.cycle() == [], "it may run since the hour before, and nobody was there to hear it"
    assert bench.at(bench.now_ms + 29_999) == []
    assert bench.at(bench.now_ms + 1) == [StopOrder("j1.1", "not_begun")]


def test_cancel_during_timeout_of_late_attempt_is_kept() -> None:
    for job in ({}, {"members": 1}):
        bench = Bench(**job)  # type: ignore[arg-type]
        (stop,) = bench.at(60_000)
        assert stop == StopOrder("j1.1", "not_begun")
        bench.tell(Cancel("j1"))
        bench.again()
        bench.tell(Ended("j1.1", exit_code=None, ran=False, stopped_by="not_begun"))
        assert bench.state is JobState.CANCELLED


def test_elastic_gang_that_loses_node_continues_with_remaining_members() -> None:
    bench = Bench(nodes=4, members=4, min_members=2)
    bench.prepared()
    bench.tell(Started("j1.1"))
    bench.now_ms = 100_000
    bench.tell(NodeFenced("n3"))
    bench.tell(Ended("j1.1", exit_code=None, signal=15))
    bench.at(110_000)
    assert len(bench.allocation.placements) == 3
    assert bench.data("resized") == [{"from": 4, "to": 3, "minimum": 2}]
    bench.tell(Prepared("j1.2", 4711, ("a", "b", "c")))
    bench.tell(Started("j1.2"))
    for node in ("n1", "n2"):
        bench.tell(NodeFenced(node))
    bench.tell(Ended("j1.2", exit_code=None, signal=15))
    bench.at(200_000)
    assert bench.state is JobState.PENDING, "one node is less than its minimum"


@pytest.mark.parametrize("array", ["", "7"])
def test_last_member_count_of_gang_survives_restart(array: str) -> None:
    tasks = Array(tasks=IntervalSet.parse(array)) if array else None
    bench = Bench(nodes=4, members=4, min_members=2, array=tasks)
    first = bench.allocation.id
    bench.prepared()
    bench.tell(Started(first))
    bench.now_ms = 100_000
    bench.tell(NodeFenced("n3"))
    bench.tell(Ended(first, exit_code=None, signal=15))
    assert bench.store.allocations() == []
    bench.again()
    for node in a_cluster(nodes=3, gpus=4):
        bench.tell(SetNode(node))
    bench.at(110_000)
    assert len(bench.allocation.placements) == 3
    assert bench.data("resized") == [{"from": 4, "to": 3, "minimum": 2}]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("array", "told"), [("", 1), ("7-8", 0)])
def test_restart_does_not_change_retried_gang(array: str, told: int, *, is_restarted: bool) -> None:
    tasks = Array(tasks=IntervalSet.parse(array)) if array else None
    bench = Bench(nodes=4, members=4, min_members=2, array=tasks)
    first = bench.allocation.id
    bench.prepared()
    bench.tell(Started(first))
    bench.now_ms = 100_000
    bench.tell(Ended(first, exit_code=1))
    bench.tell(NodeFenced("n3"))
    if array:
        bench.tell(Retry("j1"))
    if is_restarted:
        bench.again()
        for node in a_cluster(nodes=3, gpus=4):
            bench.tell(SetNode(node))
    if not array:
        (stored,) = read_ended(bench.store, ["j1"])
        recall(bench.core.state, stored)
        bench.tell(Retry("j1"))
    bench.at(110_000)
    assert len(bench.allocation.placements) == 3
    assert bench.data("resized") == [{"from": 4, "to": 3, "minimum": 2}] * told


def test_elastic_gang_with_member_of_unknown_end_is_retried() -> None:
    bench = Bench(nodes=3, members=3, min_members=2)
    bench.prepared()
    bench.tell(Started("j1.1"))
    bench.tell(Ended("j1.1", exit_code=None, detail="the machine was restarted"))
    assert bench.state is JobState.PENDING


def test_long_running_elastic_gang_may_lose_any_number_of_members() -> None:
    bench = Bench(nodes=3, members=3, min_members=2)
    for attempt in range(1, 3 * LIMITS.max_misstarts):
        bench.prepared()
        bench.tell(Started(f"j1.{attempt}"))
        bench.now_ms += LIMITS.max_backoff_ms
        bench.tell(Ended(f"j1.{attempt}", exit_code=None, detail="the machine was restarted"))
        bench.at(bench.now_ms + 20_000)
        assert bench.state is JobState.SCHEDULED


def test_elastic_gang_that_repeatedly_loses_member_at_once_fails() -> None:
    bench = Bench(nodes=3, members=3, min_members=2)
    for attempt in range(1, LIMITS.max_misstarts + 1):
        assert bench.state is JobState.SCHEDULED, f"attempt {attempt}"
        bench.prepared()
        bench.tell(Started(f"j1.{attempt}"))
        bench.tell(Ended(f"j1.{attempt}", exit_code=None, detail="the machine was restarted"))
        bench.at(bench.now_ms + 20_000)
    assert bench.state is JobState.FAILED


def test_lost_member_of_elastic_gang_counts_as_no_retry() -> None:
    bench = Bench(nodes=3, members=3, min_members=2, retries=1)
    ends = ((None, JobState.PENDING), (1, JobState.PENDING), (1, JobState.FAILED))
    for attempt, (exit_code, state) in enumerate(ends, 1):
        bench.prepared()
        bench.tell(Started(f"j1.{attempt}"))
        bench.tell(Ended(f"j1.{attempt}", exit_code=exit_code, detail="member 1 on n1"))
        assert bench.state is state
        bench.at(bench.now_ms + 20_000)


def test_failing_program_is_repeated_only_as_often_as_requested() -> None:
    bench = Bench(nodes=3, members=3, min_members=2, retries=1)
    for attempt, state in ((1, JobState.PENDING), (2, JobState.FAILED)):
        bench.tell(Prepared(f"j1.{attempt}", 4711, ("a", "b", "c")))
        bench.tell(Started(f"j1.{attempt}"))
        bench.tell(Ended(f"j1.{attempt}", exit_code=1, detail="member 1 on n1: exit code 1"))
        assert bench.state is state
        bench.at(bench.now_ms + 20_000)


def test_gang_start_orders_are_sent_for_all_members_at_once() -> None:
    bench = Bench(nodes=3, members=3)
    (order,) = [order for order in bench.said if isinstance(order, StartOrder)]
    assert len(order.allocation.placements) == 3
    assert bench.job.is_gang
