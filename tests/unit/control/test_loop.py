"""The control loop: responses follow commits, and failures roll back completely."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from threading import Event, current_thread
from types import NoneType
from typing import Any

import pytest

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Effect, Outcome, StartOrder
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    Hold,
    PauseDevice,
    Release,
    Retry,
    SetNode,
    Started,
    Submit,
    SubmitAll,
    SubmitSeries,
    Update,
)
from gpu_scheduler.control.restore import read_ended
from gpu_scheduler.model.errors import (
    ClusterError,
    Forbidden,
    InternalError,
    InvalidRequest,
    NeverFits,
    SchedulerError,
    StoreTooNew,
    StoreUnavailable,
    UnknownThing,
)
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import AuditRow, EventRow, JobRow, NewJobs, Write
from tests.builders import a_core, a_job, a_node, a_request, after, an_array
from tests.loop_reads import ReadOnLoop

VISION = frozenset({"vision"})
ANN = Caller(user="ann", uid=1000, tenant="vision", tenants=VISION)
ROOT = Caller(user="root", role=Role.ADMIN)
BOB = Caller(user="bob", uid=1001, tenant="vision", tenants=VISION)
CHIEF = Caller(user="eve", role=Role.TENANT_ADMIN, tenants=VISION, administers=VISION)
SPECTATOR = replace(ANN, role=Role.VIEWER)


class Disk(MemoryStore):
    """A store whose disk can be full, and that remembers its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.unreadable = 0
        self.batches: list[list[Write]] = []

    def commit(self, writes: list[Write]) -> int:
        if self.full:
            raise StoreUnavailable("the disk is full")
        self.batches.append(writes)
        return super().commit(writes)

    def tenants(self) -> list[Tenant]:
        if self.unreadable:
            self.unreadable -= 1
            raise StoreUnavailable("reading failed")
        return super().tenants()


class Bench:
    """A loop on virtual time, with its orders."""

    def __init__(self, store: Disk) -> None:
        self.store = store
        self.now_ms = 1_000
        self.reloads = 0
        self.orders: list[Effect] = []
        self.loop = Loop(store, self._core, lambda: self.now_ms, sweep_ms=5)
        self.loop.on_effects(self._keep_orders)
        self.loop.on_reload(self._reloaded)
        self.reloaded = asyncio.Event()
        self.loop.start()

    async def _keep_orders(self, effects: list[Effect]) -> None:
        self.orders += effects

    def _core(self) -> Core:
        return a_core(nodes=[])

    def _reloaded(self) -> None:
        self.reloads += 1
        self.reloaded.set()


def with_loop(test: Callable[[Bench], Awaitable[None]], store: Disk | None = None) -> Bench:
    """Run a test against a fresh loop with one node of eight GPUs."""

    async def run() -> Bench:
        bench = Bench(store or Disk())
        await bench.loop.apply(SetNode(a_node()))
        try:
            await asyncio.wait_for(test(bench), 60)
        finally:
            await bench.loop.close()
        return bench

    return asyncio.run(run())


def a_submission(**changes: Any) -> Submit:
    return Submit(a_job(id="", **changes))


def test_response_follows_commit_with_job_and_order() -> None:
    async def test(bench: Bench) -> None:
        outcome = await bench.loop.apply(a_submission(gpus=2))
        assert outcome.jobs[0].id == "job-1"
        row = bench.store.job("job-1")
        assert row is not None
        assert row.state is JobState.SCHEDULED
        assert [order.allocation.id for order in bench.orders if isinstance(order, StartOrder)] == [
            "job-1.1"
        ]

    with_loop(test)


def test_concurrent_messages_are_committed_together() -> None:
    async def test(bench: Bench) -> None:
        before = len(bench.store.batches)
        answers = [bench.loop.post(a_submission(number=0, gpus=0)) for _ in range(50)]
        await asyncio.gather(*answers)
        assert len(bench.store.batches) - before <= 2
        assert len(bench.store.jobs()) == 50

    with_loop(test)


def a_series(job: Job, launch: Launch, name: str) -> SubmitSeries:
    return SubmitSeries(job, launch, None, (name,), ((name,),))


def test_identical_submissions_are_written_once_with_own_responses() -> None:
    async def test(bench: Bench) -> None:
        job, launch = a_job(id="", number=0, gpus=8), Launch(argv=("x",))
        await bench.loop.apply(a_submission(gpus=8))
        before = len(bench.store.batches)
        names = [f"n{number}" for number in range(20)]
        answers = [bench.loop.post(a_series(job, launch, name)) for name in names]
        outcomes = await asyncio.gather(*answers)
        assert [[job.name for job in outcome.jobs] for outcome in outcomes] == [
            [name] for name in names
        ]
        new = [w for batch in bench.store.batches[before:] for w in batch if type(w) is NewJobs]
        assert sum(len(write.jobs) for write in new) == 20
        assert len(new) <= 2

    with_loop(test)


def test_identical_submissions_are_rejected_individually() -> None:
    async def test(bench: Bench) -> None:
        job, launch = a_job(id="", number=0, gpus=1), Launch(argv=("x",))
        bench.loop._rules = refuse_n1
        names = ["n0", "n1", "n2"]
        answers = [bench.loop.post(a_series(job, launch, name)) for name in names]
        told = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(answer) for answer in told] == [Outcome, InvalidRequest, Outcome]
        assert sorted(row.job.name for row in bench.store.jobs()) == ["n0", "n2"]

    with_loop(test)


def refuse_n1(submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
    if isinstance(submission, SubmitSeries) and "n1" in submission.names:
        raise InvalidRequest("not n1")
    return submission


def test_submissions_of_two_callers_are_never_merged() -> None:
    async def test(bench: Bench) -> None:
        job = replace(a_job(id="", number=0, gpus=1), user="ann", tenant="vision")
        launch = Launch(argv=("x",), uid=1000, user="ann")
        good = bench.loop.post(a_series(job, launch, "own"), ANN)
        bad = bench.loop.post(a_series(job, launch, "foreign"), BOB)
        with pytest.raises(Forbidden):
            await bad
        assert (await good).jobs[0].name == "own"

    with_loop(test)


def test_rejection_affects_only_its_caller() -> None:
    async def test(bench: Bench) -> None:
        good = bench.loop.post(a_submission(gpus=1))
        bad = bench.loop.post(a_submission(gpus=99, number=2))
        with pytest.raises(NeverFits):
            await bad
        await good
        assert len(bench.store.jobs()) == 1

    with_loop(test)


def test_bulk_submission_is_all_or_nothing() -> None:
    async def test(bench: Bench) -> None:
        good, bad = a_submission(gpus=1), a_submission(gpus=99)
        with pytest.raises(NeverFits) as refused:
            await bench.loop.apply(SubmitAll((good, good, bad)))
        assert refused.value.index == 2
        assert bench.store.jobs() == []
        assert not bench.loop.core.state.jobs
        outcome = await bench.loop.apply(SubmitAll((good, good)))
        assert [job.id for job in outcome.jobs] == ["job-1", "job-2"]

    with_loop(test)


def test_failed_commit_rolls_back_everything() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=8))
        bench.store.full = True
        with pytest.raises(StoreUnavailable):
            await bench.loop.apply(a_submission(number=2, gpus=1))
        await bench.reloaded.wait()
        assert bench.reloads == 1
        assert set(bench.loop.core.state.jobs) == {"job-1"}
        assert "job-1.1" in bench.loop.core.state.cluster.running
        assert len(bench.orders) == 1
        bench.store.full = False
        outcome = await bench.loop.apply(a_submission(number=2, gpus=1))
        assert outcome.jobs[0].id == "job-2", "the number was not given to anybody"

    with_loop(test)


def test_unreadable_store_is_retried_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_scheduler.control.loop.PAUSE_AFTER_BUG_S", 0.0)

    async def test(bench: Bench) -> None:
        bench.store.full, bench.store.unreadable = True, 3
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await bench.loop.apply(a_submission(gpus=1))
        with pytest.raises(StoreUnavailable, match="reading failed"):
            await bench.loop.apply(a_submission(gpus=1))
        assert bench.loop.away == "reading failed"
        bench.store.full = False
        await bench.reloaded.wait()
        assert bench.loop.away == ""
        assert (await bench.loop.apply(a_submission(gpus=1))).jobs[0].id == "job-1"
        assert (bench.store.unreadable, bench.reloads) == (0, 1)

    with_loop(test)


def test_bug_during_reload_does_not_stop_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gpu_scheduler.control.loop.PAUSE_AFTER_BUG_S", 0.0)
    told: list[SchedulerError | None] = []

    async def test(bench: Bench) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        reads = iter([KeyError("job-1"), KeyError("job-1")])

        def allocations() -> list[Allocation]:
            for error in reads:
                raise error
            return []

        bench.loop.on_written(told.append)
        bench.loop._on_reload.insert(0, fail)
        monkeypatch.setattr(bench.store, "allocations", allocations)
        bench.store.full = True
        with pytest.raises(StoreUnavailable):
            await bench.loop.apply(a_submission(gpus=1))
        await bench.reloaded.wait()
        bench.store.full = False
        assert (await bench.loop.apply(a_submission(gpus=1))).jobs[0].id == "job-1"

    with_loop(test)
    kinds = [StoreUnavailable, InternalError, InternalError, NoneType]
    assert [type(error) for error in told] == kinds, "whoever leads hears of it"


class Picky(Disk):
    """A store that rejects rows with an A, and raises a bug on a B."""

    def commit(self, writes: list[Write]) -> int:
        targets = {write.target for write in writes if isinstance(write, AuditRow)}
        if "A" in targets:
            raise InternalError("a row cannot be kept")
        if "B" in targets:
            raise ZeroDivisionError
        return super().commit(writes)


@pytest.mark.parametrize("target", ["A", "B"])
def test_invalid_audit_row_fails_alone(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.control.loop.PAUSE_AFTER_BUG_S", 0.0)

    async def test(bench: Bench) -> None:
        bench.loop.note(AuditRow(1, "ada", "", "", "try", target, "refused"))
        while not (bench.loop.trouble or bench.reloads):  # noqa: ASYNC110 - seen from outside
            await asyncio.sleep(0.001)
        bench.loop.note(AuditRow(1, "ada", "", "", "try", target, "refused"))
        with pytest.raises(InternalError):
            await bench.loop.apply(a_submission(gpus=1))
        await bench.loop.apply(a_submission(gpus=1))

    with_loop(test, Picky())


class SlowToRead(Disk):
    """A store whose reads block until the event loop has run."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = Event(), Event()
        self.waited: list[bool] = []

    def tenants(self) -> list[Tenant]:
        if self.full:
            self.asked.set()
            self.waited.append(self.go_on.wait(30))
        return super().tenants()


def test_event_loop_runs_during_reload() -> None:
    async def test(bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, SlowToRead)
        store.full = True
        with pytest.raises(StoreUnavailable):
            await bench.loop.apply(a_submission(gpus=1))
        await asyncio.to_thread(store.asked.wait)
        late = bench.loop.post(a_submission(gpus=1), ROOT)
        await asyncio.sleep(0)
        assert not late.done(), "it waits for what is read"
        store.full = False
        store.go_on.set()
        assert (await late).jobs[0].id == "job-1"
        assert store.waited == [True]

    with_loop(test, SlowToRead())


def test_orders_that_fail_on_unavailable_store_are_sent_after_reload() -> None:
    async def test(bench: Bench) -> None:
        away = [StoreUnavailable("just now")]

        async def give(_: list[Effect]) -> None:
            if away:
                raise away.pop()

        bench.loop.on_effects(give)
        made = await bench.loop.apply(a_submission(gpus=1))
        await bench.reloaded.wait()
        assert made.jobs[0].id == "job-1", "it is committed, whatever becomes of the order"
        assert "job-1.1" in bench.loop.core.state.cluster.running
        assert (bench.reloads, bench.loop.loop_metrics.failed_commits) == (1, 0)

    with_loop(test)


class NearlyFull(Disk):
    """A store whose disk has only its reserve left."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def full_reason(self) -> str:
        return self.reason


def test_full_disk_accepts_only_what_ends_work_and_starts_nothing() -> None:
    async def test(bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, NearlyFull)
        running = (await bench.loop.apply(a_submission(gpus=8), ROOT)).jobs[0].id
        waiting = (await bench.loop.apply(a_submission(gpus=8), ROOT)).jobs[0].id
        following = (await bench.loop.apply(a_submission(gpus=1), ROOT)).jobs[0].id
        store.reason = "the disk is full"
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await bench.loop.apply(a_submission(gpus=1), ROOT)
        with pytest.raises(StoreUnavailable, match="the disk is full"):
            await bench.loop.apply(Release(waiting), ROOT)
        assert bench.loop.trouble == "the disk is full"
        await bench.loop.apply(Hold(waiting), ROOT)
        await bench.loop.apply(PauseDevice("n0", 0), ROOT)
        await bench.loop.apply(Cancel(running), ROOT)
        await bench.loop.apply(Ended(f"{running}.1"))
        assert bench.loop.core.wants_cycle, "the cycle waits for space"
        assert bench.reloads == 0
        row = store.job(following)
        assert row is not None
        assert row.state is JobState.PENDING
        store.reason = ""
        while not any(  # noqa: ASYNC110 - the loop starts it at its next sweep
            isinstance(order, StartOrder) and order.allocation.id == f"{following}.1"
            for order in bench.orders
        ):
            await asyncio.sleep(0.001)
        assert bench.loop.trouble == ""

    with_loop(test, NearlyFull())


class Away(Disk):
    """A store that is unavailable for a while, in the middle of a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.why = ""
        self.back = Event()
        self.back.set()

    def unavailable_reason(self) -> str:
        return self.why

    def commit(self, writes: list[Write]) -> int:
        self.back.wait()
        return super().commit(writes)


def test_requests_are_rejected_and_reports_kept_while_commit_waits_for_store() -> None:
    async def test(bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, Away)
        store.back.clear()
        first = bench.loop.post(a_submission(gpus=1), ROOT)
        await asyncio.sleep(0)
        store.why = "it is being restarted"
        with pytest.raises(StoreUnavailable, match="restarted"):
            await bench.loop.apply(a_submission(gpus=1), ROOT)
        fact = bench.loop.post(a_submission(gpus=1))
        assert not first.done()
        assert not fact.done()
        store.why = ""
        store.back.set()
        assert (await first).jobs[0].id == "job-1"
        assert (await fact).jobs[0].id == "job-2"

    with_loop(test, Away())


def test_bug_fails_one_batch_not_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.control.loop.PAUSE_AFTER_BUG_S", 0.0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def test(bench: Bench) -> None:
        monkeypatch.setattr(bench.loop.core, "apply_in_batch", broken)
        with pytest.raises(InternalError):
            await bench.loop.apply(a_submission(gpus=1))
        await bench.reloaded.wait()
        assert bench.reloads == 1
        await bench.loop.apply(a_submission(gpus=1))

    with_loop(test)


def test_new_loop_continues_from_stored_state() -> None:
    disk = Disk()

    async def first(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=8, name="a"))
        await bench.loop.apply(Started("job-1.1"))
        await bench.loop.apply(a_submission(number=2, gpus=8, name="b"))

    async def second(bench: Bench) -> None:
        assert bench.loop.core.state.jobs.keys() == {"job-1", "job-2"}
        await bench.loop.apply(Ended("job-1.1"))
        row = bench.store.job("job-2")
        assert row is not None
        assert row.state is JobState.SCHEDULED

    with_loop(first, disk)
    with_loop(second, disk)


def test_task_cancelled_before_retry_stays_cancelled_after_restart() -> None:
    disk = Disk()

    async def first(bench: Bench) -> None:
        await bench.loop.apply(Submit(an_array(id="", tasks="0-1", gpus=1, retries=3)))
        await bench.loop.apply(Ended("job-1_0.1", exit_code=1))
        await bench.loop.apply(Cancel("job-1", tasks=IntervalSet.of([0])))
        states = {row.task: row.state for row in bench.store.tasks("job-1")}
        assert states == {0: JobState.CANCELLED, 1: JobState.SCHEDULED}

    async def second(bench: Bench) -> None:
        assert bench.loop.core.state.jobs["job-1"].tasks.keys() == {1}
        await bench.loop.apply(Ended("job-1_1.1", exit_code=0))
        row = bench.store.job("job-1")
        assert row is not None
        assert row.state is JobState.CANCELLED

    with_loop(first, disk)
    with_loop(second, disk)


def test_job_ended_before_restart_can_be_retried_and_depended_on() -> None:
    disk = Disk()

    async def first(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=1))
        await bench.loop.apply(Ended("job-1.1", exit_code=3))

    async def second(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=1, dependencies=after("job-1", "afternotok")))
        await bench.loop.apply(Retry("job-1"))
        row = bench.store.job("job-1")
        assert row is not None
        assert (row.state, row.attempt) == (JobState.SCHEDULED, 2)

    with_loop(first, disk)
    with_loop(second, disk)


def test_hold_and_dependency_survive_restart_and_retry() -> None:
    disk = Disk()
    waits: tuple[dict[str, Any], ...] = (
        {"dependencies": after("job-1")},
        {"dependencies": after("job-2")},
        {"hold": True},
    )

    async def first(bench: Bench) -> None:
        for number in (1, 2):
            await bench.loop.apply(a_submission(gpus=1))
            await bench.loop.apply(Started(f"job-{number}.1"))
        for number, more in enumerate(waits, start=3):
            await bench.loop.apply(a_submission(gpus=1, **more))
            await bench.loop.apply(Cancel(f"job-{number}"))
        await bench.loop.apply(Ended("job-2.1", exit_code=0))

    async def second(bench: Bench) -> None:
        for number in (3, 4, 5):
            await bench.loop.apply(Retry(f"job-{number}"))
        found = [bench.store.job(f"job-{number}") for number in (3, 4, 5)]
        states = [row.state.value for row in found if row is not None]
        assert states == ["pending", "scheduled", "pending"]
        await bench.loop.apply(Ended("job-1.1", exit_code=0))
        await bench.loop.apply(Release("job-5"))
        assert {"job-3.1", "job-5.1"} <= {a.id for a in bench.store.allocations()}

    with_loop(first, disk)
    with_loop(second, disk)


def test_job_of_another_user_cannot_be_changed() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=1, user="ann"), ANN)
        for message in (Cancel("job-1"), Hold("job-1"), Retry("job-1"), Update("job-1", ())):
            with pytest.raises(Forbidden, match="job 1 belongs to 'ann'"):
                await bench.loop.apply(message, BOB)
        with pytest.raises(Forbidden):
            await bench.loop.apply(a_submission(gpus=1, user="ann"), BOB)
        with pytest.raises(Forbidden):
            await bench.loop.apply(PauseDevice("n0", 0), ANN)
        await bench.loop.apply(Cancel("job-1"), ANN)
        await bench.loop.apply(Ended("job-1.1", signal=15))
        with pytest.raises(UnknownThing, match="job 1 is not known"):
            await bench.loop.apply(Retry("job-1"), BOB)

    with_loop(test)


def test_tenant_admin_changes_only_jobs_of_tenant() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=1, user="ann"), ANN)
        await bench.loop.apply(a_submission(number=2, gpus=1, user="ann", tenant="audio"))
        await bench.loop.apply(Cancel("job-1"), CHIEF)
        with pytest.raises(Forbidden, match="job 2 belongs to 'ann'"):
            await bench.loop.apply(Cancel("job-2"), CHIEF)

    with_loop(test)


def test_user_submits_only_to_own_tenants() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(Forbidden, match="'ann' does not belong to tenant 'audio'"):
            await bench.loop.apply(a_submission(user="ann", tenant="audio"), ANN)
        await bench.loop.apply(a_submission(user="ann", tenant="vision"), ANN)

    with_loop(test)


def test_viewer_cannot_change_own_jobs() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(user="ann"), ANN)
        for message in (Cancel("job-1"), a_submission(user="ann")):
            with pytest.raises(Forbidden, match="viewer"):
                await bench.loop.apply(message, SPECTATOR)

    with_loop(test)


def test_subscriber_sees_every_event_once_in_order() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=8))
        seen: list[tuple[int, EventRow]] = []

        async def watch() -> None:
            async for item in bench.loop.subscribe(after=0):
                seen.append(item)
                if item[1].kind == "completed":
                    return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0)
        for number in range(2, 12):
            await bench.loop.apply(a_submission(number=number, gpus=8))
        await bench.loop.apply(Ended("job-1.1"))
        await watching
        numbers = [sequence for sequence, _ in seen]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [event.kind for _, event in seen].count("submitted") == 11

    with_loop(test)


def test_reading_long_history_yields_to_event_loop() -> None:
    async def test(bench: Bench) -> None:
        bench.store.commit([EventRow(at_ms=1, kind="noise") for _ in range(5_500)])
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        waiting = asyncio.create_task(others())
        last = bench.store.last_event()
        async for sequence, _ in bench.loop.subscribe(after=0):
            if sequence == last:
                break
        waiting.cancel()
        assert turns >= 5

    with_loop(test)


def test_every_job_event_names_its_owner() -> None:
    async def test(bench: Bench) -> None:
        loop = bench.loop
        await loop.apply(a_submission(user="ann", hold=True), ANN)
        for message in (
            Release("job-1"),
            Started("job-1.1"),
            Ended("job-1.1", exit_code=1),
            Retry("job-1"),
            Cancel("job-1"),
        ):
            await loop.apply(message)
        events = [event for _, event in bench.store.events() if event.job_id]
        assert len(events) >= 6
        assert {event.user for event in events} == {"ann"}

    with_loop(test)


def test_slow_subscriber_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.control.loop.LARGEST_BACKLOG", 3)

    async def test(bench: Bench) -> None:
        events = bench.loop.subscribe()
        first = asyncio.ensure_future(anext(events))
        # Until it has joined, it reads the store in a thread; nothing tells when that is.
        while not bench.loop._events._backlogs:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await bench.loop.apply(a_submission(number=1, gpus=0, hold=True))
        await first
        for number in range(2, 20):
            await bench.loop.apply(a_submission(number=number, gpus=0, hold=True))
        rest = [sequence async for sequence, _ in events]
        assert len(rest) <= 3

    with_loop(test)


def test_too_new_store_ends_leadership_and_single_server_retries() -> None:
    class Newer(Disk):
        is_newer = False

        def commit(self, writes: list[Write]) -> int:
            if self.is_newer:
                raise StoreTooNew("a newer program has changed it")
            return super().commit(writes)

    async def test(bench: Bench) -> None:
        store = bench.store
        assert isinstance(store, Newer)
        told: list[SchedulerError] = []
        heard: list[SchedulerError | None] = []
        bench.loop.on_written(heard.append)
        store.is_newer = True
        with pytest.raises(StoreTooNew):
            await bench.loop.apply(a_submission(gpus=1))
        store.is_newer = False
        await bench.loop.apply(a_submission(gpus=1))
        assert isinstance(heard[0], StoreTooNew)
        assert heard[-1] is None
        bench.loop.on_deposed(told.append)
        store.is_newer = True
        with pytest.raises(StoreTooNew):
            await bench.loop.apply(a_submission(gpus=1))
        assert [type(error) for error in told] == [StoreTooNew]
        store.is_newer = False
        with pytest.raises(StoreTooNew):
            await bench.loop.apply(a_submission(gpus=1))

    with_loop(test, Newer())


def test_closing_loop_answers_accepted_messages_and_rejects_the_rest() -> None:
    async def run() -> None:
        bench = Bench(Disk())
        came = bench.loop.post(a_submission(gpus=0))
        await bench.loop.close()
        assert (await came).jobs
        with pytest.raises(ClusterError, match="shutting down"):
            await bench.loop.apply(a_submission(gpus=0))

    asyncio.run(run())


def test_closing_loop_waits_for_housekeeping_without_blocking_event_loop() -> None:
    async def run() -> None:
        bench = Bench(Disk())
        go_on = Event()

        def work() -> int:
            go_on.wait()
            return 1

        upkeep = asyncio.create_task(bench.loop.maintain(work))
        await asyncio.sleep(0)
        upkeep.cancel()
        closing = asyncio.create_task(bench.loop.close())
        await asyncio.sleep(0.05)
        assert not closing.done()
        go_on.set()
        await closing

    asyncio.run(run())


def test_dependency_does_not_reveal_jobs_of_others() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(gpus=1, user="ann"), ANN)
        for job_id in ("job-1", "job-99"):
            spy = a_submission(number=2, user="bob", dependencies=after(job_id))
            with pytest.raises(InvalidRequest, match="which is not known"):
                await bench.loop.apply(spy, BOB)

    with_loop(test)


def test_site_rules_apply_to_updates() -> None:
    def refuse_large(submission: Submit) -> Submit:
        if submission.job.gpu_milli > 2000:
            raise Forbidden("too large")
        return submission

    async def run() -> None:
        disk = Disk()
        loop = Loop(disk, lambda: a_core(nodes=[]), lambda: 1_000, rules=refuse_large)
        loop.start()
        await loop.apply(SetNode(a_node()))
        await loop.apply(a_submission(gpus=1, hold=True))
        with pytest.raises(Forbidden):
            await loop.apply(Update("job-1", (("members", (a_request(gpus=4),)),)))
        await loop.close()

    asyncio.run(run())


def test_stop_reason_survives_restart() -> None:
    disk = Disk()

    async def first(bench: Bench) -> None:
        await bench.loop.apply(Submit(an_array(id="", tasks="0-1", retries=3)))
        await bench.loop.apply(Cancel("job-1"))

    async def second(bench: Bench) -> None:
        for task in (0, 1):
            await bench.loop.apply(Ended(f"job-1_{task}.1", exit_code=None, signal=15))
        row = bench.store.job("job-1")
        assert row is not None
        assert row.state is JobState.CANCELLED

    with_loop(first, disk)
    with_loop(second, disk)


def test_failing_commit_listener_does_no_harm() -> None:
    async def test(bench: Bench) -> None:
        seen: list[int] = []

        def look(writes: list[Write]) -> None:
            seen.append(len(writes))
            raise RuntimeError("a mistake of whoever looks")

        bench.loop.on_committed(look)
        outcome = await bench.loop.apply(Submit(a_job(number=0, id="")))
        assert outcome.jobs
        assert seen
        assert bench.reloads == 0

    with_loop(test)


def test_guard_finds_read_on_event_loop() -> None:
    async def test(bench: Bench) -> None:
        await bench.loop.apply(a_submission(user="ann", hold=True), ANN)
        with pytest.raises(ReadOnLoop, match="_read_job calls"):
            read_ended(bench.store, ["job-1"])

    with_loop(test)


def test_ended_job_is_recalled_in_thread_of_writer() -> None:
    async def test(bench: Bench) -> None:
        loop = bench.loop
        threads = []
        read = bench.store.job

        def job(job_id: str) -> JobRow | None:
            threads.append(current_thread().name)
            return read(job_id)

        await loop.apply(a_submission(user="ann", hold=True), ANN)
        await loop.apply(Cancel("job-1"), ANN)
        loop.core.state.ended.clear()
        bench.store.job = job  # type: ignore[method-assign]
        await loop.apply(Retry("job-1"), ANN)
        assert threads == ["commit"]
        assert "job-1" in loop.core.state.jobs

    with_loop(test)
