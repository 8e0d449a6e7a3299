"""The database: open the one that the settings name; upgrade, check, back up and copy databases.

Settings or URLs come in. A database is an SQLite file or PostgreSQL; PostgreSQL's driver is loaded
only where PostgreSQL is used.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, StoreUnavailable, WrongState
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import POSTGRESQL_SCHEMES, DatabaseSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import directory_problem, read_trusted
from gpu_scheduler.store.copy import CopiedTable, Endpoint, copy, problems, sizes
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.postgres import DatabaseAddress
from gpu_scheduler.store.sealing import NO_CIPHER, Cipher, new_key
from gpu_scheduler.store.sql_queries import migrations
from gpu_scheduler.store.sqlite import copy as sqlite_copy
from gpu_scheduler.store.sqlite.database_file import sync
from gpu_scheduler.store.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from gpu_scheduler.store.postgres.store import PostgresStore

log = structlog.get_logger("database")
LARGEST_PASSWORD = 4096
Database = Path | DatabaseAddress
"""An SQLite file, or a PostgreSQL database."""


def open_store(settings: Settings, paths: Paths) -> Store:
    """Open the store; create it or upgrade its schema if needed."""
    if not settings.database.is_postgresql:
        file = sqlite_file(settings, paths)
        if problem := directory_problem(str(file)):
            raise StoreUnavailable(f"the database {file} cannot be used: {problem}")
        return open_sqlite(file, settings.database, paths)
    from gpu_scheduler.store.postgres.store import PostgresStore as Postgres  # noqa: PLC0415

    store = Postgres(postgres_address(settings.database))
    try:
        store.cipher = _postgres_cipher(settings.database, paths, store.sealed_key_ids())
    except BaseException:
        store.close()
        raise
    return store


def open_sqlite(file: Path, settings: DatabaseSettings, paths: Paths) -> SqliteStore:
    """Open an SQLite file and encrypt its secrets; the key is created if none is needed yet."""
    store = SqliteStore(file)
    try:
        store.use_cipher(_sqlite_cipher(settings, paths, store.sealed_key_ids()))
    except BaseException:
        store.close()
        raise
    return store


# The key that encrypts secrets

CREDENTIAL = "gpu-scheduler.key"
KEY_FILE = "secrets.key"
LARGEST_KEY_FILE = 65_536


def key_file_of(settings: DatabaseSettings, paths: Paths) -> str:
    """The file with the key; empty if PostgreSQL is used and no file is named."""
    if settings.key_file:
        return settings.key_file
    credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if credentials and Path(credentials, CREDENTIAL).exists():
        return str(Path(credentials, CREDENTIAL))
    return "" if settings.is_postgresql else f"{paths.state}/{KEY_FILE}"


def read_keys(file: str) -> list[str]:
    """The keys in a file, the newest first."""
    keys = read_trusted(file, LARGEST_KEY_FILE, secret=True).decode("ascii", "replace").split()
    if not keys:
        raise InvalidInput("is empty; it must hold the key of the database", file=file)
    try:
        Cipher(keys)
    except InvalidRequest as error:
        raise InvalidInput(str(error), file=file) from None
    return keys


def write_keys(file: str, keys: list[str]) -> None:
    """Write a key file of mode 600; it is complete or unchanged."""
    fresh = Path(f"{file}.new")
    try:
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write("\n".join([*keys, ""]))
            stream.flush()
            os.fsync(descriptor)
        fresh.replace(file)
        sync(Path(file).parent)
    except OSError as error:
        raise StoreUnavailable(
            f"the key file {file} cannot be written: {error.strerror}; check its folder, or name "
            "another file (database.key_file)"
        ) from error


def rotate_key(settings: Settings, paths: Paths) -> tuple[str, int]:
    """Encrypt all secrets with a new key; returns the key file and the number of changed rows.

    No server may run: it would not know the new key. The file has both keys until all is encrypted.
    """
    file = key_file_of(settings.database, paths)
    if not file:
        raise InvalidRequest("no key file is named; set database.key_file on every server first")
    keys = read_keys(file) if Path(file).exists() else []
    fresh = new_key()
    cipher = Cipher([fresh, *keys])
    if settings.database.is_postgresql:
        from gpu_scheduler.store.postgres.store import PostgresStore as Postgres  # noqa: PLC0415

        with closing(Postgres(postgres_address(settings.database))) as store:
            _check_no_leader(store)
            _check_keys(cipher, store.sealed_key_ids(), file)
            write_keys(file, [fresh, *keys])
            changed = store.reseal(cipher)
    else:
        with closing(SqliteStore(sqlite_file(settings, paths))) as own:
            _check_keys(cipher, own.sealed_key_ids(), file)
            write_keys(file, [fresh, *keys])
            changed = own.use_cipher(cipher)
    write_keys(file, [fresh])
    return file, changed


def _check_no_leader(store: PostgresStore) -> None:
    from gpu_scheduler.server.ha.postgres_lease import NAME, SQL  # noqa: PLC0415

    row = store.use(lambda connection: connection.execute(SQL["read_lease"], (NAME,)).fetchone())
    if row is not None and row[1] and row[4] > 0:
        raise WrongState(
            f"server '{row[1]}' uses the database; stop all servers, rotate the key, copy the key "
            "file to all of them, and start them again"
        )


def _sqlite_cipher(settings: DatabaseSettings, paths: Paths, used: set[str]) -> Cipher:
    file = key_file_of(settings, paths)
    if not Path(file).exists():
        if used:
            raise _missing_key(file, used)
        write_keys(file, [new_key()])
    cipher = Cipher(read_keys(file))
    _check_keys(cipher, used, file)
    return cipher


def _postgres_cipher(settings: DatabaseSettings, paths: Paths, used: set[str]) -> Cipher:
    file = key_file_of(settings, paths)
    own = f"{paths.state}/{KEY_FILE}"
    if not file and used and Path(own).exists():
        file = own  # the database was copied from SQLite
    if not file:
        if used:
            raise _missing_key(f"{own} (database.key_file is not set)", used)
        log.warning("secrets in the database are not encrypted; set database.key_file")
        return NO_CIPHER
    cipher = Cipher(read_keys(file))
    _check_keys(cipher, used, file)
    return cipher


def _check_keys(cipher: Cipher, used: set[str], file: str) -> None:
    missing = used - cipher.key_ids
    if missing:
        raise StoreUnavailable(
            f"secrets in the database are encrypted with key {', '.join(sorted(missing))}, which "
            f"is not in {file}; restore the key file that belongs to this database"
        )


def _missing_key(file: str, used: set[str]) -> StoreUnavailable:
    return StoreUnavailable(
        f"the key file {file} is missing, and secrets in the database are encrypted with key "
        f"{', '.join(sorted(used))}; restore that file"
    )


def last_event_time(store: Store) -> int:
    """The newest time in the store; the clock must not go back behind it."""
    events = store.events(max(0, store.last_event() - 1))
    return events[-1][1].at_ms if events else 0


def sqlite_file(settings: Settings, paths: Paths) -> Path:
    """The file that the settings name by URL, or by name in the state directory."""
    if not settings.database.url:
        return Path(paths.state) / settings.files.state_file
    return file_of_url(settings.database.url)


def file_of_url(url: str) -> Path:
    """The file that a URL names."""
    scheme, _, path = url.partition("://")
    if scheme != "sqlite" or not path.startswith("/"):
        raise InvalidRequest(
            f"the database URL begins with '{scheme[:20]}'; write sqlite:///path/of/the/file or "
            "postgresql://user@host:port/database"
        )
    # An absolute path may have one more slash.
    return Path("/" + path.lstrip("/"))


def postgres_address(settings: DatabaseSettings) -> DatabaseAddress:
    """Connection parameters of PostgreSQL; the URL takes precedence over single settings."""
    parameters: dict[str, str | int] = {
        "host": settings.host,
        "port": settings.port,
        "user": settings.user,
        "password": settings.password or _read_password(settings.password_file),
        "dbname": settings.database,
        "sslmode": settings.sslmode,
        "sslrootcert": settings.sslrootcert,
        "sslcert": settings.sslcert,
        "sslkey": settings.sslkey,
    }
    if settings.url:
        from gpu_scheduler.store.postgres.connection import parse_url  # noqa: PLC0415

        parameters |= parse_url(settings.url)
    if "," in str(parameters.get("host", "")):
        parameters.setdefault("target_session_attrs", "read-write")
    return DatabaseAddress(
        parameters={name: value for name, value in parameters.items() if value != ""},
        pool_min=min(settings.pool_min, settings.pool_max),
        pool_max=settings.pool_max,
        connect_timeout_s=settings.connect_timeout_s,
        statement_timeout_s=settings.statement_timeout_s,
    )


def check_database(settings: DatabaseSettings) -> None:
    """Reject settings that are unreadable, contradict each other, or name two databases."""
    settings.check()
    named = ""
    if settings.is_postgresql:
        named = str(postgres_address(settings).parameters.get("host", ""))
    elif settings.url:
        named = f"file {file_of_url(settings.url)}"
    if named and settings.host and named != settings.host:
        raise InvalidRequest(
            f"database.url names '{named}' and database.host is '{settings.host}'; leave out one "
            "of them"
        )


def _read_password(file: str) -> str:
    if not file:
        return ""
    raw = read_trusted(file, LARGEST_PASSWORD, secret=True)
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidInput("is not UTF-8 text", file=file) from error


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check: facts, rows by table, and problems."""

    place: str
    form: int
    facts: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def database_of(settings: Settings, paths: Paths, url: str = "") -> Database:
    """The database of a URL; without one, the database of the settings."""
    if url.startswith(POSTGRESQL_SCHEMES):
        return postgres_address(replace(settings.database, url=url))
    if url:
        return file_of_url(url)
    if settings.database.is_postgresql:
        return postgres_address(settings.database)
    return sqlite_file(settings, paths)


def upgrade(database: Database) -> int:
    """Upgrade to the newest schema version and return it; an empty database is created."""
    if isinstance(database, Path):
        SqliteStore(database).close()
        return migrations()[-1][0]
    from gpu_scheduler.store.postgres.store import upgrade as upgrade_postgres  # noqa: PLC0415

    upgrade_postgres(database)
    return migrations("postgres")[-1][0]


def check(database: Database) -> Checked:
    """Check consistency without changing anything; needs the newest schema version."""
    with _open_for_reading(database) as endpoint:
        form = int(endpoint.query("SELECT schema_version FROM meta")[0][0])
        facts = _facts(database, endpoint)
        return Checked(endpoint.name, form, facts, sizes(endpoint), tuple(problems(endpoint)))


def back_up(database: Database, target: Path) -> None:
    """Write a snapshot into a new SQLite file, also while a server runs.

    An SQLite file is copied as it is; PostgreSQL must have the newest schema version.
    """
    if isinstance(database, Path):
        sqlite_copy.back_up(database, target)
        return
    with sqlite_copy.new_file(target) as partial:
        partial.unlink()
        with _open_for_reading(database) as source, sqlite_copy.open_target(partial) as copied:
            copy(source, copied)
        sqlite_copy.finish_backup(partial)


def copy_between(source: Database, target: Database) -> list[CopiedTable]:
    """Copy a database into an empty one, and compare both row by row."""
    if source == target:
        raise InvalidRequest(f"source and target are both {source}; name two databases")
    with _open_for_reading(source) as ours, _open_for_writing(target) as theirs:
        return copy(ours, theirs)


def _facts(database: Database, endpoint: Endpoint) -> dict[str, str]:
    if isinstance(database, Path):
        return {"sqlite": str(endpoint.query("PRAGMA integrity_check")[0][0])}
    names = ("server_version", "fsync", "full_page_writes", "synchronous_commit")
    facts = {name: str(endpoint.query(f"SHOW {name}")[0][0]) for name in names}
    encrypted = endpoint.query("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    facts["encrypted"] = str(encrypted[0][1]) if encrypted and encrypted[0][0] else "no"
    return facts


def _open_for_reading(database: Database) -> AbstractContextManager[Endpoint]:
    """Open a database of the newest schema version read-only."""
    if isinstance(database, Path):
        if not database.exists():
            raise StoreUnavailable(f"the file {database} does not exist; name the database to read")
        return sqlite_copy.open_source(database)
    from gpu_scheduler.store.postgres.copy import open_source  # noqa: PLC0415

    return open_source(database)


def _open_for_writing(database: Database) -> AbstractContextManager[Endpoint]:
    if isinstance(database, Path):
        return sqlite_copy.open_target(database)
    from gpu_scheduler.store.postgres.copy import open_target  # noqa: PLC0415

    return open_target(database)
