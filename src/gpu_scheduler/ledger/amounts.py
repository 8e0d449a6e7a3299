"""Hours out of milliseconds, exactly.

Integers in, integers or decimal text out; no float, so that a bill adds up on every machine.
"""

from __future__ import annotations

HOUR_MS = 3_600_000
GPU_HOUR_MILLI_MS = 1000 * HOUR_MS
"""One GPU for one hour, in milli-GPU-ms."""
_MILLI_HOUR_MILLI_MS = GPU_HOUR_MILLI_MS // 1000


def half_up(numerator: int, denominator: int) -> int:
    """The quotient of two amounts, rounded once; a half goes up."""
    return (2 * numerator + denominator) // (2 * denominator)


def decimal_text(value: int, places: int) -> str:
    """Write an integer count of 10**-places as a decimal: (12500, 3) is 12.5."""
    whole, rest = divmod(abs(value), 10**places)
    digits = f"{rest:0{places}d}".rstrip("0")
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"


def gpu_hours(gpu_milli_ms: int, *, up: bool = False) -> str:
    """GPU time in hours with three places: cut off, or with `up` never less than it is.

    Needs are written up and limits down, so that a refusal never seems to contradict itself.
    """
    if up:
        return decimal_text(-(-gpu_milli_ms // _MILLI_HOUR_MILLI_MS), 3)
    return decimal_text(gpu_milli_ms // _MILLI_HOUR_MILLI_MS, 3)
