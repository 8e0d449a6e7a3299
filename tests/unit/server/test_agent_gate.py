"""The gate for agents: a standby redirects them to the leader, a stopping server to any other."""

import asyncio
from typing import Any, cast

from gpu_scheduler.model.identity import LeaderLease, ServerMember
from gpu_scheduler.server.grpc import AgentGate
from gpu_scheduler.wire.handshake import leader_in_reason

LONG_S = 60.0
ME = ServerMember(name="a", address="http://a:1", agents="a:2")
MY_LEAD = LeaderLease(term=1, holder="a", address="http://a:1", agents="a:2", left_s=5)
NEXT = LeaderLease(term=2, holder="b", address="http://b:1", agents="b:2", left_s=5)


class LeadershipStatus:
    """A former leader."""

    def __init__(
        self, lead: LeaderLease, *, is_late: bool = False, is_leaving: bool = False
    ) -> None:
        self.me = ME
        self.lead = lead
        self.is_late = is_late
        self.is_leaving = is_leaving
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        await self._changed.wait()

    def hear(self, lead: LeaderLease) -> None:
        self.lead = lead
        self._changed.set()


async def said_to_an_agent(standing: LeadershipStatus) -> str:
    """The redirect target."""
    gate = AgentGate()
    gate.election = cast(Any, standing)
    async with asyncio.timeout(LONG_S):
        async for message in gate.session(cast(Any, None), cast(Any, None)):
            return leader_in_reason(message.goodbye.reason)
    raise AssertionError("it was told nothing")


def test_waiting_agent_is_redirected_to_the_next_leader() -> None:
    async def play() -> str:
        standing = LeadershipStatus(MY_LEAD)
        asked = asyncio.create_task(said_to_an_agent(standing))
        await asyncio.sleep(0.01)
        assert not asked.done()
        standing.hear(NEXT)
        return await asked

    assert asyncio.run(play()) == "b:2"


def test_stopping_server_redirects_agents() -> None:
    async def play(lead: LeaderLease, *, is_late: bool = False) -> str:
        return await said_to_an_agent(LeadershipStatus(lead, is_late=is_late, is_leaving=True))

    assert asyncio.run(play(MY_LEAD)) == "", "anywhere else"
    assert asyncio.run(play(NEXT, is_late=True)) == "b:2"
