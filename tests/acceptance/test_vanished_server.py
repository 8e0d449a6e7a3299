"""A server host that vanishes without closing connections: clients continue with another server."""

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpu_scheduler.cli.jobs.follow import Follower
from gpu_scheduler.client import keepalive
from gpu_scheduler.client.async_client import AsyncClient
from gpu_scheduler.client.client import Client
from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.waiting import EventStream
from gpu_scheduler.client.websocket import Frames
from tests.chaos.fleet import Cable, can_cut_cables
from tests.unit.client.fake_server import FakeServer, a_server

pytestmark = pytest.mark.slow

RELAY = """
import asyncio, sys
async def pump(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
async def joined(reader, writer):
    there = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer), return_exceptions=True)
async def main():
    server = await asyncio.start_server(joined, sys.argv[1], 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


class Place:
    """One server at two addresses: behind a cable that can be pulled, and local."""

    def __init__(self, fake: FakeServer, cable: Cable, far: str, near: str) -> None:
        self.fake = fake
        self.cable = cable
        self.far = far
        self.both = f"{far},{near}"

    def listeners(self) -> int:
        """The number of requests that followed events or output."""
        return sum("/events" in asked or "follow" in asked for asked in self.fake.requests)


def _relay(stack: ExitStack, host: str, path: str, *before: str) -> str:
    process = stack.enter_context(
        subprocess.Popen(
            [*before, sys.executable, "-I", "-c", RELAY, host, path],
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    assert process.stdout is not None
    return f"http://{host}:{process.stdout.readline().strip()}"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    if not can_cut_cables():
        pytest.skip("network namespaces cannot be made here: that needs root and 'ip'")
    for name, value in (("IDLE_S", 1), ("INTERVAL_S", 1), ("PROBES", 2), ("GONE_S", 3)):
        monkeypatch.setattr(keepalive, name, value)
    monkeypatch.setattr("gpu_scheduler.client.connection.CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr("gpu_scheduler.client.async_client.CONNECT_TIMEOUT_S", 0.5)
    # Only the kernel's timeout may end the silence here.
    monkeypatch.setattr("gpu_scheduler.client.waiting.POLL_INTERVAL_S", 600.0)
    monkeypatch.setattr("gpu_scheduler.client.async_client.POLL_INTERVAL_S", 600.0)
    with ExitStack() as stack:
        fake = stack.enter_context(a_server())
        cable = Cable(200)
        stack.callback(cable.remove)
        inside = ("ip", "netns", "exec", cable.name)
        far = _relay(stack, cable.there, fake.path, *inside)
        near = _relay(stack, "127.0.0.1", fake.path)
        yield Place(fake, cable, far, near)


def _then_gone(place: Place, work: Callable[[], Any], job: str) -> Any:
    """The result of `work` when its server vanishes meanwhile and the job ends after that."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    while thread.is_alive() and not place.listeners():
        thread.join(0.02)
    place.cable.pull()
    place.fake.write(job, b"two\n")
    place.fake.end(job)
    thread.join(60)
    assert found, "it still waits"
    return found[0]


def test_wait_continues_with_another_server(place: Place) -> None:
    job = place.fake.add({})["id"]
    with Client(place.both) as client:
        assert _then_gone(place, lambda: client.wait(job), job)["state"] == "completed"


def test_async_wait_continues_with_another_server(place: Place) -> None:
    job = place.fake.add({})["id"]
    client = AsyncClient(place.both)
    assert _then_gone(place, lambda: asyncio.run(client.wait(job)), job)["state"] == "completed"


def test_logs_follow_continues_from_another_server(
    place: Place, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    job = place.fake.add({})["id"]
    place.fake.write(job, b"one\n")
    with Client(place.both) as client:
        _then_gone(place, lambda: Follower(client, job, {}).copy() or True, job)
    assert capfdbinary.readouterr().out == b"one\ntwo\n"


def test_wait_continues_when_only_server_returns(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = place.fake.add({})["id"]
    monkeypatch.setattr("gpu_scheduler.client.connection.REPLY_TIMEOUT_S", 1.0)

    def wait() -> Any:
        with Client(place.far) as client:
            threading.Timer(4.0, place.cable.plug).start()
            return client.wait(job)

    assert _then_gone(place, wait, job)["state"] == "completed"


# --- what loopback can tell, without root


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def _options(connected: Any) -> tuple[int, int, int]:
    return (
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    )


def test_remote_connections_use_tcp_keepalive(listener: socket.socket) -> None:
    with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
        connected = client.connection._connected()
        assert _options(connected) == (1, keepalive.IDLE_S, keepalive.GONE_S * 1000)
        keepalive.allow_backlog(connected)
        assert _options(connected)[2] == 0


def test_kernel_timeout_is_reported_as_lost_connection() -> None:
    """The kernel reports it with the same error type as a receive timeout."""

    class Gone:
        def settimeout(self, _: float | None) -> None: ...

        def recv(self, _: int) -> bytes:
            raise TimeoutError(110, "Connection timed out")

    gone: Any = Gone()
    with pytest.raises(Unreadable, match="timed out"):
        EventStream(gone, Frames()).next(1.0)
