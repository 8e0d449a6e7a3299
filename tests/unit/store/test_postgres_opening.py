"""Opening a PostgreSQL database: schema, encryption, errors."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidInput, StoreDamaged, StoreTooNew, StoreUnavailable
from gpu_scheduler.server.storage import open_store, postgres_address
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import DatabaseSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.postgres.connection import Connection, connect
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.sql_queries import migrations
from tests.certificates import make_certificate
from tests.postgres import OwnPostgres, a_server, address_of, shared_server

STEP = (9_999, "CREATE TABLE extra (id bigint)")


def test_database_is_created_once_by_concurrent_servers(database_url: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        stores = list(pool.map(PostgresStore, [address_of(database_url)] * 3))
    assert [store.next_number() for store in stores] == [1, 1, 1]
    for store in stores:
        store.close()
    again = PostgresStore(address_of(database_url))
    assert again.jobs() == []
    again.close()


def test_older_schema_is_migrated_and_newer_one_rejected(
    database_url: str,
) -> None:
    address = address_of(database_url)
    PostgresStore(address, steps=migrations("postgres")[:1]).close()
    PostgresStore(address).close()
    PostgresStore(address, steps=[*migrations("postgres"), STEP]).close()
    with pytest.raises(StoreTooNew, match="has schema version 9999"):
        PostgresStore(address)


def test_database_is_not_migrated_while_older_server_leads(
    database_url: str,
) -> None:
    address = address_of(database_url)
    newer = [*migrations("postgres"), STEP]
    PostgresStore(address).close()
    with connect(address, "test") as server:
        server.execute(
            "UPDATE leadership SET holder = 'a', until = clock_timestamp() + interval '1 hour'"
        )
        with pytest.raises(StoreUnavailable, match="server 'a' still uses the older version"):
            PostgresStore(address, steps=newer)
        PostgresStore(address).close()
        server.execute("UPDATE leadership SET until = clock_timestamp()")
    PostgresStore(address, steps=newer).close()


def test_failed_migration_changes_nothing(database_url: str) -> None:
    address = address_of(database_url)
    PostgresStore(address).close()
    broken = (10_000, "CREATE TABLE half (id bigint); SELECT nonsense")
    with pytest.raises(Exception, match="nonsense"):
        PostgresStore(address, steps=[*migrations("postgres"), broken])
    tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'half'"
    assert shared_server().execute(tables, database_url) == [(0,)]
    PostgresStore(address).close()


def test_database_of_another_program_is_left_alone(database_url: str) -> None:
    shared_server().execute("CREATE TABLE customers (id bigint)", database_url)
    with pytest.raises(StoreDamaged, match="none of gpu-scheduler's"):
        PostgresStore(address_of(database_url))


def test_commits_are_durable_whatever_database_is_set_to(database_url: str) -> None:
    name = database_url.rpartition("/")[2]
    shared_server().execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    store = PostgresStore(address_of(database_url))
    found: list[str] = []

    def look(connection: Connection) -> None:
        row = connection.execute("SHOW synchronous_commit").fetchone()
        assert row is not None
        found.append(row[0])

    store.fence = look
    store.commit([])
    store.close()
    assert found == ["on"]


def test_readers_cannot_write(database_url: str) -> None:
    store = PostgresStore(address_of(database_url))
    with pytest.raises(StoreUnavailable, match="read-only transaction"):
        store.use(lambda connection: connection.execute("DELETE FROM jobs"))
    store.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dbname": "nowhere"}, "does not exist"),
        ({"password": "wrong"}, "rejected the password|authentication failed"),
        ({"port": "1"}, "is not available"),
    ],
)
def test_invalid_database_url_is_explained(
    database_url: str, changes: dict[str, str], said: str
) -> None:
    address = address_of(database_url)
    wrong = replace(address, parameters=dict(address.parameters) | changes)
    with pytest.raises(StoreUnavailable, match=said) as caught:
        PostgresStore(wrong)
    assert str(address.parameters["password"]) not in str(caught.value)


# --- by the settings


def settings_of(url: str, **changes: str) -> DatabaseSettings:
    given = address_of(url).parameters
    settings = DatabaseSettings(
        host=str(given["host"]),
        port=int(given["port"]),
        user=str(given["user"]),
        password=str(given["password"]),
        database=str(given["dbname"]),
        sslmode="disable",
    )
    return replace(settings, **changes)


def test_settings_open_database(database_url: str, tmp_path: Path) -> None:
    where = Paths(str(tmp_path), str(tmp_path))
    secret = tmp_path / "password"
    given = settings_of(database_url)
    secret.write_text(given.password + "\n")
    secret.chmod(0o600)
    for database in (
        given,
        replace(given, password="", password_file=str(secret)),
        DatabaseSettings(url=database_url),
        replace(given, url=database_url, host="nowhere.invalid"),
    ):
        store = open_store(Settings(database=database), where)
        assert isinstance(store, PostgresStore)
        assert store.jobs() == []
        store.close()


def test_password_readable_by_others_is_rejected(database_url: str, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("x")
    secret.chmod(0o644)
    with pytest.raises(InvalidInput, match="all users may read"):
        postgres_address(settings_of(database_url, password="", password_file=str(secret)))


def test_several_hosts_are_tried_until_one_is_writable(database_url: str) -> None:
    given = settings_of(database_url)
    address = postgres_address(replace(given, host=f"127.0.0.1,{given.host}"))
    assert address.parameters["target_session_attrs"] == "read-write"


# --- encryption


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnPostgres, Path]]:
    """A server with a certificate of localhost that requires encryption."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(folder)
    with a_server() as server:
        server.install("server.pem", certificate.read_bytes())
        server.install("server.key", key.read_bytes())
        server.install("pg_hba.conf", b"hostssl all all all md5\n")
        server.stop()
        server.start(
            ssl="on",
            ssl_cert_file="server.pem",
            ssl_key_file="server.key",
            listen_addresses="127.0.0.1,127.0.0.2",
        )
        yield server, certificate


def tls_version(settings: DatabaseSettings) -> str:
    store = PostgresStore(postgres_address(settings))
    version: str = store.use(
        lambda connection: connection.execute(
            "SELECT version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        ).fetchall()[0][0]
    )
    store.commit([])
    store.close()
    return version


def test_connection_is_encrypted_and_certificate_is_verified(
    encrypted: tuple[OwnPostgres, Path], tmp_path: Path
) -> None:
    server, certificate = encrypted
    url = server.make_database()
    checked = settings_of(url, sslmode="verify-full", sslrootcert=str(certificate))
    assert tls_version(checked) == "TLSv1.3"
    assert tls_version(replace(checked, host="localhost")) == "TLSv1.3"
    assert tls_version(settings_of(url, sslmode="require")) == "TLSv1.3"
    assert tls_version(DatabaseSettings(url=f"{url}?sslmode=require")) == "TLSv1.3"
    with pytest.raises(StoreUnavailable, match="no encryption"):
        PostgresStore(postgres_address(settings_of(url)))
    stranger, _ = make_certificate(tmp_path, "stranger")
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        PostgresStore(postgres_address(replace(checked, sslrootcert=str(stranger))))


def test_certificate_of_another_host_is_rejected(
    encrypted: tuple[OwnPostgres, Path],
) -> None:
    server, certificate = encrypted
    url = server.make_database()
    checked = settings_of(url, sslmode="verify-full", sslrootcert=str(certificate))
    with pytest.raises(StoreUnavailable, match="does not match host name"):
        PostgresStore(postgres_address(replace(checked, host="127.0.0.2")))
