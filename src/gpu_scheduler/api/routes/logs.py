"""The output of jobs, in pieces: all of it, the end of it, or as it comes.

A job that has not started yet can be followed too: the answer begins when it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.operations import V1, Operation, boolean_parameter, integer_parameter
from gpu_scheduler.api.http.request import TEXT, Request, Response, Stream
from gpu_scheduler.api.interfaces import LogSource
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, StoreError, UnknownThing
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, display_name
from gpu_scheduler.store.rows import JobRow

# --- The logs of all members of a gang as one: whole lines, each with the rank of who wrote it.
#
# What is there already comes member by member; with `follow`, lines come as they are written.

MOST_LINE_BYTES = 1 << 16
MOST_WAITING = 64
"""So many pieces may wait for a slow reader before members are read no further."""
Pieces = asyncio.Queue[bytes | Exception | None]


async def merge_logs(
    logs: Sequence[AsyncIterator[bytes]], *, follow: bool = False
) -> AsyncIterator[bytes]:
    """Logs by rank become one, with `[rank] ` before each line."""
    if not follow:
        for rank, log in enumerate(logs):
            async for lines in _marked(rank, log):
                yield lines
        return
    pieces: Pieces = asyncio.Queue(MOST_WAITING)
    readers = [
        asyncio.create_task(_copy(_marked(rank, log), pieces)) for rank, log in enumerate(logs)
    ]
    try:
        left = len(readers)
        while left:
            piece = await pieces.get()
            if isinstance(piece, Exception):
                raise piece
            if piece is None:
                left -= 1
            else:
                yield piece
    finally:
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader


async def _copy(lines: AsyncIterator[bytes], pieces: Pieces) -> None:
    """All lines of one member, then its end; what goes wrong is for the one who reads."""
    try:
        async for piece in lines:
            await pieces.put(piece)
    except Exception as error:  # noqa: BLE001 - else nobody would hear that no more comes
        await pieces.put(error)
    else:
        await pieces.put(None)


async def _marked(rank: int, log: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of one member; a last one without an end gets one. One out of reach says so."""
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
        return  # an elastic gang that started with fewer members
    except (ClusterError, StoreError) as error:
        yield mark + f"({error})\n".encode()


# --- The output of jobs, in pieces: all of it, the end of it, or as it comes.

LINE_BYTES = 500
"""What a line is taken to have when only the last lines are wanted."""
MOST_TAIL_BYTES = 8 << 20
QUIET_S = 0.2
"""When nothing has come for so long, what was written before has been read."""
LOOK_AGAIN_S = 5.0


async def job_logs(context: Context, request: Request) -> Response:
    """What a job has written."""
    row, task = context.find_job(request)
    names = ("attempt", "task", "member", "merged", "tail", "follow", "offset", "limit")
    query = context.parse_query(request, *names)
    if context.logs is None:
        raise ClusterError("no agent is connected that could read logs; try again in a moment")
    if task is None:
        task = query.optional("task")
    if row.job.array is not None and task is None:
        raise InvalidRequest(
            f"{display_name(row.job.id)} is an array; name a task, as in 12_4 or task=4"
        )
    if task is not None and (row.job.array is None or task not in row.job.array.tasks):
        raise UnknownThing(f"{display_name(row.job.id)} has no task {task}")
    member = query.number("member", 0, most=100_000)
    if member >= len(row.job.members):
        raise UnknownThing(f"{display_name(row.job.id)} has no member {member}")
    tail = query.optional("tail", most=1_000_000)
    wanted = _Wanted(
        job_id=row.job.id,
        task=task,
        attempt=query.number("attempt", 0, most=1_000_000),
        member=member,
        offset=query.number("offset", 0, least=-(2**53)),
        limit=query.number("limit", 0),
        follow=query.flag("follow"),
    )
    if query.flag("merged"):
        ranks = range(len(row.job.members))
        of_each = [_read(context, context.logs, replace(wanted, member=n), tail) for n in ranks]
        stream = merge_logs(of_each, follow=wanted.follow)
    else:
        stream = _read(context, context.logs, wanted, tail)
    return Response(media=TEXT, stream=Stream(_one_more(context, request.caller, stream)))


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """Which log, from where, and for how long. Attempt 0 is the last one."""

    job_id: str
    task: int | None
    attempt: int
    member: int
    offset: int
    limit: int
    follow: bool

    def allocation(self, attempt: int) -> str:
        suffix = "" if self.task is None else f"_{self.task}"
        return f"{self.job_id}{suffix}.{self.attempt or attempt}"


def _read(
    context: Context, logs: LogSource, wanted: _Wanted, tail: int | None
) -> AsyncIterator[bytes]:
    """One member's log, or the end of it."""
    if tail is None:
        return _stream(context, logs, wanted)
    wanted.offset = -min(MOST_TAIL_BYTES, tail * LINE_BYTES)
    return _last_lines(_stream(context, logs, wanted), tail, -wanted.offset)


async def _one_more(
    context: Context, caller: Caller, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """The chunks, if the caller does not read too many logs already."""
    with context.log_streams.hold(caller.user):
        async for chunk in chunks:
            yield chunk


async def _stream(context: Context, logs: LogSource, wanted: _Wanted) -> AsyncIterator[bytes]:
    attempt = _last_attempt(context, wanted)
    if wanted.follow and not attempt:
        attempt = await _first_attempt(context, wanted)
    if not attempt:
        return
    chunks = logs.read_log(
        wanted.job_id,
        wanted.allocation(attempt),
        wanted.member,
        wanted.offset,
        wanted.limit,
        wanted.follow,
    )
    async for chunk in chunks:
        yield chunk


def _last_attempt(context: Context, wanted: _Wanted) -> int:
    """The number of the attempt that began last; 0 if there was none."""
    store = context.service.store
    if wanted.task is None:
        row = store.job(wanted.job_id)
        return 0 if row is None else row.attempt
    tasks = store.tasks(wanted.job_id, only=IntervalSet.of([wanted.task]))
    return tasks[0].attempt if tasks else 0


async def _first_attempt(context: Context, wanted: _Wanted) -> int:
    """Wait until the job has begun; 0 if it ends before that."""
    happened = asyncio.Event()
    watching = asyncio.ensure_future(_watch(context, wanted.job_id, happened))
    try:
        while True:
            attempt = _last_attempt(context, wanted)
            row = context.service.store.job(wanted.job_id)
            if attempt or row is None or _is_over(row, wanted.task):
                return attempt
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await happened.wait()
            happened.clear()
    finally:
        watching.cancel()


async def _watch(context: Context, job_id: str, happened: asyncio.Event) -> None:
    """Say so whenever something happens to the job."""
    events = context.service.subscribe(context.service.store.last_event())
    async for _, event in events:
        if event.job_id == job_id:
            happened.set()


def _is_over(row: JobRow, task: int | None) -> bool:
    if task is None:
        return row.state in ENDED
    return any(state in ENDED and task in numbers for state, numbers in row.tasks)


async def _last_lines(chunks: AsyncIterator[bytes], lines: int, most: int) -> AsyncIterator[bytes]:
    """Hold back until the end of what was there before, then give its last lines and go on."""
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


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/logs",
        handler=job_logs,
        name="job_logs",
        summary="What a job has written; with follow=true, also what it will write.",
        tag="jobs",
        media="text/plain",
        query=(
            integer_parameter("attempt", "Of this attempt; the last one if it is left out."),
            integer_parameter("task", "Of this task of an array."),
            integer_parameter("member", "Of this member of a gang."),
            boolean_parameter(
                "merged", "Of all members of a gang, with `[rank] ` before each line."
            ),
            integer_parameter("tail", "Only the last lines.", most=1_000_000),
            boolean_parameter("follow", "Go on until the attempt ends."),
            integer_parameter(
                "offset", "From this byte on; negative: so many from the end.", least=-(2**53)
            ),
            integer_parameter("limit", "So many bytes at most."),
        ),
        errors=(403, 404, 429, 503),
    ),
)
