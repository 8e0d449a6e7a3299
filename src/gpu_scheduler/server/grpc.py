"""gRPC of one server: its port, certificates and node authority, and the gate for agents.

The port offers SchedulerService for programs, NodeService and AgentService for nodes, health and
reflection. It stays open for the life of the server, in every role. On a standby the gate
redirects agents to the leader or lets them wait.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import structlog
from cryptography import x509
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority, Pair, new_authority
from gpu_scheduler.api.grpc.node_service import NodeService, add_node_service
from gpu_scheduler.api.grpc.scheduler_service import (
    SERVICE,
    SchedulerService,
    add_scheduler_service,
)
from gpu_scheduler.api.ha.leadership_gate import LeadershipStatus
from gpu_scheduler.api.http.listeners import CannotListen, most_open_files
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import KeepAuthority
from gpu_scheduler.model.errors import InvalidInput, SchedulerError
from gpu_scheduler.model.identity import Authority
from gpu_scheduler.server.background import supervise
from gpu_scheduler.server.network_access import (
    FILE_POLL_S,
    LARGEST_FILE,
    check_grpc,
    file_stamps,
    grpc_host,
    load_pair,
    speaks_tls,
)
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.trusted_files import read_trusted
from gpu_scheduler.store.interface import Store
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import not_leader_reason

NODE_SERVICE = "gpu_scheduler.v1.NodeService"
AGENT_SERVICE = "gpu_scheduler.v1.AgentService"
SERVICES = (SERVICE, NODE_SERVICE, AGENT_SERVICE)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SHUTDOWN_GRACE_S = 1.0
CERTIFICATE_RENEWAL_S = 10 * 86_400.0
AUTHORITY_POLL_S = 0.5
AGENT_WAIT_S = 8.0
"""How long an agent may wait at a standby: less than it waits for its welcome."""
log = structlog.get_logger("server")


class GrpcCertificates:
    """The certificates of the port: the site's for programs, our own for agents.

    The name that a client asks for selects one of them. Files are read again when they change;
    new connections get the new certificates.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the files; a temporary authority is used until the cluster's is known."""
        self._files = (settings.api.tls_certificate, settings.api.tls_key)
        self._client_ca = settings.grpc.client_ca
        self.authority: NodeAuthority | None = None
        self._own = NodeAuthority(new_authority(_now_ms())).server_pair(_now_ms())
        self._own_made_at = time.monotonic()
        self._stamps = file_stamps((*self._files, self._client_ca))
        self._site, self._clients = self._read()
        self._current = self._configuration()

    def use(self, authority: NodeAuthority) -> None:
        """Sign this server's own certificate with the cluster's authority from now on."""
        self.authority = authority
        self._own = authority.server_pair(_now_ms())
        self._own_made_at = time.monotonic()
        self._current = self._configuration()

    def credentials(self) -> grpc.ServerCredentials:
        """Credentials of one port; every new connection gets the current certificates."""
        shown = self._current

        def changed() -> grpc.ServerCertificateConfiguration | None:
            # gRPC calls this at every handshake and replaces its configuration by each result,
            # even during other handshakes. Returning the same one again crashes it under load.
            nonlocal shown
            if shown is self._current:
                return None
            shown = self._current
            return shown

        return grpc.dynamic_ssl_server_credentials(
            shown,
            changed,  # type: ignore[arg-type] # its types omit None, which means "unchanged"
            require_client_authentication=bool(self._client_ca),
        )

    async def watch(self) -> None:
        """Read changed files and renew our own certificate in time, until cancelled."""
        while True:
            await asyncio.sleep(FILE_POLL_S)
            self.refresh()

    def refresh(self) -> None:
        """Use changed files; unreadable files leave the current certificates in use."""
        stamps = file_stamps((*self._files, self._client_ca))
        is_old = time.monotonic() - self._own_made_at > CERTIFICATE_RENEWAL_S
        if stamps == self._stamps and not is_old:
            return
        self._stamps = stamps
        try:
            self._site, self._clients = self._read()
        except SchedulerError as error:
            log.warning("new gRPC certificate rejected; keeping the old one", error=str(error))
        if is_old and self.authority is not None:
            self.use(self.authority)
        self._current = self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
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


def _check_certificates(pem: bytes, file: str) -> None:
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise InvalidInput(f"holds no certificates (PEM): {error}", file=file) from None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def ensure_authority(loop: Loop) -> None:
    """Create the certificate authority of the nodes if the store has none yet."""
    if loop.core.state.node_keys.authority is None:
        await loop.apply(KeepAuthority(new_authority(loop.now_ms())))


async def stored_authority(store: Store) -> NodeAuthority:
    """The authority in the database; a standby may have to wait for the first leader."""
    while True:
        try:
            for found in await asyncio.to_thread(store.identities):
                if isinstance(found, Authority):
                    return NodeAuthority(found)
        except SchedulerError as error:
            log.warning("cannot read the node authority; will retry", error=str(error))
        await asyncio.sleep(AUTHORITY_POLL_S)


class AgentGate:
    """Accepts agents while this server leads; otherwise redirects them or lets them wait.

    While there is no leader, or the leader is late with its renewal, an agent that connected to a
    standby waits with its stream open. If this server becomes the leader, it serves the agent at
    once; if another server does, the agent is redirected there. No agent waits at a server that
    shuts down.
    """

    def __init__(self) -> None:
        """Accept no agent yet. Without an `election`, this is the only server."""
        self.election: LeadershipStatus | None = None
        self._agents: Agents | None = None
        self._opened = asyncio.Event()

    @property
    def service(self) -> Loop | None:
        """The control loop of the leader; None if this server does not lead."""
        return None if self._agents is None else self._agents.loop

    @property
    def leader_at(self) -> str:
        """Agent address of the leader; empty if unknown, or if this server leads."""
        return self.election.lead.agents if self.election and self._another_leads() else ""

    def _another_leads(self) -> bool:
        if self.election is None:
            return False
        lead = self.election.lead
        return lead.is_held and lead.holder != self.election.me.name

    def has(self, node: str) -> bool:
        """Whether the agent of a node is connected."""
        return self._agents is not None and node in self._agents.connected

    def problem(self, node: str) -> str:
        """What limits the agent of a node, such as missing drivers; empty if nothing does."""
        return "" if self._agents is None else self._agents.problems.get(node, "")

    async def wait_for(self, node: str) -> None:
        """Return when this server leads and the agent of a node is connected."""
        await self._opened.wait()
        if self._agents is not None:
            await self._agents.wait_for(node)

    def open(self, agents: Agents) -> None:
        """Accept agents: this server leads."""
        self._agents = agents
        self._opened.set()

    def shut(self) -> None:
        """Redirect agents: this server no longer leads."""
        self._agents = None
        self._opened.clear()

    async def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve one agent's stream."""
        deadline = asyncio.get_running_loop().time() + AGENT_WAIT_S
        while (agents := self._agents) is None:
            target = self._redirect_target(deadline)
            if target is not None:
                goodbye = pb.Goodbye(reason=not_leader_reason(target))
                yield pb.ServerMessage(goodbye=goodbye)
                return
            await self._wait_for_change(deadline)
        async for message in agents.session(requests, context):
            yield message

    def _redirect_target(self, deadline: float) -> str | None:
        """Where the agent should go; empty: to any other server. None: it may wait here."""
        if self.election is not None:
            another_leads = self._another_leads()
            if self.election.is_leaving or (another_leads and not self.election.is_late):
                return self.election.lead.agents if another_leads else ""
        return "" if asyncio.get_running_loop().time() >= deadline else None

    async def _wait_for_change(self, deadline: float) -> None:
        """Wait until this server or another one leads."""
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(self._opened.wait())]
        if self.election is not None:
            waits.append(asyncio.ensure_future(self.election.changed()))
        left_s = deadline - asyncio.get_running_loop().time()
        try:
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class GrpcServer:
    """The port, from opening to closing. `address` is where it listens."""

    def __init__(self, settings: Settings, gate: AgentGate, store: Store) -> None:
        """Bind the port; requests are not answered yet."""
        check_grpc(settings)
        self._settings = settings
        self._store = store
        self._certificates = GrpcCertificates(settings) if speaks_tls(settings) else None
        self._authority: NodeAuthority | None = None
        self._application: Any = None
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server(options=_options(settings))
        nodes = NodeService(
            gate, store, lambda: self._authority, key_days=settings.grpc.node_key_days
        )
        add_node_service(self._server, nodes)
        add_scheduler_service(self._server, SchedulerService(self._answer))
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
                f"gRPC cannot listen at {address}: the address is in use; stop the other program, "
                "or choose another port with api.grpc_port or --grpc-port"
            )
        return f"{host}:{port}"

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Listen while the block lasts; the health service reports NOT_SERVING at first."""
        for name in ("", *SERVICES):
            await self._health.set(name, NOT_SERVING)
        await self._server.start()
        tasks = [asyncio.create_task(supervise("authority", self._load_authority))]
        if self._certificates is not None:
            watch = supervise("certificates", self._certificates.watch)
            tasks.append(asyncio.create_task(watch))
        try:
            yield
        finally:
            await self._health.enter_graceful_shutdown()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._server.stop(SHUTDOWN_GRACE_S)

    def refresh(self) -> None:
        """Read certificates again if they have changed."""
        if self._certificates is not None:
            self._certificates.refresh()

    async def serve(self, application: Any) -> None:
        """Pass calls to this ASGI application from now on."""
        self._application = application
        for name in ("", *SERVICES):
            await self._health.set(name, SERVING)

    async def _load_authority(self) -> None:
        """Use the cluster's authority as soon as it is stored."""
        authority = self._authority = await stored_authority(self._store)
        if self._certificates is not None:
            self._certificates.use(authority)


def _options(settings: Settings) -> tuple[tuple[str, int], ...]:
    grpc_settings = settings.grpc
    message_bytes = round(grpc_settings.max_message_mb * (1 << 20))
    keepalive_ms = round(grpc_settings.keepalive_s * 1000)
    return (
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_concurrent_streams", grpc_settings.max_streams),
        # Very many connections must not use up the files that HTTP and the database need.
        ("grpc.max_allowed_incoming_connections", most_open_files() // 2),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        # Agents send pings more often than gRPC allows by default.
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # A second server on the same port must fail instead of sharing it.
        ("grpc.so_reuseport", 0),
    )
