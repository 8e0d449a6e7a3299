"""Readings of devices as the facts that the core is told."""

from __future__ import annotations

from gpu_scheduler.control.messages import DeviceRead
from gpu_scheduler.model.readings import DeviceReading


def device_read(reading: DeviceReading) -> DeviceRead:
    """What the core is told of one device; what was not measured is None."""
    return DeviceRead(
        index=reading.index,
        temperature_c=reading.temperature_c,
        healthy=reading.healthy,
        why=reading.why,
        xid=reading.xid,
        load_percent=reading.load_percent,
        utilisation_percent=(None if reading.load_percent is None else reading.utilisation_percent),
        memory_used_mb=reading.memory_used_mb,
        power_mw=reading.power_mw if reading.power_known else None,
        processes=reading.processes,
        unexplained_mb=reading.unexplained_mb,
    )
