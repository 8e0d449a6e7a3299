"""Whose a process is: ours, by the variable that every process of a job inherits."""

from __future__ import annotations

from pathlib import Path

MARK = b"TGPU_ALLOCATION_ID="
MOST_PARENTS = 64


def owner_of(pid: int) -> str | None:
    """The allocation that a process, or one of its parents, belongs to."""
    for _ in range(MOST_PARENTS):
        if pid <= 1:
            return None
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        for variable in variables:
            if variable.startswith(MARK):
                return variable.removeprefix(MARK).decode(errors="replace")
        # The name in parentheses may hold anything, so count from behind it.
        pid = int(status.rpartition(")")[2].split()[1])
    return None
