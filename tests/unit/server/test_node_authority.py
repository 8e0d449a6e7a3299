"""The node authority: every server waits for it, also while the database is down."""

import asyncio

from gpu_scheduler.api.grpc.certificate_authority import new_authority
from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.model.identity import Identity
from gpu_scheduler.server.grpc import stored_authority
from gpu_scheduler.store.memory import MemoryStore


class Away(MemoryStore):
    """A store that is unavailable at the first query."""

    asked = 0

    def identities(self) -> list[Identity]:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("it is away for a moment")
        return super().identities()


def test_briefly_unavailable_store_is_retried() -> None:
    async def play() -> None:
        store = Away()
        authority = new_authority(1_700_000_000_000)
        store.commit([authority])
        async with asyncio.timeout(60):
            assert await stored_authority(store)
        assert store.asked == 2

    asyncio.run(play())
