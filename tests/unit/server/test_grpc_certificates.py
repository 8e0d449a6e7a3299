"""The certificates of the gRPC port under many concurrent handshakes."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

PORT = """
import asyncio
import grpc
from gpu_scheduler.server.grpc import GrpcCertificates
from gpu_scheduler.settings.schema import Settings

async def main():
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", GrpcCertificates(Settings()).credentials())
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    words = [sys.executable, "-c", PORT]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def test_concurrent_handshakes_do_not_crash_server(
    server: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = server
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])

    def shake_hands(_: int) -> str | None:
        plain = socket.create_connection(("127.0.0.1", port), 60)
        with context.wrap_socket(plain) as secure:
            return secure.selected_alpn_protocol()

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(shake_hands, range(3_000))) == {"h2"}
    assert process.poll() is None
