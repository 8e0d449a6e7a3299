"""One small file for each job that has a lease: until when it may run, and how to find it.

The launcher writes them, its guard reads them, and so does the next launcher. The first line is the
time (CLOCK_BOOTTIME) and is written over in place with each renewal, which needs no room on a disk
that is full; the second line stays as it is.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os

from gpu_scheduler.agent.launcher.messages import Form, Key

DIRECTORY = "leases"
DIGITS = 20
_TRIES = 3


class Lease:
    """What stands in one file. `groups` are control groups, `kill` what ends a container."""

    __slots__ = ("boot", "groups", "key", "kill", "path", "pid", "ticks", "uid", "until_ms")

    def __init__(self, path: str, until_ms: int, form: Form) -> None:
        self.path = path
        self.until_ms = until_ms
        self.key: Key = (str(form["allocation_id"]), int(form["member"]))
        self.boot = str(form["boot"])
        self.pid = int(form["pid"])
        self.ticks = int(form["ticks"])
        self.uid = int(form["uid"])
        self.groups = tuple(str(path) for path in form["groups"])
        self.kill = tuple(str(word) for word in form["kill"])


def path_of(directory: str, key: Key) -> str:
    return os.path.join(directory, DIRECTORY, f"{key[0]}.{key[1]}")


def write(directory: str, key: Key, until_ms: int, form: Form) -> None:
    """Make the file, whole or not at all."""
    path = path_of(directory, key)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    named = {"allocation_id": key[0], "member": key[1], **form}
    fresh = f"{path}.new"
    target = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        text = f"{until_ms:0{DIGITS}d}\n{json.dumps(named)}\n".encode(errors="surrogateescape")
        if os.write(target, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fresh)
    finally:
        os.close(target)
    os.rename(fresh, path)


def extend(directory: str, key: Key, until_ms: int) -> None:
    """Write another time into a file that is there."""
    target = os.open(path_of(directory, key), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(target, f"{until_ms:0{DIGITS}d}".encode(), 0)
    finally:
        os.close(target)


def remove(directory: str, key: Key) -> None:
    """Take it away. If the disk refuses, the guard finds nothing to kill; the end is told."""
    try:
        os.unlink(path_of(directory, key))
    except OSError:
        return


def read_all(directory: str) -> list[Lease]:
    """Every file that can be read, in the order of names."""
    place = os.path.join(directory, DIRECTORY)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    found = [_read(os.path.join(place, name)) for name in names if not name.endswith(".new")]
    return [lease for lease in found if lease is not None]


def _read(path: str) -> Lease | None:
    """A time that is being written over while it is read differs when it is read again."""
    before = b""
    for _ in range(_TRIES):
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError:
            return None
        if text == before:
            break
        before = text
    first, _, rest = before.partition(b"\n")
    try:
        return Lease(path, int(first), json.loads(rest))
    except (ValueError, KeyError, TypeError):
        return None


# --- An alarm by CLOCK_BOOTTIME: it goes off also when the machine has slept past its time.
#
# Waiting in `poll` or `select` is counted by a clock that stands still while the machine sleeps,
# so a
# deadline that passed in that time would be noticed late. Python knows no timerfd before 3.13.

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
