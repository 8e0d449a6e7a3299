"""Slow and greedy clients lose their connections and affect no other client."""

import json
import os
import socket
import time
from collections.abc import Iterator

import pytest

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http.listeners import ConnectionLimit
from gpu_scheduler.api.interfaces import Bounds
from tests.unit.api.lab import ApiLab

PATIENCE_S = 0.4


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    bounds = Bounds(receive_seconds=PATIENCE_S)
    with ApiLab(bounds=bounds, connection_limit=ConnectionLimit(8, PATIENCE_S)) as lab:
        yield lab


def connected(lab: ApiLab) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(60)
    opened.connect(str(lab.directory / "server.sock"))
    return opened


def answered(opened: socket.socket) -> bytes:
    """Everything received until the server closes."""
    found = b""
    while piece := opened.recv(65_536):
        found += piece
    return found


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /api/v1/jo",
        b"GET /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    ],
)
def test_missing_request_head_times_out(lab: ApiLab, sent: bytes) -> None:
    with connected(lab) as opened:
        opened.sendall(sent)
        assert b"408" in answered(opened).split(b"\r\n", 1)[0]


def drip(opened: socket.socket) -> None:
    """Send a little repeatedly, until the server disconnects."""
    for _ in range(1_000):
        opened.sendall(b"X: y\r\n")
        time.sleep(0.05)


def test_dripping_request_head_times_out(lab: ApiLab) -> None:
    with connected(lab) as opened:
        opened.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
            drip(opened)


def test_missing_body_times_out(lab: ApiLab) -> None:
    with connected(lab) as opened:
        opened.sendall(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        answer = answered(opened)
    assert b"408" in answer.split(b"\r\n", 1)[0]
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "too_slow"


def test_keep_alive_connection_may_idle_between_requests(lab: ApiLab) -> None:
    connection = lab.connection()
    for _ in range(2):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        time.sleep(2 * PATIENCE_S)
    connection.close()


def test_connections_per_caller_are_limited(lab: ApiLab) -> None:
    limit = lab.connection_limit
    assert limit is not None
    from gpu_scheduler.api.auth.peer_credentials import Peer

    ann, ben, root = Peer(uid=1000), Peer(uid=1001), Peer(uid=0)
    assert [limit.add(ann) for _ in range(9)] == [True] * 8 + [False]
    assert limit.add(ben)
    assert all(limit.add(root) for _ in range(20))
    far, near = Peer(uid=None, host="192.0.2.1"), Peer(uid=None, host="192.0.2.2")
    assert [limit.add(far) for _ in range(9)][-1] is False
    assert limit.add(near)
    for peer, count in ((ann, 9), (ben, 1), (root, 20), (far, 9), (near, 1)):
        for _ in range(count):
            limit.remove(peer)
    assert limit.add(ann)
    limit.remove(ann)


def test_server_answers_while_other_clients_are_slow(lab: ApiLab) -> None:
    slow = [connected(lab) for _ in range(6)]
    for opened in slow:
        opened.sendall(b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
    assert lab.get("/health").status == 200
    for opened in slow:
        opened.close()


def test_users_together_leave_connections_for_root_and_for_the_user_of_the_server() -> None:
    limit = ConnectionLimit(512, PATIENCE_S, total=8)
    users = [Peer(uid=uid, unix=True) for uid in (70_001, 70_002, 70_003)]
    assert [limit.add(users[0]) for _ in range(5)] == [True] * 4 + [False]
    assert [limit.add(users[1]) for _ in range(4)] == [True] * 3 + [False]
    assert not limit.add(users[2])
    own = [Peer(uid=0, unix=True), Peer(uid=os.geteuid(), unix=True)]
    assert [limit.add(peer) for peer in own] == [True, True]
    for peer in (*[users[0]] * 5, *[users[1]] * 4, users[2], *own):
        limit.remove(peer)
    assert limit.add(users[2])
