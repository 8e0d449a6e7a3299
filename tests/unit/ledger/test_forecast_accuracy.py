"""When a start forecast counts as kept."""

import pytest

from gpu_scheduler.ledger.report import forecast_accuracy, tolerance_ms

MINUTE = 60_000
H = 60 * MINUTE


@pytest.mark.parametrize(
    ("promised_ms", "start_ms", "kept"),
    [
        (H, H, True),
        (H, H + 10 * MINUTE, True),
        (H, H + 10 * MINUTE + 1, False),
        (H, H - 10 * MINUTE, True),
        (H, H - 10 * MINUTE - 1, False),
        (10 * H, 11 * H, True),
        (10 * H, 11 * H + 1, False),
        (0, 10 * MINUTE, True),
    ],
)
def test_forecast_within_tenth_of_wait_or_ten_minutes_is_kept(
    promised_ms: int, start_ms: int, kept: bool
) -> None:
    assert forecast_accuracy([("forecast", 0, promised_ms, start_ms)])[0].kept == int(kept)


def test_forecasts_are_judged_together_and_by_basis() -> None:
    found = forecast_accuracy(
        [("forecast", 0, H, H), ("forecast", 0, H, 3 * H), ("rough", 0, 5 * H, H)]
    )
    assert [(one.basis, one.judged, one.kept, one.late, one.early) for one in found] == [
        ("all", 3, 1, 1, 1),
        ("forecast", 2, 1, 1, 0),
        ("rough", 1, 0, 0, 1),
    ]
    assert found[0].kept_percent == 33.3
    assert (found[0].median_error_ms, found[0].p90_error_ms) == (2 * H, 4 * H)


def test_no_forecasts_give_no_accuracy() -> None:
    (only,) = forecast_accuracy([])
    assert (only.judged, only.kept_percent) == (0, None)
    assert tolerance_ms(0, H) == 10 * MINUTE
