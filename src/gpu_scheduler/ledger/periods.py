"""Days, weeks and months of UTC: epoch milliseconds in, boundaries and names out."""

from __future__ import annotations

from enum import StrEnum

from gpu_scheduler.model.moments import DAY_MS, civil, first_day

_FIRST_MONDAY = 4
"""The epoch began on a Thursday."""


class Period(StrEnum):
    """What totals are kept by. A period holds its first millisecond, not the next one's.

    A week begins on Monday.
    """

    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    def start_of(self, at_ms: int) -> int:
        """The first millisecond of the period that holds this moment."""
        day = at_ms // DAY_MS
        if self is Period.MONTH:
            day -= civil(day)[2] - 1
        elif self is Period.WEEK:
            day -= (day - _FIRST_MONDAY) % 7
        return day * DAY_MS

    def next_after(self, at_ms: int) -> int:
        """The first millisecond of the following period."""
        if self is not Period.MONTH:
            return self.start_of(at_ms) + DAY_MS * (7 if self is Period.WEEK else 1)
        year, month, _ = civil(at_ms // DAY_MS)
        return first_day(year + month // 12, month % 12 + 1) * DAY_MS

    def name_of(self, at_ms: int) -> str:
        """The period's name as people write it: 2025-11-30 (of a week: its Monday) or 2025-11."""
        year, month, day = civil(self.start_of(at_ms) // DAY_MS)
        return f"{year:04d}-{month:02d}" + ("" if self is Period.MONTH else f"-{day:02d}")
