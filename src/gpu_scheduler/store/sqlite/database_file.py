"""Opening an SQLite file: create it, check it, migrate it, and translate SQLite's errors.

A path comes in, connections go out. A file is never half created or half migrated: a new file is
renamed when it is complete, and after a backup copy all migrations are one transaction that also
records the new schema version.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import msgspec
import structlog

from gpu_scheduler.model.errors import (
    InternalError,
    InvalidRequest,
    SchedulerError,
    StoreDamaged,
    StoreTooNew,
    StoreUnavailable,
)
from gpu_scheduler.store.sql_queries import Migrations

log = structlog.get_logger("database")
_PRIMARY = 0xFF
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space, nothing was lost or half-written",
    sqlite3.SQLITE_BUSY: (
        "another process has locked it; stop that process (`fuser` shows it) or wait"
    ),
    sqlite3.SQLITE_LOCKED: "another connection has locked it; try again",
    sqlite3.SQLITE_READONLY: "it is read-only; check the owner and mode of file and folder",
    sqlite3.SQLITE_PERM: "permission denied; check the owner and mode of file and folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check that the folder exists, and its owner",
    sqlite3.SQLITE_IOERR: "reading or writing failed; check the disk (`dmesg`) and its free space",
}


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise our errors in place of SQLite's."""
    try:
        yield
    except sqlite3.Error as error:
        raise to_store_error(error, path) from error


@contextmanager
def translate_read_errors(path: Path) -> Iterator[None]:
    """Like `translate_errors`; a stored row that cannot be decoded means a damaged file."""
    try:
        with translate_errors(path):
            yield
    except (msgspec.MsgspecError, InvalidRequest, KeyError, ValueError) as error:
        raise damaged(path, f"a row cannot be decoded ({error})") from error


def to_store_error(error: sqlite3.Error, path: Path) -> SchedulerError:
    """Return our error for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code in _DAMAGED:
        return damaged(path, str(error))
    if code in _REMEDIES:
        return StoreUnavailable(f"the store {path} is not available: {_REMEDIES[code]} ({error})")
    return InternalError(f"the store {path} rejected a statement: {error}")


def damaged(path: Path, found: str) -> StoreDamaged:
    """Return the error for a damaged file, with what to do."""
    return StoreDamaged(
        f"the store {path} is damaged: {found}. Nothing was changed. Restore a backup, or save "
        f"what can be read with `sqlite3 {path} .recover | sqlite3 new.db`; to begin with an "
        "empty store, move the file (with -wal and -shm) away"
    )


APPLICATION_ID = 0x74677075
"""`tgpu` in ASCII, which marks the file as ours."""
HEADER = b"SQLite format 3\0"
PRIVATE = 0o600
CHECKPOINT_PAGES = 4000
"""SQLite copies the log into the file at 16 MB: rarely, and in some 20 ms."""
WAL_KEPT_BYTES = 64 * 1024 * 1024
WRITER_CACHE_KIB = 16 * 1024
READER_CACHE_KIB = 4 * 1024
"""There are several readers; those pages that they do not keep are in the cache of the kernel."""
STATEMENTS = 256
INSPECT_BUSY_MS = 5_000
"""How long an inspection of a file waits for a lock of another process."""


def open_writer(path: Path, steps: Migrations, *, busy_ms: int) -> sqlite3.Connection:
    """Open the one connection that writes, and check and migrate the file."""
    with translate_errors(path):
        if not path.exists():
            _create(path, steps)
        _make_private(path)
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
    """Open a read-only connection."""
    with translate_errors(path):
        return _connect(path, "ro", busy_ms)


def open_read_only(path: Path, steps: Migrations) -> sqlite3.Connection:
    """Open a read-only connection to an undamaged file with the newest schema."""
    connection = open_any_version(path)
    try:
        with translate_errors(path):
            check_newest(connection, path, steps[-1][0])
    except BaseException:
        connection.close()
        raise
    return connection


def open_any_version(path: Path) -> sqlite3.Connection:
    """Open a read-only connection to an undamaged file with any schema version."""
    with translate_errors(path):
        _check_header(path)
        connection = _connect(path, _inspect_mode(path), busy_ms=INSPECT_BUSY_MS)
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


@contextmanager
def detect_concurrent_writer(path: Path) -> Iterator[None]:
    """Raise at the end of the block if a server began to write to the file meanwhile."""
    had_log, before = _log_files(path)[0].exists(), _stamp(path)
    try:
        yield
    except SchedulerError:
        _check_no_writer(path, had_log, before)
        raise
    _check_no_writer(path, had_log, before)


def _check_no_writer(path: Path, had_log: bool, before: tuple[int, int]) -> None:
    if not had_log and (_log_files(path)[0].exists() or _stamp(path) != before):
        raise StoreUnavailable(
            f"the store {path} was read while a server began to write to it, so the result may be "
            "inconsistent; nothing was changed, try again"
        )


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _inspect_mode(path: Path) -> str:
    # Without a log no server has the file open, and an ordinary reader would leave a new log
    # behind.
    return "ro" if _log_files(path)[0].exists() else "ro&immutable=1"


def _create(path: Path, steps: Migrations) -> None:
    """Create an empty store. It is renamed last, so an empty file of that name is damaged."""
    partial = path.with_name(f"{path.name}.new")
    try:
        for leftover in (partial, *_log_files(partial)):
            leftover.unlink(missing_ok=True)
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        connection = _connect(partial, "rw", busy_ms=0)
        try:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            apply(connection, steps)
        finally:
            connection.close()
        partial.rename(path)
        sync(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"the store {path} cannot be created: {error.strerror}; check that its folder exists "
            "and is writable, and that the disk has free space"
        ) from error


def _make_private(path: Path) -> None:
    """Reject a file of another owner, or that others can write; take read permission from others.

    What others could write may be forged. What they could read stays valid.
    """
    for file in (path, *_log_files(path)):
        try:
            status = file.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreUnavailable(f"the store {file} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode):
            raise StoreUnavailable(f"the store {file} is not a file; move it away")
        if status.st_uid != os.geteuid():
            raise StoreUnavailable(
                f"the store {file} belongs to uid {status.st_uid} and this process runs as uid "
                f"{os.geteuid()}; if you trust its contents, use 'chown {os.geteuid()} {file}'"
            )
        if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
            who = "all users" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"
            raise StoreUnavailable(
                f"{who} may write {file}, so its contents are not trusted; check them or restore "
                f"a backup, then use 'chmod 600 {file}'"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~PRIVATE:
            file.chmod(PRIVATE)
            log.warning("database was readable by others", file=str(file), mode=f"{mode:o}")


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
        if mode == "rw":
            connection.execute(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
        else:
            connection.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
            connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless the file is ours; checks every page of the smaller tables."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    tables = [name for (name,) in connection.execute(_TABLES)]
    if application != APPLICATION_ID or "meta" not in tables:
        raise damaged(path, "it is an SQLite database, but not of gpu-scheduler")
    for table in tables:
        if table in _LARGE:
            _read_first_and_last(connection, table)
            continue
        (found,) = connection.execute(f"PRAGMA quick_check({table})").fetchone()
        if found != "ok":
            raise damaged(path, str(found))


def _read_first_and_last(connection: sqlite3.Connection, table: str) -> None:
    """Read the first and the last row; this finds a large table that cannot be read at all."""
    keys = connection.execute(_KEYS, (table,)).fetchall()
    order = ", ".join(f'"{name}"' for (name,) in keys) or "rowid"
    descending = ", ".join(f'"{name}" DESC' for (name,) in keys) or "rowid DESC"
    for direction in (order, descending):
        connection.execute(f"SELECT * FROM {table} ORDER BY {direction} LIMIT 1").fetchall()  # noqa: S608


_KEYS = "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk"
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
_LARGE = frozenset({"archived_jobs", "history", "attempts", "attempt_measures", "launches"})
"""Too large to check at every start; damage inside is found when it is read."""


def _migrate(connection: sqlite3.Connection, path: Path, steps: Migrations) -> None:
    """Apply the missing migrations, after a backup copy."""
    missing = missing_steps(connection, path, steps)
    if missing:
        _copy(connection, path.with_name(f"{path.name}.before-{steps[-1][0]}"))
        apply(connection, missing)


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """Write a backup copy, which is renamed when it is complete."""
    partial = target.with_name(f"{target.name}.new")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
    copy = sqlite3.connect(partial, isolation_level=None)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    partial.rename(target)
    sync(target.parent)


def _log_files(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm")]


def sync(place: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def missing_steps(connection: sqlite3.Connection, path: Path, steps: Migrations) -> Migrations:
    """Return the migrations that a file needs; raises if it is newer than this program supports."""
    version = _version(connection, path, steps[-1][0])
    return [step for step in steps if step[0] > version]


def apply(connection: sqlite3.Connection, steps: Migrations) -> None:
    """Apply all migrations in one transaction."""
    script = "\n".join(
        f"{text}\nUPDATE meta SET schema_version = {version:d};" for version, text in steps
    )
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{script}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def check_newest(connection: sqlite3.Connection, path: Path, newest: int) -> None:
    """Raise unless a file has the newest schema."""
    version = _version(connection, path, newest)
    if version < newest:
        raise StoreUnavailable(
            f"the store {path} has schema version {version}, but this program needs {newest}; "
            "nothing was changed. 'tgpu db upgrade' migrates it, and so does a start of the "
            "server"
        )


def _version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    """Return the schema version of a file; raises if it is newer than this program supports."""
    version: int = connection.execute("SELECT schema_version FROM meta").fetchone()[0]
    if version > newest:
        raise StoreTooNew(
            f"the store {path} has schema version {version}, but this program supports versions "
            f"up to {newest}; install the newer gpu-scheduler again, or restore "
            f"{path.name}.before-{version}"
        )
    return version
