"""Listening addresses: one that cannot be bound gives a clear error before anything starts."""

import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.api.http.listeners import Addresses, BoundSockets, CannotListen
from gpu_scheduler.client.keepalive import IDLE_S
from tests.unit.api.lab import ApiLab


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tgpu-") as name:
        yield Path(name)


def only_unix(path: Path) -> Addresses:
    return Addresses(http=None, metrics=None, unix=path)


def test_port_in_use_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_scheduler.api.http.listeners.PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} on 127.0.0.1 is in use.*http_port"):
            BoundSockets(Addresses(http=("127.0.0.1", port), metrics=None))
        with pytest.raises(CannotListen, match="metrics_port"):
            BoundSockets(Addresses(http=("127.0.0.1", 0), metrics=("127.0.0.1", port)))


def test_port_of_another_server_is_named_as_such() -> None:
    with ApiLab() as lab, pytest.raises(CannotListen, match=r"another tgpu server.*tgpu down"):
        BoundSockets(Addresses(http=("127.0.0.1", lab.port), metrics=None))


@pytest.mark.parametrize("answer", [b"[]", b"\xff", b'{"status": "ok"}', b"not http"])
def test_port_of_another_program_is_named_as_such(answer: bytes) -> None:
    head = b"" if answer == b"not http" else b"HTTP/1.0 200 OK\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def serve() -> None:
            caller, _ = taken.accept()
            with caller:
                caller.recv(1 << 16)
                caller.sendall(head + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(CannotListen, match="in use by another program"):
            BoundSockets(Addresses(http=taken.getsockname()[:2], metrics=None))
        thread.join()


def test_no_address_is_bound_when_one_fails(directory: Path) -> None:
    path = directory / "s.sock"
    (directory / "file").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(CannotListen, match="not a socket"):
        BoundSockets(
            Addresses(http=("127.0.0.1", port), metrics=None, unix=directory / "file"),
        )
    again = BoundSockets(Addresses(http=("127.0.0.1", port), metrics=None, unix=path))
    assert again.http_port == port
    again.close()
    assert not path.exists()


def test_port_zero_lets_system_choose() -> None:
    listening = BoundSockets(Addresses(http=("127.0.0.1", 0), metrics=("127.0.0.1", 0)))
    assert listening.http_port
    assert listening.metrics_port
    assert listening.http_port != listening.metrics_port
    listening.close()


def test_tcp_keepalive_detects_vanished_callers() -> None:
    taken = BoundSockets(Addresses(http=("127.0.0.1", 0), metrics=None))
    assert taken.http is not None
    taken.http.setblocking(True)
    with socket.create_connection(("127.0.0.1", taken.http_port or 0)):
        connection, _ = taken.http.accept()
        with connection:
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == IDLE_S
    taken.close()


def test_unknown_address_is_rejected() -> None:
    for host, port in (("192.0.2.77", 80), ("127.0.0.1", 70_000)):
        with pytest.raises(CannotListen):
            BoundSockets(Addresses(http=(host, port), metrics=None))


def test_socket_is_accessible_to_everyone(directory: Path) -> None:
    path = directory / "s.sock"
    listening = BoundSockets(only_unix(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o666
    listening.close()


def test_stale_socket_is_replaced_and_live_one_is_not(
    directory: Path,
) -> None:
    path = directory / "s.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(os.fspath(path))
    left.close()
    living = BoundSockets(only_unix(path))
    with pytest.raises(CannotListen, match="another server listens"):
        BoundSockets(only_unix(path))
    living.close()


def test_path_too_long_is_rejected(directory: Path) -> None:
    with pytest.raises(CannotListen, match="longer than 107"):
        BoundSockets(only_unix(directory / ("x" * 120)))
    with pytest.raises(CannotListen, match="cannot listen"):
        BoundSockets(only_unix(directory / "missing" / "s.sock"))


def test_closing_server_releases_addresses_and_followers() -> None:
    with ApiLab() as lab:
        job_id = lab.submit(hold=True)
        connection = lab.connection()
        connection.request("GET", f"/api/v1/jobs/{job_id}/logs?follow=1")
        answer = connection.getresponse()
        port = lab.port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    answer.close()
    connection.close()
