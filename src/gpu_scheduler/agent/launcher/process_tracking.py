"""Which processes belong to which job, also those that have detached themselves.

Attempts come in, pids go out. A control group knows them all. Without one, whoever detaches becomes
a child of the launcher, the subreaper, and is told by its environment or its session. Jobs that a
former launcher began are found by a walk through /proc.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher.messages import Key
from gpu_scheduler.agent.runners.container import container_name

FAMILY_FRESH_MS = 20


class Census:
    """Counts processes. `attempts` is the launcher's own table, read only."""

    def __init__(self, loop: Loop, attempts: Mapping[Key, Attempt], mark: str) -> None:
        self._loop = loop
        self._mark = mark
        self._attempts = attempts
        self._orphans: dict[int, Key | None] = {}
        self._left_alone: dict[int, int] = {}
        self._family: dict[int, tuple[int, int]] = {}
        self._family_ms = -FAMILY_FRESH_MS
        self._current = False

    def turn_over(self) -> None:
        """A new turn of the loop: look again when asked."""
        self._current = False

    def left(self, attempt: Attempt) -> set[int]:
        """What may still run of a job beside its main process.

        Whoever has just ended is counted too: it may have left a child that came after the look.
        """
        found = set(attempt.group.pids())
        self._refresh()
        orphans = [pid for pid, key in self._orphans.items() if key == attempt.key]
        if orphans:
            found.update(orphans, processes.descendants(orphans, self._relatives()))
        if attempt.adopted or attempt.engine_silent:
            found |= self._by_mark(attempt)
        if attempt.engine_silent:
            found |= self.in_container(attempt)
        known = self._loop.known_children.keys()
        found -= known | {os.getpid(), attempt.pid}
        if attempt.opener in known and attempt.ending is not None:
            found.add(attempt.opener)
        return found

    def tree(self, attempt: Attempt) -> set[int]:
        """The whole job while its main process lives."""
        found = self.left(attempt)
        if attempt.pid and attempt.ending is None:
            found.add(attempt.pid)
            if not attempt.group.paths:
                found |= processes.descendants([attempt.pid], self._relatives())
        return found

    def in_container(self, attempt: Attempt) -> set[int]:
        """What runs inside its container, found without the engine.

        By what it inherits from us, or below podman's watcher, which is left alone.
        """
        relatives = self._relatives()
        name = container_name(attempt.work)
        keepers = {pid for pid in relatives if processes.keeps_container(pid, name)}
        marked = {pid for pid in relatives if self._is_marked(pid, attempt)}
        found = processes.descendants(marked | keepers, relatives)
        return found - keepers - self._loop.known_children.keys() - {os.getpid()}

    def _is_marked(self, pid: int, attempt: Attempt) -> bool:
        is_named = processes.owner(pid, self._mark) == attempt.key
        return is_named and self._may_be_of(pid, attempt)

    def ancestors(self, pid: int) -> set[int]:
        """The process and those above it, up to us or to the first process of the machine."""
        relatives = self._relatives()
        found: set[int] = set()
        while pid > 1 and pid != os.getpid() and pid in relatives and pid not in found:
            found.add(pid)
            pid = relatives[pid][0]
        return found

    def _relatives(self) -> dict[int, tuple[int, int]]:
        """Fresh enough to be shared by all jobs that end in the same moment."""
        if now_ms() - self._family_ms >= FAMILY_FRESH_MS:
            self._family = processes.family()
            self._family_ms = now_ms()
        return self._family

    def _refresh(self) -> None:
        """Twice: a list that is read while a child ends can lack its neighbour."""
        if self._current:
            return
        self._current = True
        known = self._loop.known_children
        seen = {*processes.own_children(), *processes.own_children()}
        children = [pid for pid in sorted(seen) if pid not in known]
        before = self._orphans
        self._orphans = {
            pid: before[pid] if before.get(pid) is not None else self._owner(pid)
            for pid in children
            if pid in before
            or not (self._is_left_alone(pid) or processes.is_helper(pid, self._mark))
        }

    def leave_alone(self, mark: str) -> None:
        """An errand for a user has ended: what it left running on purpose is no part of a job.

        Only now, and by a mark that was never used before: the user could copy it later.
        """
        known = self._loop.known_children
        children = [pid for pid in processes.own_children() if pid not in known]
        alive = {pid: ticks for pid, ticks in self._left_alone.items() if pid in children}
        new = (pid for pid in children if pid not in alive and processes.has_mark(pid, mark))
        self._left_alone = alive | {pid: processes.start_ticks(pid) for pid in new}

    def _is_left_alone(self, pid: int) -> bool:
        ticks = self._left_alone.get(pid)
        return bool(ticks) and processes.start_ticks(pid) == ticks

    def strays(self) -> list[int]:
        """Orphans that hide their origin, of users who have no job any more."""
        self._refresh()
        users = {attempt.work.uid for attempt in self._attempts.values() if attempt.over is None}
        return [
            pid
            for pid, key in self._orphans.items()
            if key is None and processes.user_of(pid) not in users
        ]

    def _owner(self, pid: int) -> Key | None:
        key = processes.owner(pid, self._mark)
        if key is not None and self._may_be_of(pid, self._attempts.get(key)):
            return key
        groups = processes.control_groups(pid)
        session = self._relatives().get(pid, (0, 0))[1]
        for attempt in self._attempts.values():
            if attempt.over is None and (
                session in {attempt.pid, attempt.job_pid} - {0}
                or (attempt.group.paths and f"/{attempt.group.name}\n" in groups)
            ):
                return attempt.key
        return self._only_candidate(pid)

    def _may_be_of(self, pid: int, attempt: Attempt | None) -> bool:
        """Users name their environment as they like; it cannot make them part of another's job."""
        return attempt is not None and processes.user_of(pid) in {attempt.work.uid, 0}

    def _only_candidate(self, pid: int) -> Key | None:
        """A process that hides its origin belongs to the one job of its user that can be it."""
        user = processes.user_of(pid)
        possible = [
            attempt.key
            for attempt in self._attempts.values()
            if attempt.phase in {Phase.RUNNING, Phase.CLEARING} and attempt.work.uid == user
        ]
        return possible[0] if len(possible) == 1 else None

    def _by_mark(self, attempt: Attempt) -> set[int]:
        relatives = self._relatives()
        marked = {
            pid
            for pid, (_, session) in relatives.items()
            if session in {attempt.pid, attempt.job_pid} - {0} or self._is_marked(pid, attempt)
        }
        return processes.descendants(marked, relatives)
