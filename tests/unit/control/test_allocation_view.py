"""The in-memory view of stored allocations."""

import asyncio

import pytest

from gpu_scheduler.control.gang_commit import GangStatus
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, NodeFenced, NodeReported, Prepared, Submit
from gpu_scheduler.control.nodes.reconcile import AllocationView
from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.node import Device
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import Removed, Write
from tests.builders import a_core, a_job


class LostAnswer(MemoryStore):
    """Stores the end of an allocation, and fails before it has said so."""

    def commit(self, writes: list[Write]) -> int:
        last = super().commit(writes)
        if any(isinstance(write, Removed) and write.kind is Allocation for write in writes):
            raise StoreUnavailable("the connection broke")
        return last


async def one_held(loop: Loop, *, members: int = 1) -> str:
    """The id of the allocation, once a job with so many members on separate nodes is placed."""
    for number in range(members):
        devices = (Device(index=0, model="A100", memory_mb=1000, uuid=f"g{number}"),)
        found = NodeReported(node_id=f"n{number}", cpu_milli=8000, memory_mb=8000, devices=devices)
        await loop.apply(found)
    await loop.apply(Submit(a_job(members=members)))
    async with asyncio.timeout(60):
        while not loop.store.allocations():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.005)
    return loop.store.allocations()[0].id


def test_allocations_are_known_from_commit_to_commit_of_end() -> None:
    async def play() -> None:
        store = MemoryStore()
        loop = Loop(store, a_core, lambda: 1_000)
        committed = AllocationView(loop)
        loop.start()
        held = await one_held(loop)
        assert committed.ids == {held} == AllocationView(loop).ids
        await loop.apply(Ended(held, exit_code=0))
        assert committed.ids == {allocation.id for allocation in store.allocations()} == set()
        await loop.close()

    asyncio.run(play())


def test_members_of_attempt_on_dead_node_are_forgotten() -> None:
    async def play() -> None:
        loop = Loop(MemoryStore(), a_core, lambda: 1_000)
        members = GangStatus()
        AllocationView(loop, members.forget)
        loop.start()
        held = await one_held(loop)
        members.on_started(loop.store.allocations()[0], 0)
        assert members.progress(held) == ([], [0])
        await loop.apply(NodeFenced("n0"))
        assert members.progress(held) == ([], [])
        await loop.close()

    asyncio.run(play())


def test_gang_is_committed_from_its_commit_to_commit_of_end() -> None:
    async def play() -> None:
        loop = Loop(MemoryStore(), a_core, lambda: 1_000)
        committed = AllocationView(loop)
        loop.start()
        held = await one_held(loop, members=2)
        assert committed.committed_gangs == set()
        await loop.apply(Prepared(held, 29500, ("n0", "n1")))
        assert committed.committed_gangs == {held} == AllocationView(loop).committed_gangs
        await loop.apply(Ended(held, exit_code=0))
        assert committed.committed_gangs == set()
        await loop.close()

    asyncio.run(play())


def test_row_stored_by_failed_commit_is_known_after_reload() -> None:
    async def play() -> None:
        loop = Loop(LostAnswer(), a_core, lambda: 1_000)
        committed = AllocationView(loop)
        reloaded = asyncio.Event()
        loop.on_reload(reloaded.set)
        loop.start()
        held = await one_held(loop)
        assert committed.ids == {held}
        with pytest.raises(StoreUnavailable):
            await loop.apply(Ended(held, exit_code=0))
        await asyncio.wait_for(reloaded.wait(), 60)
        assert committed.ids == set()
        await loop.close()

    asyncio.run(play())
