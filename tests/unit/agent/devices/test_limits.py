"""Hanging and failing drivers: deadline and circuit breaker."""

import threading

import pytest

from gpu_scheduler.agent.devices.discovery import TimeLimitedSource
from gpu_scheduler.agent.devices.monitor import Breaker, BreakerState
from gpu_scheduler.agent.devices.nvml import NvmlSource
from gpu_scheduler.agent.devices.source import DevicesUnreadable, NodeInventory, Reading
from tests.fakes.nvml import FakeNvml


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Flaky:
    """A source that fails while `error` is set, and blocks while `gate` is closed."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reads = 0
        self.gate = threading.Event()
        self.gate.set()

    def find(self) -> NodeInventory:
        return NodeInventory(cpu_milli=1, memory_mb=1)

    def read(self) -> list[Reading]:
        self.reads += 1
        self.gate.wait()
        if self.error is not None:
            raise self.error
        return [Reading(index=0, temperature_c=self.reads)]

    def close(self) -> None:
        self.gate.wait()


def wait_for_stuck_calls() -> None:
    for thread in threading.enumerate():
        if thread.name == "devices":
            thread.join(30)


def test_call_in_time_is_passed_through() -> None:
    bounded = TimeLimitedSource(Flaky(), deadline_s=30)
    assert bounded.find().cpu_milli == 1
    assert bounded.read()[0].temperature_c == 1
    bounded.close()


def test_discovery_has_longer_timeout_than_reading() -> None:
    source = Flaky()
    source.gate.clear()
    bounded = TimeLimitedSource(source, deadline_s=0.01, find_deadline_s=30)
    assert bounded.find().cpu_milli == 1
    with pytest.raises(DevicesUnreadable, match=r"within 0\.01 s"):
        bounded.read()
    source.gate.set()
    wait_for_stuck_calls()


def test_source_errors_are_passed_through() -> None:
    source = Flaky()
    source.error = DevicesUnreadable("no")
    with pytest.raises(DevicesUnreadable, match="no"):
        TimeLimitedSource(source, deadline_s=30).read()


def test_hanging_call_is_abandoned_and_not_repeated_until_it_returns() -> None:
    clock, source = Clock(), Flaky()
    bounded = TimeLimitedSource(source, deadline_s=1, clock=clock)
    source.gate.clear()
    with pytest.raises(DevicesUnreadable, match="did not answer within 1 s"):
        bounded.read()
    clock.now += 40
    for _ in range(3):
        with pytest.raises(DevicesUnreadable, match="has not answered for 40 s"):
            bounded.read()
    bounded.close()
    assert source.reads == 1
    assert [one.name for one in threading.enumerate()].count("devices") == 1
    source.gate.set()
    wait_for_stuck_calls()
    assert bounded.read()[0].temperature_c == 2


def test_hanging_driver_does_not_block_reader(fake_nvml: FakeNvml) -> None:
    bounded = TimeLimitedSource(NvmlSource(), deadline_s=60)
    bounded.find()
    impatient = TimeLimitedSource(bounded, deadline_s=2)
    fake_nvml.hang("nvmlDeviceGetPowerUsage")
    with pytest.raises(DevicesUnreadable, match="may be hanging"):
        impatient.read()
    fake_nvml.mend()
    wait_for_stuck_calls()
    assert len(impatient.read()) == 8
    impatient.close()


def a_breaker(source: Flaky, clock: Clock) -> Breaker:
    return Breaker(source, failures=3, backoff_s=10, most_backoff_s=30, clock=clock)


def test_closed_breaker_reads_every_time() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    held = [breaker.read() for _ in range(3)]
    assert [h.readings[0].temperature_c for h in held] == [1, 2, 3]
    assert not any(h.stale or h.problem for h in held)
    assert breaker.state is BreakerState.CLOSED


def test_failure_returns_last_readings_with_age() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    breaker.read()
    source.error = DevicesUnreadable("driver asleep")
    clock.now += 5
    held = breaker.read()
    assert held.stale
    assert held.readings[0].temperature_c == 1
    assert held.problem == "GPUs cannot be read: driver asleep; the last readings are 5 s old"
    assert breaker.state is BreakerState.CLOSED


def test_consecutive_failures_open_breaker() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    source.error = DevicesUnreadable("no")
    for _ in range(3):
        breaker.read()
    assert breaker.state is BreakerState.OPEN
    held = breaker.read()
    assert source.reads == 3
    assert held.readings == ()
    assert held.problem == "GPUs cannot be read: no; next try in 10 s"


def test_non_consecutive_failures_do_not_open_breaker() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    for error in (DevicesUnreadable("no"), DevicesUnreadable("no"), None) * 3:
        source.error = error
        breaker.read()
        assert breaker.state is BreakerState.CLOSED


def test_half_open_breaker_tries_once_and_doubles_pause_up_to_limit() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    source.error = DevicesUnreadable("no")
    for _ in range(3):
        breaker.read()
    for pause, following in ((10, 20), (20, 30), (30, 30)):
        clock.now += pause
        assert breaker.state is BreakerState.HALF_OPEN
        reads = source.reads
        assert breaker.read().problem.endswith(f"next try in {following} s")
        assert source.reads == reads + 1
        assert breaker.state is BreakerState.OPEN


def test_breaker_closes_when_source_recovers() -> None:
    source, clock = Flaky(), Clock()
    breaker = a_breaker(source, clock)
    source.error = DevicesUnreadable("no")
    for _ in range(3):
        breaker.read()
    source.error = None
    clock.now += 10
    held = breaker.read()
    assert not held.stale
    assert held.problem == ""
    assert breaker.state is BreakerState.CLOSED
    source.error = DevicesUnreadable("no")
    breaker.read()
    assert breaker.state is BreakerState.CLOSED


def test_programming_error_is_not_hidden() -> None:
    source = Flaky()
    source.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        a_breaker(source, Clock()).read()
