"""Parsing of timestamps."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.wire.times import LATEST_MS, read_time


def test_timestamp_is_iso_text_or_seconds() -> None:
    assert read_time("2026-01-31T18:00:00Z", "begin") == 1_769_882_400_000
    assert read_time("2026-01-31T18:00:00", "begin") == 1_769_882_400_000
    assert read_time(1_769_882_400.5, "begin") == 1_769_882_400_500
    assert read_time(LATEST_MS / 1000, "begin") == LATEST_MS


@pytest.mark.parametrize(
    "value",
    [-1, -0.001, LATEST_MS, 5.6e307, float("inf"), float("nan"), "0001-01-01T00:00:00+23:59"],
)
def test_impossible_date_is_rejected(value: str | float) -> None:
    with pytest.raises(InvalidRequest, match="between the years 1970 and 9999"):
        read_time(value, "deadline")
