"""The thread for blocking work of the control loop: commits and reads of the store.

`StoreWriter` is like an executor with one worker, at half the cost per call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
LONGEST_END_S = 5.0
"""How long `close` blocks the event loop for the thread; a stuck thread is abandoned."""


class CommitExecutor(Protocol):
    """Runs blocking work outside the event loop."""

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` after all earlier work; the future gets its result or error."""
        ...

    def close(self) -> None:
        """Finish the queued work."""
        ...


class StoreWriter:
    """Runs work in one thread, in the order of the calls."""

    def __init__(self) -> None:
        """The thread starts with the first call of `run`."""
        self._queue: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._queue = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` in the thread; the future gets its result or error."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._thread is None:
            self._thread = Thread(target=self._work, name="commit", daemon=True)
            self._thread.start()
        self._queue.put((work, answer))
        return answer

    def close(self) -> None:
        """Finish the queued work, then end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(LONGEST_END_S)
            self._thread = None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            work, answer = item
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                _answer(answer, None, error)
            else:
                _answer(answer, result, None)


def _answer(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    def deliver() -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    answer.get_loop().call_soon_threadsafe(deliver)
