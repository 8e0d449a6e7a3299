"""Which processes belong to which job, also those that have detached.

Attempts come in, pids go out. A control group lists all processes of a job. Without one, a detached
process becomes a child of the launcher (the subreaper), and is identified by its environment or its
session. Jobs that a former launcher started are found by a scan of /proc.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.agent.launcher import processes
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt, Phase
from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher_protocol import Key
from gpu_scheduler.agent.runners.container import container_name

FAMILY_FRESH_MS = 20


class ProcessTracker:
    """Finds processes. `attempts` is the launcher's own table, read only."""

    def __init__(self, loop: Loop, attempts: Mapping[Key, Attempt], mark: str) -> None:
        self._loop = loop
        self._mark = mark
        self._attempts = attempts
        self._orphans: dict[int, Key | None] = {}
        self._ignored: dict[int, int] = {}
        self._family: dict[int, tuple[int, int]] = {}
        self._family_ms = -FAMILY_FRESH_MS
        self._is_fresh = False

    def invalidate(self) -> None:
        """A new turn of the loop: read the list of orphans again when it is needed."""
        self._is_fresh = False

    def leftovers(self, attempt: Attempt) -> set[int]:
        """The processes of a job beside its main process.

        Processes that have just ended are included: one may have left a child after the scan.
        """
        found = set(attempt.group.pids())
        self._refresh()
        orphans = [pid for pid, key in self._orphans.items() if key == attempt.key]
        if orphans:
            found.update(orphans, processes.descendants(orphans, self._relatives()))
        if attempt.adopted or attempt.engine_unresponsive:
            found |= self._by_mark(attempt)
        if attempt.engine_unresponsive:
            found |= self.in_container(attempt)
        known = self._loop.known_children.keys()
        found -= known | {os.getpid(), attempt.pid}
        if attempt.opener_pid in known and attempt.ending is not None:
            found.add(attempt.opener_pid)
        return found

    def tree(self, attempt: Attempt) -> set[int]:
        """The whole job while its main process lives."""
        found = self.leftovers(attempt)
        if attempt.pid and attempt.ending is None:
            found.add(attempt.pid)
            if not attempt.group.paths:
                found |= processes.descendants([attempt.pid], self._relatives())
        return found

    def in_container(self, attempt: Attempt) -> set[int]:
        """The processes inside its container, found without the engine.

        They have our mark in their environment, or are below podman's monitor, which is left out.
        """
        relatives = self._relatives()
        name = container_name(attempt.work)
        monitors = {pid for pid in relatives if processes.monitors_container(pid, name)}
        marked = {pid for pid in relatives if self._is_marked(pid, attempt)}
        found = processes.descendants(marked | monitors, relatives)
        return found - monitors - self._loop.known_children.keys() - {os.getpid()}

    def _is_marked(self, pid: int, attempt: Attempt) -> bool:
        is_named = processes.owner(pid, self._mark) == attempt.key
        return is_named and self._may_be_of(pid, attempt)

    def ancestors(self, pid: int) -> set[int]:
        """The process and its ancestors, up to the launcher or init."""
        relatives = self._relatives()
        found: set[int] = set()
        while pid > 1 and pid != os.getpid() and pid in relatives and pid not in found:
            found.add(pid)
            pid = relatives[pid][0]
        return found

    def _relatives(self) -> dict[int, tuple[int, int]]:
        """One scan is shared by all jobs that end within some milliseconds."""
        if now_ms() - self._family_ms >= FAMILY_FRESH_MS:
            self._family = processes.family()
            self._family_ms = now_ms()
        return self._family

    def _refresh(self) -> None:
        """Read the list twice: a read while a child ends can miss its neighbour."""
        if self._is_fresh:
            return
        self._is_fresh = True
        known = self._loop.known_children
        seen = {*processes.own_children(), *processes.own_children()}
        children = [pid for pid in sorted(seen) if pid not in known]
        before = self._orphans
        self._orphans = {
            pid: before[pid] if before.get(pid) is not None else self._owner(pid)
            for pid in children
            if pid in before or not (self._is_ignored(pid) or processes.is_helper(pid, self._mark))
        }

    def ignore_marked(self, mark: str) -> None:
        """A helper has ended: the processes that it left running on purpose belong to no job.

        Only those that run now, and by a mark that is used once: a user could copy it later.
        """
        known = self._loop.known_children
        children = [pid for pid in processes.own_children() if pid not in known]
        alive = {pid: ticks for pid, ticks in self._ignored.items() if pid in children}
        new = (pid for pid in children if pid not in alive and processes.has_mark(pid, mark))
        self._ignored = alive | {pid: processes.start_ticks(pid) for pid in new}

    def _is_ignored(self, pid: int) -> bool:
        ticks = self._ignored.get(pid)
        return bool(ticks) and processes.start_ticks(pid) == ticks

    def strays(self) -> list[int]:
        """Orphans of unknown origin, of users who have no unfinished job."""
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
        """A user can set any environment, but cannot become part of another user's job by it."""
        return attempt is not None and processes.user_of(pid) in {attempt.work.uid, 0}

    def _only_candidate(self, pid: int) -> Key | None:
        """A process of unknown origin belongs to the job of its user, if there is only one."""
        user = processes.user_of(pid)
        possible = [
            attempt.key
            for attempt in self._attempts.values()
            if attempt.phase in {Phase.RUNNING, Phase.CLEANUP} and attempt.work.uid == user
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
