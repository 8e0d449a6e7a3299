"""Scheduler time, and how calendar times relate to it.

Readings of the wall clock and of the boot-time clock come in, and the clock that the last leader
stored. Scheduler time looks like wall time, but it advances with the boot-time clock, so a wall
clock that is set changes no duration. It never goes back. Across a restart on the same boot it
continues exactly; on another boot or host the gap is estimated from wall time, and limited if jobs
run. The calendar (`begin_at`, advance reservations) is scheduler time plus `Calendar.offset_ms`: a
wall clock that is set back counts at once, one that is set ahead counts after it has stayed there.
Scheduler time approaches the calendar by at most 0.1 %, or at once while no job runs.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.store.rows import CursorRow

SMALL_MS = 2_000
"""A difference that is not a step; scheduler time follows it at once, if it is forward."""
LARGE_MS = 3_600_000
"""Without a time service, a longer step ahead counts only after `LARGE_HOLD_MS`."""
HOLD_MS = 600_000
LARGE_HOLD_MS = 86_400_000
LONGEST_GAP_MS = 86_400_000
"""An estimated gap is limited to this while jobs run."""
SHORT_GAP_MS = 300_000
"""A gap up to this is charged as it is estimated."""
SLEW = 1_000
"""Scheduler time differs from the boot-time clock by at most one part in this many."""
RECORD = "clock"
"""The name of the row in which the leader stores its clock."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UNSYNCHRONISED = 0x40
_TIME_ERROR = 5
_STATUS_AT = 5 * ctypes.sizeof(ctypes.c_long)
"""In struct timex: modes (padded), offset, freq, maxerror, esterror, then status."""


def is_clock_synchronised() -> bool | None:
    """Whether a time service keeps the wall clock, by adjtimex; None where it is not available.

    The kernel forgets it whenever a program sets the clock, until the service confirms the time.
    """
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    buffer = ctypes.create_string_buffer(512)
    state = adjtimex(buffer)
    if state < 0:
        return None
    status = int.from_bytes(buffer.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    return state != _TIME_ERROR and not status & _UNSYNCHRONISED


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """How calendar times relate to scheduler time.

    Calendar time is scheduler time plus `offset_ms`. The last long gap between two leaders that had
    to be estimated began at `gap_at_ms` and was counted as `gap_ms`.
    """

    offset_ms: int = 0
    gap_at_ms: int = 0
    gap_ms: int = 0

    def gap_within(self, start_ms: int, end_ms: int) -> int:
        """How much of the time between two moments is estimated."""
        overlap = min(end_ms, self.gap_at_ms + self.gap_ms) - max(start_ms, self.gap_at_ms)
        return max(0, overlap)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """The wall clock was set by `by_ms`; `is_held_back` if the calendar does not follow yet."""

    by_ms: int
    is_held_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockGap:
    """Between two leaders the wall clock advanced by `wall_ms`, of which `counted_ms` count."""

    wall_ms: int
    counted_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClock:
    """The clock of a leader as it is stored: a reading on one boot of one machine."""

    scheduler_ms: int
    boot_id: str
    boot_ms: int
    calendar: Calendar

    def row(self) -> CursorRow:
        """The row for the store."""
        calendar = self.calendar
        note = {
            "boot_id": self.boot_id,
            "boot_ms": self.boot_ms,
            "offset_ms": calendar.offset_ms,
            "gap_at_ms": calendar.gap_at_ms,
            "gap_ms": calendar.gap_ms,
        }
        return CursorRow(RECORD, self.scheduler_ms, json.dumps(note))

    @classmethod
    def from_row(cls, row: CursorRow) -> StoredClock:
        """Read a row of `row`."""
        note = json.loads(row.note)
        calendar = Calendar(
            offset_ms=note["offset_ms"], gap_at_ms=note["gap_at_ms"], gap_ms=note["gap_ms"]
        )
        return cls(
            scheduler_ms=row.sequence,
            boot_id=note["boot_id"],
            boot_ms=note["boot_ms"],
            calendar=calendar,
        )


class SchedulerClock:
    """The clock of one server. Call `now_ms` often: it also notices that the wall clock was set."""

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        boot_ms: Callable[[], int] = lambda: (
            time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        ),
        boot_id: Callable[[], str] = _boot_id,
        is_synchronised: Callable[[], bool | None] = is_clock_synchronised,
    ) -> None:
        """Begin at the wall clock's time, until `resume` continues the time of the store."""
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms
        self._boot_id = boot_id()
        self._is_synchronised = is_synchronised
        self._read_at_ms = boot_ms()
        self._now_ms = wall_ms()
        self._offset_ms = 0
        self._gap_at_ms = self._gap_ms = 0
        self._ahead_ms: int | None = None
        """How far the wall clock was set ahead of scheduler time, while that is held back."""
        self._ahead_since_ms = 0
        self._unslewed_ms = 0
        self._steps: list[ClockStep] = []
        self.step_count = 0
        self.gap: ClockGap | None = None
        """The gap before this leader, if not all of it, or more than it, was counted."""

    # Readings.

    def now_ms(self) -> int:
        """Scheduler time; never less than an earlier result."""
        boot_ms = self._boot_ms()
        elapsed_ms = max(0, boot_ms - self._read_at_ms)
        self._read_at_ms = boot_ms
        self._now_ms += elapsed_ms
        self._follow_wall(self._wall_ms() - self._now_ms)
        offset_ms = self._offset_ms
        self._unslewed_ms += elapsed_ms
        most_ms, self._unslewed_ms = divmod(self._unslewed_ms, SLEW)
        if 0 < offset_ms <= SMALL_MS:
            self._shift(offset_ms)
        elif most_ms and offset_ms:
            self._shift(max(-most_ms, min(most_ms, offset_ms)))
        return self._now_ms

    @property
    def calendar(self) -> Calendar:
        """How calendar times relate to scheduler time now; small differences count as none."""
        offset_ms = 0 if abs(self._offset_ms) <= SMALL_MS else self._offset_ms
        return Calendar(offset_ms=offset_ms, gap_at_ms=self._gap_at_ms, gap_ms=self._gap_ms)

    @property
    def wall_offset_ms(self) -> int:
        """How far the wall clock is ahead of scheduler time, whether or not that counts."""
        return self._wall_ms() - self.now_ms()

    @property
    def held_back_ms(self) -> int:
        """How far the wall clock is ahead of the calendar because it was set lately."""
        return 0 if self._ahead_ms is None else self._ahead_ms - self._offset_ms

    def take_steps(self) -> list[ClockStep]:
        """The steps since the last call."""
        self.now_ms()
        steps, self._steps = self._steps, []
        return steps

    # Changes.

    def catch_up(self) -> None:
        """Advance to the calendar at once. Call it only while no job runs: it skips time."""
        self.now_ms()
        if self._offset_ms > SMALL_MS:
            self._shift(self._offset_ms)

    def stored(self) -> StoredClock:
        """The reading to store, from which the next leader continues."""
        scheduler_ms = self.now_ms()
        return StoredClock(
            scheduler_ms=scheduler_ms,
            boot_id=self._boot_id,
            boot_ms=self._read_at_ms,
            calendar=Calendar(
                offset_ms=self._offset_ms, gap_at_ms=self._gap_at_ms, gap_ms=self._gap_ms
            ),
        )

    def resume(self, stored: StoredClock | None, last_ms: int, *, is_idle: bool) -> None:
        """Continue the time of the last leader; `last_ms` is the newest time in the store.

        With `is_idle` no job can run, so a gap of any duration counts.
        """
        boot_ms, wall_ms = self._boot_ms(), self._wall_ms()
        self.gap, self._ahead_ms = None, None
        if stored is None:
            start_ms = max(wall_ms, last_ms)
            self._offset_ms = wall_ms - start_ms
        else:
            start_ms, calendar = stored.scheduler_ms, stored.calendar
            self._offset_ms = calendar.offset_ms
            self._gap_at_ms, self._gap_ms = calendar.gap_at_ms, calendar.gap_ms
            if stored.boot_id == self._boot_id and self._boot_id and boot_ms >= stored.boot_ms:
                start_ms += boot_ms - stored.boot_ms
            else:
                gap_ms = wall_ms - (start_ms + calendar.offset_ms)
                counted_ms = max(0, gap_ms if is_idle else min(gap_ms, LONGEST_GAP_MS))
                if abs(gap_ms - counted_ms) > SMALL_MS:
                    self.gap = ClockGap(wall_ms=gap_ms, counted_ms=counted_ms)
                if counted_ms > SHORT_GAP_MS:
                    self._gap_at_ms, self._gap_ms = start_ms, counted_ms
                start_ms += counted_ms
            behind_ms = max(0, last_ms - start_ms)
            start_ms += behind_ms
            self._offset_ms -= behind_ms
        self._now_ms, self._read_at_ms = start_ms, boot_ms
        self.now_ms()

    def _follow_wall(self, raw_ms: int) -> None:
        """Compare the wall clock, `raw_ms` ahead of scheduler time, with the calendar.

        A step ahead counts at once only as far as scheduler time, which was right before the wall
        clock was set back.
        """
        is_as_before = abs(raw_ms - self._offset_ms) <= SMALL_MS
        if is_as_before or raw_ms <= max(self._offset_ms, SMALL_MS):
            if not is_as_before or self._ahead_ms is not None:
                self._note_step(raw_ms, is_held_back=False)
            self._ahead_ms, self._offset_ms = None, raw_ms
        elif self._ahead_ms is None or abs(raw_ms - self._ahead_ms) > SMALL_MS:
            self._note_step(raw_ms, is_held_back=True)
            self._ahead_ms, self._ahead_since_ms = raw_ms, self._read_at_ms
            self._offset_ms = max(self._offset_ms, 0)
        elif self._has_lasted(raw_ms - self._offset_ms):
            self._ahead_ms, self._offset_ms = None, raw_ms

    def _has_lasted(self, step_ms: int) -> bool:
        """Whether the wall clock has been ahead for long enough that the calendar follows it."""
        lasted_ms = self._read_at_ms - self._ahead_since_ms
        if lasted_ms < HOLD_MS or lasted_ms >= LARGE_HOLD_MS:
            return lasted_ms >= HOLD_MS
        return step_ms <= LARGE_MS or bool(self._is_synchronised())

    def _note_step(self, raw_ms: int, *, is_held_back: bool) -> None:
        before_ms = self._offset_ms if self._ahead_ms is None else self._ahead_ms
        step = ClockStep(by_ms=raw_ms - before_ms, is_held_back=is_held_back)
        self._steps = [*self._steps[-99:], step]
        self.step_count += 1

    def _shift(self, by_ms: int) -> None:
        """Move scheduler time; what is relative to it moves the other way."""
        self._now_ms += by_ms
        self._offset_ms -= by_ms
        if self._ahead_ms is not None:
            self._ahead_ms -= by_ms
