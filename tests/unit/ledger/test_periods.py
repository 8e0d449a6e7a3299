"""The integer calendar agrees with the standard library's."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.units import DAY_MS, Period

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def epoch_ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@given(st.datetimes(datetime(1, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_months_and_days_match_calendar(moment: datetime) -> None:
    at_ms = epoch_ms(moment)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    month = day.replace(day=1)
    assert Period.DAY.start_of(at_ms) == epoch_ms(day)
    assert Period.DAY.next_after(at_ms) == epoch_ms(day + timedelta(days=1))
    assert Period.MONTH.start_of(at_ms) == epoch_ms(month)
    following = (month + timedelta(days=32)).replace(day=1)
    assert Period.MONTH.next_after(at_ms) == epoch_ms(following)
    assert Period.DAY.name_of(at_ms) == day.date().isoformat()
    assert Period.MONTH.name_of(at_ms) == day.date().isoformat()[:7]


@pytest.mark.parametrize("year", [1970, 2000, 2024, 2025, 2100])
def test_every_day_of_year_follows_previous_one(year: int) -> None:
    at_ms = epoch_ms(datetime(year, 1, 1, tzinfo=UTC))
    names = set()
    while Period.DAY.name_of(at_ms).startswith(f"{year}-"):
        names.add(Period.DAY.name_of(at_ms))
        at_ms += DAY_MS
    assert len(names) == 365 + (year in {2000, 2024})


@given(st.integers(-(10**14), 10**14), st.sampled_from(Period))
def test_every_time_lies_in_exactly_one_period(at_ms: int, period: Period) -> None:
    start_ms, next_ms = period.start_of(at_ms), period.next_after(at_ms)
    assert start_ms <= at_ms < next_ms
    assert period.start_of(next_ms) == next_ms
    assert period.start_of(next_ms - 1) == start_ms
