"""The committed rows of a server, which outlive it, and commits that fail.

The rows outlive every server. A commit takes time; it may fail, it may succeed although its answer
is lost, and a server may die during one: then it is kept, or it is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from gpu_scheduler.model.errors import NotLeader, StoreUnavailable
from gpu_scheduler.model.identity import LeaderLease, ServerMember
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import Write
from tests.faults.virtual_loop import VirtualLoop

AWAY = "the database does not answer"
LONGEST_S = 30.0
"""As `database.statement_timeout_s`."""


@dataclass(slots=True)
class LeadRow:
    """Which server leads, until when by the clock of the database."""

    term: int = 0
    holder: str = ""
    until_s: float = 0.0


class Disk:
    """The database with its faults; chances are per commit."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.rows = MemoryStore()
        self.lead = LeadRow()
        self.fails = 0.0
        self.loses_answers = 0.0
        self.slow = 1.0
        self.is_away = False
        self.cut_off: list[str] = []
        """Servers that cannot reach it, once for each cut."""
        self.chance: Callable[[str], None] = lambda _: None
        """Called before every commit."""
        self.look: Callable[[], None] = lambda: None
        """Called with the rows after every commit."""

    def delay_s(self) -> float:
        base = self.random.expovariate(300.0)
        if self.random.random() < 0.02:
            base += self.random.uniform(0.05, 1.0)
        return base * self.slow

    def is_away_for(self, server: str) -> bool:
        return self.is_away or server in self.cut_off

    def check(self, server: str) -> None:
        if self.is_away_for(server):
            raise StoreUnavailable(AWAY)

    def check_term(self, term: int) -> None:
        """The first statement of every commit."""
        if not term or term != self.lead.term:
            raise NotLeader(f"term {term} is over, this is term {self.lead.term}")

    def do(self, work: Callable[[], Any], server: str) -> Any:
        """Commit, fail, or commit and lose the answer."""
        self.check(server)
        if self.random.random() < self.fails:
            raise StoreUnavailable("the database refused it")
        result = work()
        if self.random.random() < self.loses_answers:
            raise StoreUnavailable("the connection broke while the database answered")
        return result


class Rows:
    """The store as one server sees it; unreadable while the database is down.

    Commits of a leader are rejected as soon as its term is over.
    """

    def __init__(self, disk: Disk, server: str) -> None:
        self._disk = disk
        self._server = server
        self._term: int | None = None

    def fence(self, term: int) -> None:
        """From now on, commit only in this term; 0: nothing at all."""
        self._term = term

    def commit(self, writes: list[Write]) -> int:
        if self._term is not None:
            self._disk.check_term(self._term)
        kept = self._disk.rows.commit(writes)
        self._disk.look()
        return kept

    def unavailable_reason(self) -> str:
        """Why it cannot be used now."""
        return AWAY if self._disk.is_away_for(self._server) else ""

    def full_reason(self) -> str:
        """Its disk is never full."""
        return ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk.rows, name)

        def asked(*args: Any, **values: Any) -> Any:
            self._disk.check(self._server)
            return found(*args, **values)

        self.__dict__[name] = asked
        return asked


class DiskLease:
    """The lease as a row of the database; the real one uses SQL."""

    def __init__(self, disk: Disk, me: ServerMember, valid_s: float) -> None:
        self.me = me
        self._disk = disk
        self._valid_s = valid_s

    def heartbeat(self) -> LeaderLease:
        row, now_s = self._disk.lead, self._disk.loop.time()
        return LeaderLease(
            term=row.term,
            holder=row.holder,
            address=row.holder,
            agents=row.holder,
            left_s=row.until_s - now_s,
            database_ms=round(now_s * 1000),
        )

    def acquire(self) -> int | None:
        row, now_s = self._disk.lead, self._disk.loop.time()
        if row.holder and row.until_s > now_s:
            return None
        self._disk.lead = LeadRow(row.term + 1, self.me.name, now_s + self._valid_s)
        return row.term + 1

    def renew(self, term: int) -> bool:
        row = self._disk.lead
        if (row.term, row.holder) != (term, self.me.name):
            return False
        row.until_s = self._disk.loop.time() + self._valid_s
        return True

    def release(self, term: int) -> None:
        row = self._disk.lead
        if (row.term, row.holder) == (term, self.me.name):
            row.holder, row.until_s = "", self._disk.loop.time()

    def unregister(self) -> None:
        """No servers are registered here."""

    def cluster_secret(self) -> bytes:
        return b""

    def close(self) -> None:
        """There is no connection to close."""


class DiskWriter:
    """Executes commits in place of the commit thread."""

    def __init__(self, disk: Disk, server: str) -> None:
        self._disk = disk
        self._server = server
        self._under_way: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._last_at = 0.0

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = self._disk.loop
        answer = loop.create_future()
        self._under_way[answer] = work
        self._disk.chance("")
        delay_s = self._disk.delay_s()
        if delay_s > LONGEST_S:
            delay_s, self._under_way[answer] = LONGEST_S, _give_up
        self._last_at = max(self._last_at, loop.time() + delay_s)
        loop.tell(None, self._last_at - loop.time(), self.do, answer)
        return answer

    def do(self, answer: asyncio.Future[Any]) -> None:
        work = self._under_way.pop(answer, None)
        if work is None:
            return
        try:
            result = self._disk.do(work, self._server)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    def die(self) -> None:
        """The server is dead: its commit in progress arrives, or it does not."""
        for answer in list(self._under_way):
            if self._disk.random.random() < 0.5:
                self.do(answer)
                if answer.done():
                    answer.exception()
        self._under_way.clear()

    def close(self) -> None:
        """Do nothing."""


def _give_up() -> None:
    raise StoreUnavailable(f"the database took longer than {LONGEST_S:g} s")
