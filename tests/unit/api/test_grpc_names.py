"""Names received over gRPC keep their meaning when the request is forwarded over HTTP."""

import asyncio
from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from gpu_scheduler.api.grpc.scheduler_service import (
    SERVICE,
    SchedulerService,
    add_scheduler_service,
)
from gpu_scheduler.client.http1 import request_bytes
from gpu_scheduler.wire import scheduler_pb2 as pb

LONGEST_S = 60


async def scope_of(name: str) -> Any:
    """The request path that the application gets when a job of this name is cancelled."""
    asked: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    server = grpc.aio.server()
    add_scheduler_service(server, SchedulerService(application))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        cancel: Any = channel.unary_unary(
            f"/{SERVICE}/CancelJob",
            request_serializer=pb.CancelJobRequest.SerializeToString,
            response_deserializer=pb.CancelJobAnswer.FromString,
        )
        await cancel(pb.CancelJobRequest(job_id=name), timeout=LONGEST_S)
    await server.stop(None)
    return asked[0]


@pytest.mark.parametrize("name", ["job-1", "a?tasks=1", "a#b", "%41", "a b", "é", "a\r\nx-more: 1"])
def test_name_is_preserved_whatever_characters_it_has(name: str) -> None:
    scope = asyncio.run(scope_of(name))
    raw = scope["raw_path"].decode()
    assert scope["path"] == f"/api/v1/jobs/{name}", "as the listener for HTTP gives it"
    assert unquote(raw) == scope["path"]
    assert not set(raw) & set("?# \r\n")
    assert request_bytes("DELETE", raw, "h", {}, None).count(b"\r\n") == 3
