"""Whether a job on a terminal is in use: idle timeout, attach timeout, time limit.

Activity comes in; notes for the attached users and reasons to end the job go out. Copied as text
beside `terminal_host.py`; runs with any Python 3.8 or newer, and imports nothing of this package.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

BUSY_SHARE = 0.01
"""Programs that use less than this share of a core are idle."""
WARN_SHARE = 0.9
LIMIT_WARN_S = 300.0
MAX_CHECK_S = 30.0


class Use:
    """When the job was last used, and when it ends because it was not."""

    def __init__(self, terms: Order) -> None:
        self.idle_s = terms["idle_ms"] / 1000
        self.attach_s = terms["attach_within_ms"] / 1000
        self.limit_s = terms.get("limit_ms", 0) / 1000
        self.began = self.at = self.checked = time.monotonic()
        self.cpu_s = 0.0
        self.warned = False
        self.limit_noted = False

    def note(self) -> None:
        """The terminal is in use now."""
        self.at = time.monotonic()
        self.warned = False

    def wait_s(self) -> float:
        """How long to sleep at most."""
        limits = (self.idle_s, self.attach_s, self.limit_s)
        shortest = min((each for each in limits if each), default=300.0)
        return max(0.05, min(MAX_CHECK_S, shortest / 20))

    def near_limit(self) -> str:
        """A note, once, before the launcher ends the job at its time limit."""
        left_s = self.limit_s - (time.monotonic() - self.began)
        if self.limit_noted or not self.limit_s or left_s > min(LIMIT_WARN_S, self.limit_s / 10):
            return ""
        self.limit_noted = True
        return f"this job ends in {format_seconds(max(1.0, left_s))}, at its time limit"

    def verdict(self, job: int, visited: bool) -> tuple[str, str]:
        """A note for the attached users, and why to end the job; both may be empty."""
        now = time.monotonic()
        if self.attach_s and not visited and now - self.began >= self.attach_s:
            return "", f"no user attached to its terminal within {format_seconds(self.attach_s)}"
        if not self.idle_s or now - self.checked < self.wait_s():
            return "", ""
        used_s = cpu_seconds(job)
        if used_s - self.cpu_s > BUSY_SHARE * (now - self.checked):
            self.note()
        self.cpu_s, self.checked = used_s, now
        idle_s = now - self.at
        if idle_s < WARN_SHARE * self.idle_s:
            return "", ""
        if not self.warned:
            # Even when its time is over: on a busy machine this check may come late.
            self.warned = True
            left = format_seconds(max(1.0, self.idle_s - idle_s))
            return f"this terminal is idle; press a key, or the job ends in {left}", ""
        return "", f"idle for {format_seconds(self.idle_s)}" if idle_s >= self.idle_s else ""


def cpu_seconds(above: int) -> float:
    """CPU time of a process and all below it, including those that have ended."""
    ticks, found = 0, [above]
    while found:
        pid = found.pop()
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
                found += map(int, file.read().split())
        except (OSError, ValueError):
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def format_seconds(seconds: float) -> str:
    """A duration as text."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
