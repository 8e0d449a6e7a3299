"""All parts of the server joined: store, control loop, agents, HTTP, and the agent of this machine.

Settings and paths come in. What can fail before anybody depends on it fails first: directories,
lock, database, ports.
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
from gpu_scheduler.api.application import Applications
from gpu_scheduler.api.http.listeners import Addresses, BoundSockets, ConnectionLimit, serve
from gpu_scheduler.api.nodes.sessions import add_agent_service
from gpu_scheduler.control.writer import SteadyClock
from gpu_scheduler.server.access import Certificate, on_reload, verifier_of
from gpu_scheduler.server.agent_process import AgentProcess, agent_config_of, node_name
from gpu_scheduler.server.grpc import GrpcServer
from gpu_scheduler.server.ha.agent_gate import AgentDoor
from gpu_scheduler.server.ha.components import Parts
from gpu_scheduler.server.ha.membership import Guarded, fence, leadership_of, member_of
from gpu_scheduler.server.ha.role import Alone, OneOfSeveral, Roles
from gpu_scheduler.server.runtime import calm_collector, lasting
from gpu_scheduler.server.start_rules import check_settings
from gpu_scheduler.server.state_directory import (
    Lock,
    announce,
    home_of,
    prepare,
    private_files,
    renounce,
    started_at,
)
from gpu_scheduler.server.storage import open_store, postgres_address
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.contract import Store

FIRST_AGENT_S = 15.0
FIRST_LEADER_S = 15.0
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
        """Take the directories; no second server can from now on.

        With `has_agent` it runs jobs on this machine, with `has_nodes` agents come over TCP.
        """
        self._warnings = check_settings(settings, has_nodes=has_nodes)
        for warning in self._warnings:
            log.warning(warning)
        self._has_agent = has_agent
        self._has_nodes = has_nodes
        self._network: GrpcServer | None = None
        self._nodes_at = ""
        self._certificate = Certificate(settings.api) if settings.api.tls_certificate else None
        self._signed = verifier_of(settings.auth)
        prepare(paths)
        self._lock = Lock(paths)
        self._settings = settings
        self._paths = paths
        self._clock = SteadyClock()
        self._store = open_store(settings, paths)
        self._listening = BoundSockets(_addresses(settings, paths))

    async def run(self, stop: asyncio.Event, ready: Callable[[dict[str, Any]], None]) -> None:
        """Serve until told to stop. `ready` hears where, once everything answers."""
        door = AgentDoor()
        try:
            async with self._grpc(door) as network:
                self._network = network
                roles = self._roles(door, network)
                try:
                    applications = await roles.begin()
                    async with self._http(applications):
                        if network is not None:
                            await network.serve(applications.main)
                        await self._serve(roles, stop, ready)
                finally:
                    await self._end(roles)
        finally:
            self._listening.close()
            self._store.close()
            renounce(self._paths)
            self._lock.release()

    async def _serve(
        self, roles: Roles, stop: asyncio.Event, ready: Callable[[dict[str, Any]], None]
    ) -> None:
        tasks = [self._watch_files()]
        door, node = roles.door, node_name(self._settings)
        await _either(stop.wait(), roles.settle(), FIRST_LEADER_S)
        local_agent = None
        if self._has_agent:
            config = agent_config_of(self._settings, self._paths)
            local_agent = AgentProcess(config, lambda: door.has(node))
            tasks.append(asyncio.create_task(lasting("agent", local_agent.run)))
            await _either(stop.wait(), door.wait_for(node), FIRST_AGENT_S)
        facts = self._facts(node, door.problem(node))
        announce(self._paths, facts)
        calm_collector()
        ready(facts)
        try:
            await _until(stop, roles)
        finally:
            log.info("stopping; jobs go on")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if local_agent is not None:
                await local_agent.stop()
            await self._end(roles)

    async def _end(self, roles: Roles) -> None:
        """Finish what can be finished: not what waits for a database that is away."""
        if isinstance(self._store, Guarded):
            self._store.hurry()
        await roles.end()

    def _roles(self, door: AgentDoor, network: GrpcServer | None) -> Roles:
        """Alone with a file; one of several on PostgreSQL."""
        parts = Parts(
            settings=self._settings,
            paths=self._paths,
            store=self._store,
            clock=self._clock,
            signed=self._signed,
            warnings=self._warnings,
            node=node_name(self._settings) if self._has_agent else "",
        )
        if not isinstance(self._store, Guarded):
            return Alone(parts, door)
        nodes_at = "" if network is None else network.address
        me = member_of(self._settings, self._listening, nodes_at, home_of(self._paths))
        address = postgres_address(self._settings.database)
        leadership = leadership_of(self._settings, address, me)
        return OneOfSeveral(parts, door, leadership, partial(fence, self._store))

    def _watch_files(self) -> asyncio.Task[None]:
        """Read certificates again when they change, or when told by SIGHUP."""
        if self._certificate is not None:
            also = self._network.refresh if self._network is not None else _nothing
            watch = partial(self._certificate.watch, also)
            return asyncio.create_task(lasting("certificate", watch))
        on_reload(partial(log.info, "told to reload; there is no certificate to read"))
        return asyncio.create_task(asyncio.sleep(0))

    @asynccontextmanager
    async def _http(self, applications: Applications) -> AsyncIterator[None]:
        api = self._settings.api
        server = await serve(
            applications,
            self._listening,
            doors=ConnectionLimit(api.connections_per_caller, api.slow_request_s),
            tls=None if self._certificate is None else self._certificate.context,
        )
        try:
            yield
        finally:
            await server.close(self._settings.scheduler.graceful_shutdown_timeout_s)

    @asynccontextmanager
    async def _grpc(self, door: AgentDoor) -> AsyncIterator[GrpcServer | None]:
        """The private socket of this machine's agent, and the port for everybody else."""
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
            )
        )
        add_agent_service(server, door)
        with private_files():
            server.add_insecure_port(f"unix:{self._paths.agent_socket}")
        await server.start()
        try:
            if self._has_nodes:
                network = GrpcServer(self._settings, door, self._store)
                self._nodes_at = network.address
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
            "process_start": started_at(pid),
            "started": time.time(),
            "version": __version__,
            "node": node if self._has_agent else "",
            "hardware": _hardware(self._store, node, problem) if self._has_agent else {},
            "nodes": self._nodes_at,
            "http": f"{scheme}://{host}:{self._listening.http_port}",
            "metrics": f"{scheme}://{host}:{metrics_port}" if metrics_port else "",
            "socket": self._paths.server_socket,
            "state": self._paths.state,
        }


def _nothing() -> None:
    """There is nobody else to tell."""


async def _until(stop: asyncio.Event, roles: Roles) -> None:
    """Wait until we are told to stop; raise if there is no sense in going on."""
    stopping, watching = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(roles.watch())
    try:
        await asyncio.wait({stopping, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        stopping.cancel()
        watching.cancel()


async def _either(
    stop: Coroutine[Any, Any, Any], agent: Coroutine[Any, Any, None], longest_s: float
) -> None:
    """Wait, so that the first submission finds a leader and a node; not if we are to stop."""
    waits = [asyncio.ensure_future(stop), asyncio.ensure_future(agent)]
    await asyncio.wait(waits, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
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
    """What this machine has, in a few words."""
    node = next((node for node in store.nodes() if node.id == node_id), None)
    if node is None:
        return {"summary": "its agent has not answered yet; see agent/agent.log", "problem": ""}
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
