"""HTTP responses and WebSocket frames are parsed in any fragmentation."""

import pytest

from gpu_scheduler.client.errors import Unreadable
from gpu_scheduler.client.http1 import Answer, quoted, request_bytes, target
from gpu_scheduler.client.websocket import Frames, masked
from gpu_scheduler.model.errors import InvalidRequest

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nA: b\r\n\r\n"
)


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_body_is_complete_in_any_fragmentation(raw: bytes, size: int) -> None:
    answer = Answer()
    body = b""
    for start in range(0, len(raw), size):
        body += b"".join(answer.feed(raw[start : start + size]))
    assert (answer.status, body, answer.done, answer.keeps_alive) == (200, b"hello", True, True)


def test_body_without_length_ends_with_connection() -> None:
    answer = Answer()
    assert answer.feed(b"HTTP/1.0 200 OK\r\n\r\nab") == [b"ab"]
    assert answer.feed(b"") == []
    assert answer.done
    assert not answer.keeps_alive


def test_response_without_body_is_complete_at_once() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert answer.done


@pytest.mark.parametrize(
    "pieces",
    [
        [PLAIN[:20], b""],
        [PLAIN[:-1], b""],
        [CHUNKED[:-4], b""],
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [b"x" * 70_000],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\nhello\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1" * 70_000],
        [b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5_000 + b"\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"],
        [b"HTTP/1.1 000 OK\r\n\r\n"],
    ],
)
def test_malformed_response_is_rejected(pieces: list[bytes]) -> None:
    answer = Answer()
    for piece in pieces[:-1]:
        answer.feed(piece)
    with pytest.raises(Unreadable):
        answer.feed(pieces[-1])


def test_query_has_only_parameters_with_value() -> None:
    query = {"a": "x y&z", "b": None, "c": "", "d": 0}
    assert target("/jobs", query) == "/jobs?a=x%20y%26z&d=0"
    assert target("/jobs", {}) == "/jobs"
    assert quoted("é/~") == "%C3%A9%2F~"
    with pytest.raises(InvalidRequest, match=r"'caf.udce9' contains bytes that are not UTF-8"):
        quoted("caf\udce9")


def test_request_has_content_length() -> None:
    sent = request_bytes("POST", "/x", "h", {"A": "b"}, b"{}")
    assert sent == b"POST /x HTTP/1.1\r\nHost: h\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/jobs/a b", {}),
        ("/jobs/a HTTP/1.1\r\nx-more: 1", {}),
        ("/jobs/a\x00", {}),
        ("/jobs/é", {}),
        ("/jobs", {"A": "b\r\nx-more: 1"}),
        ("/jobs", {"A\n": "b"}),
    ],
)
def test_request_injection_is_rejected(path: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        request_bytes("GET", path, "h", headers, None)


def test_websocket_messages_are_complete_in_any_fragmentation() -> None:
    long = b"y" * 70_000
    raw = b"\x01\x02ab\x80\x01c\x89\x00\x81\x7e\x00\xc8" + b"x" * 200
    raw += b"\x81\x7f" + len(long).to_bytes(8, "big") + long + b"\x88\x02\x03\xe8"
    frames = Frames()
    found = []
    for start in range(0, len(raw), 50):
        found += list(frames.feed(raw[start : start + 50]))
    assert found == [b"abc", b"x" * 200, long]
    assert frames.closed
    assert frames.reply[0] == 0x8A


def test_invalid_websocket_message_is_rejected() -> None:
    with pytest.raises(Unreadable):
        list(Frames(masked(1, b"x")).feed(b""))
    with pytest.raises(Unreadable):
        list(Frames(b"\x81\x7f" + (1 << 40).to_bytes(8, "big")).feed(b""))


def test_grpc_port_is_distinguished_from_broken_connection() -> None:
    first_frame = bytes.fromhex("00001e04000000000000030000")
    with pytest.raises(Unreadable, match=r"this is the gRPC port.*api\.http_port, 8080"):
        Answer().feed(first_frame)
