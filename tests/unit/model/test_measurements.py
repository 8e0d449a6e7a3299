"""Sums over readings."""

from gpu_scheduler.model.measurements import Measure


def test_missing_measure_is_unknown() -> None:
    nothing = Measure()
    assert nothing.mean_percent is None
    assert nothing.energy_wh is None


def test_mean_covers_measured_time() -> None:
    assert Measure(gpu_ms=2_000, busy_percent_ms=100_000).mean_percent == 50


def test_one_kilowatt_for_one_hour_is_one_kilowatt_hour() -> None:
    hour = Measure(power_ms=3_600_000, energy_uj=1_000_000 * 3_600_000)
    assert hour.energy_wh == 1000


def test_combined_measures_add_up_except_peaks() -> None:
    one = Measure(gpu_ms=1, busy_percent_ms=2, peak_percent=9, power_ms=3, energy_uj=4)
    other = Measure(gpu_ms=10, busy_percent_ms=20, peak_percent=5, power_ms=30, energy_uj=40)
    both = one.plus(Measure(peak_memory_mb=7)).plus(other)
    assert both == Measure(
        gpu_ms=11,
        busy_percent_ms=22,
        peak_percent=9,
        power_ms=33,
        energy_uj=44,
        peak_memory_mb=7,
    )
