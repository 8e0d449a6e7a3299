"""Flow control of logs read from nodes."""

import asyncio

import pytest

from gpu_scheduler.api.nodes.streams import LOG_CHUNKS_AHEAD, LogStreams
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.wire import agent_pb2 as pb


class Node:
    """Keeps the messages that it is sent."""

    def __init__(self) -> None:
        self.told: list[pb.ServerMessage] = []

    def send(self, _: str, message: pb.ServerMessage) -> bool:
        self.told.append(message)
        return True

    def count(self, kind: str) -> int:
        return [message.WhichOneof("message") for message in self.told].count(kind)


def a_chunk(*, end: bool = False) -> pb.LogChunk:
    return pb.LogChunk(request_id=1, data=b"" if end else b"x", end=end)


def test_consumed_chunk_grants_credit_for_another() -> None:
    async def run() -> None:
        node = Node()
        logs = LogStreams(node.send)
        reading = logs.read("n0", pb.LogRequest())
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        assert node.told[0].log_request.chunks == LOG_CHUNKS_AHEAD
        for _ in range(LOG_CHUNKS_AHEAD):
            logs.on_chunk("n0", a_chunk())
        logs.on_chunk("n0", a_chunk(end=True))
        assert await first == b"x"
        assert node.count("log_credit") == 0, "it has been handed over, and is not gone yet"
        assert [data async for data in reading] == [b"x"] * (LOG_CHUNKS_AHEAD - 1)
        assert node.count("log_credit") == LOG_CHUNKS_AHEAD
        assert node.count("log_cancel") == 1

    asyncio.run(run())


def test_node_that_exceeds_log_credit_is_cut_off() -> None:
    async def run() -> None:
        logs = LogStreams(Node().send)
        reading = logs.read("n0", pb.LogRequest())
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        for _ in range(3 * LOG_CHUNKS_AHEAD):
            logs.on_chunk("n0", a_chunk())
        await first
        for _ in range(LOG_CHUNKS_AHEAD - 1):
            await anext(reading)
        with pytest.raises(ClusterError, match="more of its log than was requested"):
            await anext(reading)

    asyncio.run(run())


def test_log_data_from_another_node_is_ignored() -> None:
    async def run() -> None:
        logs = LogStreams(Node().send)
        reading = logs.read("n0", pb.LogRequest())
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(0)
        logs.on_chunk("other", pb.LogChunk(request_id=1, data=b"forged"))
        logs.on_chunk("other", pb.LogChunk(request_id=1, problem="forged"))
        logs.on_chunk("n0", a_chunk())
        logs.on_chunk("n0", a_chunk(end=True))
        assert await first == b"x"
        assert [data async for data in reading] == []

    asyncio.run(run())


def test_node_disconnect_ends_reading() -> None:
    async def run() -> None:
        logs = LogStreams(Node().send)
        reading = asyncio.ensure_future(anext(logs.read("n0", pb.LogRequest())))
        await asyncio.sleep(0)
        logs.node_gone("other")
        logs.node_gone("n0")
        with pytest.raises(ClusterError, match="was disconnected"):
            await reading

    asyncio.run(run())
