"""What is held in the store is known without asking it each time."""

import asyncio

from gpu_scheduler.control.committed import Committed
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, NodeFound, Submit
from gpu_scheduler.model.node import Device
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core, a_job


def test_allocations_are_known_from_their_commit_to_the_commit_of_their_end() -> None:
    async def play() -> None:
        store = MemoryStore()
        loop = Loop(store, a_core, lambda: 1_000)
        committed = Committed(loop)
        loop.start()
        devices = (Device(index=0, model="A100", memory_mb=1000, uuid="g0"),)
        await loop.apply(NodeFound(node_id="n1", cpu_milli=8000, memory_mb=8000, devices=devices))
        await loop.apply(Submit(a_job()))
        async with asyncio.timeout(10):
            while not store.allocations():  # noqa: ASYNC110 - it is seen from outside
                await asyncio.sleep(0.005)
        held = {allocation.id for allocation in store.allocations()}
        assert committed.ids == held == Committed(loop).ids
        await loop.apply(Ended(next(iter(held)), exit_code=0))
        assert committed.ids == {allocation.id for allocation in store.allocations()} == set()
        await loop.close()

    asyncio.run(play())
