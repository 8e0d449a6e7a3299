"""What SQLite says when something goes wrong, as errors of ours that say what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpu_scheduler.model.errors import (
    InternalError,
    InvalidRequest,
    SchedulerError,
    StoreDamaged,
    StoreUnavailable,
)

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
