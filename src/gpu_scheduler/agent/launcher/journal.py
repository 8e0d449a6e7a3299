"""The journal: what the launcher must still know when it is started again.

Records go in, each with a callback for when it is on disk; `commit` writes everything that has
gathered with one write and at most one fdatasync. One file of lines, each with its checksum:
measured, one file for each record, with rename and directory sync, costs four to ten times as much.
The file is filled with zeros ahead of its end: a sync then writes data but no file system metadata,
which takes half as long. A record that cannot be written leaves no trace.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress

from gpu_scheduler.agent.launcher_protocol import Key, Message

Done = Callable[..., None]
"""Called after a commit with its own arguments, and "" or the error."""
Call = Callable[..., object]
_Waiting = tuple[Done, tuple[object, ...]]

_KEY = re.compile(rb'"allocation_id":"([^"\\/]+)".{0,40}?"member":(\d+)')
NAME = "journal"
FILL_BYTES = 64 << 10
_ZEROS = b"\0"


class Journal:
    """An append-only file of records in a directory of its own.

    `before_sync` is called before every sync that callers wait for. `unsynced`: something was
    written that the disk has not confirmed yet. `call` makes the callbacks.
    """

    def __init__(
        self,
        directory: str,
        call: Call = lambda done, *arguments: done(*arguments),
        before_sync: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self.path = os.path.join(directory, NAME)
        self._pending: list[bytes] = []
        self._waiting: list[_Waiting] = []
        self._unsynced_records: list[tuple[bytes, _Waiting]] = []
        self._file = -1
        self._filled = 0
        self._has_garbage = False
        self.size = 0
        self.unsynced = False
        self._call = call
        self._before_sync = before_sync

    def append(self, record: Message, done: Done = lambda _: None, *arguments: object) -> None:
        """Keep a record for the next commit; `done` is called when it is on disk."""
        self._pending.append(_encode(record))
        self._waiting.append((done, arguments))

    def append_unsynced(
        self, record: Message, done: Done = lambda _: None, *arguments: object
    ) -> None:
        """Keep a record for the next commit; `done` is called when it is written.

        From then on it survives this process, and after the next sync a crash of the machine.
        """
        self._unsynced_records.append((_encode(record), (done, arguments)))

    def append_lazily(self, record: Message) -> None:
        """Keep a record until any commit: losing it does no harm."""
        self._pending.append(_encode(record))

    def commit(self) -> bool:
        """Write all that was appended, then make the callbacks. False: nothing to do."""
        if not self._waiting and not self._unsynced_records:
            return False
        unsynced, self._unsynced_records = self._unsynced_records, []
        waiting, self._waiting = self._waiting, []
        data = b"".join((*self._pending, *(text for text, _ in unsynced)))
        self._pending = []
        before = self.size
        error = self._write(data)
        for _, (done, arguments) in unsynced:
            self._call(done, *arguments, error)
        if not waiting:
            return True
        if not error:
            self._before_sync()
            error = self.sync()
            if error:
                self._truncate(before)
                self._pending += [text for text, _ in unsynced]
        for done, arguments in waiting:
            self._call(done, *arguments, error)
        return True

    def sync(self) -> str:
        """Wait until the disk has all that was written; returns the error, if any."""
        try:
            os.fdatasync(self._file)
        except OSError as error:
            return self._describe(error)
        self.unsynced = False
        return ""

    def _write(self, data: bytes) -> str:
        try:
            if self._has_garbage:
                os.ftruncate(self._file, self.size)
                self._has_garbage = False
            _write_all(self._file, data, self.size)
            if self.size + len(data) > self._filled:
                self._fill_ahead(self.size + len(data))
        except OSError as error:
            self._truncate(self.size)
            return self._describe(error)
        self.size += len(data)
        self.unsynced = True
        return ""

    def _fill_ahead(self, size: int) -> None:
        """Write zeros after the records, if there is room."""
        self._filled = size + FILL_BYTES
        try:
            _write_all(self._file, bytes(FILL_BYTES), size)
        except OSError:
            os.ftruncate(self._file, size)

    def _truncate(self, size: int) -> None:
        """Remove what could not be written whole, at the latest before the next write.

        A failing disk may refuse this too; the jobs that run still need a launcher.
        """
        self.size = self._filled = size
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._has_garbage = True

    def _describe(self, error: OSError) -> str:
        return f"cannot write {self.path}: {error.strerror}"

    def rewrite(self, records: Iterable[Message]) -> None:
        """Replace the whole file atomically.

        Nothing may fail after the rename: from then on only the new file is read again.
        """
        fresh = self.path + ".new"
        target = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        try:
            data = b"".join(map(_encode, records))
            _write_all(target, data, 0)
            os.fsync(target)
            os.rename(fresh, self.path)
        except OSError:
            os.close(target)
            _unlink(fresh)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self.size, self._filled = target, len(data), len(data)
        self.unsynced = self._has_garbage = False
        # Some file systems cannot sync a directory.
        with suppress(OSError):
            sync_directory(self.directory)

    def open(self) -> None:
        """Append to the file as it is, without an incomplete last line.

        A record after such a line could not be read again.
        """
        self._file = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        self._truncate(_read_records(self.path).rfind(b"\n") + 1)


class JournalContent:
    """The content of a journal: its records, and the keys found in damaged lines.

    `torn` are the keys of an incomplete last line: it was never committed, so no command began.
    """

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.damaged: list[Key] = []
        self.torn: list[Key] = []
        self.unreadable = 0


def read(path: str) -> JournalContent:
    """Read everything that is readable; no content of the file raises an error."""
    found = JournalContent()
    try:
        data = _read_records(path)
    except FileNotFoundError:
        return found
    *lines, tail = data.split(b"\n")
    for text in lines:
        record = _decode(text)
        if record is not None:
            found.records.append(record)
            continue
        found.unreadable += 1
        found.damaged += _find_keys(text)
    if tail:
        found.torn = _find_keys(tail)
    return found


def back_up(path: str) -> str:
    """Copy a damaged file beside itself; returns the path of the copy."""
    number = 1
    while os.path.exists(f"{path}.bad-{number}"):
        number += 1
    backup = f"{path}.bad-{number}"
    with open(path, "rb") as source:
        data = source.read()
    target = os.open(backup, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        _write_all(target, data, 0)
    except OSError:
        _unlink(backup)
        raise
    finally:
        os.close(target)
    return backup


def _unlink(path: str) -> None:
    """Remove an incomplete file, which would only take up room."""
    with suppress(OSError):
        os.unlink(path)


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(record: Message) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decode(text: bytes) -> Message | None:
    checksum, _, body = text.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        record = json.loads(body)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _find_keys(text: bytes) -> list[Key]:
    return [(name.decode(errors="replace"), int(member)) for name, member in _KEY.findall(text)[:1]]


def _read_records(path: str) -> bytes:
    """The content of a file without the zeros at its end."""
    with open(path, "rb") as file:
        return file.read().rstrip(_ZEROS)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset += written
        view = view[written:]
