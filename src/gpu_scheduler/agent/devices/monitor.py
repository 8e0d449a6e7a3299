"""From readings to telemetry: what to tell the server about the devices.

Whose a process is says the agent (`owner_of`); what belongs to nobody and matters is foreign.
Temperature is only reported: what is too hot the server decides. The field names of the values are
those of the wire, where 0 stands for unknown.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from threading import Lock

import structlog

from gpu_scheduler.agent.devices.health import DeviceHealth, Recovery, updated_health
from gpu_scheduler.agent.devices.processes import ForeignRule, ProcessAttribution
from gpu_scheduler.agent.devices.source import (
    DeviceSource,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
)
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings

# --- A circuit breaker around the reading of devices.
#
# Closed, every look asks the source. After some failures in a row it opens: the source is left
# alone
# for a while that doubles, and the last readings hold. Then one look may try (half-open); if it
# works
# the breaker closes. A failure is never raised: it is a problem in words beside the last readings.


class BreakerState(StrEnum):
    """Whether the source is asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerResult:
    """The newest readings there are. Stale ones come with the problem."""

    readings: tuple[Reading, ...] = ()
    stale: bool = False
    problem: str = ""


class Breaker:
    """Asks a source, or spares it. `failures` in a row open it, for `backoff_s` at first."""

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
        """Closed, open, or half-open once the back-off is over."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._open_until else BreakerState.HALF_OPEN

    def read(self) -> BreakerResult:
        """The newest readings, by asking the source if it may be asked."""
        if self.state is BreakerState.OPEN:
            return self._held()
        try:
            self._last = tuple(self._source.read())
        except DevicesUnreadable as error:
            self._problem = str(error)
            self._count_failure()
            return self._held()
        self._failures, self._backoff_s, self._open_until = 0, self._first_backoff_s, None
        self._read_at = self._clock()
        return BreakerResult(readings=self._last)

    def _count_failure(self) -> None:
        now = self._clock()
        self._failures += 1
        if self._open_until is not None:
            self._backoff_s = min(self._backoff_s * 2, self._most_backoff_s)
        if self._failures >= self._most_failures:
            self._open_until = now + self._backoff_s

    def _held(self) -> BreakerResult:
        now = self._clock()
        parts = [f"GPUs cannot be read: {self._problem}"]
        if self._read_at is not None:
            parts.append(f"the last readings are {now - self._read_at:.0f} s old")
        if self._open_until is not None and now < self._open_until:
            parts.append(f"next try in {self._open_until - now:.0f} s")
        return BreakerResult(readings=self._last, stale=True, problem="; ".join(parts))


# --- Whether the memory of a device came back after our jobs.
#
# Readings come in, memory that nobody gave back and nobody holds goes out. What was in use before
# our
# jobs came, without a process that one could see, was never ours. Of a device that does not say
# what
# its processes use, nothing is said.


@dataclass(slots=True)
class _ReleasedMemory:
    """`before_mb` was in use without a process before our jobs; None: that was not seen."""

    before_mb: int | None = None
    used_by_us: bool = False


class Releases:
    """Keeps one device from the next job until what the last one used is free."""

    def __init__(self, tolerance_mb: int) -> None:
        """So much more than before does not count."""
        self._tolerance_mb = tolerance_mb
        self._memories: dict[int, _ReleasedMemory] = {}

    def begin(self, indices: Iterable[int]) -> None:
        """Work of ours is about to use these devices."""
        for index in indices:
            self._of(index).used_by_us = True

    def forgive(self, index: int) -> None:
        """From now on what is in use there counts as never ours."""
        self._memories.pop(index, None)

    def left_mb(self, reading: Reading, owned: list[tuple[Process, str]]) -> int:
        """What our jobs have not given back, as of this reading; 0 while one is still there."""
        memory = self._of(reading.index)
        if any(owner for _, owner in owned):
            memory.used_by_us = True
            return 0
        held = [process.memory_mb for process in reading.processes]
        if reading.memory_used_mb is None or None in held:
            return 0
        unheld_mb = max(0, reading.memory_used_mb - sum(mb for mb in held if mb is not None))
        if memory.used_by_us and memory.before_mb is not None:
            more_mb = unheld_mb - memory.before_mb
            if more_mb > self._tolerance_mb:
                return more_mb
        memory.used_by_us = False
        memory.before_mb = unheld_mb
        return 0

    def _of(self, index: int) -> _ReleasedMemory:
        return self._memories.setdefault(index, _ReleasedMemory())


# --- Devices that come and go while the agent runs.
#
# The kernel's list of GPUs is looked at often, as that costs nothing; the driver is asked for all
# devices again only when that list has changed, or somebody says so: a person, or a reading that
# shows other MIG slices. Where there was none at all it is asked now and then, less and less often:
# at boot the agent may have come before the driver.

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
log = structlog.get_logger("agent")


class HotplugScan:
    """What was found last, and whether it may have changed."""

    def __init__(
        self,
        find: Callable[[], NodeInventory],
        found: NodeInventory,
        gpus: Callable[[], tuple[str, ...]],
        *,
        seeks: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` asks the driver, `gpus` the kernel.

        With `seeks` a node without any device is looked at now and then, whatever the kernel says.
        """
        self._find = find
        self._found = found
        self._gpus = gpus
        self._known = gpus()
        self._asked = False
        self._seeks = seeks
        self._clock = clock
        self._pause_s = FIRST_PAUSE_S
        self._due_s = clock() + FIRST_PAUSE_S

    def ask(self) -> None:
        """Look at the next opportunity, whatever the kernel says."""
        self._asked = True

    @property
    def is_asked(self) -> bool:
        """Tell whether somebody waits for it."""
        return self._asked

    def look(self) -> NodeInventory | None:
        """What is there now, if that is not what was there; may take as long as a driver takes."""
        gpus = self._gpus()
        is_told = gpus != self._known or self._asked
        if not is_told and not self._is_due():
            return None
        self._pause(is_told)
        self._asked = False
        try:
            found = self._find()
        except DevicesUnreadable as error:
            if is_told:
                log.warning("devices have changed and cannot be read yet", error=str(error))
            return None
        self._known = gpus
        found = _with_known(found, self._found)
        if found == self._found:
            return None
        before, self._found = self._found, found
        if before.devices != found.devices:
            count = len(before.devices)
            log.warning("devices have changed", before=count, now=len(found.devices))
        return found

    def _is_due(self) -> bool:
        """There may be a driver by now, of which the kernel told before it could be asked."""
        return self._seeks and not self._found.devices and self._clock() >= self._due_s

    def _pause(self, is_told: bool) -> None:
        """Longer each time, unless something has happened: most nodes without GPUs stay so."""
        longer_s = min(LONGEST_PAUSE_S, 2 * self._pause_s)
        self._pause_s = FIRST_PAUSE_S if is_told else longer_s
        self._due_s = self._clock() + self._pause_s


def _with_known(found: NodeInventory, before: NodeInventory) -> NodeInventory:
    """A device that is there and does not say who it is stays as it was: its readings say why."""
    known = {device.index: device for device in before.devices}
    devices = tuple(
        device if device.uuid else known.get(device.index, device) for device in found.devices
    )
    return replace(found, devices=devices)


# --- From readings to telemetry: what to tell the server about the devices.

OwnerLookup = Callable[[int], str | None]


def boot_clock() -> float:
    """Seconds since this machine started, its sleep included. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The settings of group `gpu` that concern watching."""

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
    """Looks at the devices that were found, and remembers what one look alone cannot tell.

    `look` may take as long as the source's deadline: call it from a thread, never from an event
    loop, and never twice at once. With `memory`, distrust outlives this process, for one boot.
    `clock` counts from boot, so that it means the same after a restart of the agent.
    """

    def __init__(
        self,
        source: DeviceSource,
        found: NodeInventory,
        owner_of: OwnerLookup,
        *,
        settings: MonitorSettings | None = None,
        memory: Path | None = None,
        boot_id: str = "",
        clock: Callable[[], float] = boot_clock,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or MonitorSettings()
        self._found = {device.index: device for device in found.devices}
        self.rescan: HotplugScan | None = None
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
        self._releases = Releases(self.settings.release_tolerance_mb)
        self._loads: dict[int, deque[tuple[float, int]]] = {}
        self._xids: dict[int, int] = {}
        self._lock = Lock()
        self._forgiven: dict[int, tuple[int, float]] = {}
        self._trusted: dict[int, int] = {}
        self._begun: set[int] = set()
        self._ours_at: dict[int, float] = {}
        self._last: tuple[DeviceReading, ...] = ()
        self._memory = _HealthFile(memory, boot_id)
        self._trust: dict[int, DeviceHealth] = self._memory.recall(self._found_uuids())

    def look(self) -> NodeReadings:
        """Read all devices once. Never raises because of a device."""
        self._take_in()
        held = self._breaker.read()
        at_ms = int(self._wall_clock() * 1000)
        if held.stale:
            return NodeReadings(at_ms=at_ms, readings=self._last, problem=held.problem)
        self._last = tuple(
            self._report(reading) for reading in held.readings if reading.index in self._found
        )
        if any(self._is_split_anew(reading) for reading in held.readings):
            self.ask_again()
        self._memory.keep(self._trust, self._found_uuids())
        return NodeReadings(at_ms=at_ms, readings=self._last)

    def find_again(self) -> NodeInventory | None:
        """What is there now, if devices came or went since the last time; not during a look."""
        found = None if self.rescan is None else self.rescan.look()
        if found is None:
            return None
        before, self._found = self._found, {device.index: device for device in found.devices}
        for index, device in before.items():
            if index not in self._found or self._found[index].uuid != device.uuid:
                for kept in (self._trust, self._loads, self._xids, self._ours_at, self._trusted):
                    kept.pop(index, None)
        self._last = tuple(reading for reading in self._last if reading.index in self._found)
        return found

    @property
    def must_find(self) -> bool:
        """Tell whether the last look has shown that there are other devices or slices."""
        return self.rescan is not None and self.rescan.is_asked

    def _is_split_anew(self, reading: Reading) -> bool:
        """Tell whether MIG slices were made or destroyed, or its mode was changed."""
        known = self._found.get(reading.index)
        if known is None or reading.mig_uuids is None:
            return False
        return known.mig_uuids != set(reading.mig_uuids)

    def ask_again(self) -> None:
        """Somebody has changed the devices: look for all of them again."""
        if self.rescan is not None:
            self.rescan.ask()

    def trust(self, index: int, *, mark: int = 0, ago_s: float = 0.0) -> None:
        """Somebody has looked after a device: only what stands against it now counts.

        With an order that comes late, also what it has done since then. The readings have its
        `mark` once that is written down.
        """
        with self._lock:
            self._forgiven[index] = (mark, self._clock() - ago_s)

    def begin(self, indices: Iterable[int]) -> None:
        """Work of ours is about to use these devices."""
        with self._lock:
            self._begun.update(indices)

    def _take_in(self) -> None:
        """Between two looks, as a look may be under way when somebody says something."""
        with self._lock:
            forgiven, self._forgiven = self._forgiven, {}
            begun, self._begun = self._begun, set()
        self._releases.begin(begun)
        self._ours_at.update(dict.fromkeys(begun, self._clock()))
        for index, (mark, at) in forgiven.items():
            before = self._trust.get(index, DeviceHealth())
            self._trusted[index] = mark
            if before.error_at is not None and before.error_at > at:
                continue
            self._releases.forgive(index)
            self._trust[index] = DeviceHealth(ecc_errors=before.ecc_errors)
            self._xids.pop(index, None)

    def _found_uuids(self) -> dict[int, str]:
        return {index: device.uuid for index, device in self._found.items()}

    def _report(self, reading: Reading) -> DeviceReading:
        index = reading.index
        trust = updated_health(
            self._trust.get(index, DeviceHealth()), reading, self._clock(), self.settings.recovery
        )
        self._trust[index] = trust
        load = self._average_load(reading)
        if reading.xids:
            self._xids[index] = reading.xids[-1]
        memory_mb = self._found[index].memory_mb
        owned = self._attribution.attribute(reading, self._load_of_others(index, load), memory_mb)
        if any(owner for _, owner in owned):
            self._ours_at[index] = self._clock()
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
            xid=self._shown_xid(index, trust),
            healthy=trust.healthy,
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
            why=trust.why,
            unexplained_mb=self._releases.left_mb(reading, owned),
            trusted=self._trusted.get(index, 0),
        )

    def _load_of_others(self, index: int, load: int | None) -> int | None:
        """What of the load cannot come from a job of ours that was there within the window."""
        ours_at = self._ours_at.get(index)
        window_s = self.settings.utilization_window_s
        return load if ours_at is None or self._clock() - ours_at > window_s else None

    def _shown_xid(self, index: int, trust: DeviceHealth) -> int:
        """The last error: told once, or for as long as the device is unhealthy."""
        return self._xids.get(index, 0) if not trust.healthy else self._xids.pop(index, 0)

    def _average_load(self, reading: Reading) -> int | None:
        """The mean utilisation over the window, or None if the device does not tell."""
        now = self._clock()
        loads = self._loads.setdefault(reading.index, deque())
        if reading.utilisation_percent is not None:
            loads.append((now, reading.utilisation_percent))
        while loads and loads[0][0] < now - self.settings.utilization_window_s:
            loads.popleft()
        return round(sum(load for _, load in loads) / len(loads)) if loads else None


class _HealthFile:
    """Distrust on disk, by UUID. A reboot resets every device, so it holds for one boot only."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written = ""

    def recall(self, uuids: dict[int, str]) -> dict[int, DeviceHealth]:
        """What was kept. A file that cannot be used is as good as none."""
        if self._path is None:
            return {}
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["boot_id"] != self._boot_id:
                return {}
            trusts = {uuid: DeviceHealth(**values) for uuid, values in kept["devices"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {index: trusts[uuid] for index, uuid in uuids.items() if uuid in trusts}

    def keep(self, trusts: dict[int, DeviceHealth], uuids: dict[int, str]) -> None:
        """Write what changed. A disk that is full costs only the memory."""
        if self._path is None:
            return
        devices = {
            uuids[index]: asdict(trust)
            for index, trust in sorted(trusts.items())
            if uuids.get(index) and (trust.why or trust.hold_s)
        }
        text = json.dumps({"boot_id": self._boot_id, "devices": devices})
        if text == self._written or not (devices or self._written or self._path.exists()):
            return
        try:
            fresh = self._path.with_name(f"{self._path.name}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self._path)
        except OSError:
            return
        self._written = text
