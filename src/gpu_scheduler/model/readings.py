"""What was measured on the devices of a node. Shown and counted; decisions use `Device`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process on a device. Without an allocation it is not ours, and keeps the device."""

    pid: int
    user: str = ""
    command: str = ""
    memory_mb: int = 0
    allocation_id: str = ""
    load_percent: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device at one moment; `why` says what is wrong with one that is unhealthy.

    What the hardware does not tell is 0; where 0 could mislead, None or a flag says that it is not
    known. `trusted` is the mark of the last order to trust it that was carried out.
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
class NodeReadings:
    """One look at all devices of a node. With a `problem`, the readings are the last there were."""

    at_ms: int
    readings: tuple[DeviceReading, ...] = ()
    problem: str = ""
