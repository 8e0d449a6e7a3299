"""Parsing of report periods."""

from datetime import UTC, datetime

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.wire.times import HOUR_MS, read_span, read_zone

NOW = int(datetime(2026, 11, 18, 15, 30, tzinfo=UTC).timestamp()) * 1000
"""A Wednesday."""


def ends(text: str, zone: str = "UTC") -> tuple[str, str]:
    span = read_span(text, NOW, read_zone(zone))
    return tuple(  # type: ignore[return-value]
        datetime.fromtimestamp(at_ms / 1000, read_zone(zone)).strftime("%Y-%m-%d %H:%M")
        for at_ms in (span.from_ms, span.before_ms)
    )


@pytest.mark.parametrize(
    ("text", "first", "past"),
    [
        ("today", "2026-11-18", "2026-11-19"),
        ("Yesterday", "2026-11-17", "2026-11-18"),
        ("week", "2026-11-16", "2026-11-23"),
        ("month", "2026-11-01", "2026-12-01"),
        ("year", "2026-01-01", "2027-01-01"),
        ("2026-12", "2026-12-01", "2027-01-01"),
        ("2024-02-29", "2024-02-29", "2024-03-01"),
        ("2026-10-01..2026-10-15", "2026-10-01", "2026-10-16"),
        ("2026-09..2026-10", "2026-09-01", "2026-11-01"),
    ],
)
def test_period_begins_and_ends_at_midnight(text: str, first: str, past: str) -> None:
    assert ends(text) == (f"{first} 00:00", f"{past} 00:00")
    assert ends(text, "Asia/Tokyo")[0].endswith("00:00")


def test_month_with_clock_change_keeps_its_midnights() -> None:
    span = read_span("2026-10", NOW, read_zone("Europe/Berlin"))
    assert ends("2026-10", "Europe/Berlin") == ("2026-10-01 00:00", "2026-11-01 00:00")
    lengths = {after - before for before, after in zip(span.edges, span.edges[1:], strict=False)}
    assert lengths == {24 * HOUR_MS, 25 * HOUR_MS}
    assert len(span.edges) == 32


def test_day_is_sliced_by_hours_and_slices_of_century_are_bounded() -> None:
    assert len(read_span("today", NOW, UTC).edges) == 25
    assert len(read_span("1990-01..2026-12", NOW, UTC).edges) <= 402


@pytest.mark.parametrize(
    "text", ["", "lunch", "2026-13", "2026-02-30", "2026-10-02..2026-10-01", "..", "9999-12", "1-1"]
)
def test_invalid_period_is_rejected_with_valid_forms(text: str) -> None:
    with pytest.raises(InvalidRequest, match="period"):
        read_span(text, NOW, UTC)


@pytest.mark.parametrize("name", ["Mars/Olympus", "../etc/passwd", "/etc/passwd", "\0"])
def test_invalid_time_zone_is_rejected(name: str) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        read_zone(name)
