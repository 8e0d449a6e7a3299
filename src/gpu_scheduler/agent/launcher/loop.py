"""Waiting for many things at once: descriptors, timers, children.

One thread. Callbacks must be short; what takes long is a child process of its own. Time is
CLOCK_BOOTTIME in milliseconds, so that limits hold across suspended hours and stepped clocks.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import signal
import time
from collections.abc import Callable

from gpu_scheduler.agent.launcher.logs import own_log

Callback = Callable[[], None]
LONGEST_WAIT_MS = 60_000


def now_ms() -> int:
    """Milliseconds since the machine started, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def write_down(error: Exception) -> None:
    """Into the launcher's log, with all that led to it."""
    own_log.fail(error)


class Timer:
    """One thing to do later, and nothing any more once it is done. Cancelling twice is harmless."""

    __slots__ = ("callback", "due_ms")

    def __init__(self, due_ms: int, callback: Callback) -> None:
        self.due_ms = due_ms
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Descriptors by epoll, timers and the end of children.

    What fails in a callback costs that callback; `failed` hears of it, and the loop goes on.
    """

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._watched: dict[int, tuple[int, Callback]] = {}
        self._timers: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._exits: dict[int, Callable[[int], None]] = {}
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._child_ended = False
        self.failed: Callable[[Exception], None] = write_down
        self.add(self._wake, self._drain)

    def catch_children(self) -> None:
        """From now on the end of any child wakes the loop."""
        signal.signal(signal.SIGCHLD, self._on_child)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def _on_child(self, number: int, frame: object) -> None:
        del number, frame
        self._child_ended = True

    def _drain(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            return

    def add(self, descriptor: int, callback: Callback, *, writing: bool = False) -> None:
        """Call back when there is something to read, or also when there is room to write."""
        events = select.EPOLLIN | (select.EPOLLOUT if writing else 0)
        known = self._watched.get(descriptor)
        if known is None:
            self._poll.register(descriptor, events)
        elif known[0] != events:
            self._poll.modify(descriptor, events)
        self._watched[descriptor] = (events, callback)

    def drop(self, descriptor: int) -> None:
        """Wait for it no more; harmless if nobody did."""
        if self._watched.pop(descriptor, None) is not None:
            # One that was closed is waited for no more anyway.
            with contextlib.suppress(OSError):
                self._poll.unregister(descriptor)

    def after(self, wait_ms: float, callback: Callback) -> Timer:
        timer = Timer(now_ms() + max(0, int(wait_ms)), callback)
        self._count += 1
        heapq.heappush(self._timers, (timer.due_ms, self._count, timer))
        return timer

    def at_exit(self, pid: int, callback: Callable[[int], None]) -> None:
        """Call back with the wait status when this child has ended."""
        self._exits[pid] = callback

    @property
    def known_children(self) -> dict[int, Callable[[int], None]]:
        return self._exits

    def call(self, callback: Callable[..., None], *values: object) -> bool:
        """Call, and survive it; False if it failed."""
        try:
            callback(*values)
        except Exception as error:  # noqa: BLE001 - one job's trouble must not become everybody's
            self.failed(error)
            return False
        return True

    def turn(self) -> None:
        """Wait for something, then do all that is due."""
        watched = self._watched
        ready = [(found, watched.get(found)) for found, _ in self._poll.poll(self._wait_seconds())]
        for descriptor, waits in ready:
            # By now the number may be that of another, about which nothing was said.
            if waits is None or watched.get(descriptor) is not waits:
                continue
            if not self.call(waits[1]):
                # It would be called again at once, and for ever.
                self.drop(descriptor)
        if self._child_ended:
            self._child_ended = False
            self._reap()
        self._run_timers()

    def _wait_seconds(self) -> float:
        while self._timers and self._timers[0][2].callback is None:
            heapq.heappop(self._timers)
        if self._child_ended:
            return 0
        wait_ms = self._timers[0][0] - now_ms() if self._timers else LONGEST_WAIT_MS
        return min(max(0, wait_ms), LONGEST_WAIT_MS) / 1000

    def _run_timers(self) -> None:
        now = now_ms()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self.call(callback)

    def _reap(self) -> None:
        """Bury every child that has ended, orphans of jobs too: a subreaper inherits them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            callback = self._exits.pop(pid, None)
            if callback is not None:
                self.call(callback, status)
