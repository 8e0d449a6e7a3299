"""Numbers as text for people: durations, counts, percentages. JSON output does not use these."""

from __future__ import annotations

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def duration_text(seconds: float) -> str:
    """Two units at most, such as `42s`, `5m 07s`, `4h 05m` or `2d 03h`."""
    if seconds < 0:
        return f"-{duration_text(-seconds)}"
    if 0 < seconds < 9.95:
        return f"{seconds:.1f}".rstrip("0").rstrip(".") + "s"
    # Round first, then split: 59.7 s is a minute, not "60s".
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m {whole % MINUTE:02d}s"
    minutes = round(seconds / MINUTE)
    if minutes < DAY // MINUTE:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / HOUR)
    return f"{hours // 24}d {hours % 24:02d}h"


def count_text(number: float) -> str:
    """With thousands separators: `12,345`; one decimal for fractions below 10."""
    if number and abs(number) < 10 and number != round(number):
        return f"{number:.1f}"
    return f"{round(number):,}"


def percent_text(percent: float) -> str:
    """One decimal: `83.4%`."""
    return f"{percent:.1f}%"


def ratio_text(ratio: float) -> str:
    """Three significant digits, for slowdowns: `1.04`, `12.3`, `1,240`."""
    if ratio < 9.995:
        return f"{ratio:.2f}"
    if ratio < 99.95:
        return f"{ratio:.1f}"
    return f"{ratio:,.0f}"


def index_text(index: float) -> str:
    """Three decimals, for an index between 0 and 1."""
    return f"{index:.3f}"


def gpus_text(gpu_milli: int) -> str:
    """GPUs with as many decimals as they need: `8`, `0.5`, `1,024`."""
    return f"{gpu_milli / 1000:,.3f}".rstrip("0").rstrip(".")
