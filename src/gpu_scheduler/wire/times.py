"""Times and periods as text: ISO 8601 or seconds since 1970 outside, milliseconds inside.

A period is `today`, `week`, `month`, `2026-10` or `2026-10-01..2026-10-15`. Its days begin at
midnight of a time zone, also when its clocks change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from gpu_scheduler.model.errors import InvalidRequest

LATEST_MS = 253_402_300_799_000
"""The end of the year 9999, the largest year of `datetime`."""


def read_time(value: str | float, name: str) -> int:
    """Return milliseconds since 1970 from ISO text (UTC without an offset) or from seconds."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequest(
                f"{name} is '{value}'; write a time such as 2026-01-31T18:00:00Z, or seconds "
                "since 1970"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = moment.timestamp()
    else:
        seconds = value
    # Checked before the multiplication, because seconds may be as large as a float can be.
    if not 0 <= seconds <= LATEST_MS / 1000:
        raise InvalidRequest(f"{name} is {value}; it must be between the years 1970 and 9999")
    return round(seconds * 1000)


def write_time(at_ms: int | None) -> str | None:
    """Return ISO 8601 in UTC to the millisecond; None for an unknown time."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


HOUR_MS = 3_600_000
SHORT_MS = 2 * 24 * HOUR_MS
"""A period up to this long is divided into hours, a longer one into days."""
MAX_SLICES = 400
FORMS = "today, yesterday, week, month, year, 2026-10, 2026-10-31, or 2026-10-01..2026-10-15"


@dataclass(frozen=True, slots=True)
class Span:
    """A period from one time up to, not including, another; `edges` are those of its slices."""

    name: str
    edges: tuple[int, ...]

    @property
    def from_ms(self) -> int:
        """The start."""
        return self.edges[0]

    @property
    def before_ms(self) -> int:
        """The end, which is not part of it."""
        return self.edges[-1]


def read_zone(name: str) -> tzinfo:
    """Return a time zone by its name, such as Europe/Berlin."""
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError):
        raise InvalidRequest(
            f"time zone '{name[:60]}' is unknown; write UTC, or a name such as Europe/Berlin"
        ) from None


def read_span(text: str, now_ms: int, zone: tzinfo) -> Span:
    """Parse a period; `week`, `month` and `year` are the current ones."""
    today = datetime.fromtimestamp(now_ms / 1000, zone).date()
    word = text.strip().lower()
    first, past = _named(word, today) or _written(word, text)
    if past <= first:
        raise InvalidRequest(f"period '{text[:60]}' ends before it begins")
    return Span(word, _edges(first, past, zone))


def _named(word: str, today: date) -> tuple[date, date] | None:
    tomorrow = today + timedelta(days=1)
    monday = today - timedelta(days=today.weekday())
    return {
        "today": (today, tomorrow),
        "yesterday": (today - timedelta(days=1), today),
        "week": (monday, monday + timedelta(days=7)),
        "month": (today.replace(day=1), _next_month(today)),
        "year": (date(today.year, 1, 1), date(today.year + 1, 1, 1)),
    }.get(word)


def _written(word: str, text: str) -> tuple[date, date]:
    begin, dots, end = word.partition("..")
    first = _unit(begin, text)
    if not dots:
        return first
    # The last day or month is part of the period.
    return first[0], _unit(end, text)[1]


def _unit(word: str, text: str) -> tuple[date, date]:
    try:
        if re.fullmatch(r"\d{4}-\d{2}", word):
            first = date.fromisoformat(f"{word}-01")
            return first, _next_month(first)
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", word):
            day = date.fromisoformat(word)
            return day, day + timedelta(days=1)
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(f"period '{text[:60]}' is unknown; write {FORMS}")


def _next_month(day: date) -> date:
    return date(day.year + day.month // 12, day.month % 12 + 1, 1)


def _edges(first: date, past: date, zone: tzinfo) -> tuple[int, ...]:
    start_ms, end_ms = _midnight(first, zone), _midnight(past, zone)
    if start_ms < 0:
        raise InvalidRequest("a period must be after the year 1970")
    if end_ms - start_ms <= SHORT_MS:
        return (*range(start_ms, end_ms, HOUR_MS), end_ms)
    days = (past - first).days
    step = -(-days // MAX_SLICES)
    edges = [_midnight(first + timedelta(days=place), zone) for place in range(0, days, step)]
    return (*edges, end_ms)


def _midnight(day: date, zone: tzinfo) -> int:
    moment = datetime(day.year, day.month, day.day, tzinfo=zone)
    return int(moment.timestamp()) * 1000
