"""The control loop: it owns the core, commits its writes, and answers after the commit.

One asyncio task takes all waiting messages, applies them, runs a cycle if anything changed, commits
everything in one transaction, and only then answers the callers, carries out the effects and
publishes the events. Messages that arrive during a commit form the next batch, so one disk write
serves many. If a commit fails, the whole batch is rolled back: the core is read again from the
store, and the callers get the error. If only the cycle fails, the messages are committed without
it, and the next cycle is tried after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeVar

import structlog

from gpu_scheduler.control.access import permissions, queue_shares
from gpu_scheduler.control.access.accepted_commands_audit import record
from gpu_scheduler.control.access.permissions import Rules, apply_rules, jobs_named_in
from gpu_scheduler.control.clock import Calendar
from gpu_scheduler.control.commit_thread import CommitExecutor, StoreWriter
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Effect, Outcome
from gpu_scheduler.control.jobs.submit import JoinKey, group_similar, join_series
from gpu_scheduler.control.messages import (
    WORK_ON_FULL_DISK,
    Command,
    Fact,
    RunCycle,
    SubmitSeries,
)
from gpu_scheduler.control.restore import read_ended, recall, restore
from gpu_scheduler.control.scheduling.culprits import describe
from gpu_scheduler.control.self_monitoring import LoopMetrics
from gpu_scheduler.model.errors import (
    ClusterError,
    InternalError,
    NotLeader,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
)
from gpu_scheduler.model.identity import SYSTEM, Caller
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import AuditRow, EventRow, NewJobs, Write

EVENTS_AT_ONCE = 1_000
LARGEST_BACKLOG = 10_000
"""A subscriber that is this many events behind is disconnected."""

T = TypeVar("T")
Backlog = asyncio.Queue[tuple[int, EventRow] | None]


class EventBroadcaster:
    """Sends committed events to subscribers; older events come from the store.

    Every subscriber gets each event once and in order. One that is too slow is disconnected, and
    may subscribe again after the last event that it saw.
    """

    def __init__(self, store: Store) -> None:
        """Start without subscribers."""
        self._store = store
        self._backlogs: set[Backlog] = set()
        self._closed = False
        self._last = 0

    def restart(self, last: int) -> None:
        """The state was read from the store, in which `last` is the number of the last event."""
        self._last = last

    async def follow(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events after the sequence number `after` (None: from now on), without an end.

        Ends when the subscriber falls too far behind, or the loop closes.
        """
        backlog: Backlog = asyncio.Queue(LARGEST_BACKLOG)
        seen = self._last if after is None else after
        joined = False
        try:
            while True:
                page = await self._events_behind(seen)
                for sequence, event in page:
                    seen = sequence
                    yield sequence, event
                if len(page) == EVENTS_AT_ONCE:
                    continue
                if joined:
                    break
                # From here on new events go to the backlog; earlier ones are in the next page.
                joined = True
                self._backlogs.add(backlog)
            if self._closed:
                return
            while (item := await backlog.get()) is not None:
                if item[0] > seen:
                    seen = item[0]
                    yield item
        finally:
            self._backlogs.discard(backlog)

    def publish(self, writes: list[Write], last: int) -> None:
        """Publish the events of a commit; `last` is the sequence number of the last one."""
        self._last = last
        if not self._backlogs:
            return
        events = _events(writes)
        for sequence, event in enumerate(events, start=last - len(events) + 1):
            for backlog in list(self._backlogs):
                try:
                    backlog.put_nowait((sequence, event))
                except asyncio.QueueFull:
                    self._backlogs.discard(backlog)
                    _end(backlog)

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        for backlog in list(self._backlogs):
            _end(backlog)

    async def _events_behind(self, sequence: int) -> list[tuple[int, EventRow]]:
        """One page of events from the store, read in a thread to keep the event loop free."""
        return await asyncio.to_thread(self._store.events, sequence, EVENTS_AT_ONCE)


def _events(writes: list[Write]) -> list[EventRow]:
    events: list[EventRow] = []
    for write in writes:
        if isinstance(write, EventRow):
            events.append(write)
        elif isinstance(write, NewJobs):
            events += write.events()
    return events


def _end(backlog: Backlog) -> None:
    """End a subscription; a full backlog loses its oldest event for the end marker."""
    while backlog.full():
        backlog.get_nowait()
    backlog.put_nowait(None)


MOST_AT_ONCE = 2_000
"""The largest batch of messages in one commit, which bounds the latency."""
PAUSE_AFTER_BUG_S = 1.0
MISTAKE = "internal error of the scheduler; see its log"
MOST_NOTES = 10_000
LONGEST_CYCLE_PAUSE_S = 30.0
"""The pause after a failed cycle doubles from a second up to this."""

Release = Callable[[list[Effect]], Awaitable[None]]
"""Carries out effects; the loop takes no further messages until it returns."""
ExtraWrites = Callable[[Sequence[Outcome]], Sequence[Write]]
"""Makes rows from outcomes, to be stored in the same commit."""
log = structlog.get_logger("control")


@dataclass(frozen=True, slots=True)
class _Request:
    message: Command | Fact
    caller: Caller
    extra_writes: ExtraWrites | None
    answer: asyncio.Future[Outcome]


class Loop:
    """Runs the core. Others may read `core` at any time, but must not change it."""

    def __init__(
        self,
        store: Store,
        new_core: Callable[[], Core],
        now_ms: Callable[[], int],
        *,
        sweep_ms: int = 1_000,
        rules: Rules | None = None,
        writer: CommitExecutor | None = None,
        calendar: Callable[[], Calendar] = Calendar,
    ) -> None:
        """Read the state from the store. `rules` are the site's submission rules.

        `writer` executes commits, by default in a thread of its own. `calendar` relates calendar
        times to those of `now_ms` whenever the state is read.
        """
        self.store = store
        self.loop_metrics = LoopMetrics()
        self.last_plan: Plan | None = None
        self.telemetry: dict[str, NodeReadings] = {}
        self._new_core = new_core
        self._now_ms = now_ms
        self._calendar = calendar
        self._sweep_s = sweep_ms / 1000
        self._rules = rules
        self._requests: list[_Request] = []
        self._is_urgent = False
        self._sleeper: asyncio.Future[None] | None = None
        self._closing = False
        self._writer: CommitExecutor = writer or StoreWriter()
        self._release: list[Release] = []
        self._on_reload: list[Callable[[], None]] = []
        self._on_committed: list[Callable[[list[Write]], None]] = []
        self._on_deposed: list[Callable[[SchedulerError], None]] = []
        self._on_written: list[Callable[[SchedulerError | None], None]] = []
        self._deposed: SchedulerError | None = None
        self._batch: list[_Request] = []
        self._applying: list[_Request] = []
        self._notes: list[Write] = []
        self._write_error = ""
        self.cycle_trouble = ""
        """The error of the last cycle, if it failed: until the next try nothing is scheduled."""
        self._cycle_pause_s = 0.0
        self._no_cycle_before = 0.0
        self._unreadable: SchedulerError | None = None
        self._events = EventBroadcaster(store)
        self._task: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Future[int] | None = None
        self._asked_at: float | None = None
        self.core = self._read_core(now_ms())

    # Callbacks.

    def on_effects(self, release: Release) -> None:
        """Call `release` with the effects of each batch, after its commit."""
        self._release.append(release)

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Call `reload` after a failed commit, when the core was read again from the store."""
        self._on_reload.append(reload)

    def on_committed(self, callback: Callable[[list[Write]], None]) -> None:
        """Call `callback` with the writes of each commit; it must return quickly."""
        self._on_committed.append(callback)

    def on_deposed(self, callback: Callable[[SchedulerError], None]) -> None:
        """Call `callback` when a commit finds that this server is no longer the leader."""
        self._on_deposed.append(callback)

    def on_written(self, callback: Callable[[SchedulerError | None], None]) -> None:
        """Call `callback` after each commit with its error, or None."""
        self._on_written.append(callback)

    def now_ms(self) -> int:
        """The current time of the core."""
        return self._now_ms()

    def calendar_ms(self) -> int:
        """The time with which begin times and advance reservations are compared."""
        return self.core.state.calendar_ms(self._now_ms())

    async def apply(
        self,
        message: Command | Fact,
        caller: Caller = SYSTEM,
        *,
        extra_writes: ExtraWrites | None = None,
    ) -> Outcome:
        """Apply a message. Returns after its commit, or raises and nothing is done.

        `extra_writes` makes rows from the outcome that are stored in the same commit.
        """
        return await self.post(message, caller, extra_writes=extra_writes)

    def post(
        self,
        message: Command | Fact,
        caller: Caller = SYSTEM,
        *,
        extra_writes: ExtraWrites | None = None,
    ) -> asyncio.Future[Outcome]:
        """Like `apply`, without waiting; messages are applied in the order of the calls."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._closing or self._deposed is not None:
            answer.set_exception(
                self._deposed
                or ClusterError("the scheduler is shutting down; try again in a moment")
            )
            return answer
        if self._unreadable is not None or (caller is not SYSTEM and self.away):
            # Facts from nodes are queued, or repeated by the agents after the reload.
            answer.set_exception(self._unreadable or StoreUnavailable(self.away))
            return answer
        self._requests.append(_Request(message, caller, extra_writes, answer))
        self._hurry()
        return answer

    @property
    def away(self) -> str:
        """Why the store is unavailable and nothing can be changed; empty if it is available."""
        return self.store.unavailable_reason() or str(self._unreadable or "")

    @property
    def trouble(self) -> str:
        """Why changes cannot be written; empty if they can."""
        return self._write_error or self.store.full_reason()

    def look_for_tokens(self) -> None:
        """No-op: tokens are created by this loop, so they are all known."""

    def commit_age_s(self) -> float:
        """The age of the running commit in seconds; 0 if none is running."""
        return 0.0 if self._asked_at is None else perf_counter() - self._asked_at

    def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events after the sequence number `after` (None: from now on), without an end.

        Ends when the subscriber falls too far behind, or the loop closes.
        """
        return self._events.follow(after)

    def note(self, row: AuditRow) -> None:
        """Store an audit record with the next commit, or after the next sweep if that comes first.

        The caller does not wait. While the store is unavailable up to `MOST_NOTES` records wait;
        then the oldest are dropped.
        """
        self._notes.append(row)
        if len(self._notes) > MOST_NOTES:
            del self._notes[: MOST_NOTES // 2]
            log.warning("audit records dropped while the store is unavailable")

    async def read(self, work: Callable[[], T]) -> T:
        """Read the store in the thread of the writer, after the commits before this call."""
        return await self._writer.run(work)

    async def maintain(self, work: Callable[[], int]) -> int:
        """Run maintenance of the store between two commits, in the thread of the writer."""
        self._upkeep = self._writer.run(work)
        return await asyncio.shield(self._upkeep)

    def _hurry(self) -> None:
        """Wake the loop to apply the waiting messages now."""
        self._is_urgent = bool(self._requests)
        self._wake()

    # --- start and stop

    def start(self) -> None:
        """Start the loop."""
        self._task = asyncio.create_task(self._run(), name="control loop")

    async def close(self) -> None:
        """Apply the waiting messages, then stop."""
        self._closing = True
        self._wake()
        if self._task is not None:
            await self._task
        if self._upkeep is not None:
            await asyncio.wait({self._upkeep})
        self._events.close()
        self._writer.close()

    async def _run(self) -> None:
        while True:
            await self._sleep()
            if self._notes and not self._has_urgent_work():
                await self._run_guarded(self._commit_notes)
            if self._is_damaged():
                log.error("an explanation failed and left the state half changed; reading it again")
                await self._run_guarded(self._reload)
            while self._has_urgent_work() or self._is_cycle_due():
                await self._run_guarded(self._step)
            if self._closing and not self._requests:
                return

    async def _run_guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """An unexpected error costs one message or one batch, not the scheduler.

        If a message could not be applied, only its caller gets the error: the core is read again
        from the store, and the others of the batch are applied again.
        """
        try:
            await work()
        except Exception:
            log.exception("batch failed and was rolled back")
            if self._applying:
                _refuse(self._applying, InternalError(MISTAKE))
                again = [request for request in self._batch if not request.answer.done()]
                self._requests = again + self._requests
                self._batch, self._applying = [], []
                self._is_urgent = True
            await self._roll_back(InternalError(MISTAKE))
            await asyncio.sleep(PAUSE_AFTER_BUG_S)

    def _has_urgent_work(self) -> bool:
        return bool(self._requests) and (self._is_urgent or self._closing)

    async def _sleep(self) -> None:
        """Sleep until a message comes, a timer is due, or the next sweep."""
        if self._has_urgent_work() or self._closing:
            return
        timeout = self._sweep_s
        due_ms = self.core.next_timer_ms()
        is_held_up = self._deposed is not None or self._is_cycle_paused()
        if due_ms is not None and not is_held_up and not self.store.full_reason():
            timeout = min(timeout, max(0.0, (due_ms - self._now_ms()) / 1000))
        loop = asyncio.get_running_loop()
        self._sleeper = sleeper = loop.create_future()
        timer = loop.call_later(timeout, self._wake)
        try:
            await sleeper
        finally:
            timer.cancel()
            self._sleeper = None

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _is_cycle_due(self) -> bool:
        is_held_up = self._deposed is not None or self._is_cycle_paused() or self._is_damaged()
        if self._closing or is_held_up:
            return False
        due_ms = self.core.next_timer_ms()
        is_due = self.core.wants_cycle or (due_ms is not None and due_ms <= self._now_ms())
        # The last space is for commands that end work, not for starts.
        return is_due and not self.store.full_reason()

    def _is_damaged(self) -> bool:
        """Tell whether a reader of the state failed to undo its changes."""
        return self.core.state.cluster.trials != 0

    def _is_cycle_paused(self) -> bool:
        """Tell whether the last cycle failed and it is too early to try the next."""
        return self._cycle_pause_s > 0 and perf_counter() < self._no_cycle_before

    async def _commit_notes(self) -> None:
        """Commit audit records alone; if that fails, the core need not be read again."""
        notes, self._notes = self._notes, []
        try:
            await self._write(notes)
        except SchedulerError as error:
            if self._must_step_down(error):
                self._depose(error)
                return
            self._requeue_notes(error, notes)

    async def _step(self) -> None:
        """One batch: apply, run a cycle, commit, answer."""
        batch, self._requests = self._requests[:MOST_AT_ONCE], self._requests[MOST_AT_ONCE:]
        self._batch = batch
        self._is_urgent = bool(self._requests)
        if full_reason := self.store.full_reason():
            batch = _accepted_on_full_disk(batch, full_reason)
        done = Outcome()
        answers: list[tuple[_Request, Outcome]] = []
        for run in group_similar(batch, _join_key):
            self._applying = run
            if await self._recall_ends(run):
                answers += self._apply_run(run, done)
        self._applying = []
        done.add_array_rows()
        done.writes += self.core.ledger_writes()
        failure = None
        if self._is_cycle_due():
            failure = self._add_cycle(done)
        if done.writes and not await self._commit(done.writes):
            return
        for request, outcome in answers:
            if not request.answer.done():
                request.answer.set_result(outcome)
        if done.effects:
            await self._release_effects(done.effects)
        if failure is not None:
            self._batch = []  # its messages are committed and answered
            await self._reload()

    async def _release_effects(self, effects: list[Effect]) -> None:
        """Carry out effects; if that fails for want of the store, reload everything."""
        try:
            for release in self._release:
                await release(effects)
        except StoreUnavailable as error:
            log.warning("store unavailable; orders will be sent after the reload", error=str(error))
            await self._reload()

    def _apply_run(self, run: list[_Request], done: Outcome) -> list[tuple[_Request, Outcome]]:
        """Apply a run of similar submissions; return the outcomes of those that were accepted."""
        if len(run) > 1:
            outcome: Outcome | None
            try:
                together = join_series(
                    [r.message for r in run if isinstance(r.message, SubmitSeries)]
                )
                outcome = self._apply(together, run[0].caller, now_ms := self._now_ms())
            except InternalError:
                raise
            except SchedulerError:
                outcome = None  # one of them is rejected: apply each alone to find it
            if outcome is not None:
                self.loop_metrics.messages += len(run)
                done.merge(outcome)
                if run[0].caller is not SYSTEM:
                    done.writes.append(record(run[0].caller, together, outcome, now_ms))
                return list(zip(run, _one_each(outcome), strict=True))
        answers = []
        for request in run:
            found = self._apply_one(request)
            if found is not None:
                done.merge(found)
                answers.append((request, found))
        return answers

    def _apply_one(self, request: _Request) -> Outcome | None:
        """Apply one message; if it is rejected, answer with the error and return None."""
        self.loop_metrics.messages += 1
        try:
            now_ms = self._now_ms()
            outcome = self._apply(request.message, request.caller, now_ms)
        except InternalError:
            raise  # the core may be partly changed: roll the batch back
        except SchedulerError as error:
            self.loop_metrics.refusals += 1
            if not request.answer.done():
                request.answer.set_exception(error)
            return None
        # The core has changed: an error from here on is no rejection, but rolls the batch back.
        try:
            if request.extra_writes is not None:
                outcome.writes += request.extra_writes([outcome])
            if request.caller is not SYSTEM:
                outcome.writes.append(record(request.caller, request.message, outcome, now_ms))
        except SchedulerError as error:
            raise InternalError(MISTAKE) from error
        return outcome

    def _apply(self, message: Command | Fact, caller: Caller, now_ms: int) -> Outcome:
        permissions.check(self.core.state, caller, message)
        if self._rules is not None:
            message = apply_rules(self.core.state, message, self._rules)
        queue_shares.check(self.core.state, caller, message)
        return self.core.apply_in_batch(message, now_ms)

    async def _recall_ends(self, run: list[_Request]) -> bool:
        """Load the ended jobs that the messages name, if they are not in memory.

        Also their unmet dependencies, for which a retried job waits again. If the store cannot be
        read, answer the messages with its error and return False.
        """
        state = self.core.state
        named = {job_id for request in run for job_id in jobs_named_in(request.message)}
        missing = sorted(job_id for job_id in named if not state.knows(job_id))
        if not missing:
            return True
        try:
            found = await self.read(partial(read_ended, self.store, missing))
        except SchedulerError as error:
            self.loop_metrics.refusals += len(run)
            _refuse(run, error)
            return False
        for ended in found:
            recall(state, ended)
        return True

    def _add_cycle(self, done: Outcome) -> Exception | None:
        """Run a cycle and add its outcome to that of the messages before it.

        If the cycle fails, return the error: the messages are committed without it, the caller
        reads the core again, and the next cycle is tried after a pause.
        """
        began = perf_counter()
        try:
            outcome = self.core.apply_in_batch(RunCycle(), self._now_ms())
            outcome.add_array_rows()
            ledger = self.core.ledger_writes()
        except Exception as error:
            self.loop_metrics.failed_cycles += 1
            self._cycle_pause_s = min(LONGEST_CYCLE_PAUSE_S, 2 * self._cycle_pause_s or 1.0)
            self._no_cycle_before = began + self._cycle_pause_s
            self.cycle_trouble = describe(error)
            log.exception(
                "scheduling cycle failed; commands and reports go on",
                retry_seconds=self._cycle_pause_s,
            )
            return error
        self._cycle_pause_s, self.cycle_trouble = 0.0, ""
        done.merge(outcome)
        done.writes += ledger
        if outcome.plan is not None:
            self.last_plan = outcome.plan
            self.loop_metrics.cycle_seconds.add(perf_counter() - began)
        return None

    async def _commit(self, writes: list[Write]) -> bool:
        notes, self._notes = self._notes, []
        writes += notes
        try:
            await self._write(writes)
        except SchedulerError as error:
            if self._must_step_down(error):
                self._depose(error)
                return False
            log.warning("commit failed; the batch is rolled back", error=str(error))
            self._requeue_notes(error, notes)
            await self._roll_back(error)
            return False
        return True

    def _requeue_notes(self, error: SchedulerError, notes: list[Write]) -> None:
        """A commit failed: try the audit records again, unless one of them may be the cause."""
        self._write_error = str(error)
        if not isinstance(error, InternalError):
            self._notes = notes + self._notes

    async def _write(self, writes: list[Write]) -> None:
        began = self._asked_at = perf_counter()
        try:
            last = await self._writer.run(partial(self.store.commit, writes))
        except SchedulerError as error:
            self._notify_written(error)
            raise
        finally:
            self._asked_at = None
        self._notify_written(None)
        self._write_error = ""
        self.loop_metrics.commit_seconds.add(perf_counter() - began)
        self.loop_metrics.note(writes)
        self._notify_committed(writes)
        self._events.publish(writes, last)

    def _notify_written(self, error: SchedulerError | None) -> None:
        for callback in self._on_written:
            callback(error)

    def _must_step_down(self, error: SchedulerError) -> bool:
        """Tell whether another server leads, or should: this one can never write again."""
        if isinstance(error, StoreTooNew | StoreDamaged):
            return bool(self._on_deposed)
        return isinstance(error, NotLeader)

    def _depose(self, error: SchedulerError) -> None:
        """Another server leads: stop writing, and reject all waiting messages."""
        log.warning("this server is no longer the leader", error=str(error))
        self._deposed = error
        self._write_error = str(error)
        waiting, self._requests = [*self._batch, *self._requests], []
        _refuse(waiting, error)
        for callback in self._on_deposed:
            callback(error)

    async def _roll_back(self, error: SchedulerError) -> None:
        """Reject the batch and read the core again from the store."""
        self.loop_metrics.failed_commits += 1
        _refuse(self._batch, error)
        await self._reload()

    async def _reload(self) -> None:
        """Replace the core by one that is read from the store, then call the reload callbacks.

        Retries until the store can be read. The read runs in the thread of the writer, so that
        heartbeats and readers do not wait for it.
        """
        while True:
            try:
                self.core = await self._writer.run(partial(self._read_core, self._now_ms()))
                break
            except Exception as error:
                # Any error is retried: another server may be writing meanwhile.
                unreadable = error if isinstance(error, SchedulerError) else InternalError(MISTAKE)
                if self._unreadable is None:
                    is_bug = unreadable is not error
                    log.exception(
                        "reading the store failed; will retry", error=str(error), exc_info=is_bug
                    )
                self._unreadable = unreadable
                self._notify_written(unreadable)
                waiting, self._requests = self._requests, []
                _refuse(waiting, unreadable)
                if self._closing:
                    return
                await asyncio.sleep(PAUSE_AFTER_BUG_S)
        self._unreadable = None
        for reload in self._on_reload:
            try:
                reload()
            except Exception:
                log.exception("reload callback failed")

    def _notify_committed(self, writes: list[Write]) -> None:
        """Call the commit callbacks; their errors do not affect the commit."""
        for callback in self._on_committed:
            try:
                callback(writes)
            except Exception:
                log.exception("commit callback failed")

    def _read_core(self, now_ms: int) -> Core:
        core = self._new_core()
        core.state.calendar = self._calendar()
        restore(core.state, self.store, now_ms)
        self._events.restart(self.store.last_event())
        return core


def _accepted_on_full_disk(batch: list[_Request], reason: str) -> list[_Request]:
    """Reject what needs space; facts, and commands that end work, are returned."""
    accepted = [r for r in batch if isinstance(r.message, (Fact, *WORK_ON_FULL_DISK))]
    rejected = [r for r in batch if not isinstance(r.message, (Fact, *WORK_ON_FULL_DISK))]
    _refuse(rejected, StoreUnavailable(reason))
    return accepted


def _refuse(requests: Sequence[_Request], error: SchedulerError) -> None:
    """Answer these requests with an error."""
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)


def _join_key(request: _Request) -> JoinKey | None:
    """Message and caller of a submission that may be joined with others; otherwise None."""
    if request.extra_writes is None and isinstance(request.message, SubmitSeries):
        return request.message, request.caller
    return None


def _one_each(outcome: Outcome) -> list[Outcome]:
    return [Outcome(jobs=[job]) for job in outcome.jobs]
