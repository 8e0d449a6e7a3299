"""An unusable SQLite store reports problem and remedy, and loses nothing."""

import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import (
    InternalError,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
)
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.interface import JobQuery
from gpu_scheduler.store.rows import EnvironmentRow, EventRow, JobRow, LaunchRow
from gpu_scheduler.store.sql_queries import migrations
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_job, a_node

BIG = "x" * 200_000


def a_row(number: int) -> JobRow:
    return JobRow(job=a_job(number=number, id=f"job-{number}"), state=JobState.PENDING)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "scheduler.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(path, busy_ms=50)
    yield opened
    opened.close()


def a_used_store(path: Path, jobs: int = 500) -> None:
    store = SqliteStore(path)
    store.commit([a_row(number) for number in range(1, jobs + 1)])
    store.close()


# --- opening


def test_new_store_is_private_and_synchronous(store: SqliteStore, path: Path) -> None:
    store.commit([a_row(1)])
    files = sorted(path.parent.glob("scheduler.db*"))
    assert [file.name for file in files] == ["scheduler.db", "scheduler.db-shm", "scheduler.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    (journal,) = store._writer._connection.execute("PRAGMA journal_mode").fetchone()
    (synchronous,) = store._writer._connection.execute("PRAGMA synchronous").fetchone()
    assert (journal, synchronous) == ("wal", 2)


def test_everything_is_present_after_reopening(path: Path) -> None:
    store = SqliteStore(path)
    store.commit([a_row(1), a_node(), EventRow(at_ms=1, kind="submitted")])
    store.close()
    again = SqliteStore(path)
    assert (again.jobs(), again.nodes()) == ([a_row(1)], [a_node()])
    assert again.commit([a_row(2), EventRow(at_ms=2, kind="submitted")]) == 2
    assert [row.job.number for row in again.jobs()] == [1, 2]
    again.close()


def test_leftovers_of_interrupted_start_do_no_harm(path: Path) -> None:
    path.with_name("scheduler.db.new").write_bytes(b"half a file")
    SqliteStore(path).close()
    assert not path.with_name("scheduler.db.new").exists()


@pytest.mark.parametrize("content", [b"", b"garbage " * 1000, b"SQLite"])
def test_non_database_file_is_rejected(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"is damaged: .* Restore a backup"):
        SqliteStore(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.02])
def test_truncated_file_is_rejected(path: Path, kept: float) -> None:
    a_used_store(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(StoreDamaged, match="is damaged"):
        SqliteStore(path)


def test_unreadable_large_table_is_detected_at_start(path: Path) -> None:
    SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.executemany(
            "INSERT INTO history VALUES (?, ?, ?, ?)",
            ((number, number, number, "x" * 3000) for number in range(2000)),
        )
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(path.read_bytes())
    content[1_000_000:] = b"\xa5" * (len(content) - 1_000_000)
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match=r"is damaged: .* Restore a backup"):
        SqliteStore(path)


def test_file_with_garbage_inside_is_rejected(path: Path) -> None:
    a_used_store(path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20_000] = b"\xa5" * 20_000
    path.write_bytes(content)
    with pytest.raises(StoreDamaged, match="is damaged"):
        SqliteStore(path)


def test_database_of_another_program_is_rejected(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (name TEXT)")
    connection.close()
    with pytest.raises(StoreDamaged, match="not of gpu-scheduler"):
        SqliteStore(path)


def test_undecodable_row_is_reported_as_damage(store: SqliteStore, path: Path) -> None:
    store.commit([a_row(1), a_node(), LaunchRow("job-1", Launch(argv=("sh",)))])
    execute = store._writer._connection.execute
    for wrong in ('{"members": 3}', '{"members": []}', "nonsense"):
        execute("UPDATE specs SET spec = ?", (wrong,))
        with pytest.raises(StoreDamaged, match="a row cannot be decoded"):
            store.jobs()
    execute("""UPDATE launches SET launch = '{"argv": []}'""")
    with pytest.raises(StoreDamaged, match="there is nothing to run"):
        store.launch("job-1")
    execute("""UPDATE nodes SET node = '{"id": "n0"}'""")
    with pytest.raises(StoreDamaged, match="`ordinal`"):
        store.nodes()
    execute("UPDATE job_counts SET state = 'sleeping'")
    with pytest.raises(StoreDamaged, match="sleeping"):
        store.count_states()


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot be created: No such file or directory"):
        SqliteStore(tmp_path / "nowhere" / "scheduler.db")


def test_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    store.jobs()
    store.close()
    with pytest.raises(StoreUnavailable, match="has been closed"):
        store.jobs()


# --- versions

TODAY = migrations()
NEXT = TODAY[-1][0] + 1
STEP = (NEXT, "ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue';")


def test_store_of_newer_version_is_rejected_and_unchanged(path: Path) -> None:
    SqliteStore(path, steps=[*TODAY, STEP]).close()
    with pytest.raises(StoreTooNew, match=f"has schema version {NEXT}, but this program supports"):
        SqliteStore(path)
    SqliteStore(path, steps=[*TODAY, STEP]).close()


def test_old_store_is_migrated_after_backup(path: Path) -> None:
    a_used_store(path, jobs=3)
    migrated = SqliteStore(path, steps=[*TODAY, STEP])
    assert [row.job.number for row in migrated.jobs()] == [1, 2, 3]
    migrated.close()
    copy = path.with_name(f"scheduler.db.before-{NEXT}")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    shutil.copy(copy, path)
    before = SqliteStore(path)
    assert [row.job.number for row in before.jobs()] == [1, 2, 3]
    before.close()


def test_failed_migration_changes_nothing(path: Path) -> None:
    a_used_store(path, jobs=3)
    broken = (NEXT + 1, "DROP TABLE tasks; ALTER TABLE nowhere ADD COLUMN x;")
    with pytest.raises(InternalError, match="no such table: nowhere"):
        SqliteStore(path, steps=[*TODAY, STEP, broken])
    store = SqliteStore(path)
    assert store.tasks("job-1") == []
    store.commit([a_row(4)])
    store.close()


def test_rows_of_older_and_newer_versions_are_readable(store: SqliteStore) -> None:
    store.commit([a_row(1)])
    job = store.jobs()[0].job
    store._writer._connection.execute("""UPDATE specs SET spec = '{"colour": "blue"}'""")
    (row,) = store.jobs()
    assert row.job == replace(
        job, members=type(job)(id="x", number=1, submit_ms=0).members, estimate_ms=0
    )


# --- while it runs


def refused(store: SqliteStore, numbers: range) -> SchedulerError:
    with pytest.raises(StoreUnavailable) as caught:
        store.commit(
            [
                *(EventRow(at_ms=n, kind=BIG) for n in numbers),
                *(replace(a_row(n), reason=BIG) for n in numbers),
                EnvironmentRow("e", (("A", BIG),)),
            ]
        )
    return caught.value


def check_unharmed(store: SqliteStore) -> None:
    """After a rejected batch there is nothing of it, and the next one is stored."""
    assert [row.job.number for row in store.jobs()] == [1]
    assert (store.next_number(), store.last_event(), store.environment("e")) == (2, 1, None)
    assert store.count_states() == {JobState.PENDING: 1}


def check_works(store: SqliteStore) -> None:
    assert store.commit([a_row(2), EventRow(at_ms=2, kind="submitted")]) == 2
    assert store.jobs() == [a_row(1), a_row(2)]
    assert store.count_jobs(JobQuery()) == 2


def test_full_store_keeps_nothing_of_batch_and_recovers(
    store: SqliteStore,
) -> None:
    store.commit([a_row(1), EventRow(at_ms=1, kind="submitted")])
    connection = store._writer._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages + 10}")
    assert "the disk is full; free some space" in str(refused(store, range(2, 20)))
    check_unharmed(store)
    connection.execute(f"PRAGMA max_page_count = {pages + 10_000}")
    check_works(store)


def test_full_disk_keeps_nothing_of_batch_and_recovers(
    tmp_path: Path,
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tgpu-test", str(disk)]
    try:
        made = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount program here")
    if made.returncode:
        pytest.skip(f"a small disk cannot be made here: {made.stderr.decode().strip()}")
    try:
        store = SqliteStore(disk / "scheduler.db")
        store.commit([a_row(1), EventRow(at_ms=1, kind="submitted")])
        (disk / "ballast").write_bytes(bytes(2_500_000))
        assert "the disk is full; free some space" in str(refused(store, range(2, 20)))
        check_unharmed(store)
        (disk / "ballast").unlink()
        check_works(store)
        store.close()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_locked_store_says_so_and_recovers(store: SqliteStore, path: Path) -> None:
    store.commit([a_row(1), EventRow(at_ms=1, kind="submitted")])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert "another process has locked it" in str(refused(store, range(2, 3)))
    check_unharmed(store)
    other.execute("ROLLBACK")
    other.close()
    check_works(store)


def test_invalid_row_leaves_nothing_behind(store: SqliteStore) -> None:
    store.commit([a_row(1), EventRow(at_ms=1, kind="submitted")])
    for wrong in (
        replace(a_row(3), reason="\ud800"),
        replace(a_row(3), attempt=2**70),
        EventRow(at_ms=3, kind="\ud800"),
        replace(a_row(3), attempt=None),
    ):
        with pytest.raises(InternalError):
            store.commit([a_row(2), EventRow(at_ms=2, kind="x"), wrong])
    check_unharmed(store)
    check_works(store)


def test_rows_of_another_process_are_not_overwritten(store: SqliteStore, path: Path) -> None:
    store.commit([a_row(1), EventRow(at_ms=1, kind="submitted")])
    other = SqliteStore(path)
    other.commit([replace(a_row(2), expected_ms=5), EventRow(at_ms=2, kind="submitted")])
    assert store.commit([a_row(3), EventRow(at_ms=3, kind="submitted")]) == 3
    assert [row.job.number for row in store.jobs()] == [1, 2, 3]
    assert [number for number, _ in store.events()] == [1, 2, 3]
    other.close()


def test_threads_read_while_one_writes(store: SqliteStore) -> None:
    store.commit([a_row(1)])
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        last = 0
        while not done.is_set():
            rows = store.jobs()
            count = store.count_jobs(JobQuery())
            if len(rows) % 10 != 1 or len(rows) < last or count < len(rows):
                wrong.append((len(rows), count))
            last = len(rows)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for batch in range(20):
        store.commit([a_row(number) for number in range(10 * batch + 2, 10 * batch + 12)])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
