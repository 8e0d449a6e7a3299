"""A circuit breaker around the reading of devices.

Closed, every look asks the source. After some failures in a row it opens: the source is left alone
for a while that doubles, and the last readings hold. Then one look may try (half-open); if it works
the breaker closes. A failure is never raised: it is a problem in words beside the last readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpu_scheduler.agent.devices.inventory import DeviceSource, DevicesUnreadable, Reading


class BreakerState(StrEnum):
    """Whether the source is asked."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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

    def read(self) -> Held:
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
        return Held(readings=self._last)

    def _count_failure(self) -> None:
        now = self._clock()
        self._failures += 1
        if self._open_until is not None:
            self._backoff_s = min(self._backoff_s * 2, self._most_backoff_s)
        if self._failures >= self._most_failures:
            self._open_until = now + self._backoff_s

    def _held(self) -> Held:
        now = self._clock()
        parts = [f"GPUs cannot be read: {self._problem}"]
        if self._read_at is not None:
            parts.append(f"the last readings are {now - self._read_at:.0f} s old")
        if self._open_until is not None and now < self._open_until:
            parts.append(f"next try in {self._open_until - now:.0f} s")
        return Held(readings=self._last, stale=True, problem="; ".join(parts))
