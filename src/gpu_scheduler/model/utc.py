"""UTC dates from milliseconds since the epoch, in integers only.

The core uses no calendar library: UTC here has no leap seconds and no daylight saving time. Texts
name UTC, so that a client can convert them to local time.
"""

from __future__ import annotations

DAY_MS = 86_400_000

# The Gregorian calendar repeats after 400 years. Counting years from March puts the leap day last,
# so that the lengths of the months before it follow one formula.
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_EPOCH_DAYS = 719_468
"""Days from 0000-03-01 to 1970-01-01."""


def format_utc(at_ms: int) -> str:
    """A time as `2026-11-20 18:00 UTC`, with seconds if they are not 0."""
    day, rest_ms = divmod(at_ms, DAY_MS)
    year, month, day_of_month = civil_date(day)
    minutes, second = divmod(rest_ms // 1000, 60)
    hour, minute = divmod(minutes, 60)
    seconds = f":{second:02d}" if second else ""
    return f"{year:04d}-{month:02d}-{day_of_month:02d} {hour:02d}:{minute:02d}{seconds} UTC"


def civil_date(epoch_day: int) -> tuple[int, int, int]:
    """Year, month and day of the month."""
    cycle, day = divmod(epoch_day + _EPOCH_DAYS, _CYCLE_DAYS)
    # Leap days seen so far in the cycle are taken out before dividing by 365.
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    from_march = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * from_march + 2) // 5 + 1
    month = from_march + 3 if from_march < 10 else from_march - 9
    return cycle * _CYCLE_YEARS + year + (month <= 2), month, day_of_month


def first_day(year: int, month: int) -> int:
    """The epoch day of the first day of a month."""
    cycle, of_cycle = divmod(year - (month <= 2), _CYCLE_YEARS)
    from_march = (month + 9) % 12
    day_of_year = (153 * from_march + 2) // 5
    day = 365 * of_cycle + of_cycle // 4 - of_cycle // 100 + day_of_year
    return cycle * _CYCLE_DAYS + day - _EPOCH_DAYS
