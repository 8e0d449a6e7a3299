"""Sums of GPU energy, load and memory by attempt and by device and hour; rules for GPU use.

Device samples come in. The sums are written now and then, and when an attempt ends. The power of a
device is divided between its jobs by their shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gpu_scheduler.control.gpu_curves import GpuCurves, Place
from gpu_scheduler.control.messages import DeviceSample
from gpu_scheduler.model.measurements import HOUR_MS, AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Device
from gpu_scheduler.model.plan import Allocation, DeviceShare
from gpu_scheduler.model.request import WHOLE_MILLI

WRITE_EVERY_MS = 60_000


@dataclass(slots=True)
class AttemptMeter:
    """Measurements of one running attempt.

    `used_mb`: memory by node at the last sample; `read_ms`: time of the last sample by node;
    `over_ms`: since when it exceeds its memory on a device; `busy_ms`: when a device was last busy
    or did not report its load, None after a restart.
    """

    measure: Measure = field(default_factory=Measure)
    used_mb: dict[str, int] = field(default_factory=dict)
    read_ms: dict[str, int] = field(default_factory=dict)
    over_ms: dict[Place, int] = field(default_factory=dict)
    busy_ms: int | None = None
    idle_warned_ms: int | None = None
    warning: str = ""
    changed: bool = False

    def row(self, allocation: Allocation) -> AttemptMeasure:
        """What the store should remember."""
        return AttemptMeasure(
            allocation_id=allocation.id,
            job_id=allocation.job_id,
            task=allocation.task,
            attempt=allocation.attempt,
            measure=self.measure,
            warning=self.warning,
        )

    @property
    def active_warning(self) -> str:
        """The last warning, while its cause lasts; otherwise empty."""
        return self.warning if self.over_ms or self.idle_warned_ms is not None else ""

    @property
    def has_data(self) -> bool:
        """Tell whether there is anything to store."""
        measure = self.measure
        return bool(measure.gpu_ms or measure.power_ms or measure.peak_memory_mb or self.warning)


class GpuMeter:
    """Measurements of all running attempts and devices. `at_ms`: last sample by node.

    `energy_uj`: energy of each device since the start of this process.
    """

    def __init__(self) -> None:
        """Start without measurements."""
        self.attempts: dict[str, AttemptMeter] = {}
        self.curves = GpuCurves()
        self.at_ms: dict[str, int] = {}
        self.energy_uj: dict[Place, int] = {}
        self._hours: dict[Place, DeviceHour] = {}
        self._stale: set[Place] = set()
        self._past: list[DeviceHour] = []
        self._written_ms: dict[str, int] = {}

    def of(self, allocation: Allocation) -> AttemptMeter:
        """The meter of an attempt; it counts as busy at its start."""
        meter = self.attempts.get(allocation.id)
        if meter is None:
            meter = self.attempts[allocation.id] = AttemptMeter(busy_ms=allocation.start_ms)
        return meter

    def recall(self, rows: Iterable[AttemptMeasure], hours: Iterable[DeviceHour]) -> None:
        """Continue with the stored sums."""
        for row in rows:
            self.attempts[row.allocation_id] = AttemptMeter(
                measure=row.measure, warning=row.warning
            )
        for hour in hours:
            self._hours[hour.node_id, hour.index] = hour

    def take(self, allocation: Allocation) -> list[AttemptMeasure]:
        """Remove an ended attempt and return its last row, if anything was measured."""
        self.curves.end(allocation.id)
        meter = self.attempts.pop(allocation.id, None)
        return [meter.row(allocation)] if meter is not None and meter.has_data else []

    def span_ms(self, node_id: str, now_ms: int, longest_ms: int) -> int:
        """Time since the last sample of the node; 0 if that is too long to interpolate."""
        before_ms = self.at_ms.get(node_id)
        self.at_ms[node_id] = now_ms
        if before_ms is None or not 0 < now_ms - before_ms <= longest_ms:
            return 0
        return now_ms - before_ms

    def add_device(
        self, node_id: str, reading: DeviceSample, held_milli: int, span_ms: int, now_ms: int
    ) -> None:
        """Add a sample of a device, valid for the time since the last one."""
        place = (node_id, reading.index)
        hour_ms = now_ms - now_ms % HOUR_MS
        hour = self._hours.get(place)
        if hour is None or hour.hour_ms != hour_ms:
            if hour is not None and place in self._stale:
                self._past.append(hour)
            hour = DeviceHour(hour_ms=hour_ms, node_id=node_id, index=reading.index)
        load, power = reading.load_percent, reading.power_mw
        self._hours[place] = replace(
            hour,
            read_ms=hour.read_ms + span_ms,
            gpu_ms=hour.gpu_ms + (span_ms if load is not None else 0),
            busy_percent_ms=hour.busy_percent_ms + (load or 0) * span_ms,
            peak_percent=max(hour.peak_percent, load or 0),
            memory_mb_ms=hour.memory_mb_ms + reading.memory_used_mb * span_ms,
            peak_memory_mb=max(hour.peak_memory_mb, reading.memory_used_mb),
            power_ms=hour.power_ms + (span_ms if power is not None else 0),
            energy_uj=hour.energy_uj + (power or 0) * span_ms,
            peak_power_mw=max(hour.peak_power_mw, power or 0),
            peak_temperature_c=max(hour.peak_temperature_c, reading.temperature_c),
            held_milli_ms=hour.held_milli_ms + held_milli * span_ms,
        )
        self._stale.add(place)
        if power is not None:
            self.energy_uj[place] = self.energy_uj.get(place, 0) + power * span_ms

    def due_hours(self, node_id: str, now_ms: int) -> list[DeviceHour] | None:
        """The device hours of a node to write now; None if it is not time yet."""
        if now_ms - self._written_ms.setdefault(node_id, now_ms) < WRITE_EVERY_MS:
            return None
        self._written_ms[node_id] = now_ms
        due = sorted(place for place in self._stale if place[0] == node_id)
        self._stale.difference_update(due)
        past, self._past = self._past, []
        return [*past, *(self._hours[place] for place in due)]


def weight_of(share: DeviceShare, device: Device) -> int:
    """A job's part of a device: its share, or its part of the memory if it has no share."""
    if share.share_milli or not device.memory_mb:
        return max(1, share.share_milli)
    return max(1, share.memory_mb * WHOLE_MILLI // device.memory_mb)


def with_reading(
    measure: Measure, reading: DeviceSample, span_ms: int, weight: int, weights: int
) -> Measure:
    """A measure with one more device sample."""
    load, power = reading.load_percent, reading.power_mw
    return replace(
        measure,
        gpu_ms=measure.gpu_ms + (span_ms if load is not None else 0),
        busy_percent_ms=measure.busy_percent_ms + (load or 0) * span_ms,
        peak_percent=max(measure.peak_percent, load or 0),
        power_ms=measure.power_ms + (span_ms if power is not None else 0),
        energy_uj=measure.energy_uj + (power or 0) * span_ms * weight // weights,
    )


class Action(StrEnum):
    """What to do about a job that breaks a rule."""

    OFF = "off"
    WARN = "warn"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRules:
    """The site's rules for GPU use.

    A job on a shared device may exceed its memory by `memory_tolerance_percent`; it is warned, and
    stopped after `memory_grace_ms`. A job whose devices are all below `idle_percent` for `idle_ms`
    is warned, and stopped `idle_grace_ms` later. Samples further apart than `longest_gap_ms` are
    not interpolated.
    """

    memory: Action = Action.OFF
    memory_grace_ms: int = 30_000
    memory_tolerance_percent: int = 10
    idle: Action = Action.OFF
    idle_percent: int = 5
    idle_ms: int = 30 * 60_000
    idle_grace_ms: int = 10 * 60_000
    idle_exempt_users: frozenset[str] = frozenset()
    idle_exempt_tenants: frozenset[str] = frozenset()
    idle_exempts_interactive: bool = False
    idle_opt_out: bool = True
    longest_gap_ms: int = 60_000


NO_RULES = GpuRules()
"""No checks."""
