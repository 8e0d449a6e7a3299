"""Device readings, and their sums by attempt and by device and hour.

All sums are integers, so their order does not matter. A percentage over time is kept as their
product; energy is power in milliwatts times milliseconds, which is microjoules.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR_MS = 3_600_000
UJ_PER_WH = 3_600 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Measurements on the devices of one or more attempts.

    `gpu_ms` is the time with known utilisation, summed over the devices; `power_ms` that with known
    power. Both are 0 if the devices report neither.
    """

    gpu_ms: int = 0
    busy_percent_ms: int = 0
    peak_percent: int = 0
    power_ms: int = 0
    energy_uj: int = 0
    peak_memory_mb: int = 0

    @property
    def mean_percent(self) -> float | None:
        """The mean utilisation; None if unknown."""
        return self.busy_percent_ms / self.gpu_ms if self.gpu_ms else None

    @property
    def energy_wh(self) -> float | None:
        """Energy in watt hours; None if unknown."""
        return self.energy_uj / UJ_PER_WH if self.power_ms else None

    def plus(self, other: Measure) -> Measure:
        """The sum of both; of peaks the maximum."""
        return Measure(
            gpu_ms=self.gpu_ms + other.gpu_ms,
            busy_percent_ms=self.busy_percent_ms + other.busy_percent_ms,
            peak_percent=max(self.peak_percent, other.peak_percent),
            power_ms=self.power_ms + other.power_ms,
            energy_uj=self.energy_uj + other.energy_uj,
            peak_memory_mb=max(self.peak_memory_mb, other.peak_memory_mb),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMeasure:
    """The measurements of one attempt, so far or at its end; `warning` is its last warning."""

    allocation_id: str
    job_id: str
    task: int | None = None
    attempt: int = 1
    measure: Measure = Measure()
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHour:
    """One device in the hour that begins at `hour_ms`.

    `read_ms` is the time covered by readings; `gpu_ms` and `power_ms` the time with known
    utilisation and power. `held_milli_ms` is the time that jobs had it, by share.
    """

    hour_ms: int
    node_id: str
    index: int
    read_ms: int = 0
    gpu_ms: int = 0
    busy_percent_ms: int = 0
    peak_percent: int = 0
    memory_mb_ms: int = 0
    peak_memory_mb: int = 0
    power_ms: int = 0
    energy_uj: int = 0
    peak_power_mw: int = 0
    peak_temperature_c: int = 0
    held_milli_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process on a device. Without an allocation it is foreign, and blocks the device."""

    pid: int
    user: str = ""
    command: str = ""
    memory_mb: int = 0
    allocation_id: str = ""
    load_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One reading of a device; `why` explains bad health.

    A value that the hardware does not report is 0; where 0 could mislead, None or a flag says that
    it is unknown. `trusted` is the mark of the last order to trust the device.
    """

    index: int
    utilisation_percent: int = 0
    memory_used_mb: int = 0
    temperature_c: int = 0
    power_mw: int = 0
    power_limit_mw: int = 0
    sm_clock_mhz: int = 0
    throttle_reasons: int = 0
    ecc_errors: int = 0
    xid: int = 0
    healthy: bool = True
    processes: tuple[DeviceProcess, ...] = ()
    load_percent: int | None = None
    power_known: bool = False
    why: str = ""
    unexplained_mb: int = 0
    trusted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFiles:
    """Files of jobs on a node: `leftovers` are scratch directories that could not be removed."""

    log_bytes: int = 0
    leftovers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReadings:
    """One reading of all devices of a node. With a `problem`, the last successful one."""

    at_ms: int
    readings: tuple[DeviceReading, ...] = ()
    problem: str = ""
