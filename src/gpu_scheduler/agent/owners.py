"""Whose a process is: ours, by the variables that every process of a job inherits, by the control
group of the job, or by a parent of which that holds.

Anybody can set variables, and make groups. So they count only if the launcher has made a scratch
directory for that work, and the process is of the user whom that belongs to, or of root.
"""

from __future__ import annotations

from pathlib import Path

ALLOCATION = b"TGPU_ALLOCATION_ID"
MEMBER = b"TGPU_MEMBER"
MOST_PARENTS = 64


class Owners:
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
