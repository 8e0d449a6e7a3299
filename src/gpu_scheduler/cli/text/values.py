"""Durations, sizes, numbers and texts as users write them, to seconds and MiB, and back.

An invalid value raises `InvalidRequest`, which argparse does not catch.
"""

from __future__ import annotations

from gpu_scheduler.model.durations import matched, seconds_of
from gpu_scheduler.model.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_S = 3_650 * 86_400
LEAST_LIMIT_S = 0.001
SIZES_MB = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}
_TWO_MEANINGS = r"(\d{1,4}):([0-5]?\d)"
_SIZE = r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?"
_PLAIN = r"\d+(?:\.\d+)?"


def duration(option: str, *, plain: str = "m") -> Callable[[str], float]:
    """A parser of seconds; a plain number is in the given unit."""

    def read(text: str) -> float:
        seconds = seconds_of(text, plain)
        if seconds is None and (match := matched(_TWO_MEANINGS, text.strip())):
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


def size_mb(option: str) -> Callable[[str], int]:
    """A parser of MiB: `40G`, `512M`, `1.5T`; a plain number is MiB."""

    def read(text: str) -> int:
        match = matched(_SIZE, text.strip().lower())
        if match is None:
            raise InvalidRequest(f"{option} is '{text}'; write a size such as 40G, 512M or 1.5T")
        # Rounded up, so that the job gets at least what it requests.
        return -int(-float(match[1]) * SIZES_MB[match[2]] // 1)

    return read


def number(option: str, *, least: float = 0) -> Callable[[str], float]:
    """A parser of numbers such as 2 or 0.5; integers stay integers."""

    def read(text: str) -> float:
        word = text.strip()
        if not matched(_PLAIN, word) or float(word) < least:
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


def comma_list(words: str) -> list[str]:
    """The parts of a list that is separated by commas, without spaces around them."""
    return [word.strip() for word in words.split(",") if word.strip()]


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
