"""The terminal of a job on any node as a WebSocket, for its user and for admins.

Binary messages carry the protocol of `agent/runners/terminal_host.py`, in chunks of any length.
Text messages, only from the server, are credits: how many more binary messages it takes. A client
that sends more is disconnected, so that one terminal cannot block others.
"""

from __future__ import annotations

import asyncio
import re

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import V1
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit
from gpu_scheduler.api.http.request import Receive, Request, Send, until_first_ends
from gpu_scheduler.api.nodes.streams import TerminalSession
from gpu_scheduler.api.routes.job_views import attempt_id, last_attempt
from gpu_scheduler.control.access.accepted_commands_audit import DONE
from gpu_scheduler.model.errors import (
    ClusterError,
    Forbidden,
    InvalidRequest,
    UnknownThing,
    WrongState,
)
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job, display_name
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import AuditRow, JobRow
from gpu_scheduler.wire import agent_pb2 as pb

PATTERN = re.compile(rf"{V1}/jobs/(?P<job_id>[^/]+)/terminal")
ACTION = "job_terminal"
ENDED, VIOLATION, FAILED = 1000, 1008, 1011
"""WebSocket close codes: ended, protocol violated by the client, failed."""
MOST_REASON_BYTES = 120
CLOSE_S = 5.0


class TerminalSockets:
    """The open terminals, a limited number for each user."""

    def __init__(self, context: Context) -> None:
        """Start without terminals."""
        self._context = context
        self._limit = ConcurrencyLimit(context.settings.bounds.sockets_per_user, "terminals")

    async def serve(self, request: Request, receive: Receive, send: Send) -> None:
        """Attach to a terminal; an error before that is an HTTP response."""
        context, caller = self._context, request.caller
        member = context.parse_query(request, "member").number("member", 0, most=100_000)
        row, task = await context.find_job(request)
        _check_owner(caller, row.job)
        node_id, opening = await self._target(row, task, member)
        if not opening.uid and caller.user != row.job.user:
            raise Forbidden(
                f"the terminal of {display_name(row.job.id)} is root's; only root may attach to it"
            )
        if context.terminals is None:
            raise ClusterError("no agent is connected that could reach terminals; try again")
        with self._limit.hold(caller.user):
            async with context.terminals.open(node_id, opening) as session:
                self._audit(caller, opening)
                await receive()
                await send({"type": "websocket.accept"})
                await _relay(session, receive, send)

    async def _target(
        self, row: JobRow, task: int | None, member: int
    ) -> tuple[str, pb.TerminalOpen]:
        """Return the node of the terminal, and the request for its agent."""
        name = display_name(row.job.id) if task is None else f"{display_name(row.job.id)}_{task}"
        launch = await asyncio.to_thread(self._context.service.store.launch, row.job.id)
        if launch is None or launch.runner is not Runner.TERMINAL:
            raise WrongState(_without_terminal(name, launch))
        allocation = await self._allocation(row, task)
        if allocation is None:
            raise WrongState(f"{name} is not running; its terminal exists only while it runs")
        for placement in allocation.placements:
            if placement.member == member:
                opening = pb.TerminalOpen(
                    allocation_id=allocation.id, member=member, uid=launch.uid
                )
                return placement.node_id, opening
        raise UnknownThing(f"{name} has no member {member}")

    async def _allocation(self, row: JobRow, task: int | None) -> Allocation | None:
        if row.job.array is not None and task is None:
            raise InvalidRequest(f"{display_name(row.job.id)} is an array; name a task, as in 12_4")
        attempt = await asyncio.to_thread(last_attempt, self._context.service.store, row, task)
        name = attempt_id(row.job.id, task, attempt)
        running = self._context.state.cluster.running.get(name)
        return None if running is None else running.running.allocation

    def _audit(self, caller: Caller, opening: pb.TerminalOpen) -> None:
        """Write the access to the audit log: input in the terminal runs as the job's user."""
        service = self._context.service
        identity = (caller.user, caller.origin, caller.via)
        target = opening.allocation_id
        detail = f"member {opening.member}" if opening.member else ""
        service.note(AuditRow(service.now_ms(), *identity, ACTION, target, DONE, "", detail))


def _check_owner(caller: Caller, job: Job) -> None:
    """Reject callers who may see the job but may not act as its user."""
    if not caller.may_change:
        raise Forbidden(f"'{caller.user}' has the role viewer, which may not use terminals")
    if caller.user != job.user and not caller.is_admin:
        raise Forbidden(
            f"the terminal of {display_name(job.id)} belongs to '{job.user}'; only that user "
            "and admins may attach to it"
        )


def _without_terminal(name: str, launch: Launch | None) -> str:
    if launch is not None and launch.runner in {Runner.TMUX, Runner.SCREEN}:
        return (
            f"{name} runs in {launch.runner.value}, which is entered on its own node; submit with "
            "'--runner terminal' to reach it from anywhere"
        )
    return f"{name} has no terminal; submit it with '--runner terminal' to get one"


async def _relay(session: TerminalSession, receive: Receive, send: Send) -> None:
    """Relay until the terminal ends or the client disconnects."""
    output, user_input = _send_output(session, send), _receive_input(session, receive)
    async with until_first_ends(output, user_input) as (sending, receiving):
        if sending.done():
            sending.result()
            await _close(send, FAILED if session.problem else ENDED, session.problem)
        elif violation := receiving.result():
            await _close(send, VIOLATION, violation)


async def _send_output(session: TerminalSession, send: Send) -> None:
    async for item in session.items():
        if isinstance(item, int):
            await send({"type": "websocket.send", "text": str(item)})
        else:
            await send({"type": "websocket.send", "bytes": item})


async def _receive_input(session: TerminalSession, receive: Receive) -> str:
    """Forward input until the connection ends; return what the client did wrong, if anything."""
    while True:
        message = await receive()
        if message["type"] != "websocket.receive":
            return ""
        data = message.get("bytes")
        if data is None:
            return "send binary messages"
        try:
            session.send_input(data)
        except InvalidRequest as error:
            return str(error)


async def _close(send: Send, code: int, reason: str) -> None:
    short = reason.encode()[:MOST_REASON_BYTES].decode(errors="ignore")
    async with asyncio.timeout(CLOSE_S):
        await send({"type": "websocket.close", "code": code, "reason": short})
