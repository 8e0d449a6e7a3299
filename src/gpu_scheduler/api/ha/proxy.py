"""Proxy of a standby to the leader: forwards requests and relays the responses.

The standby has authenticated the caller and checked the request before. While there is no leader,
the request waits for one. It is sent again only if the leader cannot have executed it, or if
executing it twice has the same effect as once: a read, or a change with an Idempotency-Key.

The standby answers reads itself. It asks the leader where its own cluster state is behind: the
caller has changed something since that state was read, or the state lacks a job that the database
has. Reads never wait for a leader.

A forwarded request says so in a header. A server that has just lost the leadership rejects it,
instead of forwarding it again in its own name.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from gpu_scheduler.api.auth.peer_credentials import peer_in
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.forwarded_identity import HEADER as FORWARDED_IDENTITY
from gpu_scheduler.api.ha.forwarded_identity import SignedRequest, sign_identity
from gpu_scheduler.api.ha.leadership_gate import (
    FORWARDED_HEADER,
    READING,
    LeadershipStatus,
    collect_stale,
)
from gpu_scheduler.api.http.idempotency import HEADER as KEY
from gpu_scheduler.api.http.openapi import Handler, Operation
from gpu_scheduler.api.http.request import (
    WEBSOCKET_RESPONSE,
    Receive,
    Request,
    Response,
    Send,
    Stream,
    request_target,
    send_response,
    until_first_ends,
)
from gpu_scheduler.client.address import read_address
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.http1 import Answer as Reply
from gpu_scheduler.client.http1 import request_bytes
from gpu_scheduler.client.keepalive import keep_alive
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

WAIT_FOR_LEADER_S = 12.0
"""A little longer than a failover takes."""
CONNECT_S = 3.0
RESPONSE_S = 60.0
READ_S = 3.0
"""How long the leader has to answer a read that this server could answer from its own state."""
RETRY_S = 0.2
WEBSOCKET_CLOSE_S = 5.0
SWITCHING_PROTOCOLS = 101
UNAVAILABLE = 503
WEBSOCKET_FAILED = 1011
CHUNK = 1 << 18
WEBSOCKET_CHUNK = 1 << 16
LEADER_OPERATIONS = frozenset({"job_logs"})
"""Reads that only the leader can answer: its agents have the logs."""
READ_FROM = b"x-tgpu-read"
REQUEST_HEADERS = (b"content-type", b"accept", KEY, b"authorization")
RESPONSE_HEADERS = (
    *("retry-after", "idempotency-replayed", "www-authenticate", "allow", "x-tgpu-role"),
    *("x-tgpu-term", "content-disposition"),
)
log = structlog.get_logger("standby")


class _NotExecuted(Exception):
    """The leader did not get the request, or has answered that it did not execute it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderProxy:
    """Forwards requests to the current leader."""

    leadership: LeadershipStatus
    secret: bytes
    tls: Callable[[], ssl.SSLContext]
    age_s: Callable[[], float] = lambda: 0.0
    """The age of the cluster state from which this server answers."""
    _changed: dict[str, float] = field(default_factory=dict, init=False)
    """When each user last changed something through this server, if the state is older."""

    def needs_leader(self, operation: Operation, headers: dict[bytes, bytes]) -> bool:
        """Whether only the leader can answer: changes, logs, and reads that ask for the leader."""
        return (
            operation.method not in READING
            or operation.name in LEADER_OPERATIONS
            or headers.get(READ_FROM) == b"leader"
        )

    async def read(self, context: Context, request: Request, handler: Handler) -> Response:
        """Answer a read from the standby's state; where that is behind, ask the leader."""
        if self._changed.get(request.caller.user, -1e9) >= self._state_time:
            response = await self._read_from_leader(context, request)
            if response is not None:
                return response
        with collect_stale() as stale:
            local = await handler(context, request)
        return (await self._read_from_leader(context, request) if stale else None) or local

    @property
    def _state_time(self) -> float:
        return asyncio.get_running_loop().time() - self.age_s()

    def _note_change(self, user: str) -> None:
        """Note a change, and drop the users whose changes the state contains by now."""
        state_time = self._state_time
        for known in [one for one, at in self._changed.items() if at < state_time]:
            del self._changed[known]
        self._changed[user] = asyncio.get_running_loop().time()

    async def _read_from_leader(self, context: Context, request: Request) -> Response | None:
        """Return the leader's response to a read; None if there is no leader or it is slow."""
        lead = self.leadership.lead
        if not self._is_reachable(lead) or self._has_our_address(lead):
            return None
        try:
            async with asyncio.timeout(READ_S):
                response = await self._send(lead, request, b"", await _user(context, request))
        except (_NotExecuted, OSError, Unreadable, TimeoutError) as error:
            log.info("leader did not answer a read", why=str(error))
            return None
        return None if response.status == UNAVAILABLE else response

    async def forward(self, context: Context, request: Request, operation: Operation) -> Response:
        """Return the leader's response; raises `NotLeader` if no leader takes the request."""
        try:
            body = await request.body(context.settings.bounds.bulk_bytes)
            user = await _user(context, request)
            is_retryable = operation.is_retryable(has_key=KEY in request.headers)
            clock = asyncio.get_running_loop().time
            deadline = clock() + WAIT_FOR_LEADER_S
            while True:
                lead = await self._wait_for_leader(deadline - clock())
                try:
                    return await self._send(lead, request, body, user)
                except _NotExecuted as reason:
                    log.info("leader did not accept a request", why=str(reason))
                    if clock() > deadline:
                        raise _not_taken(lead, reason) from reason
                except (OSError, Unreadable) as error:
                    if not is_retryable or clock() > deadline:
                        raise ClusterError(
                            "the connection to the leader failed; it is unknown whether it "
                            "executed the request. Check first, or repeat such requests with an "
                            "Idempotency-Key"
                        ) from error
                await asyncio.sleep(RETRY_S)
        finally:
            if operation.method not in READING:
                self._note_change(request.caller.user)

    async def forward_websocket(
        self, context: Context, request: Request, receive: Receive, send: Send
    ) -> None:
        """Relay a WebSocket between the caller and the leader."""
        user = await _user(context, request)
        clock = asyncio.get_running_loop().time
        deadline = clock() + WAIT_FOR_LEADER_S
        while True:
            lead = await self._wait_for_leader(deadline - clock())
            try:
                reader, writer = await self._connect(lead)
                try:
                    reply, body = await self._handshake(lead, request, user, reader, writer)
                    if reply.status == SWITCHING_PROTOCOLS:
                        await _relay_websocket(reply.rest, reader, writer, receive, send)
                    else:
                        rejected = Response(body, status=reply.status)
                        kind = WEBSOCKET_RESPONSE
                        await send_response(rejected, receive, send, request.request_id, kind=kind)
                    return
                finally:
                    writer.close()
            except _NotExecuted as reason:
                if clock() > deadline:
                    raise _not_taken(lead, reason) from reason
            except (OSError, Unreadable) as error:
                raise ClusterError(
                    "the connection to the leader failed; try again in a moment"
                ) from error
            await asyncio.sleep(RETRY_S)

    async def _handshake(
        self,
        lead: LeaderLease,
        request: Request,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> tuple[Reply, bytes]:
        """Return the leader's response to a WebSocket handshake, with its body if it rejects."""
        writer.write(self._request_bytes(lead, request, b"", user, handshake_headers(new_key())))
        reply = Reply()
        chunks: list[bytes] = []
        async with asyncio.timeout(RESPONSE_S):
            while not reply.status or not reply.done:
                chunks += reply.feed(await reader.read(CHUNK))
        body = b"".join(chunks)
        _check_is_leader(reply, body)
        return reply, body

    async def _wait_for_leader(self, longest_s: float) -> LeaderLease:
        """Return the leader; wait until there is one."""
        lead = self.leadership.lead
        try:
            async with asyncio.timeout(longest_s):
                while not self._is_reachable(lead) or self._has_our_address(lead):
                    if self.leadership.is_leaving:
                        raise NotLeader(
                            "this server is shutting down; ask another one, or again in a moment"
                        )
                    await self.leadership.changed()
                    lead = self.leadership.lead
                return lead
        except TimeoutError:
            if lead.is_held and self._has_our_address(lead):
                raise NotLeader(
                    f"this server is a standby, and the leader '{lead.holder}' gives the address "
                    f"{lead.address}, which is that of this server; give each server an address "
                    "that the others reach (server.address)"
                ) from None
            raise NotLeader(
                "this server is a standby, and no leader has answered; try again in a moment"
            ) from None

    def _is_reachable(self, lead: LeaderLease) -> bool:
        """Whether there is a leader with an address; not this server if its term is over."""
        is_past = lead.holder == self.leadership.me.name and not self.leadership.is_held
        return lead.is_held and bool(lead.address) and not is_past

    def _has_our_address(self, lead: LeaderLease) -> bool:
        """Whether another server wrongly gives the address of this server as its own."""
        me = self.leadership.me
        return lead.address == me.address and lead.holder != me.name

    async def _send(self, lead: LeaderLease, request: Request, body: bytes, user: str) -> Response:
        """Send a request to the leader and return its response."""
        reader, writer = await self._connect(lead)
        try:
            writer.write(self._request_bytes(lead, request, body, user, {"connection": "close"}))
            reply = Reply()
            first: list[bytes] = []
            async with asyncio.timeout(RESPONSE_S):
                while not reply.status:
                    first += reply.feed(await reader.read(CHUNK))
            headers = tuple(
                (name.encode(), reply.headers[name].encode("latin-1"))
                for name in RESPONSE_HEADERS
                if name in reply.headers
            )
            media = reply.headers.get("content-type", "application/json").encode("latin-1")
            chunks = _body_chunks(reply, first, reader, writer)
            if "chunked" in reply.headers.get("transfer-encoding", ""):
                stream = Stream(self._until_shutdown(chunks, writer))
                return Response(status=reply.status, media=media, headers=headers, stream=stream)
            async with asyncio.timeout(RESPONSE_S), aclosing(chunks) as rest:  # type: ignore[type-var]
                content = b"".join([chunk async for chunk in rest])
            _check_is_leader(reply, content)
            return Response(content, status=reply.status, media=media, headers=headers)
        except BaseException:
            writer.close()
            raise

    async def _connect(
        self, lead: LeaderLease
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = read_address(lead.address)
        tls = self.tls() if address.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    address.host, address.port, ssl=tls, limit=CHUNK
                )
        except (OSError, TimeoutError) as error:
            raise _NotExecuted(f"{address} cannot be reached: {error}") from error
        keep_alive(writer.get_extra_info("socket"))
        return reader, writer

    def _request_bytes(
        self, lead: LeaderLease, request: Request, body: bytes, user: str, more: dict[str, str]
    ) -> bytes:
        """Encode the request for the leader; without a token, with the signed caller."""
        scope = request.scope
        target = request_target(scope)
        headers = {
            name.decode(): request.headers[name].decode("latin-1")
            for name in REQUEST_HEADERS
            if name in request.headers
        }
        headers |= more
        headers[FORWARDED_HEADER.decode()] = "1"
        method = scope.get("method", "GET")
        if b"authorization" not in request.headers:
            signed = SignedRequest(
                method=method.encode(),
                target=target,
                body=body,
                key=request.headers.get(KEY, b""),
            )
            headers[FORWARDED_IDENTITY.decode()] = sign_identity(
                self.secret,
                peer_in(scope),
                user,
                signed,
                server=self.leadership.me.name,
                term=lead.term,
                at_ms=self.leadership.database_ms(),
            ).decode()
        path = target.decode("latin-1")
        host = read_address(lead.address).host_header
        is_websocket = scope["type"] == "websocket"
        return request_bytes(method, path, host, headers, None if is_websocket else body)

    async def _until_shutdown(
        self, chunks: AsyncIterator[bytes], writer: asyncio.StreamWriter
    ) -> AsyncIterator[bytes]:
        """Yield a stream that may last for days; end it when this server shuts down."""

        async def close_at_shutdown() -> None:
            while not self.leadership.is_leaving:
                await self.leadership.changed()
            writer.close()

        closing = asyncio.ensure_future(close_at_shutdown())
        try:
            async with aclosing(chunks) as relayed:  # type: ignore[type-var]
                async for chunk in relayed:
                    yield chunk
        finally:
            closing.cancel()


async def _user(context: Context, request: Request) -> str:
    """Return the account name of the peer; empty for a caller with a token."""
    peer = peer_in(request.scope)
    uid = peer.uid
    if uid is None or b"authorization" in request.headers:
        return ""
    account = await context.directory.accounts.wait_for(
        lambda: context.directory.accounts.of(uid, peer.gid)
    )
    return account.name


def _check_is_leader(reply: Reply, body: bytes) -> None:
    if reply.status == UNAVAILABLE and b'"not_leader"' in body:
        raise _NotExecuted("it is not the leader any more")


def _not_taken(lead: LeaderLease, reason: _NotExecuted) -> NotLeader:
    text = (
        f"this server is a standby, and the leader '{lead.holder}' at {lead.address} did not take "
        f"the request: {reason}; try again in a moment"
    )
    if read_address(lead.address).is_loopback:
        text += ". If it is on another machine, it must give an address that others reach "
        text += "(server.address)"
    return NotLeader(text)


async def _body_chunks(
    reply: Reply,
    first: list[bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> AsyncIterator[bytes]:
    """Yield the body of the leader's response as it arrives."""
    try:
        for chunk in first:
            yield chunk
        while not reply.done:
            for chunk in reply.feed(await reader.read(CHUNK)):
                yield chunk
    finally:
        writer.close()


# WebSockets: messages are relayed in both directions


async def _relay_websocket(
    received: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    receive: Receive,
    send: Send,
) -> None:
    """Relay until one side closes. `received` came from the leader after its handshake."""
    await receive()
    await send({"type": "websocket.accept"})
    frames = Frames(received)
    to_caller = _relay_to_caller(frames, reader, writer, send)
    async with until_first_ends(to_caller, _relay_to_leader(writer, receive)) as (down, up):
        if up.done():
            return
        code, reason = WEBSOCKET_FAILED, "the connection to the leader failed"
        if down.exception() is None and frames.closed:
            code, reason = frames.close_code or WEBSOCKET_FAILED, frames.close_reason
        async with asyncio.timeout(WEBSOCKET_CLOSE_S):
            await send({"type": "websocket.close", "code": code, "reason": reason})


async def _relay_to_caller(
    frames: Frames, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Send
) -> None:
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
        data = await reader.read(WEBSOCKET_CHUNK)
        if not data:
            raise Unreadable("the connection to the leader was closed")


async def _relay_to_leader(writer: asyncio.StreamWriter, receive: Receive) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        data = message.get("bytes")
        if data is None:
            writer.write(masked(TEXT, message["text"].encode()))
        else:
            writer.write(masked(BINARY, data))
        await writer.drain()
    writer.write(masked(CLOSE, b""))
    await writer.drain()
