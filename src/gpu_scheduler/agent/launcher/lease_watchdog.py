"""The watchdog process: stops jobs whose lease has run out while no launcher runs.

Started as `python -I -m gpu_scheduler.agent.launcher.lease_watchdog --dir D --mark M`.

It does one thing: kill what still runs a moment after its lease has ended, so that a frozen or dead
launcher does not let a job run on. It reads the files of `lease_files`, and a byte on its standard
input wakes it. It ends when its launcher is gone and either no lease is left or the next launcher
has started its own watchdog.
"""

from __future__ import annotations

import os
import select
import signal
import sys

from gpu_scheduler.agent.cgroups.groups import Group
from gpu_scheduler.agent.launcher import lease_files, processes
from gpu_scheduler.agent.launcher.lease_files import BootTimeAlarm, Lease
from gpu_scheduler.agent.launcher.loop import now_ms

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
        for lease in lease_files.read_all(self._directory):
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


def _write_pid_file(directory: str) -> None:
    path = os.path.join(directory, PID_FILE)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{path}.new", path)


def _protect_from_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("-900")
    except OSError:
        return


def main(arguments: list[str]) -> int:
    if len(arguments) != 4 or arguments[0] != "--dir" or arguments[2] != "--mark":
        sys.stderr.write("usage: watchdog --dir DIRECTORY --mark MARK; the launcher starts it\n")
        return WRONG_ARGUMENTS
    for number in _IGNORED_SIGNALS:
        signal.signal(number, lambda *_: None)
    os.chdir("/")
    _write_pid_file(arguments[1])
    _protect_from_oom_killer()
    watch(arguments[1], arguments[3])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
