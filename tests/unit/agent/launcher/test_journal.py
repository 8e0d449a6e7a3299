"""Committed records are readable, whatever happened to the file."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.agent.launcher import journal as journal_module
from gpu_scheduler.agent.launcher.journal import Journal, back_up, read


def a_journal(directory: Path) -> Journal:
    journal = Journal(str(directory))
    journal.open()
    return journal


def a_record(number: int) -> dict[str, object]:
    return {"kind": "began", "allocation_id": f"job-{number}.1", "member": number}


def keep(journal: Journal, *numbers: int) -> None:
    """Records that are on the disk."""
    for number in numbers:
        journal.append(a_record(number), lambda _: None)
    journal.commit()


def failing(number: int) -> Callable[..., None]:
    """A system call that fails."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_callbacks_run_after_write_in_order(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    events: list[tuple[int, str, int]] = []
    for number in range(3):
        journal.append(
            a_record(number),
            lambda bad, number=number: events.append(
                (number, bad, len(read(journal.path).records))
            ),
        )
    assert events == []
    assert journal.commit()
    assert events == [(0, "", 3), (1, "", 3), (2, "", 3)]
    assert not journal.commit()


def test_lazy_records_are_written_with_next_commit(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    journal.append_lazily(a_record(1))
    assert not journal.commit()
    keep(journal, 2)
    assert read(journal.path).records == [a_record(1), a_record(2)]


def test_failed_write_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = a_journal(tmp_path)
    keep(journal, 1)
    events: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.ENOSPC))
        journal.append(a_record(2), events.append)
        journal.commit()
    journal.append(a_record(3), events.append)
    journal.commit()
    assert events == [f"cannot write {journal.path}: No space left on device", ""]
    assert read(journal.path).records == [a_record(1), a_record(3)]


def test_rewrite_keeps_only_given_records(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    keep(journal, *range(5))
    journal.rewrite([a_record(4)])
    keep(journal, 5)
    assert read(journal.path).records == [a_record(4), a_record(5)]
    assert journal.size == len(Path(journal.path).read_bytes().rstrip(b"\0"))


def test_damaged_line_loses_only_its_record_and_its_key_is_found(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    keep(journal, *range(3))
    path = Path(journal.path)
    path.write_bytes(
        path.read_bytes().replace(
            b'"began","allocation_id":"job-1', b'"BEGAN","allocation_id":"job-1'
        )
    )
    found = read(journal.path)
    assert found.records == [a_record(0), a_record(2)]
    assert (found.damaged, found.torn, found.unreadable) == ([("job-1.1", 1)], [], 1)
    assert Path(back_up(journal.path)).read_bytes() == path.read_bytes()
    assert back_up(journal.path).endswith(".bad-2")


def test_torn_end_was_never_committed(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    keep(journal, *range(2))
    path = Path(journal.path)
    path.write_bytes(path.read_bytes().rstrip(b"\0")[:-2])
    found = read(journal.path)
    assert (found.records, found.torn, found.unreadable) == ([a_record(0)], [("job-1.1", 1)], 0)


def test_records_overwrite_preallocated_zeros(tmp_path: Path) -> None:
    journal = a_journal(tmp_path)
    path = Path(journal.path)
    sizes = set()
    for number in range(100):
        keep(journal, number)
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1
    again = a_journal(tmp_path)
    keep(again, 100)
    assert read(journal.path).records == [a_record(number) for number in range(101)]


def test_disk_without_room_for_preallocation_still_takes_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path)
    whole = os.pwrite

    def small(descriptor: int, data: memoryview, offset: int) -> int:
        if offset + len(data) > 4096:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", small)
    events: list[str] = []
    for number in range(3):
        journal.append(a_record(number), events.append)
        journal.commit()
    assert (events, Path(journal.path).stat().st_size) == (["", "", ""], journal.size)
    assert len(read(journal.path).records) == 3


def test_missing_file_is_empty_journal(tmp_path: Path) -> None:
    assert read(str(tmp_path / "none")).records == []


@given(st.binary(max_size=400))
def test_file_with_any_content_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(data)
    assert read(str(path)).records == []


def test_unsynced_record_is_confirmed_before_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path)
    events: list[str] = []
    synced = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: (events.append("sync"), synced(file))[1])
    journal._before_sync = lambda: events.append("let out")
    journal.append_unsynced(a_record(1), lambda bad: events.append("soft" + bad))
    assert journal.commit()
    assert (events, journal.unsynced) == (["soft"], True)
    journal.append(a_record(2), lambda bad: events.append("hard" + bad))
    journal.append_unsynced(a_record(3), lambda bad: events.append("soft" + bad))
    assert journal.commit()
    assert events == ["soft", "soft", "let out", "sync", "hard"]
    assert not journal.unsynced
    assert [record["member"] for record in read(journal.path).records] == [1, 2, 3]


def test_failed_sync_removes_only_records_waiting_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path)
    events: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        journal.append(a_record(1), events.append)
        journal.append_unsynced(a_record(2), events.append)
        journal.commit()
    assert events == ["", f"cannot write {journal.path}: Input/output error"]
    journal.append(a_record(3), events.append)
    journal.commit()
    assert sorted(record["member"] for record in read(journal.path).records) == [2, 3]


def test_records_after_torn_end_are_readable(tmp_path: Path) -> None:
    """Where a journal cannot be rewritten, records after a crash go to the old file."""
    journal = a_journal(tmp_path)
    keep(journal, 1)
    with Path(journal.path).open("r+b") as file:
        file.seek(journal.size)
        file.write(b'0badc0de {"kind":"began","allocation_id":"job-2.1","memb')
    again = a_journal(tmp_path)
    keep(again, 3)
    found = read(again.path)
    assert found.records == [a_record(1), a_record(3)]
    assert not found.unreadable
    assert not found.torn


def test_failed_truncation_loses_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only file system rejects truncation as it rejects writes."""
    journal = a_journal(tmp_path)
    keep(journal, 1)
    events: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        patch.setattr(os, "ftruncate", failing(errno.EROFS))
        journal.append(a_record(2_000_000), events.append)
        journal.commit()
        journal.append(a_record(3), events.append)
        journal.commit()
    said = [text.rpartition(": ")[2] for text in events]
    assert said == ["Input/output error", "Read-only file system"]
    journal.append(a_record(4), events.append)
    journal.commit()
    found = read(journal.path)
    assert (found.records, found.unreadable, found.torn) == ([a_record(1), a_record(4)], 0, [])


def test_records_go_to_new_file_where_directories_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path)
    keep(journal, 1)
    monkeypatch.setattr(journal_module, "sync_directory", failing(errno.EINVAL))
    journal.rewrite([a_record(1)])
    keep(journal, 2)
    assert read(journal.path).records == [a_record(1), a_record(2)]


def test_failed_rewrite_keeps_old_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = a_journal(tmp_path)
    keep(journal, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space"):
            journal.rewrite([])
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]
    keep(journal, 2)
    assert read(journal.path).records == [a_record(1), a_record(2)]


def test_failed_backup_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = a_journal(tmp_path)
    keep(journal, 1)
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        back_up(journal.path)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]
