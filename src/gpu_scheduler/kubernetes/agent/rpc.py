"""gRPC over the kubelet's unix sockets: handlers of a service, and calls of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)

LIMIT_BYTES = 16 << 20
"""The kubelet lists all pods of a node in one message."""


async def serve(socket: Path, service: str, methods: Mapping[str, Any]) -> grpc.aio.Server:
    """Serve methods on a socket, in place of what a dead process has left there."""
    _clear(socket)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, dict(methods)),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


def _clear(socket: Path) -> None:
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)


def unary(behaviour: Callable[[RequestT, Any], Awaitable[Message]], request: type[RequestT]) -> Any:
    """A handler that answers one message with one message."""
    make: Any = grpc.unary_unary_rpc_method_handler
    return make(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def streaming(behaviour: Any, request: type[Message]) -> Any:
    """A handler that answers one message with a stream."""
    make: Any = grpc.unary_stream_rpc_method_handler
    return make(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


async def call(
    socket: Path,
    method: str,
    request: Message,
    answer: type[AnswerT],
    *,
    timeout_seconds: float = 10.0,
) -> AnswerT:
    """Call a method of a service at a socket; raises `grpc.aio.AioRpcError`."""
    options = [("grpc.max_receive_message_length", LIMIT_BYTES)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        ask: Any = channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        found: AnswerT = await ask(request, timeout=timeout_seconds)
        return found
