"""Who follows the history: every event comes once and in order, old ones from the store.

What is committed is published here right after; a follower that is too slow is cut off, and may
begin again behind the last event that it saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import EventRow, NewJobs, Write

EVENTS_AT_ONCE = 1_000
LARGEST_BACKLOG = 10_000
"""A follower that is so many events behind is cut off."""

Backlog = asyncio.Queue[tuple[int, EventRow] | None]


class EventBroadcaster:
    """All of them, for as long as one loop works."""

    def __init__(self, store: Store) -> None:
        """Nobody follows yet."""
        self._store = store
        self._backlogs: set[Backlog] = set()
        self._closed = False

    async def follow(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events with their sequence numbers, from behind `after` (None: from now on), for ever.

        Ends when the follower falls too far behind, or nothing more comes.
        """
        backlog: Backlog = asyncio.Queue(LARGEST_BACKLOG)
        seen = self._store.last_event() if after is None else after
        joined = False
        try:
            while True:
                page = await self._events_behind(seen)
                for sequence, event in page:
                    seen = sequence
                    yield sequence, event
                if len(page) == EVENTS_AT_ONCE:
                    continue
                if joined:
                    break
                # New events are kept from here on; those before are in the next page.
                joined = True
                self._backlogs.add(backlog)
            if self._closed:
                return
            while (item := await backlog.get()) is not None:
                if item[0] > seen:
                    seen = item[0]
                    yield item
        finally:
            self._backlogs.discard(backlog)

    def publish(self, writes: list[Write], last: int) -> None:
        """These were committed; `last` is the sequence number of the last event among them."""
        if not self._backlogs:
            return
        events = _events(writes)
        for sequence, event in enumerate(events, start=last - len(events) + 1):
            for backlog in list(self._backlogs):
                try:
                    backlog.put_nowait((sequence, event))
                except asyncio.QueueFull:
                    self._backlogs.discard(backlog)
                    _end(backlog)

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        for backlog in list(self._backlogs):
            _end(backlog)

    async def _events_behind(self, sequence: int) -> list[tuple[int, EventRow]]:
        """A page of history, read in a thread: others have their turn, however much there is."""
        if sequence >= self._store.last_event():
            return []
        return await asyncio.to_thread(self._store.events, sequence, EVENTS_AT_ONCE)


def _events(writes: list[Write]) -> list[EventRow]:
    events: list[EventRow] = []
    for write in writes:
        if isinstance(write, EventRow):
            events.append(write)
        elif isinstance(write, NewJobs):
            events += write.events()
    return events


def _end(backlog: Backlog) -> None:
    """Tell a follower that nothing more comes, also if that costs it its oldest events."""
    while backlog.full():
        backlog.get_nowait()
    backlog.put_nowait(None)
