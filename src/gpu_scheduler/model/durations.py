"""Durations as users write them: text in, seconds out.

| written | means |
|---|---|
| 90s 90m 2h 1d 1w, 1d12h, 1.5h | a sum of units |
| 90 min, 2 hours, 1 day 12 hours | the same in words |
| HH:MM:SS, D-HH:MM:SS, D-HH:MM, D-HH | as with Slurm |
| a plain number | minutes or seconds, depending on the caller |
"""

from __future__ import annotations

import re

UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PARTS = (
    r"(\d+(?:\.\d+)?)"
    r"(weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
)
_CLOCK = r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]?\d)(?::([0-5]?\d))?"
_DAYS = r"(\d{1,4})-(\d{1,2})"
_PLAIN = r"\d+(?:\.\d+)?"


def matched(pattern: str, text: str) -> re.Match[str] | None:
    """Compiled at the first use, because most commands parse no durations."""
    return re.fullmatch(pattern, text, re.ASCII)


def seconds_of(text: str, plain: str = "m") -> float | None:
    """Seconds, or None if the text is not a duration."""
    word = text.strip().lower().replace(" ", "")
    if matched(_PLAIN, word):
        return float(word) * UNITS_S[plain]
    if match := matched(_CLOCK, word):
        days, hours, minutes, seconds = match.groups()
        if seconds is None and days is None:
            return None  # 10:30 is ambiguous
        return int(days or 0) * 86_400 + int(hours) * 3_600 + int(minutes) * 60 + int(seconds or 0)
    if match := matched(_DAYS, word):
        return int(match[1]) * 86_400 + int(match[2]) * 3_600
    parts = re.findall(_PARTS, word, re.ASCII)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        return None
    return sum(float(number) * UNITS_S[unit[0]] for number, unit in parts)
