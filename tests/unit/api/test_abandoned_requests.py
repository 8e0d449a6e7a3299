"""A caller that disconnects during its commit and repeats the request with the same key."""

import asyncio
import os
import threading
from typing import Any

import grpc

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.grpc.scheduler_service import (
    SERVICE,
    SchedulerService,
    add_scheduler_service,
)
from gpu_scheduler.api.http.app import build
from gpu_scheduler.api.interfaces import ApiSettings
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import NodeReported
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import Write
from gpu_scheduler.wire import scheduler_pb2 as pb
from tests.builders import a_core

NOW_MS = 1_000_000
LONGEST_S = 60
TURNS = 20
"""Event-loop turns: more than a request needs to reach its wait."""


class Held(MemoryStore):
    """A store that blocks for as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def commit(self, writes: list[Write]) -> int:
        self.begun.set()
        assert self.may_go_on.wait(LONGEST_S)
        return super().commit(writes)

    def hold(self) -> None:
        self.may_go_on.clear()
        self.begun.clear()


class SameCaller:
    """Every caller is the same user."""

    def caller(self, peer: Peer, headers: Any) -> Caller:
        return Caller(user="somebody", uid=os.getuid(), gid=os.getgid())


class Watched:
    """The application; counts requests, and signals when one was cancelled."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self.came = asyncio.Semaphore(0)
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.came.release()
        try:
            await self._application(scope, receive, send)
        except asyncio.CancelledError:
            self.left.set()
            raise


async def disconnect_and_repeat(store: Held) -> bool:
    """Submit over gRPC, disconnect within the commit, submit again; whether it was a repetition."""
    loop = Loop(store, a_core, lambda: NOW_MS)
    loop.start()
    await loop.apply(NodeReported(node_id="n0", cpu_milli=8_000, memory_mb=64_000, devices=()))
    settings = ApiSettings(server_uid=os.getuid())
    application = Watched(build(loop, settings, authenticators=(SameCaller(),)).main)
    server = grpc.aio.server()
    add_scheduler_service(server, SchedulerService(application))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        submit: Any = channel.unary_unary(
            f"/{SERVICE}/SubmitJob",
            request_serializer=pb.SubmitJobRequest.SerializeToString,
            response_deserializer=pb.SubmitJobAnswer.FromString,
        )
        asked = pb.SubmitJobRequest(job=pb.JobSpec(command=["true"]))
        key = (("idempotency-key", "k1"),)
        store.hold()
        first = submit(asked, metadata=key, timeout=LONGEST_S)
        await application.came.acquire()
        assert await asyncio.to_thread(store.begun.wait, LONGEST_S)
        first.cancel()
        await application.left.wait()
        again = submit(asked, metadata=key, timeout=LONGEST_S)
        await application.came.acquire()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        store.may_go_on.set()
        await again
        told = dict(await again.trailing_metadata())
    await server.stop(None)
    await loop.close()
    return told.get("idempotency-replayed") == "true"


def test_abandoned_and_repeated_call_submits_one_job() -> None:
    store = Held()
    is_repetition = asyncio.run(disconnect_and_repeat(store))
    assert len(store.live_jobs()) == 1
    assert is_repetition
