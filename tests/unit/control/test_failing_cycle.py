"""A bug in the engine does not stop commands, reports and other jobs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from gpu_scheduler.control import loop as control_loop
from gpu_scheduler.control.core import HANDLERS, Core
from gpu_scheduler.control.effects import Effect, Outcome, StartOrder
from gpu_scheduler.control.jobs import commands, queueing
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    Hold,
    PauseDevice,
    Release,
    SetNode,
    Started,
    Submit,
)
from gpu_scheduler.control.scheduling import cycle
from gpu_scheduler.control.state import ControlState, CoreLimits
from gpu_scheduler.engine import decide as engine
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.model.errors import InternalError, WrongState
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core, a_job, a_node

LIMITS = CoreLimits(sets_failing_jobs_aside=True)
POISON = "poison"


class Bench:
    """A loop over a store in memory, with one node."""

    def __init__(self) -> None:
        """The node has eight GPUs."""
        self.store = MemoryStore()
        self.now_ms = 1_000
        self.orders: list[Effect] = []
        self.loop = Loop(self.store, self._core, lambda: self.now_ms, sweep_ms=5)
        self.loop.on_effects(self._keep_orders)
        self.loop.on_reload(lambda: self.loop.post(SetNode(a_node())))
        self.loop.start()

    async def _keep_orders(self, effects: list[Effect]) -> None:
        self.orders += effects

    def _core(self) -> Core:
        return a_core(limits=LIMITS)

    async def submit(self, name: str = "", **changes: Any) -> str:
        job = a_job(id="", number=0, name=name, **changes)
        return (await self.loop.apply(Submit(job))).jobs[0].id

    def started(self) -> list[str]:
        return [order.job.id for order in self.orders if isinstance(order, StartOrder)]

    def reason(self, job_id: str) -> str:
        why = self.loop.core.state.job(job_id).why()
        return "" if why is None else why.code.value

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something has come about."""
        while not condition():  # noqa: ASYNC110 - it is about state in memory
            await asyncio.sleep(0.005)


def with_bench(test: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = Bench()
        await bench.loop.apply(SetNode(a_node()))
        try:
            await asyncio.wait_for(test(bench), 60)
        finally:
            await bench.loop.close()

    with capture_logs():  # traces with all variables take long to print
        asyncio.run(run())


def fail_for_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the quota check of the engine fail for jobs of one name."""
    refusal = QuotaUsage.refusal

    def fails(self: QuotaUsage, entry: Any) -> Any:
        if entry.waiting.job.name == POISON:
            raise ZeroDivisionError
        return refusal(self, entry)

    monkeypatch.setattr(QuotaUsage, "refusal", fails)


def test_job_that_makes_engine_fail_is_set_aside_and_others_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_for_poison(monkeypatch)

    async def test(bench: Bench) -> None:
        poison = await bench.submit(POISON, user="eve")
        good = await bench.submit(gpus=2)
        await bench.loop.apply(PauseDevice(a_node().id, 7))
        await bench.loop.apply(Started(f"{good}.1"))
        await bench.loop.apply(Ended(f"{good}.1", 0))
        assert bench.started() == [good]
        record = bench.loop.core.state.job(poison)
        why = record.why()
        assert record.state is JobState.PENDING
        assert why is not None
        assert why.code is ReasonCode.INTERNAL_ERROR
        assert "ZeroDivisionError in test_failing_cycle.py" in str(why)
        assert "release" in str(why)
        kinds = [event.kind for _, event in bench.store.events(0, 100) if event.job_id == poison]
        assert kinds == ["submitted", "set_aside"]
        assert (bench.loop.cycle_trouble, bench.loop.loop_metrics.failed_commits) == ("", 0)

    with_bench(test)


def test_released_job_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_poison(monkeypatch)

    async def test(bench: Bench) -> None:
        poison = await bench.submit(POISON)
        await bench.loop.apply(Release(poison))
        assert bench.reason(poison) == "internal_error"
        monkeypatch.undo()
        await bench.loop.apply(Release(poison))
        assert bench.started() == [poison]
        assert not bench.loop.core.state.sweep.set_aside

    with_bench(test)


def test_cancelled_job_is_not_listed_as_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_poison(monkeypatch)

    async def test(bench: Bench) -> None:
        poison = await bench.submit(POISON)
        assert list(bench.loop.core.state.sweep.set_aside) == [poison]
        await bench.loop.apply(Cancel(poison))
        assert not bench.loop.core.state.sweep.set_aside

    with_bench(test)


def test_many_failing_jobs_of_one_user_stop_no_other_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_for_poison(monkeypatch)

    async def test(bench: Bench) -> None:
        poison = [bench.loop.post(Submit(a_job(id="", name=POISON, user="eve"))) for _ in range(30)]
        good = bench.loop.post(Submit(a_job(id="", user="ann")))
        await asyncio.gather(*poison, good)
        await bench.until(lambda: bool(bench.started()))
        assert bench.started() == [good.result().jobs[0].id]
        await bench.until(lambda: len(bench.loop.core.state.sweep.set_aside) == 30)

    with_bench(test)


def test_failing_jobs_of_all_users_do_not_pause_scheduling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both users have more failing jobs than a cycle sets aside, and good ones."""
    fail_for_poison(monkeypatch)

    async def test(bench: Bench) -> None:
        users = ["ann", "bob"]
        bad = [a_job(id="", name=POISON, user=user) for user in users * 10]
        good = [a_job(id="", user=user) for user in users]
        asked = [bench.loop.post(Submit(job)) for job in [*bad, *good]]
        await asyncio.gather(*asked)
        await bench.until(lambda: len(bench.started()) == 2)
        assert len(bench.loop.core.state.sweep.set_aside) == 20
        assert bench.loop.loop_metrics.failed_cycles == 0

    with_bench(test)


def test_failure_outside_of_a_job_is_found_by_bisection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine fails before it considers any job, so it cannot name one."""
    whole = engine.Merge

    def fails(queue: Any, penalty_ms: Any) -> Any:
        if any(entry.waiting.job.name == POISON for entry in queue.entries.values()):
            raise KeyError(POISON)
        return whole(queue, penalty_ms)

    monkeypatch.setattr(engine, "Merge", fails)

    async def test(bench: Bench) -> None:
        names = ["a", "b", POISON, "c", "d"]
        asked = [bench.loop.post(Submit(a_job(id="", name=name))) for name in names]
        jobs = [(await answer).jobs[0].id for answer in asked]
        assert bench.started() == [
            job for job, name in zip(jobs, names, strict=True) if name != POISON
        ]
        assert bench.reason(jobs[2]) == "internal_error"

    with_bench(test)


def test_failure_that_is_no_jobs_fault_pauses_scheduling_but_not_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands are committed, the health says so, and it goes on when the error is gone."""

    async def test(bench: Bench) -> None:
        runs = await bench.submit(gpus=8)
        await bench.loop.apply(Started(f"{runs}.1"))
        monkeypatch.setattr(engine, "Calendar", _fail)
        waits = await bench.submit(user="ann")
        other = await bench.submit(user="bob")
        assert "ZeroDivisionError" in bench.loop.cycle_trouble
        await bench.loop.apply(Ended(f"{runs}.1", 0))
        await bench.loop.apply(Cancel(other))
        rows = {row.job.id: row.state for row in bench.store.jobs()}
        assert rows == {
            runs: JobState.COMPLETED,
            waits: JobState.PENDING,
            other: JobState.CANCELLED,
        }
        monkeypatch.undo()
        await bench.until(lambda: waits in bench.started())
        assert (bench.loop.cycle_trouble, bench.loop.loop_metrics.failed_commits) == ("", 0)
        assert not bench.loop.core.state.sweep.set_aside

    monkeypatch.setattr(control_loop, "LONGEST_CYCLE_PAUSE_S", 0.05)
    with_bench(test)


@pytest.mark.parametrize("name", ["commit", "correct_expectations", "_handle_timers", "_set_wake"])
def test_error_anywhere_in_the_cycle_leaves_commands_committed(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where the error leaves the core half changed: it is read again from the store."""
    monkeypatch.setattr(control_loop, "LONGEST_CYCLE_PAUSE_S", 0.05)

    async def test(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cycle, name, _fail)
            jobs = [await bench.submit() for _ in range(3)]
            assert bench.started() == []
            assert bench.loop.loop_metrics.failed_commits == 0
            assert bench.loop.loop_metrics.failed_cycles >= 1
        await bench.until(lambda: sorted(bench.started()) == jobs)
        assert len(bench.loop.core.state.by_allocation) == 3

    with_bench(test)


def test_start_that_fails_half_way_is_not_left_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_loop, "LONGEST_CYCLE_PAUSE_S", 0.05)

    async def test(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cycle, "set_attempt_timers", _fail)
            job = await bench.submit(gpus=8)
            await bench.until(lambda: bool(bench.loop.cycle_trouble))
        await bench.until(lambda: bench.started() == [job])
        assert queueing.NODE_LOST not in [e.kind for _, e in bench.store.events(0, 100)]
        row = bench.store.job(job)
        assert row is not None
        assert row.state is JobState.SCHEDULED

    with_bench(test)


def test_message_that_cannot_be_applied_costs_no_other_message_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also what the failed message had changed in memory is gone."""

    def fails_half_way(state: ControlState, message: Hold, now_ms: int, outcome: Outcome) -> None:
        commands.hold(state, message, now_ms, outcome)
        raise ZeroDivisionError

    async def test(bench: Bench) -> None:
        await bench.submit(gpus=8)
        waits = await bench.submit(gpus=8)
        monkeypatch.setitem(HANDLERS, Hold, fails_half_way)
        before = bench.loop.post(Submit(a_job(id="", gpus=0)))
        bad = bench.loop.post(Hold(waits))
        after = bench.loop.post(Submit(a_job(id="", gpus=0)))
        results = await asyncio.gather(before, bad, after, return_exceptions=True)
        assert [type(result) for result in results] == [Outcome, InternalError, Outcome]
        assert bench.reason(waits) == ""
        assert len(bench.store.jobs()) == 4

    monkeypatch.setattr(control_loop, "PAUSE_AFTER_BUG_S", 0.01)
    with_bench(test)


def test_core_that_failed_half_way_accepts_no_more_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = a_core(nodes=[a_node()])
    monkeypatch.setitem(HANDLERS, Hold, _fail)
    with pytest.raises(ZeroDivisionError):
        core.apply(Hold("job-1"), 0)
    with pytest.raises(InternalError, match="Hold failed while it changed the state"):
        core.apply(SetNode(a_node()), 0)


def test_message_that_is_rejected_after_a_change_is_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rejection promises that nothing has changed."""

    def rejects_late(state: ControlState, message: Hold, now_ms: int, outcome: Outcome) -> None:
        commands.hold(state, message, now_ms, outcome)
        raise WrongState("too late")

    def extra(_outcomes: object) -> list[Any]:
        raise WrongState("too late as well")

    async def test(bench: Bench) -> None:
        await bench.submit(gpus=8)
        waits = await bench.submit(gpus=8)
        with monkeypatch.context() as patch:
            patch.setitem(HANDLERS, Hold, rejects_late)
            with pytest.raises(InternalError):
                await bench.loop.apply(Hold(waits))
        with pytest.raises(InternalError):
            await bench.loop.apply(Hold(waits), extra_writes=extra)
        await bench.submit(gpus=0)
        assert bench.reason(waits) == ""
        assert len(bench.store.jobs()) == 3

    monkeypatch.setattr(control_loop, "PAUSE_AFTER_BUG_S", 0.01)
    with_bench(test)


def _fail(*_: object, **__: object) -> Any:
    raise ZeroDivisionError
