"""A line in the server's own log for every start and end of a job, up to so many in a second.

Commits come in. A burst is cut short with a count, as history has it all.
"""

from __future__ import annotations

from typing import Any

import structlog

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.store.rows import EventRow, Write

MOST_PER_SECOND = 20
SECOND_MS = 1000
MESSAGES = {
    "scheduled": "job assigned",
    "running": "job started",
    "completed": "job completed",
    "failed": "job failed",
    "cancelled": "job cancelled",
    "preempted": "job preempted",
    "requeued": "job waits again",
}
log = structlog.get_logger("jobs")


class JobLines:
    """Writes lines, and counts those that it leaves out. Must change nothing that it looks at."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._second = 0
        self._written = 0
        self._left_out = 0

    def note(self, writes: list[Write]) -> None:
        """Look through a commit. Jobs that only wait yet are not even unpacked."""
        for write in writes:
            if isinstance(write, EventRow) and write.job_id and write.kind in MESSAGES:
                self._line(write)

    def _line(self, event: EventRow) -> None:
        second = event.at_ms // SECOND_MS
        if second != self._second:
            if self._left_out:
                log.info("more happened to jobs", events=self._left_out)
            self._second, self._written, self._left_out = second, 0, 0
        if self._written >= MOST_PER_SECOND:
            self._left_out += 1
            return
        self._written += 1
        log.info(MESSAGES[event.kind], **self._facts(event))

    def _facts(self, event: EventRow) -> dict[str, Any]:
        facts: dict[str, Any] = {"job_id": event.job_id, "user": event.user}
        if event.task is not None:
            facts["task"] = event.task
        book = self._loop.core.book
        life = book.lives.get(event.job_id)
        if life is None:
            return facts
        # Only looked at: to ask a life for a task that is over would begin it anew.
        task = life.only_task if event.task is None else life.tasks.get(event.task)
        if task is None:
            return facts
        facts["attempt"] = task.attempt
        entry = book.picture.running.get(task.allocation_id)
        if entry is not None:
            placements = entry.running.allocation.placements
            facts["node"] = ",".join(dict.fromkeys(place.node_id for place in placements))
            facts["gpu_ids"] = [share.index for place in placements for share in place.devices]
            facts["required_gpus"] = life.job.gpu_milli / 1000
        return facts
