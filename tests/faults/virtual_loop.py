"""An asyncio event loop on virtual time, whose parts can be killed and frozen.

Nothing waits: when nothing is ready, the clock advances to the next timer. There are no threads,
sockets or randomness, so the same program always does the same things in the same order.

Everything that runs belongs to a part (an agent, a server), which its context names. Pending work
of a dead part is never done, not even its `finally` blocks, as with SIGKILL. Pending work of a
frozen part is done when it thaws.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

MOST_CALLS = 200_000
"""A run that has not ended after so many calls never will."""

ROUNDS = 10
"""How often waiting tasks are cancelled at the end: some have to finish something first."""


class Endless(Exception):
    """The future will never complete; the text says why."""


class Part:
    """Something that is killed or frozen as a whole, like a process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.is_frozen = False
        self.parked: list[Call] = []


_PART: ContextVar[Part | None] = ContextVar("part", default=None)


def part_name() -> str:
    """The part that runs now."""
    part = _PART.get()
    return "" if part is None else part.name


class Call:
    """Something to run, now or later; asyncio calls it a handle."""

    __slots__ = ("args", "at", "callback", "context", "is_cancelled", "part")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, at: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.part = context.get(_PART)
        self.at = at
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.at


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs calls in the order in which they are due, and simultaneous ones in order of arrival."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[Call] = deque()
        self._timers: list[tuple[float, int, Call]] = []
        self._numbers = itertools.count()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._graves: list[Call] = []
        self._is_ending = False
        self.calls = 0
        self.failures: list[str] = []
        self._nobody = copy_context()

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Any:
        call = Call(callback, args, copy_context() if context is None else context, self._now)
        self._ready.append(call)
        return call

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Any:
        call = Call(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None), context=self._nobody)
        return task

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call it in a later turn, as the part that asked: there are no threads."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)

        self.call_soon(call)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{context['message']}: {error!r}")

    # --- parts

    def start(self, part: Part, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run this as a part."""
        return self.create_task(work, context=self._context_of(part))

    def tell(
        self, part: Part | None, delay: float, callback: Callable[..., object], *args: Any
    ) -> Any:
        """Run this as a part after a while; None is no part, which never dies."""
        context = self._nobody if part is None else self._context_of(part)
        return self.call_later(delay, callback, *args, context=context)

    def freeze(self, part: Part) -> None:
        part.is_frozen = True

    def thaw(self, part: Part) -> None:
        """Run everything that it has missed, in order."""
        part.is_frozen = False
        self._ready.extend(part.parked)
        part.parked.clear()

    def kill(self, part: Part) -> None:
        part.is_dead = True
        for call in part.parked:
            self._drop_calls_of_dead_parts(call)
        part.parked.clear()

    def _drop_calls_of_dead_parts(self, call: Call) -> None:
        """Steps of tasks are kept: a task that lost one could not even be cancelled at the end."""
        if isinstance(getattr(call.callback, "__self__", None), asyncio.Task):
            self._graves.append(call)

    def _context_of(self, part: Part) -> Context:
        context = self._nobody.copy()
        context.run(_PART.set, part)
        return context

    # --- running

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run until this is done."""
        with _running(self):
            task = self.create_task(work)
            try:
                while not task.done():
                    if not self._ready and not self._advance():
                        raise Endless("everybody waits and nothing can happen any more")
                    self._turn()
                return task.result()
            finally:
                self._end()

    def _advance(self) -> bool:
        """Advance to the next timer."""
        while self._timers:
            when, _, call = self._timers[0]
            if call.is_cancelled:
                heapq.heappop(self._timers)
                continue
            self._now = max(self._now, when)
            while self._timers and self._timers[0][0] <= self._now:
                self._ready.append(heapq.heappop(self._timers)[2])
            return True
        return False

    def _turn(self) -> None:
        self.calls += 1
        # Tasks cancelled at the end of an endless run need some turns for that.
        if self.calls > (2 if self._is_ending else 1) * MOST_CALLS:
            raise Endless(f"no end after {MOST_CALLS} calls")
        call = self._ready.popleft()
        if call.is_cancelled:
            return
        part = call.part
        if part is not None and not self._is_ending:
            if part.is_dead:
                self._drop_calls_of_dead_parts(call)
                return
            if part.is_frozen:
                part.parked.append(call)
                return
        try:
            call.context.run(call.callback, *call.args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - a callback that fails is a finding
            self.failures.append(f"a callback failed: {error!r}")

    def _end(self) -> None:
        """Cancel all waiting tasks, also those of dead parts; their effects no longer count."""
        failures, self.failures = self.failures, []
        self._is_ending = True
        self._timers.clear()
        for call in self._ready:
            self._drop_calls_of_dead_parts(call)
        self._ready.clear()
        for _ in range(ROUNDS):
            for task in list(self._tasks):
                task.cancel()
            self._ready.extend(self._graves)
            self._graves.clear()
            while self._ready:
                self._turn()
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.failures = failures


@contextmanager
def _running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    before = events._get_running_loop()
    events._set_running_loop(loop)
    try:
        yield
    finally:
        events._set_running_loop(before)
