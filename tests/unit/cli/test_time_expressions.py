"""Parsing and display of time expressions."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from gpu_scheduler.cli.text.dates import local_text, localised, past_moment, seconds_at
from gpu_scheduler.model.errors import InvalidRequest

NOW = datetime(2026, 11, 18, 15, 30, 20, tzinfo=UTC)
"""A Wednesday."""


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def read(text: str) -> str:
    moment = datetime.fromtimestamp(seconds_at(text, "--start", NOW.timestamp()), UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("now", "2026-11-18 15:30:20"),
        ("+2h", "2026-11-18 17:30:20"),
        ("in 2 hours", "2026-11-18 17:30:20"),
        ("now+1d", "2026-11-19 15:30:20"),
        ("18:00", "2026-11-18 18:00:00"),
        ("9:05", "2026-11-19 09:05:00"),
        ("6pm", "2026-11-18 18:00:00"),
        ("12am", "2026-11-19 00:00:00"),
        ("9am", "2026-11-19 09:00:00"),
        ("today 23:00", "2026-11-18 23:00:00"),
        ("tomorrow", "2026-11-19 00:00:00"),
        ("Tomorrow 9am", "2026-11-19 09:00:00"),
        ("tomorrow at 9:30pm", "2026-11-19 21:30:00"),
        ("fri 18:00", "2026-11-20 18:00:00"),
        ("Friday", "2026-11-20 00:00:00"),
        ("wed 18:00", "2026-11-18 18:00:00"),
        ("wed 9:00", "2026-11-25 09:00:00"),
        ("tue", "2026-11-24 00:00:00"),
        ("2026-12-01", "2026-12-01 00:00:00"),
        ("2026-12-01 18:00", "2026-12-01 18:00:00"),
        ("2026-12-01T18:00:00+01:00", "2026-12-01 17:00:00"),
    ],
)
def test_time_expressions_are_parsed(written: str, meant: str) -> None:
    assert read(written) == meant


@pytest.mark.parametrize(
    "written",
    ["", "someday", "fr 18:00", "fri 25:00", "13pm", "0am", "18", "fri 18", "+x", "now-1"],
)
def test_invalid_time_expression_is_rejected_with_valid_forms(written: str) -> None:
    with pytest.raises(InvalidRequest, match=r"tomorrow 9am, fri 18:00 or 2026-01-31T18:00"):
        read(written)


def test_days_follow_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    before = datetime(2026, 10, 24, 12, 0, tzinfo=UTC).timestamp()
    moment = datetime.fromtimestamp(seconds_at("tomorrow 18:00", "x", before), UTC)
    assert f"{moment:%d %H:%M}" == "25 17:00"


def test_times_are_shown_as_short_as_unambiguous() -> None:
    def shown(day: int, hour: int) -> str:
        return local_text(datetime(2026, 11, day, hour, 0, tzinfo=UTC), NOW)

    assert [shown(18, 20), shown(20, 18), shown(30, 9), shown(17, 9)] == [
        "20:00",
        "Fri 18:00",
        "2026-11-30 09:00",
        "2026-11-17 09:00",
    ]


def test_times_in_sentence_are_converted_to_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert localised("until 2031-01-01 10:00 UTC (res-1)") == "until 2031-01-01 19:00 (res-1)"


@pytest.mark.parametrize(
    ("written", "days_ago"),
    [("7d", 7), ("1", 1), ("48h", 2)],
    ids=["days", "plain", "hours"],
)
def test_duration_means_time_ago(written: str, days_ago: float) -> None:
    before = time.time()
    found = datetime.fromisoformat(past_moment(written, "--since") or "").timestamp()
    assert before - days_ago * 86_400 <= found <= time.time() - days_ago * 86_400


def test_age_may_be_written_as_for_sacct() -> None:
    found = datetime.fromisoformat(past_moment("now-7days", "--since") or "").timestamp()
    assert time.time() - found == pytest.approx(7 * 86_400, abs=3600)


def test_past_day_starts_at_midnight() -> None:
    assert past_moment("2026-11-16", "--since") == "2026-11-16T00:00:00+00:00"
    today = datetime.fromisoformat(past_moment("today", "--since") or "")
    yesterday = datetime.fromisoformat(past_moment("yesterday", "--since") or "")
    assert (today - yesterday).days == 1
    assert (today.hour, today.minute) == (0, 0)
    assert past_moment(None, "--since") is None


@pytest.mark.parametrize("written", ["", "soon", "18:00", "+2h"])
def test_invalid_past_time_error_names_option(written: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--until is '{re.escape(written)}'; write how long"):
        past_moment(written, "--until")
