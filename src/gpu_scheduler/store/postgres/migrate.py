"""Schema versions of a PostgreSQL database: create, migrate, check.

Each migration is one transaction that also records its version, so a database is never half
migrated. An advisory lock serializes two servers that start at once.
"""

from __future__ import annotations

from gpu_scheduler.model.errors import StoreDamaged, StoreTooNew, StoreUnavailable
from gpu_scheduler.store.postgres import DatabaseAddress
from gpu_scheduler.store.postgres.connection import MIN_VERSION, Connection
from gpu_scheduler.store.sql_queries import Migrations, migrations, named_queries

SQL = {name: text.encode() for name, text in named_queries("postgres/catalog.sql").items()}
LOCK = 0x74677075
"""The key of the advisory lock for migrations: `tgpu` in ASCII."""

Types = dict[str, dict[str, str]]
"""The types of columns, by table and column."""


def version_of(connection: Connection) -> int:
    """Return the schema version of the database; 0 if it is empty."""
    row = connection.execute(SQL["has_meta"]).fetchone()
    if row is None or not row[0]:
        return 0
    found = connection.execute("SELECT schema_version FROM meta").fetchone()
    return int(found[0]) if found else 0


def upgrade(connection: Connection, address: DatabaseAddress, known: Migrations) -> int:
    """Apply the missing migrations; returns how many there were."""
    _check_server(connection, address)
    if version_of(connection) == known[-1][0]:
        return 0
    applied = 0
    for version, script in known:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            found = version_of(connection)
            if found >= version:
                continue
            if version == known[0][0]:
                _check_empty(connection, address)
            _check_no_leader(connection, address, found, known[-1][0])
            connection.execute(script.encode(), prepare=False)
            connection.execute("UPDATE meta SET schema_version = %s", (version,))
            applied += 1
    check(connection, address, known)
    return applied


def check(
    connection: Connection, address: DatabaseAddress, known: Migrations | None = None
) -> None:
    """Raise unless the database has the newest schema version."""
    newest = (known or migrations("postgres"))[-1][0]
    found = version_of(connection)
    if found > newest:
        raise StoreTooNew(
            f"the database {address} has schema version {found}, but this program supports "
            f"versions up to {newest}; install the newer gpu-scheduler again, or restore a backup "
            "of the older version"
        )
    if found == 0:
        _check_empty(connection, address)
        raise StoreUnavailable(
            f"the database {address} is empty: it has no tables yet. 'tgpu db upgrade' creates "
            "them, and so does the first start of a server"
        )
    if found < newest:
        raise StoreUnavailable(
            f"the database {address} has schema version {found}, but this program needs {newest}; "
            "nothing was changed. 'tgpu db upgrade' migrates it, and so does a start of the "
            "server"
        )


def column_types(connection: Connection) -> Types:
    """Return the types of all columns."""
    types: Types = {}
    for table, column, kind in connection.execute(SQL["column_types"]):
        types.setdefault(table, {})[column] = kind
    return types


def _check_server(connection: Connection, address: DatabaseAddress) -> None:
    major = connection.info.server_version // 10_000
    if major < MIN_VERSION:
        raise StoreUnavailable(
            f"the database {address} is PostgreSQL {major}; version {MIN_VERSION} or newer is "
            "required"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"the database {address} has encoding {encoding}; create it with "
            "'createdb -E UTF8 -T template0'"
        )


def _check_no_leader(
    connection: Connection, address: DatabaseAddress, found: int, newest: int
) -> None:
    """Raise if a server of an older version leads on this database."""
    row = connection.execute(SQL["has_leadership"]).fetchone()
    if row is None or not row[0]:
        return
    leader = connection.execute(SQL["leader"]).fetchone()
    if leader is not None:
        raise StoreUnavailable(
            f"the database {address} has schema version {found}, this program needs {newest}, and "
            f"server '{leader[0]}' still uses the older version; nothing was changed. Stop all "
            "servers of the older version first (the lease of one that was killed expires in "
            f"{leader[1]:.0f} s), then try again"
        )


def _check_empty(connection: Connection, address: DatabaseAddress) -> None:
    row = connection.execute(SQL["count_tables"]).fetchone()
    if row is not None and row[0]:
        raise StoreDamaged(
            f"the database {address} has tables, but none of gpu-scheduler's; nothing was changed. "
            "Name an empty database in database.database"
        )
