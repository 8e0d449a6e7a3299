"""A standby passes on what only the leader can do, and what the leader says comes back.

The caller is known, and the request was checked, before it comes here. While nobody leads it is
kept waiting for a while. It is sent again only if the leader cannot have done it, or if doing it
twice is doing it once: a read, or a change whose Idempotency-Key is heeded.

Reads are answered here, and asked of the leader where this state is behind: the caller has changed
something since it was read, or it does not know what a row tells of. Nobody waits for a leader for
that.

It is passed on once, and says so: a server that has just lost the lead refuses it, and does not
pass it on again in its own name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpu_scheduler.api.auth.peer_credentials import UNKNOWN, Peer
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.forwarded_identity import HEADER as VOUCHED
from gpu_scheduler.api.ha.forwarded_identity import Asked, sign_identity
from gpu_scheduler.api.ha.gate import FORWARDED_HEADER, READING, LeadershipStatus, collect_stale
from gpu_scheduler.api.http.idempotency import HEADER as KEY
from gpu_scheduler.api.http.operations import Handler, Operation
from gpu_scheduler.api.http.request import SOCKET_REFUSED, Request, Response, Stream, send_response
from gpu_scheduler.client.address import read_address
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.http1 import Answer as Reply
from gpu_scheduler.client.http1 import request_bytes
from gpu_scheduler.client.socket_options import keep_alive
from gpu_scheduler.client.websocket import (
    BINARY,
    CLOSE,
    TEXT,
    Frames,
    handshake_headers,
    masked,
    new_key,
)
from gpu_scheduler.model.errors import ClusterError, NotLeader
from gpu_scheduler.model.identity import LeaderLease

# --- A WebSocket of the leader and one of a caller of a standby, joined: messages go both ways.

WEBSOCKET_PIECE = 1 << 16
BROKEN = 1011
CLOSE_S = 5.0


async def relay_websocket(
    already: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    receive: Receive,
    send: Send,
) -> None:
    """Until one of them is closed. `already` is what the leader said right after its yes."""
    await receive()
    await send({"type": "websocket.accept"})
    frames = Frames(already)
    down = asyncio.ensure_future(_down(frames, reader, writer, send))
    up = asyncio.ensure_future(_up(writer, receive))
    try:
        await asyncio.wait({down, up}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            return
        code, reason = BROKEN, "the leader broke off"
        if down.exception() is None and frames.closed:
            code, reason = frames.close_code or BROKEN, frames.close_reason
        async with asyncio.timeout(CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})
    finally:
        for task in (down, up):
            task.cancel()
        await asyncio.gather(down, up, return_exceptions=True)


async def _down(
    frames: Frames, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Send
) -> None:
    """What the leader says."""
    data = b""
    while True:
        for message in frames.feed(data):
            if frames.kind == TEXT:
                await send({"type": "websocket.send", "text": message.decode()})
            else:
                await send({"type": "websocket.send", "bytes": message})
        if frames.reply:
            writer.write(bytes(frames.reply))
            frames.reply.clear()
        if frames.closed:
            return
        data = await reader.read(WEBSOCKET_PIECE)
        if not data:
            raise Unreadable("the leader broke off")


async def _up(writer: asyncio.StreamWriter, receive: Receive) -> None:
    """What the caller says; its end is the end."""
    while (message := await receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        if data is None:
            writer.write(masked(TEXT, message["text"].encode()))
        else:
            writer.write(masked(BINARY, data))
        await writer.drain()
    writer.write(masked(CLOSE, b""))
    await writer.drain()


# --- A standby passes on what only the leader can do, and what the leader says comes back.

WAIT_FOR_LEADER_S = 12.0
"""A little longer than a failover takes."""
CONNECT_S = 3.0
REPLY_S = 60.0
READ_S = 3.0
"""So long the leader has to answer a read that this server could answer itself, if less well."""
UNAVAILABLE = 503
AGAIN_S = 0.2
UPGRADED = 101
PIECE = 1 << 18
ALWAYS_LEADER = frozenset({"job_logs"})
LEADER_WANTED = b"x-tgpu-read"
PASSED_ON = (b"content-type", b"accept", KEY, b"authorization")
PASSED_BACK = (
    *("retry-after", "idempotency-replayed", "www-authenticate", "allow", "x-tgpu-role"),
    *("x-tgpu-term", "content-disposition"),
)
log = structlog.get_logger("standby")

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


class _Unsent(Exception):
    """The leader cannot have seen the request, or has said that it did nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderProxy:
    """Passes requests on to whoever leads."""

    standing: LeadershipStatus
    secret: bytes
    tls: Callable[[], ssl.SSLContext]
    age_s: Callable[[], float] = lambda: 0.0
    """How old the cluster state is from which this server answers."""
    _changed: dict[str, float] = field(default_factory=dict, init=False)
    """When each user has last changed something through this server, if its state is older."""

    def wants(self, operation: Operation, headers: dict[bytes, bytes]) -> bool:
        """Tell whether this is for the leader: changes, logs, and what is asked for so."""
        return (
            operation.method not in READING
            or operation.name in ALWAYS_LEADER
            or headers.get(LEADER_WANTED) == b"leader"
        )

    async def read(self, context: Context, request: Request, handler: Handler) -> Response:
        """What this server knows; where that is behind, what the leader says, if there is one."""
        if self._changed.get(request.caller.user, -1e9) >= self._read_at:
            told = await self._told_at_once(context, request)
            if told is not None:
                return told
        with collect_stale() as gaps:
            answer = await handler(context, request)
        return (await self._told_at_once(context, request) if gaps else None) or answer

    @property
    def _read_at(self) -> float:
        return asyncio.get_running_loop().time() - self.age_s()

    def _note_change(self, user: str) -> None:
        """Forget those whom the cluster state has caught up with, so that this stays small."""
        read_at = self._read_at
        for known in [one for one, at in self._changed.items() if at < read_at]:
            del self._changed[known]
        self._changed[user] = asyncio.get_running_loop().time()

    async def _told_at_once(self, context: Context, request: Request) -> Response | None:
        """What the leader says to a read; None if there is none, or it does not answer soon."""
        lead = self.standing.lead
        if not self._is_of_use(lead) or self._is_mistaken(lead):
            return None
        try:
            async with asyncio.timeout(READ_S):
                told = await self._ask(lead, request, b"", await _user(context, request))
        except (_Unsent, OSError, Unreadable, TimeoutError) as error:
            log.info("the leader did not answer a read", why=str(error))
            return None
        return None if told.status == UNAVAILABLE else told

    async def forward(self, context: Context, request: Request, operation: Operation) -> Response:
        """What the leader says; raises `NotLeader` if none takes it for too long."""
        try:
            return await self._answer(context, request, operation)
        finally:
            if operation.method not in READING:
                self._note_change(request.caller.user)

    async def _answer(self, context: Context, request: Request, operation: Operation) -> Response:
        body = await request.body(context.settings.bounds.bulk_bytes)
        user = await _user(context, request)
        is_safe = operation.is_safe_again(has_key=KEY in request.headers)
        clock = asyncio.get_running_loop().time
        give_up = clock() + WAIT_FOR_LEADER_S
        while True:
            lead = await self._leader(give_up - clock())
            try:
                return await self._ask(lead, request, body, user)
            except _Unsent as reason:
                log.info("the leader did not take a request", why=str(reason))
                if clock() > give_up:
                    raise _given_up(lead, reason) from reason
            except (OSError, Unreadable) as error:
                if not is_safe or clock() > give_up:
                    raise ClusterError(
                        "the leader broke off; whether it has done this is not known. Look first, "
                        "or repeat such requests with an Idempotency-Key"
                    ) from error
            await asyncio.sleep(AGAIN_S)

    async def socket(
        self, context: Context, request: Request, receive: Receive, send: Send
    ) -> None:
        """A WebSocket of the leader, as if it were ours."""
        user = await _user(context, request)
        clock = asyncio.get_running_loop().time
        give_up = clock() + WAIT_FOR_LEADER_S
        while True:
            lead = await self._leader(give_up - clock())
            try:
                reader, writer = await self._connected(lead)
                try:
                    reply, body = await self._greeted(lead, request, user, reader, writer)
                    if reply.status == UPGRADED:
                        await relay_websocket(reply.rest, reader, writer, receive, send)
                    else:
                        refused = Response(body, status=reply.status)
                        kind = SOCKET_REFUSED
                        await send_response(refused, receive, send, request.request_id, kind=kind)
                    return
                finally:
                    writer.close()
            except _Unsent as reason:
                if clock() > give_up:
                    raise _given_up(lead, reason) from reason
            except (OSError, Unreadable) as error:
                raise ClusterError("the leader broke off; try again in a moment") from error
            await asyncio.sleep(AGAIN_S)

    async def _greeted(
        self,
        lead: LeaderLease,
        request: Request,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> tuple[Reply, bytes]:
        """The leader's answer to a handshake, with its body if it refuses."""
        writer.write(self._request(lead, request, b"", user, handshake_headers(new_key())))
        reply = Reply()
        pieces: list[bytes] = []
        async with asyncio.timeout(REPLY_S):
            while not reply.status or not reply.done:
                pieces += reply.feed(await reader.read(PIECE))
        body = b"".join(pieces)
        if reply.status == 503 and b'"not_leader"' in body:
            raise _Unsent("it does not lead any more")
        return reply, body

    async def _leader(self, longest_s: float) -> LeaderLease:
        """Who leads, and where; waited for, as there is one again soon."""
        lead = self.standing.lead
        try:
            async with asyncio.timeout(longest_s):
                while not self._is_of_use(lead) or self._is_mistaken(lead):
                    if self.standing.is_leaving:
                        raise NotLeader("this server stops; ask another one, or again in a moment")
                    await self.standing.changed()
                    lead = self.standing.lead
                return lead
        except TimeoutError:
            if lead.is_held and self._is_mistaken(lead):
                raise NotLeader(
                    f"this server stands by, and the leader '{lead.holder}' says that it is at "
                    f"{lead.address}, which is this server itself; give each server an address "
                    "that the others reach (server.address)"
                ) from None
            raise NotLeader(
                "this server stands by, and no leader has answered; try again in a moment"
            ) from None

    def _is_of_use(self, lead: LeaderLease) -> bool:
        """Tell whether somebody leads whom we can ask: not ourselves, if our lead is over."""
        is_past = lead.holder == self.standing.me.name and not self.standing.is_held
        return lead.is_held and bool(lead.address) and not is_past

    def _is_mistaken(self, lead: LeaderLease) -> bool:
        """Tell whether another server gives our own address for its own."""
        me = self.standing.me
        return lead.address == me.address and lead.holder != me.name

    async def _ask(self, lead: LeaderLease, request: Request, body: bytes, user: str) -> Response:
        reader, writer = await self._connected(lead)
        try:
            writer.write(self._request(lead, request, body, user, {"connection": "close"}))
            reply = Reply()
            async with asyncio.timeout(REPLY_S):
                first: list[bytes] = []
                while not reply.status:
                    first += reply.feed(await reader.read(PIECE))
            return await self._told(reply, first, reader, writer)
        except BaseException:
            writer.close()
            raise

    async def _connected(
        self, lead: LeaderLease
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = read_address(lead.address)
        tls = self.tls() if address.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=tls, limit=PIECE
                )
        except (OSError, TimeoutError) as error:
            raise _Unsent(f"{address} cannot be reached: {error}") from error
        keep_alive(writer.get_extra_info("socket"))
        return reader, writer

    def _request(
        self, lead: LeaderLease, request: Request, body: bytes, user: str, more: dict[str, str]
    ) -> bytes:
        """The same request, with who asks in a form that the leader can check."""
        scope = request.scope
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = {
            name.decode(): request.headers[name].decode("latin-1")
            for name in PASSED_ON
            if name in request.headers
        }
        headers |= more
        headers[FORWARDED_HEADER.decode()] = "1"
        method = scope.get("method", "GET")
        if b"authorization" not in request.headers:
            peer: Peer = scope.get("state", {}).get("peer", UNKNOWN)
            asked = Asked(
                method=method.encode(),
                target=target,
                body=body,
                key=request.headers.get(KEY, b""),
            )
            standing = self.standing
            headers[VOUCHED.decode()] = sign_identity(
                self.secret,
                peer,
                user,
                asked,
                server=standing.me.name,
                term=lead.term,
                at_ms=standing.database_ms(),
            ).decode()
        path = target.decode("latin-1")
        host = read_address(lead.address).host_header
        is_socket = scope["type"] == "websocket"
        return request_bytes(method, path, host, headers, None if is_socket else body)

    async def _told(
        self,
        reply: Reply,
        first: list[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> Response:
        headers = tuple(
            (name.encode(), reply.headers[name].encode("latin-1"))
            for name in PASSED_BACK
            if name in reply.headers
        )
        media = reply.headers.get("content-type", "application/json").encode("latin-1")
        pieces = _pieces(reply, first, reader, writer)
        if "chunked" in reply.headers.get("transfer-encoding", ""):
            stream = Stream(self._until_we_stop(pieces, writer))
            return Response(status=reply.status, media=media, headers=headers, stream=stream)
        async with asyncio.timeout(REPLY_S), aclosing(pieces) as rest:  # type: ignore[type-var]
            body = b"".join([piece async for piece in rest])
        if reply.status == 503 and b'"not_leader"' in body:
            raise _Unsent("it does not lead any more")
        return Response(body, status=reply.status, media=media, headers=headers)

    async def _until_we_stop(
        self, pieces: AsyncIterator[bytes], writer: asyncio.StreamWriter
    ) -> AsyncIterator[bytes]:
        """What may go on for days breaks off when this server stops: its reader resumes."""

        async def stop() -> None:
            while not self.standing.is_leaving:
                await self.standing.changed()
            writer.close()

        stopping = asyncio.ensure_future(stop())
        try:
            async with aclosing(pieces) as passed_on:  # type: ignore[type-var]
                async for piece in passed_on:
                    yield piece
        finally:
            stopping.cancel()


async def _user(context: Context, request: Request) -> str:
    """What the account is called that the kernel names; nobody is asked about one with a token."""
    peer: Peer = request.scope.get("state", {}).get("peer", UNKNOWN)
    uid = peer.uid
    if uid is None or b"authorization" in request.headers:
        return ""
    account = await context.directory.when_known(lambda: context.directory.account(uid, peer.gid))
    return account.name


def _given_up(lead: LeaderLease, reason: _Unsent) -> NotLeader:
    text = (
        f"this server stands by, and the leader '{lead.holder}' at {lead.address} did not take the "
        f"request: {reason}; try again in a moment"
    )
    if read_address(lead.address).is_loopback:
        text += ". If it is on another machine, it must give an address that others reach "
        text += "(server.address)"
    return NotLeader(text)


async def _pieces(
    reply: Reply,
    first: list[bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> AsyncIterator[bytes]:
    """The body as it comes."""
    try:
        for piece in first:
            yield piece
        while not reply.done:
            for piece in reply.feed(await reader.read(PIECE)):
                yield piece
    finally:
        writer.close()
