"""One thread that does what blocks, asked from an event loop and answered into it.

Like an executor with one worker, at half the cost: every commit passes here, also the one that
somebody waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
LONGEST_END_S = 5.0
"""The event loop stands still meanwhile, so a thread that is stuck is left behind."""


class CommitExecutor(Protocol):
    """Whoever does what blocks, so that the event loop need not wait for it."""

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do this, after all that was asked before; the future has what it returns or raises."""
        ...

    def close(self) -> None:
        """Finish what was asked."""
        ...


class StoreWriter:
    """Does one thing after the other, in the order in which it was asked."""

    def __init__(self) -> None:
        """The thread is started with the first thing to do."""
        self._asked: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._asked = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do this in the thread; the future has what it returns or raises."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            self._thread = Thread(target=self._work, name="commit", daemon=True)
            self._thread.start()
        self._asked.put((work, answer))
        return answer

    def close(self) -> None:
        """Finish what was asked, then end the thread."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join(LONGEST_END_S)
            self._thread = None

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            work, answer = asked
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                _answer(answer, None, error)
            else:
                _answer(answer, result, None)


def _answer(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    def settle() -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    answer.get_loop().call_soon_threadsafe(settle)


# --- A clock that never runs backwards and never stands still, whatever happens to the wall clock.

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
