"""Durations, sizes, numbers and texts as users write them, to seconds and MiB, and back.

| written | means |
|---|---|
| 90s 90m 2h 1d 1w, 1d12h, 1.5h | a sum of units |
| 90 min, 2 hours, 1 day 12 hours | the same in words |
| HH:MM:SS, D-HH:MM:SS, D-HH:MM, D-HH | as with Slurm |
| a plain number | minutes or seconds, depending on the option |

An invalid value raises `InvalidRequest`, which argparse does not catch.
"""

from __future__ import annotations

import re

from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
LONGEST_S = 3_650 * 86_400
LEAST_LIMIT_S = 0.001
SIZES_MB = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_PARTS = (
    r"(\d+(?:\.\d+)?)"
    r"(weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
)
_CLOCK = r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]?\d)(?::([0-5]?\d))?"
_TWO_MEANINGS = r"(\d{1,4}):([0-5]?\d)"
_DAYS = r"(\d{1,4})-(\d{1,2})"
_SIZE = r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?"
_PLAIN = r"\d+(?:\.\d+)?"


def _matched(pattern: str, text: str) -> re.Match[str] | None:
    """Compiled at the first use, because most commands parse no durations."""
    return re.fullmatch(pattern, text, re.ASCII)


def duration(option: str, *, plain: str = "m") -> Callable[[str], float]:
    """A parser of seconds; a plain number is in the given unit."""

    def read(text: str) -> float:
        seconds = seconds_of(text, plain)
        if seconds is None and (match := _matched(_TWO_MEANINGS, text.strip())):
            first, second = match.groups()
            raise InvalidRequest(
                f"{option} is '{text}', which is ambiguous; write {first}m{second}s or "
                f"{first}h{second}m"
            )
        if seconds is None or seconds > LONGEST_S:
            raise InvalidRequest(
                f"{option} is '{text}'; write a time such as 90m, 2h, 1d12h, 02:30:00 or 1-12:00:00"
            )
        return seconds

    return read


def seconds(option: str) -> Callable[[str], float]:
    """A parser of a duration in which a plain number is seconds."""
    return duration(option, plain="s")


def limit(option: str) -> Callable[[str], float]:
    """A parser of a time limit in seconds."""
    read_duration = duration(option)

    def read(text: str) -> float:
        seconds = read_duration(text)
        if seconds < LEAST_LIMIT_S:
            raise InvalidRequest(
                f"{option} is '{text}', but must be more than 0; leave it out for the server's "
                f"default, 7 days unless configured, or write up to {LONGEST_S // 86_400}d"
            )
        return seconds

    return read


def seconds_of(text: str, plain: str = "m") -> float | None:
    """Seconds, or None if the text is not a duration."""
    word = text.strip().lower().replace(" ", "")
    if _matched(_PLAIN, word):
        return float(word) * UNITS_S[plain]
    if match := _matched(_CLOCK, word):
        days, hours, minutes, seconds = match.groups()
        if seconds is None and days is None:
            return None  # 10:30 is ambiguous
        return int(days or 0) * 86_400 + int(hours) * 3_600 + int(minutes) * 60 + int(seconds or 0)
    if match := _matched(_DAYS, word):
        return int(match[1]) * 86_400 + int(match[2]) * 3_600
    parts = re.findall(_PARTS, word, re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        return None
    return sum(float(number) * UNITS_S[unit[0]] for number, unit in parts)


def size_mb(option: str) -> Callable[[str], int]:
    """A parser of MiB: `40G`, `512M`, `1.5T`; a plain number is MiB."""

    def read(text: str) -> int:
        match = _matched(_SIZE, text.strip().lower())
        if match is None:
            raise InvalidRequest(f"{option} is '{text}'; write a size such as 40G, 512M or 1.5T")
        # Rounded up, so that the job gets at least what it requests.
        return -int(-float(match[1]) * SIZES_MB[match[2]] // 1)

    return read


def number(option: str, *, least: float = 0) -> Callable[[str], float]:
    """A parser of numbers such as 2 or 0.5; integers stay integers."""

    def read(text: str) -> float:
        word = text.strip()
        if not _matched(_PLAIN, word) or float(word) < least:
            raise InvalidRequest(f"{option} is '{text}'; write a number such as 2 or 0.5")
        return float(word) if "." in word and float(word) != int(float(word)) else int(float(word))

    return read


def whole(option: str, *, least: int = 0) -> Callable[[str], int]:
    """A parser of whole numbers."""

    def read(text: str) -> int:
        word = text.strip()
        if not (word.isascii() and word.isdigit()) or int(word) < least:
            raise InvalidRequest(f"{option} is '{text}'; write a whole number of at least {least}")
        return int(word)

    return read


def positive(option: str) -> Callable[[str], int]:
    """A parser of whole numbers of at least 1."""
    return whole(option, least=1)


def text(option: str) -> Callable[[str], str]:
    """A parser of text that rejects an empty one, as an unset variable gives it."""

    def read(word: str) -> str:
        if not word.strip():
            raise InvalidRequest(
                f"{option} is empty; is a variable not set? Otherwise leave it out"
            )
        return word

    return read


def moment(option: str, *, now: float | None = None) -> Callable[[str], float]:
    """A parser of times: `fri 18:00`, `tomorrow 9am`, `18:00`, `+2h`, `2026-01-31T18:00`, `now`."""

    def read(text: str) -> float:
        from gpu_scheduler.cli.text.dates import seconds_at

        return seconds_at(text, option, now)

    return read


def clock_text(seconds: float) -> str:
    """`1:02`, `2:03:04` or `1-02:03:04`."""
    whole_s = max(0, int(seconds))
    minutes, second = divmod(whole_s, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min` or `2 d 5 h`."""
    if seconds < 90:
        return f"{round(seconds)} s"
    if seconds < 5_400:
        return f"{round(seconds / 60)} min"
    if seconds < 2 * 86_400:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3_600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def size_text(megabytes: float) -> str:
    """`512 MB` or `40 GB`."""
    if megabytes >= 1024:
        gigabytes = megabytes / 1024
        return f"{gigabytes:.0f} GB" if gigabytes == int(gigabytes) else f"{gigabytes:.1f} GB"
    return f"{megabytes:.0f} MB"
