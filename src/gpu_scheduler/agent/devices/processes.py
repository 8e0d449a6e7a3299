"""Whose the processes on a device are, and which of the others keep it from our jobs.

Readings in, processes with their owners out. What is ignored is left out, as if it were not there.
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
    """When a process that is not ours takes a device.

    One that computes always does. One that only draws does above `memory_threshold` of the device's
    memory. Where nobody can be seen and nothing of ours is there, the device counts as taken above
    `memory_threshold` of its memory or `load_threshold` of its time.
    """

    memory_threshold: float = 0.8
    load_threshold: float = 0.8
    ignore_names: tuple[str, ...] = DESKTOP + SERVICES
    ignore_users: tuple[str, ...] = ()
    ignore_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Ours:
    """A process that was seen to be ours, since when it runs, and who it was."""

    owner: str
    ticks: int
    process: Process


class ProcessAttribution:
    """Finds the owner of each process, by a callable that knows our work.

    A process that was ours stays ours for as long as it is on the device, also when its job is over
    or it is gone itself and only the driver still names it: then it was left behind. `started` says
    when a process began (0: it is not there), so that a number that is used again is not mistaken.
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
        """The processes that matter, each with its allocation, or '' if it is foreign."""
        before = self._ours.get(reading.index, {})
        ours: dict[int, _Ours] = {}
        found: list[tuple[Process, str]] = []
        for process in reading.processes:
            mine = self._mine(process, before.get(process.pid))
            if mine is not None:
                ours[process.pid] = mine
                load = process.load_percent
                who = replace(mine.process, memory_mb=process.memory_mb, load_percent=load)
                found.append((who, mine.owner))
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
        if (
            process.pid in rule.ignore_pids
            or (process.user and process.user in rule.ignore_users)
            or process.command in rule.ignore_names
        ):
            return False
        return not process.graphics or (process.memory_mb or 0) > rule.memory_threshold * memory_mb

    def _unseen(
        self, reading: Reading, load_percent: int | None, memory_mb: int
    ) -> list[tuple[Process, str]]:
        """Somebody whom we cannot see, as processes of another container."""
        used_mb = reading.memory_used_mb or 0
        by_memory = memory_mb > 0 and used_mb > self._rule.memory_threshold * memory_mb
        by_load = (load_percent or 0) > self._rule.load_threshold * 100
        if not by_memory and not by_load:
            return []
        return [(Process(pid=0, command="unseen", memory_mb=used_mb), "")]


# --- Whose a process is: ours, by the variables that every process of a job inherits, by the
# control
# group of the job, or by a parent of which that holds.
#
# Anybody can set variables, and make groups. So they count only if the launcher has made a scratch
# directory for that work, and the process is of the user whom that belongs to, or of root.

ALLOCATION = b"TGPU_ALLOCATION_ID"
MEMBER = b"TGPU_MEMBER"
MOST_PARENTS = 64


class ProcessOwners:
    """Finds our work behind processes of this machine."""

    def __init__(self, scratch_dir: str, processes: Path = Path("/proc")) -> None:
        """Only the launcher may write to `scratch_dir`."""
        self._scratch = Path(scratch_dir)
        self._processes = processes

    def owner_of(self, pid: int) -> str | None:
        """The allocation that a process, or one of its parents, belongs to."""
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
        """The allocation whose group a process is in: it can drop its variables, but not leave."""
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
    """The parent, and who started it: not the owner of its files, which can be root for others."""
    facts = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    return int(facts[b"PPid"]), int(facts[b"Uid"].split()[0])
