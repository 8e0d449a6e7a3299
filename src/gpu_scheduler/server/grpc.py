"""The gRPC port: SchedulerService for programs, NodeService and AgentService for nodes.

Beside them health and reflection. It listens from the start of a server to its end, whatever the
server's role is at the moment.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import structlog
from cryptography import x509
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority, Pair, new_authority
from gpu_scheduler.api.grpc.node_service import Nodes, add_node_service
from gpu_scheduler.api.grpc.scheduler_service import SERVICE, Scheduler, add_scheduler_service
from gpu_scheduler.api.http.listeners import CannotListen
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import KeepAuthority
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Authority
from gpu_scheduler.server.access import LARGEST_FILE, LOOK_AT_FILES_S, is_loopback, load_pair
from gpu_scheduler.server.ha.agent_gate import AgentDoor
from gpu_scheduler.server.runtime import lasting
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import read_trusted
from gpu_scheduler.store.contract import Store

# --- The certificates of the gRPC port: that of the site for programs, our own for agents.
#
# Which of them a caller gets is settled by the name it asks for. Files are read again when they
# change; connections that are made afterwards get the new ones.

RENEW_AFTER_S = 10 * 86_400.0
log = structlog.get_logger("server")


class GrpcCertificates:
    """What the gRPC port shows, and whom it asks to show something."""

    def __init__(self, settings: Settings) -> None:
        """Read the files; until the authority is known, one for nobody stands in for it."""
        self._files = (settings.api.tls_certificate, settings.api.tls_key)
        self._client_ca = settings.grpc.client_ca
        self.authority: NodeAuthority | None = None
        self._own = self._new_pair(NodeAuthority(new_authority(_now_ms())))
        self._own_since = time.monotonic()
        self._stamps = self._current_stamps()
        self._site, self._clients = self._read()
        self._current = self._made()

    def use(self, authority: NodeAuthority) -> None:
        """Vouch for this server with the cluster's authority from now on."""
        self.authority = authority
        self._own = self._new_pair(authority)
        self._own_since = time.monotonic()
        self._current = self._made()

    def credentials(self) -> grpc.ServerCredentials:
        """For one port; every new connection gets what holds then."""
        shown = self._current

        def changed() -> grpc.ServerCertificateConfiguration | None:
            # gRPC asks with every handshake, and replaces what it has by each answer without
            # regard to handshakes under way: answered with what it has, it crashes under many.
            nonlocal shown
            if shown is self._current:
                return None
            shown = self._current
            return shown

        return grpc.dynamic_ssl_server_credentials(
            shown,
            changed,  # type: ignore[arg-type] # None is for "as before", which its types forgot
            require_client_authentication=bool(self._client_ca),
        )

    async def watch(self) -> None:
        """Until cancelled: read files again when they change, and renew our own in time."""
        while True:
            await asyncio.sleep(LOOK_AT_FILES_S)
            self.refresh()

    def refresh(self) -> None:
        """Take over what has changed; files that cannot be read change nothing."""
        stamps = self._current_stamps()
        is_old = time.monotonic() - self._own_since > RENEW_AFTER_S
        if stamps == self._stamps and not is_old:
            return
        self._stamps = stamps
        try:
            self._site, self._clients = self._read()
        except SchedulerError as error:
            log.warning("the new certificate is not used for gRPC", error=str(error))
        if is_old and self.authority is not None:
            self.use(self.authority)
        self._current = self._made()

    def _made(self) -> grpc.ServerCertificateConfiguration:
        pairs = [self._own] if self._site is None else [self._site, self._own]
        roots = None
        if self._client_ca:
            own = b"" if self.authority is None else self.authority.certificate_pem
            roots = self._clients + b"\n" + own
        return grpc.ssl_server_certificate_configuration(pairs, roots)

    def _read(self) -> tuple[Pair | None, bytes]:
        clients = b""
        if self._client_ca:
            clients = read_trusted(self._client_ca, LARGEST_FILE)
            _check_certificates(clients, self._client_ca)
        certificate, key = self._files
        if not certificate:
            return None, clients
        chain = read_trusted(certificate, LARGEST_FILE)
        _check_certificates(chain, certificate)
        private = read_trusted(key, LARGEST_FILE, secret=True, group_may_read=True)
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
        return (private, chain), clients

    def _new_pair(self, authority: NodeAuthority) -> Pair:
        return authority.server_pair(_now_ms())

    def _current_stamps(self) -> list[tuple[int, int]]:
        stamps = []
        for file in (*self._files, self._client_ca):
            try:
                status = Path(file).stat() if file else None
            except OSError:
                status = None
            stamps.append((0, 0) if status is None else (status.st_mtime_ns, status.st_ino))
        return stamps


def _check_certificates(pem: bytes, file: str) -> None:
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidInput(f"holds no certificates (PEM): {error}", file=file) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- Where gRPC may listen, and whether it is encrypted there: checked before it does.


def speaks_tls(settings: Settings) -> bool:
    """Tell whether the gRPC port is encrypted."""
    tls = settings.grpc.tls
    if tls == "auto":
        return bool(settings.api.tls_certificate) or not is_loopback(grpc_host(settings))
    return tls == "on"


def grpc_host(settings: Settings) -> str:
    """The address that gRPC listens on."""
    return settings.grpc.host or settings.api.host


def check_grpc(settings: Settings) -> None:
    """Refuse what would let secrets be read on their way."""
    host = grpc_host(settings)
    if speaks_tls(settings):
        return
    if settings.grpc.client_ca:
        raise InvalidRequest("grpc.client_ca wants certificates and grpc.tls is off; switch it on")
    if not is_loopback(host) and not settings.api.allow_plain_http:
        raise InvalidRequest(
            f"gRPC would listen on {host} without TLS, where others could read tokens on their "
            "way; leave grpc.tls at auto, or listen on 127.0.0.1 (grpc.host)"
        )


# --- The authority for nodes: made by the first leader, kept in the store, read by every server.

LOOK_AGAIN_S = 0.5


async def ensure_authority(loop: Loop) -> None:
    """Make the authority if there is none yet."""
    if loop.core.state.node_keys.authority is None:
        await loop.apply(KeepAuthority(new_authority(loop.now_ms())))


async def stored_authority(store: Store) -> NodeAuthority:
    """The authority of this database; a standby may have to wait for the first leader."""
    while True:
        try:
            for found in await asyncio.to_thread(store.identities):
                if isinstance(found, Authority):
                    return NodeAuthority(found)
        except SchedulerError as error:
            log.warning("the authority for nodes cannot be read yet", error=str(error))
        await asyncio.sleep(LOOK_AGAIN_S)


# --- The gRPC port: SchedulerService for programs, NodeService and AgentService for nodes.

NODE_SERVICE = "gpu_scheduler.v1.NodeService"
AGENT_SERVICE = "gpu_scheduler.v1.AgentService"
SERVICES = (SERVICE, NODE_SERVICE, AGENT_SERVICE)
GRACE_S = 1.0
MB = 1 << 20
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcServer:
    """The port, from its opening to its end. `address` is where."""

    def __init__(self, settings: Settings, door: AgentDoor, store: Store) -> None:
        """Take the port; nothing is answered yet."""
        check_grpc(settings)
        self._settings = settings
        self._store = store
        self._certificates = GrpcCertificates(settings) if speaks_tls(settings) else None
        self._authority: NodeAuthority | None = None
        self._application: Any = None
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(settings))
        nodes = Nodes(door, store, lambda: self._authority, key_days=settings.grpc.node_key_days)
        add_node_service(self._server, nodes)
        add_scheduler_service(self._server, Scheduler(self._answer))
        add_HealthServicer_to_server(self._health, self._server)
        names = (*SERVICES, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.address = self._listen()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope, receive, send)

    def _listen(self) -> str:
        host = grpc_host(self._settings)
        host = f"[{host}]" if ":" in host else host
        address = f"{host}:{self._settings.api.grpc_port}"
        try:
            if self._certificates is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._certificates.credentials())
        except RuntimeError:
            port = 0
        if not port:
            raise CannotListen(
                f"gRPC cannot listen at {address}, as something else listens there; stop that, or "
                "choose another port with api.grpc_port or --grpc-port"
            )
        return f"{host}:{port}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer for as long as the block lasts; health says that nothing serves yet."""
        for name in ("", *SERVICES):
            await self._health.set(name, NOT_SERVING)
        await self._server.start()
        tasks = [asyncio.create_task(lasting("authority", self._vouch))]
        if self._certificates is not None:
            watch = lasting("certificates", self._certificates.watch)
            tasks.append(asyncio.create_task(watch))
        try:
            yield
        finally:
            await self._health.enter_graceful_shutdown()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.stop(GRACE_S)

    def refresh(self) -> None:
        """Read certificates again if they have changed."""
        if self._certificates is not None:
            self._certificates.refresh()

    async def serve(self, application: Any) -> None:
        """Answer with this application (ASGI) from now on."""
        self._application = application
        for name in ("", *SERVICES):
            await self._health.set(name, SERVING)

    async def _vouch(self) -> None:
        """Take over the cluster's authority as soon as it is there."""
        authority = self._authority = await stored_authority(self._store)
        if self._certificates is not None:
            self._certificates.use(authority)


def _options(settings: Settings) -> tuple[tuple[str, int], ...]:
    asked = settings.grpc
    message_bytes = round(asked.max_message_mb * MB)
    keepalive_ms = round(asked.keepalive_s * 1000)
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_concurrent_streams", asked.max_streams),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        # Agents ask too, more often than gRPC allows by itself.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two servers must not share a port without knowing it.
        ("grpc.so_reuseport", 0),
    )
