"""Which control group trees this host has, and where in them the launcher may work.

The kernel's tables come in as text, places to work in come out. Both kinds can be there at once
(hybrid hosts): a v2 tree that can track and kill, beside v1 controllers that limit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

CONTROLLERS = ("cpu", "memory", "pids", "devices")
SUPERVISORS = "supervisors"
"""The leaf for the scheduler's own processes inside a delegated v2 group."""


@dataclass(frozen=True, slots=True)
class Mounts:
    """Where the trees are mounted: one for v2 or "", one for each v1 controller."""

    v2: str = ""
    v1: dict[str, str] = field(default_factory=dict)


def mounts(mountinfo: str) -> Mounts:
    """Read a `/proc/self/mountinfo`."""
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
    """Read a `/proc/self/cgroup`: the group by controller, that of v2 under ""."""
    found = {}
    for entry in text.splitlines():
        _, controllers, path = entry.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def place_v1(mount: str, own: str) -> str:
    """Below our own group, so that limits that already hold for us go on holding."""
    inside = mount + own.rstrip("/")
    return inside if os.path.isdir(inside) else mount


def place_v2(mount: str, own: str) -> str:
    """A delegated group in whose leaf we were started; for root else the top of the tree; else "".

    A group that hands controllers on takes no processes. If root's service were divided without
    such a leaf (`DelegateSubgroup=`), systemd could not start it again while jobs run: it puts
    the new process into the service's own group, and the kernel refuses that.
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
    """The groups below `place`, and the controllers that reach the last one."""
    if place != mount:
        _clear_inner_group(place)
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
    """The same with one system call less in the middle; for files of the kernel."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode()
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    """One write, as the kernel's files want it."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _delegated(path: str) -> bool:
    """Whether systemd has marked the group as ours to divide."""
    for name in ("user.delegate", "trusted.delegate"):
        try:
            if os.getxattr(path, name) == b"1":
                return True
        except OSError:
            continue
    return False


def _clear_inner_group(place: str) -> None:
    """A v2 group that hands controllers on must hold no processes itself: move them to a leaf."""
    leaf = os.path.join(place, SUPERVISORS)
    os.makedirs(leaf, exist_ok=True)
    for pid in read(os.path.join(place, "cgroup.procs")).split():
        try:
            write(os.path.join(leaf, "cgroup.procs"), pid)
        except OSError:
            continue


def _enable(path: str) -> None:
    """Hand on every controller that we use; one by one, because one that is missing fails all."""
    available = read(os.path.join(path, "cgroup.controllers")).split()
    for name in CONTROLLERS:
        if name in available:
            try:
                write(os.path.join(path, "cgroup.subtree_control"), "+" + name)
            except OSError:
                continue
