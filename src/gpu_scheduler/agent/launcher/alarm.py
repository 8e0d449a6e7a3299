"""An alarm by CLOCK_BOOTTIME: it goes off also when the machine has slept past its time.

Waiting in `poll` or `select` is counted by a clock that stands still while the machine sleeps, so a
deadline that passed in that time would be noticed late. Python knows no timerfd before 3.13.
"""

from __future__ import annotations

import ctypes
import os

_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_NS = 1_000_000
_FOUR_LONGS = ctypes.c_long * 4


class Alarm:
    """A descriptor that can be read when the time has come."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._library.timerfd_create(_CLOCK_BOOTTIME, _FLAGS)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ms: int) -> None:
        """Go off at this time, in ms since the machine started; 0: never."""
        seconds, ms = divmod(max(0, at_ms), 1000)
        value = _FOUR_LONGS(0, 0, seconds, ms * _NS)
        if self._library.timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def hear(self) -> None:
        """Be quiet until the next time."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return
