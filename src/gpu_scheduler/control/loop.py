"""The shell around the core: messages come in from everywhere, and are answered once committed.

One task owns the core. It takes all messages that have come, applies them, runs the cycle if
anything changed, commits everything in one transaction, and only then answers, orders and
publishes. While a commit is under way the next messages gather, so the disk is asked once for
many. A commit that fails takes back the whole batch: the core is forgotten and read again from
the store, and whoever waited for it is told that nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import structlog

from gpu_scheduler.control.access import permissions
from gpu_scheduler.control.access.audit import record
from gpu_scheduler.control.access.permissions import Rules, as_allowed, jobs_named_in
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import Effect, Outcome
from gpu_scheduler.control.jobs.submit import Kind, joined, neighbours
from gpu_scheduler.control.messages import Command, Fact, RunCycle, Submit, SubmitAll, SubmitSeries
from gpu_scheduler.control.restore import recall, restore
from gpu_scheduler.control.self_monitoring import LoopMetrics
from gpu_scheduler.control.writer import CommitExecutor, StoreWriter
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
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import AuditRow, EventRow, NewJobs, Write

EVENTS_AT_ONCE = 1_000
LARGEST_BACKLOG = 10_000
"""A follower that is so many events behind is cut off."""

Backlog = asyncio.Queue[tuple[int, EventRow] | None]


class EventBroadcaster:
    """All of them, for as long as one loop works."""

    def __init__(self, store: Store) -> None:
        """Nobody follows yet."""
        self._store = store
        self._backlogs: set[Backlog] = set()
        self._closed = False

    async def follow(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events with their sequence numbers, from behind `after` (None: from now on), for ever.

        Ends when the follower falls too far behind, or nothing more comes.
        """
        backlog: Backlog = asyncio.Queue(LARGEST_BACKLOG)
        seen = self._store.last_event() if after is None else after
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
                # New events are kept from here on; those before are in the next page.
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
        """These were committed; `last` is the sequence number of the last event among them."""
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
        """Nothing more comes."""
        self._closed = True
        for backlog in list(self._backlogs):
            _end(backlog)

    async def _events_behind(self, sequence: int) -> list[tuple[int, EventRow]]:
        """A page of history, read in a thread: others have their turn, however much there is."""
        if sequence >= self._store.last_event():
            return []
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
    """Tell a follower that nothing more comes, also if that costs it its oldest events."""
    while backlog.full():
        backlog.get_nowait()
    backlog.put_nowait(None)


MOST_AT_ONCE = 2_000
"""So many messages are applied before their commit, so that nobody waits for long."""
PAUSE_AFTER_BUG_S = 1.0
MISTAKE = "the scheduler made a mistake; see its log"
MOST_NOTES = 10_000

ExtraWrites = Callable[[Sequence[Outcome]], Sequence[Write]]
"""Makes rows, from what messages led to, that are kept in the same commit."""
log = structlog.get_logger("control")


@dataclass(frozen=True, slots=True)
class _Request:
    message: Command | Fact
    caller: Caller
    extra_writes: ExtraWrites | None
    answer: asyncio.Future[Outcome]


class Loop:
    """The one writer. `core` may be read at any time and must be changed by nobody else."""

    def __init__(
        self,
        store: Store,
        new_core: Callable[[], Core],
        now_ms: Callable[[], int],
        *,
        sweep_ms: int = 1_000,
        rules: Rules | None = None,
        writer: CommitExecutor | None = None,
    ) -> None:
        """Read everything from the store. `rules` refuses what this site does not want to run.

        `writer` carries out commits; usually that is a thread of its own.
        """
        self.store = store
        self.tallies = LoopMetrics()
        self.last_plan: Plan | None = None
        self.telemetry: dict[str, NodeReadings] = {}
        self._new_core = new_core
        self._now_ms = now_ms
        self._sweep_s = sweep_ms / 1000
        self._rules = rules
        self._requests: list[_Request] = []
        self._is_urgent = False
        self._sleeper: asyncio.Future[None] | None = None
        self._closing = False
        self._writer: CommitExecutor = writer or StoreWriter()
        self._release: list[Callable[[list[Effect]], None]] = []
        self._on_reload: list[Callable[[], None]] = []
        self._on_committed: list[Callable[[list[Write]], None]] = []
        self._on_deposed: list[Callable[[SchedulerError], None]] = []
        self._on_written: list[Callable[[SchedulerError | None], None]] = []
        self._deposed: SchedulerError | None = None
        self._batch: list[_Request] = []
        self._notes: list[Write] = []
        self.trouble = ""
        self._unreadable: SchedulerError | None = None
        self._followers = EventBroadcaster(store)
        self._task: asyncio.Task[None] | None = None
        self._upkeep: asyncio.Future[int] | None = None
        self._asked_at: float | None = None
        self.core = self._read_core(now_ms())

    # --- for others

    def on_effects(self, release: Callable[[list[Effect]], None]) -> None:
        """Whoever carries out orders is told of them after their commit."""
        self._release.append(release)

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Whoever believes in the core is told when a failed commit has taken something back."""
        self._on_reload.append(reload)

    def on_committed(self, told: Callable[[list[Write]], None]) -> None:
        """Whoever only wants to look at what is kept is shown it, and must be quick about it."""
        self._on_committed.append(told)

    def on_deposed(self, told: Callable[[SchedulerError], None]) -> None:
        """Whoever leads with this loop is told when a commit finds that it cannot (any more)."""
        self._on_deposed.append(told)

    def on_written(self, told: Callable[[SchedulerError | None], None]) -> None:
        """Whoever leads with this loop is told how each commit went: None, or what was wrong."""
        self._on_written.append(told)

    def now_ms(self) -> int:
        """The time by which the core goes."""
        return self._now_ms()

    async def apply(
        self,
        message: Command | Fact,
        caller: Caller = SYSTEM,
        *,
        extra_writes: ExtraWrites | None = None,
    ) -> Outcome:
        """Do what the message says. Returns when that is committed, or raises and nothing is done.

        `extra_writes` makes rows from the outcome that are kept in the same commit.
        """
        return await self.post(message, caller, extra_writes=extra_writes)

    def post(
        self,
        message: Command | Fact,
        caller: Caller = SYSTEM,
        *,
        extra_writes: ExtraWrites | None = None,
    ) -> asyncio.Future[Outcome]:
        """Like `apply`, for who has much to say at once: messages are taken in this order."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        if self._closing or self._deposed is not None:
            answer.set_exception(
                self._deposed
                or ClusterError("the scheduler is shutting down; try again in a moment")
            )
            return answer
        if self._unreadable is not None or (caller is not SYSTEM and self.away):
            # Whoever tells facts begins anew after the reload, or is heard when the store is back.
            answer.set_exception(self._unreadable or StoreUnavailable(self.away))
            return answer
        self._requests.append(_Request(message, caller, extra_writes, answer))
        self._hurry()
        return answer

    @property
    def away(self) -> str:
        """Why nothing can be asked or changed now: the store is away. Empty if it is not."""
        return self.store.trouble() or str(self._unreadable or "")

    def look_for_tokens(self) -> None:
        """All are made here."""

    def commit_age_s(self) -> float:
        """For how long the commit that is under way has been so; 0 if there is none."""
        return 0.0 if self._asked_at is None else perf_counter() - self._asked_at

    async def apply_many(
        self,
        submissions: Sequence[Submit],
        caller: Caller = SYSTEM,
        *,
        extra_writes: ExtraWrites | None = None,
    ) -> list[Outcome]:
        """Submit many jobs: all of them, or none. Returns what each one led to."""

        def extra_of_each(outcomes: Sequence[Outcome]) -> Sequence[Write]:
            return () if extra_writes is None else extra_writes(_one_each(outcomes[0]))

        outcome = await self.apply(
            SubmitAll(tuple(submissions)), caller, extra_writes=extra_of_each
        )
        return _one_each(outcome)

    def subscribe(self, after: int | None = None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events with their sequence numbers, from behind `after` (None: from now on), for ever.

        Ends when the subscriber falls too far behind, or the loop closes.
        """
        return self._followers.follow(after)

    def note(self, row: AuditRow) -> None:
        """Keep a record with the next commit, at the latest after the next look at the queue.

        Nobody waits for it. While nothing can be kept, so many wait, and the oldest are lost.
        """
        self._notes.append(row)
        if len(self._notes) > MOST_NOTES:
            del self._notes[: MOST_NOTES // 2]
            log.warning("records of refusals are lost, as nothing can be kept")

    async def maintain(self, work: Callable[[], int]) -> int:
        """Do something to the store between two commits, as only its one writer may."""
        self._upkeep = self._writer.run(work)
        return await asyncio.shield(self._upkeep)

    def _hurry(self) -> None:
        """What has come should be done now."""
        self._is_urgent = bool(self._requests)
        self._wake()

    # --- start and stop

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run(), name="control loop")

    async def close(self) -> None:
        """Finish what has come, then stop."""
        self._closing = True
        self._wake()
        if self._task is not None:
            await self._task
        if self._upkeep is not None:
            await asyncio.wait({self._upkeep})
        self._followers.close()
        self._writer.close()

    async def _run(self) -> None:
        while True:
            await self._sleep()
            if self._notes and not self._must_work():
                await self._carefully(self._keep_notes)
            while self._must_work() or self._is_cycle_due():
                await self._carefully(self._step)
            if self._closing and not self._requests:
                return

    async def _carefully(self, work: Callable[[], Awaitable[None]]) -> None:
        """A bug must cost one batch, not the scheduler."""
        try:
            await work()
        except Exception:
            log.exception("a batch failed, nothing of it was done")
            await self._take_back(InternalError(MISTAKE))
            await asyncio.sleep(PAUSE_AFTER_BUG_S)

    def _must_work(self) -> bool:
        return bool(self._requests) and (self._is_urgent or self._closing)

    async def _sleep(self) -> None:
        """Until a message comes, a timer is due, or it is time for the periodic look."""
        if self._must_work() or self._closing:
            return
        timeout = self._sweep_s
        due_ms = self.core.next_timer_ms()
        if due_ms is not None and self._deposed is None:
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
        if self._closing or self._deposed is not None:
            return False
        due_ms = self.core.next_timer_ms()
        return self.core.wants_cycle or (due_ms is not None and due_ms <= self._now_ms())

    async def _keep_notes(self) -> None:
        """Commit records by themselves; when that fails nothing has to be taken back."""
        notes, self._notes = self._notes, []
        try:
            await self._write(notes)
        except SchedulerError as error:
            if self._is_over(error):
                self._depose(error)
                return
            self._failed(error, notes)

    async def _step(self) -> None:
        """One batch: apply, decide, commit, answer."""
        batch, self._requests = self._requests[:MOST_AT_ONCE], self._requests[MOST_AT_ONCE:]
        self._batch = batch
        self._is_urgent = bool(self._requests)
        done = Outcome()
        answers: list[tuple[_Request, Outcome]] = []
        for run in neighbours(batch, _kind):
            answers += self._apply_run(run, done)
        if self._is_cycle_due():
            done.merge(self._cycle())
        done.settle()
        writes = done.writes + self.core.ledger_writes()
        if writes and not await self._commit(writes):
            return
        for request, outcome in answers:
            if not request.answer.done():
                request.answer.set_result(outcome)
        if done.effects:
            await self._order(done.effects)

    async def _order(self, effects: list[Effect]) -> None:
        """Let orders be carried out; if that needs the store, and it is away, all begins anew."""
        try:
            for release in self._release:
                release(effects)
        except StoreUnavailable as error:
            log.warning("orders are given when the store can be read", error=str(error))
            await self._read_again()

    def _apply_run(self, run: list[_Request], done: Outcome) -> list[tuple[_Request, Outcome]]:
        """Apply what came together; the answers, for those whose message was not refused."""
        if len(run) > 1:
            outcome: Outcome | None
            try:
                together = joined([r.message for r in run if isinstance(r.message, SubmitSeries)])
                outcome = self._apply(together, run[0].caller, now_ms := self._now_ms())
            except InternalError:
                raise
            except SchedulerError:
                outcome = None  # one of them is refused: let us see which
            if outcome is not None:
                self.tallies.messages += len(run)
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
        """Apply a message, or tell its sender why not."""
        self.tallies.messages += 1
        try:
            now_ms = self._now_ms()
            outcome = self._apply(request.message, request.caller, now_ms)
            if request.extra_writes is not None:
                outcome.writes += request.extra_writes([outcome])
            if request.caller is not SYSTEM:
                outcome.writes.append(record(request.caller, request.message, outcome, now_ms))
        except InternalError:
            raise  # the core may be half changed: the batch is taken back
        except SchedulerError as error:
            self.tallies.refusals += 1
            if not request.answer.done():
                request.answer.set_exception(error)
            return None
        return outcome

    def _apply(self, message: Command | Fact, caller: Caller, now_ms: int) -> Outcome:
        self._recall_ends(message)
        permissions.check(self.core.state, caller, message)
        if self._rules is not None:
            message = as_allowed(self.core.state, message, self._rules)
        return self.core.apply_in_batch(message, now_ms)

    def _recall_ends(self, message: Command | Fact) -> None:
        """Jobs that ended long ago, and that the message is about, are fetched from the store.

        With them those that they still waited for: one that is retried waits for them again.
        """
        for job_id in jobs_named_in(message):
            for other_id in self._recall(job_id):
                self._recall(other_id)

    def _recall(self, job_id: str) -> list[str]:
        """Fetch one that is not known; says for whom it waited."""
        state = self.core.state
        known = job_id in state.jobs or job_id in state.ended
        row = None if known else self.store.job(job_id)
        if row is None:
            return []
        recall(state, row, self.store)
        return [d.job_id for d in row.job.dependencies if d.job_id not in row.met]

    def _cycle(self) -> Outcome:
        began = perf_counter()
        outcome = self.core.apply_in_batch(RunCycle(), self._now_ms())
        if outcome.plan is not None:
            self.last_plan = outcome.plan
            self.tallies.cycle_seconds.add(perf_counter() - began)
        return outcome

    async def _commit(self, writes: list[Write]) -> bool:
        notes, self._notes = self._notes, []
        writes += notes
        try:
            await self._write(writes)
        except SchedulerError as error:
            if self._is_over(error):
                self._depose(error)
                return False
            log.warning("commit failed, nothing of it was done", error=str(error))
            self._failed(error, notes)
            await self._take_back(error)
            return False
        return True

    def _failed(self, error: SchedulerError, notes: list[Write]) -> None:
        """Nothing was kept; records are tried again, unless one may be what cannot be kept."""
        self.trouble = str(error)
        if not isinstance(error, InternalError):
            self._notes = notes + self._notes

    async def _write(self, writes: list[Write]) -> None:
        began = self._asked_at = perf_counter()
        try:
            last = await self._writer.run(partial(self.store.commit, writes))
        except SchedulerError as error:
            self._tell(error)
            raise
        finally:
            self._asked_at = None
        self._tell(None)
        self.trouble = ""
        self.tallies.commit_seconds.add(perf_counter() - began)
        self.tallies.note(writes)
        self._show(writes)
        self._followers.publish(writes, last)

    def _tell(self, error: SchedulerError | None) -> None:
        for told in self._on_written:
            told(error)

    def _is_over(self, error: SchedulerError) -> bool:
        """Another server leads, or may be able to where this one never will."""
        if isinstance(error, StoreTooNew | StoreDamaged):
            return bool(self._on_deposed)
        return isinstance(error, NotLeader)

    def _depose(self, error: SchedulerError) -> None:
        """Another server leads: what is known here is the past, and nothing more is done with it.

        Who waited is told that nothing was done, and may ask the other one.
        """
        log.warning("nothing more is written here", error=str(error))
        self._deposed = error
        self.trouble = str(error)
        waiting, self._requests = [*self._batch, *self._requests], []
        _refuse(waiting, error)
        for told in self._on_deposed:
            told(error)

    async def _take_back(self, error: SchedulerError) -> None:
        """Forget what was not committed, and tell those who waited for it."""
        self.tallies.failed_commits += 1
        _refuse(self._batch, error)
        await self._read_again()

    async def _read_again(self) -> None:
        """Begin anew with what is stored, and let everybody else do so.

        A store that cannot even be read is asked until it can: without it nothing may go on. All
        of it is read where commits are made, so that heartbeats and readers do not wait for it.
        """
        while True:
            try:
                self.core = await self._writer.run(partial(self._read_core, self._now_ms()))
                break
            except Exception as error:
                # ExtraWrites a bug: it may only be that another server writes meanwhile.
                unreadable = error if isinstance(error, SchedulerError) else InternalError(MISTAKE)
                if self._unreadable is None:
                    is_bug = unreadable is not error
                    log.exception("the store cannot be read", error=str(error), exc_info=is_bug)
                self._unreadable = unreadable
                self._tell(unreadable)
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
                log.exception("whoever believes in the core has not begun anew")

    def _show(self, writes: list[Write]) -> None:
        """What is kept is kept, whatever those who look at it make of it."""
        for told in self._on_committed:
            try:
                told(writes)
            except Exception:
                log.exception("whoever looks at commits has failed")

    def _read_core(self, now_ms: int) -> Core:
        core = self._new_core()
        restore(core.state, self.store, now_ms)
        return core


def _refuse(requests: Sequence[_Request], error: SchedulerError) -> None:
    """Tell those who wait that nothing was done."""
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)


def _kind(request: _Request) -> Kind | None:
    """What can be applied together with others; not what somebody keeps rows of their own with."""
    if request.extra_writes is None and isinstance(request.message, SubmitSeries):
        return request.message, request.caller
    return None


def _one_each(outcome: Outcome) -> list[Outcome]:
    return [Outcome(jobs=[job]) for job in outcome.jobs]
