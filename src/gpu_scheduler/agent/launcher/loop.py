"""The launcher's event loop: descriptors, timers and the end of children, in one thread.

A callback is registered with its arguments and must be short; what takes long is a child process.
An exception in a callback goes to `on_error` together with those arguments, and the loop goes on.
Time is CLOCK_BOOTTIME in milliseconds, so that limits hold across suspend and stepped clocks.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import select
import signal
import time
from collections.abc import Callable

from gpu_scheduler.agent.launcher.log_rotation import launcher_log

Callback = Callable[..., None]
Arguments = tuple[object, ...]
MAX_WAIT_MS = 60_000


def now_ms() -> int:
    """Milliseconds since the machine started, suspended time included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def log_error(error: Exception, arguments: Arguments) -> None:
    """Write an unexpected exception with its traceback to the launcher's log."""
    del arguments
    launcher_log.error(error)


class Timer:
    """One pending call; `callback` is None once it was made or cancelled."""

    __slots__ = ("arguments", "callback", "due_ms")

    def __init__(self, due_ms: int, callback: Callback, arguments: Arguments) -> None:
        self.due_ms = due_ms
        self.callback: Callback | None = callback
        self.arguments = arguments

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Waits with epoll and calls what is due. `known_children` has the callback of each child."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._watched: dict[int, tuple[int, Callback, Arguments]] = {}
        self._timers: list[tuple[int, int, Timer]] = []
        self._count = 0
        self.known_children: dict[int, tuple[Callback, Arguments]] = {}
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._child_ended = False
        self.on_error: Callable[[Exception, Arguments], None] = log_error
        self.add(self._wake_reader, self._drain)

    def catch_children(self) -> None:
        """From now on the end of any child wakes the loop."""
        signal.signal(signal.SIGCHLD, self._on_sigchld)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def _on_sigchld(self, number: int, frame: object) -> None:
        del number, frame
        self._child_ended = True

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reader, 4096):
                pass

    def add(
        self, descriptor: int, callback: Callback, *arguments: object, writing: bool = False
    ) -> None:
        """Call back when the descriptor is readable, with `writing` also when it is writable."""
        events = select.EPOLLIN | (select.EPOLLOUT if writing else 0)
        known = self._watched.get(descriptor)
        if known is None:
            self._poll.register(descriptor, events)
        elif known[0] != events:
            self._poll.modify(descriptor, events)
        self._watched[descriptor] = (events, callback, arguments)

    def drop(self, descriptor: int) -> None:
        """Stop watching a descriptor; harmless if it was not watched."""
        if self._watched.pop(descriptor, None) is not None:
            # The kernel has already dropped a descriptor that was closed.
            with contextlib.suppress(OSError):
                self._poll.unregister(descriptor)

    def after(self, wait_ms: float, callback: Callback, *arguments: object) -> Timer:
        timer = Timer(now_ms() + max(0, int(wait_ms)), callback, arguments)
        self._count += 1
        heapq.heappush(self._timers, (timer.due_ms, self._count, timer))
        return timer

    def at_exit(self, pid: int, callback: Callback, *arguments: object) -> None:
        """Call back with the arguments and the wait status when this child has ended."""
        self.known_children[pid] = (callback, arguments)

    def call(self, callback: Callback, *arguments: object) -> bool:
        """Call back; an exception goes to `on_error`. Returns False if there was one."""
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - an error over one job must not stop the others
            self.on_error(error, arguments)
            return False
        return True

    def turn(self) -> None:
        """Wait for something to happen, then call everything that is due."""
        watched = self._watched
        polled = self._poll.poll(self._wait_seconds())
        ready = [(descriptor, watched.get(descriptor)) for descriptor, _ in polled]
        for descriptor, entry in ready:
            # A callback before this one may have closed the descriptor and reused its number.
            if entry is None or watched.get(descriptor) is not entry:
                continue
            if not self.call(entry[1], *entry[2]):
                # The descriptor is still ready: the failing callback would be called for ever.
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
        wait_ms = self._timers[0][0] - now_ms() if self._timers else MAX_WAIT_MS
        return min(max(0, wait_ms), MAX_WAIT_MS) / 1000

    def _run_timers(self) -> None:
        now = now_ms()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                self.call(callback, *timer.arguments)

    def _reap(self) -> None:
        """Reap every child that has ended, also orphans that a subreaper inherits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            known = self.known_children.pop(pid, None)
            if known is not None:
                self.call(known[0], *known[1], status)
