"""Where agents come in: the leader takes them, a standby sends them on or lets them wait.

While nobody leads, or the leader is late with its renewal, an agent that came to a standby waits
there with its stream open. If this server takes the lead it is served at once; if another one does,
it is told where. At a server that stops nobody waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from gpu_scheduler.api.ha.gate import LeadershipStatus
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import not_the_leader

LONGEST_WAIT_S = 8.0
"""Less than an agent waits for its welcome."""

Requests = AsyncIterator[pb.AgentMessage]
Messages = AsyncIterator[pb.ServerMessage]
Context = grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage]


class AgentDoor:
    """One for the life of a server."""

    def __init__(self) -> None:
        """Nobody is let in yet. Without a `standing`, this server is the only one."""
        self.standing: LeadershipStatus | None = None
        self._agents: Agents | None = None
        self._opened = asyncio.Event()

    @property
    def service(self) -> Loop | None:
        """The loop of the leader; None if this server does not lead."""
        return None if self._agents is None else self._agents.loop

    @property
    def leader_at(self) -> str:
        """Where agents find the server that leads; empty if that is not known, or is this one."""
        return self.standing.lead.agents if self.standing and self._another_leads() else ""

    def _another_leads(self) -> bool:
        if self.standing is None:
            return False
        lead = self.standing.lead
        return lead.is_held and lead.holder != self.standing.me.name

    def has(self, node: str) -> bool:
        """Tell whether the agent of a node is here."""
        return self._agents is not None and node in self._agents.connected

    def problem(self, node: str) -> str:
        """Why an agent found less than one could wish for."""
        return "" if self._agents is None else self._agents.problems.get(node, "")

    async def wait_for(self, node: str) -> None:
        """Return when this server leads and the agent of a node has come."""
        await self._opened.wait()
        if self._agents is not None:
            await self._agents.wait_for(node)

    def open(self, agents: Agents) -> None:
        """This server leads: let them in."""
        self._agents = agents
        self._opened.set()

    def shut(self) -> None:
        """It does not any more."""
        self._agents = None
        self._opened.clear()

    async def session(
        self, requests: Requests, context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream."""
        give_up = asyncio.get_running_loop().time() + LONGEST_WAIT_S
        while (agents := self._agents) is None:
            elsewhere = self._elsewhere(give_up)
            if elsewhere is not None:
                goodbye = pb.Goodbye(reason=not_the_leader(elsewhere))
                yield pb.ServerMessage(goodbye=goodbye)
                return
            await self._wait(give_up)
        async for message in agents.session(requests, context):
            yield message

    def _elsewhere(self, give_up: float) -> str | None:
        """Where the agent should go; empty: anywhere else. None: it may wait here."""
        if self.standing is not None:
            is_other = self._another_leads()
            if self.standing.is_leaving or (is_other and not self.standing.is_late):
                return self.standing.lead.agents if is_other else ""
        return "" if asyncio.get_running_loop().time() >= give_up else None

    async def _wait(self, give_up: float) -> None:
        """Until this server leads, or another one does."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._opened.wait())]
        if self.standing is not None:
            waits.append(asyncio.ensure_future(self.standing.changed()))
        left_s = give_up - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
