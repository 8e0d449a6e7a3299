"""One server process: store, control loop, agents, HTTP and gRPC, and this machine's agent.

Settings and paths come in. Whatever can fail early fails first: directories, lock, database, ports.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import structlog

from gpu_scheduler import __version__
from gpu_scheduler.api.http.app import Applications
from gpu_scheduler.api.http.listeners import Addresses, BoundSockets, ConnectionLimit, serve
from gpu_scheduler.api.nodes.sessions import add_agent_service
from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.server.agent_process import AgentProcess, agent_config_of, node_name
from gpu_scheduler.server.background import supervise
from gpu_scheduler.server.background.housekeeping import tune_gc
from gpu_scheduler.server.grpc import AgentGate, GrpcServer
from gpu_scheduler.server.ha.leader import Components
from gpu_scheduler.server.ha.postgres_lease import FencedStore, elector_of, fence, member_of
from gpu_scheduler.server.ha.role import ReplicatedRole, Role, StandaloneRole
from gpu_scheduler.server.network_access import Certificate, on_reload, verifier_of
from gpu_scheduler.server.settings_rules import check_settings
from gpu_scheduler.server.state_directory import (
    Lock,
    installation_id,
    prepare,
    private_files,
    process_start,
    remove_server_file,
    write_server_file,
)
from gpu_scheduler.server.storage import open_store, postgres_address
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.interface import Store

AGENT_WAIT_S = 15.0
LEADER_WAIT_S = 15.0
MESSAGE_BYTES = 64 << 20
log = structlog.get_logger("server")


class Server:
    """One server, from start to stop."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        *,
        has_agent: bool = True,
        has_nodes: bool = False,
    ) -> None:
        """Lock the state directory, open the database and bind the ports.

        With `has_agent` it runs jobs on this machine; with `has_nodes` agents connect over TCP.
        """
        self._warnings = check_settings(settings, has_nodes=has_nodes)
        for warning in self._warnings:
            log.warning(warning)
        self._has_agent = has_agent
        self._has_nodes = has_nodes
        self._network: GrpcServer | None = None
        self._certificate = Certificate(settings.api) if settings.api.tls_certificate else None
        self._signed = verifier_of(settings.auth)
        prepare(paths)
        self._lock = Lock(paths)
        self._settings = settings
        self._paths = paths
        self._clock = SchedulerClock()
        self._store = open_store(settings, paths)
        self._listening = BoundSockets(_addresses(settings, paths))

    async def run(self, stop: asyncio.Event, on_ready: Callable[[dict[str, Any]], None]) -> None:
        """Serve until `stop` is set. `on_ready` gets the addresses once everything answers."""
        gate = AgentGate()
        try:
            async with self._grpc(gate) as network:
                self._network = network
                role = self._make_role(gate)
                try:
                    applications = await role.start()
                    async with self._http(applications):
                        if network is not None:
                            await network.serve(applications.main)
                        await self._serve(role, stop, on_ready)
                finally:
                    await self._stop(role)
        finally:
            self._listening.close()
            self._store.close()
            remove_server_file(self._paths)
            self._lock.release()

    async def _serve(
        self, role: Role, stop: asyncio.Event, on_ready: Callable[[dict[str, Any]], None]
    ) -> None:
        tasks = [self._watch_certificate()]
        gate, node = role.gate, node_name(self._settings)
        # The first submission should find a leader and a node, so wait for both for a while.
        await _first_of(stop.wait(), role.wait_for_leader(), LEADER_WAIT_S)
        local_agent = None
        if self._has_agent:
            config = agent_config_of(self._settings, self._paths)
            local_agent = AgentProcess(config, lambda: gate.has(node))
            tasks.append(asyncio.create_task(supervise("agent", local_agent.run)))
            await _first_of(stop.wait(), gate.wait_for(node), AGENT_WAIT_S)
        facts = self._facts(node, gate.problem(node))
        write_server_file(self._paths, facts)
        tune_gc()
        on_ready(facts)
        try:
            await _wait_for_stop(stop, role)
        finally:
            log.info("stopping; jobs keep running")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if local_agent is not None:
                await local_agent.stop()
            await self._stop(role)

    async def _stop(self, role: Role) -> None:
        """Finish what can be finished, but do not wait for a database that is down."""
        if isinstance(self._store, FencedStore):
            self._store.stop_waiting()
        await role.stop()

    def _make_role(self, gate: AgentGate) -> Role:
        """Standalone with SQLite; with PostgreSQL one of several servers."""
        components = Components(
            settings=self._settings,
            paths=self._paths,
            store=self._store,
            clock=self._clock,
            signed=self._signed,
            warnings=self._warnings,
            node=node_name(self._settings) if self._has_agent else "",
        )
        if not isinstance(self._store, FencedStore):
            return StandaloneRole(components, gate)
        home = installation_id(self._paths)
        me = member_of(self._settings, self._listening, self._nodes_address, home)
        election = elector_of(self._settings, postgres_address(self._settings.database), me)
        return ReplicatedRole(components, gate, election, partial(fence, self._store))

    @property
    def _nodes_address(self) -> str:
        return "" if self._network is None else self._network.address

    def _watch_certificate(self) -> asyncio.Task[None]:
        """Reload certificates when they change, and on SIGHUP."""
        if self._certificate is not None:
            on_change = self._network.refresh if self._network is not None else lambda: None
            watch = partial(self._certificate.watch, on_change)
            return asyncio.create_task(supervise("certificate", watch))
        on_reload(partial(log.info, "reload requested; there is no certificate to reload"))
        return asyncio.create_task(asyncio.sleep(0))

    @asynccontextmanager
    async def _http(self, applications: Applications) -> AsyncIterator[None]:
        api = self._settings.api
        server = await serve(
            applications,
            self._listening,
            limit=ConnectionLimit(api.connections_per_caller, api.slow_request_s),
            tls=None if self._certificate is None else self._certificate.context,
        )
        try:
            yield
        finally:
            await server.close(self._settings.scheduler.graceful_shutdown_timeout_s)

    @asynccontextmanager
    async def _grpc(self, gate: AgentGate) -> AsyncIterator[GrpcServer | None]:
        """Open the private socket for this machine's agent, and the gRPC port if there is one."""
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
            )
        )
        add_agent_service(server, gate)
        with private_files():
            server.add_insecure_port(f"unix:{self._paths.agent_socket}")
        await server.start()
        try:
            if self._has_nodes:
                network = GrpcServer(self._settings, gate, self._store)
                async with network.listening():
                    yield network
            else:
                yield None
        finally:
            await server.stop(1)

    def _facts(self, node: str, problem: str) -> dict[str, Any]:
        pid = os.getpid()
        host, metrics_port = self._settings.api.host, self._listening.metrics_port
        host = f"[{host}]" if ":" in host else host
        scheme = "http" if self._certificate is None else "https"
        return {
            "pid": pid,
            "process_start": process_start(pid),
            "started": time.time(),
            "version": __version__,
            "node": node if self._has_agent else "",
            "hardware": _hardware(self._store, node, problem) if self._has_agent else {},
            "nodes": self._nodes_address,
            "http": f"{scheme}://{host}:{self._listening.http_port}",
            "metrics": f"{scheme}://{host}:{metrics_port}" if metrics_port else "",
            "socket": self._paths.server_socket,
            "state": self._paths.state,
        }


async def _wait_for_stop(stop: asyncio.Event, role: Role) -> None:
    """Wait for `stop`; raise if the server cannot continue in its role."""
    stopping, watching = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(role.watch())
    try:
        await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        stopping.cancel()
        watching.cancel()


async def _first_of(
    stop: Coroutine[Any, Any, Any], event: Coroutine[Any, Any, None], timeout_s: float
) -> None:
    """Wait until one of the two is done, or the timeout has passed."""
    waits = [asyncio.ensure_future(stop), asyncio.ensure_future(event)]
    await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _addresses(settings: Settings, paths: Paths) -> Addresses:
    api = settings.api
    return Addresses(
        http=(api.host, api.http_port),
        unix=Path(paths.server_socket),
        metrics=(api.host, api.metrics_port) if settings.logging.metrics_enabled else None,
    )


def _hardware(store: Store, node_id: str, problem: str) -> dict[str, Any]:
    """A short description of this machine."""
    node = next((node for node in store.nodes() if node.id == node_id), None)
    if node is None:
        return {"summary": "the agent has not connected yet; see agent/agent.log", "problem": ""}
    models: dict[tuple[str, int], int] = {}
    for device in node.devices:
        key = (device.model, device.memory_mb)
        models[key] = models.get(key, 0) + 1
    gpus = ", ".join(
        f"{count} x {model} ({memory_mb / 1024:.0f} GB)"
        for (model, memory_mb), count in models.items()
    )
    host = f"{node.cpu_milli / 1000:g} CPU cores, {node.memory_mb / 1024:.0f} GB"
    summary = f"{gpus or 'no GPU'}; {host}"
    return {"summary": summary, "problem": problem, "gpus": len(node.devices)}
