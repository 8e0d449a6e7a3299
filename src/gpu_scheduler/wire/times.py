"""Conversion of times: ISO 8601 in UTC or seconds since 1970 outside, milliseconds inside."""

from __future__ import annotations

from datetime import UTC, datetime

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
