"""Dates and times as users write them, to seconds since 1970, and back; in the local time zone.

| written | means |
|---|---|
| now, +2h, now+30m, in 3 hours | relative to now |
| 18:00, 6pm, 9am | the next such time |
| today 18:00, tomorrow, tomorrow 9am | that day; without a time its start |
| fri, friday 18:00, fri 6pm | the next such day, not before now |
| 2026-01-31, 2026-01-31 18:00, 2026-01-31T18:00:00Z | that time |
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

from gpu_scheduler.model.durations import seconds_of
from gpu_scheduler.model.errors import InvalidRequest

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EXAMPLES = "now, +2h, 18:00, 9am, tomorrow 9am, fri 18:00 or 2026-01-31T18:00"
PAST_DAYS = {"today": 0, "yesterday": -1}
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?\s*(am|pm)?", re.ASCII)
_UTC_TIME = re.compile(r"\b(\d{4}-\d{2}-\d{2} \d{2}:\d{2}(?::\d{2})?) UTC\b")
_WEEK = timedelta(days=6)


def seconds_at(text: str, option: str, now: float | None = None) -> float:
    """The time in seconds since 1970; an error lists the accepted forms."""
    word = " ".join(text.lower().split())
    current = time.time() if now is None else now
    found = _relative(word, current)
    if found is None:
        local_now = datetime.fromtimestamp(current).astimezone()
        moment = _named(word, local_now) or _iso(text.strip())
        found = None if moment is None else moment.timestamp()
    if found is None:
        raise InvalidRequest(f"{option} is '{text}'; write a time such as {EXAMPLES}")
    return found


def past_moment(text: str | None, option: str) -> str | None:
    """A past time for the server, written as an age (2h), a day or a time; None for None."""
    if text is None:
        return None
    word = " ".join(text.lower().split())
    if word.startswith("now-"):  # as for sacct: now-7days
        word = word.removeprefix("now-")
    now = datetime.now().astimezone()
    ago_s = None if ":" in word else seconds_of(word, "d")
    moment: datetime | None
    if ago_s is not None:
        try:
            moment = now - timedelta(seconds=ago_s)
        except OverflowError:  # before the year 1
            moment = None
    elif word in PAST_DAYS:
        moment = _at(now, PAST_DAYS[word], (0, 0))
    else:
        moment = now if word == "now" else _iso(text.strip())
    if moment is None:
        raise InvalidRequest(
            f"{option} is '{text}'; write how long ago (2h, 7d), today, yesterday, or a time such "
            "as 2026-01-31 or 2026-01-31T18:00"
        )
    return moment.isoformat()


def local_text(moment: datetime, now: datetime | None = None) -> str:
    """`18:00` today, `Fri 18:00` within a week, else with the date; in the local time zone."""
    local = moment.astimezone()
    today = (now or datetime.now().astimezone()).date()
    clock = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    if local.date() == today:
        return clock
    if timedelta(0) < local.date() - today <= _WEEK:
        return f"{local:%a} {clock}"
    return f"{local:%Y-%m-%d} {clock}"


def localised(text: str) -> str:
    """The text with UTC times replaced by local times."""
    return _UTC_TIME.sub(
        lambda match: local_text(datetime.fromisoformat(f"{match[1]}+00:00")), text
    )


def _relative(word: str, current: float) -> float | None:
    if word == "now":
        return current
    if word.startswith(("+", "now+", "now +", "in ")):
        ahead = seconds_of(re.sub(r"^(?:(?:now ?)?\+|in )", "", word), "m")
        return None if ahead is None else current + ahead
    return None


def _named(word: str, now: datetime) -> datetime | None:
    """A named day, a time of day, or both."""
    first, _, rest = word.partition(" ")
    days = _days_ahead(first, now)
    if days is None:
        clock = _clock(word)
        if clock is None:
            return None
        then = _at(now, 0, clock)
        return then if then > now else _at(now, 1, clock)
    clock = _clock(rest.removeprefix("at ")) if rest else (0, 0)
    if clock is None:
        return None
    then = _at(now, days, clock)
    is_weekday = first not in {"today", "tomorrow"}
    return _at(now, days + 7, clock) if is_weekday and then <= now else then


def _at(now: datetime, days: int, clock: tuple[int, int]) -> datetime:
    """That time of day, so many days ahead; correct over changes of summer time."""
    wall = now.replace(tzinfo=None) + timedelta(days=days)
    return wall.replace(hour=clock[0], minute=clock[1], second=0, microsecond=0).astimezone()


def _days_ahead(word: str, now: datetime) -> int | None:
    if word in {"today", "tomorrow"}:
        return int(word == "tomorrow")
    if len(word) >= 3:
        for number, name in enumerate(DAYS):
            if name.startswith(word):
                return (number - now.weekday()) % 7
    return None


def _clock(word: str) -> tuple[int, int] | None:
    match = _CLOCK.fullmatch(word)
    if match is None or (match[2] is None and match[3] is None):
        return None
    hour, minute = int(match[1]), int(match[2] or 0)
    if match[3] is not None:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if match[3] == "pm" else 0)
    return (hour, minute) if hour < 24 else None


def _iso(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.astimezone() if found.tzinfo is None else found
