"""The files of leases, and the watchdog process that enforces them while no launcher does.

Each job with a lease has one small file: until when it may run, and how to find its processes. The
launcher writes them; the watchdog and the next launcher read them. The first line is the time
(CLOCK_BOOTTIME), and each renewal overwrites it in place, which needs no room on a full disk; the
second line never changes.

Started as `python -I -m gpu_scheduler.agent.launcher.lease_watchdog --dir D --mark M`, the watchdog
does one thing: kill what still runs a moment after its lease has ended, so that a frozen or dead
launcher does not let a job run on. A byte on its standard input wakes it. It ends when its launcher
is gone and either no lease is left or the next launcher has started its own watchdog.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import select
import signal
import sys
from contextlib import suppress

from gpu_scheduler.agent.cgroups import Group
from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.loop import now_ms
from gpu_scheduler.agent.launcher_protocol import Key, Message
from gpu_scheduler.agent.oom_score import PROTECTED, set_oom_score

DIRECTORY = "leases"
DIGITS = 20
_READ_TRIES = 3
_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TIMER_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK
_NS_PER_MS = 1_000_000
_ITIMERSPEC = ctypes.c_long * 4
DELAY_MS = 500
"""The launcher comes first, because it can report how the job ended."""
RETRY_MS = 100
SLOW_RETRY_MS = 2_000
ORPHAN_CHECK_MS = 1_000
EMPTY_SCANS = 3
"""After so many scans without a process of the job, the scans become rarer."""
PID_FILE = "guard.pid"
WRONG_ARGUMENTS = 2
_IGNORED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGPIPE,
)


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


def write_lease(directory: str, key: Key, until_ms: int, fields: Message) -> None:
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


def extend_lease(directory: str, key: Key, until_ms: int) -> None:
    """Overwrite the time in a file that exists."""
    target = os.open(path_of(directory, key), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(target, f"{until_ms:0{DIGITS}d}".encode(), 0)
    finally:
        os.close(target)


def remove_lease(directory: str, key: Key) -> None:
    """Remove the file. If the disk refuses, the watchdog finds no process to kill."""
    with suppress(OSError):
        os.unlink(path_of(directory, key))


def read_leases(directory: str) -> list[Lease]:
    """Every file that can be read, sorted by name."""
    place = os.path.join(directory, DIRECTORY)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return []
    leases = [_read_lease(os.path.join(place, name)) for name in names if not name.endswith(".new")]
    return [lease for lease in leases if lease is not None]


def _read_lease(path: str) -> Lease | None:
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
        with suppress(BlockingIOError):
            os.read(self.descriptor, 8)


class Watchdog:
    """Enforces the leases of one launcher."""

    def __init__(self, directory: str, mark: str) -> None:
        self._directory = directory
        self._mark = mark
        self._boot = processes.boot_id()
        self._empty_scans: dict[str, int] = {}
        self._engine_calls: dict[str, int] = {}

    def check(self) -> tuple[int, int]:
        """Kill overdue jobs; returns when to check again, and how many leases are not done."""
        next_ms, left = 0, 0
        for lease in read_leases(self._directory):
            if lease.boot != self._boot:
                continue
            due_ms = lease.until_ms + DELAY_MS
            if due_ms <= now_ms():
                is_empty = self._kill(lease)
                left += not is_empty
                due_ms = now_ms() + (SLOW_RETRY_MS if is_empty else RETRY_MS)
            else:
                self._empty_scans.pop(lease.path, None)
                left += 1
            next_ms = min(next_ms or due_ms, due_ms)
        return next_ms, left

    def _kill(self, lease: Lease) -> bool:
        """Kill all of one job; True when several scans in a row have found nothing of it."""
        group = Group(lease.groups)
        group.kill()
        found = set(group.pids()) | _job_pids(lease, self._mark)
        found -= {os.getpid()}
        processes.send(found, signal.SIGKILL)
        self._kill_container(lease)
        is_busy = found or lease.path in self._engine_calls
        count = 0 if is_busy else self._empty_scans.get(lease.path, 0) + 1
        self._empty_scans[lease.path] = count
        return count >= EMPTY_SCANS

    def _kill_container(self, lease: Lease) -> None:
        """Let the engine kill its container: those processes are not below the job's."""
        pid = self._engine_calls.get(lease.path, 0)
        if pid:
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._engine_calls[lease.path]
        elif lease.kill and self._empty_scans.get(lease.path, 0) < EMPTY_SCANS:
            no_streams = [
                (os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)
            ]
            try:
                self._engine_calls[lease.path] = os.posix_spawnp(
                    lease.kill[0], lease.kill, os.environ, file_actions=no_streams
                )
            except OSError:
                return  # the next check tries again


def _job_pids(lease: Lease, mark: str) -> set[int]:
    """The processes of a job, found by its first process, its session, or its environment.

    The kernel does not reuse the number of a session while a process is in it; so the processes of
    that session belong to the job, unless its first process is another one by now.
    """
    relatives = processes.family()
    ticks = processes.start_ticks(lease.pid)
    roots = {lease.pid} if ticks and ticks == lease.ticks else set()
    if not ticks or ticks == lease.ticks:
        roots |= {pid for pid, (_, session) in relatives.items() if session == lease.pid}
    roots |= {
        pid
        for pid in relatives
        if processes.owner(pid, mark) == lease.key and processes.user_of(pid) in {lease.uid, 0}
    }
    return processes.descendants(roots, relatives)


def watch(directory: str, mark: str) -> None:
    """Enforce leases until the watchdog is not needed any more."""
    watchdog = Watchdog(directory, mark)
    alarm = BootTimeAlarm()
    poller = select.poll()
    poller.register(alarm.descriptor, select.POLLIN)
    poller.register(0, select.POLLIN)
    launcher_gone = False
    while True:
        next_ms, left = watchdog.check()
        if launcher_gone and (not left or _is_replaced(directory)):
            return
        if launcher_gone:
            soon_ms = now_ms() + ORPHAN_CHECK_MS
            next_ms = min(next_ms or soon_ms, soon_ms)
        alarm.set(next_ms)
        for descriptor, _ in poller.poll():
            if descriptor == alarm.descriptor:
                alarm.clear()
            elif not os.read(0, 4096):
                poller.unregister(0)
                launcher_gone = True


def _is_replaced(directory: str) -> bool:
    """Tell whether a later launcher has a watchdog of its own."""
    try:
        with open(os.path.join(directory, PID_FILE), encoding="ascii") as file:
            return file.read().strip() != str(os.getpid())
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    if len(arguments) != 4 or arguments[0] != "--dir" or arguments[2] != "--mark":
        sys.stderr.write("usage: watchdog --dir DIRECTORY --mark MARK; the launcher starts it\n")
        return WRONG_ARGUMENTS
    for number in _IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    os.chdir("/")
    pid_file = os.path.join(arguments[1], PID_FILE)
    with open(f"{pid_file}.new", "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{pid_file}.new", pid_file)
    set_oom_score(PROTECTED)
    watch(arguments[1], arguments[3])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
