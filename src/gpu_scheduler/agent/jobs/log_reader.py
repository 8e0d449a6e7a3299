"""The logs of jobs: reads them across rotation, serves them to the server, deletes expired ones.

Offsets count across rotated files, as if the log had never been rotated. The launcher copies a log,
truncates it, and then renames the copy to `.1`. So a new `.1` means that the log was truncated; the
unread rest is in that file. Rotated files are only renamed further (`.2`, ...): they are kept open
and read to their ends.

Logs stay on their node for some days after the job. The agent touches the log directory of each job
that the launcher keeps, so the files alone tell when a job ended, also after a restart.
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
from gpu_scheduler.agent.launcher_protocol import Key
from gpu_scheduler.wire import agent_pb2 as pb

CHUNK = 64 << 10
POLL_S = 0.1
MAX_CHECKS = 10
"""How often a truncated log is checked for its rotated copy before the rest counts as lost."""
COMPARED_BYTES = 256
"""A rotated file is recognised by so many bytes before the current offset."""
ORDER_TIMEOUT_S = 5.0
"""How long a reader waits for a log whose start order has not arrived yet."""
RETENTION_INTERVAL_S = 600.0
DAY_S = 86_400.0
FileId = tuple[int, int]
"""Inode and modification time."""
log = structlog.get_logger("agent")


async def read_log(
    path: Path,
    *,
    offset: int,
    limit: int,
    follow: bool,
    is_over: Callable[[], bool],
) -> AsyncIterator[bytes]:
    """The bytes of a log from `offset` on (negative: counted from the end).

    With `follow`, waits for more until `is_over` says that the job has ended; also for a log that
    does not exist yet.
    """
    reader = _LogReader(path, offset)
    left = limit or (1 << 62)
    try:
        while left > 0:
            over = is_over()
            data = reader.read(min(CHUNK, left))
            if data:
                left -= len(data)
                yield data
                continue
            if (over or not follow) and not reader.is_rotating:
                return
            await asyncio.sleep(POLL_S)
    finally:
        reader.close()


class _LogReader:
    """A position in a log that may be rotated meanwhile."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        parts = _open_rotated(path, None)
        self._newest = _file_id(os.fstat(parts[-1].fileno())) if parts else None
        sizes = [os.fstat(part.fileno()).st_size for part in parts]
        start = max(0, sum(sizes) + _size(path) + offset) if offset < 0 else offset
        self._unread: list[FileIO] = []
        for part, size in zip(parts, sizes, strict=True):
            if start < size:
                part.seek(start)
                self._unread.append(part)
            else:
                part.close()
            start = max(0, start - size)
        # The offset may also count rotated files that were deleted: do not wait for those bytes.
        self._offset = min(start, _size(path)) if parts else start
        self._is_ahead = self._offset > _size(path)
        self._last_bytes = b""
        self._checks = 0

    @property
    def is_rotating(self) -> bool:
        """Tell whether the log is being rotated at this moment."""
        return 0 < self._checks < MAX_CHECKS

    def read(self, size: int) -> bytes:
        """The next bytes; empty if there are none yet."""
        while self._unread or self._was_rotated():
            data = self._unread[0].read(size)
            if data:
                return data
            self._unread.pop(0).close()
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(size)
        except OSError:
            data = b""
        self._offset += len(data)
        self._last_bytes = (self._last_bytes + data)[-COMPARED_BYTES:]
        return data

    def close(self) -> None:
        for part in self._unread:
            part.close()

    def _was_rotated(self) -> bool:
        """Tell whether there are new rotated files; the first continues at our offset."""
        try:
            newest = _file_id(_rotated_path(self._path, 1).stat())
        except OSError:
            newest = None
        if newest not in {None, self._newest}:
            self._unread = _open_rotated(self._path, self._newest)
            if self._unread and self._is_current(self._unread[0]):
                self._unread[0].seek(self._offset)
            self._newest, self._offset, self._last_bytes, self._checks = newest, 0, b"", 0
            return bool(self._unread)
        if _size(self._path) >= self._offset:
            self._checks, self._is_ahead = 0, False
        elif not self._is_ahead:
            self._checks += 1
            if self._checks >= MAX_CHECKS:
                self._offset, self._last_bytes = 0, b""  # truncated without a rotated copy
        return False

    def _is_current(self, part: FileIO) -> bool:
        """Tell whether a rotated file is the one that was read last, which may be deleted."""
        part.seek(self._offset - len(self._last_bytes))
        is_current = part.read(len(self._last_bytes)) == self._last_bytes
        part.seek(0)
        return is_current


def _open_rotated(path: Path, known: FileId | None) -> list[FileIO]:
    """Open the rotated files that are newer than the known one, the oldest first.

    They are opened from the newest on: a file that is renamed meanwhile is found twice, not missed.
    """
    found: dict[FileId, FileIO] = {}
    number = 1
    while True:
        try:
            part = _rotated_path(path, number).open("rb", buffering=0)
        except OSError:
            break
        file_id = _file_id(os.fstat(part.fileno()))
        if file_id == known or file_id in found:
            part.close()
            if file_id == known:
                break
        else:
            found[file_id] = part
        number += 1
    return list(reversed(found.values()))


def _rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _file_id(status: os.stat_result) -> FileId:
    """An inode number can be reused, but not with the same modification time."""
    return status.st_ino, status.st_mtime_ns


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class LogServer:
    """Serves logs to the server: several readers at once, each with its own credit.

    Requests come in, chunks go out. A reader with credit gets no more chunks than it asked for.
    """

    def __init__(
        self,
        path_of: Callable[[str, str, int], str],
        is_over: Callable[[Key], bool | None],
        send: Callable[[pb.AgentMessage], None],
    ) -> None:
        """`path_of` is the log file of a member; `is_over` is None for unknown work."""
        self._path_of = path_of
        self._is_over = is_over
        self._send = send
        self._readers: dict[int, asyncio.Task[None]] = {}
        self._credits: dict[int, asyncio.Semaphore] = {}

    def start_reader(self, request: pb.LogRequest) -> None:
        number = request.request_id
        if request.chunks:
            self._credits[number] = asyncio.Semaphore(request.chunks)
        self._readers[number] = task = asyncio.create_task(self._read(request))
        task.add_done_callback(lambda _: self._end(number))

    def add_credit(self, message: pb.LogCredit) -> None:
        """Allow a reader to send this many more chunks."""
        credit = self._credits.get(message.request_id)
        if credit is not None:
            for _ in range(message.chunks):
                credit.release()

    def cancel(self, number: int) -> None:
        reader = self._readers.pop(number, None)
        if reader is not None:
            reader.cancel()

    def close(self) -> None:
        """Cancel all readers, because the stream to the server is gone."""
        for reader in list(self._readers.values()):
            reader.cancel()
        self._readers.clear()

    def _end(self, number: int) -> None:
        self._readers.pop(number, None)
        self._credits.pop(number, None)

    async def _read(self, request: pb.LogRequest) -> None:
        key = (request.allocation_id, request.member)
        path = Path(self._path_of(request.job_id, *key))
        deadline = asyncio.get_running_loop().time() + ORDER_TIMEOUT_S

        def is_over() -> bool:
            known = self._is_over(key)
            if known is None:
                return path.exists() or asyncio.get_running_loop().time() > deadline
            return known

        def chunk(data: bytes = b"", *, end: bool = False) -> pb.AgentMessage:
            message = pb.LogChunk(request_id=request.request_id, data=data, end=end)
            return pb.AgentMessage(log_chunk=message)

        chunks = read_log(
            path,
            offset=request.offset,
            limit=request.limit,
            follow=request.follow,
            is_over=is_over,
        )
        credit = self._credits.get(request.request_id)
        async for data in chunks:
            if credit is not None:
                await credit.acquire()
            self._send(chunk(data))
        self._send(chunk(end=True))


async def enforce_log_retention(launcher: Launcher, logs_dir: Path, days: float) -> None:
    """Delete the logs of jobs that ended more than `days` ago, until cancelled.

    A wall clock that is set ahead meanwhile makes no log older.
    """
    began_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        jobs = {job_of(allocation_id) for allocation_id, _, _ in await launcher.held()}
        now_s = min(time.time(), began_s + time.clock_gettime(time.CLOCK_BOOTTIME))
        before_s = now_s - days * DAY_S
        deleted = await asyncio.to_thread(delete_expired_logs, logs_dir, jobs, before_s)
        if deleted:
            log.info("deleted expired logs", jobs=deleted)
        await asyncio.sleep(RETENTION_INTERVAL_S)


def delete_expired_logs(logs_dir: Path, held: Container[str], before_s: float) -> int:
    """Delete logs last touched or written before `before_s`; returns how many.

    Disk errors are logged only: they must not end the agent, and the next run may work.
    """
    deleted = 0
    try:
        directories = list(logs_dir.iterdir())
    except OSError as error:
        log.warning("cannot list the log directories", error=str(error))
        return 0
    for directory in directories:
        try:
            if directory.name in held:
                os.utime(directory)
                continue
            files = [directory, *directory.iterdir()]
            if max(file.stat().st_mtime for file in files) < before_s:
                shutil.rmtree(directory)
                deleted += 1
        except OSError as error:
            log.warning("cannot delete expired logs", error=str(error))
    return deleted


def job_of(allocation_id: str) -> str:
    """The job of an attempt: job-12 for job-12.1 and for job-12_7.1."""
    return allocation_id.rpartition(".")[0].partition("_")[0]
