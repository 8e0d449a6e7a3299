"""Reads the logs of jobs for the server: a part, the end, or everything as it is written.

Offsets count over rotated files, as if the log had never been cut. The launcher copies a log, cuts
it, and then gives the copy its name, `.1`; so a `.1` that was not there before says that the log
was cut, and holds what was not read of it. Files that have been rotated only move on: they are kept
open, and read to their ends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Container
from io import FileIO
from pathlib import Path

import structlog

from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.wire import agent_pb2 as pb

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


# --- Logs that a server reads from this node, several at once and each at its reader's pace.
#
# Requests come in, pieces go out. A reader with credit gets no more than it has asked for.

ON_ITS_WAY_S = 5.0
"""So long a log is waited for whose order has not come yet: a reader can overtake it."""
Key = tuple[str, int]


class LogServer:
    """The readers of one stream."""

    def __init__(
        self,
        path_of: Callable[[str, str, int], str],
        is_over: Callable[[Key], bool | None],
        send: Callable[[pb.AgentMessage], None],
    ) -> None:
        """`path_of` names the log of a member; `is_over` is None for one nobody has heard of."""
        self._path_of = path_of
        self._is_over = is_over
        self._send = send
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}

    def begin(self, request: pb.LogRequest) -> None:
        """Somebody wants to read."""
        number = request.request_id
        if request.chunks:
            self._credits[number] = asyncio.Semaphore(request.chunks)
        self._readers[number] = task = asyncio.create_task(self._read(request))
        task.add_done_callback(lambda _: self._end(number))

    def more(self, more: pb.LogCredit) -> None:
        """So many pieces more may be sent."""
        credit = self._credits.get(more.request_id)
        if credit is not None:
            for _ in range(more.chunks):
                credit.release()

    def cancel(self, number: int) -> None:
        """Nobody reads any more."""
        reader = self._readers.pop(number, None)
        if reader is not None:
            reader.cancel()

    def close(self) -> None:
        """The stream is gone, and with it all readers."""
        for reader in list(self._readers.values()):
            reader.cancel()
        self._readers.clear()

    def _end(self, number: int) -> None:
        self._readers.pop(number, None)
        self._credits.pop(number, None)

    async def _read(self, request: pb.LogRequest) -> None:
        key = (request.allocation_id, request.member)
        path = Path(self._path_of(request.job_id, *key))
        give_up = asyncio.get_running_loop().time() + ON_ITS_WAY_S

        def is_over() -> bool:
            known = self._is_over(key)
            if known is None:
                return path.exists() or asyncio.get_running_loop().time() > give_up
            return known

        def chunk(data: bytes = b"", *, end: bool = False) -> pb.AgentMessage:
            piece = pb.LogChunk(request_id=request.request_id, data=data, end=end)
            return pb.AgentMessage(log_chunk=piece)

        pieces = read_log(
            path,
            offset=request.offset,
            limit=request.limit,
            follow=request.follow,
            is_over=is_over,
        )
        credit = self._credits.get(request.request_id)
        async for data in pieces:
            if credit is not None:
                await credit.acquire()
            self._send(chunk(data))
        self._send(chunk(end=True))


# --- Logs stay on their node for a while after the job, and then go.
#
# While a job is held here, its directory of logs is marked again and again; so how long ago it
# ended
# is known from the files alone, whoever was restarted in between.

PAUSE_S = 600.0
DAY_S = 86_400.0
log = structlog.get_logger("agent")


async def enforce_log_retention(launcher: Launcher, logs_dir: Path, days: float) -> None:
    """Until cancelled: drop what is older than that."""
    while True:
        jobs = {job_of(allocation_id) for allocation_id, _, _ in await launcher.held()}
        before_s = time.time() - days * DAY_S
        dropped = await asyncio.to_thread(delete_expired_logs, logs_dir, jobs, before_s)
        if dropped:
            log.info("old logs are dropped", jobs=dropped)
        await asyncio.sleep(PAUSE_S)


def delete_expired_logs(logs_dir: Path, held: Container[str], before_s: float) -> int:
    """Remove the logs of jobs that were last held, or last written, before then; how many."""
    dropped = 0
    for directory in _directories(logs_dir):
        try:
            if directory.name in held:
                os.utime(directory)
            elif _last_s(directory) < before_s:
                shutil.rmtree(directory)
                dropped += 1
        except OSError as error:
            # A disk that fails now may work later.
            log.warning("a log cannot be looked after", error=str(error))
    return dropped


def _directories(logs_dir: Path) -> list[Path]:
    """None, if they cannot be listed: that must not end the agent."""
    try:
        return list(logs_dir.iterdir())
    except OSError as error:
        log.warning("the logs cannot be looked after", error=str(error))
        return []


def job_of(allocation_id: str) -> str:
    """The job of an attempt: job-12 for job-12.1 and for job-12_7.1."""
    return allocation_id.rpartition(".")[0].partition("_")[0]


def _last_s(directory: Path) -> float:
    return max(file.stat().st_mtime for file in [directory, *directory.iterdir()])
