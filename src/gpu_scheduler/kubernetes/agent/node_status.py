"""The GpuNodeStatus of a node: inventory, readings and health go in, the status goes out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations

from gpu_scheduler import __version__
from gpu_scheduler.agent.devices.health import DeviceHealth
from gpu_scheduler.agent.devices.source import DetectedDevice, NodeInventory
from gpu_scheduler.kubernetes.crds.conditions import Condition, ConditionStatus
from gpu_scheduler.kubernetes.crds.node_status import (
    ForeignProcess,
    Gpu,
    GpuHealth,
    GpuMode,
    GpuNodeStatusStatus,
    HealthState,
    MigSlice,
    NetworkAdapter,
    NvLink,
    Recovery,
)
from gpu_scheduler.model.measurements import DeviceReading, NodeReadings

MOST_PROCESSES = 64
MOST_LINKS = 4096
NO_READING = DeviceReading(index=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatLimits:
    """A GPU above the limit is hot, until it is `cooling_celsius` below it."""

    hot_celsius: int = 85
    cooling_celsius: int = 5

    def is_hot(self, temperature: int, *, was_hot: bool) -> bool:
        limit = self.hot_celsius - (self.cooling_celsius if was_hot else 0)
        return temperature > limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the agent knows of its node at one moment; `uptime_seconds` is the clock of health."""

    inventory: NodeInventory
    readings: NodeReadings
    health: Mapping[int, DeviceHealth]
    now: datetime
    uptime_seconds: float
    paused: Collection[int] = ()
    supports_cdi: bool | None = None
    injection_problem: str = ""


def node_status(
    seen: Observation, previous: GpuNodeStatusStatus, heat: HeatLimits
) -> GpuNodeStatusStatus:
    """The status of the node; `previous` tells since when a state lasts, and what was hot."""
    readings = {reading.index: reading for reading in seen.readings.readings}
    before = {gpu.index: gpu for gpu in previous.gpus}
    devices = seen.inventory.devices
    gpus = tuple(
        _gpu(device, readings.get(device.index, NO_READING), before.get(device.index), seen, heat)
        for device in devices
    )
    models = {gpu.model for gpu in gpus}
    facts = dict(seen.inventory.labels)
    temperatures = [gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None]
    return GpuNodeStatusStatus(
        heartbeat_time=seen.now,
        agent_version=__version__,
        driver_version=facts.get("driver", ""),
        cuda_version=facts.get("cuda", ""),
        supports_cdi=seen.supports_cdi,
        gpu_count=len(gpus),
        available_gpus=sum(accepts_work(gpu, seen.paused) for gpu in gpus),
        gpu_model=models.pop() if len(models) == 1 else "mixed" if models else "",
        max_temperature_celsius=max(temperatures, default=None),
        gpus=gpus,
        links=_links(devices),
        adapters=tuple(
            NetworkAdapter(
                name=adapter.name,
                port=adapter.port,
                link=adapter.link,
                rate_gbps=adapter.rate_gbps,
                numa_node=_numa(adapter.numa_node),
                active=adapter.active,
            )
            for adapter in seen.inventory.fabric.adapters
        ),
        conditions=_conditions(seen, previous),
    )


def accepts_work(gpu: Gpu, paused: Collection[int]) -> bool:
    """Whether the scheduler may give the GPU to a pod."""
    return (
        gpu.health.state is HealthState.HEALTHY
        and not gpu.is_hot
        and not gpu.foreign_processes
        and gpu.index not in paused
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvent:
    """A change of a GPU that is worth an event."""

    reason: str
    message: str
    is_warning: bool


def device_events(old: GpuNodeStatusStatus, new: GpuNodeStatusStatus) -> tuple[DeviceEvent, ...]:
    """What has changed about the health and heat of GPUs; a GPU that is new is healthy before."""
    before = {gpu.uuid: gpu for gpu in old.gpus}
    found = []
    for gpu in new.gpus:
        last = before.get(gpu.uuid)
        state, was = gpu.health.state, HealthState.HEALTHY if last is None else last.health.state
        name, why = f"GPU {gpu.index} ({gpu.uuid})", gpu.health.reason or "no reason is known"
        if state is not was and state is HealthState.UNHEALTHY:
            text = f"{name} gets no new work: {why}"
            found.append(DeviceEvent(reason="GpuUnhealthy", message=text, is_warning=True))
        elif state is not was and state is HealthState.PROBATION:
            until = gpu.health.probation_until
            at = "" if until is None else f" until {until:%Y-%m-%dT%H:%M:%SZ}"
            text = f"{name} is on probation and gets no new work{at}: {why}"
            found.append(DeviceEvent(reason="GpuOnProbation", message=text, is_warning=False))
        elif state is not was:
            text = f"{name} gets work again"
            found.append(DeviceEvent(reason="GpuRecovered", message=text, is_warning=False))
        if gpu.is_hot and not (last is not None and last.is_hot):
            text = f"{name} is {gpu.temperature_celsius} C hot and gets no new work"
            found.append(DeviceEvent(reason="GpuHot", message=text, is_warning=True))
        elif last is not None and last.is_hot and not gpu.is_hot:
            text = f"{name} has cooled down and gets work again"
            found.append(DeviceEvent(reason="GpuCooled", message=text, is_warning=False))
    return tuple(found)


def is_urgent(old: GpuNodeStatusStatus, new: GpuNodeStatusStatus) -> bool:
    """Whether the scheduler needs the change at once: anything but plain readings."""
    return _lasting(old) != _lasting(new)


def _lasting(status: GpuNodeStatusStatus) -> object:
    """The parts of a status that do not change with every reading."""
    return (
        [
            (
                *(gpu.index, gpu.uuid, gpu.memory_mib, gpu.mode, gpu.mig_slices, gpu.is_hot),
                *(gpu.health.state, gpu.health.reason, gpu.health.xid),
                [process.pid for process in gpu.foreign_processes],
            )
            for gpu in status.gpus
        ],
        status.available_gpus,
        status.supports_cdi,
        status.driver_version,
        status.adapters,
        [(one.type, one.status, one.reason) for one in status.conditions],
    )


def _gpu(
    device: DetectedDevice,
    reading: DeviceReading,
    before: Gpu | None,
    seen: Observation,
    heat: HeatLimits,
) -> Gpu:
    is_read = reading is not NO_READING
    was_hot = before is not None and before.is_hot
    return Gpu(
        index=device.index,
        uuid=device.uuid,
        model=device.name or device.model,
        memory_mib=device.memory_mb,
        mode=GpuMode.MIG if device.mig_slices else GpuMode.WHOLE,
        health=_health(seen.health.get(device.index, DeviceHealth()), reading, before, seen),
        is_hot=heat.is_hot(reading.temperature_c, was_hot=was_hot),
        temperature_celsius=reading.temperature_c or None,
        power_watts=reading.power_mw // 1000 if reading.power_known else None,
        power_limit_watts=reading.power_limit_mw // 1000 or None,
        utilization_percent=reading.load_percent,
        memory_used_mib=reading.memory_used_mb if is_read else None,
        island=device.island if device.bandwidth_gbps else None,
        numa_node=_numa(device.numa_node),
        pci_bus_id=device.pci_bus_id,
        mig_slices=tuple(
            MigSlice(uuid=uuid, profile=piece.profile)
            for piece in device.mig_slices
            for uuid in piece.uuids
        ),
        foreign_processes=tuple(
            ForeignProcess(
                pid=process.pid,
                user=process.user[:256],
                memory_mib=process.memory_mb,
                command=process.command[:256],
            )
            for process in reading.processes
            if not process.allocation_id
        )[:MOST_PROCESSES],
    )


def _health(
    health: DeviceHealth, reading: DeviceReading, before: Gpu | None, seen: Observation
) -> GpuHealth:
    """The health of a GPU with the way back to work."""
    ecc_errors = health.ecc_errors
    if health.healthy:
        return GpuHealth(uncorrected_ecc_errors=ecc_errors)
    state = HealthState.UNHEALTHY if health.standing else HealthState.PROBATION
    reason = health.why[:1024]
    since = seen.now
    until = seen.now + timedelta(seconds=max(0.0, health.until - seen.uptime_seconds))
    if before is not None and (before.health.state, before.health.reason) == (state, reason):
        since = before.health.since or seen.now
        # Two clocks that are read one after the other differ a little each time.
        last = before.health.probation_until
        if last is not None and abs((until - last).total_seconds()) < 2.0:
            until = last
    recovery = Recovery.WAIT
    if health.standing:
        recovery = Recovery.RESET_GPU if health.needs_reset else Recovery.RESTART_PROCESS
    return GpuHealth(
        state=state,
        reason=reason,
        xid=reading.xid or None,
        uncorrected_ecc_errors=ecc_errors,
        since=since,
        recovery=recovery,
        probation_until=None if health.standing else until,
    )


def _links(devices: tuple[DetectedDevice, ...]) -> tuple[NvLink, ...]:
    """GPUs of one island reach each other at the bandwidth of the slower one."""
    linked = [device for device in devices if device.bandwidth_gbps]
    return tuple(
        NvLink(a=one.index, b=two.index, bandwidth_gbps=min(one.bandwidth_gbps, two.bandwidth_gbps))
        for one, two in combinations(linked, 2)
        if one.island == two.island
    )[:MOST_LINKS]


def _conditions(seen: Observation, previous: GpuNodeStatusStatus) -> tuple[Condition, ...]:
    problem = seen.readings.problem or seen.inventory.problem
    facts = (
        ("DevicesReadable", not problem, "DriverFailed", problem),
        ("DevicesInjectable", not seen.injection_problem, "NotSupported", seen.injection_problem),
    )
    before = {one.type: one for one in previous.conditions}
    made = []
    for type_, holds, reason, message in facts:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        last = before.get(type_)
        since = last.last_transition_time if last and last.status is status else seen.now
        made.append(
            Condition(
                type=type_,
                status=status,
                reason="Works" if holds else reason,
                message=message,
                last_transition_time=since,
            )
        )
    return tuple(made)


def _numa(node: int) -> int | None:
    return node if node >= 0 else None
