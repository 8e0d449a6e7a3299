"""PostgreSQL outages at every moment: no lost commit is acknowledged, and the store recovers."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from gpu_scheduler.model.errors import NotLeader, OutcomeUnknown, StoreTooNew, StoreUnavailable
from gpu_scheduler.model.job import JobState
from gpu_scheduler.store.postgres.connection import PROBE, READER, Connection, connect
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import EventRow, JobRow
from tests.builders import a_job
from tests.database_proxy import Proxy
from tests.postgres import OwnPostgres, a_server, address_of

LONG_S = 60.0
Opener = Callable[..., PostgresStore]


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgres]:
    with a_server() as running:
        yield running


@pytest.fixture
def url(server: OwnPostgres) -> str:
    return server.make_database()


@pytest.fixture
def proxy(server: OwnPostgres) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def opened(proxy: Proxy) -> Iterator[Opener]:
    """Opens stores with short timeouts, and closes them before the proxy."""
    del proxy
    with ExitStack() as stack:

        def opened(url: str, port: int | None = None, **changes: Any) -> PostgresStore:
            address = address_of(url, connect_timeout_s=1.0, **changes)
            if port is not None:
                assert isinstance(address.parameters, dict)
                address.parameters["port"] = port
            store = PostgresStore(address)
            stack.callback(store.close)
            return store

        yield opened


@pytest.fixture
def store(url: str, opened: Opener) -> PostgresStore:
    return opened(url)


@contextmanager
def lost_commit(proxy: Proxy, what: str, store: PostgresStore) -> Iterator[Future[int]]:
    """A second commit, of which request or answer was lost; no connection succeeds since."""
    proxy.lose = what
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(store.commit, batch(2))
        assert proxy.lost.wait(LONG_S)
        yield answer


def row(number: int) -> JobRow:
    job = a_job(number=number, id=f"job-{number}")
    return JobRow(job=job, state=JobState.PENDING)


def batch(number: int) -> list[JobRow | EventRow]:
    return [row(number), EventRow(at_ms=number, kind="submitted", job_id=f"job-{number}")]


def kept(store: PostgresStore) -> list[int]:
    numbers = [row.job.number for row in store.jobs()]
    assert store.last_event() == len(numbers)
    assert store.next_number() == max(numbers, default=0) + 1
    assert sum(store.count_states().values()) == len(numbers)
    return numbers


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_restart_between_commits_is_not_noticed(store: PostgresStore, server: OwnPostgres) -> None:
    store.commit(batch(1))
    server.restart()
    store.commit(batch(2))
    server.restart()
    assert kept(store) == [1, 2]
    assert store.unavailable_reason() == ""


def test_stopped_database_fails_at_once_and_is_used_again_when_back(
    store: PostgresStore, server: OwnPostgres
) -> None:
    store.commit(batch(1))
    server.stop()
    try:
        with pytest.raises(StoreUnavailable, match="is not available"):
            store.jobs()
        assert "is not available" in store.unavailable_reason()
        with pytest.raises(StoreUnavailable, match="is not available"):
            store.commit(batch(2))
    finally:
        server.start()
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1]
    store.commit(batch(2))
    assert kept(store) == [1, 2]


def test_locked_table_costs_one_timeout_and_later_calls_fail_fast(
    store: PostgresStore, server: OwnPostgres, url: str
) -> None:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        f"AND application_name = '{READER}'"
    )
    store.commit(batch(1))
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
            store.jobs()
        # PostgreSQL does not notice yet that the first one has gone.
        until(lambda: server.execute(waiting)[0][0] == 2)
        with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
            store.jobs()
        assert store.unavailable_reason()
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1]


def test_table_availability_can_be_checked(store: PostgresStore) -> None:
    assert len(store.use(lambda reader: reader.execute(PROBE).fetchone() or ())) == 6


def test_frozen_database_costs_one_timeout_and_later_calls_fail_fast(
    store: PostgresStore, server: OwnPostgres
) -> None:
    store.commit(batch(1))
    store.jobs()
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable, match="has not answered for 1 s"):
            store.jobs()
        began = time.monotonic()
        for _ in range(100):
            with pytest.raises(StoreUnavailable):
                store.jobs()
        assert time.monotonic() - began < LONG_S
        with pytest.raises(StoreUnavailable):
            store.commit(batch(2))
    finally:
        server.thaw()
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1]


def test_commit_lost_by_frozen_database_is_not_kept_and_next_one_is(
    url: str, server: OwnPostgres, opened: Opener
) -> None:
    store = opened(url, statement_timeout_s=0.5)
    store.commit(batch(1))
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            store.commit(batch(2))
    finally:
        server.thaw()
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1]
    store.commit(batch(2))
    assert kept(store) == [1, 2]


def test_commit_with_lost_answer_is_looked_up_before_reply(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    store = opened(url, proxy.port)
    store.commit(batch(1))
    with lost_commit(proxy, "answer", store) as answer:
        until(store.unavailable_reason)
        assert not answer.done()
        with pytest.raises(StoreUnavailable):
            store.jobs()
        proxy.refusing = False
        assert answer.result(LONG_S) == 2
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1, 2]
    store.commit(batch(3))
    assert kept(store) == [1, 2, 3]


def test_commit_is_looked_up_even_after_idle_writer_was_forgotten(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    store = opened(url, proxy.port)
    store.commit(batch(1))
    with connect(address_of(url), "test") as other:
        other.execute("DELETE FROM writers")
    with lost_commit(proxy, "answer", store) as answer:
        proxy.refusing = False
        assert answer.result(LONG_S) == 2
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1, 2]


def test_database_changed_by_newer_program_is_not_retried_for_ever(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    store = opened(url, proxy.port)
    store.commit(batch(1))
    with lost_commit(proxy, "answer", store) as answer:
        with connect(address_of(url), "test") as other:
            other.execute("UPDATE meta SET schema_version = schema_version + 1")
        proxy.refusing = False
        with pytest.raises(OutcomeUnknown, match="this program supports versions up to"):
            answer.result(LONG_S)
    until(lambda: not store.unavailable_reason())
    with pytest.raises(StoreTooNew):
        store.commit(batch(3))


def test_commit_that_never_arrived_is_detected_on_live_connection(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    store = opened(url, proxy.port)
    store.commit(batch(1))
    with lost_commit(proxy, "request", store) as answer:
        until(store.unavailable_reason)
        assert not answer.done()
        proxy.refusing = False
        with pytest.raises(StoreUnavailable, match="is not available"):
            answer.result(LONG_S)
    until(lambda: not store.unavailable_reason())
    assert kept(store) == [1]
    store.commit(batch(2))
    assert kept(store) == [1, 2]


def test_lost_commit_is_distinguished_from_later_commit_of_another_server(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    """The next leader writes while we are disconnected; its commits must not be taken for ours."""
    store, other = opened(url, proxy.port), opened(url)
    store.commit(batch(1))
    with lost_commit(proxy, "request", store) as answer:
        other.end_other_writers()
        other.commit(batch(2))
        other.commit(batch(3))
        proxy.refusing = False
        with pytest.raises(StoreUnavailable):
            answer.result(LONG_S)
    until(lambda: not store.unavailable_reason())
    assert kept(store) == kept(other) == [1, 2, 3]
    store.commit(batch(4))
    assert kept(other) == [1, 2, 3, 4]


def test_server_stopped_before_lookup_reports_unknown_outcome(
    url: str, proxy: Proxy, opened: Opener
) -> None:
    store = opened(url, proxy.port)
    store.commit(batch(1))
    with lost_commit(proxy, "answer", store) as answer:
        store.stop_waiting()
        with pytest.raises(OutcomeUnknown, match="cannot be looked up"):
            answer.result(LONG_S)
    store.close()
    proxy.refusing = False
    again = opened(url)
    assert kept(again) == [1, 2]


def test_kills_at_any_time_lose_no_acknowledged_commit(
    url: str, server: OwnPostgres, opened: Opener
) -> None:
    store = opened(url)
    acknowledged: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 1
        while not stop.is_set():
            try:
                store.commit(batch(number))
            except StoreUnavailable:
                until(lambda: not store.unavailable_reason())
            else:
                acknowledged.append(number)
                number += 1

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for _ in range(4):
            goal = len(acknowledged) + 20
            until(lambda goal=goal: len(acknowledged) >= goal)  # type: ignore[misc]
            server.restart()
        stop.set()
        writing.result(LONG_S)
    until(lambda: not store.unavailable_reason())
    assert kept(store) == acknowledged


def test_rejecting_commit_check_leaves_nothing_behind(store: PostgresStore) -> None:
    store.commit(batch(1))

    def refuse(connection: Connection) -> None:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        raise NotLeader("another server leads")

    store.fence = refuse
    with pytest.raises(NotLeader):
        store.commit(batch(2))
    store.fence = None
    assert kept(store) == [1]
    store.commit(batch(2))
    assert kept(store) == [1, 2]


def test_writer_frozen_in_transaction_can_be_terminated(store: PostgresStore, url: str) -> None:
    store.commit(batch(1))
    frozen = connect(address_of(url), "gpu-scheduler writer frozen")
    frozen.execute("BEGIN")
    frozen.execute("SELECT * FROM meta FOR UPDATE")
    assert store.end_other_writers() == 1
    store.commit(batch(2))
    assert kept(store) == [1, 2]
    frozen.close()


def test_alternating_writers_give_no_number_twice(url: str, opened: Opener) -> None:
    one, other = opened(url), opened(url)
    for number in range(1, 9):
        (one if number % 2 else other).commit(batch(number))
    assert kept(one) == kept(other) == list(range(1, 9))


def test_busy_connections_are_awaited_and_then_reported(url: str, opened: Opener) -> None:
    store = opened(url, pool_max=1)
    held, go_on = threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        held.set()
        go_on.wait(LONG_S)

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(store.use, hold)
        held.wait(LONG_S)
        with pytest.raises(StoreUnavailable, match="all 1 connections"):
            store.jobs()
        go_on.set()
        holding.result(LONG_S)
    assert store.unavailable_reason() == ""
    assert store.jobs() == []
