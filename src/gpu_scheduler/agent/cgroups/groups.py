"""One control group for each job: made with its limits, asked who is in it, killed, removed.

Work comes in, a `Group` comes out, or one without any path where the host offers nothing; then
rlimits are what is left. Nothing here waits.
"""

from __future__ import annotations

import os
import resource
import zlib
from contextlib import suppress
from dataclasses import dataclass

from gpu_scheduler.agent.cgroups import device_filter
from gpu_scheduler.agent.cgroups.hierarchies import (
    Mounts,
    make_v2,
    mounts,
    own_groups,
    place_v1,
    place_v2,
    read,
    read_small,
    write,
)
from gpu_scheduler.agent.work import Work

PERIOD_US = 100_000
LEAST_QUOTA_US = 1_000
HOME = "gpu-scheduler"
PREFIX = "seat-"
"""Begins the names of groups that were made before their job was known."""
TRACKERS_V1 = ("pids", "freezer", "memory", "cpu", "devices")


@dataclass(frozen=True, slots=True)
class Group:
    """The control groups of one job. The first path tells who is in it.

    A process can begin in a group of v2; it has to move to those of v1.
    """

    paths: tuple[str, ...] = ()
    memory_path: str = ""
    is_v2: bool = False

    @property
    def name(self) -> str:
        """What all of them are called, each in its own tree."""
        return os.path.basename(self.paths[0])

    @property
    def join_files(self) -> tuple[str, ...]:
        """Where a process writes 0 to come in."""
        return tuple(path + "/cgroup.procs" for path in self.paths)

    def entrance(self) -> int:
        """The first group's directory, for a process to begin in; -1 if that cannot be."""
        if not self.is_v2:
            return -1
        try:
            return os.open(self.paths[0], os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return -1

    def pids(self) -> list[int]:
        """Every process in it, also in groups that the job made inside."""
        if not self.paths or "populated 0" in read_small(self.paths[0] + "/cgroup.events"):
            return []
        return _pids(self.paths[0])

    def kill(self) -> bool:
        """End everything at once, whatever it forks meanwhile. False where the kernel cannot."""
        if not self.paths:
            return False
        try:
            write(self.paths[0] + "/cgroup.kill", "1")
        except OSError:
            return False
        return True

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed something in it for want of memory."""
        if not self.memory_path:
            return False
        events = read(self.memory_path + "/memory.events") or read(
            self.memory_path + "/memory.oom_control"
        )
        counts = dict(entry.split() for entry in events.splitlines() if len(entry.split()) == 2)
        return int(counts.get("oom_kill", 0)) > 0

    def remove(self) -> bool:
        """Take it away; False if something is still in it."""
        removed = [_remove(path) for path in self.paths]
        return all(removed)


class Limits:
    """What this host can enforce, and the making of groups. One for each launcher."""

    def __init__(self, directory: str) -> None:
        tag = f"{zlib.crc32(os.path.realpath(directory).encode()):08x}"
        found = mounts(read("/proc/self/mountinfo"))
        own = own_groups(read("/proc/self/cgroup"))
        self._v2, self._v2_controllers = _home_v2(found, own, tag)
        self._v1 = _homes_v1(found, own, tag)
        self._program = bool(self._v2 and "devices" not in self._v1 and device_filter.available())

    def capabilities(self) -> dict[str, str]:
        """What holds a job here, by kind of limit; "none" where nothing does."""
        return {
            "tracking": "cgroup v2" if self._v2 else "cgroup v1" if self._tracker() else "none",
            "cpu": self._holder("cpu") or "none",
            "memory": self._holder("memory") or "rlimit",
            "processes": self._holder("pids") or "none",
            "devices": self._holder("devices") or ("ebpf" if self._program else "none"),
        }

    def open(self, name: str, work: Work) -> Group:
        """Make the groups that this work needs. An OSError leaves none behind."""
        needed = self.slow_groups(work)
        group = self.make(name, needed)
        try:
            self.set(group, needed, work)
        except OSError:
            group.remove()
            raise
        return group

    def slow_groups(self, work: Work) -> tuple[str, ...]:
        """The controllers of v1 that this work needs: a process has to move into their groups."""
        return tuple(self._needed_v1(work))

    def make(self, name: str, controllers: tuple[str, ...]) -> Group:
        """Groups without limits yet: that of v2, where there is one, and those of v1."""
        paths: list[str] = []
        try:
            if self._v2:
                paths.append(_made(self._v2, name))
            paths += (_made(self._v1[controller], name) for controller in controllers)
        except OSError:
            Group(tuple(paths)).remove()
            raise
        return Group(tuple(paths), self._memory_path(paths, controllers), bool(self._v2))

    def set(self, group: Group, controllers: tuple[str, ...], work: Work) -> None:
        """Limit groups that were made for these controllers to what this work may use."""
        if self._v2:
            self._limit_v2(group.paths[0], work)
        for controller, path in zip(controllers, group.paths[bool(self._v2) :], strict=True):
            _limit_v1(controller, path, work)

    def remove_left(self, *, not_of: str) -> None:
        """Take away groups that were made ahead of a job, and that nobody is in any more."""
        for home in filter(None, (self._v2, *self._v1.values())):
            for path in _inner(home):
                name = os.path.basename(path)
                if name.startswith(PREFIX) and not name.startswith(not_of):
                    with suppress(OSError):
                        os.rmdir(path)

    def rlimits(self, work: Work) -> list[tuple[int, int]]:
        """What stands in for groups. Data, not address space: CUDA reserves far more than it uses.

        There is no stand-in for the number of processes: RLIMIT_NPROC counts everything that the
        user runs, on this job's account.
        """
        if work.memory_mb and not self._holder("memory"):
            return [(resource.RLIMIT_DATA, work.memory_mb << 20)]
        return []

    def leave(self) -> None:
        """Take away the empty directories around the groups, when the launcher ends for good."""
        for home in filter(None, (self._v2, *self._v1.values())):
            for path in (home, os.path.dirname(home)):
                try:
                    os.rmdir(path)
                except OSError:
                    break

    def _holder(self, controller: str) -> str:
        if controller in self._v2_controllers:
            return "cgroup v2"
        return "cgroup v1" if controller in self._v1 else ""

    def _tracker(self) -> str:
        return next((name for name in TRACKERS_V1 if name in self._v1), "")

    def _needed_v1(self, work: Work) -> list[str]:
        asked = {
            "cpu": work.cpu_milli,
            "memory": work.memory_mb,
            "pids": work.max_processes,
            "devices": bool(work.closed_devices),
        }
        needed = [
            name
            for name, amount in asked.items()
            if amount and name in self._v1 and name not in self._v2_controllers
        ]
        tracker = "" if self._v2 else self._tracker()
        return [tracker, *(name for name in needed if name != tracker)] if tracker else needed

    def _limit_v2(self, path: str, work: Work) -> None:
        if work.cpu_milli and "cpu" in self._v2_controllers:
            write(path + "/cpu.max", f"{_quota_us(work)} {PERIOD_US}")
        if work.memory_mb and "memory" in self._v2_controllers:
            write(path + "/memory.max", str(work.memory_mb << 20))
            if os.path.exists(path + "/memory.swap.max"):
                write(path + "/memory.swap.max", "0")
        if work.max_processes and "pids" in self._v2_controllers:
            write(path + "/pids.max", str(work.max_processes))
        if work.closed_devices and self._program:
            device_filter.close_devices(path, device_filter.devices(work.closed_devices))

    def _memory_path(self, paths: list[str], controllers: tuple[str, ...]) -> str:
        """Where the kernel tells of jobs that it killed for want of memory."""
        if "memory" in self._v2_controllers:
            return paths[0]
        if "memory" not in controllers:
            return ""
        return paths[bool(self._v2) + controllers.index("memory")]


def _home_v2(found: Mounts, own: dict[str, str], tag: str) -> tuple[str, frozenset[str]]:
    place = place_v2(found.v2, own.get("", "/")) if found.v2 else ""
    if not place:
        return "", frozenset()
    try:
        return make_v2(place, found.v2, (HOME, tag))
    except OSError:
        return "", frozenset()


def _homes_v1(found: Mounts, own: dict[str, str], tag: str) -> dict[str, str]:
    homes = {}
    for controller, mount in found.v1.items():
        place = place_v1(mount, own.get(controller, "/"))
        if os.access(place, os.W_OK):
            homes[controller] = os.path.join(place, HOME, tag)
    return homes


def _made(home: str, name: str) -> str:
    path = f"{home}/{name}"
    try:
        os.mkdir(path)
    except FileNotFoundError:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        pass
    return path


def _limit_v1(controller: str, path: str, work: Work) -> None:
    if controller == "cpu" and work.cpu_milli:
        write(path + "/cpu.cfs_period_us", str(PERIOD_US))
        write(path + "/cpu.cfs_quota_us", str(_quota_us(work)))
    elif controller == "memory" and work.memory_mb:
        write(path + "/memory.limit_in_bytes", str(work.memory_mb << 20))
        if os.path.exists(path + "/memory.memsw.limit_in_bytes"):
            write(path + "/memory.memsw.limit_in_bytes", str(work.memory_mb << 20))
    elif controller == "pids" and work.max_processes:
        write(path + "/pids.max", str(work.max_processes))
    elif controller == "devices":
        for kind, major, minor in device_filter.devices(work.closed_devices):
            write(path + "/devices.deny", f"{kind} {major}:{minor} rwm")


def _quota_us(work: Work) -> int:
    """The kernel takes no less than a millisecond in each period, whichever tree it is."""
    return max(LEAST_QUOTA_US, work.cpu_milli * PERIOD_US // 1000)


def _pids(path: str) -> list[int]:
    found = [int(pid) for pid in read(path + "/cgroup.procs").split()]
    for inner in _inner(path):
        found += _pids(inner)
    return found


def _inner(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _remove(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        for inner in _inner(path):
            _remove(inner)
        try:
            os.rmdir(path)
        except OSError:
            return False
    return True
