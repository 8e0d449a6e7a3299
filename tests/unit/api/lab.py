"""A real server on a private port and socket, in its own thread, with a real control loop.

Only the nodes are missing: tests send the messages of an agent.
"""

import asyncio
import http.client
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from gpu_scheduler.api.auth.peer_credentials import Authenticator
from gpu_scheduler.api.http.app import Applications, build
from gpu_scheduler.api.http.listeners import (
    Addresses,
    ApiServer,
    BoundSockets,
    ConnectionLimit,
    serve,
)
from gpu_scheduler.api.interfaces import ApiSettings, Bounds
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Ended, Fact, NodeReported, Started
from gpu_scheduler.model.node import Device
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.memory import MemoryStore
from tests.builders import a_core

GPUS = 8
GPU_MB = 81_920


class Reply:
    """A complete response."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"])

    @property
    def code(self) -> str:
        return str(self.json["code"])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(os.fspath(self._path))


class FakeLogs:
    """Logs that the test has put there; a test that follows says when they end."""

    def __init__(self) -> None:
        self.texts: dict[tuple[str, int], bytes] = {}
        self.more: dict[tuple[str, int], list[bytes]] = {}

    async def read_log(
        self,
        job_id: str,
        allocation_id: str,
        member: int,
        offset: int,
        limit: int,
        follow: bool,
    ) -> AsyncIterator[bytes]:
        text = self.texts.get((allocation_id, member), b"")
        text = text[offset:] if offset else text
        yield text[:limit] if limit else text
        if follow:
            for piece in self.more.get((allocation_id, member), []):
                yield piece


class ApiLab:
    """Start with `with ApiLab() as lab`; then call it as any client would."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        server_uid: int | None = None,
        authenticators: Sequence[Authenticator] = (),
        bounds: Bounds | None = None,
        gpu_mb: int = GPU_MB,
        notifications: Any = None,
        vitals: Any = None,
        connection_limit: ConnectionLimit | None = None,
        running: Settings | None = None,
        **core: Any,
    ) -> None:
        self.connection_limit = connection_limit
        self._nodes = nodes
        self._gpu_mb = gpu_mb
        self._core = core
        self._authenticators = authenticators
        self._settings = ApiSettings(
            server_uid=os.getuid() if server_uid is None else server_uid,
            version="1.2.3",
            bounds=bounds or Bounds(),
            notifications=notifications,
            vitals=vitals,
            running=running or Settings(),
        )
        self.directory = Path(tempfile.mkdtemp(prefix="tgpu-"))
        self.directory.chmod(0o755)
        self.logs = FakeLogs()
        self.store = MemoryStore()
        self.events = asyncio.new_event_loop()

    # --- start and stop

    def __enter__(self) -> "ApiLab":
        self._thread = threading.Thread(target=self.events.run_forever, daemon=True)
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._stop())
        self.events.call_soon_threadsafe(self.events.stop)
        self._thread.join()
        self.events.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _start(self) -> None:
        self.sockets = BoundSockets(
            Addresses(
                http=("127.0.0.1", 0),
                unix=self.directory / "server.sock",
                metrics=("127.0.0.1", 0),
            )
        )
        self.loop = Loop(
            self.store, lambda: a_core(**self._core), lambda: time.time_ns() // 1_000_000
        )
        self.loop.start()
        self.applications: Applications = build(
            self.loop, self._settings, logs=self.logs, authenticators=self._authenticators
        )
        self.server: ApiServer = await serve(
            self.applications, self.sockets, limit=self.connection_limit
        )
        for number in range(self._nodes):
            await self.loop.apply(
                NodeReported(
                    node_id=f"n{number}",
                    cpu_milli=128_000,
                    memory_mb=1_000_000,
                    devices=tuple(
                        Device(
                            index=i, uuid=f"GPU-{number}-{i}", model="A100", memory_mb=self._gpu_mb
                        )
                        for i in range(GPUS)
                    ),
                )
            )

    def _device(self, node: int, index: int) -> Device:
        uuid = f"GPU-{node}-{index}"
        return Device(index=index, uuid=uuid, model="A100", memory_mb=self._gpu_mb)

    async def _stop(self) -> None:
        await self.server.close()
        await self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the server's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.events).result(60)

    # --- messages of agents

    def tell(self, fact: Fact) -> None:
        self.run(self.loop.apply(fact))

    def start(self, job_id: str, attempt: int = 1) -> None:
        self.wait_for(job_id, "scheduled")
        self.tell(Started(f"{job_id}.{attempt}"))

    def end(self, job_id: str, exit_code: int = 0, attempt: int = 1) -> None:
        self.tell(Ended(f"{job_id}.{attempt}", exit_code))

    def wait_for(self, job_id: str, *states: str) -> Any:
        """The job, as soon as it is in one of these states."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            job = self.get(f"/jobs/{job_id}").json
            if job["state"] in states:
                return job
            time.sleep(0.005)
        raise AssertionError(f"{job_id} is {job['state']}, not {states}: {job['reason']}")

    # --- calls

    @property
    def port(self) -> int:
        assert self.sockets.http_port is not None
        return self.sockets.http_port

    def connection(self, *, unix: bool = True) -> http.client.HTTPConnection:
        if unix:
            return UnixConnection(self.directory / "server.sock")
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        unix: bool = True,
        root: bool = False,
    ) -> Reply:
        """One request; a body that is not bytes is sent as JSON.

        `root`: the path is the full path.
        """
        given = dict(headers or {})
        if body is not None:
            given.setdefault("Content-Type", "application/json")
            if not isinstance(body, bytes):
                body = json.dumps(body).encode()
        connection = self.connection(unix=unix)
        try:
            connection.request(method, path if root else f"/api/v1{path}", body, given)
            return Reply(connection.getresponse())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Reply:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return self.call("POST", path, body, **options)

    def submit(self, **job: Any) -> str:
        """Submit a job that must be accepted; returns its id."""
        reply = self.post("/jobs", {"command": ["true"], **job})
        assert reply.status == 201, reply.body
        return str(reply.json["job_id"])
