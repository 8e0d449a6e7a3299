"""Which store the settings mean, opened: an SQLite file on this machine, or PostgreSQL.

PostgreSQL's driver is loaded only where PostgreSQL is used.
"""

from __future__ import annotations

from pathlib import Path

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import DatabaseSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import read_trusted
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.postgres.connection import Address
from gpu_scheduler.store.sqlite.store import SqliteStore

LARGEST_PASSWORD = 4096


def open_store(settings: Settings, paths: Paths) -> Store:
    """The store, of the newest form; it is made if it is not there."""
    if not settings.database.is_postgresql:
        return SqliteStore(sqlite_file(settings, paths))
    from gpu_scheduler.store.postgres.store import PostgresStore  # noqa: PLC0415

    return PostgresStore(postgres_address(settings.database))


def sqlite_file(settings: Settings, paths: Paths) -> Path:
    """The file that the settings name, by a URL or by a name in the state directory."""
    if not settings.database.url:
        return Path(paths.state) / settings.files.state_file
    return file_of_url(settings.database.url)


def file_of_url(url: str) -> Path:
    """The file that a URL names."""
    scheme, _, path = url.partition("://")
    if scheme != "sqlite" or not path.startswith("/"):
        raise InvalidRequest(
            f"the database begins with '{scheme[:20]}'; write sqlite:///path/of/the/file or "
            "postgresql://user@host:port/database"
        )
    # Some write an absolute path with one slash more.
    return Path("/" + path.lstrip("/"))


def postgres_address(settings: DatabaseSettings) -> Address:
    """Where PostgreSQL is: what the URL says, and what it leaves open as it is set."""
    given: dict[str, str | int] = {
        "host": settings.host,
        "port": settings.port,
        "user": settings.user,
        "password": settings.password or _password_in(settings.password_file),
        "dbname": settings.database,
        "sslmode": settings.sslmode,
        "sslrootcert": settings.sslrootcert,
        "sslcert": settings.sslcert,
        "sslkey": settings.sslkey,
    }
    if settings.url:
        from gpu_scheduler.store.postgres.connection import parameters_in  # noqa: PLC0415

        given |= parameters_in(settings.url)
    if "," in str(given.get("host", "")):
        given.setdefault("target_session_attrs", "read-write")
    return Address(
        parameters={name: value for name, value in given.items() if value != ""},
        pool_min=min(settings.pool_min, settings.pool_max),
        pool_max=settings.pool_max,
        connect_timeout_s=settings.connect_timeout_s,
        statement_timeout_s=settings.statement_timeout_s,
    )


def check_database(settings: DatabaseSettings) -> None:
    """Refuse settings that cannot be read, contradict each other, or name two databases."""
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


def _password_in(file: str) -> str:
    if not file:
        return ""
    raw = read_trusted(file, LARGEST_PASSWORD, secret=True)
    try:
        return raw.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidInput("is not UTF-8 text", file=file) from error
