"""What the launcher must still know when it is started again.

Records go in, each with a callback that hears when it is on disk; `commit` writes everything that
has gathered with one write and at most one fdatasync. One file of lines, each with its checksum:
measured, a file of its own with rename and directory sync for each record costs four to ten times
as much. Zeros stand ahead of the end of the file: a sync then has data to write and nothing of the
file system's own, which takes half as long. A record that cannot be written leaves no trace.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpu_scheduler.agent.launcher.messages import Form, Key

Done = Callable[[str], None]
"""Called after a commit with "" or with what went wrong."""

_KEY = re.compile(rb'"allocation_id":"([^"\\/]+)".{0,40}?"member":(\d+)')
NAME = "journal"
AHEAD_BYTES = 64 << 10
_ZEROS = b"\0"


class Journal:
    """An append-only file of records in a directory of its own.

    `before_sync` is called whenever the disk will take its time. `unsynced` tells that something
    was written which the disk has not confirmed yet. `call` calls those back who wait.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = os.path.join(directory, NAME)
        self._pending: list[bytes] = []
        self._waiting: list[Done] = []
        self._soft: list[tuple[bytes, Done]] = []
        self._file = -1
        self._filled = 0
        self._has_litter = False
        self.size = 0
        self.unsynced = False
        self.before_sync: Callable[[], None] = lambda: None
        self.call: Callable[[Done, str], object] = lambda done, problem: done(problem)

    def append(self, record: Form, done: Done) -> None:
        """Keep a record for the next commit; `done` hears of it when it is on disk."""
        self._pending.append(_line(record))
        self._waiting.append(done)

    def append_softly(self, record: Form, done: Done) -> None:
        """Keep a record for the next commit; `done` hears of it when it is written.

        From then on it outlives this process, and after the next sync also the machine.
        """
        self._soft.append((_line(record), done))

    def append_lazily(self, record: Form) -> None:
        """Keep a record for whenever there is a commit: losing it does no harm."""
        self._pending.append(_line(record))

    def commit(self) -> bool:
        """Write all that was appended, then call everybody back. False: nothing to do."""
        if not self._waiting and not self._soft:
            return False
        soft, self._soft = self._soft, []
        waiting, self._waiting = self._waiting, []
        data = b"".join((*self._pending, *(text for text, _ in soft)))
        self._pending = []
        before = self.size
        problem = self._write(data)
        for _, done in soft:
            self.call(done, problem)
        if not waiting:
            return True
        if not problem:
            self.before_sync()
            problem = self.sync()
            if problem:
                self._cut(before)
                self._pending += [text for text, _ in soft]
        for done in waiting:
            self.call(done, problem)
        return True

    def sync(self) -> str:
        """Wait until the disk has all that was written; says what went wrong."""
        try:
            os.fdatasync(self._file)
        except OSError as error:
            return self._said(error)
        self.unsynced = False
        return ""

    def _write(self, data: bytes) -> str:
        try:
            if self._has_litter:
                os.ftruncate(self._file, self.size)
                self._has_litter = False
            _write_all(self._file, data, self.size)
            if self.size + len(data) > self._filled:
                self._fill(self.size + len(data))
        except OSError as error:
            self._cut(self.size)
            return self._said(error)
        self.size += len(data)
        self.unsynced = True
        return ""

    def _fill(self, size: int) -> None:
        """Zeros behind the records, where there is room for them."""
        self._filled = size + AHEAD_BYTES
        try:
            _write_all(self._file, bytes(AHEAD_BYTES), size)
        except OSError:
            os.ftruncate(self._file, size)

    def _cut(self, size: int) -> None:
        """What could not be written whole leaves no trace, at the latest before the next write.

        A disk that fails may refuse this too; the jobs that run need a launcher all the same.
        """
        self.size = self._filled = size
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._has_litter = True

    def _said(self, error: OSError) -> str:
        return f"cannot write {self.path}: {error.strerror}"

    def rewrite(self, records: Iterable[Form]) -> None:
        """Replace the whole file, at once or not at all.

        After the rename nothing must fail: from then on only the new file is found again.
        """
        fresh = self.path + ".new"
        target = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            data = b"".join(map(_line, records))
            _write_all(target, data, 0)
            os.fsync(target)
            os.rename(fresh, self.path)
        except OSError:
            os.close(target)
            _drop(fresh)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self.size, self._filled = target, len(data), len(data)
        self.unsynced = self._has_litter = False
        # Some file systems know no sync of a directory.
        with suppress(OSError):
            sync_directory(self.directory)

    def open(self) -> None:
        """Append to the file as it is, but for a last line without an end: a record behind that
        could not be read again.
        """
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        self._cut(_records_in(self.path).rfind(b"\n") + 1)


class Found:
    """What stood in a journal: good records, and the names that bad lines still gave away.

    `torn` are from a last line without an end: it was never committed, so its command never began.
    """

    def __init__(self) -> None:
        self.records: list[Form] = []
        self.bad: list[Key] = []
        self.torn: list[Key] = []
        self.unreadable = 0


def read(path: str) -> Found:
    """Everything that can be read; whatever the file holds, this returns."""
    found = Found()
    try:
        data = _records_in(path)
    except FileNotFoundError:
        return found
    *lines, tail = data.split(b"\n")
    for text in lines:
        record = _record(text)
        if record is not None:
            found.records.append(record)
            continue
        found.unreadable += 1
        found.bad += _keys(text)
    if tail:
        found.torn = _keys(tail)
    return found


def keep_aside(path: str) -> str:
    """Copy a damaged file beside itself; its new name."""
    number = 1
    while os.path.exists(f"{path}.bad-{number}"):
        number += 1
    aside = f"{path}.bad-{number}"
    with open(path, "rb") as source:
        data = source.read()
    target = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        _write_all(target, data, 0)
    except OSError:
        _drop(aside)
        raise
    finally:
        os.close(target)
    return aside


def _drop(path: str) -> None:
    """Half a file is no use, and takes room where there is none."""
    with suppress(OSError):
        os.unlink(path)


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(record: Form) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _record(text: bytes) -> Form | None:
    checksum, _, body = text.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _keys(text: bytes) -> list[Key]:
    return [(name.decode(errors="replace"), int(member)) for name, member in _KEY.findall(text)[:1]]


def _records_in(path: str) -> bytes:
    """All of a file but for the zeros at its end."""
    with open(path, "rb") as file:
        return file.read().rstrip(_ZEROS)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
