"""An SQLite file as source or target of a copy, and backups of a file that is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gpu_scheduler.model.errors import AlreadyExists, StoreUnavailable
from gpu_scheduler.store.copy import Counters, Row
from gpu_scheduler.store.sql_queries import migrations
from gpu_scheduler.store.sqlite.database_file import (
    PRIVATE,
    damaged,
    detect_concurrent_writer,
    open_any_version,
    open_read_only,
    sync,
    to_store_error,
    translate_errors,
)
from gpu_scheduler.store.sqlite.store import SqliteStore

JOB_NUMBER_GAP = 100_000
"""The job numbers of a backup continue after so many unused ones."""
PAGES_AT_ONCE = 2_000
"""After so many pages, the server can write before the backup continues."""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


class SqliteEndpoint:
    """A file inside one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Take over a connection inside a transaction."""
        self.name = str(path)
        self._connection = connection

    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of every table, without generated ones."""
        return {
            table: tuple(
                row[1]
                for row in self._connection.execute(f"PRAGMA table_xinfo({table})")
                if row[6] == 0
            )
            for (table,) in self._connection.execute(_TABLES).fetchall()
        }

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """Yield all rows of a table."""
        names = ", ".join(f'"{name}"' for name in columns)
        return iter(
            self._connection.execute(f"SELECT {names} FROM {table} ORDER BY {order}")  # noqa: S608
        )

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert rows."""
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
            rows,
        )

    def query(self, statement: str) -> list[Row]:
        """Return the rows of a statement."""
        return self._connection.execute(statement).fetchall()

    def counters(self) -> Counters:
        """Return the counters of the table `meta`."""
        found: Counters = self._connection.execute(
            "SELECT created_ms, next_number, last_event FROM meta"
        ).fetchone()
        return found

    def set_counters(self, counters: Counters) -> None:
        """Set the counters of the table `meta`."""
        self._connection.execute(
            "UPDATE meta SET created_ms = ?, next_number = ?, last_event = ?", counters
        )


@contextmanager
def open_source(path: Path) -> Iterator[SqliteEndpoint]:
    """Open a consistent snapshot of a file; raises unless it has the newest schema."""
    with (
        detect_concurrent_writer(path),
        translate_errors(path),
        closing(open_read_only(path, migrations())) as connection,
    ):
        connection.execute("BEGIN")
        yield SqliteEndpoint(connection, path)


@contextmanager
def open_target(path: Path) -> Iterator[SqliteEndpoint]:
    """Open a file to copy to, creating it if needed; all is committed at the end, or nothing."""
    SqliteStore(path).close()
    with (
        translate_errors(path),
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield SqliteEndpoint(connection, path)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def back_up(path: Path, target: Path) -> None:
    """Write a checked backup, also while a server writes; the target is complete or missing."""
    if not path.exists():
        raise StoreUnavailable(f"the database {path} does not exist yet; start the server once")
    with new_file(target) as partial:
        with (
            detect_concurrent_writer(path),
            translate_errors(path),
            closing(open_any_version(path)) as source,
            closing(sqlite3.connect(partial)) as copy,
            _report_full_disk(target),
        ):
            source.backup(copy, pages=PAGES_AT_ONCE, sleep=0.001)
        finish_backup(partial)


def finish_backup(partial: Path) -> None:
    """Make a copy usable as a store: its next jobs get numbers that no lost job can have had.

    Jobs submitted after the backup have left logs, and perhaps processes, under their numbers.
    """
    with translate_errors(partial), closing(sqlite3.connect(partial)) as copy:
        with copy:
            copy.execute("UPDATE meta SET next_number = next_number + ?", (JOB_NUMBER_GAP,))
        # Without a separate log, which a user could forget to copy; the server makes a new one.
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    if found != "ok":
        raise damaged(partial, str(found))


@contextmanager
def _report_full_disk(target: Path) -> Iterator[None]:
    """Name the target, not the source, when the disk of the target is full."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise to_store_error(error, target) from error
        raise


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a private file that is renamed to the target once it is complete and on disk."""
    if target.exists():
        raise AlreadyExists(f"{target} already exists; name another file, nothing was changed")
    partial = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        partial.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        yield partial
        sync(partial)
        partial.rename(target)
        sync(target.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"{target} cannot be written: {error.strerror}; check that its folder exists and that "
            "the disk has free space"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
