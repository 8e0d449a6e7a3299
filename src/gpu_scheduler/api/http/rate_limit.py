"""Limits per caller: requests per second (token bucket), and streams open at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_scheduler.api.http.errors import TooFast, TooMany

MOST_BUCKETS = 10_000


class RateLimit:
    """A token bucket for each caller. A rate of 0 means no limit."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with full buckets."""
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str) -> None:
        """Take a token for one request of this caller, or raise `TooFast`."""
        if not self._rate:
            return
        now = self._clock()
        left, since = self._buckets.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        if left < 1.0:
            self._buckets[caller] = (left, now)
            wait_s = math.ceil((1.0 - left) / self._rate)
            raise TooFast(
                f"this caller sends more than {self._rate:g} requests a second "
                f"(api.requests_per_second); try again in {wait_s} s",
                retry_after_s=wait_s,
            )
        if caller not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            self._drop_full(now)
        self._buckets[caller] = (left - 1.0, now)

    def _drop_full(self, now: float) -> None:
        """Drop full buckets: their callers have not called for long."""
        self._buckets = {
            caller: (left, since)
            for caller, (left, since) in self._buckets.items()
            if left + (now - since) * self._rate < self._burst
        }


class ConcurrencyLimit:
    """How many streams of one kind each user may have open."""

    def __init__(self, most: int, kind: str) -> None:
        """`kind` names the kind of stream, in the plural."""
        self._most = most
        self._kind = kind
        self._open: dict[str, int] = {}

    @contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Count one stream while the block runs; raise `TooMany` at the limit."""
        if self._open.get(user, 0) >= self._most:
            raise TooMany(
                f"this user already has {self._most} {self._kind} open, which is the limit; "
                "close one of them"
            )
        self._open[user] = self._open.get(user, 0) + 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
