"""Reads events and delivers the notifications that they cause, until it is stopped.

The position in the event history is committed together with the new rows of the outbox. So no
event is missed and none enters the outbox twice, whenever the server dies. A delivery whose
success was not committed is repeated with the same id: at least once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from gpu_scheduler.model.errors import SchedulerError, UnknownThing
from gpu_scheduler.model.notification import Notice
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.event_rules import (
    BudgetUse,
    EventRules,
    budget_document,
    free_gpus_document,
    row_of,
)
from gpu_scheduler.notify.retry_queue import HOUR_MS, DeliveryFailed, Lane, Outbox
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import CursorRow, EventRow, NoticeRow, Removed, Write

CURSOR = "notifications"
DROPPED = "notification_dropped"
BATCH = 200
BATCH_DELAY_S = 0.05
"""Events that arrive within this time are handled together."""
BUDGET_CHECK_S = 30.0
"""How often budgets are checked, and the cursor is written if nothing else was."""
RETRY_S = 5.0
TEST = "test"
ADMINS_ONLY = "gpu-scheduler"
"""The owner of events that only admins see: the scheduler itself."""
log = structlog.get_logger("notify")


class Scheduler(Protocol):
    """What notifications need from the scheduler."""

    @property
    def store(self) -> Store:
        """The committed state."""
        ...

    def now_ms(self) -> int:
        """The scheduler's time."""
        ...

    def subscribe(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events after a sequence number; the stream ends if the reader is too slow."""
        ...

    async def keep(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """Commit rows and events together."""
        ...

    def free_gpus(self) -> int | None:
        """Number of idle GPUs on nodes that take work; None without such a node."""
        ...

    def budgets(self) -> Iterable[BudgetUse]:
        """The use of all GPU-hour budgets."""
        ...


@dataclass(frozen=True, slots=True)
class _Progress:
    """State that survives a restart: cursor, last number of free GPUs, notified budgets."""

    sequence: int
    free: int
    budgets: dict[str, int]

    def row(self) -> CursorRow:
        note = json.dumps({"free": self.free, "budgets": self.budgets})
        return CursorRow(CURSOR, self.sequence, note)


class Notifications:
    """The notification service; `run` until cancelled."""

    def __init__(self, settings: NotificationSettings, scheduler: Scheduler) -> None:
        """Raises `InvalidRequest` for settings that cannot work."""
        self._settings = settings
        self._scheduler = scheduler
        self._senders = Senders(settings)
        self._rules = EventRules(settings, scheduler.store)
        self._outbox = Outbox(settings, random.Random())
        self._wakes: dict[str, asyncio.Event] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._progress = _Progress(0, 0, {})
        self._commit_lock = asyncio.Lock()

    @property
    def settings(self) -> NotificationSettings:
        """The settings of this service."""
        return self._settings

    @property
    def lanes(self) -> dict[str, Lane]:
        """The lanes of the outbox by target."""
        return self._outbox.lanes

    async def run(self) -> None:
        """Follow events until cancelled; return at once if there are no targets."""
        if not self._settings.targets and not self._settings.allow_job_webhooks:
            return
        for row in await self._load():
            self._outbox.add(row)
        for name in list(self._outbox.lanes):
            self._start_lane(name)
        watcher = asyncio.create_task(self._watch_budgets(), name="notifications: budgets")
        try:
            while True:
                try:
                    await self._follow()
                except SchedulerError as error:
                    log.warning("cannot read the store; notifications will retry", error=str(error))
                except Exception:
                    # A bug must cost no more than a delay.
                    log.exception("notifications failed; will retry")
                await asyncio.sleep(RETRY_S)
        finally:
            await _end([watcher, *self._lanes.values(), *self._sending])

    async def test(self, target: str, user: str) -> str:
        """Send a test notification now; return the error, or an empty text."""
        if target not in self._settings.targets:
            known = ", ".join(self._settings.targets) or "none"
            raise UnknownThing(f"there is no target '{target[:60]}'; known: {known}")
        at_ms = self._scheduler.now_ms()
        document = {
            "text": f"This is a test of target {target}, by {user}",
            "event": TEST,
            "user": user,
            "at_ms": at_ms,
        }
        row = row_of(f"test-{at_ms}", target, document, at_ms)
        try:
            await self._senders.send(target, json.loads(row.document), at_ms)
        except DeliveryFailed as error:
            return str(error)
        return ""

    async def _load(self) -> list[NoticeRow]:
        """Read the progress and the waiting rows; retry until the store can be read."""
        progress = None
        while True:
            try:
                self._progress = progress = progress or await self._read_progress()
                return list(await asyncio.to_thread(self._scheduler.store.notices))
            except SchedulerError as error:
                log.warning("cannot read the store; notifications will retry", error=str(error))
            await asyncio.sleep(RETRY_S)

    async def _read_progress(self) -> _Progress:
        store = self._scheduler.store
        cursor = await asyncio.to_thread(store.cursor, CURSOR)
        if cursor is None:
            # Assume free GPUs at first: GPUs that were never used must cause no notification.
            free = self._scheduler.free_gpus()
            last = await asyncio.to_thread(store.last_event)
            return _Progress(last, 1 if free is None else free, {})
        note = json.loads(cursor.note or "{}")
        return _Progress(cursor.sequence, int(note.get("free", 0)), dict(note.get("budgets", {})))

    async def _follow(self) -> None:
        """Handle events until the stream ends; the caller starts again at the cursor."""
        events = self._scheduler.subscribe(self._progress.sequence)
        queue: asyncio.Queue[tuple[int, EventRow]] = asyncio.Queue(BATCH)
        filling = asyncio.create_task(_fill(events, queue))
        try:
            while True:
                await self._handle(await _page(queue, filling))
                if filling.done() and queue.empty():
                    return
        finally:
            await _end([filling])

    async def _handle(self, page: list[tuple[int, EventRow]]) -> None:
        if not page:
            return
        oldest_ms = self._scheduler.now_ms() - round(self._settings.give_up_hours * HOUR_MS)
        rows = await asyncio.to_thread(self._rules.rows, page, oldest_ms)
        last, free = page[-1][0], self._scheduler.free_gpus()
        async with self._commit_lock:
            if free is None:
                free = self._progress.free
            elif free and not self._progress.free:
                at_ms = self._scheduler.now_ms()
                document = free_gpus_document(free, at_ms)
                rows += self._rules.to_all(Notice.GPU_FREE, document, at_ms, f"free-{last}")
            after = replace(self._progress, sequence=last, free=free)
            if rows:
                await self._commit(rows, after)
            self._progress = after

    async def _watch_budgets(self) -> None:
        """Check budgets at intervals, because they are used up over time without any event."""
        written = self._progress
        while True:
            with suppress(SchedulerError):
                async with self._commit_lock:
                    rows, budgets = self._budget_rows()
                    after = replace(self._progress, budgets=budgets)
                    if after != written:
                        await self._commit(rows, after)
                        written = self._progress = after
            await asyncio.sleep(BUDGET_CHECK_S)

    def _budget_rows(self) -> tuple[list[NoticeRow], dict[str, int]]:
        """A row for each budget that has newly reached a threshold; and all reached thresholds."""
        rows: list[NoticeRow] = []
        seen: dict[str, int] = {}
        now_ms = self._scheduler.now_ms()
        for use in self._scheduler.budgets():
            owner = f"{use.tenant}/{use.user}" if use.user else use.tenant
            marks = [mark for mark in (self._settings.budget_percent, 100) if use.percent >= mark]
            reached = max(marks, default=0)
            if reached > self._progress.budgets.get(owner, 0):
                document = budget_document(use, now_ms)
                key = f"budget-{owner}-{reached}-{now_ms}"
                rows += self._rules.to_all(Notice.BUDGET, document, now_ms, key)
            if reached:
                seen[owner] = reached
        return rows, seen

    async def _commit(self, rows: list[NoticeRow], after: _Progress) -> None:
        """Commit new rows together with the progress, then queue them for delivery."""
        kept: list[NoticeRow] = []
        kept_of: Counter[str] = Counter()
        dropped_of: Counter[str] = Counter()
        for row in rows:
            lane = self._outbox.lane_of(row.target)
            if kept_of[lane] < self._outbox.room(row.target):
                kept_of[lane] += 1
                kept.append(row)
            else:
                dropped_of[lane] += 1
                self._outbox.lane(row.target).given_up += 1
        events = [
            _dropped(lane, count, "too many notifications wait for this target")
            for lane, count in dropped_of.items()
        ]
        await self._scheduler.keep([*kept, after.row()], events)
        for row in kept:
            self._outbox.add(row)
        for lane in kept_of:
            self._start_lane(lane)
            self._wakes[lane].set()

    def _start_lane(self, name: str) -> None:
        if name not in self._lanes:
            self._wakes[name] = asyncio.Event()
            self._lanes[name] = asyncio.create_task(
                self._run_lane(name), name=f"notifications: {name}"
            )

    async def _run_lane(self, name: str) -> None:
        wake = self._wakes[name]
        while True:
            now_ms = self._scheduler.now_ms()
            row = self._outbox.due(name, now_ms)
            if row is not None:
                task = asyncio.create_task(self._deliver(row))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
                task.add_done_callback(lambda _: wake.set())
                continue
            next_ms = self._outbox.next_ms(name)
            wait_s = None if next_ms is None else max(0.05, (next_ms - now_ms) / 1000)
            wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await wake.wait()

    async def _deliver(self, row: NoticeRow) -> None:
        document: dict[str, Any] = json.loads(row.document)
        try:
            await self._senders.send(row.target, document, row.at_ms)
        except DeliveryFailed as error:
            await self._failed(row, str(error), target_down=error.target_down)
        except Exception as error:
            log.exception("sending a notification failed", id=row.id)
            await self._failed(row, f"internal error: {error!r}", target_down=False)
        else:
            self._outbox.delivered(row)
            await self._write([Removed(NoticeRow, row.id)])

    async def _failed(self, row: NoticeRow, why: str, *, target_down: bool) -> None:
        lane = self._outbox.lane_of(row.target)
        again = self._outbox.failed(row, why, self._scheduler.now_ms(), target_down=target_down)
        if again is not None:
            log.info("notification failed; will retry", target=lane, tries=again.tries, error=why)
            await self._write([again])
            return
        log.warning("notification dropped", target=lane, id=row.id, error=why)
        await self._write([Removed(NoticeRow, row.id)], [_dropped(lane, 1, why)])

    async def _write(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """Commit rows; on failure the delivery may be repeated after a restart."""
        try:
            await self._scheduler.keep(rows, events)
        except SchedulerError as error:
            log.warning("cannot write the outbox", error=str(error))


def _dropped(target: str, count: int, why: str) -> EventRow:
    data: tuple[tuple[str, str | int], ...] = (
        ("target", target),
        ("count", count),
        ("error", why[:200]),
    )
    return EventRow(at_ms=0, kind=DROPPED, user=ADMINS_ONLY, data=data)


async def _fill(
    events: AsyncIterator[tuple[int, EventRow]], queue: asyncio.Queue[tuple[int, EventRow]]
) -> None:
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for item in stream:
            await queue.put(item)


async def _page(
    queue: asyncio.Queue[tuple[int, EventRow]], filling: asyncio.Task[None]
) -> list[tuple[int, EventRow]]:
    """The next events, up to a batch; empty when the stream has ended."""
    first = asyncio.ensure_future(queue.get())
    await asyncio.wait({first, filling}, return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        first.cancel()
        return []
    await asyncio.sleep(BATCH_DELAY_S)
    page = [first.result()]
    while len(page) < BATCH and not queue.empty():
        page.append(queue.get_nowait())
    return page


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
