"""Where the ticks of an axis stand and what they are called."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gpu_scheduler.simulator.wording import DAY, HOUR, MINUTE


class Tick(NamedTuple):
    """A place on an axis (0 = beginning, 1 = end) and its label."""

    position: float
    label: str


_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30),
    *(step * MINUTE for step in (1, 2, 5, 10, 15, 30)),
    *(step * HOUR for step in (1, 2, 3, 6, 12)),
    *(step * DAY for step in (1, 2, 7, 14, 28, 56, 91, 182, 365)),
)
_LOG_STEPS = (
    *(1, 10, MINUTE, 10 * MINUTE),
    *(HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY, 3650 * DAY),
)


def number_steps(top: float, most: int = 5) -> list[float]:
    """Round numbers from 0 up to `top`, in steps of 1, 2 or 5 times a power of ten."""
    if top <= 0:
        return [0.0]
    step = 10 ** math.floor(math.log10(top / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if top / (step * factor) <= most)
    return [step * place for place in range(int(top / step + 1e-9) + 1)]


def number_label(number: float) -> str:
    """Short enough to stand beside an axis: `0.05`, `1,200`, `15k`, `1.5M`."""
    if number >= 1_000_000:
        return f"{number / 1_000_000:g}M"
    if number >= 10_000:
        return f"{number / 1000:g}k"
    return f"{number:,g}"


def time_ticks(span_s: float, most: int = 8) -> list[Tick]:
    """Whole seconds, minutes, hours, days or weeks since the beginning."""
    step = next((step for step in _TIME_STEPS if span_s / step < most), _TIME_STEPS[-1])
    while span_s / step >= most:
        step *= 2
    return [
        Tick(place * step / span_s, time_label(place * step))
        for place in range(int(span_s / step) + 1)
    ]


def log_time_ticks(low_s: float, high_s: float) -> list[Tick]:
    """The times that people know, from a second to years, on a logarithmic axis."""
    width = math.log(high_s / low_s)
    return [
        Tick(math.log(step / low_s) / width, time_label(step))
        for step in _LOG_STEPS
        if low_s <= step <= high_s
    ]


def log_steps(low: float, high: float, count: int) -> Sequence[float]:
    """Numbers that stand evenly on a logarithmic axis, both ends included."""
    factor = (high / low) ** (1 / (count - 1))
    return [*(low * factor**place for place in range(count - 1)), high]


def time_label(seconds: float) -> str:
    """The shortest exact name: `0`, `30s`, `5m`, `12h`, `1d 12h`, `3d`."""
    rest = round(seconds)
    parts = []
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (1, "s")):
        if rest >= unit:
            parts.append(f"{rest // unit}{name}")
            rest %= unit
    return " ".join(parts) or "0"
