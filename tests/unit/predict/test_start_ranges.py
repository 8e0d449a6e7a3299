"""Ranges of expected starts follow the errors of earlier ones."""

from random import Random

from gpu_scheduler.predict.start_ranges import KEPT, StartRange, StartRanges
from tests.builders import HOUR, MINUTE, SECOND


def learnt(*waits: tuple[int, int], basis: str = "forecast") -> StartRanges:
    """Ranges after jobs with these forecast and real waits."""
    ranges = StartRanges()
    for number, (forecast_ms, wait_ms) in enumerate(waits):
        ranges.begin(f"job-{number}", basis, forecast_ms, 0)
        ranges.end(f"job-{number}", wait_ms)
    return ranges


def test_nothing_learnt_keeps_the_forecast_as_likely_within_a_wide_range() -> None:
    earliest_ms, likely_ms, latest_ms = StartRanges().range_of("forecast", HOUR, 0)
    assert likely_ms == HOUR
    assert earliest_ms < HOUR / 2
    assert latest_ms > 2 * HOUR


def test_range_follows_the_errors_of_its_horizon_and_basis() -> None:
    ranges = learnt(*[(HOUR, 2 * HOUR)] * 200, *[(MINUTE, MINUTE)] * 200)
    earliest_ms, likely_ms, latest_ms = ranges.range_of("forecast", HOUR, 3 * HOUR)
    assert 1.9 * HOUR < earliest_ms <= likely_ms <= latest_ms < 2.3 * HOUR
    assert ranges.range_of("rough", HOUR, 3 * HOUR) == StartRanges().range_of("rough", HOUR, 0)


def test_four_in_five_starts_fall_into_the_range() -> None:
    random = Random(1)
    ranges, within = StartRanges(), 0
    for number in range(2_000):
        forecast_ms = round(HOUR * random.lognormvariate(0, 1))
        wait_ms = 2 * MINUTE + round(forecast_ms * random.lognormvariate(0.3, 0.8))
        earliest_ms, _, latest_ms = ranges.range_of("forecast", forecast_ms, 0)
        within += earliest_ms <= wait_ms <= latest_ms
        ranges.begin(str(number), "forecast", forecast_ms, 0)
        ranges.end(str(number), wait_ms)
    assert 0.75 < within / 2_000 < 0.88


def test_jobs_that_still_wait_move_the_latest_start() -> None:
    ranges = learnt(*[(HOUR, HOUR)] * 20)
    before = ranges.range_of("forecast", HOUR, HOUR)
    for number in range(20):
        ranges.begin(f"late-{number}", "forecast", HOUR, 0)
    after = ranges.range_of("forecast", HOUR, 30 * HOUR)
    assert after.latest_ms > 2 * before.latest_ms
    for number in range(20):
        ranges.withdraw(f"late-{number}")
    assert ranges.range_of("forecast", HOUR, 31 * HOUR) == before


def test_short_waits_are_not_learnt_from() -> None:
    ranges = learnt(*[(HOUR, 5 * SECOND)] * 100)
    assert ranges.range_of("forecast", HOUR, HOUR).likely_ms == HOUR


def test_memory_is_bounded() -> None:
    ranges = learnt(*[(HOUR, HOUR)] * (KEPT + 5))
    assert [len(kept) for kept in ranges._ended.values()] == [KEPT]


def test_same_history_gives_the_same_ranges() -> None:
    waits = [(number * MINUTE, number * number * MINUTE) for number in range(1, 40)]

    def found() -> list[StartRange]:
        ranges = learnt(*waits)
        return [ranges.range_of("forecast", hours * HOUR, HOUR) for hours in range(1, 20)]

    assert found() == found()


def test_good_forecasts_give_narrower_ranges_than_forecasts_that_say_nothing() -> None:
    random = Random(2)
    forecasts = [round(HOUR * random.lognormvariate(0, 1.5)) for _ in range(800)]
    waits = [2 * MINUTE + round(HOUR * random.lognormvariate(0, 0.5)) for _ in forecasts]
    good = learnt(*[(forecast_ms, MINUTE + forecast_ms) for forecast_ms in forecasts])
    poor = learnt(*zip(forecasts, waits, strict=True))
    for forecast_ms in (HOUR // 3, 3 * HOUR):
        earliest_ms, likely_ms, latest_ms = good.range_of("forecast", forecast_ms, 0)
        assert 0.5 * forecast_ms < earliest_ms <= likely_ms <= latest_ms < 2 * forecast_ms
        assert HOUR / 2 < poor.range_of("forecast", forecast_ms, 0).likely_ms < 2 * HOUR
