"""The stream between an agent and its server: messages go both ways until one side is gone.

Usually gRPC. A program that has both sides in itself joins them directly.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import grpc

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import CHALLENGE, SERVER_NAME, leader_in_reason
from gpu_scheduler.wire.orders import SESSION_METHOD

# --- Connections from an agent to its servers: over TLS to those that the right authority vouches
# for.
#
# Without credentials a target must be a socket of this machine.

MESSAGE_BYTES = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A connection that a former process left behind must not be used again.
    ("grpc.use_local_subchannel_pool", 1),
)
OVER_NETWORK = (
    *OPTIONS,
    # A server that is frozen, or whose machine is gone, says nothing: ask, and give up soon.
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The authority whose servers are believed, and what is shown to them (PEM)."""

    authority: bytes = b""
    key: bytes = b""
    certificate: bytes = b""
    plain: bool = False


def open_channel(target: str, credentials: Credentials | None = None) -> grpc.aio.Channel:
    """A channel to one server."""
    if target.startswith("unix:"):
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    if credentials is None or credentials.plain:
        return grpc.aio.insecure_channel(target, options=OVER_NETWORK)
    secure = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key or None, credentials.certificate or None
    )
    named = ("grpc.ssl_target_name_override", SERVER_NAME)
    return grpc.aio.secure_channel(target, secure, options=(*OVER_NETWORK, named))


# --- The stream between an agent and its server: messages go both ways until one side is gone.

BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""What a stream says whose server is gone; the second if something is being written."""


class Stream(Protocol):
    """An open stream, as the agent sees it; iterating gives what the server says."""

    async def write(self, message: pb.AgentMessage) -> None:
        """Tell the server something."""
        ...

    def __aiter__(self) -> AsyncIterator[pb.ServerMessage]:
        """What the server says, until the stream ends."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[Stream]]
"""Opens a stream, for as long as its block lasts."""


class ServerRejected(ClusterError):
    """The server does not take this agent in; the text says why."""

    code = "agent_refused"

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        """If it is final, there is no use in coming back."""
        super().__init__(reason or "the server sends this agent away and does not say why")
        self.is_final = is_final
        self.ask = leader_in_reason(reason)


class IdentityHolder(Protocol):
    """What a node shows of itself; it may be renewed between two streams."""

    @property
    def identity(self) -> NodeIdentity:
        """Who it is at the moment."""
        ...


class RenewableIdentity(Protocol):
    """The same, of a node that can have another key if this one is refused; see `agent.keeper`."""

    @property
    def identity(self) -> FollowingIdentity:
        """Who it is at the moment."""
        ...

    async def rejoin(self, *, is_refused: bool) -> str:
        """Join anew if there is need and a way; say what came of it, or what is to be done."""
        ...


class NodeIdentity(Protocol):
    """A node's key at work; see `agent.join`."""

    def proof(self, challenge: bytes, node: str, instance: str) -> str:
        """What a hello must hold to be believed."""
        ...

    def channel_credentials(self) -> Credentials:
        """How servers are reached and known."""
        ...


class FollowingIdentity(NodeIdentity, Protocol):
    """The same, of a node that may be sent to servers which it was not told of."""

    def may_redirect_to(self, target: str) -> bool:
        """Tell whether nobody but a server of its cluster can be believed there."""
        ...


class ServerConnector:
    """Opens streams to several servers, to the next one each time."""

    def __init__(
        self, targets: Sequence[str], credentials: RenewableIdentity | None = None
    ) -> None:
        """Their gRPC addresses; there must be one. Over a network there must be credentials."""
        self._targets = tuple(targets)
        self._turn = 0
        self._sent_to = ""
        self._credentials = credentials

    def __call__(self) -> AbstractAsyncContextManager[Stream]:
        """A stream to the one whose turn it is."""
        return grpc_stream(self._next(), self._credentials)

    def _next(self) -> str:
        if self._sent_to:
            target, self._sent_to = self._sent_to, ""
            return target
        target = self._targets[self._turn]
        self._turn = (self._turn + 1) % len(self._targets)
        return target

    def prefer(self, target: str) -> None:
        """The next one is this, if it is one of ours, or has to prove that it is of our cluster.

        A server may not send us just anywhere. After one that we do not know come our own again.
        """
        if target in self._targets:
            self._turn = self._targets.index(target)
        elif self._credentials is not None and self._credentials.identity.may_redirect_to(target):
            self._sent_to = target

    async def hear(self, error: Exception) -> str:
        """What went wrong with a stream; a node whose key is refused joins anew if it can."""
        words = error_text(error)
        if self._credentials is None:
            return words
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        is_refused = code is grpc.StatusCode.UNAUTHENTICATED
        told = await self._credentials.rejoin(is_refused=is_refused)
        return f"{words}; {told}" if told else words


def error_text(error: Exception) -> str:
    """What went wrong with a stream, without the library's own notes."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name.lower()
    return str(error)


def _opened(channel: grpc.aio.Channel) -> Any:
    return channel.stream_stream(
        SESSION_METHOD,
        request_serializer=pb.AgentMessage.SerializeToString,
        response_deserializer=pb.ServerMessage.FromString,
    )()


@asynccontextmanager
async def _explained(call: Any) -> AsyncIterator[None]:
    """Who writes into a stream that is over hears why it is over."""
    try:
        yield
    except asyncio.InvalidStateError:
        raise grpc.aio.AioRpcError(
            await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details()
        ) from None


@asynccontextmanager
async def grpc_stream(
    target: str, credentials: IdentityHolder | None = None
) -> AsyncIterator[Stream]:
    """A stream to the server at a gRPC address such as `unix:/path` or `host:port`."""
    if credentials is None:
        async with open_channel(target) as channel:
            call = _opened(channel)
            async with _explained(call):
                yield call
        return
    identity = credentials.identity
    async with open_channel(target, identity.channel_credentials()) as channel:
        call = _opened(channel)
        async with _explained(call):
            yield _ProvenStream(call, identity)


class _ProvenStream:
    """A stream whose hello answers the server's challenge."""

    def __init__(self, call: Any, identity: NodeIdentity) -> None:
        self._call = call
        self._identity = identity

    async def write(self, message: pb.AgentMessage) -> None:
        """Tell the server something."""
        if message.WhichOneof("message") == "hello":
            challenge = dict(await self._call.initial_metadata()).get(CHALLENGE)
            if challenge is not None:
                hello = message.hello
                hello.token = self._identity.proof(challenge, hello.node, hello.instance)
        await self._call.write(message)

    def __aiter__(self) -> AsyncIterator[pb.ServerMessage]:
        """What the server says, until the stream ends."""
        return cast(AsyncIterator[pb.ServerMessage], aiter(self._call))


# --- The newest term whose leader this node has obeyed. What an older leader says is not obeyed.
#
# It is on disk before the first order of a term is carried out, so that an agent which is started
# again still refuses what a server says that was frozen meanwhile.

FILE = "term"


class LeaderTerm:
    """The terms that one node has seen."""

    def __init__(self, directory: Path | None) -> None:
        """Read what is known; without a directory nothing is kept."""
        self._file = None if directory is None else directory / FILE
        self.newest = 0
        if self._file is not None and self._file.exists():
            text = self._file.read_text(encoding="ascii", errors="replace").strip()
            self.newest = int(text) if text.isdecimal() else 0

    def check(self, term: int) -> None:
        """Go on only if there is no newer one; raises `ServerRejected`."""
        if term < self.newest:
            raise ServerRejected(
                f"the server leads in term {term}, and this node has obeyed term {self.newest}; if "
                f"that is over for good, remove {self._file}"
            )
        if term > self.newest:
            try:
                self._keep(term)
            except OSError as error:
                raise ServerRejected(
                    f"term {term} cannot be written to {self._file}: {error}"
                ) from error
            self.newest = term

    def _keep(self, term: int) -> None:
        if self._file is None:
            return
        fresh = self._file.with_name(f"{FILE}.new")
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{term}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        directory = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
