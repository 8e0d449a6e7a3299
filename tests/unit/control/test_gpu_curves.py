"""Readings of GPUs during an attempt: the whole attempt is kept, in bounded memory."""

from dataclasses import replace

from gpu_scheduler.control.gpu_curves import (
    ENDED_CURVES_KEPT,
    ENDED_KEPT,
    FIRST_STEP_MS,
    STEPS,
    GpuCurve,
    GpuCurves,
)
from gpu_scheduler.control.messages import DeviceSample


def sample(load: int | None, *, power_mw: int | None = 300_000, celsius: int = 60) -> DeviceSample:
    return DeviceSample(
        index=0,
        load_percent=load,
        memory_used_mb=1000,
        power_mw=power_mw,
        temperature_c=celsius,
    )


def test_samples_of_one_step_are_averaged_and_gaps_stay_empty() -> None:
    curve = GpuCurve(start_ms=0)
    for load, at_ms in ((10, 0), (30, 1_000), (50, 2 * FIRST_STEP_MS)):
        curve.add(sample(load), at_ms)
    assert curve.utilisation_percent.shown() == [20.0, None, 50.0]
    assert curve.power_watts.shown() == [300.0, None, 300.0]


def test_long_attempt_is_kept_from_its_start_in_bounded_memory() -> None:
    curve = GpuCurve(start_ms=0)
    steps = 5 * STEPS
    for step in range(steps):
        curve.add(sample(0 if step < steps // 2 else 100), step * FIRST_STEP_MS)
    shown = curve.utilisation_percent.shown()
    assert curve.step_ms == 8 * FIRST_STEP_MS
    assert len(shown) == steps // 8 <= STEPS
    assert shown == [0.0] * (steps // 16) + [100.0] * (steps // 16)


def test_devices_without_sensors_have_no_values() -> None:
    curve = GpuCurve(start_ms=0)
    curve.add(sample(None, power_mw=None, celsius=0), 0)
    assert curve.utilisation_percent.shown() == [None]
    assert curve.power_watts.shown() == [None]
    assert curve.temperature_c.shown() == [None]


def test_curves_of_ended_attempts_are_kept_until_many_others_have_ended() -> None:
    curves = GpuCurves()
    for number in range(ENDED_KEPT + 1):
        curves.add(f"job-{number}.1", 0, "n0", sample(1), 0)
        curves.end(f"job-{number}.1")
    assert curves.of("job-0.1") == {}
    assert list(curves.of("job-1.1")) == [("n0", 0)]
    assert curves.of("never") == {}


def test_attempts_with_many_gpus_keep_fewer_curves() -> None:
    curves = GpuCurves()
    gpus = ENDED_CURVES_KEPT // 4
    names = [f"job-{number}.1" for number in range(6)]
    for name in names:
        for index in range(gpus):
            curves.add(name, 0, "n0", replace(sample(1), index=index), 0)
        curves.end(name)
    assert [len(curves.of(name)) for name in names] == [0, 0, gpus, gpus, gpus, gpus]


def test_last_attempt_keeps_all_curves() -> None:
    curves = GpuCurves()
    for name, gpus in (("job-1.1", 1), ("job-2.1", ENDED_CURVES_KEPT + 1)):
        for index in range(gpus):
            curves.add(name, 0, "n0", replace(sample(1), index=index), 0)
        curves.end(name)
    assert curves.of("job-1.1") == {}
    assert len(curves.of("job-2.1")) == ENDED_CURVES_KEPT + 1
