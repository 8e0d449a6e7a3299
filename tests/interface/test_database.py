"""Tables, views, columns, indexes and constraints of the database that users may read."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg

from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.interface.stored import check_snapshot
from tests.postgres import address_of

POSTGRES = {
    "column": """
        SELECT table_name || '.' || column_name, data_type
            || CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END
            || coalesce(' default ' || column_default, '')
            || CASE is_identity WHEN 'YES' THEN ' identity ' || identity_generation ELSE '' END
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "relation": """
        SELECT table_name, table_type FROM information_schema.tables
        WHERE table_schema = 'public'""",
    "index": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "constraint": """
        SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'""",
    "sequence": """
        SELECT sequencename, data_type::text FROM pg_sequences WHERE schemaname = 'public'""",
    "type": """
        SELECT typname, typtype::text FROM pg_type
        WHERE typnamespace = 'public'::regnamespace AND typtype IN ('e', 'd')""",
    "function": """
        SELECT proname, pg_get_function_identity_arguments(oid) || ' -> '
            || pg_get_function_result(oid)
        FROM pg_proc WHERE pronamespace = 'public'::regnamespace""",
    "trigger": """
        SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal""",
}


def test_sqlite_database(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    try:
        check_snapshot("database_sqlite.txt", list(sqlite_lines(connection)))
    finally:
        connection.close()


def test_postgres_database(database_url: str) -> None:
    PostgresStore(address_of(database_url)).close()
    lines: list[str] = []
    with psycopg.connect(database_url) as connection:
        for kind, query in sorted(POSTGRES.items()):
            rows = connection.execute(query.encode()).fetchall()
            lines += sorted(f"{kind} {name}: {about}" for name, about in rows)
        version = connection.execute("SELECT schema_version FROM meta").fetchone()
    assert version is not None
    check_snapshot("database_postgres.txt", [*lines, f"schema version: {version[0]}"])


def sqlite_lines(connection: sqlite3.Connection) -> Iterator[str]:
    """Tables and views with their columns, then indexes and constraints."""
    objects = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    ).fetchall()
    for kind, name, table, sql in objects:
        if kind in ("table", "view"):
            options = sql.rpartition(")")[2].strip() if kind == "table" else ""
            yield f"{kind} {name} {options}".strip()
            for _, column, about, not_null, default, key in connection.execute(
                f"PRAGMA table_info('{name}')"
            ):
                words = [f"    {column}", about, "not null" * not_null]
                words += [f"default {default}"] if default is not None else []
                yield " ".join(word for word in (*words, f"key {key}" * bool(key)) if word)
            for row in connection.execute(f"PRAGMA foreign_key_list('{name}')"):
                yield f"    {row[3]} refers to {row[2]}.{row[4]}"
        else:
            yield f"{kind} {name} on {table}: {' '.join((sql or 'automatic').split())}"
    yield f"schema version: {connection.execute('PRAGMA user_version').fetchone()[0]}"
