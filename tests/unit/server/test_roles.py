"""A server's part among others: whoever has lost it says so and ends."""

import asyncio
from typing import Any, cast

import pytest

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.server.assembly import _wait_for_stop
from gpu_scheduler.server.grpc import AgentGate
from gpu_scheduler.server.ha.role import ReplicatedRole


def a_role(work: asyncio.Event) -> ReplicatedRole:
    """One that takes part in who leads until something happens."""
    role = ReplicatedRole(cast(Any, None), AgentGate(), cast(Any, None), lambda _: None)

    async def take_part() -> None:
        await work.wait()
        raise ZeroDivisionError("a mistake of ours")

    role._election_task = asyncio.create_task(take_part())
    return role


def test_a_server_that_takes_no_part_in_who_leads_any_more_ends_and_says_so() -> None:
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


def test_a_server_that_is_told_to_stop_just_stops() -> None:
    async def play() -> None:
        stop = asyncio.Event()
        role = a_role(asyncio.Event())
        stop.set()
        async with asyncio.timeout(60):
            await _wait_for_stop(stop, role)
        assert role._election_task is not None
        assert not role._election_task.done(), "it is ended in order, later"

    asyncio.run(play())
