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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock

from gpu_scheduler.agent.devices.breaker import Breaker
from gpu_scheduler.agent.devices.foreign import Attribution, ForeignRule
from gpu_scheduler.agent.devices.health import Recovery, Trust, after_look
from gpu_scheduler.agent.devices.inventory import DeviceSource, Found, Reading
from gpu_scheduler.agent.devices.release import Releases
from gpu_scheduler.agent.devices.rescan import Rescan
from gpu_scheduler.model.readings import DeviceProcess, DeviceReading, NodeReadings

OwnerOf = Callable[[int], str | None]


def since_boot() -> float:
    """Seconds since this machine started, its sleep included. Nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
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


class Watcher:
    """Looks at the devices that were found, and remembers what one look alone cannot tell.

    `look` may take as long as the source's deadline: call it from a thread, never from an event
    loop, and never twice at once. With `memory`, distrust outlives this process, for one boot.
    `clock` counts from boot, so that it means the same after a restart of the agent.
    """

    def __init__(
        self,
        source: DeviceSource,
        found: Found,
        owner_of: OwnerOf,
        *,
        settings: WatchSettings | None = None,
        memory: Path | None = None,
        boot_id: str = "",
        clock: Callable[[], float] = since_boot,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings or WatchSettings()
        self._found = {device.index: device for device in found.devices}
        self.rescan: Rescan | None = None
        self._clock = clock
        self._wall_clock = wall_clock
        self._breaker = Breaker(
            source,
            failures=self.settings.breaker_failures,
            backoff_s=self.settings.breaker_backoff_s,
            most_backoff_s=self.settings.breaker_most_backoff_s,
            clock=clock,
        )
        self._attribution = Attribution(owner_of, self.settings.foreign)
        self._releases = Releases(self.settings.release_tolerance_mb)
        self._loads: dict[int, deque[tuple[float, int]]] = {}
        self._xids: dict[int, int] = {}
        self._lock = Lock()
        self._forgiven: dict[int, tuple[int, float]] = {}
        self._trusted: dict[int, int] = {}
        self._begun: set[int] = set()
        self._ours_at: dict[int, float] = {}
        self._last: tuple[DeviceReading, ...] = ()
        self._memory = _Memory(memory, boot_id)
        self._trust: dict[int, Trust] = self._memory.recall(self._found_uuids())

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

    def find_again(self) -> Found | None:
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
            before = self._trust.get(index, Trust())
            self._trusted[index] = mark
            if before.error_at is not None and before.error_at > at:
                continue
            self._releases.forgive(index)
            self._trust[index] = Trust(ecc_errors=before.ecc_errors)
            self._xids.pop(index, None)

    def _found_uuids(self) -> dict[int, str]:
        return {index: device.uuid for index, device in self._found.items()}

    def _report(self, reading: Reading) -> DeviceReading:
        index = reading.index
        trust = after_look(
            self._trust.get(index, Trust()), reading, self._clock(), self.settings.recovery
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

    def _shown_xid(self, index: int, trust: Trust) -> int:
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


class _Memory:
    """Distrust on disk, by UUID. A reboot resets every device, so it holds for one boot only."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._written = ""

    def recall(self, uuids: dict[int, str]) -> dict[int, Trust]:
        """What was kept. A file that cannot be used is as good as none."""
        if self._path is None:
            return {}
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["boot_id"] != self._boot_id:
                return {}
            trusts = {uuid: Trust(**values) for uuid, values in kept["devices"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        return {index: trusts[uuid] for index, uuid in uuids.items() if uuid in trusts}

    def keep(self, trusts: dict[int, Trust], uuids: dict[int, str]) -> None:
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
