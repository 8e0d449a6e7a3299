"""Control groups: limits for the CPUs, memory, processes and devices of a job, in v1 and v2.

`Cgroups` makes the groups of a job, and `Group` lists, kills and removes them. On a host without
control groups a `Group` has no path, and rlimits are the only limits. `device_filter` denies
devices to a v2 group. The second part of this file finds the hierarchies of the host by file system
type and controllers, never by trial: on a hybrid host a directory below /sys/fs/cgroup may be an
ordinary directory on a tmpfs. Nothing here waits.
"""

from __future__ import annotations

import os
import resource
import zlib
from contextlib import suppress
from dataclasses import dataclass, field

from gpu_scheduler.agent.device_filter import can_filter_devices, deny_devices, device_numbers
from gpu_scheduler.agent.launcher_protocol import Work, memory_limit_mb

CONTROLLERS = ("cpu", "memory", "pids", "devices")
SUPERVISORS = "supervisors"
"""The leaf group for the scheduler's own processes inside a delegated v2 group."""
PERIOD_US = 100_000
MIN_QUOTA_US = 1_000
HOME = "gpu-scheduler"
PREFIX = "seat-"
"""Prefix of the groups of pre-forked children, made before their job is known."""
TRACKERS_V1 = ("pids", "freezer", "memory", "cpu", "devices")


@dataclass(frozen=True, slots=True)
class Group:
    """The control groups of one job, one in each hierarchy. The first one lists its processes.

    A process can begin in a v2 group; it has to move into v1 groups.
    """

    paths: tuple[str, ...] = ()
    memory_path: str = ""
    is_v2: bool = False

    @property
    def name(self) -> str:
        """The name of all of them, each in its own hierarchy."""
        return os.path.basename(self.paths[0])

    @property
    def join_files(self) -> tuple[str, ...]:
        """The files to which a process writes 0 to join."""
        return tuple(path + "/cgroup.procs" for path in self.paths)

    def open_directory(self) -> int:
        """Open the v2 group for a process to begin in; -1 if that is not possible."""
        if not self.is_v2:
            return -1
        try:
            return os.open(self.paths[0], os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return -1

    def pids(self) -> list[int]:
        """Every process in it, also in groups that the job made below it."""
        if not self.paths or "populated 0" in read_small(self.paths[0] + "/cgroup.events"):
            return []
        return _pids(self.paths[0])

    def kill(self) -> bool:
        """Kill all its processes atomically. False if the kernel cannot do that."""
        if self.paths:
            with suppress(OSError):
                write(self.paths[0] + "/cgroup.kill", "1")
                return True
        return False

    def out_of_memory(self) -> bool:
        """Whether the kernel has killed a process in it for exceeding its memory."""
        if not self.memory_path:
            return False
        events = read(self.memory_path + "/memory.events") or read(
            self.memory_path + "/memory.oom_control"
        )
        counts = dict(entry.split() for entry in events.splitlines() if len(entry.split()) == 2)
        return int(counts.get("oom_kill", 0)) > 0

    def remove(self) -> bool:
        """Remove it; False if a process is still in it."""
        removed = [_remove(path) for path in self.paths]
        return all(removed)


class Cgroups:
    """Makes the groups of one launcher, with the limits that this host can enforce.

    The groups of all jobs are in one group of each hierarchy, their home, which has the limits of
    all jobs together.
    """

    _limits_of_all = (0, 0)
    """Processes and memory in MB of all jobs, as written last."""

    def __init__(self, directory: str) -> None:
        tag = f"{zlib.crc32(os.path.realpath(directory).encode()):08x}"
        found = mounts(read("/proc/self/mountinfo"))
        own = own_groups(read("/proc/self/cgroup"))
        self._v2, self._v2_controllers = _make_home_v2(found, own, tag)
        self._v1 = _find_homes_v1(found, own, tag)
        self._filters_devices = bool(
            self._v2 and "devices" not in self._v1 and can_filter_devices()
        )

    def capabilities(self) -> dict[str, str]:
        """What enforces each kind of limit on this host; "none" if nothing does."""
        return {
            "tracking": "cgroup v2" if self._v2 else "cgroup v1" if self._tracker() else "none",
            "cpu": self._enforcer("cpu") or "none",
            "memory": self._enforcer("memory") or "rlimit",
            "processes": self._enforcer("pids") or "none",
            "user_processes": "rlimit",
            "devices": self._enforcer("devices") or ("ebpf" if self._filters_devices else "none"),
        }

    def open(self, name: str, work: Work) -> Group:
        """Make the groups that this work needs. After an OSError none is left."""
        needed = self.v1_controllers(work)
        group = self.make(name, needed)
        try:
            self.set_limits(group, needed, work)
        except OSError:
            group.remove()
            raise
        return group

    def v1_controllers(self, work: Work) -> tuple[str, ...]:
        """The v1 controllers that this work needs: a process has to move into their groups."""
        limits = {
            "cpu": work.cpu_milli,
            "memory": memory_limit_mb(work) or work.max_all_memory_mb,
            "pids": work.max_processes or work.max_all_processes,
            "devices": bool(work.closed_devices),
        }
        needed = [
            name
            for name, amount in limits.items()
            if amount and name in self._v1 and name not in self._v2_controllers
        ]
        tracker = "" if self._v2 else self._tracker()
        if tracker:
            needed = [tracker, *(name for name in needed if name != tracker)]
        return tuple(needed)

    def make(self, name: str, controllers: tuple[str, ...]) -> Group:
        """Make groups without limits: one in v2, if it is there, and one for each v1 controller."""
        paths: list[str] = []
        try:
            if self._v2:
                paths.append(_make_group(self._v2, name))
            paths += (_make_group(self._v1[controller], name) for controller in controllers)
        except OSError:
            Group(tuple(paths)).remove()
            raise
        return Group(tuple(paths), self._memory_path(paths, controllers), bool(self._v2))

    def set_limits(self, group: Group, controllers: tuple[str, ...], work: Work) -> None:
        """Set the limits of this work on groups that were made for these controllers."""
        self._limit_all(work)
        if self._v2:
            self._limit_v2(group.paths[0], work)
        for controller, path in zip(controllers, group.paths[bool(self._v2) :], strict=True):
            _limit_v1(controller, path, work)

    def remove_unused(self, prefix: str, *, keep: str) -> None:
        """Remove empty groups whose name begins with `prefix`, but not those with `keep`."""
        for home in filter(None, (self._v2, *self._v1.values())):
            for path in _subgroups(home):
                name = os.path.basename(path)
                if name.startswith(prefix) and not name.startswith(keep):
                    with suppress(OSError):
                        os.rmdir(path)

    def rlimits(self, work: Work) -> list[tuple[int, int]]:
        """Limits in place of a memory group. Of data, as CUDA reserves much address space.

        RLIMIT_NPROC counts all processes and threads of the user on this machine, so it holds for
        all jobs of a user together and cannot be the limit of one job. Root has no such limit.
        """
        limits = []
        if work.memory_mb and not self._enforcer("memory"):
            limits.append((resource.RLIMIT_DATA, work.memory_mb << 20))
        if work.max_user_processes and work.uid:
            limits.append((resource.RLIMIT_NPROC, work.max_user_processes))
        return limits

    def remove_empty_homes(self) -> None:
        """Remove the empty directories around the groups, when the launcher exits."""
        for home in filter(None, (self._v2, *self._v1.values())):
            for path in (home, os.path.dirname(home)):
                try:
                    os.rmdir(path)
                except OSError:
                    break

    def _enforcer(self, controller: str) -> str:
        if controller in self._v2_controllers:
            return "cgroup v2"
        return "cgroup v1" if controller in self._v1 else ""

    def _tracker(self) -> str:
        return next((name for name in TRACKERS_V1 if name in self._v1), "")

    def _limit_all(self, work: Work) -> None:
        """Set the limits of all jobs together. One that cannot be set now is tried again."""
        limits = (work.max_all_processes, work.max_all_memory_mb)
        if limits == self._limits_of_all:
            return
        processes, memory_mb = limits
        try:
            if "pids" in self._v2_controllers:
                write(f"{self._v2}/pids.max", str(processes or "max"))
            elif "pids" in self._v1:
                write(f"{self._v1['pids']}/pids.max", str(processes or "max"))
            if "memory" in self._v2_controllers:
                write(f"{self._v2}/memory.max", str(memory_mb << 20 or "max"))
            elif "memory" in self._v1:
                limit = str(memory_mb << 20 or -1)
                write(f"{self._v1['memory']}/memory.limit_in_bytes", limit)
        except OSError:
            return
        self._limits_of_all = limits

    def _limit_v2(self, path: str, work: Work) -> None:
        if work.cpu_milli and "cpu" in self._v2_controllers:
            write(path + "/cpu.max", f"{_quota_us(work)} {PERIOD_US}")
        memory_mb = memory_limit_mb(work)
        if memory_mb and "memory" in self._v2_controllers:
            write(path + "/memory.max", str(memory_mb << 20))
            if os.path.exists(path + "/memory.swap.max"):
                write(path + "/memory.swap.max", "0")
        if work.max_processes and "pids" in self._v2_controllers:
            write(path + "/pids.max", str(work.max_processes))
        if work.closed_devices and self._filters_devices:
            deny_devices(path, device_numbers(work.closed_devices))

    def _memory_path(self, paths: list[str], controllers: tuple[str, ...]) -> str:
        """The group whose files count the processes that the kernel killed for their memory."""
        if "memory" in self._v2_controllers:
            return paths[0]
        if "memory" not in controllers:
            return ""
        return paths[bool(self._v2) + controllers.index("memory")]


def _make_home_v2(found: Mounts, own: dict[str, str], tag: str) -> tuple[str, frozenset[str]]:
    place = place_v2(found.v2, own.get("", "/")) if found.v2 else ""
    if place:
        with suppress(OSError):
            return make_v2(place, found.v2, (HOME, tag))
    return "", frozenset()


def _find_homes_v1(found: Mounts, own: dict[str, str], tag: str) -> dict[str, str]:
    homes = {}
    for controller, mount in found.v1.items():
        place = place_v1(mount, own.get(controller, "/"))
        if os.access(place, os.W_OK):
            homes[controller] = os.path.join(place, HOME, tag)
    return homes


def _make_group(home: str, name: str) -> str:
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
    elif controller == "memory" and (memory_mb := memory_limit_mb(work)):
        write(path + "/memory.limit_in_bytes", str(memory_mb << 20))
        if os.path.exists(path + "/memory.memsw.limit_in_bytes"):
            write(path + "/memory.memsw.limit_in_bytes", str(memory_mb << 20))
    elif controller == "pids" and work.max_processes:
        write(path + "/pids.max", str(work.max_processes))
    elif controller == "devices":
        for kind, major, minor in device_numbers(work.closed_devices):
            write(path + "/devices.deny", f"{kind} {major}:{minor} rwm")


def _quota_us(work: Work) -> int:
    """The kernel requires at least a millisecond in each period, in v1 and v2."""
    return max(MIN_QUOTA_US, work.cpu_milli * PERIOD_US // 1000)


def _pids(path: str) -> list[int]:
    found = [int(pid) for pid in read(path + "/cgroup.procs").split()]
    for subgroup in _subgroups(path):
        found += _pids(subgroup)
    return found


def _subgroups(path: str) -> list[str]:
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
        for subgroup in _subgroups(path):
            _remove(subgroup)
        with suppress(OSError):
            os.rmdir(path)
            return True
        return False
    return True


# The hierarchies of the host


@dataclass(frozen=True, slots=True)
class Mounts:
    """Mount points: that of v2 or "", and one for each v1 controller."""

    v2: str = ""
    v1: dict[str, str] = field(default_factory=dict)


def mounts(mountinfo: str) -> Mounts:
    """Parse `/proc/self/mountinfo`."""
    v2, v1 = "", {}
    for text in mountinfo.splitlines():
        before, _, after = text.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            v2 = v2 or fields[4]
        elif kind[0] == "cgroup":
            options = set(kind[2].split(","))
            v1.update({name: fields[4] for name in CONTROLLERS if name in options})
            if "freezer" in options:
                v1["freezer"] = fields[4]
    return Mounts(v2, v1)


def own_groups(text: str) -> dict[str, str]:
    """Parse `/proc/self/cgroup`: the group by controller, that of v2 under ""."""
    found = {}
    for entry in text.splitlines():
        _, controllers, path = entry.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def controllers_for_root() -> frozenset[str] | None:
    """The controllers that a container engine of root can use; None without control groups."""
    mountinfo = read("/proc/self/mountinfo")
    if " - cgroup" not in mountinfo:
        return None
    found = mounts(mountinfo)
    v2 = read(f"{found.v2}/cgroup.controllers").split() if found.v2 else []
    return frozenset((*found.v1, *v2))


def kernel_process_limit() -> int:
    """The number of processes and threads that the kernel and our own groups allow; 0: unknown."""
    files = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"]
    found, own = mounts(read("/proc/self/mountinfo")), own_groups(read("/proc/self/cgroup"))
    for mount, path in ((found.v2, own.get("")), (found.v1.get("pids", ""), own.get("pids"))):
        parts = (path or "").strip("/").split("/")
        groups = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        files += [f"{mount}/{group}/pids.max" for group in groups if mount and group]
    texts = (read(file).strip() for file in files)
    return min((int(text) for text in texts if text.isdecimal()), default=0)


def place_v1(mount: str, own: str) -> str:
    """Below our own group, so that the limits on us also hold for jobs."""
    inside = mount + own.rstrip("/")
    return inside if os.path.isdir(inside) else mount


def place_v2(mount: str, own: str) -> str:
    """A delegated group in whose leaf we were started; for root else the top of the hierarchy.

    "" if there is none. A group that enables controllers for its children takes no processes. If
    root's service were divided without such a leaf (`DelegateSubgroup=`), systemd could not start
    it again while jobs run: it puts the new process into the service's own group, and the kernel
    refuses that.
    """
    inside = mount + own.rstrip("/")
    if os.path.basename(inside) == SUPERVISORS and _delegated(os.path.dirname(inside)):
        return os.path.dirname(inside)
    if os.geteuid() == 0:
        return mount
    if inside != mount and _delegated(inside):
        return inside
    return inside if os.access(os.path.join(inside, "cgroup.procs"), os.W_OK) else ""


def make_v2(place: str, mount: str, parts: tuple[str, ...]) -> tuple[str, frozenset[str]]:
    """Make the groups below `place`; returns the last one and its controllers."""
    if place != mount:
        _move_processes_to_leaf(place)
    path = place
    for part in parts:
        _enable(path)
        path = os.path.join(path, part)
        os.makedirs(path, exist_ok=True)
    _enable(path)
    return path, frozenset(read(os.path.join(path, "cgroup.subtree_control")).split())


def read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_small(path: str) -> str:
    """The same with fewer system calls, for files of the kernel up to 4 KiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    """Write with one system call, as the kernel's files require."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _delegated(path: str) -> bool:
    """Whether systemd has delegated the group to us."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(path, name) == b"1":
                return True
    return False


def _move_processes_to_leaf(place: str) -> None:
    """Move the processes of a v2 group to a leaf: a group with controllers must hold none."""
    leaf = os.path.join(place, SUPERVISORS)
    os.makedirs(leaf, exist_ok=True)
    for pid in read(os.path.join(place, "cgroup.procs")).split():
        with suppress(OSError):
            write(os.path.join(leaf, "cgroup.procs"), pid)


def _enable(path: str) -> None:
    """Enable every controller that we use, one by one: one that is missing would fail all."""
    available = read(os.path.join(path, "cgroup.controllers")).split()
    for name in CONTROLLERS:
        if name in available:
            with suppress(OSError):
                write(os.path.join(path, "cgroup.subtree_control"), "+" + name)
