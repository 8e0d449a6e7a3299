"""How long a child may take from its fork, or from the word to go, until it is the command.

Attempts come in when their time begins and leave when they are as far; who is late is told of once.
One timer serves all of them: most are gone before it rings.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.attempt import Attempt
from gpu_scheduler.agent.launcher.forms import Key
from gpu_scheduler.agent.launcher.loop import Loop, Timer, now_ms


class StartTimes:
    """Who is on the way to its command, and until when."""

    def __init__(self, loop: Loop, late: Callable[[Attempt], None]) -> None:
        self._loop = loop
        self._late = late
        self._due: dict[Key, tuple[int, Attempt]] = {}
        self._timer: Timer | None = None

    def begin(self, attempt: Attempt, wait_ms: int) -> None:
        """It has so much time from now on."""
        due_ms = now_ms() + wait_ms
        self._due[attempt.key] = (due_ms, attempt)
        if self._timer is None or due_ms < self._timer.due_ms:
            self._set(due_ms)

    def leave(self, attempt: Attempt) -> None:
        """It is as far, or at its end."""
        self._due.pop(attempt.key, None)

    def _set(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(due_ms - now_ms(), self._look)

    def _look(self) -> None:
        self._timer = None
        now = now_ms()
        late = [attempt for due_ms, attempt in self._due.values() if due_ms <= now]
        for attempt in late:
            self.leave(attempt)
            self._loop.call(self._late, attempt)
        if self._due:
            self._set(min(due_ms for due_ms, _ in self._due.values()))


def waits_for_others_ms(attempt: Attempt) -> int:
    """By then other members on this node are there, or have been given up themselves."""
    work = attempt.work
    return 2 * work.start_timeout_ms + (work.hook_timeout_ms if work.prolog else 0)


def too_late(attempt: Attempt) -> str:
    """That it did not become its command in time, and over what."""
    seconds = attempt.work.start_timeout_ms / 1000
    return f"it was not ready to run within {seconds:g} s, and hung {_over_what(attempt)}"


def _over_what(attempt: Attempt) -> str:
    """By what it has done so far; none of these looks can hang."""
    work, pid = attempt.work, attempt.pid
    if processes.is_stopped(pid):
        return "as somebody has stopped its process"
    output = f"the output file {work.log_path!r}" if work.log_of_user else ""
    if work.runner == "container":
        root = work.image if work.image.startswith("rootfs:") else ""
        places = [*(source for source, _, _ in work.mounts), root, output]
        return "over one of these: " + ", ".join(filter(None, places))
    if processes.user_of(pid) != work.uid:
        return f"while it looked up the groups of user {work.user or work.uid}"
    if output and _link(pid, "fd/1") != work.log_path:
        return f"over {output}"
    if _link(pid, "cwd") != os.path.normpath(work.workdir or "/"):
        return f"over the working directory {work.workdir!r}"
    return f"over the program {work.argv[0]!r}" if work.argv else "over its script"


def _link(pid: int, name: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/{name}")
    except OSError:
        return ""
