"""The doctor looks at the machine: Python, user, control groups, clock, programs, limits."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import pwd
import resource
import sqlite3
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from gpu_scheduler.agent.cgroups import groups
from gpu_scheduler.agent.runners.container import NO_INIT, podman_init
from gpu_scheduler.cli.doctor.findings import OK, PROBLEM, WARNING, Line, Surroundings

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
    mounted = groups.mounts(groups.read("/proc/self/mountinfo"))
    own = groups.own_groups(groups.read("/proc/self/cgroup"))
    yield from judged_cgroups(mounted, own, around.uid)


def judged_cgroups(mounted: groups.Mounts, own: dict[str, str], uid: int) -> Iterator[Line]:
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
    place = groups.place_v2(mounted.v2, own.get("", "/")) if mounted.v2 else ""
    offered = set(mounted.v1) - {"freezer"}
    if mounted.v2:
        offered |= set(groups.read(f"{place or mounted.v2}/cgroup.controllers").split())
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


# --- The doctor looks at driver, NVML and nvidia-smi. What may hang runs in a process of its own.

DRIVER = "/proc/driver/nvidia/version"
NODES = "/dev"
Told = Generator[Line, None, bool]
"""Lines, and whether it is good."""


def gpus(around: Surroundings) -> Iterator[Line]:
    """Driver, library, program; or the GPUs that are declared."""
    gpu = around.settings.gpu
    if declared := gpu.simulate or _told_by_a_flag(around):
        yield from _by_method(around, "declared", declared)
        return
    if gpu.detection_method == "none":
        yield Line("gpus", OK, "GPUs are switched off by gpu.detection_method")
        return
    has_driver = yield from _driver()
    found_nvml = yield from _by_method(around, "nvml")
    found_smi = yield from _smi(around)
    if not (found_nvml or found_smi):
        status = PROBLEM if has_driver else WARNING
        yield Line(
            "gpus",
            status,
            "no GPU can be used; jobs without GPUs run all the same",
            "load the NVIDIA driver (modprobe nvidia; nvidia-smi should answer), or declare GPUs "
            "to try it without: tgpu up --simulate 8xA100-80GB",
        )


def _told_by_a_flag(around: Surroundings) -> str:
    """What `tgpu up --simulate` declared, if a server was started so and we may look."""
    try:
        text = Path(around.paths.agent, "agent.json").read_text(encoding="utf-8")
        return str(json.loads(text).get("simulate") or "")
    except (OSError, ValueError):
        return ""


def _driver() -> Told:
    """Whether the kernel has a driver and its device nodes."""
    try:
        version = Path(DRIVER).read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
    except OSError:
        nodes = list(Path(NODES).glob("nvidia[0-9]*"))
        if nodes:
            yield Line(
                "driver",
                PROBLEM,
                f"there are {len(nodes)} device nodes and no driver behind them",
                "load it: modprobe nvidia; after an update of the kernel it must be built anew",
            )
        else:
            yield Line("driver", OK, "no NVIDIA driver is loaded")
        return False
    yield Line("driver", OK, version.replace("NVRM version: ", "").strip())
    blocked = [
        str(node)
        for node in sorted(Path(NODES).glob("nvidia[0-9]*"))
        if node.stat().st_mode & 0o006 != 0o006
    ]
    if blocked:
        yield Line(
            "driver",
            WARNING,
            f"not everybody may use {', '.join(blocked[:4])}",
            "jobs of other users cannot open it; see NVreg_DeviceFileMode of the driver, or udev",
        )
    return True


def _by_method(around: Surroundings, method: str, declared: str = "") -> Told:
    """Find and read devices in another process, as a driver can hang for ever."""
    command = [sys.executable, "-m", "gpu_scheduler.agent.devices", method, declared]
    code, said = around.output(command)
    if code:
        told = said.rsplit("\n", 1)[-1]
        remedy = "restart the driver or the machine" if code == 124 else "see what it says"
        yield Line(method, PROBLEM, f"devices cannot be found: {told}", remedy)
        return False
    found = json.loads(said)["found"]
    devices = found["devices"]
    if not devices:
        yield Line(method, WARNING if method == "nvml" else PROBLEM, _short(found["problem"]), "")
        return False
    models: dict[str, int] = {}
    for device in devices:
        models[device["model"]] = models.get(device["model"], 0) + 1
    text = ", ".join(f"{count} x {model}" for model, count in sorted(models.items()))
    yield Line(method, OK, f"{text}" + (f" ({found['problem']})" if found["problem"] else ""))
    return True


def _smi(around: Surroundings) -> Told:
    program = around.program("nvidia-smi")
    if program is None:
        yield Line(
            "nvidia-smi",
            WARNING,
            "nvidia-smi is not on the PATH",
            "it is the second way to find GPUs, and how people look at them; install the driver's "
            "utilities",
        )
        return False
    code, said = around.output([program, "-L"])
    if code:
        yield Line(
            "nvidia-smi",
            PROBLEM,
            f"{program} fails: {said.splitlines()[0] if said else f'exit code {code}'}",
            "driver and library must be of one version (a reboot after an update); a hanging one "
            "needs a reset or a restart of the machine",
        )
        return False
    yield Line("nvidia-smi", OK, f"{program} lists {len(said.splitlines())} devices")
    return True


def _short(problem: str) -> str:
    return problem.split("; to try without", maxsplit=1)[0] or "no device was found"
