"""The logs of jobs, as a stream: the whole log, its end, or new output as it is written.

A job that has not started can be followed too: the stream begins when it starts. The logs of a gang
can be merged, with the rank of the member before each line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Router, boolean_parameter, integer_parameter
from gpu_scheduler.api.http.request import TEXT, Request, Response, Stream
from gpu_scheduler.api.interfaces import LogSource
from gpu_scheduler.api.routes.job_views import attempt_id, last_attempt
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, StoreError, UnknownThing
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import ENDED, display_name
from gpu_scheduler.store.rows import JobRow

MOST_LINE_BYTES = 1 << 16
MOST_WAITING = 64
"""How many chunks may wait for a slow reader before the members' logs are read no further."""
LINE_BYTES = 500
"""The assumed length of a line when only the last lines are requested."""
MOST_TAIL_BYTES = 8 << 20
QUIET_S = 0.2
"""After so long without output, everything written before has been read."""
POLL_S = 5.0
Chunks = asyncio.Queue[bytes | Exception | None]


async def merge_logs(
    logs: Sequence[AsyncIterator[bytes]], *, follow: bool = False
) -> AsyncIterator[bytes]:
    """Merge logs by rank, with `[rank] ` before each line.

    Existing output comes member by member; with `follow`, lines come as they are written.
    """
    if not follow:
        for rank, log in enumerate(logs):
            async for lines in _with_rank(rank, log):
                yield lines
        return
    chunks: Chunks = asyncio.Queue(MOST_WAITING)
    readers = [
        asyncio.create_task(_copy(_with_rank(rank, log), chunks)) for rank, log in enumerate(logs)
    ]
    try:
        left = len(readers)
        while left:
            chunk = await chunks.get()
            if isinstance(chunk, Exception):
                raise chunk
            if chunk is None:
                left -= 1
            else:
                yield chunk
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _copy(lines: AsyncIterator[bytes], chunks: Chunks) -> None:
    """Copy the lines of one member, then its end or error."""
    try:
        async for chunk in lines:
            await chunks.put(chunk)
    except Exception as error:  # noqa: BLE001 - the reader raises it
        await chunks.put(error)
    else:
        await chunks.put(None)


async def _with_rank(rank: int, log: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines of one member; a member that cannot be read yields the error instead."""
    mark = b"[%d] " % rank
    rest = b""
    try:
        async for data in log:
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > MOST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            if lines:
                yield b"".join(mark + line + b"\n" for line in lines)
        if rest:
            yield mark + rest + b"\n"
    except UnknownThing:
        return  # an elastic gang has started with fewer members
    except (ClusterError, StoreError) as error:
        yield mark + f"({error})\n".encode()


router = Router("jobs")


@router.operation(
    "GET",
    "/jobs/{job_id}/logs",
    media="text/plain",
    query=(
        integer_parameter("attempt", "Of this attempt; default: the last one."),
        integer_parameter("task", "Of this task of an array."),
        integer_parameter("member", "Of this member of a gang."),
        boolean_parameter("merged", "Of all members of a gang, with `[rank] ` before each line."),
        integer_parameter("tail", "Only the last lines.", most=1_000_000),
        boolean_parameter("follow", "Continue until the attempt ends."),
        integer_parameter(
            "offset", "Start at this byte; negative: counted from the end.", least=-(2**53)
        ),
        integer_parameter("limit", "At most so many bytes."),
    ),
    errors=(403, 404, 429, 503),
)
async def job_logs(context: Context, request: Request) -> Response:
    """The log of a job; with follow=true, also new output as it is written."""
    row, task = await context.find_job(request)
    names = ("attempt", "task", "member", "merged", "tail", "follow", "offset", "limit")
    query = context.parse_query(request, *names)
    if context.logs is None:
        raise ClusterError("logs cannot be read: no agent is connected; try again in a moment")
    if task is None:
        task = query.optional("task")
    if row.job.array is not None and task is None:
        raise InvalidRequest(
            f"{display_name(row.job.id)} is an array; give a task, as in "
            f"{row.job.id.removeprefix('job-')}_{next(iter(row.job.array.tasks))}"
        )
    if task is not None and (row.job.array is None or task not in row.job.array.tasks):
        raise UnknownThing(f"{display_name(row.job.id)} has no task {task}")
    member = query.number("member", 0, most=100_000)
    if member >= len(row.job.members):
        raise UnknownThing(f"{display_name(row.job.id)} has no member {member}")
    tail = query.optional("tail", most=1_000_000)
    log_range = _LogRange(
        job_id=row.job.id,
        task=task,
        attempt=query.number("attempt", 0, most=1_000_000),
        member=member,
        offset=query.number("offset", 0, least=-(2**53)),
        limit=query.number("limit", 0),
        follow=query.flag("follow"),
    )
    if query.flag("merged"):
        stream = _merged(context, context.logs, log_range, tail)
        followed = len(row.job.members) if log_range.follow else 0
    else:
        stream = _read(context, context.logs, log_range, tail)
        followed = 0
    stream = _limited(context, request.caller, stream, followed)
    return Response(media=TEXT, stream=Stream(stream))


@dataclass(slots=True, kw_only=True)
class _LogRange:
    """Which part of which log. Attempt 0 is the last one."""

    job_id: str
    task: int | None
    attempt: int
    member: int
    offset: int
    limit: int
    follow: bool


def _read(
    context: Context, logs: LogSource, log_range: _LogRange, tail: int | None
) -> AsyncIterator[bytes]:
    """Read one member's log, or its last lines."""
    if tail is None:
        return _stream(context, logs, log_range)
    log_range.offset = -min(MOST_TAIL_BYTES, tail * LINE_BYTES)
    return _last_lines(_stream(context, logs, log_range), tail, -log_range.offset)


async def _merged(
    context: Context, logs: LogSource, log_range: _LogRange, tail: int | None
) -> AsyncIterator[bytes]:
    """Read the logs of all members; wait for their start only once."""
    attempt, row = await _last_attempt(context, log_range)
    if log_range.follow and not attempt:
        attempt = await _first_attempt(context, log_range)
    if row is None or not attempt:
        return
    ranks = range(len(row.job.members))
    of_each = [_read(context, logs, replace(log_range, member=rank), tail) for rank in ranks]
    async for chunk in merge_logs(of_each, follow=log_range.follow):
        yield chunk


async def _limited(
    context: Context, caller: Caller, chunks: AsyncIterator[bytes], followed: int
) -> AsyncIterator[bytes]:
    """Yield the chunks, within the caller's limits of open logs, and of `followed` members."""
    user = caller.user
    with context.log_streams.hold(user), context.member_logs.hold(user, followed):
        async for chunk in chunks:
            yield chunk


async def _stream(context: Context, logs: LogSource, log_range: _LogRange) -> AsyncIterator[bytes]:
    attempt, _ = await _last_attempt(context, log_range)
    if log_range.follow and not attempt:
        attempt = await _first_attempt(context, log_range)
    if not attempt:
        return
    chunks = logs.read_log(
        log_range.job_id,
        attempt_id(log_range.job_id, log_range.task, log_range.attempt or attempt),
        log_range.member,
        log_range.offset,
        log_range.limit,
        log_range.follow,
    )
    async for chunk in chunks:
        yield chunk


async def _last_attempt(context: Context, log_range: _LogRange) -> tuple[int, JobRow | None]:
    """Return the number of the last attempt, 0 if there was none; and the job, if it exists."""
    store = context.service.store

    def read() -> tuple[int, JobRow | None]:
        row = store.job(log_range.job_id)
        return (0 if row is None else last_attempt(store, row, log_range.task)), row

    return await asyncio.to_thread(read)


async def _first_attempt(context: Context, log_range: _LogRange) -> int:
    """Wait until the job has started; return 0 if it ends before."""
    changed = asyncio.Event()
    watcher = asyncio.ensure_future(_watch(context, log_range.job_id, changed))
    try:
        while True:
            attempt, row = await _last_attempt(context, log_range)
            if attempt or row is None or _has_ended(row, log_range.task):
                return attempt
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await changed.wait()
            changed.clear()
    finally:
        watcher.cancel()


async def _watch(context: Context, job_id: str, changed: asyncio.Event) -> None:
    """Set `changed` at every event of the job."""
    last = await asyncio.to_thread(context.service.store.last_event)
    events = context.service.subscribe(last)
    async for _, event in events:
        if event.job_id == job_id:
            changed.set()


def _has_ended(row: JobRow, task: int | None) -> bool:
    if task is None:
        return row.state in ENDED
    return any(state in ENDED and task in numbers for state, numbers in row.tasks)


async def _last_lines(chunks: AsyncIterator[bytes], lines: int, most: int) -> AsyncIterator[bytes]:
    """Buffer the existing output, yield its last lines, then continue with new output."""
    held = bytearray()
    source = aiter(chunks)
    upcoming: asyncio.Task[bytes] | None = None
    try:
        while len(held) < most:
            if upcoming is None:
                upcoming = asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait({upcoming}, timeout=QUIET_S)
            if not done:
                break
            chunk, upcoming = _result(upcoming), None
            if chunk is None:
                yield _tail(held, lines)
                return
            held += chunk
        yield _tail(held, lines)
        if upcoming is not None:
            yield await upcoming
            upcoming = None
        async for chunk in source:
            yield chunk
    except StopAsyncIteration:
        return
    finally:
        if upcoming is not None:
            upcoming.cancel()


def _result(done: asyncio.Task[bytes]) -> bytes | None:
    try:
        return done.result()
    except StopAsyncIteration:
        return None


def _tail(text: bytearray, lines: int) -> bytes:
    return b"".join(bytes(text).splitlines(keepends=True)[-lines:]) if lines else b""
