"""The form of a database: make it, bring it to the newest, or say why not.

Each step is one transaction with the number that it leads to, so a database is never half migrated;
a lock keeps two servers that start at once from doing it twice.
"""

from __future__ import annotations

from gpu_scheduler.model.errors import StoreDamaged, StoreTooNew, StoreUnavailable
from gpu_scheduler.store.postgres.connection import LEAST_VERSION, Address, Connection
from gpu_scheduler.store.sql_files import migrations
from gpu_scheduler.store.sqlite.files import Steps

LOCK = 0x74677075
"""`tgpu`: the advisory lock for changes of the form."""
_HAS_META = "SELECT to_regclass('public.meta') IS NOT NULL"
_HAS_TABLES = """
SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = 'public'
"""
_HAS_LEADERSHIP = "SELECT to_regclass('public.leadership') IS NOT NULL"
_LEADER = """
SELECT holder, extract(epoch FROM until - clock_timestamp())::float8 FROM leadership
WHERE holder <> '' AND until > clock_timestamp()
"""
_TYPES = """
SELECT table_name, column_name, data_type FROM information_schema.columns
WHERE table_schema = 'public'
"""

Types = dict[str, dict[str, str]]
"""The types of columns, by table and column."""


def steps() -> Steps:
    """The migrations of PostgreSQL."""
    return migrations("postgres")


def version_of(connection: Connection) -> int:
    """The form of the database; 0 if it is empty."""
    row = connection.execute(_HAS_META).fetchone()
    if row is None or not row[0]:
        return 0
    found = connection.execute("SELECT schema_version FROM meta").fetchone()
    return int(found[0]) if found else 0


def upgrade(connection: Connection, address: Address, todo: Steps | None = None) -> int:
    """Bring the database to the newest form; returns how many steps that took."""
    _check_server(connection, address)
    known = steps() if todo is None else todo
    if version_of(connection) == known[-1][0]:
        return 0
    taken = 0
    for version, script in known:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            found = version_of(connection)
            if found >= version:
                continue
            if version == known[0][0]:
                _check_empty(connection, address)
            _check_nobody_leads(connection, address, found, known[-1][0])
            connection.execute(script.encode(), prepare=False)
            connection.execute("UPDATE meta SET schema_version = %s", (version,))
            taken += 1
    check(connection, address, known)
    return taken


def check(connection: Connection, address: Address, known: Steps | None = None) -> None:
    """Refuse a database that is not of the newest form."""
    newest = (steps() if known is None else known)[-1][0]
    found = version_of(connection)
    if found > newest:
        raise StoreTooNew(
            f"the database {address} has form {found} and this program knows forms up to {newest}; "
            "install the newer gpu-scheduler again, or restore a backup of the older form"
        )
    if found == 0:
        _check_empty(connection, address)
        raise StoreUnavailable(
            f"the database {address} is empty: it has no tables yet. 'tgpu db upgrade' makes them, "
            "and so does the first start of a server"
        )
    if found < newest:
        raise StoreUnavailable(
            f"the database {address} has form {found} and this program needs {newest}; nothing was "
            "changed. 'tgpu db upgrade' brings it to that form, and so does a start of the server"
        )


def column_types(connection: Connection) -> Types:
    """The types of all columns."""
    types: Types = {}
    for table, column, kind in connection.execute(_TYPES):
        types.setdefault(table, {})[column] = kind
    return types


def _check_server(connection: Connection, address: Address) -> None:
    major = connection.info.server_version // 10_000
    if major < LEAST_VERSION:
        raise StoreUnavailable(
            f"the database {address} is PostgreSQL {major}; version {LEAST_VERSION} or newer is "
            "needed"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreUnavailable(
            f"the database {address} has encoding {encoding}; make it with "
            "'createdb -E UTF8 -T template0'"
        )


def _check_nobody_leads(connection: Connection, address: Address, found: int, newest: int) -> None:
    """Leave a database alone on which a server of an older form works."""
    row = connection.execute(_HAS_LEADERSHIP).fetchone()
    if row is None or not row[0]:
        return
    leader = connection.execute(_LEADER).fetchone()
    if leader is not None:
        raise StoreUnavailable(
            f"the database {address} has form {found}, this program needs {newest}, and server "
            f"'{leader[0]}' works with it as it is; nothing was changed. Stop all servers of the "
            f"older version first (one that was killed counts for {leader[1]:.0f} s more), then "
            "try again"
        )


def _check_empty(connection: Connection, address: Address) -> None:
    row = connection.execute(_HAS_TABLES).fetchone()
    if row is not None and row[0]:
        raise StoreDamaged(
            f"the database {address} has tables, but none of gpu-scheduler's; nothing was changed. "
            "Name an empty database in database.database"
        )
