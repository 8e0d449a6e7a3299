"""Which control group hierarchies this host has, and where in them the launcher may make groups.

The kernel's tables come in as text, paths come out. A hybrid host has both versions: a v2 hierarchy
that can track and kill processes, and v1 controllers with limits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

CONTROLLERS = ("cpu", "memory", "pids", "devices")
SUPERVISORS = "supervisors"
"""The leaf group for the scheduler's own processes inside a delegated v2 group."""


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
        try:
            if os.getxattr(path, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _move_processes_to_leaf(place: str) -> None:
    """Move the processes of a v2 group to a leaf: a group with controllers must hold none."""
    leaf = os.path.join(place, SUPERVISORS)
    os.makedirs(leaf, exist_ok=True)
    for pid in read(os.path.join(place, "cgroup.procs")).split():
        try:
            write(os.path.join(leaf, "cgroup.procs"), pid)
        except OSError:
            continue


def _enable(path: str) -> None:
    """Enable every controller that we use, one by one: one that is missing would fail all."""
    available = read(os.path.join(path, "cgroup.controllers")).split()
    for name in CONTROLLERS:
        if name in available:
            try:
                write(os.path.join(path, "cgroup.subtree_control"), "+" + name)
            except OSError:
                continue
