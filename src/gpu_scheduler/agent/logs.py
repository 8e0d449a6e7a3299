"""Reads the logs of jobs for the server: a part, the end, or everything as it is written.

Offsets count over rotated files, as if the log had never been cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

CHUNK = 64 << 10
LOOK_AGAIN_S = 0.1


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
    parts = _parts(path)
    place = _Place(parts, offset)
    left = limit or (1 << 62)
    while left > 0:
        over = is_over()
        data = place.read(path, min(CHUNK, left))
        if data:
            left -= len(data)
            yield data
            continue
        if over or not follow:
            return
        await asyncio.sleep(LOOK_AGAIN_S)


def _parts(path: Path) -> list[Path]:
    """The files of a log, the oldest first."""
    rotated = []
    number = 1
    while (part := path.with_name(f"{path.name}.{number}")).exists():
        rotated.append(part)
        number += 1
    return [*reversed(rotated), path]


class _Place:
    """Where in the log the reader is."""

    def __init__(self, parts: list[Path], offset: int) -> None:
        sizes = [_size(part) for part in parts]
        start = max(0, sum(sizes) + offset) if offset < 0 else offset
        self._left: list[tuple[Path, int]] = []
        for part, size in zip(parts[:-1], sizes[:-1], strict=True):
            if start < size:
                self._left.append((part, start))
            start = max(0, start - size)
        self._offset = start

    def read(self, path: Path, most: int) -> bytes:
        """The next bytes, or none if there are none yet."""
        while self._left:
            part, offset = self._left[0]
            data = _bytes(part, offset, most)
            if data:
                self._left[0] = (part, offset + len(data))
                return data
            self._left.pop(0)
        if _size(path) < self._offset:
            self._offset = 0  # it was rotated
        data = _bytes(path, self._offset, most)
        self._offset += len(data)
        return data


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
