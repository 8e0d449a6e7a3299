"""The stream between an agent and its server: messages go both ways until one side is gone.

Usually gRPC. A program that has both sides in itself joins them directly.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import grpc

from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import SESSION_METHOD

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    # A connection that a former process left behind must not be used again.
    ("grpc.use_local_subchannel_pool", 1),
)


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


class SentAway(ClusterError):
    """The server does not take this agent in; the text says why."""

    code = "agent_refused"

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        """If it is final, there is no use in coming back."""
        super().__init__(reason or "the server sends this agent away and does not say why")
        self.is_final = is_final


class Servers:
    """Opens streams to several servers, to the next one each time."""

    def __init__(self, targets: Sequence[str]) -> None:
        """Their gRPC addresses; there must be one."""
        self._targets = itertools.cycle(targets)

    def __call__(self) -> AbstractAsyncContextManager[Stream]:
        """A stream to the one whose turn it is."""
        return grpc_stream(next(self._targets))


@asynccontextmanager
async def grpc_stream(target: str) -> AsyncIterator[Stream]:
    """A stream to the server at a gRPC address such as `unix:/path` or `host:port`."""
    async with grpc.aio.insecure_channel(target, options=_OPTIONS) as channel:
        yield channel.stream_stream(
            SESSION_METHOD,
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.ServerMessage.FromString,
        )()
