"""The ownership of processes on a device, and which foreign processes block it for our jobs.

Readings come in, processes with their allocations go out; ignored processes are left out.

A process belongs to a job by the variables that every process of a job inherits, by the job's
control group, or through a parent process. Any user can set variables and create groups. So they
count only if the launcher has created a scratch directory for that work, and the process belongs to
the directory's owner or to root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_scheduler.agent.devices.source import Process, Reading
from gpu_scheduler.agent.launcher.processes import start_ticks

DESKTOP = (
    "X",
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "gnome-remote-desktop-daemon",
    "kwin_x11",
    "kwin_wayland",
    "plasmashell",
    "mutter",
    "sway",
    "Hyprland",
    "gdm",
    "sddm",
    "lightdm",
)
SERVICES = (
    "nvidia-persistenced",
    "nvidia-powerd",
    "nvidia-cuda-mps-server",
    "nvidia-cuda-mps-control",
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-smi",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRule:
    """When a foreign process blocks a device.

    A compute process always does. A graphics process does above `memory_threshold` of the device's
    memory. Where no process is visible, the device counts as blocked above `memory_threshold` of
    its memory or `load_threshold` of its time.
    """

    memory_threshold: float = 0.8
    load_threshold: float = 0.8
    ignore_names: tuple[str, ...] = DESKTOP + SERVICES
    ignore_users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ours:
    """A process of a job: its allocation, its start time, and its last description."""

    owner: str
    ticks: int
    process: Process


class ProcessAttribution:
    """Finds the allocation of each process with `owner_of`.

    A process keeps its owner while it is on the device, also after its job has ended, or when only
    the driver still lists it: then the job left it behind. `started` is the start time of a process
    (0 if it does not exist), so that a reused pid is not mistaken for it.
    """

    def __init__(
        self,
        owner_of: Callable[[int], str | None],
        rule: ForeignRule,
        started: Callable[[int], int] = start_ticks,
    ) -> None:
        self._owner_of = owner_of
        self._rule = rule
        self._started = started
        self._ours: dict[int, dict[int, _Ours]] = {}

    def attribute(
        self, reading: Reading, load_percent: int | None, memory_mb: int
    ) -> list[tuple[Process, str]]:
        """The relevant processes, each with its allocation, or '' if it is foreign."""
        before = self._ours.get(reading.index, {})
        ours: dict[int, _Ours] = {}
        found: list[tuple[Process, str]] = []
        for process in reading.processes:
            mine = self._mine(process, before.get(process.pid))
            if mine is not None:
                ours[process.pid] = mine
                load = process.load_percent
                updated = replace(mine.process, memory_mb=process.memory_mb, load_percent=load)
                found.append((updated, mine.owner))
            elif self._is_foreign(process, memory_mb):
                found.append((process, ""))
        self._ours[reading.index] = ours
        if not found and not reading.processes:
            found.extend(self._unseen(reading, load_percent, memory_mb))
        return found

    def _mine(self, process: Process, before: _Ours | None) -> _Ours | None:
        owner = self._owner_of(process.pid)
        if owner:
            return _Ours(owner, self._started(process.pid), process)
        if before is not None and self._started(process.pid) in {0, before.ticks}:
            return before
        return None

    def _is_foreign(self, process: Process, memory_mb: int) -> bool:
        rule = self._rule
        is_ignored_user = process.user and process.user in rule.ignore_users
        if is_ignored_user or process.command in rule.ignore_names:
            return False
        return not process.graphics or (process.memory_mb or 0) > rule.memory_threshold * memory_mb

    def _unseen(
        self, reading: Reading, load_percent: int | None, memory_mb: int
    ) -> list[tuple[Process, str]]:
        """A stand-in for invisible processes, such as those of another container."""
        used_mb = reading.memory_used_mb or 0
        by_memory = memory_mb > 0 and used_mb > self._rule.memory_threshold * memory_mb
        by_load = (load_percent or 0) > self._rule.load_threshold * 100
        if not by_memory and not by_load:
            return []
        return [(Process(pid=0, command="unseen", memory_mb=used_mb), "")]


ALLOCATION = b"TGPU_ALLOCATION_ID"
MEMBER = b"TGPU_MEMBER"
MOST_PARENTS = 64


class ProcessOwners:
    """Finds the allocation that a process of this machine belongs to."""

    def __init__(self, scratch_dir: str, processes: Path = Path("/proc")) -> None:
        """Only the launcher may write to `scratch_dir`."""
        self._scratch = Path(scratch_dir)
        self._processes = processes

    def owner_of(self, pid: int) -> str | None:
        """The allocation of a process or of one of its parents; None for a foreign process."""
        for _ in range(MOST_PARENTS):
            if pid <= 1:
                return None
            try:
                variables = _variables((self._processes / f"{pid}/environ").read_bytes())
                parent, uid = _parent_and_user((self._processes / f"{pid}/status").read_bytes())
            except (OSError, ValueError, KeyError):
                return None
            allocation_id = variables.get(ALLOCATION, b"").decode(errors="replace")
            member = variables.get(MEMBER, b"0").decode(errors="replace")
            if allocation_id and self._is_known(f"{allocation_id}.{member}", uid):
                return allocation_id
            if (grouped := self._by_group(pid, uid)) is not None:
                return grouped
            pid = parent
        return None

    def _by_group(self, pid: int, uid: int) -> str | None:
        """The allocation by control group, which a process cannot leave."""
        try:
            text = (self._processes / f"{pid}/cgroup").read_text(errors="replace")
        except OSError:
            return None
        for name in dict.fromkeys(part for part in text.replace("\n", "/").split("/") if part):
            allocation_id, dot, member = name.rpartition(".")
            if dot and member.isdecimal() and self._is_known(name, uid):
                return allocation_id
        return None

    def _is_known(self, name: str, uid: int) -> bool:
        if "/" in name or name.startswith("."):
            return False
        try:
            return uid in {0, (self._scratch / name).stat().st_uid}
        except (OSError, ValueError):
            return False


def _variables(environment: bytes) -> dict[bytes, bytes]:
    parts = (variable.partition(b"=") for variable in environment.split(b"\0"))
    return {name: value for name, _, value in parts if name in {ALLOCATION, MEMBER}}


def _parent_and_user(status: bytes) -> tuple[int, int]:
    """The parent and the real uid; the owner of its /proc files can be root for other users."""
    facts = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    return int(facts[b"PPid"]), int(facts[b"Uid"].split()[0])
