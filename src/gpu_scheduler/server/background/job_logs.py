"""Finds the node that has a job's log, and reads it from there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import structlog

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import ClusterError, UnknownThing
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import EventRow, Write
from gpu_scheduler.wire import agent_pb2 as pb


class JobLogs:
    """The output of jobs, wherever they run or ran."""

    def __init__(self, loop: Loop, agents: Agents) -> None:
        """`loop` knows where, `agents` bring it."""
        self._loop = loop
        self._agents = agents

    async def read_log(
        self, job_id: str, allocation_id: str, member: int, offset: int, limit: int, follow: bool
    ) -> AsyncIterator[bytes]:
        """Bytes of one member's log; see `api.service.LogSource`."""
        launch = self._loop.store.launch(job_id)
        if launch is not None and launch.output:
            # A server that runs as root must not read for others what they name.
            raise UnknownThing(f"its output goes to {launch.output}, as was asked; read it there")
        node_id = self._node_of(job_id, allocation_id, member)
        request = pb.LogRequest(
            job_id=job_id,
            allocation_id=allocation_id,
            member=member,
            offset=offset,
            limit=limit,
            follow=follow,
        )
        self._check_reachable(node_id, allocation_id)
        async for data in self._agents.logs.read(node_id, request):
            yield data

    def _check_reachable(self, node_id: str, allocation_id: str) -> None:
        """Say what is known of a node that is not there, and when its logs can be read again."""
        resources = self._loop.core.state.cluster.index.by_id.get(node_id)
        if resources is not None and not resources.node.silent_ms:
            return
        attempt = allocation_id.rpartition(".")[2]
        where = f"the output of attempt {attempt} is on node '{node_id}', which"
        if resources is None:
            raise UnknownThing(f"{where} was removed, so it cannot be read any more")
        since = format_utc(resources.node.silent_ms)
        if resources.node.state is not NodeState.DEAD:
            raise ClusterError(
                f"{where} is {resources.node.state.value}: nothing is heard of it since {since}; "
                "it can be read when the node is back"
            )
        raise ClusterError(
            f"{where} is dead (silent since {since}), so that attempt is over; its output can be "
            "read only if the node comes back"
        )

    def _node_of(self, job_id: str, allocation_id: str, member: int) -> str:
        for placement in self._placements(job_id, allocation_id):
            if placement.member == member:
                return placement.node_id
        raise UnknownThing(f"attempt {allocation_id} has no member {member}")

    def _placements(self, job_id: str, allocation_id: str) -> tuple[Placement, ...]:
        running = self._loop.core.state.cluster.running.get(allocation_id)
        if running is not None:
            return running.running.allocation.placements
        # An end that is being committed is in neither, so the last look is at what was committed.
        found = (
            self._ended(job_id, allocation_id)
            or self._held(allocation_id)
            or self._ended(job_id, allocation_id)
        )
        if not found:
            raise UnknownThing(f"there is no attempt {allocation_id}")
        return found

    def _ended(self, job_id: str, allocation_id: str) -> tuple[Placement, ...]:
        for attempt in self._loop.store.attempts(job_id):
            if attempt.allocation_id == allocation_id:
                return attempt.placements
        return ()

    def _held(self, allocation_id: str) -> tuple[Placement, ...]:
        for allocation in self._loop.store.allocations():
            if allocation.id == allocation_id:
                return allocation.placements
        return ()


# --- A line in the server's own log for every start and end of a job, up to so many in a second.
#
# Commits come in. A burst is cut short with a count, as history has it all.

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
        state = self._loop.core.state
        record = state.jobs.get(event.job_id)
        if record is None:
            return facts
        # Only looked at: to ask a record for a task that is over would begin it anew.
        task = record.only_task if event.task is None else record.tasks.get(event.task)
        if task is None:
            return facts
        facts["attempt"] = task.attempt
        entry = state.cluster.running.get(task.allocation_id)
        if entry is not None:
            placements = entry.running.allocation.placements
            facts["node"] = ",".join(dict.fromkeys(place.node_id for place in placements))
            facts["gpu_ids"] = [share.index for place in placements for share in place.devices]
            facts["required_gpus"] = record.job.gpu_milli / 1000
        return facts
