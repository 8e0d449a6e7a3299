"""Opening a database file: make it, check it, bring it to the newest form, or say why not.

A path comes in, connections go out. A file is never half made and never half migrated: a new one
gets its name when it is complete, and a migration is one transaction behind a copy.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec

from gpu_scheduler.model.errors import (
    InternalError,
    InvalidRequest,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
)

# --- What SQLite says when something goes wrong, as errors of ours that say what to do.

_PRIMARY = 0xFF
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full; make room, nothing was lost and nothing half-written",
    sqlite3.SQLITE_BUSY: (
        "another process holds it locked; end that process (`fuser` names it) or wait"
    ),
    sqlite3.SQLITE_LOCKED: "another connection holds it locked; try again",
    sqlite3.SQLITE_READONLY: "it cannot be written to; check the owner and mode of file and folder",
    sqlite3.SQLITE_PERM: "it may not be opened; check the owner and mode of file and folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the folder exists and who owns it",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk (`dmesg`) and its free space",
}


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """Raise our errors in place of those of SQLite."""
    try:
        yield
    except sqlite3.Error as error:
        raise of_sqlite(error, path) from error


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """While rows are made from what is stored: what makes no sense is damage."""
    try:
        with said_plainly(path):
            yield
    except (msgspec.MsgspecError, InvalidRequest, KeyError, ValueError) as error:
        raise damaged(path, f"a row cannot be understood ({error})") from error


def of_sqlite(error: sqlite3.Error, path: Path) -> SchedulerError:
    """The error of ours for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code in _DAMAGED:
        return damaged(path, str(error))
    if code in _REMEDIES:
        return StoreUnavailable(f"the store {path} is not available: {_REMEDIES[code]} ({error})")
    return InternalError(f"the store {path} refused a statement: {error}")


def damaged(path: Path, found: str) -> StoreDamaged:
    """What to do with a file that does not hold what was written to it."""
    return StoreDamaged(
        f"the store {path} is damaged: {found}. Nothing was changed. Put a backup in its place, or "
        f"save what can be read with `sqlite3 {path} .recover | sqlite3 new.db`; to begin "
        "with an empty store, move the file (with -wal and -shm) away"
    )


# --- Opening a database file: make it, check it, bring it to the newest form, or say why not.

APPLICATION_ID = 0x74677075
"""`tgpu`, so that `file` and we can tell our database from another one."""
HEADER = b"SQLite format 3\0"
PRIVATE = 0o600
CHECKPOINT_PAGES = 4000
"""The log of 16 MB is copied into the file when it is full: seldom, and in some 20 ms."""
WAL_KEPT_BYTES = 64 * 1024 * 1024
CACHE_KIB = 16 * 1024
STATEMENTS = 256
LOOK_MS = 5_000
"""So long a look at a file waits for others that hold it locked."""

Steps = list[tuple[int, str]]
"""Migrations: the version each leads to, and its script."""


def open_writer(path: Path, steps: Steps, *, busy_ms: int) -> sqlite3.Connection:
    """The one connection that writes, to a file that is whole and of the newest form."""
    with said_plainly(path):
        if not path.exists():
            _make(path, steps)
        _check_header(path)
        connection = _connect(path, "rw", busy_ms)
        try:
            _check(connection, path)
            _migrate(connection, path, steps)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path, *, busy_ms: int) -> sqlite3.Connection:
    """A connection that only reads."""
    with said_plainly(path):
        return _connect(path, "ro", busy_ms)


def open_unchanged(path: Path, steps: Steps) -> sqlite3.Connection:
    """A connection that only reads, to a file that is whole and of the newest form already."""
    connection = open_as_it_is(path)
    try:
        with said_plainly(path):
            _check_newest(connection, path, steps[-1][0])
    except BaseException:
        connection.close()
        raise
    return connection


def open_as_it_is(path: Path) -> sqlite3.Connection:
    """A connection that only reads, to a file that is whole, of whatever form."""
    with said_plainly(path):
        _check_header(path)
        connection = _connect(path, _looking_mode(path), busy_ms=LOOK_MS)
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def left_alone(path: Path) -> Iterator[None]:
    """While a file is read as it is: refuse what was read if a server began to write meanwhile."""
    had_log, before = _logs(path)[0].exists(), _stamp(path)
    try:
        yield
    except SchedulerError:
        _check_left_alone(path, had_log, before)
        raise
    _check_left_alone(path, had_log, before)


def _check_left_alone(path: Path, had_log: bool, before: tuple[int, int]) -> None:
    if not had_log and (_logs(path)[0].exists() or _stamp(path) != before):
        raise StoreUnavailable(
            f"the store {path} was read while a server began to write to it, so what was read is "
            "worth nothing; nothing was changed, try again"
        )


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _looking_mode(path: Path) -> str:
    """Without a log nobody has it open, and a plain reader would make one and leave it behind."""
    return "ro" if _logs(path)[0].exists() else "ro&immutable=1"


def _make(path: Path, steps: Steps) -> None:
    """Make an empty store. It gets its name last, so an empty file of that name is damage."""
    draft = path.with_name(f"{path.name}.new")
    try:
        for leftover in (draft, *_logs(draft)):
            leftover.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        connection = _connect(draft, "rw", busy_ms=0)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            _run(connection, steps)
        finally:
            connection.close()
        draft.rename(path)
        sync(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be made: {error.strerror}; check that its folder exists, "
            "that you may write to it and that the disk has room"
        ) from error


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            header = file.read(len(HEADER))
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be read: {error.strerror}; check its owner and mode"
        ) from error
    if header != HEADER:
        found = "it is empty" if not header else "it is not an SQLite database"
        raise damaged(path, found)


def _connect(path: Path, mode: str, busy_ms: int) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS,
    )
    try:
        connection.execute(f"PRAGMA busy_timeout = {busy_ms:d}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        if mode == "rw":
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        else:
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Read every page of what is not history, and see whether it is sound."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    tables = [name for (name,) in connection.execute(_TABLES)]
    if application != APPLICATION_ID or "meta" not in tables:
        raise damaged(path, "it is an SQLite database, but not one of gpu-scheduler")
    for table in tables:
        if table in _LARGE:
            _look_at_ends(connection, table)
            continue
        (found,) = connection.execute(f"PRAGMA quick_check({table})").fetchone()
        if found != "ok":
            raise damaged(path, str(found))


def _look_at_ends(connection: sqlite3.Connection, table: str) -> None:
    """Read the first row and the last: a large table of which nothing can be read is noticed."""
    keys = connection.execute(_KEYS, (table,)).fetchall()
    order = ", ".join(f'"{name}"' for (name,) in keys) or "rowid"
    backwards = ", ".join(f'"{name}" DESC' for (name,) in keys) or "rowid DESC"
    for way in (order, backwards):
        connection.execute(f"SELECT * FROM {table} ORDER BY {way} LIMIT 1").fetchall()  # noqa: S608


_KEYS = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
_LARGE = frozenset({"archived_jobs", "history", "attempts", "attempt_measures", "launches"})
"""Too much to read at every start; damage inside is met when it is read."""


def _check_newest(connection: sqlite3.Connection, path: Path, newest: int) -> None:
    version = _version(connection, path, newest)
    if version < newest:
        raise StoreUnavailable(
            f"the store {path} has form {version} and this program needs {newest}; nothing was "
            "changed. 'tgpu db upgrade' brings it to that form, and so does a start of the server"
        )


def _migrate(connection: sqlite3.Connection, path: Path, steps: Steps) -> None:
    newest = steps[-1][0]
    version = _version(connection, path, newest)
    todo = [step for step in steps if step[0] > version]
    if todo:
        _copy(connection, path.with_name(f"{path.name}.before-{newest}"))
        _run(connection, todo)


def _version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    """The form of a file, which may be older than the newest."""
    version: int = connection.execute("SELECT schema_version FROM meta").fetchone()[0]
    if version > newest:
        raise StoreTooNew(
            f"the store {path} has form {version} and this program knows forms up to {newest}; "
            f"install the newer gpu-scheduler again, or put back {path.name}.before-{version}"
        )
    return version


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """A copy that is whole, or none: it gets its name last."""
    draft = target.with_name(f"{target.name}.new")
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
    copy = sqlite3.connect(draft, isolation_level=None)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    draft.rename(target)
    sync(target.parent)


def _run(connection: sqlite3.Connection, steps: Steps) -> None:
    """All steps, or none."""
    script = "\n".join(
        f"{text}\nUPDATE meta SET schema_version = {version:d};" for version, text in steps
    )
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _logs(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]


def sync(place: Path) -> None:
    """Wait until a file, or what a folder names, is on disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
