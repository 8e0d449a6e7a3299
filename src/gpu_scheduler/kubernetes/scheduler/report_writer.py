"""Writes what users read (statuses, conditions, events) beside the cycles.

A cycle hands over what is new and goes on. Of each object only the newest status waits. Statuses
and events have connections of their own, so that neither a decision nor a Binding waits for them.
Only the leader writes; what waits when the leadership is lost is dropped, and the next leader
finds statuses that are out of date by itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from gpu_scheduler.kubernetes.client.errors import Conflict, KubernetesError, NotFound

log = structlog.get_logger("kube-scheduler")

STATUSES_AT_ONCE = 8
EVENTS_AT_ONCE = 2
MOST_EVENTS = 20_000
"""If more events wait, the oldest are dropped: an event is a notice, not a state."""

Write = Callable[[], Awaitable[Any]]


class ReportWriter:
    """Reports that wait, and the tasks that write them."""

    def __init__(self, is_leader: Callable[[], bool]) -> None:
        """Nothing is written until `run`."""
        self._is_leader = is_leader
        self._statuses: dict[str, Write] = {}
        self._under_way: set[str] = set()
        self._has_statuses = asyncio.Event()
        self._events: deque[Write] = deque()
        self._has_events = asyncio.Event()

    def put_status(self, uid: str, write: Write) -> None:
        """Write the status of an object soon; what waited for it before is out of date."""
        self._statuses[uid] = write
        self._has_statuses.set()

    def put_event(self, write: Write) -> None:
        """Write an event soon."""
        self._events.append(write)
        if len(self._events) > MOST_EVENTS:
            self._events.popleft()
        self._has_events.set()

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(STATUSES_AT_ONCE):
                tasks.create_task(self._write_statuses())
            for _ in range(EVENTS_AT_ONCE):
                tasks.create_task(self._write_events())

    async def _write_statuses(self) -> None:
        while True:
            # Two writes for one object at once could arrive in the wrong order.
            uid = next((uid for uid in self._statuses if uid not in self._under_way), None)
            if uid is None:
                self._has_statuses.clear()
                await self._has_statuses.wait()
                continue
            write = self._statuses.pop(uid)
            self._under_way.add(uid)
            await self._try(write)
            self._under_way.remove(uid)
            self._has_statuses.set()

    async def _write_events(self) -> None:
        while True:
            if self._events:
                await self._try(self._events.popleft())
            else:
                self._has_events.clear()
                await self._has_events.wait()

    async def _try(self, write: Write) -> None:
        """A status that could not be written is found out of date by a later cycle."""
        if not self._is_leader():
            return
        try:
            await write()
        except (NotFound, Conflict):
            pass
        except KubernetesError as error:
            log.warning("report failed", error=str(error))
        except Exception:
            log.exception("report failed")  # it must not end the writing of others
