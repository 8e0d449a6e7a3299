"""The lease in PostgreSQL: one holder at a time, and commits only in the current term."""

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from gpu_scheduler.model.errors import NotLeader, StoreUnavailable
from gpu_scheduler.model.identity import ServerMember
from gpu_scheduler.server.ha.election import ServerNameTaken
from gpu_scheduler.server.ha.postgres_lease import WRITER, PostgresLease, check_term, fence
from gpu_scheduler.store.interface import Cutoffs
from gpu_scheduler.store.postgres.connection import connect
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import EventRow
from tests.postgres import address_of, database_url

__all__ = ["database_url"]


class LeaseDatabase:
    """One database, and servers that compete for the lease."""

    def __init__(self, url: str) -> None:
        self.address = address_of(url, statement_timeout_s=2.0)
        self.store = PostgresStore(self.address)
        self._leases: list[PostgresLease] = []

    def server(self, name: str, valid_s: float = 600.0, home: str = "") -> PostgresLease:
        me = ServerMember(
            name=name, address=f"http://{name}:1", agents=f"{name}:2", version="1", home=home
        )
        lease = PostgresLease(partial(connect, self.address, f"lease {name}"), me, valid_s)
        self._leases.append(lease)
        return lease

    def connection(self, name: str = "test") -> Any:
        return connect(self.address, name)

    def let_lease_expire(self) -> None:
        with self.connection() as connection:
            connection.execute("UPDATE leadership SET until = clock_timestamp()")

    def close(self) -> None:
        for lease in self._leases:
            lease.close()
        self.store.close()


@pytest.fixture
def lease_db(database_url: str) -> Iterator[LeaseDatabase]:
    lease_db = LeaseDatabase(database_url)
    yield lease_db
    lease_db.close()


def an_event() -> EventRow:
    return EventRow(at_ms=1, kind="test", job_id="job-1")


def test_one_server_leads_and_others_wait_until_lease_expires(lease_db: LeaseDatabase) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    first = a.acquire()
    assert first
    assert b.acquire() is None
    lead = b.heartbeat()
    assert (lead.holder, lead.address, lead.agents) == ("a", "http://a:1", "a:2")
    assert lead.is_held
    assert 590 < lead.left_s <= 600
    lease_db.let_lease_expire()
    assert not b.heartbeat().is_held
    assert (b.acquire() or 0) > first
    assert not a.renew(first), "its term is over"


def test_exactly_one_of_many_candidates_acquires_lease(lease_db: LeaseDatabase) -> None:
    servers = [lease_db.server(f"s{number}") for number in range(8)]
    taken: list[int | None] = []
    threads = [
        threading.Thread(target=lambda one=one: taken.append(one.acquire())) for one in servers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([term for term in taken if term]) == 1


def test_renewal_keeps_the_term_and_released_lease_is_free_at_once(
    lease_db: LeaseDatabase,
) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    first = a.acquire() or 0
    assert a.renew(first)
    assert a.heartbeat().term == first
    a.release(first)
    second = b.acquire() or 0
    assert second > first
    a.release(first)
    assert b.renew(second), "who has lost it cannot give it back"


def test_terms_keep_rising_after_restore_from_backup(lease_db: LeaseDatabase) -> None:
    a = lease_db.server("a")
    term = a.acquire() or 0
    a.release(term)
    with lease_db.connection() as connection:
        connection.execute("UPDATE leadership SET term = 0")
    assert (a.acquire() or 0) >= term


def test_standbys_are_listed_until_they_leave(lease_db: LeaseDatabase) -> None:
    a, b, c = lease_db.server("a"), lease_db.server("b"), lease_db.server("c")
    a.acquire()
    for one in (a, b, c):
        one.heartbeat()
    assert [one.name for one in a.heartbeat().standbys] == ["b", "c"]
    c.unregister()
    assert [one.name for one in b.heartbeat().standbys] == ["b"]


def test_dead_former_leader_is_not_listed_as_standby(lease_db: LeaseDatabase) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    a.acquire()
    a.heartbeat()
    with lease_db.connection() as connection:  # it was killed longer ago than its lease lasts
        ago = f"clock_timestamp() - make_interval(secs => {1.5 * a.valid_s})"
        connection.execute(f"UPDATE servers SET seen = {ago} WHERE name = 'a'")
    lease_db.let_lease_expire()
    assert b.acquire()
    assert b.heartbeat().standbys == ()


def test_all_servers_share_one_secret(lease_db: LeaseDatabase) -> None:
    first = lease_db.server("a").cluster_secret()
    assert len(first) == 32
    assert lease_db.server("b").cluster_secret() == first


def test_commit_succeeds_only_in_its_term(lease_db: LeaseDatabase) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    fence(lease_db.store, a.acquire() or 0)
    assert lease_db.store.commit([an_event()]) == 1
    lease_db.let_lease_expire()
    assert lease_db.store.commit([an_event()]) == 2, "nobody else leads yet"
    second = b.acquire() or 0
    with pytest.raises(NotLeader, match="another server is the leader"):
        lease_db.store.commit([an_event()])
    for housekeeping in (
        lambda: lease_db.store.archive(ended_before_ms=1),
        lambda: lease_db.store.delete_expired(Cutoffs(responses_ms=1, events_ms=1)),
    ):
        with pytest.raises(NotLeader):
            housekeeping()
    assert lease_db.store.last_event() == 2
    fence(lease_db.store, second)
    assert lease_db.store.commit([an_event()]) == 3


def test_server_that_does_not_lead_commits_nothing(lease_db: LeaseDatabase) -> None:
    fence(lease_db.store, 0)
    with pytest.raises(NotLeader, match="is not the leader"):
        lease_db.store.commit([an_event()])


def test_take_over_waits_for_a_commit_in_progress(
    lease_db: LeaseDatabase,
) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    term = a.acquire() or 0
    lease_db.let_lease_expire()
    found: list[int | None] = []
    with lease_db.connection("somebody else") as commit:
        with commit.transaction():
            check_term(term, commit)
            taking = threading.Thread(target=lambda: found.append(b._try_acquire()))
            taking.start()
            taking.join(0.2)
            assert not found, "the term cannot end within a commit"
        taking.join()
        assert (found[0] or 0) > term
        with pytest.raises(NotLeader), commit.transaction():
            check_term(term, commit)


def test_renewal_does_not_wait_for_long_commit(lease_db: LeaseDatabase) -> None:
    a = lease_db.server("a")
    term = a.acquire() or 0
    with lease_db.connection() as commit, commit.transaction():
        check_term(term, commit)
        assert a.renew(term)


def test_writer_frozen_in_commit_is_terminated(lease_db: LeaseDatabase) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    term = a.acquire() or 0
    frozen = lease_db.connection(f"{WRITER} of a")
    frozen.execute("BEGIN")
    check_term(term, frozen)
    lease_db.let_lease_expire()
    assert (b.acquire() or 0) > term
    with pytest.raises(psycopg.OperationalError):
        frozen.execute("COMMIT")
    frozen.close()


def test_writer_with_valid_lease_is_left_alone(lease_db: LeaseDatabase) -> None:
    a, b = lease_db.server("a"), lease_db.server("b")
    term = a.acquire() or 0
    with lease_db.connection(f"{WRITER} of a") as busy, busy.transaction():
        check_term(term, busy)
        assert b.acquire() is None
        assert busy.execute("SELECT 1").fetchone() == (1,)


def test_locked_lease_row_is_reported_and_retried(lease_db: LeaseDatabase) -> None:
    a = lease_db.server("a")
    term = a.acquire() or 0
    a.close()
    with lease_db.connection() as operator:
        name = operator.info.dbname
        operator.execute(f'ALTER DATABASE "{name}" SET lock_timeout = 50'.encode())
        with operator.transaction():
            operator.execute("SELECT * FROM leadership FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="has locked the lease row"):
                a.renew(term)
    assert a.renew(term)


def test_unavailable_database_is_reported_and_retried(lease_db: LeaseDatabase) -> None:
    a = lease_db.server("a")
    term = a.acquire() or 0
    with lease_db.connection() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'lease a'"
        )
    with pytest.raises(StoreUnavailable, match="cannot read the lease"):
        a.renew(term)
    assert a.renew(term)


def test_second_server_of_one_name_is_rejected_until_the_first_expires(
    lease_db: LeaseDatabase,
) -> None:
    first, second = lease_db.server("a", home="one"), lease_db.server("a", home="two")
    first.heartbeat()
    with pytest.raises(ServerNameTaken, match=r"name 'a' is already used .* at http://a:1"):
        second.heartbeat()
    with lease_db.connection() as connection:
        connection.execute("UPDATE servers SET seen = seen - interval '1801 s'")
    second.heartbeat()
    with pytest.raises(ServerNameTaken):
        first.heartbeat()


def test_restarted_server_gets_its_name_back_at_once(lease_db: LeaseDatabase) -> None:
    lease_db.server("a", home="one").heartbeat()
    lease_db.server("a", home="one").heartbeat()


def test_rejected_server_does_not_take_name_of_other(lease_db: LeaseDatabase) -> None:
    first, second = lease_db.server("a", home="one"), lease_db.server("a", home="two")
    first.heartbeat()
    second.unregister()
    with pytest.raises(ServerNameTaken):
        second.heartbeat()


def test_name_of_an_older_server_is_taken_over(lease_db: LeaseDatabase) -> None:
    lease_db.server("a").heartbeat()
    lease_db.server("a", home="two").heartbeat()
