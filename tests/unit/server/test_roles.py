"""A server's part among others: whoever has lost it says so and ends."""

import asyncio
from typing import Any, cast

import pytest

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.server.assembly import _until
from gpu_scheduler.server.ha.agent_gate import AgentDoor
from gpu_scheduler.server.ha.role import OneOfSeveral


def a_role(work: asyncio.Event) -> OneOfSeveral:
    """One that takes part in who leads until something happens."""
    roles = OneOfSeveral(cast(Any, None), AgentDoor(), cast(Any, None), lambda _: None)

    async def take_part() -> None:
        await work.wait()
        raise ZeroDivisionError("a mistake of ours")

    roles._role = asyncio.create_task(take_part())
    return roles


def test_a_server_that_takes_no_part_in_who_leads_any_more_ends_and_says_so() -> None:
    async def play() -> None:
        broken = asyncio.Event()
        roles = a_role(broken)
        serving = asyncio.create_task(_until(asyncio.Event(), roles))
        await asyncio.sleep(0)
        broken.set()
        async with asyncio.timeout(60):
            with pytest.raises(InternalError, match="a mistake of ours"):
                await serving

    asyncio.run(play())


def test_a_server_that_is_told_to_stop_just_stops() -> None:
    async def play() -> None:
        stop = asyncio.Event()
        roles = a_role(asyncio.Event())
        stop.set()
        async with asyncio.timeout(60):
            await _until(stop, roles)
        assert roles._role is not None
        assert not roles._role.done(), "it is ended in order, later"

    asyncio.run(play())
