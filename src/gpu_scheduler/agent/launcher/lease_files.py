"""The files of leases, and an alarm clock that keeps counting while the machine is suspended.

Each job with a lease has one small file: until when it may run, and how to find its processes. The
launcher writes them; the watchdog and the next launcher read them. The first line is the time
(CLOCK_BOOTTIME), and each renewal overwrites it in place, which needs no room on a full disk; the
second line never changes.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os

from gpu_scheduler.agent.launcher.messages import Key, Message

DIRECTORY = "leases"
DIGITS = 20
_READ_TRIES = 3
_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TIMER_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_NS_PER_MS = 1_000_000
_ITIMERSPEC = ctypes.c_long * 4


class Lease:
    """The content of one file. `kill` is the command that kills a container."""

    __slots__ = ("boot", "groups", "key", "kill", "path", "pid", "ticks", "uid", "until_ms")

    def __init__(self, path: str, until_ms: int, fields: Message) -> None:
        self.path = path
        self.until_ms = until_ms
        self.key: Key = (str(fields["allocation_id"]), int(fields["member"]))
        self.boot = str(fields["boot"])
        self.pid = int(fields["pid"])
        self.ticks = int(fields["ticks"])
        self.uid = int(fields["uid"])
        self.groups = tuple(str(path) for path in fields["groups"])
        self.kill = tuple(str(word) for word in fields["kill"])


def path_of(directory: str, key: Key) -> str:
    return os.path.join(directory, DIRECTORY, f"{key[0]}.{key[1]}")


def write(directory: str, key: Key, until_ms: int, fields: Message) -> None:
    """Make the file, whole or not at all."""
    path = path_of(directory, key)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fields = {"allocation_id": key[0], "member": key[1], **fields}
    fresh = f"{path}.new"
    target = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        text = f"{until_ms:0{DIGITS}d}\n{json.dumps(fields)}\n".encode(errors="surrogateescape")
        if os.write(target, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fresh)
    finally:
        os.close(target)
    os.rename(fresh, path)


def extend(directory: str, key: Key, until_ms: int) -> None:
    """Overwrite the time in a file that exists."""
    target = os.open(path_of(directory, key), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(target, f"{until_ms:0{DIGITS}d}".encode(), 0)
    finally:
        os.close(target)


def remove(directory: str, key: Key) -> None:
    """Remove the file. If the disk refuses, the watchdog finds no process to kill."""
    try:
        os.unlink(path_of(directory, key))
    except OSError:
        return


def read_all(directory: str) -> list[Lease]:
    """Every file that can be read, sorted by name."""
    place = os.path.join(directory, DIRECTORY)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    found = [_read(os.path.join(place, name)) for name in names if not name.endswith(".new")]
    return [lease for lease in found if lease is not None]


def _read(path: str) -> Lease | None:
    """Read until two reads agree: the time may be overwritten during a read."""
    before = b""
    for _ in range(_READ_TRIES):
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


class BootTimeAlarm:
    """A descriptor that becomes readable at a time of CLOCK_BOOTTIME.

    `poll` and `select` count by a clock that stands still while the machine is suspended, so they
    would notice a deadline that passed in that time late. Python has no timerfd before 3.13.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._library.timerfd_create(_CLOCK_BOOTTIME, _TIMER_FLAGS)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")

    def set(self, at_ms: int) -> None:
        """Fire at this time, in ms since the machine started; 0: never."""
        seconds, ms = divmod(max(0, at_ms), 1000)
        value = _ITIMERSPEC(0, 0, seconds, ms * _NS_PER_MS)
        if self._library.timerfd_settime(self.descriptor, _TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Make the descriptor unreadable until the alarm fires again."""
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return
