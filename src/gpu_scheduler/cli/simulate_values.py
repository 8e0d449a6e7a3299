"""Words of the command line to values: numbers, durations, lists, weights.

Every kind of option is a function from its flag to a reader, so that a refusal can name the flag.
A refusal is an `InvalidRequest`; argparse lets it pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from gpu_scheduler.model.errors import InvalidRequest

UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
LONGEST_S = 3_650 * UNITS_S["d"]
LARGEST = 10**9
MOST_SEEDS = 1_000
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
_PLAIN = re.compile(_NUMBER, re.ASCII)
_CLOCK = re.compile(r"(\d{1,6}):([0-5]\d):([0-5]\d)", re.ASCII)
_WITH_UNITS = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in UNITS_S), re.ASCII)


def whole(flag: str, *, least: int = 1) -> Callable[[str], int]:
    """A whole number that is not below `least`."""

    def read(text: str) -> int:
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and least <= int(digits[:12]) <= LARGEST):
            raise _refused(flag, text, f"a whole number from {least} to {LARGEST}")
        return int(digits)

    return read


def decimal(flag: str) -> Callable[[str], float]:
    """A number of 0 or more."""

    def read(text: str) -> float:
        if not _PLAIN.fullmatch(text.strip()):
            raise _refused(flag, text, "a number of 0 or more such as 2 or 0.5")
        return float(text)

    return read


def milli(flag: str) -> Callable[[str], int]:
    """A number of 0 or more, in thousandths."""
    number = decimal(flag)
    return lambda text: round(number(text) * 1000)


def duration_s(flag: str, *, least: int = 0) -> Callable[[str], int]:
    """A duration in whole seconds."""
    read_ms = duration_ms(flag, least_ms=least * 1000)
    return lambda text: round(read_ms(text) / 1000)


def duration_ms(flag: str, *, least_ms: int = 0) -> Callable[[str], int]:
    """`90` (seconds), `90m`, `1h30m`, `1.5d` or `02:30:00`, in milliseconds."""

    def read(text: str) -> int:
        seconds = _seconds(text.strip().lower())
        if seconds is None or seconds > LONGEST_S or seconds * 1000 < least_ms:
            above = f", at least {least_ms / 1000:g} s" if least_ms else ""
            raise _refused(flag, text, f"a time such as 90, 90m, 2h, 1h30m, 1d or 02:30:00{above}")
        return round(seconds * 1000)

    return read


def one_of(flag: str, allowed: Iterable[str]) -> Callable[[str], str]:
    """One word of a list, with a suggestion when it is not among them."""
    words = list(allowed)

    def read(text: str) -> str:
        if text not in words:
            close = get_close_matches(text, words, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ";"
            raise InvalidRequest(f"{flag} is '{text}'{hint} expected one of {', '.join(words)}")
        return text

    return read


def names(flag: str) -> Callable[[str], list[str]]:
    """A list of words: `fifo,fair`."""

    def read(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if not all(found):
            raise _refused(flag, text, "names such as fifo or fifo,fair")
        return found

    return read


def seeds(flag: str) -> Callable[[str], list[int]]:
    """Whole numbers and ranges: `42-51` or `1,3,7-9`."""

    def read(text: str) -> list[int]:
        found: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < first + MOST_SEEDS:
                raise _refused(flag, text, f"seeds such as 42-51 or 1,3,7-9, at most {MOST_SEEDS}")
            found.extend(range(first, last + 1))
        return list(dict.fromkeys(found))

    return read


def weights(flag: str, example: str) -> Callable[[str], tuple[tuple[str, float], ...]]:
    """Pairs of a name and a weight: `1:70,8:30`."""
    number = decimal(flag)

    def read(text: str) -> tuple[tuple[str, float], ...]:
        found: dict[str, float] = {}
        for part in text.split(","):
            name, colon, weight = (piece.strip() for piece in part.partition(":"))
            if not (name and colon and _PLAIN.fullmatch(weight)) or name in found:
                raise _refused(flag, text, f"different names with weights such as {example}")
            found[name] = number(weight)
        return tuple(found.items())

    return read


def _seconds(text: str) -> float | None:
    if _PLAIN.fullmatch(text):
        return float(text)
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = map(int, clock.groups())
        return hours * 3600 + minutes * 60 + seconds
    parts = _WITH_UNITS.fullmatch(text.replace(" ", ""))
    if parts is None or not any(parts.groups()):
        return None
    return sum(
        float(amount) * unit_s
        for amount, unit_s in zip(parts.groups(), UNITS_S.values(), strict=True)
        if amount
    )


def _refused(flag: str, text: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{flag} is {text!r}; expected {expected}")
