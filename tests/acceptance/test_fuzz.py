"""Fuzzing: whatever a socket receives, server and launcher answer or disconnect, and continue.

Bodies are malformed in their structure here (test_openapi draws from the document itself); requests
and orders are malformed down to their bytes. The cases are the same in every run.
"""

import asyncio
import gc
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_scheduler.api.http.app import DOCUMENTED_OPERATIONS
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.api.nodes.sessions import add_agent_service
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import PROTOCOL
from gpu_scheduler.wire.orders import SESSION_METHOD
from tests.launcher_rig import with_launcher
from tests.unit.api.lab import ApiLab

pytestmark = pytest.mark.slow

BOUNDED = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["root", "0", "../..", "\0", "\ud800", "a" * 5000, "job-1", "1e400"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
WITH_BODY = [operation for operation in DOCUMENTED_OPERATIONS if operation.body is not None]


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        lab.submit(name="held", hold=True)
        yield lab


def is_alive(lab: ApiLab) -> None:
    assert lab.get("/health").json["status"] == "healthy"


@st.composite
def changed(draw: st.DrawFn, example: Any) -> Any:
    """An example in which some part, at any depth, is replaced."""
    if isinstance(example, list):
        return [draw(changed(item)) for item in example] + draw(st.lists(JSON, max_size=1))
    if not isinstance(example, dict) or not example:
        return draw(JSON)
    names = sorted(example)
    name = draw(st.sampled_from(names))
    how = draw(st.sampled_from(["value", "name", "gone", "more", "deeper"]))
    body = dict(example)
    if how == "value":
        body[name] = draw(JSON)
    elif how == "name":
        body[draw(st.text(max_size=12))] = body.pop(name)
    elif how == "gone":
        del body[name]
    elif how == "more":
        body[draw(st.sampled_from(["uid", "user", "gid", "id", "state", "__proto__"]))] = draw(JSON)
    else:
        body[name] = [{name: body[name]}] * 3
    return body


# --- bodies


@pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.name)
def test_no_json_body_causes_server_error(lab: ApiLab, operation: Any) -> None:
    path = operation.path.removeprefix("/api/v1")
    for name, value in (("job_id", "job-1"), ("tenant_id", "default"), ("node", "n0")):
        path = path.replace(f"{{{name}}}", value)

    @BOUNDED
    @given(body=changed(operation.example or {"name": "x"}) | JSON)
    def check(body: Any) -> None:
        text = json.dumps(body).encode("utf-8", "surrogatepass")
        reply = lab.call(operation.method, path, text)
        assert reply.status < 500, (reply.status, reply.body, body)
        if reply.status >= 400:
            assert {"error", "code"} <= reply.json.keys()

    check()
    is_alive(lab)


@pytest.mark.parametrize("operation", WITH_BODY[:3], ids=lambda operation: operation.name)
def test_invalid_json_is_rejected(lab: ApiLab, operation: Any) -> None:
    @BOUNDED
    @given(body=st.binary(max_size=200))
    def check(body: bytes) -> None:
        assert lab.call(operation.method, operation.path.removeprefix("/api/v1"), body).status < 500

    check()
    deep = b"[" * 100_000
    gc.collect()  # A finalizer of an earlier test must not run at the depth reached here.
    assert lab.call(operation.method, operation.path.removeprefix("/api/v1"), deep).status == 400
    is_alive(lab)


@BOUNDED
@given(
    path=st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=60
    ),
    query=st.text(
        st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=40
    ),
    method=st.sampled_from(["GET", "POST", "DELETE", "PATCH", "PUT", "HEAD", "OPTIONS"]),
)
def test_no_url_causes_server_error(lab: ApiLab, path: str, query: str, method: str) -> None:
    reply = lab.call(method, f"/api/v1/{path}?{query}", root=True)
    assert reply.status < 500


# --- bytes on the public socket

REQUEST = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PIECES = st.sampled_from(
    [
        *(REQUEST, b"\r\n", b"\r\n\r\n", b"\0", b" ", b"GET / HTTP/1.1\r\n", b"HTTP/9.9"),
        *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n"),
        *(
            b"Connection: upgrade\r\nUpgrade: websocket\r\n",
            b"Upgrade: h2c\r\n",
            b"X: " + b"a" * 70_000,
        ),
        *(b"Authorization: Bearer \xff\xfe\r\n", b"Expect: 100-continue\r\n", b"{}", b"[[[["),
        *(b"Origin: null\r\n", b"Host: \r\n", b"Host: a\r\nHost: b\r\n", b"PRI * HTTP/2.0\r\n\r\n"),
    ]
)


@BOUNDED
@given(pieces=st.lists(PIECES | st.binary(max_size=40), max_size=8))
def test_no_bytes_on_public_socket_crash_server(lab: ApiLab, pieces: list[bytes]) -> None:
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(5)
    with opened:
        opened.connect(str(lab.directory / "server.sock"))
        answer = b""
        try:
            opened.sendall(b"".join(pieces))
            opened.shutdown(socket.SHUT_WR)
            while piece := opened.recv(65_536):
                answer += piece
        except OSError:
            pass  # the server closed the connection before it had read everything
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]
    is_alive(lab)


# --- the agents' socket


def test_no_message_on_agent_socket_crashes_server(lab: ApiLab) -> None:
    """Only the server's own user reaches it; even so no message may stop the server."""
    messages = [
        b"",
        b"\xff" * 50,
        b"\x08" * 9,
        pb.AgentMessage().SerializeToString(),
        pb.AgentMessage(hello=pb.Hello()).SerializeToString(),
        pb.AgentMessage(hello=pb.Hello(node="x" * 5000, protocol=PROTOCOL)).SerializeToString(),
        pb.AgentMessage(hello=pb.Hello(node="n1", protocol=10**6)).SerializeToString(),
        pb.AgentMessage(hello=pb.Hello(node="\0", protocol=PROTOCOL)).SerializeToString(),
        *(os.urandom(30) for _ in range(10)),
    ]

    inventory = pb.Inventory(cpu_milli=1000, memory_mb=1000)
    hello = pb.AgentMessage(hello=pb.Hello(node="n9", protocol=PROTOCOL, inventory=inventory))

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="tgpu-") as folder:
            target = f"unix:{folder}/agent.sock"
            server = grpc.aio.server()
            add_agent_service(server, Agents(lab.loop))
            server.add_insecure_port(target)
            await server.start()
            try:
                for message in messages:
                    await _say(target, message)
                # The connection works: a valid message is answered.
                assert await _say(target, hello.SerializeToString(), longest_s=60)
            finally:
                await server.stop(0)

    lab.run(run())
    is_alive(lab)
    assert {node["id"] for node in lab.get("/nodes").json["nodes"]} >= {"n0", "n9"}


async def _say(target: str, message: bytes, longest_s: float = 2) -> bool:
    """Send one message and nothing more; returns whether the server answered."""
    async with grpc.aio.insecure_channel(target) as channel:
        session = channel.stream_stream(SESSION_METHOD)
        call = session()
        try:
            async with asyncio.timeout(longest_s):
                await call.write(message)
                await call.done_writing()
                async for _ in call:
                    return True
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            return False
    return False


# --- the launcher's socket


def test_no_line_on_launcher_socket_crashes_launcher() -> None:
    orders: list[bytes] = []

    @settings(BOUNDED, max_examples=60)
    @given(
        order=JSON
        | st.fixed_dictionaries(
            {
                "do": st.sampled_from(["start", "stop", "warn", "forget", "held", "watch", "x"]),
                "n": JSON,
                "work": JSON,
                "why": JSON,
                "key": JSON,
            }
        )
    )
    def draw(order: Any) -> None:
        orders.append(json.dumps(order).encode("utf-8", "surrogatepass"))

    draw()
    orders += [b"", b"\0", b"[" * 10_000, b"{", b"\xff\xfe", b'{"do":"start","work":{"uid":-1}}']

    async def scenario(rig: Any) -> None:
        path = str(Path(rig.directory) / "agent" / "launcher.sock")
        assert Path(path).stat().st_mode & 0o077 == 0  # noqa: ASYNC240 - nothing else waits
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"\n".join(orders) + b"\n")
        await writer.drain()
        async with asyncio.timeout(60):
            for _ in range(len(orders) // 2):
                assert json.loads(await reader.readline()) is not None
        writer.transport.abort()  # also with orders that the launcher has not read
        work = rig.work("job-9.1", "/bin/sh", "-c", "exit 7")
        await rig.launcher.start(work)
        over = await rig.over("job-9.1")
        assert over.exit_code == 7

    with_launcher(scenario)
