"""Store, control loop, agent and launcher of one program, on one event loop.

The same components as in the server, but without HTTP and gRPC: the agent's stream is a pair of
queues, so that the launcher's socket is the only one.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpu_scheduler import __version__
from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.discovery import open_source
from gpu_scheduler.agent.devices.source import DeviceSource
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.main import apply_config, device_monitor_for, discovery_options
from gpu_scheduler.agent.server_link import Stream
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.interfaces import ApiSettings
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.api.routes.cluster import gpu_forms
from gpu_scheduler.api.routes.job_views import JobViews
from gpu_scheduler.api.routes.submit import submit_message
from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Cancel, Command
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.server.agent_process import agent_config_of
from gpu_scheduler.server.background import supervise
from gpu_scheduler.server.background.clock_watch import ClockWatch, resume_clock
from gpu_scheduler.server.background.housekeeping import run_housekeeping
from gpu_scheduler.server.background.job_logs import JobLogs
from gpu_scheduler.server.from_settings import new_core, node_timeouts_of, set_up_tenants
from gpu_scheduler.server.state_directory import Lock, prepare
from gpu_scheduler.server.storage import open_sqlite
from gpu_scheduler.server.submission_rules import SiteRules
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.memory import MemoryStore
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import JobRequest

log = structlog.get_logger("local")
AGENT_WAIT_S = 30.0
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
SIMULATED_MODEL = "A100-80GB"
POLL_S = 0.02


class LocalEngine:
    """All components, from start to stop. They belong to one event loop."""

    def __init__(
        self, settings: Settings, paths: Paths, source: DeviceSource | None, *, durable: bool
    ) -> None:
        """`source` None: GPUs as in the settings. With `durable`, state is stored in a database."""
        prepare(paths)
        self._lock = Lock(paths)
        self._settings = settings
        self._source = source
        self._config = agent_config_of(settings, paths)
        database = Path(paths.state) / settings.files.state_file
        self.store: Store = (
            open_sqlite(database, settings.database, paths) if durable else MemoryStore()
        )
        self.caller = _current_user()
        self._clock = clock = SchedulerClock()
        resume_clock(clock, self.store)
        self._durable = durable
        self._agent: asyncio.Task[None] | None = None
        self._housekeeping: asyncio.Task[None] | None = None
        self._clock_watch: asyncio.Task[None] | None = None
        self._launcher: Launcher | None = None
        self.loop = Loop(
            self.store,
            new_core(settings),
            clock.now_ms,
            sweep_ms=settings.scheduler.scheduling_interval_ms,
            rules=SiteRules(settings).check,
            calendar=lambda: clock.calendar,
        )
        self.agents = Agents(self.loop, timeouts=node_timeouts_of(settings.nodes))
        self.context = Context(
            self.loop,
            ApiSettings(server_uid=os.geteuid(), version=__version__),
            logs=JobLogs(self.loop, self.agents),
        )

    async def start(self) -> None:
        """Start everything; jobs of an earlier run are found again."""
        self.loop.start()
        watch = ClockWatch(self.loop, self._clock)
        self._clock_watch = asyncio.create_task(supervise("clock", watch.run))
        await set_up_tenants(self.loop)
        self._launcher = await Launcher.connect(self._config.dir)
        config = self._config
        if self._source is None:
            self._source = await asyncio.to_thread(_own_devices, config)
        source = self._source
        found = apply_config(await asyncio.to_thread(source.find), config)
        watcher = device_monitor_for(config, source, found)
        connect = partial(_connect, self.agents)
        agent = Agent(config, self._launcher, found, watcher, connect)
        self._agent = asyncio.create_task(agent.run())
        if self._durable:
            self._housekeeping = asyncio.create_task(
                run_housekeeping(self.loop, self._settings.retention, Path(config.logs_dir))
            )
        await self._wait_for_agent(self._agent)

    async def _wait_for_agent(self, agent: asyncio.Task[None]) -> None:
        arrival = asyncio.ensure_future(self.agents.wait_for(self._config.node))
        waits: set[asyncio.Future[Any]] = {arrival, agent}
        await asyncio.wait(waits, timeout=AGENT_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        arrived = arrival.done()
        arrival.cancel()
        if agent.done():
            agent.result()
        if not arrived:
            raise ClusterError(f"the agent did not start within {AGENT_WAIT_S:.0f} s")

    async def stop(self, *, cancel: bool) -> None:
        """Stop scheduling. With `cancel`, cancel all jobs first; else running jobs keep running."""
        try:
            if cancel and self._agent is not None:
                await self._cancel_all()
        finally:
            await self.close()

    async def close(self) -> None:
        """Release everything, also after a start that failed halfway."""
        own = (self._clock_watch, self._housekeeping, self._agent)
        tasks = [task for task in own if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._agent = self._housekeeping = self._clock_watch = None
        if self._source is not None:
            self._source.close()
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            await (launcher.close() if await launcher.held() else launcher.leave())
        await self.loop.close()
        self.store.close()
        self._lock.release()

    async def submit(self, body: dict[str, Any]) -> str:
        """Submit a job; return its id once it is committed."""
        reader = JobReader(
            self.caller,
            partial(self.context.submit_tenant, self.caller),
            Runner(self._settings.jobs.runner),
        )
        try:
            submission = reader.read(msgspec.convert(body, JobRequest))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"invalid job: {error}") from error
        outcome = await self.apply(submit_message(submission))
        return outcome.jobs[0].id

    async def apply(self, message: Command) -> Outcome:
        """Apply a command as the user who runs the program."""
        return await self.loop.apply(message, self.caller)

    def row(self, job_id: str) -> JobRow:
        """The committed row of a job."""
        row = self.store.job(job_id)
        if row is None:
            raise UnknownThing(f"job {job_id.removeprefix('job-')} is not known")
        return row

    def form(self, row: JobRow) -> dict[str, Any]:
        """A job in the form of the REST API."""
        form: dict[str, Any] = msgspec.to_builtins(JobViews(self.loop, self.caller).job(row))
        return form

    def gpus(self) -> list[dict[str, Any]]:
        """The GPUs in the form of the REST API."""
        return [msgspec.to_builtins(form) for form in gpu_forms(self.context, self.caller)]

    @property
    def node(self) -> str:
        """The name of this machine."""
        return self._config.node

    @property
    def connected(self) -> bool:
        """Whether the agent is connected."""
        return self._config.node in self.agents.connected

    async def log(self, job_id: str) -> bytes:
        """The output of the last attempt of a job."""
        row = self.row(job_id)
        if not row.attempt:
            return b""
        logs = self.context.logs
        if logs is None:
            return b""
        chunks = logs.read_log(job_id, f"{job_id}.{row.attempt}", 0, 0, 0, False)
        return b"".join([chunk async for chunk in chunks])

    async def _cancel_all(self) -> None:
        """Cancel every job and wait until none of their processes runs."""
        for row in self.store.live_jobs():
            with suppress(SchedulerError):
                await self.apply(Cancel(row.job.id))
        longest_s = self._settings.jobs.grace_s + self._settings.scheduler.worker_timeout_s
        for _ in range(round(longest_s / POLL_S)):
            if await self._is_idle():
                return
            await asyncio.sleep(POLL_S)

    async def _is_idle(self) -> bool:
        if self.store.allocations() or self._launcher is None:
            return False
        return not await self._launcher.held()


class _LocalStream:
    """A stream between an agent and the agent service of the same program."""

    def __init__(self, agents: Agents) -> None:
        self._requests: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self._responses = agents.session(self._read_requests(), _NoContext())  # type: ignore[arg-type]

    async def write(self, message: pb.AgentMessage) -> None:
        self._requests.put_nowait(message)

    def __aiter__(self) -> AsyncIterator[pb.ServerMessage]:
        return aiter(self._responses)

    async def close(self) -> None:
        await self._responses.aclose()  # type: ignore[attr-defined]

    async def _read_requests(self) -> AsyncIterator[pb.AgentMessage]:
        while True:
            yield await self._requests.get()


class _NoContext:
    """Stands in for the context of a gRPC call."""

    async def abort(self, code: object, text: str) -> None:
        """Raise the error: both sides are in this process."""
        raise ClusterError(f"{code}: {text}")


@asynccontextmanager
async def _connect(agents: Agents) -> AsyncIterator[Stream]:
    stream = _LocalStream(agents)
    try:
        yield stream
    finally:
        await stream.close()


def _own_devices(config: AgentConfig) -> DeviceSource:
    """The GPUs of this machine; where there is no driver, `num_gpus` simulated ones."""
    source = open_source(discovery_options(config))
    has_driver = NVIDIA_DRIVER.exists() or bool(source.find().devices)
    if has_driver or not config.most_devices or config.detection_method != "auto":
        return source
    source.close()
    simulated = f"{config.most_devices}x{SIMULATED_MODEL}"
    log.warning("this machine has no GPU driver; simulating GPUs", gpus=simulated)
    return open_source(
        discovery_options(replace(config, detection_method="declared", simulate=simulated))
    )


def _current_user() -> Caller:
    uid = os.getuid()
    try:
        name, gid = pwd.getpwuid(uid).pw_name, os.getgid()
    except KeyError:
        name, gid = str(uid), os.getgid()
    return Caller(user=name, uid=uid, gid=gid, role=Role.ADMIN)
