"""How fast one caller may go: a bucket that fills with time, and of which every request takes one.

Requests come in by who makes them; nothing, or a refusal with when to try again, goes out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpu_scheduler.api.http.errors import TooFast, TooMany

MOST_BUCKETS = 10_000


class RateLimit:
    """The buckets of all callers. A rate of 0 means that nobody is held back."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """All buckets are full."""
        self._rate = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> None:
        """One request of this caller."""
        if not self._rate:
            return
        now = self._clock()
        left, since = self._buckets.get(who, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        if left < 1.0:
            self._buckets[who] = (left, now)
            wait_s = math.ceil((1.0 - left) / self._rate)
            raise TooFast(
                f"this caller sends more than {self._rate:g} requests a second "
                f"(api.requests_per_second); try again in {wait_s} s",
                retry_after_s=wait_s,
            )
        if who not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            self._forget_full(now)
        self._buckets[who] = (left - 1.0, now)

    def _forget_full(self, now: float) -> None:
        """Whoever has not called for long has a full bucket, and needs none."""
        self._buckets = {
            who: (left, since)
            for who, (left, since) in self._buckets.items()
            if left + (now - since) * self._rate < self._burst
        }


# --- How much one user may have open at once.


class ConcurrencyLimit:
    """So many for each user, of one kind."""

    def __init__(self, most: int, what: str) -> None:
        """`what` names the kind, in the plural."""
        self._most = most
        self._what = what
        self._open: dict[str, int] = {}

    @contextmanager
    def hold(self, user: str) -> Iterator[None]:
        """Hold one while something is open; refuse if the user has all of them."""
        if self._open.get(user, 0) >= self._most:
            raise TooMany(
                f"this user has {self._most} {self._what} open, and no more are allowed; "
                "close one of them"
            )
        self._open[user] = self._open.get(user, 0) + 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
