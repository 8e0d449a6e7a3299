"""Monitors the devices of a node: readings of a device source come in, telemetry goes out.

`DevicePoller` calls `DeviceMonitor` periodically, and at once when a job has ended. The monitor
adds what a single reading cannot tell: health, load averages, memory that a job has not released,
and the job that owns each process. Temperatures are only reported; the server decides what is too
hot. In the telemetry, 0 stands for unknown, as on the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from threading import Lock

from gpu_scheduler.agent.devices.discovery import HotplugScan
from gpu_scheduler.agent.devices.health import DeviceHealth, Recovery, updated_health
from gpu_scheduler.agent.devices.processes import ForeignRule, ProcessAttribution
from gpu_scheduler.agent.devices.source import (
    DeviceSource,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
)
from gpu_scheduler.agent.machine import replace_file
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb

MIN_PAUSE_S = 0.01
RELEASE_RETRY_S = 0.1
OwnerLookup = Callable[[int], str | None]


class BreakerState(StrEnum):
    """Whether the source may be read."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerResult:
    """The newest readings. Stale readings come with the problem."""

    readings: tuple[Reading, ...] = ()
    stale: bool = False
    problem: str = ""


class Breaker:
    """A circuit breaker around a device source.

    While it is closed, every read asks the source. After `failures` errors in a row it opens: the
    source is not asked for `backoff_s`, doubled each time, and the last readings are returned. Then
    one read may try (half-open); if that works the breaker closes. An error is never raised: it is
    a problem text beside the last readings.
    """

    def __init__(
        self,
        source: DeviceSource,
        *,
        failures: int = 3,
        backoff_s: float = 10.0,
        most_backoff_s: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._most_failures = max(1, failures)
        self._first_backoff_s = backoff_s
        self._most_backoff_s = most_backoff_s
        self._clock = clock
        self._failures = 0
        self._backoff_s = backoff_s
        self._open_until: float | None = None
        self._last: tuple[Reading, ...] = ()
        self._read_at: float | None = None
        self._problem = ""

    @property
    def state(self) -> BreakerState:
        """Closed, open, or half-open once the back-off has passed."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._open_until else BreakerState.HALF_OPEN

    def read(self) -> BreakerResult:
        """Read the source if the breaker allows it, else return the last readings."""
        if self.state is BreakerState.OPEN:
            return self._stale()
        try:
            self._last = tuple(self._source.read())
        except DevicesUnreadable as error:
            self._problem = str(error)
            self._failures += 1
            if self._open_until is not None:
                self._backoff_s = min(self._backoff_s * 2, self._most_backoff_s)
            if self._failures >= self._most_failures:
                self._open_until = self._clock() + self._backoff_s
            return self._stale()
        self._failures, self._backoff_s, self._open_until = 0, self._first_backoff_s, None
        self._read_at = self._clock()
        return BreakerResult(readings=self._last)

    def _stale(self) -> BreakerResult:
        now = self._clock()
        parts = [f"GPUs cannot be read: {self._problem}"]
        if self._read_at is not None:
            parts.append(f"the last readings are {now - self._read_at:.0f} s old")
        if self._open_until is not None and now < self._open_until:
            parts.append(f"next try in {self._open_until - now:.0f} s")
        return BreakerResult(readings=self._last, stale=True, problem="; ".join(parts))


@dataclass(slots=True)
class _DeviceMemory:
    """`baseline_mb` was in use without a visible process before our jobs; None if not seen."""

    baseline_mb: int | None = None
    used_by_job: bool = False


class MemoryReleaseCheck:
    """Detects device memory that no process holds and that an ended job has not released.

    Memory that was in use without a visible process before our jobs came does not count. Devices
    that do not report the memory of their processes are not checked.
    """

    def __init__(self, tolerance_mb: int) -> None:
        """Up to `tolerance_mb` more than the baseline does not count."""
        self._tolerance_mb = tolerance_mb
        self._devices: dict[int, _DeviceMemory] = {}

    def mark_in_use(self, indices: Iterable[int]) -> None:
        """Jobs are about to use these devices."""
        for index in indices:
            self._device(index).used_by_job = True

    def reset(self, index: int) -> None:
        """Take the memory in use at the next reading as the baseline."""
        self._devices.pop(index, None)

    def unreleased_mb(self, reading: Reading, owned: list[tuple[Process, str]]) -> int:
        """The memory that ended jobs have not released; 0 while a job uses the device."""
        memory = self._device(reading.index)
        if any(owner for _, owner in owned):
            memory.used_by_job = True
            return 0
        held = [process.memory_mb for process in reading.processes]
        if reading.memory_used_mb is None or None in held:
            return 0
        unheld_mb = max(0, reading.memory_used_mb - sum(mb for mb in held if mb is not None))
        if memory.used_by_job and memory.baseline_mb is not None:
            excess_mb = unheld_mb - memory.baseline_mb
            if excess_mb > self._tolerance_mb:
                return excess_mb
        memory.used_by_job = False
        memory.baseline_mb = unheld_mb
        return 0

    def _device(self, index: int) -> _DeviceMemory:
        return self._devices.setdefault(index, _DeviceMemory())


def boot_clock() -> float:
    """Seconds since this machine started, including suspend. This clock cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The settings of group `gpu` for monitoring."""

    monitor_interval_s: float = 5.0
    utilization_window_s: float = 60.0
    foreign: ForeignRule = field(default_factory=ForeignRule)
    recovery: Recovery = field(default_factory=Recovery)
    release_timeout_s: float = 10.0
    release_tolerance_mb: int = 256
    breaker_failures: int = 3
    breaker_backoff_s: float = 10.0
    breaker_most_backoff_s: float = 300.0


class DeviceMonitor:
    """Reads the devices of a node and keeps the state between two readings.

    `read` may take as long as the source's timeout: call it from a thread, never from an event
    loop, and never twice at once. With `health_file`, the health of devices survives a restart
    of the agent, but not a reboot. `clock` counts from boot, so it stays valid across a restart.
    """

    def __init__(
        self,
        source: DeviceSource,
        found: NodeInventory,
        owner_of: OwnerLookup,
        *,
        settings: MonitorSettings | None = None,
        health_file: Path | None = None,
        boot_id: str = "",
        clock: Callable[[], float] = boot_clock,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or MonitorSettings()
        self._devices = {device.index: device for device in found.devices}
        self.hotplug: HotplugScan | None = None
        self._clock = clock
        self._wall_clock = wall_clock
        self._breaker = Breaker(
            source,
            failures=self.settings.breaker_failures,
            backoff_s=self.settings.breaker_backoff_s,
            most_backoff_s=self.settings.breaker_most_backoff_s,
            clock=clock,
        )
        self._attribution = ProcessAttribution(owner_of, self.settings.foreign)
        self._memory_release = MemoryReleaseCheck(self.settings.release_tolerance_mb)
        self._loads: dict[int, deque[tuple[float, int]]] = {}
        self._xids: dict[int, int] = {}
        self._lock = Lock()
        self._new_repairs: dict[int, tuple[int, float]] = {}
        self._repair_marks: dict[int, int] = {}
        self._new_uses: set[int] = set()
        self._last_job_at: dict[int, float] = {}
        self._last: tuple[DeviceReading, ...] = ()
        self._health_file = _HealthFile(health_file, boot_id)
        self._health: dict[int, DeviceHealth] = self._health_file.load(self._uuids())

    def read(self) -> NodeReadings:
        """Read all devices once. Never raises because of a device."""
        self._apply_notices()
        result = self._breaker.read()
        at_ms = int(self._wall_clock() * 1000)
        if result.stale:
            return NodeReadings(at_ms=at_ms, readings=self._last, problem=result.problem)
        self._last = tuple(
            self._telemetry(reading)
            for reading in result.readings
            if reading.index in self._devices
        )
        if any(self._mig_changed(reading) for reading in result.readings):
            self.request_rescan()
        self._health_file.store(self._health, self._uuids())
        return NodeReadings(at_ms=at_ms, readings=self._last)

    def detect_changes(self) -> NodeInventory | None:
        """The new inventory if devices were added or removed; not during `read`."""
        found = None if self.hotplug is None else self.hotplug.scan()
        if found is None:
            return None
        before, self._devices = self._devices, {device.index: device for device in found.devices}
        states = (
            self._health,
            self._loads,
            self._xids,
            self._last_job_at,
            self._repair_marks,
        )
        for index, device in before.items():
            if index not in self._devices or self._devices[index].uuid != device.uuid:
                for state in states:
                    state.pop(index, None)
        self._last = tuple(reading for reading in self._last if reading.index in self._devices)
        return found

    @property
    def health(self) -> dict[int, DeviceHealth]:
        """The health of each device by index, after the last reading; not during `read`."""
        return dict(self._health)

    @property
    def rescan_requested(self) -> bool:
        """Tell whether the last reading showed other devices or MIG slices."""
        return self.hotplug is not None and self.hotplug.is_requested

    def request_rescan(self) -> None:
        """Search for all devices again before the next reading."""
        if self.hotplug is not None:
            self.hotplug.request()

    def _mig_changed(self, reading: Reading) -> bool:
        """Tell whether MIG slices were created or destroyed, or the MIG mode was changed."""
        known = self._devices.get(reading.index)
        if known is None or reading.mig_uuids is None:
            return False
        return known.mig_uuids != set(reading.mig_uuids)

    def mark_repaired(self, index: int, *, mark: int = 0, ago_s: float = 0.0) -> None:
        """An administrator has repaired a device: forget its errors before that time.

        The readings carry `mark` once this has been applied.
        """
        with self._lock:
            self._new_repairs[index] = (mark, self._clock() - ago_s)

    def mark_in_use(self, indices: Iterable[int]) -> None:
        """Jobs are about to use these devices."""
        with self._lock:
            self._new_uses.update(indices)

    def _apply_notices(self) -> None:
        """Apply repairs and uses between two readings, as they can arrive during one."""
        with self._lock:
            repairs, self._new_repairs = self._new_repairs, {}
            uses, self._new_uses = self._new_uses, set()
        self._memory_release.mark_in_use(uses)
        self._last_job_at.update(dict.fromkeys(uses, self._clock()))
        for index, (mark, at) in repairs.items():
            before = self._health.get(index, DeviceHealth())
            self._repair_marks[index] = mark
            if before.error_at is not None and before.error_at > at:
                continue
            self._memory_release.reset(index)
            self._health[index] = DeviceHealth(ecc_errors=before.ecc_errors)
            self._xids.pop(index, None)

    def _uuids(self) -> dict[int, str]:
        return {index: device.uuid for index, device in self._devices.items()}

    def _telemetry(self, reading: Reading) -> DeviceReading:
        index = reading.index
        health = updated_health(
            self._health.get(index, DeviceHealth()), reading, self._clock(), self.settings.recovery
        )
        self._health[index] = health
        load = self._average_load(reading)
        if reading.xids:
            self._xids[index] = reading.xids[-1]
        memory_mb = self._devices[index].memory_mb
        owned = self._attribution.attribute(reading, self._foreign_load(index, load), memory_mb)
        if any(owner for _, owner in owned):
            self._last_job_at[index] = self._clock()
        # The last XID is reported once, or for as long as the device is unhealthy.
        xid = self._xids.pop(index, 0) if health.healthy else self._xids.get(index, 0)
        return DeviceReading(
            index=index,
            utilisation_percent=load or 0,
            memory_used_mb=reading.memory_used_mb or 0,
            temperature_c=reading.temperature_c or 0,
            power_mw=reading.power_mw or 0,
            power_limit_mw=reading.power_limit_mw or 0,
            sm_clock_mhz=reading.sm_clock_mhz or 0,
            throttle_reasons=reading.throttle_reasons,
            ecc_errors=reading.ecc_errors or 0,
            xid=xid,
            healthy=health.healthy,
            load_percent=reading.utilisation_percent,
            power_known=reading.power_mw is not None,
            processes=tuple(
                DeviceProcess(
                    pid=process.pid,
                    user=process.user,
                    command=process.command,
                    memory_mb=process.memory_mb or 0,
                    allocation_id=owner,
                    load_percent=process.load_percent,
                )
                for process, owner in owned
            ),
            why=health.why,
            unexplained_mb=self._memory_release.unreleased_mb(reading, owned),
            trusted=self._repair_marks.get(index, 0),
        )

    def _foreign_load(self, index: int, load: int | None) -> int | None:
        """The load, unless one of our jobs used the device within the averaging window."""
        last_job_at = self._last_job_at.get(index)
        window_s = self.settings.utilization_window_s
        return load if last_job_at is None or self._clock() - last_job_at > window_s else None

    def _average_load(self, reading: Reading) -> int | None:
        """The mean utilisation over the window, or None if the device does not report it."""
        now = self._clock()
        loads = self._loads.setdefault(reading.index, deque())
        if reading.utilisation_percent is not None:
            loads.append((now, reading.utilisation_percent))
        while loads and loads[0][0] < now - self.settings.utilization_window_s:
            loads.popleft()
        return round(sum(load for _, load in loads) / len(loads)) if loads else None


class _HealthFile:
    """Unhealthy devices on disk, by UUID. A reboot resets devices, so it is valid for one boot."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written = ""

    def load(self, uuids: dict[int, str]) -> dict[int, DeviceHealth]:
        """The stored health by index. An unreadable file counts as empty."""
        if self._path is None:
            return {}
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            if stored["boot_id"] != self._boot_id:
                return {}
            health = {uuid: DeviceHealth(**values) for uuid, values in stored["devices"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {index: health[uuid] for index, uuid in uuids.items() if uuid in health}

    def store(self, health: dict[int, DeviceHealth], uuids: dict[int, str]) -> None:
        """Write the file if it has changed. On a full disk the state stays in memory only."""
        if self._path is None:
            return
        devices = {
            uuids[index]: asdict(device)
            for index, device in sorted(health.items())
            if uuids.get(index) and (device.why or device.hold_s)
        }
        text = json.dumps({"boot_id": self._boot_id, "devices": devices})
        if text == self._written or not (devices or self._written or self._path.exists()):
            return
        with contextlib.suppress(OSError):
            replace_file(self._path, text)
            self._written = text


class DevicePoller:
    """Reads a monitor periodically in a thread, and at once when a job has ended.

    A job is reported as ended only when a reading that began after its end finds no process of it
    on any device, so that its devices are free when the server assigns them again. After a timeout
    the job is reported anyway, and the server sees the remaining processes in the readings.
    """

    def __init__(
        self,
        monitor: DeviceMonitor,
        on_readings: Callable[[NodeReadings], None],
        on_inventory: Callable[[NodeInventory], None] | None = None,
    ) -> None:
        """`on_readings` is called with every reading, before tasks that wait for it continue.

        `on_inventory` is called when devices were added or removed, before their next reading.
        """
        self._monitor = monitor
        self._on_readings = on_readings
        self._on_inventory = on_inventory
        self._wake = asyncio.Event()
        self._waiting: list[asyncio.Future[NodeReadings]] = []

    async def run(self) -> None:
        """Poll until cancelled."""
        interval_s = self._monitor.settings.monitor_interval_s
        skip_wait = False
        while True:
            self._wake.clear()
            waiting, self._waiting = self._waiting, []
            inventory = await asyncio.to_thread(self._monitor.detect_changes)
            if inventory is not None and self._on_inventory is not None:
                self._on_inventory(inventory)
            readings = await asyncio.to_thread(self._monitor.read)
            self._on_readings(readings)
            for future in waiting:
                if not future.done():
                    future.set_result(readings)
            await asyncio.sleep(MIN_PAUSE_S)
            # A reading that shows other devices or MIG slices is followed by a rescan at once.
            skip_wait = self._monitor.rescan_requested and not skip_wait
            if skip_wait:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._wake.wait()

    def rescan(self) -> None:
        """Search for all devices again now."""
        self._monitor.request_rescan()
        self._wake.set()

    def mark_in_use(self, indices: Iterable[int]) -> None:
        """Jobs are about to use these devices."""
        self._monitor.mark_in_use(indices)

    def mark_repaired(self, order: pb.Trust) -> None:
        """An administrator has repaired a device."""
        self._monitor.mark_repaired(order.device, mark=order.mark, ago_s=order.ago_ms / 1000)
        self._wake.set()

    async def wait_released(self, allocation_id: str, indices: Container[int]) -> bool:
        """Wait until no device has a process of the job and its devices have released its memory.

        False on timeout.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._monitor.settings.release_timeout_s
        while not _is_released(await self._next_reading(), allocation_id, indices):
            if clock() >= deadline:
                return False
            await asyncio.sleep(RELEASE_RETRY_S)
        return True

    async def _next_reading(self) -> NodeReadings:
        """A reading that has not begun yet."""
        future: asyncio.Future[NodeReadings] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wake.set()
        return await future


def _is_released(telemetry: NodeReadings, allocation_id: str, indices: Container[int]) -> bool:
    """Tell whether a job is gone from the devices; unreadable devices are not waited for."""
    if telemetry.problem:
        return True
    return not any(
        (reading.unexplained_mb and reading.index in indices)
        or any(process.allocation_id == allocation_id for process in reading.processes)
        for reading in telemetry.readings
    )
