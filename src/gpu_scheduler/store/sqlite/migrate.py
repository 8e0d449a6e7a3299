"""Schema versions of an SQLite file: find them, apply missing migrations, check.

All migrations are one transaction that also records the version, so a file is never half migrated.
`database_file` makes a backup copy before.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gpu_scheduler.model.errors import StoreTooNew, StoreUnavailable
from gpu_scheduler.store.sql_queries import Migrations


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
