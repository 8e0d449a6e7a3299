"""The gRPC port with a site certificate and with client certificates."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gpu_scheduler.agent.enrollment import Identity, NotJoined, join
from gpu_scheduler.wire.handshake import SERVER_NAME
from tests.certificates import make_certificate
from tests.cluster import Cluster, a_cluster

LONGEST_S = 20
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The certificates of the site and of its clients."""
    with tempfile.TemporaryDirectory(prefix="tgpu-tls-") as name:
        path = Path(name)
        make_certificate(path, "site")
        make_certificate(path, "caller")
        yield path


@pytest.fixture(scope="module")
def cluster(folder: Path) -> Iterator[Cluster]:
    """A server with the site's certificate that requires client certificates."""
    with a_cluster(
        api_tls_certificate=str(folder / "site.pem"),
        api_tls_key=str(folder / "site.key"),
        grpc_client_ca=str(folder / "caller.pem"),
        grpc_client_certificate=str(folder / "caller.pem"),
        grpc_client_key=str(folder / "caller.key"),
    ) as running:
        yield running


def health(address: str, root: bytes, client: tuple[bytes, bytes] | None, name: str = "") -> int:
    """Call the health service; -1 without a connection."""
    key, certificate = client or (None, None)
    options = (("grpc.ssl_target_name_override", name or "localhost"),)
    credentials = grpc.ssl_channel_credentials(root, key, certificate)
    with grpc.secure_channel(address, credentials, options=options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=LONGEST_S).status)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return -1


def pair(folder: Path, name: str) -> tuple[bytes, bytes]:
    return (folder / f"{name}.key").read_bytes(), (folder / f"{name}.pem").read_bytes()


def test_clients_verify_server_by_site_certificate(cluster: Cluster, folder: Path) -> None:
    site = (folder / "site.pem").read_bytes()
    assert health(cluster.nodes_address, site, pair(folder, "caller")) == SERVING
    stranger = (folder / "caller.pem").read_bytes()
    assert health(cluster.nodes_address, stranger, pair(folder, "caller")) == -1


def test_connection_without_client_certificate_is_refused(cluster: Cluster, folder: Path) -> None:
    site = (folder / "site.pem").read_bytes()
    assert health(cluster.nodes_address, site, None) == -1
    assert health(cluster.nodes_address, site, pair(folder, "site")) == -1


def test_agent_joins_with_site_certificate_and_receives_its_own(
    cluster: Cluster, folder: Path
) -> None:
    cluster.start_agent("n1")
    cluster.wait_for_nodes("n1")
    identity = Identity.read(next((cluster.directory / "n1").rglob("identity.json")).parent)
    assert identity is not None
    own = (identity.key.encode(), identity.certificate.encode())
    authority = identity.authority.encode()
    assert health(cluster.nodes_address, authority, own, SERVER_NAME) == SERVING
    with pytest.raises(NotJoined):
        asyncio.run(join("n2", [cluster.nodes_address], cluster.token))


def test_server_reloads_certificate_on_signal(cluster: Cluster, folder: Path) -> None:
    """A certificate with the wrong key changes nothing; open connections continue."""
    old = (folder / "site.pem").read_bytes()
    make_certificate(folder, "next")
    (folder / "next.pem").replace(folder / "site.pem")
    os.kill(cluster.server.pid, signal.SIGHUP)
    cluster.until(lambda: "new gRPC certificate rejected" in cluster.server.log(), "it is refused")
    assert health(cluster.nodes_address, old, pair(folder, "caller")) == SERVING
    new = (folder / "site.pem").read_bytes()
    (folder / "next.key").replace(folder / "site.key")
    os.kill(cluster.server.pid, signal.SIGHUP)
    cluster.until(
        lambda: health(cluster.nodes_address, new, pair(folder, "caller")) == SERVING, "it is used"
    )
    assert health(cluster.nodes_address, old, pair(folder, "caller")) == -1
