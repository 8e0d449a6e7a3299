"""Whether a job on a terminal is in use, and what is to be said or done if it is not.

What happened comes in, words for the people who are there and reasons to end the job go out. Runs
beside `terminal_host.py`, with any Python 3.8 or newer, and imports nothing of this package.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

BUSY_SHARE = 0.01
"""Programs that use less of a core than this are not at work."""
WARN_SHARE = 0.9
LIMIT_WARN_S = 300.0
LONGEST_CHECK_S = 30.0


class Use:
    """When the job was last used, and when it is to be ended because it was not."""

    def __init__(self, terms: Order) -> None:
        self.idle_s = terms["idle_ms"] / 1000
        self.attach_s = terms["attach_within_ms"] / 1000
        self.limit_s = terms.get("limit_ms", 0) / 1000
        self.began = self.at = self.checked = time.monotonic()
        self.cpu_s = 0.0
        self.warned = False
        self.told_limit = False

    def note(self) -> None:
        self.at = time.monotonic()
        self.warned = False

    def wait_s(self) -> float:
        """How long to sleep at most."""
        limits = (self.idle_s, self.attach_s, self.limit_s)
        shortest = min((each for each in limits if each), default=300.0)
        return max(0.05, min(LONGEST_CHECK_S, shortest / 20))

    def near_limit(self) -> str:
        """A word before the launcher ends the job at its time limit; once."""
        left_s = self.limit_s - (time.monotonic() - self.began)
        if self.told_limit or not self.limit_s or left_s > min(LIMIT_WARN_S, self.limit_s / 10):
            return ""
        self.told_limit = True
        return f"this job ends in {told(max(1.0, left_s))}, at its time limit"

    def verdict(self, job: int, visited: bool) -> tuple[str, str]:
        """What to tell those who are there, and why to end the job; both may be empty."""
        now = time.monotonic()
        if self.attach_s and not visited and now - self.began >= self.attach_s:
            return "", f"nobody came to its terminal within {told(self.attach_s)}"
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
            # Also when its time is over: on a busy machine nobody has looked for a while.
            self.warned = True
            left = told(max(1.0, self.idle_s - idle_s))
            return f"nothing has happened here for a while; press a key, or it ends in {left}", ""
        return "", f"idle for {told(self.idle_s)}" if idle_s >= self.idle_s else ""


def cpu_seconds(above: int) -> float:
    """CPU time of a process and all below it, also of those that have ended."""
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


def told(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
