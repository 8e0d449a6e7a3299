"""Exact conversion of GPU time and rounding; UTC days, weeks and months.

Integers in, integers or decimal text out; no floats, so that bills add up on every machine.
"""

from __future__ import annotations

from enum import StrEnum

from gpu_scheduler.model.utc import DAY_MS, civil_date, first_day

HOUR_MS = 3_600_000
GPU_HOUR_MILLI_MS = 1000 * HOUR_MS
"""One GPU for one hour, in milli-GPU-ms."""
_MILLI_HOUR_MILLI_MS = GPU_HOUR_MILLI_MS // 1000


def half_up(numerator: int, denominator: int) -> int:
    """The quotient of two amounts, rounded half up."""
    return (2 * numerator + denominator) // (2 * denominator)


def decimal_text(value: int, places: int) -> str:
    """Write an integer count of 10**-places as a decimal: (12500, 3) is 12.5."""
    whole, rest = divmod(abs(value), 10**places)
    digits = f"{rest:0{places}d}".rstrip("0")
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def gpu_hours(gpu_milli_ms: int, *, up: bool = False) -> str:
    """GPU time in hours with three decimals, rounded down, or with `up` rounded up.

    Requests are rounded up and limits down, so that a rejection never seems to contradict itself.
    """
    if up:
        return decimal_text(-(-gpu_milli_ms // _MILLI_HOUR_MILLI_MS), 3)
    return decimal_text(gpu_milli_ms // _MILLI_HOUR_MILLI_MS, 3)


_FIRST_MONDAY = 4
"""The epoch began on a Thursday."""


class Period(StrEnum):
    """A UTC day, week (from Monday) or month; the end is exclusive."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def start_of(self, at_ms: int) -> int:
        """The first millisecond of the period that contains this time."""
        day = at_ms // DAY_MS
        if self is Period.MONTH:
            day -= civil_date(day)[2] - 1
        elif self is Period.WEEK:
            day -= (day - _FIRST_MONDAY) % 7
        return day * DAY_MS

    def next_after(self, at_ms: int) -> int:
        """The first millisecond of the following period."""
        if self is not Period.MONTH:
            return self.start_of(at_ms) + DAY_MS * (7 if self is Period.WEEK else 1)
        year, month, _ = civil_date(at_ms // DAY_MS)
        return first_day(year + month // 12, month % 12 + 1) * DAY_MS

    def name_of(self, at_ms: int) -> str:
        """The name of the period: 2025-11-30 (of a week: its Monday) or 2025-11."""
        year, month, day = civil_date(self.start_of(at_ms) // DAY_MS)
        return f"{year:04d}-{month:02d}" + ("" if self is Period.MONTH else f"-{day:02d}")
