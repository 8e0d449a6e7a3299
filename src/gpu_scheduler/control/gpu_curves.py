"""The readings of a GPU while an attempt held it, from its start to its end, in bounded memory.

Samples come in; means over equal steps go out. When all steps are used, pairs of them are joined
and the step doubles: a curve always covers the whole attempt. Curves are kept in memory only.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

from gpu_scheduler.control.messages import DeviceSample

STEPS = 240
FIRST_STEP_MS = 5_000
ENDED_KEPT = 500
"""So many ended attempts keep their curves, ..."""
ENDED_CURVES_KEPT = 2_000
"""... if they held no more GPUs than this, with at most 13 kB each. The last attempt keeps all."""

Place = tuple[str, int]
"""A device: node and index."""


@dataclass(slots=True)
class Mean:
    """The mean of one quantity in each step; `counts` are the samples, 0 where there are none."""

    values: array[float] = field(default_factory=lambda: array("f"))
    counts: array[int] = field(default_factory=lambda: array("L"))

    def add(self, step: int, value: float | None) -> None:
        """Add a sample, or None if the device does not measure this."""
        missing = step + 1 - len(self.values)
        self.values.extend([0.0] * missing)
        self.counts.extend([0] * missing)
        if value is not None:
            self.counts[step] += 1
            self.values[step] += (value - self.values[step]) / self.counts[step]

    def join_pairs(self) -> None:
        """Halve the number of steps."""
        values, counts = array("f"), array("L")
        for first in range(0, len(self.values), 2):
            pair = slice(first, first + 2)
            count = sum(self.counts[pair])
            total = sum(v * c for v, c in zip(self.values[pair], self.counts[pair], strict=True))
            values.append(total / count if count else 0.0)
            counts.append(count)
        self.values, self.counts = values, counts

    def shown(self) -> list[float | None]:
        """The means, rounded; None where there are none."""
        pairs = zip(self.values, self.counts, strict=True)
        return [round(value, 1) if count else None for value, count in pairs]


@dataclass(slots=True)
class GpuCurve:
    """The readings of one device during one attempt."""

    start_ms: int
    step_ms: int = FIRST_STEP_MS
    utilisation_percent: Mean = field(default_factory=Mean)
    memory_used_mb: Mean = field(default_factory=Mean)
    power_watts: Mean = field(default_factory=Mean)
    temperature_c: Mean = field(default_factory=Mean)

    def add(self, sample: DeviceSample, now_ms: int) -> None:
        """Add a sample; one from before the start counts as at the start."""
        step = max(0, now_ms - self.start_ms) // self.step_ms
        means = (
            self.utilisation_percent,
            self.memory_used_mb,
            self.power_watts,
            self.temperature_c,
        )
        while step >= STEPS:
            for mean in means:
                mean.join_pairs()
            self.step_ms *= 2
            step //= 2
        power = None if sample.power_mw is None else sample.power_mw / 1000
        # A temperature of 0 means that the device has no sensor.
        values = (sample.load_percent, sample.memory_used_mb, power, sample.temperature_c or None)
        for mean, value in zip(means, values, strict=True):
            mean.add(step, value)


class GpuCurves:
    """The curves of all running attempts, and of the last ones that ended, by allocation id."""

    def __init__(self) -> None:
        """Start without curves."""
        self._running: dict[str, dict[Place, GpuCurve]] = {}
        self._ended: OrderedDict[str, dict[Place, GpuCurve]] = OrderedDict()

    def add(
        self, allocation_id: str, start_ms: int, node_id: str, sample: DeviceSample, now_ms: int
    ) -> None:
        """Add a sample of a device that a running attempt holds."""
        curves = self._running.setdefault(allocation_id, {})
        place = (node_id, sample.index)
        if place not in curves:
            curves[place] = GpuCurve(start_ms)
        curves[place].add(sample, now_ms)

    def end(self, allocation_id: str) -> None:
        """Keep the curves of an ended attempt until many others have ended."""
        curves = self._running.pop(allocation_id, None)
        if curves is None:
            return
        self._ended[allocation_id] = curves
        kept = sum(map(len, self._ended.values()))
        while len(self._ended) > 1 and (len(self._ended) > ENDED_KEPT or kept > ENDED_CURVES_KEPT):
            _, dropped = self._ended.popitem(last=False)
            kept -= len(dropped)

    def of(self, allocation_id: str) -> dict[Place, GpuCurve]:
        """The curves of an attempt by device; empty if there are none."""
        return self._running.get(allocation_id) or self._ended.get(allocation_id) or {}
