"""Leader election: the lease is held only as long as the database granted it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from gpu_scheduler.control.commit_thread import StoreWriter
from gpu_scheduler.model.errors import NotLeader, StoreTooNew, StoreUnavailable
from gpu_scheduler.model.identity import LeaderLease, ServerMember, Standby
from gpu_scheduler.server.ha.election import LeaderElector, LeaseTimes

TIMES = LeaseTimes(renew_s=0.02, valid_s=0.06)
LONG_S = 60.0


class Table:
    """The lease row, on a clock that a test can move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.term = 0
        self.holder = ""
        self.until = 0.0
        self.is_away = False
        self.standbys: tuple[Standby, ...] = ()
        self.bug: Exception | None = None


class TableLease:
    """A lease without a database."""

    def __init__(self, table: Table, name: str, valid_s: float) -> None:
        self.me = ServerMember(name=name, address=f"http://{name}:1")
        self._table = table
        self._valid_s = valid_s

    def _check(self) -> Table:
        if self._table.bug is not None:
            raise self._table.bug
        if self._table.is_away:
            raise StoreUnavailable("the database is away")
        return self._table

    def heartbeat(self) -> LeaderLease:
        table = self._check()
        left_s = table.until - table.now
        return LeaderLease(
            term=table.term,
            holder=table.holder,
            address=f"http://{table.holder}:1",
            left_s=left_s,
            database_ms=round(table.now * 1000),
            standbys=table.standbys,
        )

    def acquire(self) -> int | None:
        table = self._check()
        if table.holder and table.until > table.now:
            return None
        table.term += 1
        table.holder, table.until = self.me.name, table.now + self._valid_s
        return table.term

    def renew(self, term: int) -> bool:
        table = self._check()
        if (table.term, table.holder) != (term, self.me.name):
            return False
        table.until = table.now + self._valid_s
        return True

    def release(self, term: int) -> None:
        table = self._check()
        if (table.term, table.holder) == (term, self.me.name):
            table.holder, table.until = "", 0.0

    def unregister(self) -> None:
        """No servers are registered here."""

    def cluster_secret(self) -> bytes:
        return b"s" * 32

    def close(self) -> None:
        """There is nothing to close."""


class Candidate:
    """A server that takes part in the election."""

    def __init__(self, table: Table, name: str, *, uses_renewal_thread: bool = False) -> None:
        self.elector = LeaderElector(
            TableLease(table, name, 6.0),
            LeaseTimes(renew_s=TIMES.renew_s, valid_s=6.0),
            clock=lambda: table.now,
            thread=None if uses_renewal_thread else StoreWriter(),
        )
        self.told: list[str] = []
        self.wrong: Exception | None = None

    async def begin(self, term: int) -> None:
        if self.wrong is not None:
            raise self.wrong
        self.told.append(f"begin {term}")

    async def end(self) -> None:
        self.told.append("end")


@asynccontextmanager
async def running_election(*candidates: Candidate) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.elector.run(one.begin, one.end)) for one in candidates]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in candidates:
            one.elector.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not true():  # noqa: ASYNC110 - it is seen from outside
            await asyncio.sleep(0.002)


def test_next_server_leads_when_the_lease_has_expired() -> None:
    async def play() -> None:
        table = Table()
        a, b = Candidate(table, "a"), Candidate(table, "b")
        async with AsyncExitStack() as later:
            async with running_election(a):
                await until(lambda: bool(a.told))
                assert a.elector.is_held
                assert a.elector.lead.holder == a.elector.me.name
                await later.enter_async_context(running_election(b))
            assert a.told == ["begin 1", "end"]
            assert not b.told, "its lease still holds"
            table.now += 6.1
            await until(lambda: b.told == ["begin 2"])

    asyncio.run(play())


def test_server_stopped_during_its_start_as_leader_does_not_continue() -> None:
    async def play() -> None:
        a = Candidate(Table(), "a")
        begins, read = asyncio.Event(), asyncio.Event()

        async def begin(term: int) -> None:
            begins.set()
            await read.wait()
            await Candidate.begin(a, term)

        a.begin = begin  # type: ignore[method-assign]
        async with running_election(a):
            await begins.wait()
        assert a.told == ["end"]
        read.set()
        await asyncio.sleep(0.01)
        assert a.told == ["end"], "it led after it had given up"

    asyncio.run(play())


def test_released_lease_is_acquired_at_once() -> None:
    async def play() -> None:
        table = Table()
        a, b = Candidate(table, "a"), Candidate(table, "b")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
        a.elector._thread.close()
        async with running_election(b):
            await b.elector.refresh()
            await a.elector.release()
            await until(lambda: b.told == ["begin 2"])

    asyncio.run(play())


def test_waiters_at_a_stopping_server_get_the_next_leader() -> None:
    async def play() -> None:
        table = Table()
        table.term, table.holder, table.until = 1, "a", table.now + 6.0
        table.standbys = (Standby(name="b", address="http://b:1", version="1", seen_s=0.0),)
        b = Candidate(table, "b")
        a = LeaderElector(
            TableLease(table, "a", 6.0), LeaseTimes(renew_s=LONG_S), clock=lambda: table.now
        )
        a._last_term = 1
        heard: list[tuple[str, bool]] = []

        async def wait_at_a() -> None:
            while not a.is_leaving:
                await a.changed()
                heard.append((a.lead.holder, a.is_leaving))

        async with running_election(b):
            await b.elector.refresh()
            waiting = asyncio.create_task(wait_at_a())
            await a.release()
            await asyncio.wait_for(waiting, LONG_S)
        a.close()
        assert heard[-2:] == [("b", False), ("b", True)]

    asyncio.run(play())


def test_only_server_does_not_wait_for_a_successor() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        a.elector = LeaderElector(
            TableLease(table, "a", 6.0), LeaseTimes(renew_s=600.0), clock=lambda: table.now
        )
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            await asyncio.wait_for(a.elector.release(), LONG_S)
        assert a.elector.is_leaving

    asyncio.run(play())


def test_suspended_leader_does_not_trust_its_lease_until_it_is_renewed() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            assert a.elector.is_held
            # Frozen: time advances, and nothing else does.
            table.now += 5.5
            assert not a.elector.is_held, "a little earlier than the lease really ends"
            table.term, table.holder, table.until = 2, "b", table.now + 6
            await until(lambda: a.told == ["begin 1", "end"])
            assert a.elector.term == 0
            await until(lambda: a.elector.lead.holder == "b")

    asyncio.run(play())


def test_leader_pauses_while_the_database_is_down_and_keeps_its_term() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            table.is_away = True
            await until(lambda: bool(a.elector.trouble))
            table.now += 60
            assert not a.elector.is_held
            table.is_away = False
            await until(lambda: a.elector.is_held)
            assert a.told == ["begin 1"], "nobody else could take it"
            assert a.elector.trouble == ""

    asyncio.run(play())


def test_commit_in_an_ended_term_deposes_the_leader_at_once() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            table.term, table.holder, table.until = 2, "b", table.now + 6
            a.elector.step_down(NotLeader("term 1 is over"))
            assert not a.elector.is_held
            await until(lambda: a.told == ["begin 1", "end"])

    asyncio.run(play())


def test_server_that_fails_to_start_leading_resigns() -> None:
    async def play() -> None:
        table = Table()
        a, b = Candidate(table, "a"), Candidate(table, "b")
        a.wrong = StoreUnavailable("it cannot be read")
        async with running_election(a):
            await until(lambda: a.told == ["end"])
            async with running_election(b):
                await until(lambda: b.told == ["begin 2"])

    asyncio.run(play())


def test_unexpected_error_costs_the_term_and_not_the_server() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            table.bug = ZeroDivisionError("a mistake of ours")
            await until(lambda: a.told == ["begin 1", "end"])
            await until(lambda: "a mistake of ours" in a.elector.trouble)
            table.bug = None
            table.now += 6.1
            await until(lambda: a.told == ["begin 1", "end", "begin 2"])

    asyncio.run(play())


def test_server_that_cannot_write_resigns() -> None:
    async def play() -> None:
        table = Table()
        a, b = Candidate(table, "a"), Candidate(table, "b")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            a.elector.step_down(StoreTooNew("a newer program has changed it"))
            await until(lambda: a.told == ["begin 1", "end"])
            async with running_election(b):
                await until(lambda: b.told == ["begin 2"])
            assert a.told == ["begin 1", "end"], "it rests"

    asyncio.run(play())


def test_leader_without_commits_for_a_whole_lease_steps_down_for_a_standby() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a")
        wrong = StoreUnavailable("it has no connection left")
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])

            async def fail_for(seconds: float) -> None:
                a.elector.on_commit(wrong)
                table.now += seconds
                table.until = table.now + 6.0
                await a.elector.refresh()
                a.elector.on_commit(wrong)

            await fail_for(6.5)
            a.elector.on_commit(None)
            table.standbys = (Standby(name="b", address="http://b:1", version="1", seen_s=0.0),)
            await fail_for(5.0)
            assert not a.elector._lost.is_set(), "alone, or for less than a lease, it goes on"
            await fail_for(1.5)
            await until(lambda: a.told == ["begin 1", "end"])
            assert not table.holder, "it is given back"

    asyncio.run(play())


def test_waiters_at_a_standby_are_woken_when_a_late_leader_renews() -> None:
    async def play() -> None:
        table = Table()
        table.term, table.holder, table.until = 1, "a", table.now + 6.0
        b = Candidate(table, "b")
        await b.elector.refresh()
        table.now += 5.0
        await b.elector.refresh()
        assert b.elector.is_late
        waiting = asyncio.create_task(b.elector.changed())
        await asyncio.sleep(0)
        table.until = table.now + 6.0
        await b.elector.refresh()
        async with asyncio.timeout(LONG_S):
            await waiting
        assert not b.elector.is_late
        b.elector.close()

    asyncio.run(play())


def test_standby_hesitates_only_until_it_has_seen_a_leader() -> None:
    async def play() -> None:
        table = Table()
        shy = Candidate(table, "shy")
        shy.elector = LeaderElector(
            TableLease(table, "shy", 6.0),
            LeaseTimes(renew_s=0.02, valid_s=6.0, hesitate_s=2.0),
            clock=lambda: table.now,
        )
        async with running_election(shy):
            await asyncio.sleep(0.1)
            assert not shy.told
            table.now += 2.1
            await until(lambda: shy.told == ["begin 1"])

    asyncio.run(play())


def busy_until(true: Callable[[], bool], seconds: float) -> bool:
    """Block the event loop until a condition holds, or for so long."""
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return true()


def test_busy_event_loop_keeps_the_lease_and_a_stuck_one_loses_it() -> None:
    async def play() -> None:
        table = Table()
        a = Candidate(table, "a", uses_renewal_thread=True)
        async with running_election(a):
            await until(lambda: a.told == ["begin 1"])
            table.now += 5.0
            renewed = busy_until(lambda: table.until == table.now + 6.0, LONG_S)
            assert renewed, "by another thread"
            assert a.elector.is_held
            table.now += 40.0
            assert not busy_until(lambda: table.until > table.now, 1.0), "let another one lead"

    asyncio.run(play())
