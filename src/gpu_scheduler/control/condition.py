"""The condition of a device after a reading: hot, trusted, taken by others or not given back.

A device and what was read of it come in, the device as it should be seen from now on comes out, and
what of that is worth a line of history.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from gpu_scheduler.control.book import Limits
from gpu_scheduler.control.messages import DeviceRead
from gpu_scheduler.model.node import Device, ForeignUse, Health, hot_after
from gpu_scheduler.model.readings import DeviceProcess

NEAR_MB = 256
"""Memory of a process that changes by less is not worth a write."""

Data = tuple[tuple[str, str | int], ...]


def after_reading(
    device: Device, reading: DeviceRead | None, limits: Limits, held: Container[str]
) -> Device:
    """The device after a reading. `held` are the allocations that still hold devices."""
    if reading is None:
        return device
    hot = limits.hot_above_c > 0 and hot_after(
        was_hot=device.hot,
        temperature_c=reading.temperature_c,
        threshold_c=limits.hot_above_c,
        hysteresis_c=limits.hot_hysteresis_c,
    )
    pids = {process.pid for process in reading.processes}
    changed = replace(
        device,
        hot=hot,
        health=Health.HEALTHY if reading.healthy else Health.UNHEALTHY,
        why="" if reading.healthy else reading.why,
        foreign=_taken_by(device, reading, held),
        forgiven=tuple(pid for pid in device.forgiven if pid in pids),
        trust_ms=0 if reading.trusted == device.trust_ms else device.trust_ms,
    )
    if changed == device:
        return device
    return replace(changed, temperature_c=reading.temperature_c)


def changes(old: Device, new: Device, xid: int) -> list[tuple[str, Data]]:
    """What about a device is worth a line of history."""
    found: list[tuple[str, Data]] = []
    if old.hot != new.hot:
        found.append(
            ("gpu_hot" if new.hot else "gpu_cool", (("temperature_c", new.temperature_c),))
        )
    if old.health is not new.health:
        if new.health is Health.UNHEALTHY:
            found.append(("gpu_unhealthy", (("why", new.why), ("xid", xid))))
        else:
            found.append(("gpu_healthy", ()))
    if _name(old.foreign) != _name(new.foreign):
        if new.foreign is None:
            found.append(("gpu_free", ()))
        else:
            kind = "gpu_leak" if new.foreign.leaked else "gpu_foreign"
            found.append((kind, _about(new.foreign)))
    return found


def _taken_by(device: Device, reading: DeviceRead, held: Container[str]) -> ForeignUse | None:
    """Who keeps the device from our jobs: what a job of ours has left there, then a stranger."""
    uses = []
    for process in reading.processes:
        if process.pid in device.forgiven and process.pid:
            continue
        if process.allocation_id and process.allocation_id not in held:
            uses.append(_use(process, leaked=True))
        elif not process.allocation_id:
            uses.append(_use(process, leaked=False))
    if reading.unexplained_mb:
        uses.append(ForeignUse(pid=0, memory_mb=reading.unexplained_mb, leaked=True))
    if not uses:
        return None
    before = device.foreign
    for use in uses:
        # The one that was named stays named while it is there: two that take turns are no news.
        if before is not None and _name(use) == _name(before):
            is_near = abs(before.memory_mb - use.memory_mb) < NEAR_MB
            return replace(use, memory_mb=before.memory_mb) if is_near else use
    return max(uses, key=lambda use: (use.leaked, use.memory_mb, -use.pid))


def _use(process: DeviceProcess, *, leaked: bool) -> ForeignUse:
    return ForeignUse(
        pid=process.pid,
        user=process.user,
        memory_mb=process.memory_mb,
        command=process.command,
        leaked=leaked,
        job=process.allocation_id.rpartition(".")[0],
    )


def _name(use: ForeignUse | None) -> tuple[int, bool] | None:
    return None if use is None else (use.pid, use.leaked)


def _about(use: ForeignUse) -> Data:
    data: Data = (
        *(("pid", use.pid), ("of_user", use.user)),
        *(("command", use.command), ("memory_mb", use.memory_mb)),
    )
    return (*data, ("job", use.job)) if use.job else data
