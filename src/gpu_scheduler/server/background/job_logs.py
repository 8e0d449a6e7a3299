"""Logs about jobs: reads a job's output from its node, and writes job events to the server log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import structlog

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import ClusterError, UnknownThing
from gpu_scheduler.model.launch import output_file
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import EventRow, Write
from gpu_scheduler.wire import agent_pb2 as pb

MAX_LINES_PER_SECOND = 20
SECOND_MS = 1000
MESSAGES = {
    "scheduled": "job assigned",
    "running": "job started",
    "completed": "job completed",
    "failed": "job failed",
    "cancelled": "job cancelled",
    "preempted": "job preempted",
    "requeued": "job requeued",
}
NOT_STARTED = "could not be started"
"""The start of the reason of a job of which no program ran."""
log = structlog.get_logger("jobs")


class JobLogs:
    """The output of jobs, read from the nodes where they run or ran."""

    def __init__(self, loop: Loop, agents: Agents) -> None:
        self._loop = loop
        self._agents = agents

    async def read_log(
        self, job_id: str, allocation_id: str, member: int, offset: int, limit: int, follow: bool
    ) -> AsyncIterator[bytes]:
        """Bytes of one member's log; see `api.interfaces.LogSource`."""
        launch = await asyncio.to_thread(self._loop.store.launch, job_id)
        if launch is not None and launch.output:
            # A server that runs as root must not read files that a user names.
            number = allocation_id.rpartition(".")[0].removeprefix("job-")
            row = await asyncio.to_thread(self._loop.store.job, job_id)
            if row is not None and row.reason.startswith(NOT_STARTED):
                raise UnknownThing(f"the job has no output: it {row.reason}")
            file = output_file(launch.output, number, "" if row is None else row.job.name)
            path = os.path.join(launch.workdir, file)  # noqa: PTH118  only a name
            raise UnknownThing(f"the job writes its output to {path}; read it there")
        node_id = await self._node_of(job_id, allocation_id, member)
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
        """Raise an error that says why a node cannot be reached, and when its logs can be read."""
        resources = self._loop.core.state.cluster.index.by_id.get(node_id)
        if resources is not None and not resources.node.silent_ms:
            return
        attempt = allocation_id.rpartition(".")[2]
        where = f"the output of attempt {attempt} is on node '{node_id}', which"
        if resources is None:
            raise UnknownThing(f"{where} was removed, so it can no longer be read")
        since = format_utc(resources.node.silent_ms)
        if resources.node.state is not NodeState.DEAD:
            raise ClusterError(
                f"{where} is {resources.node.state.value} (no heartbeat since {since}); it can be "
                "read when the node is back"
            )
        raise ClusterError(
            f"{where} is dead (no heartbeat since {since}), so that attempt has ended; its output "
            "can be read only if the node comes back"
        )

    async def _node_of(self, job_id: str, allocation_id: str, member: int) -> str:
        for placement in await self._placements(job_id, allocation_id):
            if placement.member == member:
                return placement.node_id
        raise UnknownThing(f"attempt {allocation_id} has no member {member}")

    async def _placements(self, job_id: str, allocation_id: str) -> tuple[Placement, ...]:
        running = self._loop.core.state.cluster.running.get(allocation_id)
        if running is not None:
            return running.running.allocation.placements
        found = await asyncio.to_thread(self._stored_placements, job_id, allocation_id)
        if not found:
            raise UnknownThing(f"there is no attempt {allocation_id}")
        return found

    def _stored_placements(self, job_id: str, allocation_id: str) -> tuple[Placement, ...]:
        # While an end is being committed, the attempt is in neither, so the store is read again.
        return (
            self._ended(job_id, allocation_id)
            or self._held(allocation_id)
            or self._ended(job_id, allocation_id)
        )

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


class JobLog:
    """Writes a line to the server log for every start and end of a job.

    A burst is cut short with a count of the omitted events; the event history has all of them.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._second = 0
        self._written = 0
        self._omitted = 0

    def on_commit(self, writes: list[Write]) -> None:
        """Log the job events of a commit, without changing anything."""
        for write in writes:
            if isinstance(write, EventRow) and write.job_id and write.kind in MESSAGES:
                self._log(write)

    def _log(self, event: EventRow) -> None:
        second = event.at_ms // SECOND_MS
        if second != self._second:
            if self._omitted:
                log.info("further job events omitted", events=self._omitted)
            self._second, self._written, self._omitted = second, 0, 0
        if self._written >= MAX_LINES_PER_SECOND:
            self._omitted += 1
            return
        self._written += 1
        log.info(MESSAGES[event.kind], **self._fields(event))

    def _fields(self, event: EventRow) -> dict[str, Any]:
        fields: dict[str, Any] = {"job_id": event.job_id, "user": event.user}
        if event.task is not None:
            fields["task"] = event.task
        state = self._loop.core.state
        record = state.jobs.get(event.job_id)
        if record is None:
            return fields
        # Use `tasks.get`: other accessors would create a record for a task that has ended.
        task = record.only_task if event.task is None else record.tasks.get(event.task)
        if task is None:
            return fields
        fields["attempt"] = task.attempt
        entry = state.cluster.running.get(task.allocation_id)
        if entry is not None:
            placements = entry.running.allocation.placements
            fields["node"] = ",".join(dict.fromkeys(place.node_id for place in placements))
            fields["gpu_ids"] = [share.index for place in placements for share in place.devices]
            fields["required_gpus"] = record.job.gpu_milli / 1000
        return fields
