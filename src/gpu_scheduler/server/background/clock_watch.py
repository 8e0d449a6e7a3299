"""Watches the wall clock for the leader, and stores scheduler time for the next one.

A step of the wall clock is logged and recorded as an event, and begin times and reservations follow
the calendar. While no job runs, scheduler time catches up with the calendar.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from gpu_scheduler.control.clock import (
    RECORD,
    SMALL_MS,
    ClockGap,
    ClockStep,
    SchedulerClock,
    StoredClock,
)
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Record, SetCalendar
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.server.storage import last_event_time
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import EventRow

LOOK_S = 1.0
STORE_S = 60.0
log = structlog.get_logger("clock")


def resume_clock(clock: SchedulerClock, store: Store) -> None:
    """Continue the scheduler time of the store."""
    row = store.cursor(RECORD)
    stored = None if row is None else StoredClock.from_row(row)
    clock.resume(stored, last_event_time(store), is_idle=not store.allocations())


class ClockWatch:
    """Looks at the wall clock every second, and stores scheduler time every minute."""

    def __init__(
        self,
        loop: Loop,
        clock: SchedulerClock,
        note_step: Callable[[ClockStep], None] = lambda _: None,
    ) -> None:
        """Call `note_step` for each step of the wall clock."""
        self._loop = loop
        self._clock = clock
        self._note_step = note_step
        self._store_at_ms = 0

    async def run(self) -> None:
        """Run until cancelled."""
        gap = self._clock.gap
        while True:
            try:
                if gap is not None:
                    await self._record_gap(gap)
                    gap = None
                await self.look()
            except SchedulerError as error:
                log.info("clock was not stored; will retry", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Look at the wall clock once."""
        loop, clock = self._loop, self._clock
        steps = clock.take_steps()
        if not loop.core.state.cluster.running:
            clock.catch_up()
        loop.loop_metrics.clock_steps = clock.step_count
        loop.loop_metrics.clock_offset_ms = clock.wall_offset_ms
        events = []
        for step in steps:
            log.warning(
                "wall clock was set", by_seconds=step.by_ms / 1000, held_back=step.is_held_back
            )
            self._note_step(step)
            data = (("by_ms", step.by_ms), ("held_back", int(step.is_held_back)))
            events.append(EventRow(at_ms=0, kind="clock_stepped", data=data))
        if events:
            await loop.apply(Record(tuple(events)))
        calendar, known = clock.calendar, loop.core.state.calendar
        has_moved = abs(calendar.offset_ms - known.offset_ms) > SMALL_MS
        if has_moved or (calendar.offset_ms == 0) != (known.offset_ms == 0):
            log.warning("calendar was corrected", offset_seconds=calendar.offset_ms / 1000)
            await loop.apply(SetCalendar(calendar), extra_writes=lambda _: [clock.stored().row()])
        elif loop.now_ms() >= self._store_at_ms:
            await loop.apply(Record(), extra_writes=lambda _: [clock.stored().row()])
            self._store_at_ms = loop.now_ms() + round(STORE_S * 1000)

    async def _record_gap(self, gap: ClockGap) -> None:
        log.warning(
            "wall clock disagrees with the time counted since the last leader",
            wall_seconds=gap.wall_ms / 1000,
            counted_seconds=gap.counted_ms / 1000,
        )
        data = (("wall_ms", gap.wall_ms), ("counted_ms", gap.counted_ms))
        await self._loop.apply(Record((EventRow(at_ms=0, kind="clock_gap", data=data),)))
