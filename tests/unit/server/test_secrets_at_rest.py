"""Secrets are encrypted in the database, in its log and in backups, with a key outside of it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_scheduler.cli.main import main
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, StoreDamaged, StoreUnavailable
from gpu_scheduler.model.identity import Authority
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.service import Service
from gpu_scheduler.server.storage import back_up, open_store, read_keys, rotate_key
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import DatabaseSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import EnvironmentRow, JobRow, LaunchRow, NewJobs, Write
from gpu_scheduler.store.sealing import Cipher, new_key
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_job
from tests.postgres import address_of, shared_server

SECRET = "hunter2-very-secret"
VARIABLES = (("API_KEY", SECRET), ("EMPTY", ""), ("ODD", "ä\n\x01"))
LAUNCH = Launch(argv=("train",), environment=VARIABLES, captured="env-1", sweep="s")


def secret_rows() -> list[Write]:
    service = Service(
        id="service-1", number=1, name="llm", tenant="t", user="ann", job=a_job(), launch=LAUNCH
    )
    job = a_job(number=2, id="job-2", command=("train",))
    return [
        EnvironmentRow("env-1", VARIABLES),
        JobRow(job=a_job(number=1, id="job-1"), state=JobState.PENDING),
        LaunchRow("job-1", replace(LAUNCH, argv=("other",))),
        NewJobs(at_ms=1, jobs=(job,), expected_ms=(0,), launch=LAUNCH),
        service,
        Authority(certificate="C", key=SECRET, created_ms=1),
    ]


def check_rows(store: Store) -> None:
    assert store.environment("env-1") == dict(VARIABLES)
    found = store.launches(["job-1", "job-2"])
    assert found["job-1"] == replace(LAUNCH, argv=("other",))
    assert found["job-2"] == LAUNCH == store.launch("job-2")
    assert [service.launch for service in store.services()] == [LAUNCH]
    (authority,) = store.identities()
    assert isinstance(authority, Authority)
    assert authority.key == SECRET


def files_with_secret(directory: Path) -> list[str]:
    return [
        file.name
        for file in directory.rglob("*")
        if file.is_file() and SECRET.encode() in file.read_bytes()
    ]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(str(tmp_path), str(tmp_path))


SQLITE = load(environ={}).settings


def test_sqlite_holds_no_plain_secret(tmp_path: Path, paths: Paths) -> None:
    with closing(open_store(SQLITE, paths)) as store:
        store.commit(secret_rows())
        check_rows(store)
        assert files_with_secret(tmp_path) == []
    key = tmp_path / "secrets.key"
    assert f"{key.stat().st_mode & 0o777:o}" == "600"
    with closing(open_store(SQLITE, paths)) as store:
        check_rows(store)
    back_up(tmp_path / "scheduler.db", tmp_path / "backup.db")
    assert files_with_secret(tmp_path) == []


def test_old_sqlite_file_is_encrypted_in_place(tmp_path: Path, paths: Paths) -> None:
    with closing(SqliteStore(tmp_path / "scheduler.db")) as store:
        store.commit(secret_rows())
    assert files_with_secret(tmp_path) == ["scheduler.db"]
    with closing(open_store(SQLITE, paths)) as opened:
        check_rows(opened)
        assert files_with_secret(tmp_path) == []


def test_equal_launches_are_stored_once(paths: Paths) -> None:
    with closing(open_store(SQLITE, paths)) as store:
        for number in range(1, 6):
            job = a_job(number=number, id=f"job-{number}", command=("train",))
            store.commit([NewJobs(at_ms=1, jobs=(job,), expected_ms=(0,), launch=LAUNCH)])
        assert isinstance(store, SqliteStore)
        assert store._row("SELECT count(*) FROM launches") == (1,)


def test_missing_key_is_reported_and_not_replaced(tmp_path: Path, paths: Paths) -> None:
    with closing(open_store(SQLITE, paths)) as store:
        store.commit(secret_rows())
    key = tmp_path / "secrets.key"
    kept = key.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match=r"key file .*secrets\.key is missing.*restore"):
        open_store(SQLITE, paths)
    assert not key.exists()
    kept.rename(key)
    with closing(open_store(SQLITE, paths)) as store:
        check_rows(store)


def test_wrong_key_is_reported(tmp_path: Path, paths: Paths) -> None:
    with closing(open_store(SQLITE, paths)) as store:
        store.commit(secret_rows())
    key = tmp_path / "secrets.key"
    key.write_text(new_key(), encoding="ascii")
    with pytest.raises(StoreUnavailable, match=r"encrypted with key .* not in .*secrets\.key"):
        open_store(SQLITE, paths)


@pytest.mark.parametrize(
    "text", ["", "short", "ä" * 90, "A" * 84], ids=["empty", "short", "letters", "few bytes"]
)
def test_malformed_key_is_reported(tmp_path: Path, paths: Paths, text: str) -> None:
    key = tmp_path / "secrets.key"
    key.write_text(text, encoding="utf-8")
    key.chmod(0o600)
    with pytest.raises(InvalidInput, match=r"secrets\.key: "):
        open_store(SQLITE, paths)


def test_readable_key_is_rejected(tmp_path: Path, paths: Paths) -> None:
    key = tmp_path / "secrets.key"
    key.write_text(new_key(), encoding="ascii")
    key.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        open_store(SQLITE, paths)


def test_key_is_found_in_setting_and_credential(
    tmp_path: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = tmp_path / "credentials" / "gpu-scheduler.key"
    credential.parent.mkdir()
    credential.write_text(new_key(), encoding="ascii")
    credential.chmod(0o400)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credential.parent))
    open_store(SQLITE, paths).close()
    named = tmp_path / "named.key"
    settings = load(environ={"GPU_SCHEDULER_DATABASE_KEY_FILE": str(named)}).settings
    open_store(settings, paths).close()
    assert named.exists()
    assert not (tmp_path / "secrets.key").exists()


def test_key_of_a_missing_database_is_not_rotated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "nothing"
    assert main(["db", "rotate-key", "--state-dir", str(missing)]) != 0
    assert "scheduler.db does not exist yet; start the server once" in capsys.readouterr().err
    assert not missing.exists()


def test_key_of_sqlite_is_rotated(tmp_path: Path, paths: Paths) -> None:
    with closing(open_store(SQLITE, paths)) as store:
        store.commit(secret_rows())
    key = tmp_path / "secrets.key"
    (before,) = read_keys(str(key))
    file, rows = rotate_key(SQLITE, paths)
    assert (file, rows) == (str(key), 5)
    (after,) = read_keys(str(key))
    assert before != after
    with closing(open_store(SQLITE, paths)) as store:
        check_rows(store)
        assert isinstance(store, SqliteStore)
        assert store.sealed_key_ids() == {Cipher([after]).key_id}


def test_interrupted_rotation_loses_nothing(tmp_path: Path, paths: Paths) -> None:
    """The key file has both keys until every row has the new one."""
    with closing(open_store(SQLITE, paths)) as store:
        store.commit(secret_rows())
    key = tmp_path / "secrets.key"
    key.write_text(f"{new_key()}\n{key.read_text(encoding='ascii')}", encoding="ascii")
    with closing(open_store(SQLITE, paths)) as store:
        check_rows(store)


def test_changed_secret_is_detected() -> None:
    cipher = Cipher([new_key()])
    sealed = cipher.seal(SECRET)
    assert SECRET not in sealed
    assert cipher.seal(sealed) == sealed
    at = len(sealed) - 10
    forged = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
    with pytest.raises(StoreDamaged, match="cannot be decrypted"):
        cipher.open(forged)


# --- PostgreSQL


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Settings]:
    server = shared_server()
    url = server.make_database()
    key = tmp_path / "shared.key"
    key.write_text(new_key(), encoding="ascii")
    key.chmod(0o600)
    yield replace(SQLITE, database=DatabaseSettings(url=url, key_file=str(key)))
    server.drop_database(url)


def plain_rows(url: str) -> str:
    tables = ("environments", "launches", "services", "identities")
    return "".join(str(shared_server().execute(f"SELECT * FROM {table}", url)) for table in tables)


def test_postgres_holds_no_plain_secret(postgres: Settings, paths: Paths, tmp_path: Path) -> None:
    url = postgres.database.url
    with closing(open_store(postgres, paths)) as store:
        store.commit(secret_rows())
        check_rows(store)
        assert isinstance(store, PostgresStore)
        store.read_snapshot(check_rows)  # type: ignore[arg-type]
    assert SECRET not in plain_rows(url)
    back_up(address_of(url), tmp_path / "backup.db")
    assert files_with_secret(tmp_path) == []


def test_key_of_postgres_is_rotated_and_old_rows_are_encrypted(
    postgres: Settings, paths: Paths
) -> None:
    url = postgres.database.url
    with closing(PostgresStore(address_of(url))) as store:
        store.commit(secret_rows())
    assert SECRET in plain_rows(url)
    assert rotate_key(postgres, paths)[1] == 5
    assert SECRET not in plain_rows(url)
    assert rotate_key(postgres, paths)[1] == 5
    with closing(open_store(postgres, paths)) as opened:
        check_rows(opened)


def test_postgres_with_other_or_no_key_is_not_opened(postgres: Settings, paths: Paths) -> None:
    with closing(open_store(postgres, paths)) as store:
        store.commit(secret_rows())
    other = replace(postgres, database=replace(postgres.database, key_file=""))
    with pytest.raises(StoreUnavailable, match=r"database\.key_file is not set"):
        open_store(other, paths)
    with pytest.raises(InvalidRequest, match=r"set database\.key_file"):
        rotate_key(other, paths)
    Path(postgres.database.key_file).write_text(new_key(), encoding="ascii")
    with pytest.raises(StoreUnavailable, match="restore the key file"):
        open_store(postgres, paths)
