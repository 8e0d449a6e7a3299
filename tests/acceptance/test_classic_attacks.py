"""Classic attacks of one Linux user on a server of root, and on another user's job beside it."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir
from tests.linux_accounts import CAN_MAKE, WHY_NOT, LinuxAccount, processes_of, some_accounts

pytestmark = pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)
LONGEST_S = 60.0
HEAD = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"command":["true"],"name":"smuggled"}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SECOND = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


class Site:
    """A server of root with two users: mallory attacks, and the neighbour has a job."""

    def __init__(self, server: RealServer, people: list[LinuxAccount]) -> None:
        self.server = server
        self.socket = f"{server.state_dir}/server.sock"
        self.mallory, self.neighbour = (person.calling(self.socket) for person in people)

    def send(self, data: bytes, *, only_head: bool = False) -> bytes:
        """What the server answers to these bytes, sent as mallory, until it closes.

        `only_head`: until the head of its answer, as it then waits for the client to close.
        """
        os.seteuid(self.mallory.uid)
        try:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(LONGEST_S)
            connection.connect(self.socket)
        finally:
            os.seteuid(0)
        answer = b""
        with connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(data)
            while not (only_head and b"\r\n\r\n" in answer):
                piece = connection.recv(65_536)
                if not piece:
                    break
                answer += piece
        return answer

    def is_well(self) -> None:
        """The neighbour's jobs still run."""
        job = self.neighbour.submit("echo all is well")
        with self.server.client() as client:
            assert client.wait(job, timeout=LONGEST_S)["state"] == "completed"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with some_accounts("mallory", "neigh") as people, a_state_dir() as state_dir:
        server = RealServer(state_dir)
        server.start("2xA100-80GB")
        yield Site(server, people)
        server.stop()


@pytest.mark.parametrize(
    "request_text",
    [
        pytest.param(HEAD + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED, id="cl-te"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKED, id="te-cl"
        ),
        pytest.param(HEAD + LENGTH + b"Content-Length: 0\r\n\r\n" + BODY, id="two-lengths"),
        pytest.param(HEAD + b"Content-Length: +38\r\n\r\n" + BODY, id="signed-length"),
        pytest.param(HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED, id="unknown-coding"),
        pytest.param(HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNKED, id="space-in-name"),
        pytest.param(HEAD + b"X: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, id="folded-header"),
        pytest.param(HEAD.replace(b"\r", b"") + LENGTH + b"\r\n" + BODY, id="bare-line-feeds"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", id="negative-chunk"
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 17 + b"\r\n", id="huge-chunk"
        ),
        pytest.param(HEAD + b"X: a\0b\r\n" + LENGTH + b"\r\n" + BODY, id="nul-in-header"),
    ],
)
def test_ambiguous_request_is_rejected_with_all_that_follows(
    site: Site, request_text: bytes
) -> None:
    answer = site.send(request_text + SECOND)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    found = site.server.json("list", "--user", "all", "--state", "all", "--name", "smuggled")
    assert found["total"] == 0


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_deep_body_of_another_user_stops_nothing(site: Site, depth: int) -> None:
    text = b'{"command":["x"],"environment":' + b"[" * depth + b"}"
    size = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(text)
    assert site.send(HEAD + size + text).startswith(b"HTTP/1.1 400 ")
    site.is_well()


def test_huge_body_is_rejected_before_it_is_read(site: Site) -> None:
    size = b"Content-Length: 99999999999\r\n\r\n"
    answer = site.send(HEAD + size + b"x" * 1_000, only_head=True)
    assert answer.startswith(b"HTTP/1.1 413 ")
    site.is_well()


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(b"\x81\x05hello", id="not-masked"),
        pytest.param(b"\x82\xff\x7f" + b"\xff" * 7 + b"mask", id="huge"),
        pytest.param(b"\x01\x80mask" * 50_000, id="endless-fragments"),
        pytest.param(b"\xf1\x80mask", id="reserved-bits"),
        pytest.param(b"\x89\x80mask" * 20_000, id="flood-of-pings"),
    ],
)
def test_hostile_websocket_frames_stop_nothing(site: Site, frames: bytes) -> None:
    head = (
        b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    )
    assert site.send(head + frames, only_head=True).startswith(b"HTTP/1.1 101 ")
    site.is_well()


def test_proc_of_server_and_of_jobs_is_closed_to_others(site: Site) -> None:
    job = site.neighbour.submit("sleep 100", environment={"TOKEN": "of-the-neighbour"})
    until = time.monotonic() + LONGEST_S
    while not (running := processes_of(site.neighbour.uid)):
        assert time.monotonic() < until
        time.sleep(0.05)
    server = json.loads((Path(site.server.state_dir) / "server.json").read_text())["pid"]
    for pid in (server, *running):
        for read in ("cat environ", "cat maps", "ls fd", "ls cwd/", "cat root/etc/passwd"):
            program, name = read.split()
            tried = site.mallory.run(program, f"/proc/{pid}/{name}", check=False)
            assert tried.returncode != 0, (pid, read, tried.stdout)
    site.neighbour.call("DELETE", f"/jobs/{job}")
