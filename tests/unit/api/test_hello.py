"""Streams of nodes over the network begin with a hello."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from gpu_scheduler.api.grpc.node_service import NodeService
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.wire import agent_pb2 as pb


class Aborted(Exception):
    """Raised when a gRPC call is aborted."""


class Context:
    """The part of a gRPC call that is needed before authentication."""

    async def send_initial_metadata(self, metadata: object) -> None:
        """A challenge is sent."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise Aborted(f"{code.name}: {text}")


def test_stream_without_hello_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.api.grpc.node_service.HELLO_S", 0.01)

    async def requests() -> AsyncIterator[pb.AgentMessage]:
        await asyncio.Event().wait()
        yield pb.AgentMessage()

    async def run() -> None:
        door: Any = None
        context: Any = Context()
        nodes = NodeService(door, MemoryStore(), lambda: None, key_days=1)
        async with asyncio.timeout(60):
            async for _ in nodes.session(requests(), context):
                pytest.fail("nobody was let in")

    with pytest.raises(Aborted, match="INVALID_ARGUMENT: the first message must be hello"):
        asyncio.run(run())
