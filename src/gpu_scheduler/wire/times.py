"""Times outside are ISO 8601 in UTC, or seconds since 1970; inside they are milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

from gpu_scheduler.model.errors import InvalidRequest

LATEST_MS = 253_402_300_799_000
"""The end of the year 9999, which is as far as calendars here go."""


def read_time(value: str | float, name: str) -> int:
    """Milliseconds since 1970 from ISO text (without an offset: UTC) or from seconds."""
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
    # Before anything is multiplied: seconds may be as large as floats are.
    if not 0 <= seconds <= LATEST_MS / 1000:
        raise InvalidRequest(f"{name} is {value}; it must lie between the years 1970 and 9999")
    return round(seconds * 1000)


def write_time(at_ms: int | None) -> str | None:
    """ISO 8601 in UTC to the millisecond; nothing for a time that is not known."""
    if at_ms is None:
        return None
    moment = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
