"""A clock that never runs backwards and never stands still, whatever happens to the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable

LARGEST_LAG_MS = 1_000


class SteadyClock:
    """Wall time in ms that advances with the monotonic clock.

    A wall clock that steps forward is followed; one that steps back is not, as every time that was
    written would lie in the future.
    """

    def __init__(
        self,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        """Begin at the wall clock's time."""
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._offset_ms = wall_ms() - monotonic_ms()

    def now_ms(self) -> int:
        """The time, never before an earlier answer."""
        now_ms = self._monotonic_ms() + self._offset_ms
        ahead_ms = self._wall_ms() - now_ms
        if ahead_ms > LARGEST_LAG_MS:
            self._offset_ms += ahead_ms
            now_ms += ahead_ms
        return now_ms

    def not_before(self, at_ms: int) -> None:
        """Times up to this one have been written: go on from there."""
        behind_ms = at_ms - self.now_ms()
        if behind_ms > 0:
            self._offset_ms += behind_ms
