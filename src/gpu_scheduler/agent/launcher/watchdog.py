"""The watchdog process: stops jobs whose lease has run out while no launcher runs.

Started as `python -I -m gpu_scheduler.agent.launcher.watchdog --dir D --mark M`.

A process of its own that does one thing: kill what still runs a moment after its lease has ended.
So a launcher that is frozen or dead lets nobody run on. It reads the files of `lease_files`, is
woken by a byte on its standard input, and goes when the launcher is gone and nothing is left to
guard, or another guard has come.
"""

from __future__ import annotations

import os
import select
import signal
import sys

from gpu_scheduler.agent.cgroups.groups import Group
from gpu_scheduler.agent.launcher import lease_files, processes
from gpu_scheduler.agent.launcher.lease_files import Alarm, Lease
from gpu_scheduler.agent.launcher.loop import now_ms

AFTER_MS = 500
"""The launcher itself comes first: it can tell how the job ended."""
AGAIN_MS = 100
SLOWLY_MS = 2_000
ALONE_LOOK_MS = 1_000
EMPTY_LOOKS = 3
"""So often nothing must be found of a job before it is looked for less often."""
PID_FILE = "guard.pid"
WRONG_ARGUMENTS = 2
_DEAF_TO = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE)


class Guard:
    """Looks at the leases of one launcher."""

    def __init__(self, directory: str, mark: str) -> None:
        self._directory = directory
        self._mark = mark
        self._boot = processes.boot_id()
        self._empty: dict[str, int] = {}
        self._engines: dict[str, int] = {}

    def look(self) -> tuple[int, int]:
        """End what is overdue; when to look again, and how many leases are not done with."""
        next_ms, left = 0, 0
        leases = [
            lease for lease in lease_files.read_all(self._directory) if lease.boot == self._boot
        ]
        for lease in leases:
            due_ms = lease.until_ms + AFTER_MS
            if due_ms <= now_ms():
                is_empty = self._is_empty_after_kill(lease)
                left += not is_empty
                due_ms = now_ms() + (SLOWLY_MS if is_empty else AGAIN_MS)
            else:
                self._empty.pop(lease.path, None)
                left += 1
            next_ms = min(next_ms or due_ms, due_ms)
        return next_ms, left

    def _is_empty_after_kill(self, lease: Lease) -> bool:
        """Kill all of one job; True when nothing of it was found a few times in a row."""
        group = Group(lease.groups)
        group.kill()
        found = set(group.pids()) | _related(lease, self._mark)
        found -= {os.getpid()}
        processes.send(found, signal.SIGKILL)
        self._tell_engine(lease)
        count = 0 if found or lease.path in self._engines else self._empty.get(lease.path, 0) + 1
        self._empty[lease.path] = count
        return count >= EMPTY_LOOKS

    def _tell_engine(self, lease: Lease) -> None:
        """Processes of a container are below its engine: let that kill them, until it has."""
        pid = self._engines.get(lease.path, 0)
        if pid:
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._engines[lease.path]
        elif lease.kill and self._empty.get(lease.path, 0) < EMPTY_LOOKS:
            nothing = [
                (os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0) for number in range(3)
            ]
            try:
                self._engines[lease.path] = os.posix_spawnp(
                    lease.kill[0], lease.kill, os.environ, file_actions=nothing
                )
            except OSError:
                return  # tried again with the next look


def _related(lease: Lease, mark: str) -> set[int]:
    """What stems from the job: by its first process, its session, or its own environment.

    A session keeps its number from being used again for as long as anybody is in it; so whoever is
    in it belongs to the job, unless its first process is another one by now.
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
    """Guard until nobody needs it."""
    guard = Guard(directory, mark)
    alarm = Alarm()
    poller = select.poll()
    poller.register(alarm.descriptor, select.POLLIN)
    poller.register(0, select.POLLIN)
    is_alone = False
    while True:
        next_ms, left = guard.look()
        if is_alone and (not left or _is_replaced(directory)):
            return
        if is_alone:
            soon_ms = now_ms() + ALONE_LOOK_MS
            next_ms = min(next_ms or soon_ms, soon_ms)
        alarm.set(next_ms)
        for descriptor, _ in poller.poll():
            if descriptor == alarm.descriptor:
                alarm.hear()
            elif not os.read(0, 4096):
                poller.unregister(0)
                is_alone = True


def _is_replaced(directory: str) -> bool:
    """Tell whether a later launcher has a guard of its own."""
    try:
        with open(os.path.join(directory, PID_FILE), encoding="ascii") as file:
            return file.read().strip() != str(os.getpid())
    except OSError:
        return False


def _come(directory: str) -> None:
    """Say that we are the guard now; the kernel should kill others first when memory is short."""
    path = os.path.join(directory, PID_FILE)
    with open(f"{path}.new", "w", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")
    os.rename(f"{path}.new", path)
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("-900")
    except OSError:
        return


def main(arguments: list[str]) -> int:
    if len(arguments) != 4 or arguments[0] != "--dir" or arguments[2] != "--mark":
        sys.stderr.write("usage: guard --dir DIRECTORY --mark MARK; the launcher starts it\n")
        return WRONG_ARGUMENTS
    for number in _DEAF_TO:
        signal.signal(number, lambda *_: None)
    os.chdir("/")
    _come(arguments[1])
    watch(arguments[1], arguments[3])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
