"""The gRPC port: SchedulerService for programs, NodeService and AgentService for nodes.

Beside them health and reflection. It listens from the start of a server to its end, whatever the
server's role is at the moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from gpu_scheduler.api.grpc.authority import NodeAuthority
from gpu_scheduler.api.grpc.nodes import Nodes, add_node_service
from gpu_scheduler.api.grpc.scheduler import SERVICE, Scheduler, add_scheduler_service
from gpu_scheduler.api.serve import CannotListen
from gpu_scheduler.server.agent_door import AgentDoor
from gpu_scheduler.server.grpc_access import check_grpc, grpc_host, speaks_tls
from gpu_scheduler.server.grpc_tls import GrpcCertificates
from gpu_scheduler.server.lasting import lasting
from gpu_scheduler.server.node_keys import stored_authority
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.store.contract import Store

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
