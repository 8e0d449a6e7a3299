"""Copies between databases, backups while running, and consistency checks."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_scheduler.model.errors import AlreadyExists, InvalidRequest, StoreDamaged, StoreUnavailable
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.storage import (
    Database,
    back_up,
    check,
    copy_between,
    database_of,
    upgrade,
)
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store import copy as store_copy
from gpu_scheduler.store.interface import AuditQuery, JobQuery, Store
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import AuditRow, EventRow, JobRow, LaunchRow, Write
from gpu_scheduler.store.sql_queries import migrations
from gpu_scheduler.store.sqlite import copy as sqlite_copy
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_job
from tests.contract.row_strategies import ROWS
from tests.postgres import address_of, shared_server


@pytest.fixture
def postgres() -> Iterator[str]:
    server = shared_server()
    url = server.make_database()
    yield url
    server.drop_database(url)


def filled(store: Store, rows: list[Write]) -> None:
    """Some rows, always with archived jobs, a launch, history and audit records."""
    names = ("plain", "with \0 and \x01\x02", "ünïcödé 漢字", "tab\tnew\nline\\")
    ended = [
        JobRow(
            job=a_job(number=900 + n, id=f"job-{900 + n}", name=name),
            state=JobState.COMPLETED,
            end_ms=n,
        )
        for n, name in enumerate(names)
    ]
    store.commit([*rows, *ended])
    store.commit(
        [
            LaunchRow("job-901", Launch(argv=("x",), workdir="/w", captured="env", sweep="lr")),
            EventRow(at_ms=7, kind="end", job_id="job-901"),
            AuditRow(1, "ada", "host", "socket", "cancel", "job-901", "done"),
        ]
    )
    store.archive(ended_before_ms=2)


def everything(store: Store) -> dict[str, Any]:
    """Everything that can be read."""
    jobs = store.find_jobs(JobQuery(archived=True, limit=10_000))
    return {
        "jobs": jobs,
        "kept": store.jobs(),
        "launches": [store.launch(row.job.id) for row in jobs],
        "tasks": [store.tasks(row.job.id) for row in jobs],
        "attempts": store.attempts_between(-1, 2**62, limit=10_000),
        "measures": [store.attempt_measures(row.job.id) for row in jobs],
        "hours": store.device_hours(0, 2**62),
        "cluster": [store.tenants(), store.nodes(), store.pools(), store.advance_reservations()],
        "held": [store.allocations(), store.reservations(), store.notices(), store.tokens()],
        "accounts": [store.usage(), store.week_usage(), store.shares()],
        "estimates": [store.estimates(), store.estimates(started_since_ms=0)],
        "history": store.events(0, 10_000),
        "audit": store.audit(AuditQuery(limit=1_000)),
        "counts": [store.count_states(), store.count_jobs(JobQuery(archived=True))],
        "numbers": [store.last_event(), store.next_number()],
    }


@given(
    rows=st.lists(
        st.one_of(*(rows for kind, rows in ROWS.items() if kind != "launch")), max_size=12
    )
)
@settings(
    max_examples=4,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_copy_to_postgresql_and_back_is_identical(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Write]
) -> None:
    folder = tmp_path_factory.mktemp("copy")
    server = shared_server()
    url = server.make_database()
    address = address_of(url)
    first, last = folder / "first.db", folder / "last.db"
    store = SqliteStore(first)
    filled(store, rows)
    before = everything(store)
    store.close()
    there = copy_between(first, address)
    middle = PostgresStore(address)
    assert everything(middle) == before
    middle.close()
    back = copy_between(address, last)
    assert [(one.table, one.rows) for one in there] == [(one.table, one.rows) for one in back]
    again = SqliteStore(last)
    assert everything(again) == before
    again.close()
    for place in (first, address, last):
        assert check(place).problems == ()
    server.drop_database(url)


def test_copied_database_continues_its_numbers(tmp_path: Path, postgres: str) -> None:
    store = SqliteStore(tmp_path / "a.db")
    filled(store, [])
    store.close()
    copy_between(tmp_path / "a.db", address_of(postgres))
    copied = PostgresStore(address_of(postgres))
    audit = AuditRow(2, "bob", "host", "socket", "cancel", "job-902", "done")
    number = copied.next_number()
    new = JobRow(job=a_job(number=number, id=f"job-{number}"), state=JobState.PENDING)
    assert copied.commit([audit, new, EventRow(at_ms=8, kind="more")]) == 2
    assert [row.user for _, row in copied.audit(AuditQuery())] == ["bob", "ada"]
    assert copied.next_number() == number + 1
    copied.close()


def test_copy_needs_empty_database(tmp_path: Path, postgres: str) -> None:
    store = SqliteStore(tmp_path / "a.db")
    filled(store, [])
    store.close()
    copy_between(tmp_path / "a.db", address_of(postgres))
    with pytest.raises(AlreadyExists, match="is not empty"):
        copy_between(tmp_path / "a.db", address_of(postgres))
    with pytest.raises(InvalidRequest, match="name two databases"):
        copy_between(address_of(postgres), address_of(postgres))
    with pytest.raises(StoreUnavailable, match="does not exist"):
        copy_between(tmp_path / "nothing.db", tmp_path / "b.db")


@pytest.mark.parametrize("to_postgres", [True, False])
def test_copy_that_differs_keeps_nothing(
    tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch, to_postgres: bool
) -> None:
    """The comparison finds a row that changed on its way, and everything is rolled back."""
    store = SqliteStore(tmp_path / "a.db")
    filled(store, [])
    store.close()
    target: Database = address_of(postgres) if to_postgres else tmp_path / "b.db"
    read = sqlite_copy.SqliteEndpoint.rows
    reads = iter(range(1_000))

    def changed(self: Any, table: str, columns: Any, order: str) -> Iterator[Any]:
        rows = list(read(self, table, columns, order))
        if table == "history" and self.name.endswith("a.db") and next(reads) == 0:
            rows = [(*rows[0][:-1], "[]"), *rows[1:]]
        return iter(rows)

    monkeypatch.setattr(sqlite_copy.SqliteEndpoint, "rows", changed)
    with pytest.raises(StoreDamaged, match="row 1 of history differs"):
        copy_between(tmp_path / "a.db", target)
    monkeypatch.undo()
    assert copy_between(tmp_path / "a.db", target)


def test_every_table_has_key_for_copying(tmp_path: Path, postgres: str) -> None:
    PostgresStore(address_of(postgres)).close()
    tables: set[str] = set()
    for place in (tmp_path / "a.db", address_of(postgres)):
        upgrade(place)
        with (
            sqlite_copy.open_source(place)
            if isinstance(place, Path)
            else _looking(place) as endpoint
        ):
            tables |= endpoint.columns().keys()
    assert tables - store_copy.SERVER_TABLES == store_copy._KEYS.keys()


def test_missing_database_is_neither_checked_nor_created(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        check(tmp_path / "typo.db")
    assert list(tmp_path.iterdir()) == []


def test_check_changes_nothing_and_reports_empty_or_older_database(
    tmp_path: Path, postgres: str
) -> None:
    address, server = address_of(postgres), shared_server()
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
    with pytest.raises(StoreUnavailable, match=r"is empty.*'tgpu db upgrade' creates them"):
        check(address)
    assert server.execute(tables, postgres) == [(0,)]
    PostgresStore(address, steps=migrations("postgres")[:1]).close()
    with pytest.raises(StoreUnavailable, match="has schema version 1, but this program needs"):
        check(address)
    assert server.execute("SELECT schema_version FROM meta", postgres) == [(1,)]

    path = tmp_path / "a.db"
    SqliteStore(path, steps=migrations()[:1]).close()
    before = path.read_bytes()
    with pytest.raises(
        StoreUnavailable, match=r"has schema version 1.*'tgpu db upgrade' migrates it"
    ):
        check(path)
    assert path.read_bytes() == before
    SqliteStore(path).close()
    before, there = path.read_bytes(), sorted(tmp_path.iterdir())
    assert check(path).form == migrations()[-1][0]
    assert (path.read_bytes(), sorted(tmp_path.iterdir())) == (before, there)


def test_copy_and_backup_do_not_change_source(tmp_path: Path, postgres: str) -> None:
    address = address_of(postgres)
    PostgresStore(address, steps=migrations("postgres")[:1]).close()
    path = tmp_path / "a.db"
    SqliteStore(path, steps=migrations()[:1]).close()
    before, old = path.read_bytes(), r"has schema version 1.* nothing was changed"
    with pytest.raises(StoreUnavailable, match=old):
        back_up(address, tmp_path / "backup.db")
    with pytest.raises(StoreUnavailable, match=old):
        copy_between(address, tmp_path / "copy.db")
    with pytest.raises(StoreUnavailable, match=old):
        copy_between(path, tmp_path / "copy.db")
    assert shared_server().execute("SELECT schema_version FROM meta", postgres) == [(1,)]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_check_sees_rows_just_written_by_running_server(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    filled(store, [])
    assert check(tmp_path / "a.db").rows["audit"] == 1
    store.close()


def test_database_of_another_program_is_not_called_empty(postgres: str) -> None:
    shared_server().execute("CREATE TABLE customers (id bigint)", postgres)
    with pytest.raises(StoreDamaged, match="none of gpu-scheduler's"):
        check(address_of(postgres))


def _looking(place: Any) -> Any:
    from gpu_scheduler.store.postgres.copy import open_source

    return open_source(place)


def test_backup_is_made_while_server_writes_and_is_startable(tmp_path: Path) -> None:
    path, target = tmp_path / "scheduler.db", tmp_path / "backup.db"
    store = SqliteStore(path)
    filled(store, [])
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            number = store.next_number()
            row = JobRow(job=a_job(number=number, id=f"job-{number}"), state=JobState.PENDING)
            store.commit([row, EventRow(at_ms=number, kind="submitted")])
            written.append(number)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        before = list(written)
        back_up(path, target)
    finally:
        stop.set()
        writer.join()
    store.close()
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.glob("backup*")) == ["backup.db"]
    restored = SqliteStore(target)
    numbers = {row.job.number for row in restored.jobs()}
    assert numbers >= set(before)
    assert numbers <= set(written) | {902, 903}
    # Jobs submitted after the backup left logs under their numbers, which are not reused.
    assert restored.next_number() == max(numbers) + 1 + sqlite_copy.JOB_NUMBER_GAP
    restored.close()
    assert check(target).problems == ()
    with pytest.raises(AlreadyExists, match="already exists"):
        back_up(path, target)


def test_backup_of_postgresql_is_file_that_can_be_copied_back(
    tmp_path: Path, postgres: str
) -> None:
    store = PostgresStore(address_of(postgres))
    filled(store, [])
    back_up(address_of(postgres), tmp_path / "backup.db")
    copy = SqliteStore(tmp_path / "backup.db")
    assert copy.next_number() == store.next_number() + sqlite_copy.JOB_NUMBER_GAP
    copy.close()
    with closing(sqlite3.connect(tmp_path / "backup.db")) as file, file:
        file.execute("UPDATE meta SET next_number = next_number - ?", (sqlite_copy.JOB_NUMBER_GAP,))
    copy = SqliteStore(tmp_path / "backup.db")
    assert everything(copy) == everything(store)
    store.close()
    copy.close()


@pytest.mark.parametrize("name", ["lab#1", "what?", "50%41", "plain"])
def test_backup_reads_named_file_and_leaves_it_unchanged(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    store = SqliteStore(folder / "a.db")
    filled(store, [])
    jobs = list(store.jobs())
    store.close()
    before = (folder / "a.db").read_bytes()
    back_up(folder / "a.db", tmp_path / "backup.db")
    copy = SqliteStore(tmp_path / "backup.db")
    assert list(copy.jobs()) == jobs != []
    copy.close()
    assert (folder / "a.db").read_bytes() == before
    assert [file.name for file in folder.iterdir()] == ["a.db"]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(["backup.db", name])


def test_database_of_another_program_is_not_backed_up(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as file, file:
        file.execute("CREATE TABLE customers (id)")
    with pytest.raises(StoreDamaged, match="not of gpu-scheduler"):
        back_up(tmp_path / "a.db", tmp_path / "backup.db")
    assert [file.name for file in tmp_path.iterdir()] == ["a.db"]


def test_file_written_during_check_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    SqliteStore(path).close()
    stores = []

    def look() -> None:
        with sqlite_copy.open_source(path):
            stores.append(SqliteStore(path))
            stores[0].commit([EventRow(at_ms=1, kind="submitted")])
            raise StoreDamaged("the disk image is malformed")

    with pytest.raises(StoreUnavailable, match="began to write"):
        look()
    stores[0].close()
    with sqlite_copy.open_source(path) as side:
        assert side.counters()[2] == 1


def test_failed_backup_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist yet"):
        back_up(tmp_path / "nothing.db", tmp_path / "backup.db")
    SqliteStore(tmp_path / "a.db").close()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        back_up(tmp_path / "a.db", tmp_path / "nowhere" / "backup.db")
    assert not (tmp_path / "backup.db").exists()


def test_inconsistencies_are_found(tmp_path: Path, postgres: str) -> None:
    path, server = tmp_path / "a.db", shared_server()
    for store in (SqliteStore(path), PostgresStore(address_of(postgres))):
        filled(store, [])
        store.commit([LaunchRow("job-903", Launch(argv=("x",), workdir="/w"))])
        store.close()
    assert check(path).problems == check(address_of(postgres)).problems == ()
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        for statement, found in (
            ("UPDATE job_counts SET jobs = jobs + 1", "counted wrongly"),
            ("UPDATE meta SET next_number = 1", "not below the next number"),
            ("UPDATE meta SET last_event = 0", "not below the last event"),
            ("DELETE FROM specs", "a missing row of specs"),
            ("DELETE FROM launches", "a missing row of launches"),
            ("INSERT INTO job_counts VALUES (0, 'a', 'b', 'failed', 3)", "do not match the jobs"),
        ):
            file.execute(statement)
            server.execute(statement, postgres)
            for place in (path, address_of(postgres)):
                assert any(found in problem for problem in check(place).problems)


def test_url_names_file_or_postgresql(tmp_path: Path) -> None:
    where = Paths(str(tmp_path), str(tmp_path))
    assert database_of(Settings(), where) == tmp_path / "scheduler.db"
    assert database_of(Settings(), where, "sqlite:////var/x.db") == Path("/var/x.db")
    named = database_of(Settings(), where, "postgresql://ann:secret@db.example:5433/gpus")
    assert str(named) == "'gpus' at db.example:5433"
    assert "secret" not in repr(named)
    with pytest.raises(InvalidRequest, match="sqlite:///"):
        database_of(Settings(), where, "mysql://x")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        database_of(Settings(), where, "postgresql://[::1")
