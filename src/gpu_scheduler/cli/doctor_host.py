"""The doctor looks at the machine: Python, user, control groups, clock, programs, limits."""

from __future__ import annotations

import ctypes
import os
import platform
import pwd
import resource
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpu_scheduler.agent.limits import hierarchies
from gpu_scheduler.agent.runners.container import NO_INIT, podman_init
from gpu_scheduler.cli.doctor_lines import OK, PROBLEM, WARNING, Line, Surroundings

LEAST_PYTHON = (3, 11)
LEAST_SQLITE = (3, 37, 0)
LEAST_FILES = 4096
A_GOOD_WHILE_S = 60.0
BUILT = 1_735_689_600
"""2025: no clock that is right shows an earlier time."""
_UNSYNCHRONISED = 0x40
_TIME_ERROR = 5


def python(_: Surroundings) -> Iterator[Line]:
    """The interpreter and the SQLite in it."""
    found = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < LEAST_PYTHON:
        yield Line("python", PROBLEM, found, "use Python 3.11 or newer")
    else:
        yield Line("python", OK, found)
    if sqlite3.sqlite_version_info < LEAST_SQLITE:
        remedy = "use a Python with SQLite 3.37 or newer"
        yield Line("sqlite", PROBLEM, f"SQLite {sqlite3.sqlite_version}", remedy)
    else:
        yield Line("sqlite", OK, f"SQLite {sqlite3.sqlite_version}")


def user(around: Surroundings) -> Iterator[Line]:
    """Who runs it decides whom it can serve."""
    if around.uid == 0:
        yield Line("user", OK, "root: the server can run jobs of everybody as themselves")
        return
    try:
        name = pwd.getpwuid(around.uid).pw_name
    except KeyError:
        yield Line(
            "user",
            PROBLEM,
            f"uid {around.uid} has no account",
            "jobs need a user by name; add it to /etc/passwd or your directory",
        )
        return
    yield Line(
        "user",
        WARNING,
        f"{name}, not root: a server of yours serves only you, and limits hold only as far as the "
        "machine lets you set them",
        "for a shared machine let root start it (deploy/systemd/gpu-scheduler.service)",
    )


def cgroups(around: Surroundings) -> Iterator[Line]:
    """Which control groups there are, and whether we may use them."""
    mounted = hierarchies.mounts(hierarchies.read("/proc/self/mountinfo"))
    own = hierarchies.own_groups(hierarchies.read("/proc/self/cgroup"))
    yield from judged_cgroups(mounted, own, around.uid)


def judged_cgroups(mounted: hierarchies.Mounts, own: dict[str, str], uid: int) -> Iterator[Line]:
    """The same from what was read."""
    if not mounted.v2 and not mounted.v1:
        yield Line(
            "cgroups",
            WARNING,
            "there are no control groups here",
            "memory and CPU limits fall back to rlimits, and GPUs of others are not closed; in a "
            "container, mount /sys/fs/cgroup",
        )
        return
    kind = "v2" if not mounted.v1 else "v1" if not mounted.v2 else "hybrid (v1 limits, v2 tracks)"
    place = hierarchies.place_v2(mounted.v2, own.get("", "/")) if mounted.v2 else ""
    offered = set(mounted.v1) - {"freezer"}
    if mounted.v2:
        offered |= set(hierarchies.read(f"{place or mounted.v2}/cgroup.controllers").split())
    missing = [name for name in ("cpu", "memory", "pids") if name not in offered]
    found = f"{kind}; controllers: {', '.join(sorted(offered)) or 'none'}"
    if missing:
        yield Line(
            "cgroups",
            WARNING,
            f"{found}; missing: {', '.join(missing)}",
            "these limits fall back to rlimits; for v2, start it from a unit with Delegate=yes",
        )
    else:
        yield Line("cgroups", OK, found)
    tops = [place or mounted.v2] if mounted.v2 and not mounted.v1 else list(mounted.v1.values())
    if not any(os.access(top, os.W_OK) for top in tops):
        how = "Delegate=yes in the unit" if uid == 0 else "run it as root, or in a delegated unit"
        yield Line("cgroups", WARNING, "we may not make groups of our own", how)


def clock(around: Surroundings) -> Iterator[Line]:
    """Whether the clock can be believed."""
    now = time.time()
    if now < BUILT:
        when = time.strftime("%Y-%m-%d", time.gmtime(now))
        yield Line("clock", PROBLEM, f"it shows {when}", "set it, and let chrony keep it")
        return
    newest = _newest(around.paths.state)
    if newest > now + A_GOOD_WHILE_S:
        yield Line(
            "clock",
            WARNING,
            f"files of the state directory are {newest - now:.0f} s in the future",
            "the clock was set back; times stand still until it has caught up. Let chrony keep it",
        )
    drift = _drift()
    if abs(drift) > 0.05:
        told = f"it was set by {drift:+.2f} s while we looked"
        yield Line("clock", WARNING, told, "two programs may be keeping it; leave one of them")
    synchronised = kernel_says_synchronised()
    if synchronised:
        yield Line("clock", OK, "right, says the kernel: a time service keeps it")
    elif synchronised is None:
        yield Line("clock", OK, "whether a time service keeps it cannot be told here")
    else:
        yield Line(
            "clock",
            WARNING,
            "no time service keeps it, says the kernel",
            "start chrony or systemd-timesyncd: reports, reservations and tokens go by the clock",
        )


def programs(around: Surroundings) -> Iterator[Line]:
    """What some jobs need."""
    for names, what in (
        (("tmux",), "jobs with --runner tmux"),
        (("screen",), "jobs with --runner screen"),
        (("podman", "docker"), "jobs with --image"),
    ):
        found = [name for name in names if around.program(name)]
        if found:
            yield Line(names[0], OK, ", ".join(filter(None, map(around.program, found))))
            if found == ["podman"] and not podman_init():
                yield Line("podman", WARNING, NO_INIT, f"until then {what} wait")
        else:
            told = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not on the PATH"
            yield Line(names[0], WARNING, told, f"{what} are refused; install {names[0]}")


def limits(_: Surroundings) -> Iterator[Line]:
    """How many files a server may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        remedy = f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}, or LimitNOFILE=65536"
        told = f"{soft} files may be open; many jobs and listeners need more"
        yield Line("limits", WARNING, told, remedy)
    else:
        yield Line("limits", OK, f"{soft} files may be open")


def kernel_says_synchronised() -> bool | None:
    """What adjtimex says; None where it cannot be asked."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    room = ctypes.create_string_buffer(512)
    state = adjtimex(room)
    if state < 0:
        return None
    status = int.from_bytes(room.raw[_STATUS_AT : _STATUS_AT + 4], sys.byteorder)
    return state != _TIME_ERROR and not status & _UNSYNCHRONISED


_LONG = ctypes.sizeof(ctypes.c_long)
_STATUS_AT = 5 * _LONG
"""In struct timex: modes (padded), offset, freq, maxerror, esterror, then status."""


def _drift() -> float:
    """How far the wall clock moved against the steady one, over a moment."""
    before = time.time() - time.monotonic()
    time.sleep(0.05)
    return time.time() - time.monotonic() - before


def _newest(directory: str) -> float:
    try:
        return max((entry.stat().st_mtime for entry in Path(directory).iterdir()), default=0.0)
    except OSError:
        return 0.0
