"""All parts of the server joined: store, control loop, agents, HTTP, and the agent of this machine.

Settings and paths come in. What can fail before anybody depends on it fails first: directories,
lock, database, ports.
"""

from __future__ import annotations

import asyncio
import gc
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
from gpu_scheduler.api.agents import Agents, add_agent_service
from gpu_scheduler.api.application import build
from gpu_scheduler.api.connection import Doors
from gpu_scheduler.api.serve import Addresses, Listening, serve
from gpu_scheduler.api.service import ApiSettings, Bounds
from gpu_scheduler.control.clock import SteadyClock
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetTenant
from gpu_scheduler.control.vitals import Vitals
from gpu_scheduler.diary.lines import lost_lines
from gpu_scheduler.model.caller import DEFAULT_TENANT
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.notify.service import Notifications
from gpu_scheduler.predict.history import History
from gpu_scheduler.server.access import (
    Certificate,
    check_access,
    host_names,
    on_reload,
    verifier_of,
)
from gpu_scheduler.server.agent_config import agent_config_of
from gpu_scheduler.server.agent_process import AgentProcess
from gpu_scheduler.server.attaching import attach_command_of
from gpu_scheduler.server.directories import (
    Lock,
    announce,
    prepare,
    private_files,
    renounce,
    started_at,
)
from gpu_scheduler.server.estimates import Estimator
from gpu_scheduler.server.housekeeping import keep_house
from gpu_scheduler.server.job_lines import JobLines
from gpu_scheduler.server.job_logs import JobLogs
from gpu_scheduler.server.jobs_file import JobsFile
from gpu_scheduler.server.notifications import LoopForNotices
from gpu_scheduler.server.policy import limits_of, policy_of
from gpu_scheduler.server.pools import set_up_pools
from gpu_scheduler.server.prices import prices_of
from gpu_scheduler.server.site_rules import SiteRules
from gpu_scheduler.server.tenants import set_up_tenants
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.places import Paths
from gpu_scheduler.store.sqlite import SqliteStore

FIRST_AGENT_S = 15.0
YOUNG_OBJECTS = 50_000
MESSAGE_BYTES = 64 << 20
log = structlog.get_logger("server")


class Server:
    """One server, from start to stop."""

    def __init__(self, settings: Settings, paths: Paths) -> None:
        """Take the directories; no second server can from now on."""
        self._warnings = check_access(settings)
        self._certificate = Certificate(settings.api) if settings.api.tls_certificate else None
        self._signed = verifier_of(settings.auth)
        prepare(paths)
        self._lock = Lock(paths)
        self._settings = settings
        self._paths = paths
        self._clock = SteadyClock()
        self._store = SqliteStore(_database(settings, paths))
        self._clock.not_before(_last_time(self._store))
        self._listening = Listening(_addresses(settings, paths))

    async def run(self, stop: asyncio.Event, ready: Callable[[dict[str, Any]], None]) -> None:
        """Serve until told to stop. `ready` hears where, once everything answers."""
        loop = Loop(
            self._store,
            self._new_core,
            self._clock.now_ms,
            sweep_ms=self._settings.scheduler.scheduling_interval_ms,
            rules=SiteRules(self._settings).check,
        )
        vitals = Vitals(
            self._paths.state,
            loop.tallies.commit_seconds,
            self._clock.now_ms,
            lost_lines=lost_lines,
        )
        loop.on_committed(JobLines(loop).note)
        agents = Agents(loop, silent_after_s=self._settings.agent.lost_after_s)
        notifications = Notifications(self._settings.notifications, LoopForNotices(loop))
        config = agent_config_of(self._settings, self._paths)
        local_agent = AgentProcess(config, lambda: config.node in agents.connected)
        loop.start()
        try:
            await self._set_up(loop)
            async with self._grpc(agents), self._http(loop, agents, notifications, vitals):
                agents.expect_nodes()
                tasks = [
                    asyncio.create_task(local_agent.run()),
                    asyncio.create_task(notifications.run()),
                    asyncio.create_task(vitals.watch()),
                    asyncio.create_task(Estimator(loop).run()),
                    asyncio.create_task(
                        keep_house(loop, self._settings.retention, Path(self._paths.logs))
                    ),
                ]
                if self._certificate is not None:
                    tasks.append(asyncio.create_task(self._certificate.watch()))
                else:
                    on_reload(partial(log.info, "told to reload; there is no certificate to read"))
                if self._settings.files.jobs_file:
                    watcher = JobsFile(
                        loop,
                        self._settings.files,
                        self._settings.security.admins,
                        runner=self._settings.jobs.runner,
                    )
                    tasks.append(asyncio.create_task(watcher.watch()))
                await _either(stop.wait(), agents.wait_for(config.node), FIRST_AGENT_S)
                facts = self._facts(config.node, agents.problems.get(config.node, ""))
                announce(self._paths, facts)
                _calm_collector()
                ready(facts)
                await stop.wait()
                log.info("stopping; jobs go on")
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await local_agent.stop()
        finally:
            self._listening.close()
            await loop.close()
            self._store.close()
            renounce(self._paths)
            self._lock.release()

    def _new_core(self) -> Core:
        return Core(policy_of(self._settings), History(), limits_of(self._settings))

    async def _set_up(self, loop: Loop) -> None:
        """What every server has: the default tenant, and the pools as they are set."""
        if DEFAULT_TENANT not in {tenant.id for tenant in self._store.tenants()}:
            await loop.apply(SetTenant(Tenant(id=DEFAULT_TENANT, name=DEFAULT_TENANT)))
        await set_up_tenants(loop, self._settings.tenants)
        await set_up_pools(loop, self._settings.policy)

    @asynccontextmanager
    async def _http(
        self, loop: Loop, agents: Agents, notifications: Notifications, vitals: Vitals
    ) -> AsyncIterator[None]:
        api = self._settings.api
        bulk_bytes = round(api.max_body_mb * (1 << 20))
        settings = ApiSettings(
            server_uid=os.geteuid(),
            version=__version__,
            admins=self._settings.security.admins,
            runner=Runner(self._settings.jobs.runner),
            attach=partial(attach_command_of, self._paths.scratch),
            notifications=notifications,
            vitals=vitals,
            prices=prices_of(self._settings.costs),
            host_names=host_names(api),
            auth=self._settings.auth.enabled,
            max_token_days=self._settings.auth.max_token_days,
            warnings=self._warnings,
            bounds=Bounds(
                body_bytes=min(bulk_bytes, Bounds().body_bytes),
                bulk_bytes=bulk_bytes,
                bulk_jobs=api.max_jobs_per_request,
                receive_seconds=api.slow_request_s,
                requests_per_second=api.requests_per_second,
                requests_burst=api.requests_burst,
            ),
        )
        applications = build(loop, settings, logs=JobLogs(loop, agents), signed=self._signed)
        server = await serve(
            applications,
            self._listening,
            doors=Doors(api.connections_per_caller, api.slow_request_s),
            tls=None if self._certificate is None else self._certificate.context,
        )
        try:
            yield
        finally:
            await server.close(self._settings.scheduler.graceful_shutdown_timeout_s)

    @asynccontextmanager
    async def _grpc(self, agents: Agents) -> AsyncIterator[None]:
        server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", MESSAGE_BYTES),
                ("grpc.max_send_message_length", MESSAGE_BYTES),
            )
        )
        add_agent_service(server, agents)
        with private_files():
            server.add_insecure_port(f"unix:{self._paths.agent_socket}")
        await server.start()
        try:
            yield
        finally:
            agents.reconnect_all()
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
            "node": node,
            "hardware": _hardware(self._store, node, problem),
            "http": f"{scheme}://{host}:{self._listening.http_port}",
            "metrics": f"{scheme}://{host}:{metrics_port}" if metrics_port else "",
            "socket": self._paths.server_socket,
            "state": self._paths.state,
        }


def _calm_collector() -> None:
    """Look for cycles less often: jobs are many small values that are none, and live for long.

    At the usual threshold the collector takes a third of the time of a large submission.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def _database(settings: Settings, paths: Paths) -> Path:
    """The file that the settings name, by a URL or by a name in the state directory."""
    if not settings.database.url:
        return Path(paths.state) / settings.files.state_file
    scheme, _, path = settings.database.url.partition("://")
    if scheme != "sqlite" or not path.startswith("/"):
        raise InvalidRequest(
            f"database.url is '{settings.database.url}'; write sqlite:///path/of/the/file"
        )
    return Path(path)


async def _either(
    stop: Coroutine[Any, Any, Any], agent: Coroutine[Any, Any, None], longest_s: float
) -> None:
    """Wait for the agent, so that the first submission finds its node; not if we are to stop."""
    waits = [asyncio.ensure_future(stop), asyncio.ensure_future(agent)]
    await asyncio.wait(waits, timeout=longest_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _last_time(store: SqliteStore) -> int:
    """The newest time that was written; a clock that was set back must not go behind it."""
    events = store.events(max(0, store.last_event() - 1))
    return events[-1][1].at_ms if events else 0


def _addresses(settings: Settings, paths: Paths) -> Addresses:
    api = settings.api
    return Addresses(
        http=(api.host, api.http_port),
        unix=Path(paths.server_socket),
        metrics=(api.host, api.metrics_port) if settings.logging.metrics_enabled else None,
    )


def _hardware(store: SqliteStore, node_id: str, problem: str) -> dict[str, str]:
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
    return {"summary": summary, "problem": problem}
