"""The asynchronous client: the same calls as `Client`, awaited, on one event loop.

Each call uses a connection of its own, so any number may be under way at once.
"""

from __future__ import annotations

import asyncio
import json
import socket
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from gpu_scheduler.client import requests, retry
from gpu_scheduler.client.address import Address, candidates
from gpu_scheduler.client.connection import (
    CONNECT_TIMEOUT_S,
    check_owner,
    no_server_error,
    peer_uid,
)
from gpu_scheduler.client.credentials import headers_for, tls_context
from gpu_scheduler.client.errors import JobFailed, NoServer, TimedOut, Unreadable
from gpu_scheduler.client.http1 import Answer, request_bytes, target
from gpu_scheduler.client.keepalive import notice_loss
from gpu_scheduler.client.requests import API, job_path, joined, submission, submissions
from gpu_scheduler.client.waiting import FIRST_PAUSE_S, MAX_PAUSE_S, POLL_INTERVAL_S
from gpu_scheduler.client.websocket import Frames, accept_of, handshake_headers, new_key
from gpu_scheduler.model.errors import ClusterError

if TYPE_CHECKING:
    from typing import Unpack

    from gpu_scheduler.client.fields import Job, JobFields, Word

_PAGE = 1000
_PIECE = 1 << 18
_UPGRADED = 101
_FIRST_ERROR = 400


class AsyncJobHandle:
    """A submitted job: its id, and the requests about it."""

    __slots__ = ("_client", "id", "tasks")

    def __init__(self, client: AsyncClient, job_id: str, tasks: int = 1) -> None:
        self._client = client
        self.id = job_id
        self.tasks = tasks

    def __repr__(self) -> str:
        return f"AsyncJobHandle({self.id!r})"

    async def info(self) -> Job:
        """The job as the REST API shows it."""
        return await self._client.get(self.id)

    async def state(self) -> str:
        """The state of the job: pending, scheduled, running, completed, failed, ..."""
        return str((await self.info())["state"])

    async def wait(self, timeout: float | None = None) -> Job:  # noqa: ASYNC109
        """Wait for the end and return the job; raises `TimedOut` after the timeout."""
        return await self._client.wait(self.id, timeout)

    async def result(self, timeout: float | None = None) -> int:  # noqa: ASYNC109
        """Wait for the end; returns 0, or raises `JobFailed`."""
        job = await self.wait(timeout)
        if job.get("state") != "completed":
            raise JobFailed(job)
        return requests.exit_code_of(job)

    def logs(self, *, follow: bool = False) -> AsyncIterator[str]:
        """The output as text, in pieces; with `follow` until the job ends."""
        return self._client.logs(self.id, follow=follow)

    async def cancel(self) -> Job:
        """Cancel the job, running or pending."""
        return await self._client.cancel(self.id)

    async def explain(self) -> dict[str, Any]:
        """Why the job waits and until when, or how it ended: `reason`, `expected_start`, ..."""
        return await self._client.explain(self.id)

    async def resubmit(self) -> AsyncJobHandle:
        """Submit it again as a new job after it has ended; see `AsyncClient.resubmit`."""
        return await self._client.resubmit(self.id)

    async def retry(self, *, cancelled: bool = False) -> dict[str, Any]:
        """Put it back into the queue after it failed or was cancelled; see `Client.retry`."""
        return await self._client.retry(self.id, cancelled=cancelled)


class AsyncClient:
    """A server, found as `Client` finds it."""

    def __init__(self, server: str | None = None) -> None:
        self._candidates = candidates(server)
        self._has_answered = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is kept open between calls."""

    async def submit(
        self, command: Sequence[Word] | None = None, **job: Unpack[JobFields]
    ) -> AsyncJobHandle:
        """Submit one job. A single string as command is run by a shell."""
        answer = await self.call("POST", f"{API}/jobs", submission(command, job))
        return AsyncJobHandle(self, answer["job_id"], answer.get("tasks", 1))

    async def submit_many(self, jobs: Iterable[Mapping[str, Any]]) -> list[AsyncJobHandle]:
        """Submit several jobs atomically; each is a mapping of fields with its `command`."""
        bodies = submissions(jobs)
        if not bodies:
            return []
        answer = await self.call("POST", f"{API}/jobs/bulk", bodies)
        return [AsyncJobHandle(self, job_id) for job_id in answer["job_ids"]]

    def job(self, job: str | int) -> AsyncJobHandle:
        """Return a handle for an existing job."""
        return AsyncJobHandle(self, requests.job_id(job))

    async def get(self, job: str | int) -> Job:
        """One job, or one task of an array (`12_4`), as the REST API shows it."""
        return dict(await self.call("GET", job_path(job)))

    async def list(
        self, state: str | Iterable[str] | None = None, **query: object
    ) -> AsyncIterator[Job]:
        """Yield all jobs that match the query, page by page."""
        query = {"limit": _PAGE} | query | {"state": joined(state)}
        while True:
            page = await self.call("GET", target(f"{API}/jobs", query))
            for job in page["jobs"]:
                yield job
            if not page.get("next_cursor"):
                return
            query["cursor"] = page["next_cursor"]

    async def update(self, job: str | int, **changes: object) -> Job:
        """Change a pending job."""
        return dict(await self.call("PATCH", job_path(job), requests.changes(changes)))

    async def cancel(self, job: str | int, tasks: str | None = None) -> Job:
        """Cancel a job, or some tasks of an array such as `1-3`."""
        return dict(await self.call("DELETE", target(job_path(job), {"tasks": tasks})))

    async def hold(self, job: str | int) -> Job:
        """Hold a job, so that it does not start."""
        return dict(await self.call("POST", job_path(job, "hold")))

    async def release(self, job: str | int) -> Job:
        """Release a held job."""
        return dict(await self.call("POST", job_path(job, "release")))

    async def retry(self, job: str | int, *, cancelled: bool = False) -> Job:
        """Put a job that failed or was cancelled back into the queue.

        Of an array the tasks that failed; with `cancelled`, or if it has ended without a
        failure, the cancelled ones as well.
        """
        query = {"cancelled": "true" if cancelled else None}
        return dict(await self.call("POST", target(job_path(job, "retry"), query)))

    async def resubmit(self, job: str | int) -> AsyncJobHandle:
        """Submit a job that has ended again, as a new job with the same environment.

        Also one that completed. The new job has no dependencies, begin time and deadline.
        """
        answer = await self.call("POST", job_path(job, "resubmit"))
        return AsyncJobHandle(self, answer["job_id"], answer.get("tasks", 1))

    async def correct_usage(
        self, job: str | int, attempt: int, run_seconds: float, reason: str
    ) -> dict[str, Any]:
        """Charge an ended attempt of a job or task for another run time (for admins)."""
        body = {"attempt": attempt, "run_seconds": run_seconds, "reason": reason}
        return dict(await self.call("POST", job_path(job, "correct-usage"), body))

    async def explain(self, job: str | int) -> dict[str, Any]:
        """Why a job waits, and its expected start."""
        return dict(await self.call("GET", job_path(job, "explain")))

    async def tenants(self) -> Sequence[dict[str, Any]]:
        """All tenants."""
        return tuple((await self.call("GET", f"{API}/tenants"))["tenants"])

    async def gpus(self) -> Sequence[dict[str, Any]]:
        """All GPUs."""
        return tuple((await self.call("GET", f"{API}/gpus"))["gpus"])

    async def status(self, *, detailed: bool = False) -> dict[str, Any]:
        """The cluster in numbers; detailed, also how many jobs wait by priority."""
        more = "?detailed=true" if detailed else ""
        return dict(await self.call("GET", f"{API}/cluster/status{more}"))

    async def logs(
        self, job: str | int, *, follow: bool = False, **query: object
    ) -> AsyncIterator[str]:
        """The output of a job as text, in pieces. Query: attempt, task, member, tail, offset."""
        path = target(job_path(job, "logs"), query | {"follow": 1 if follow else None})
        decoder = getincrementaldecoder("utf-8")("replace")
        async with _Exchange(self._candidates) as exchange:
            answer = await exchange.send("GET", path, {"Accept": "text/plain"}, None)
            if answer.status >= _FIRST_ERROR:
                requests.decoded(answer.status, await exchange.rest())
            async for piece in exchange.pieces():
                yield decoder.decode(piece)
        if rest := decoder.decode(b"", final=True):
            yield rest

    async def events(self, after: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """Events as they happen; with `after` also those since that sequence number."""
        key = new_key()
        async with _Exchange(self._candidates) as exchange:
            path = target(f"{API}/events", {"after": after})
            answer = await exchange.send("GET", path, handshake_headers(key), None)
            accepted = answer.headers.get("sec-websocket-accept") == accept_of(key)
            if answer.status != _UPGRADED or not accepted:
                raise Unreadable("the server has no stream of events")
            async for message in exchange.messages(answer):
                yield json.loads(message)

    async def wait(self, job: str | int, timeout: float | None = None) -> Job:  # noqa: ASYNC109
        """Wait until a job has ended, through restarts of the server."""
        try:
            async with asyncio.timeout(timeout):
                return await self._wait(job)
        except TimeoutError:
            raise TimedOut(f"{requests.job_id(job)} has not ended in the time given") from None

    async def _wait(self, job: str | int) -> Job:
        """Like `waiting.wait_for`: request the state, and again after each event of the job."""
        found: Job | None = await self.get(job)
        pause_s = FIRST_PAUSE_S
        while found is None or not requests.is_over(found):
            try:
                found = await self._watch(job)
            except ClusterError:
                found = None
            if found is None:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_PAUSE_S)
        return found

    async def _watch(self, job: str | int) -> Job | None:
        """Return the job once it has ended; None if the stream ended or there is none."""
        key = new_key()
        names = {requests.job_id(job), requests.job_id(job).partition("_")[0]}
        async with _Exchange(self._candidates) as exchange:
            answer = await exchange.send("GET", f"{API}/events", handshake_headers(key), None)
            messages = exchange.messages(answer)
            while True:
                found = await self.get(job)
                if requests.is_over(found):
                    return found
                if answer.status != _UPGRADED or not await _await_event(messages, names):
                    return None

    async def call(self, method: str, path: str, body: object = None, *, once: bool = True) -> Any:
        """Send any request of the REST API; returns the document, or raises the error.

        What changes something carries a key (unless `once` is off), so that it is done once
        however often it is sent.
        """
        headers = requests.headers_for(body, once=once and method != "GET")
        for pause_s in retry.PAUSES_S:
            status, content = await self._follow(method, path, headers, requests.encoded(body))
            if not retry.is_rate_limited(status, content):
                break
            await asyncio.sleep(pause_s)
        return requests.decoded(status, content)

    async def _follow(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, bytes]:
        """Send a request, and retry while there is no leader or no available server."""
        clock = asyncio.get_running_loop().time
        give_up = clock() + retry.FOLLOW_S
        is_safe = retry.is_repeatable(method, headers)
        last_answer: tuple[int, bytes] | None = None
        while True:
            has_others = len(self._candidates) > 1
            can_wait = clock() < give_up
            try:
                async with _Exchange(self._candidates) as exchange:
                    self._has_answered = True
                    answer = await exchange.send(method, path, headers, body)
                    content = await exchange.rest()
            except (NoServer, Unreadable) as error:
                if last_answer is not None and not has_others:
                    return last_answer
                # If none of them has ever answered, waiting cannot help.
                is_harmless = is_safe or isinstance(error, NoServer)
                if not (can_wait and has_others and self._has_answered and is_harmless):
                    raise
            else:
                last_answer = answer.status, content
                if not can_wait or not retry.should_retry_elsewhere(
                    *last_answer, has_others=has_others, is_safe=is_safe
                ):
                    return last_answer
            self._candidates = self._candidates[1:] + self._candidates[:1]
            await asyncio.sleep(retry.FOLLOW_PAUSE_S)


class _Exchange:
    """One request and its response on a separate connection."""

    def __init__(self, addresses: list[Address]) -> None:
        self._addresses = addresses
        self._answer = Answer()
        self._first: list[bytes] = []

    async def __aenter__(self) -> Self:
        self._address, self._reader, self._writer = await _connect(self._addresses)
        return self

    async def __aexit__(self, *_: object) -> None:
        # Without the closing handshake of TLS, for which some event loops do not live long enough.
        self._writer.transport.abort()

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Send a request, and wait for the head of the response."""
        host = self._address.host_header
        shown = dict(headers) | headers_for(self._address)
        self._writer.write(request_bytes(method, path, host, shown, body))
        while not self._answer.status:
            self._first += self._answer.feed(await self._read())
        return self._answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        for piece in self._first:
            yield piece
        while not self._answer.done:
            for piece in self._answer.feed(await self._read()):
                yield piece

    async def rest(self) -> bytes:
        """The whole body."""
        return b"".join([piece async for piece in self.pieces()])

    async def messages(self, answer: Answer) -> AsyncIterator[bytes]:
        """The bytes after a protocol upgrade."""
        frames = Frames()
        data = answer.rest
        while not frames.closed:
            for message in frames.feed(data):
                yield message
            if frames.reply:
                self._writer.write(bytes(frames.reply))
                frames.reply.clear()
            data = await self._read()
            if not data:
                return

    async def _read(self) -> bytes:
        try:
            return await self._reader.read(_PIECE)
        except OSError as error:
            raise Unreadable(f"the connection to the server was lost: {error}") from error


async def _await_event(messages: AsyncIterator[bytes], names: set[str]) -> bool:
    """Wait for an event of a job, or for a while; False if the stream has ended."""
    try:
        async with asyncio.timeout(POLL_INTERVAL_S):
            async for message in messages:
                if json.loads(message).get("job_id") in names:
                    return True
    except TimeoutError:
        # The stream cannot be read on after an interrupted read.
        return False
    return False


async def _connect(
    addresses: list[Address],
) -> tuple[Address, asyncio.StreamReader, asyncio.StreamWriter]:
    tried = []
    for address in addresses:
        try:
            if not address.path:
                return address, *await _open_tcp(address)
            streams = await _open_unix(address.path)
        except OSError as error:
            tried.append(f"{address} ({error.strerror or str(error) or 'timed out'})")
            continue
        raw: socket.socket = streams[1].get_extra_info("socket")
        try:
            check_owner(address.path, peer_uid(raw))
        except NoServer:
            streams[1].close()
            raise
        return address, *streams
    raise no_server_error(addresses, tried)


async def _open_tcp(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    tls = tls_context() if address.tls else None
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    notice_loss(writer.get_extra_info("socket"))
    return reader, writer


async def _open_unix(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect; while the server's backlog is full, try again.

    Not by asyncio's own connect, which takes a full backlog for a connection under way.
    """
    end = asyncio.get_running_loop().time() + CONNECT_TIMEOUT_S
    opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    opened.setblocking(False)
    try:
        while True:
            try:
                opened.connect(path)
                return await asyncio.open_unix_connection(sock=opened)
            except BlockingIOError:
                if asyncio.get_running_loop().time() > end:
                    raise
                await asyncio.sleep(FIRST_PAUSE_S)
    except BaseException:
        opened.close()
        raise
