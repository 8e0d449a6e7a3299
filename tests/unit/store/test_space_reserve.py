"""A reserve behind the log of SQLite lets small commits succeed on a full disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.store.rows import EventRow
from gpu_scheduler.store.sqlite import space_reserve
from gpu_scheduler.store.sqlite.store import SqliteStore

SIZE_MB = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted by root")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=700", "tgpu", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(directory: Path) -> Path:
    filler = directory / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return filler


def an_event(number: int) -> EventRow:
    return EventRow(at_ms=number, kind="note", data=(("number", number),))


def test_commits_use_the_reserve_on_a_full_disk(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "scheduler.db")
    assert store.full_reason() == ""
    filler = fill(small_disk)
    assert os.statvfs(small_disk).f_bfree == 0
    assert "the disk is full" in store.full_reason()
    for number in range(50):
        store.commit([an_event(number)])
    filler.unlink()
    assert store.full_reason() == ""
    assert [event.at_ms for _, event in store.events(0, 100)] == list(range(50))
    store.close()


def test_reserve_is_made_again_when_space_is_back(small_disk: Path) -> None:
    store = SqliteStore(small_disk / "scheduler.db")
    for round_number in range(2):
        filler = fill(small_disk)
        committed = 0
        with suppress(StoreUnavailable):
            while committed < 2_000:
                store.commit([an_event(committed)])
                committed += 1
        assert committed >= 50, f"round {round_number}"
        filler.unlink()
        store.commit([an_event(0)])
    store.close()


def test_store_works_where_nothing_can_be_preallocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(space_reserve, "_preallocate", unsupported)
    store = SqliteStore(tmp_path / "scheduler.db")
    assert store.commit([an_event(1)]) == 1
    store.close()


def test_reserve_does_not_change_the_size_of_the_log(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "scheduler.db")
    store.commit([an_event(1)])
    log = (tmp_path / "scheduler.db-wal").stat()
    assert log.st_size < space_reserve.RESERVE_BYTES
    store.close()
