"""Reads the logs of jobs for the server: a part, the end, or everything as it is written.

Offsets count over rotated files, as if the log had never been cut. The launcher copies a log, cuts
it, and then gives the copy its name, `.1`; so a `.1` that was not there before says that the log
was cut, and holds what was not read of it. Files that have been rotated only move on: they are kept
open, and read to their ends.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from io import FileIO
from pathlib import Path

CHUNK = 64 << 10
LOOK_AGAIN_S = 0.1
MOST_LOOKS = 10
"""So often a log that was cut is looked at before what was in it is taken for lost."""
TOLD_APART = 256
"""So many bytes before the place tell one file from another."""
Identity = tuple[int, int]


async def read_log(
    path: Path,
    *,
    offset: int,
    limit: int,
    follow: bool,
    is_over: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """The bytes of a log from `offset` on (negative: so many from the end).

    With `follow`, waits for more until `is_over` says that nobody writes any more; also for a log
    that does not exist yet.
    """
    place = _Place(path, offset)
    left = limit or (1 << 62)
    try:
        while left > 0:
            over = is_over()
            data = place.read(min(CHUNK, left))
            if data:
                left -= len(data)
                yield data
                continue
            if (over or not follow) and not place.is_unsettled:
                return
            await asyncio.sleep(LOOK_AGAIN_S)
    finally:
        place.close()


class _Place:
    """Where in the log the reader is."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        parts = _rotated(path, None)
        self._newest = _identity(parts[-1]) if parts else None
        sizes = [_size_of(part) for part in parts]
        start = max(0, sum(sizes) + _size(path) + offset) if offset < 0 else offset
        self._left: list[FileIO] = []
        for part, size in zip(parts, sizes, strict=True):
            if start < size:
                part.seek(start)
                self._left.append(part)
            else:
                part.close()
            start = max(0, start - size)
        # Files that are gone by now may have counted too: there is nothing to wait for.
        self._offset = min(start, _size(path)) if parts else start
        self._is_ahead = self._offset > _size(path)
        self._before = b""
        self._looks = 0

    @property
    def is_unsettled(self) -> bool:
        """Whether the log is being rotated at this moment."""
        return 0 < self._looks < MOST_LOOKS

    def read(self, most: int) -> bytes:
        """The next bytes, or none if there are none yet."""
        while self._left or self._was_rotated():
            data = self._left[0].read(most)
            if data:
                return data
            self._left.pop(0).close()
        data = _bytes(self._path, self._offset, most)
        self._offset += len(data)
        self._before = (self._before + data)[-TOLD_APART:]
        return data

    def close(self) -> None:
        """Let go of what was not read."""
        for part in self._left:
            part.close()

    def _was_rotated(self) -> bool:
        """Whether there are new rotated files; the first of them goes on where we were."""
        newest = _identity_at(_part(self._path, 1))
        if newest not in {None, self._newest}:
            self._left = _rotated(self._path, self._newest)
            if self._left and self._is_ours(self._left[0]):
                self._left[0].seek(self._offset)
            self._newest, self._offset, self._before, self._looks = newest, 0, b"", 0
            return bool(self._left)
        if _size(self._path) >= self._offset:
            self._looks, self._is_ahead = 0, False
        elif not self._is_ahead:
            self._looks += 1
            if self._looks >= MOST_LOOKS:
                self._offset, self._before = 0, b""  # nothing was kept of it
        return False

    def _is_ours(self, part: FileIO) -> bool:
        """Tell whether it is the file that was read last; that one may be gone by now."""
        part.seek(self._offset - len(self._before))
        is_ours = part.read(len(self._before)) == self._before
        part.seek(0)
        return is_ours


def _rotated(path: Path, known: Identity | None) -> list[FileIO]:
    """Rotated files that are newer than the known one, the oldest first.

    Opened from the newest on: one that moves on meanwhile is met a second time, and not missed.
    """
    found: dict[Identity, FileIO] = {}
    number = 1
    while True:
        try:
            part = _part(path, number).open("rb", buffering=0)
        except OSError:
            break
        identity = _identity(part)
        if identity == known or identity in found:
            part.close()
            if identity == known:
                break
        else:
            found[identity] = part
        number += 1
    return list(reversed(found.values()))


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _identity(part: FileIO) -> Identity:
    """A number can be used again, but not with the same time."""
    status = os.fstat(part.fileno())
    return status.st_ino, status.st_mtime_ns


def _identity_at(path: Path) -> Identity | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _size_of(part: FileIO) -> int:
    return os.fstat(part.fileno()).st_size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _bytes(path: Path, offset: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError:
        return b""
