"""The terminal of a job on any node, as a WebSocket: for its user and for admins.

Binary messages are what `agent/runners/terminal_host.py` and who visits it say to each other, in
pieces of any length. Text messages, from here only, are numbers: so many binary messages more are
taken. Whoever sends more than that is cut off, so that one can always be listened to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.operations import V1
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit
from gpu_scheduler.api.http.request import Request
from gpu_scheduler.api.nodes.streams import TerminalSession
from gpu_scheduler.control.access.audit import DONE
from gpu_scheduler.model.errors import (
    ClusterError,
    Forbidden,
    InvalidRequest,
    UnknownThing,
    WrongState,
)
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, display_name
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.rows import AuditRow, JobRow
from gpu_scheduler.wire import agent_pb2 as pb

PATTERN = re.compile(rf"{V1}/jobs/(?P<job_id>[^/]+)/terminal")
ACTION = "job_terminal"
OVER, NOT_ALLOWED, BROKEN = 1000, 1008, 1011
"""Codes with which a WebSocket is closed: it is over, one does not keep to the rules, it broke."""
MOST_REASON_BYTES = 120
CLOSE_S = 5.0

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class TerminalSockets:
    """All open WebSockets of this kind: so many for each user."""

    def __init__(self, context: Context) -> None:
        """None is open."""
        self._context = context
        self._slots = ConcurrencyLimit(context.settings.bounds.sockets_per_user, "terminals")

    async def serve(self, request: Request, receive: Receive, send: Send) -> None:
        """Join a terminal; refused with a status of its own if it is not reached."""
        context, caller = self._context, request.caller
        member = context.parse_query(request, "member").number("member", 0, most=100_000)
        row, task = context.find_job(request)
        _check_owner(caller, row.job)
        node_id, asked = self._wanted(row, task, member)
        if not asked.uid and caller.user != row.job.user:
            raise Forbidden(
                f"the terminal of {display_name(row.job.id)} is root's; only root may come to it"
            )
        if context.terminals is None:
            raise ClusterError("no agent is connected that could reach terminals; try again")
        with self._slots.hold(caller.user):
            async with context.terminals.open(node_id, asked) as session:
                self._record(caller, asked)
                await receive()
                await send({"type": "websocket.accept"})
                await _join(session, receive, send)

    def _wanted(self, row: JobRow, task: int | None, member: int) -> tuple[str, pb.TerminalOpen]:
        """On which node it is, and what is asked of that."""
        name = display_name(row.job.id) if task is None else f"{display_name(row.job.id)}_{task}"
        launch = self._context.service.store.launch(row.job.id)
        if launch is None or launch.runner is not Runner.TERMINAL:
            raise WrongState(_without_terminal(name, launch))
        allocation = self._allocation(row, task)
        if allocation is None:
            raise WrongState(f"{name} does not run; one can come to its terminal while it runs")
        for placement in allocation.placements:
            if placement.member == member:
                asked = pb.TerminalOpen(allocation_id=allocation.id, member=member, uid=launch.uid)
                return placement.node_id, asked
        raise UnknownThing(f"{name} has no member {member}")

    def _allocation(self, row: JobRow, task: int | None) -> Allocation | None:
        service, name, attempt = self._context.service, row.job.id, row.attempt
        if row.job.array is not None:
            if task is None:
                raise InvalidRequest(f"{display_name(name)} is an array; name a task, as in 12_4")
            name, attempt = f"{name}_{task}", 0
            for found in service.store.tasks(row.job.id, only=IntervalSet.of([task])):
                attempt = found.attempt
        running = service.core.state.cluster.running.get(f"{name}.{attempt}")
        return None if running is None else running.running.allocation

    def _record(self, caller: Caller, asked: pb.TerminalOpen) -> None:
        """Whoever types there acts as the job's user: that is kept."""
        service = self._context.service
        who = (caller.user, caller.origin, caller.via)
        target = asked.allocation_id
        detail = f"member {asked.member}" if asked.member else ""
        service.note(AuditRow(service.now_ms(), *who, ACTION, target, DONE, "", detail))


def _check_owner(caller: Caller, job: Job) -> None:
    """To type there is to act as the job's user, which not all may who may see or stop the job."""
    if not caller.may_change:
        raise Forbidden(f"'{caller.user}' calls as a viewer, who types nowhere")
    if caller.user != job.user and not caller.is_admin:
        raise Forbidden(
            f"the terminal of {display_name(job.id)} is that of '{job.user}'; only that user "
            "and admins may come to it"
        )


def _without_terminal(name: str, launch: Launch | None) -> str:
    if launch is not None and launch.runner in {Runner.TMUX, Runner.SCREEN}:
        return (
            f"{name} runs in {launch.runner.value}, which is entered on its own node; submit with "
            "'--runner terminal' what is to be reached from anywhere"
        )
    return f"{name} has no terminal; submit it with '--runner terminal' to come to it"


async def _join(session: TerminalSession, receive: Receive, send: Send) -> None:
    """Until the terminal is gone, or the person is."""
    showing = asyncio.ensure_future(_show(session, send))
    hearing = asyncio.ensure_future(_hear(session, receive))
    try:
        await asyncio.wait({showing, hearing}, return_when=asyncio.FIRST_COMPLETED)
        if showing.done():
            showing.result()
            await _close(send, BROKEN if session.problem else OVER, session.problem)
        elif wrong := hearing.result():
            await _close(send, NOT_ALLOWED, wrong)
    finally:
        for task in (showing, hearing):
            task.cancel()
        await asyncio.gather(showing, hearing, return_exceptions=True)


async def _show(session: TerminalSession, send: Send) -> None:
    async for item in session.items():
        if isinstance(item, int):
            await send({"type": "websocket.send", "text": str(item)})
        else:
            await send({"type": "websocket.send", "bytes": item})


async def _hear(session: TerminalSession, receive: Receive) -> str:
    """Pass on what the person says, until the connection ends; what was wrong with it, if so."""
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
