"""The role of a replicated server: when it is up, and when it ends."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.server.assembly import _wait_for_stop
from gpu_scheduler.server.grpc import AgentGate
from gpu_scheduler.server.ha.role import ReplicatedRole


def a_role(work: asyncio.Event) -> ReplicatedRole:
    """A role whose election runs until something happens."""
    role = ReplicatedRole(cast(Any, None), AgentGate(), cast(Any, None), lambda _: None)

    async def take_part() -> None:
        await work.wait()
        raise ZeroDivisionError("a mistake of ours")

    role._election_task = asyncio.create_task(take_part())
    return role


def test_server_whose_election_stopped_ends_with_an_error() -> None:
    async def play() -> None:
        broken = asyncio.Event()
        role = a_role(broken)
        serving = asyncio.create_task(_wait_for_stop(asyncio.Event(), role))
        await asyncio.sleep(0)
        broken.set()
        async with asyncio.timeout(60):
            with pytest.raises(InternalError, match="a mistake of ours"):
                await serving

    asyncio.run(play())


def test_server_stops_on_request() -> None:
    async def play() -> None:
        stop = asyncio.Event()
        role = a_role(asyncio.Event())
        stop.set()
        async with asyncio.timeout(60):
            await _wait_for_stop(stop, role)
        assert role._election_task is not None
        assert not role._election_task.done(), "it is ended in order, later"

    asyncio.run(play())


@pytest.mark.parametrize("holder", ["me", "other"])
def test_server_is_up_when_an_agent_can_join_it_or_another_leader(holder: str) -> None:
    class Election:
        """A lease that is held, but by a server that does not answer yet."""

        me = SimpleNamespace(name="me")
        lead = SimpleNamespace(is_held=True, holder=holder)
        term = 0
        is_late = True
        change = asyncio.Event()

        async def changed(self) -> None:
            await self.change.wait()
            self.change.clear()

    async def play() -> None:
        election, gate = Election(), AgentGate()
        role = ReplicatedRole(cast(Any, None), gate, cast(Any, election), lambda _: None)
        waiting = asyncio.create_task(role.wait_for_leader())
        for _ in range(3):
            election.change.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not waiting.done()
        if holder == "me":
            gate.open(cast(Any, SimpleNamespace(loop=object())))
        else:
            election.is_late = False
        election.change.set()
        async with asyncio.timeout(60):
            await waiting

    asyncio.run(play())
