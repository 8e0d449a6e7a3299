"""Who may read and write the SQLite file."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.sqlite.store import SqliteStore

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "scheduler.db"
    SqliteStore(made).close()
    return made


def mode_of(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o700])
def test_readable_database_becomes_private(file: Path, mode: int) -> None:
    file.chmod(mode)
    log = file.with_name(f"{file.name}-wal")
    log.touch()
    log.chmod(0o644)
    store = SqliteStore(file)
    assert (mode_of(file), mode_of(log)) == ("600", "600")
    store.close()


@pytest.mark.parametrize(
    ("mode", "who"), [(0o666, "all users"), (0o602, "all users"), (0o620, "group")]
)
@pytest.mark.parametrize("end", ["", "-wal", "-shm"])
def test_database_that_others_can_write_is_rejected(
    file: Path, mode: int, who: str, end: str
) -> None:
    part = file.with_name(f"{file.name}{end}")
    part.touch()
    if os.geteuid() == 0:
        os.chown(part, 0, NOBODY)
    part.chmod(mode)
    with pytest.raises(StoreUnavailable, match=rf"{who}.* write {part}.*chmod 600 {part}"):
        SqliteStore(file)
    assert mode_of(part) == f"{mode:o}"


@needs_root
@pytest.mark.parametrize("end", ["", "-wal"])
def test_database_of_another_user_is_rejected(file: Path, end: str) -> None:
    part = file.with_name(f"{file.name}{end}")
    part.touch()
    os.chown(part, NOBODY, NOBODY)
    with pytest.raises(StoreUnavailable, match=rf"belongs to uid {NOBODY}.*chown 0 {part}"):
        SqliteStore(file)


def test_pipe_instead_of_database_is_rejected(tmp_path: Path) -> None:
    pipe = tmp_path / "scheduler.db"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(StoreUnavailable, match="is not a file"):
        SqliteStore(pipe)
