"""A limit on how long a source may take.

A call that hangs in the driver cannot be ended, only left behind: it keeps its own thread, and no
second one is started until it is back. So a hanging driver costs one thread, never the agent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpu_scheduler.agent.devices.inventory import (
    DeviceSource,
    DevicesUnreadable,
    Found,
    Reading,
)

T = TypeVar("T")
NAME = "devices"
"""Of the threads that ask a driver."""


def a_call_hangs() -> bool:
    """Tell whether some source of this process has left a call behind that is not back."""
    return any(thread.name == NAME for thread in threading.enumerate())


class Bounded:
    """A source whose calls end after a deadline, with DevicesUnreadable if need be."""

    def __init__(
        self,
        source: DeviceSource,
        *,
        deadline_s: float = 5.0,
        find_deadline_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._find_deadline_s = find_deadline_s
        self._clock = clock
        self._left_behind: tuple[threading.Thread, float] | None = None

    def find(self) -> Found:
        return self._call(self._source.find, self._find_deadline_s)

    def read(self) -> list[Reading]:
        return self._call(self._source.read, self._deadline_s)

    def close(self) -> None:
        """Close the source, unless one of its calls still hangs."""
        try:
            self._call(self._source.close, self._deadline_s)
        except DevicesUnreadable:
            return

    def _call(self, work: Callable[[], T], deadline_s: float) -> T:
        self._refuse_while_one_hangs()
        call = _Call(work)
        thread = threading.Thread(target=call.run, name=NAME, daemon=True)
        began = self._clock()
        thread.start()
        thread.join(deadline_s)
        if thread.is_alive():
            self._left_behind = thread, began
            raise DevicesUnreadable(
                f"the GPU driver did not answer within {deadline_s:g} s; it may be hanging"
            )
        return call.result()

    def _refuse_while_one_hangs(self) -> None:
        if self._left_behind is None:
            return
        thread, began = self._left_behind
        if thread.is_alive():
            raise DevicesUnreadable(
                f"the GPU driver has not answered for {self._clock() - began:.0f} s; "
                "it is asked again when that call is back"
            )
        self._left_behind = None


class _Call(Generic[T]):
    """One call in a thread: its answer or its error, kept for the one who asked."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._answers: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is awaited
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answers[0]
