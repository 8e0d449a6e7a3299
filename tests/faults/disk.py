"""What a server has committed, kept apart from the server, and commits that go wrong.

The rows outlive every server. A commit takes its time; it may fail, it may be kept although its
answer is lost, and a server may die while one is under way: then it is kept, or it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.memory import MemoryStore
from tests.faults.virtual_loop import Part, VirtualLoop

AWAY = "the database does not answer"


class Disk:
    """The database, with its moods: chances are per commit."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.rows = MemoryStore()
        self.fails = 0.0
        self.loses_answers = 0.0
        self.slow = 1.0
        self.is_away = False
        self.chance: Callable[[str], None] = lambda _: None
        """Told of every commit."""

    def delay_s(self) -> float:
        base = self.random.expovariate(300.0)
        if self.random.random() < 0.02:
            base += self.random.uniform(0.05, 1.0)
        return base * self.slow

    def check(self) -> None:
        if self.is_away:
            raise StoreUnavailable(AWAY)

    def do(self, work: Callable[[], Any]) -> Any:
        """Commit something, or fail to, or fail to say so."""
        self.check()
        if self.random.random() < self.fails:
            raise StoreUnavailable("the database refused it")
        result = work()
        if self.random.random() < self.loses_answers:
            raise StoreUnavailable("the connection broke while the database answered")
        return result


class Rows:
    """The store as one server sees it: while the database is away, it sees nothing."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def trouble(self) -> str:
        """Why it cannot be asked now."""
        return AWAY if self._disk.is_away else ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk.rows, name)

        def asked(*args: Any, **values: Any) -> Any:
            self._disk.check()
            return found(*args, **values)

        self.__dict__[name] = asked
        return asked


class DiskWriter:
    """Carries out commits in the place of the commit thread."""

    def __init__(self, disk: Disk, part: Part) -> None:
        self._disk = disk
        self._part = part
        self._under_way: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._last_at = 0.0

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = self._disk.loop
        answer = loop.create_future()
        self._under_way[answer] = work
        self._disk.chance("")
        self._last_at = max(self._last_at, loop.time() + self._disk.delay_s())
        loop.tell(None, self._last_at - loop.time(), self.do, answer)
        return answer

    def do(self, answer: asyncio.Future[Any]) -> None:
        work = self._under_way.pop(answer, None)
        if work is None:
            return
        try:
            result = self._disk.do(work)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    def die(self) -> None:
        """The server is dead: what it was about to commit arrives, or it does not."""
        for answer in list(self._under_way):
            if self._disk.random.random() < 0.5:
                self.do(answer)
                if answer.done():
                    answer.exception()
        self._under_way.clear()

    def close(self) -> None:
        """Nothing is left to do."""
