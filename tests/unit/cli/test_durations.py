"""Parsing of durations, sizes and numbers."""

from datetime import datetime

import pytest

from gpu_scheduler.cli.text.values import (
    clock_text,
    duration,
    duration_text,
    moment,
    number,
    seconds_of,
    size_mb,
    size_text,
    whole,
)
from gpu_scheduler.model.errors import InvalidRequest

NOW = datetime.fromisoformat("2026-01-31T17:00:00").timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("90m", 5400),
        ("2h", 7200),
        ("1d", 86400),
        ("1d12h", 129600),
        ("1.5h", 5400),
        ("1w", 604800),
        ("1h 30m", 5400),
        ("2 hours", 7200),
        ("90 min", 5400),
        ("1 day 12 hours", 129600),
        ("2Weeks", 1209600),
        ("1hr30mins", 5400),
        ("45 seconds", 45),
        ("02:30:00", 9000),
        ("100:00:00", 360000),
        ("1-12:00:00", 129600),
        ("1-12:30", 131400),
        ("2-6", 194400),
        ("90", 5400),
        ("0.5", 30),
    ],
)
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


def test_ambiguous_duration_error_shows_both_forms() -> None:
    with pytest.raises(InvalidRequest, match="is ambiguous; write 10m30s or 10h30m"):
        duration("--time")("10:30")


def test_plain_number_has_unit_of_option() -> None:
    assert duration("--timeout", plain="s")("90") == 90
    assert duration("--time")("90") == 5400


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "-5m", "5 parsecs", "1:99:00", "9999999d", "h"),
        *("2 hourz", "3 months"),
    ],
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--time is '.*write a time such as 90m"):
        duration("--time")(text)


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        *(("512", 512), ("512M", 512), ("40G", 40960), ("40gb", 40960), ("40GiB", 40960)),
        *(("1.5T", 1572864), ("1k", 1), ("0.5G", 512)),
    ],
)
def test_size_is_parsed(text: str, megabytes: int) -> None:
    assert size_mb("--memory")(text) == megabytes


@pytest.mark.parametrize("text", ["", "G", "-1G", "1X", "1,5G"])
def test_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--memory"):
        size_mb("--memory")(text)


def test_whole_numbers_stay_integers() -> None:
    read = number("--gpus")
    assert [read("2"), read("2.0"), read("0.5")] == [2, 2, 0.5]
    assert isinstance(read("2.0"), int)
    assert whole("--tail", least=1)("3") == 3
    for wrong in ("x", "-1", "1e3", ""):
        with pytest.raises(InvalidRequest):
            read(wrong)
    with pytest.raises(InvalidRequest, match="at least 1"):
        whole("--tail", least=1)("0")


@pytest.mark.parametrize(
    ("text", "ahead_s"),
    [
        ("+2h", 7200),
        ("now+30", 1800),
        ("18:00", 3600),
        ("17:00", 86400),
        ("tomorrow", 7 * 3600),
        ("2026-01-31T18:30", 5400),
    ],
)
def test_timestamp_is_parsed(text: str, ahead_s: float) -> None:
    assert moment("--begin", now=NOW)(text) - NOW == ahead_s


def test_timestamp_may_have_utc_offset() -> None:
    assert moment("--begin")("1970-01-01T00:01:00Z") == 60
    with pytest.raises(InvalidRequest, match="--begin is 'soon'"):
        moment("--begin")("soon")


def test_durations_and_sizes_are_formatted() -> None:
    assert [clock_text(s) for s in (5, 62, 3723, 93784)] == [
        "0:05",
        "1:02",
        "1:02:03",
        "1-02:03:04",
    ]
    assert [duration_text(s) for s in (45, 700, 12000, 7200, 200000, 172800)] == [
        *("45 s", "12 min", "3 h 20 min", "2 h", "2 d 8 h", "2 d"),
    ]
    assert [size_text(m) for m in (512, 40960, 1536)] == ["512 MB", "40 GB", "1.5 GB"]
