"""An SQLite file as one side of a copy, and copies of a file that is in use."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from gpu_scheduler.model.errors import AlreadyExists, StoreUnavailable
from gpu_scheduler.store.faults import damaged, said_plainly
from gpu_scheduler.store.files import PRIVATE, open_unchanged
from gpu_scheduler.store.queries import migrations
from gpu_scheduler.store.sqlite import SqliteStore
from gpu_scheduler.store.transfer.copying import Counters, Row

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
def reading_side(path: Path) -> Iterator[SqliteSide]:
    """A file to copy from, brought to the newest form, as of one moment."""
    if not path.exists():
        raise StoreUnavailable(f"there is no file {path}; name the database to copy from")
    with _side(path, "BEGIN") as side:
        yield side


@contextmanager
def looking_side(path: Path) -> Iterator[SqliteSide]:
    """A file to look at, as of one moment; refused if it is not of the newest form."""
    with said_plainly(path), closing(open_unchanged(path, migrations())) as connection:
        connection.execute("BEGIN")
        yield SqliteSide(connection, path)


@contextmanager
def writing_side(path: Path) -> Iterator[SqliteSide]:
    """A file to copy to, which is made if it is not there; it keeps all or nothing."""
    with _side(path, "BEGIN IMMEDIATE") as side:
        yield side


@contextmanager
def _side(path: Path, begin: str) -> Iterator[SqliteSide]:
    SqliteStore(path).close()
    with (
        said_plainly(path),
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
    ):
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(begin)
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
    with draft_of(target) as draft, said_plainly(path):
        with (
            closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(draft)) as copy,
        ):
            source.backup(copy, pages=PAGES_AT_ONCE, sleep=0.001)
            _fold(copy)
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise damaged(path, str(found))


def fold_log(path: Path) -> None:
    """Make one file of a database and its log."""
    with said_plainly(path), closing(sqlite3.connect(path)) as connection:
        _fold(connection)


def _fold(connection: sqlite3.Connection) -> None:
    """No log beside the file that somebody could forget to copy; the server makes a new one."""
    connection.execute("PRAGMA journal_mode = DELETE").fetchone()


@contextmanager
def draft_of(target: Path) -> Iterator[Path]:
    """A private file that gets its name once it is complete and on disk."""
    if target.exists():
        raise AlreadyExists(f"{target} is there already; name another file, nothing was changed")
    draft = target.with_name(f"{target.name}.new")
    try:
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        yield draft
        for place in (draft, target.parent):
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        draft.rename(target)
    except OSError as error:
        raise StoreUnavailable(
            f"{target} cannot be written: {error.strerror}; check that its folder exists and that "
            "the disk has room"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
