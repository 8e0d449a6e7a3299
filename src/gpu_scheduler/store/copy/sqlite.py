"""An SQLite file as one side of a copy, and copies of a file that is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gpu_scheduler.model.errors import AlreadyExists, StoreUnavailable
from gpu_scheduler.store.copy.copier import Counters, Row
from gpu_scheduler.store.sql_files import migrations
from gpu_scheduler.store.sqlite.files import (
    PRIVATE,
    damaged,
    left_alone,
    of_sqlite,
    open_as_it_is,
    open_unchanged,
    said_plainly,
    sync,
)
from gpu_scheduler.store.sqlite.store import SqliteStore

GAP = 100_000
"""So far ahead the numbers of jobs go on in a backup."""
PAGES_AT_ONCE = 2_000
"""Between so many pages the server can write."""
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


class SqliteSide:
    """A file within one transaction."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Take over a connection that is in a transaction."""
        self.name = str(path)
        self._connection = connection

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of every table that are not made from others."""
        return {
            table: tuple(
                row[1]
                for row in self._connection.execute(f"PRAGMA table_xinfo({table})")
                if row[6] == 0
            )
            for (table,) in self._connection.execute(_TABLES).fetchall()
        }

    def rows(self, table: str, columns: Sequence[str], order: str) -> Iterator[Row]:
        """All rows of a table."""
        names = ", ".join(f'"{name}"' for name in columns)
        return iter(
            self._connection.execute(f"SELECT {names} FROM {table} ORDER BY {order}")  # noqa: S608
        )

    def write(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Add rows."""
        names = ", ".join(f'"{name}"' for name in columns)
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(
            f"INSERT INTO {table} ({names}) VALUES ({marks})",  # noqa: S608
            rows,
        )

    def ask(self, statement: str) -> list[Row]:
        """The rows of a statement."""
        return self._connection.execute(statement).fetchall()

    def counters(self) -> Counters:
        """The numbers that it goes on with."""
        found: Counters = self._connection.execute(
            "SELECT created_ms, next_number, last_event FROM meta"
        ).fetchone()
        return found

    def set_counters(self, counters: Counters) -> None:
        """Go on with these numbers."""
        self._connection.execute(
            "UPDATE meta SET created_ms = ?, next_number = ?, last_event = ?", counters
        )


@contextmanager
def looking_side(path: Path) -> Iterator[SqliteSide]:
    """A file to read, as of one moment; refused if it is not of the newest form."""
    with (
        left_alone(path),
        said_plainly(path),
        closing(open_unchanged(path, migrations())) as connection,
    ):
        connection.execute("BEGIN")
        yield SqliteSide(connection, path)


@contextmanager
def writing_side(path: Path) -> Iterator[SqliteSide]:
    """A file to copy to, which is made if it is not there; it keeps all or nothing."""
    SqliteStore(path).close()
    with (
        said_plainly(path),
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield SqliteSide(connection, path)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")


def back_up(path: Path, target: Path) -> None:
    """A copy of a file, also while a server writes to it. It is whole and sound, or not there."""
    if not path.exists():
        raise StoreUnavailable(f"there is no database {path} yet; start the server once")
    with draft_of(target) as draft:
        with (
            left_alone(path),
            said_plainly(path),
            closing(open_as_it_is(path)) as source,
            closing(sqlite3.connect(draft)) as copy,
            _full_disk_of(target),
        ):
            source.backup(copy, pages=PAGES_AT_ONCE, sleep=0.001)
        finish_backup(draft)


def finish_backup(draft: Path) -> None:
    """Make a copy one to start from: new jobs get numbers that no lost one can have had.

    What was submitted after the backup has left logs, and perhaps processes, under its numbers.
    """
    with said_plainly(draft), closing(sqlite3.connect(draft)) as copy:
        with copy:
            copy.execute("UPDATE meta SET next_number = next_number + ?", (GAP,))
        # No log beside the file that somebody could forget to copy; the server makes a new one.
        copy.execute("PRAGMA journal_mode = DELETE").fetchone()
        found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    if found != "ok":
        raise damaged(draft, str(found))


@contextmanager
def _full_disk_of(target: Path) -> Iterator[None]:
    """The disk that is full is that of the copy."""
    try:
        yield
    except sqlite3.Error as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise of_sqlite(error, target) from error
        raise


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A private file that gets its name once it is complete and on disk."""
    if target.exists():
        raise AlreadyExists(f"{target} is there already; name another file, nothing was changed")
    draft = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        yield draft
        sync(draft)
        draft.rename(target)
        sync(target.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"{target} cannot be written: {error.strerror}; check that its folder exists and that "
            "the disk has room"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
