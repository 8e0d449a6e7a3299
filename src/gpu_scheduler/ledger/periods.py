"""Days and months of UTC on a line of milliseconds.

Epoch milliseconds in, boundaries and names out, in whole numbers only: the core has no calendar
library, and needs none, because UTC here has no leap seconds and no summer time.
"""

from __future__ import annotations

from enum import StrEnum

DAY_MS = 86_400_000

# The Gregorian calendar repeats after 400 years. Counting years from March puts the leap day last,
# so that the lengths of the months before it follow one formula.
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_EPOCH_DAYS = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


class Period(StrEnum):
    """What totals are kept by. A period holds its first millisecond, not the next one's."""

    DAY = "day"
    MONTH = "month"

    def start_of(self, at_ms: int) -> int:
        """The first millisecond of the period that holds this moment."""
        day = at_ms // DAY_MS
        if self is Period.MONTH:
            day -= _civil(day)[2] - 1
        return day * DAY_MS

    def next_after(self, at_ms: int) -> int:
        """The first millisecond of the following period."""
        if self is Period.DAY:
            return (at_ms // DAY_MS + 1) * DAY_MS
        year, month, _ = _civil(at_ms // DAY_MS)
        return _first_day(year + month // 12, month % 12 + 1) * DAY_MS

    def name_of(self, at_ms: int) -> str:
        """The period's name as people write it: 2025-11-30 or 2025-11."""
        year, month, day = _civil(at_ms // DAY_MS)
        return f"{year:04d}-{month:02d}" + (f"-{day:02d}" if self is Period.DAY else "")


def _civil(epoch_day: int) -> tuple[int, int, int]:
    """Year, month and day of the month."""
    cycle, day = divmod(epoch_day + _EPOCH_DAYS, _CYCLE_DAYS)
    # Leap days seen so far in the cycle are taken out before dividing by 365.
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    from_march = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * from_march + 2) // 5 + 1
    month = from_march + 3 if from_march < 10 else from_march - 9
    return cycle * _CYCLE_YEARS + year + (month <= 2), month, day_of_month


def _first_day(year: int, month: int) -> int:
    """The epoch day on which a month begins."""
    cycle, of_cycle = divmod(year - (month <= 2), _CYCLE_YEARS)
    from_march = (month + 9) % 12
    day_of_year = (153 * from_march + 2) // 5
    day = 365 * of_cycle + of_cycle // 4 - of_cycle // 100 + day_of_year
    return cycle * _CYCLE_DAYS + day - _EPOCH_DAYS
