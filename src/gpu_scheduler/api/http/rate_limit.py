"""Limits per caller: requests per second and bytes per hour (token buckets), streams, threads."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from gpu_scheduler.api.http.errors import TooFast, TooMany

T = TypeVar("T")

MOST_BUCKETS = 10_000
THREADS = 32
THREADS_PER_CALLER = 3
CALLER: ContextVar[str] = ContextVar("CALLER", default="")
"""Who waits for what the current task reads; empty for the server itself and for admins."""


class RateLimit:
    """A token bucket for each caller. A rate of 0 means no limit."""

    def __init__(
        self,
        per_second: float,
        burst: float,
        *,
        excess: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with full buckets. `excess` says in an error what a caller does too much."""
        self._rate = per_second
        self._burst = float(burst)
        self._excess = excess or (
            f"sends more than {per_second:g} requests a second (api.requests_per_second)"
        )
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, caller: str, amount: float = 1.0) -> None:
        """Take tokens for one request of this caller, or raise `TooFast`."""
        if not self._rate:
            return
        now = self._clock()
        left, since = self._buckets.get(caller, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._rate)
        amount = min(amount, self._burst)
        if left < amount:
            self._buckets[caller] = (left, now)
            wait_s = math.ceil((amount - left) / self._rate)
            raise TooFast(
                f"this caller {self._excess}; try again in {wait_s} s", retry_after_s=wait_s
            )
        if caller not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            self._drop_full(now)
        self._buckets[caller] = (left - amount, now)

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
    def hold(self, user: str, streams: int = 1) -> Iterator[None]:
        """Count streams while the block runs; raise `TooMany` at the limit.

        The first ones of a user are always accepted.
        """
        is_open = self._open.get(user, 0)
        if is_open and is_open + streams > self._most:
            raise TooMany(
                f"this user has {is_open} {self._kind} open, and the limit is {self._most}; "
                "close one of them"
            )
        self._open[user] = is_open + streams
        try:
            yield
        finally:
            self._open[user] = self._open.get(user, 0) - streams
            if not self._open[user]:
                del self._open[user]


class FairThreads(ThreadPoolExecutor):
    """The threads in which handlers read the database: no caller takes more than a few.

    It replaces the default executor of the event loop, so that `asyncio.to_thread` uses it. The
    reads of one `CALLER` wait for each other; those of others do not wait for them.
    """

    def __init__(self, threads: int = THREADS, most: int = THREADS_PER_CALLER) -> None:
        """One caller may use `most` of all threads."""
        super().__init__(threads, thread_name_prefix="read")
        self._most = most
        self._counting = Lock()
        self._running: dict[str, int] = {}
        self._queued: dict[str, deque[Callable[[], None]]] = {}

    def submit(self, call: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        """Run a call in a thread, now or after earlier ones of the same caller."""
        caller = CALLER.get()
        if not caller:
            return super().submit(call, *args, **named)
        future: Future[T] = Future()
        work = partial(self._run, caller, future, partial(call, *args, **named))
        with self._counting:
            if self._running.get(caller, 0) >= self._most:
                self._queued.setdefault(caller, deque()).append(work)
                return future
            self._running[caller] = self._running.get(caller, 0) + 1
        super().submit(work)
        return future

    def _run(self, caller: str, future: Future[T], call: Callable[[], T]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the caller of the future raises it
            future.set_exception(error)
        finally:
            self._start_next(caller)

    def _start_next(self, caller: str) -> None:
        """Start the next call of the caller behind those of others that wait for a thread."""
        with self._counting:
            queued = self._queued.get(caller)
            work = queued.popleft() if queued else None
            if not queued:
                self._queued.pop(caller, None)
            if work is None:
                self._running[caller] -= 1
                if not self._running[caller]:
                    del self._running[caller]
        if work is not None:
            super().submit(work)
