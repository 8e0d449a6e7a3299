"""Follows the history and delivers what it leads to, until it is stopped.

How far history was read is kept in the same commit as what came of it, so nothing is missed and
nothing comes twice into the outbox, whenever the server dies. A delivery that is not written down
as such is repeated with the same id: at least once.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from gpu_scheduler.model.errors import SchedulerError, UnknownThing
from gpu_scheduler.model.notification import Notice
from gpu_scheduler.notify import message
from gpu_scheduler.notify.delivery import Senders
from gpu_scheduler.notify.event_rules import Reader, row_of
from gpu_scheduler.notify.message import DeliveryFailed
from gpu_scheduler.notify.outbox import HOUR_MS, Lane, Outbox
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import CursorRow, EventRow, NoticeRow, RemovedNotice, Write

CURSOR = "notifications"
DROPPED = "notification_dropped"
TOGETHER = 200
GATHER_S = 0.05
"""So long events are gathered before they are looked at together."""
LOOK_S = 30.0
"""How often budgets are looked at, and the cursor is written if nothing else was."""
PAUSE_S = 5.0
TEST = "test"
log = structlog.get_logger("notify")


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """How much of its GPU time a tenant, or one of its users, has used, in hours."""

    tenant: str
    user: str
    used_hours: float
    limit_hours: float


class Scheduler(Protocol):
    """What is needed of the scheduler."""

    @property
    def store(self) -> Store:
        """What has been committed."""
        ...

    def now_ms(self) -> int:
        """Its time."""
        ...

    def subscribe(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """History from there on; it ends if we are too slow."""
        ...

    async def keep(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """Commit rows and events together."""
        ...

    def free_gpus(self) -> int | None:
        """GPUs that are wholly free and take work; None while there is no node that does."""
        ...

    def budgets(self) -> Iterable[BudgetUse]:
        """All budgets of GPU time."""
        ...


@dataclass(frozen=True, slots=True)
class _Memory:
    """What has to outlive a restart: free GPUs as last seen, and who was told of a budget."""

    sequence: int
    free: int
    budgets: dict[str, int]

    def row(self) -> CursorRow:
        note = json.dumps({"free": self.free, "budgets": self.budgets})
        return CursorRow(CURSOR, self.sequence, note)


class Notifications:
    """All of it. `run` until cancelled."""

    def __init__(self, settings: NotificationSettings, scheduler: Scheduler) -> None:
        """Refuses settings that cannot work."""
        self._settings = settings
        self._scheduler = scheduler
        self._senders = Senders(settings)
        self._reader = Reader(settings, scheduler.store)
        self._outbox = Outbox(settings, random.Random())
        self._wakes: dict[str, asyncio.Event] = {}
        self._lanes: dict[str, asyncio.Task[None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._memory = _Memory(0, 0, {})
        self._keeping = asyncio.Lock()

    @property
    def settings(self) -> NotificationSettings:
        """As they were given."""
        return self._settings

    @property
    def lanes(self) -> dict[str, Lane]:
        """What waits, by target."""
        return self._outbox.lanes

    async def run(self) -> None:
        """Until cancelled. Without targets nothing is ever to be told."""
        if not self._settings.targets and not self._settings.allow_job_webhooks:
            return
        for row in await self._remembered():
            self._outbox.add(row)
        for name in list(self._outbox.lanes):
            self._start_lane(name)
        watcher = asyncio.create_task(self._look_around(), name="notifications: budgets")
        try:
            while True:
                try:
                    await self._follow()
                except SchedulerError as error:
                    log.warning("notifications wait for the store", error=str(error))
                except Exception:
                    # A bug must cost no more than a delay.
                    log.exception("notifications failed, and go on")
                await asyncio.sleep(PAUSE_S)
        finally:
            await _end([watcher, *self._lanes.values(), *self._sending])

    async def test(self, target: str, user: str) -> str:
        """Send something to a target at once; says what went wrong, or nothing."""
        if target not in self._settings.targets:
            known = ", ".join(self._settings.targets) or "none"
            raise UnknownThing(f"there is no target '{target[:60]}'; known: {known}")
        at_ms = self._scheduler.now_ms()
        told = {
            "text": f"This is a test of target {target}, by {user}",
            "event": TEST,
            "user": user,
            "at_ms": at_ms,
        }
        row = row_of(f"test-{at_ms}", target, told, at_ms)
        try:
            await self._senders.send(target, json.loads(row.document), at_ms)
        except DeliveryFailed as error:
            return str(error)
        return ""

    # --- history

    async def _remembered(self) -> list[NoticeRow]:
        """Recall how far history was told, and what waits; for as long as it takes."""
        memory = None
        while True:
            try:
                self._memory = memory = memory or self._recalled()
                return list(self._scheduler.store.notices())
            except SchedulerError as error:
                log.warning("notifications wait for the store", error=str(error))
            await asyncio.sleep(PAUSE_S)

    def _recalled(self) -> _Memory:
        cursor = self._scheduler.store.cursor(CURSOR)
        if cursor is None:
            # What is not known yet was free: nobody is told of GPUs that were never taken.
            free = self._scheduler.free_gpus()
            return _Memory(self._scheduler.store.last_event(), 1 if free is None else free, {})
        note = json.loads(cursor.note or "{}")
        return _Memory(cursor.sequence, int(note.get("free", 0)), dict(note.get("budgets", {})))

    async def _follow(self) -> None:
        """Read until we are cut off; then read again from where we were."""
        events = self._scheduler.subscribe(self._memory.sequence)
        queue: asyncio.Queue[tuple[int, EventRow]] = asyncio.Queue(TOGETHER)
        filling = asyncio.create_task(_fill(events, queue))
        try:
            while True:
                await self._take(await _page(queue, filling))
                if filling.done() and queue.empty():
                    return
        finally:
            await _end([filling])

    async def _take(self, page: list[tuple[int, EventRow]]) -> None:
        if not page:
            return
        oldest_ms = self._scheduler.now_ms() - round(self._settings.give_up_hours * HOUR_MS)
        rows = await asyncio.to_thread(self._reader.rows, page, oldest_ms)
        last, free = page[-1][0], self._scheduler.free_gpus()
        async with self._keeping:
            if free is None:
                free = self._memory.free
            elif free and not self._memory.free:
                at_ms = self._scheduler.now_ms()
                told = message.of_free_gpus(free, at_ms)
                rows += self._reader.to_all(Notice.GPU_FREE, told, at_ms, f"free-{last}")
            after = replace(self._memory, sequence=last, free=free)
            if rows:
                await self._keep(rows, after)
            self._memory = after

    async def _look_around(self) -> None:
        """Budgets are used up as time passes, without any event."""
        written = self._memory
        while True:
            with suppress(SchedulerError):
                async with self._keeping:
                    rows, budgets = self._budget_rows()
                    after = replace(self._memory, budgets=budgets)
                    if after != written:
                        await self._keep(rows, after)
                        written = self._memory = after
            await asyncio.sleep(LOOK_S)

    def _budget_rows(self) -> tuple[list[NoticeRow], dict[str, int]]:
        """One for each budget that has passed the mark, or its end, since it was last seen."""
        rows: list[NoticeRow] = []
        seen: dict[str, int] = {}
        now_ms = self._scheduler.now_ms()
        for use in self._scheduler.budgets():
            owner = f"{use.tenant}/{use.user}" if use.user else use.tenant
            percent = 100 * use.used_hours / use.limit_hours if use.limit_hours else 100.0
            marks = [mark for mark in (self._settings.budget_percent, 100) if percent >= mark]
            reached = max(marks, default=0)
            if reached > self._memory.budgets.get(owner, 0):
                told = message.of_budget(
                    use.tenant, use.user, use.used_hours, use.limit_hours, now_ms
                )
                key = f"budget-{owner}-{reached}-{now_ms}"
                rows += self._reader.to_all(Notice.BUDGET, told, now_ms, key)
            if reached:
                seen[owner] = reached
        return rows, seen

    async def _keep(self, rows: list[NoticeRow], after: _Memory) -> None:
        """Commit what is to be told together with how far we have read; then send it."""
        kept, refused = self._with_room(rows)
        events = [
            _dropped(target, count, "too many wait for this target")
            for target, count in refused.items()
        ]
        await self._scheduler.keep([*kept, after.row()], events)
        for row in kept:
            self._outbox.add(row)
            self._wake(self._outbox.lane_of(row.target))

    def _with_room(self, rows: list[NoticeRow]) -> tuple[list[NoticeRow], dict[str, int]]:
        kept: list[NoticeRow] = []
        refused: dict[str, int] = {}
        taken: dict[str, int] = {}
        for row in rows:
            lane = self._outbox.lane_of(row.target)
            if taken.get(lane, 0) < self._outbox.room(row.target):
                taken[lane] = taken.get(lane, 0) + 1
                kept.append(row)
            else:
                refused[lane] = refused.get(lane, 0) + 1
                self._outbox.lane(row.target).given_up += 1
        return kept, refused

    # --- delivery

    def _wake(self, lane: str) -> None:
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
        told: dict[str, Any] = json.loads(row.document)
        try:
            await self._senders.send(row.target, told, row.at_ms)
        except DeliveryFailed as error:
            await self._failed(row, str(error), everybody=error.everybody)
        except Exception as error:
            log.exception("a notification could not be sent", id=row.id)
            await self._failed(row, f"our own mistake: {error!r}", everybody=False)
        else:
            self._outbox.delivered(row)
            await self._write([RemovedNotice(row.id)])

    async def _failed(self, row: NoticeRow, why: str, *, everybody: bool) -> None:
        lane = self._outbox.lane_of(row.target)
        again = self._outbox.failed(row, why, self._scheduler.now_ms(), everybody=everybody)
        if again is not None:
            log.info("a notification waits", target=lane, tries=again.tries, error=why)
            await self._write([again])
            return
        log.warning("a notification was given up", target=lane, id=row.id, error=why)
        await self._write([RemovedNotice(row.id)], [_dropped(lane, 1, why)])

    async def _write(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """What cannot be written down now is repeated after a restart, at the worst."""
        try:
            await self._scheduler.keep(rows, events)
        except SchedulerError as error:
            log.warning("the outbox cannot be written", error=str(error))


def _dropped(target: str, count: int, why: str) -> EventRow:
    data: tuple[tuple[str, str | int], ...] = (
        ("target", target),
        ("count", count),
        ("error", why[:200]),
    )
    return EventRow(at_ms=0, kind=DROPPED, user=ADMINS_ONLY, data=data)


ADMINS_ONLY = "gpu-scheduler"
"""Whose event this is: nobody's but the scheduler's own, so only admins see it."""


async def _fill(
    events: AsyncIterator[tuple[int, EventRow]], queue: asyncio.Queue[tuple[int, EventRow]]
) -> None:
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for item in stream:
            await queue.put(item)


async def _page(
    queue: asyncio.Queue[tuple[int, EventRow]], filling: asyncio.Task[None]
) -> list[tuple[int, EventRow]]:
    """The next events, a few at a time; empty when no more come."""
    first = asyncio.ensure_future(queue.get())
    await asyncio.wait({first, filling}, return_when=asyncio.FIRST_COMPLETED)
    if not first.done():
        first.cancel()
        return []
    await asyncio.sleep(GATHER_S)
    page = [first.result()]
    while len(page) < TOGETHER and not queue.empty():
        page.append(queue.get_nowait())
    return page


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
