"""Runs one agent from start to stop: its lock, its devices, its identity, its shutdown.

Running jobs continue after the agent ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_scheduler.agent.config import AGENT_LOCK, AgentConfig
from gpu_scheduler.agent.devices.discovery import (
    DiscoveryOptions,
    HotplugScan,
    RetryingSource,
    open_source,
)
from gpu_scheduler.agent.devices.host import Host, find_fabric
from gpu_scheduler.agent.devices.monitor import DeviceMonitor, MonitorSettings
from gpu_scheduler.agent.devices.processes import ForeignRule, ProcessOwners
from gpu_scheduler.agent.devices.source import DeviceSource, NodeInventory
from gpu_scheduler.agent.enrollment import key_renewer_for
from gpu_scheduler.agent.jobs.log_reader import enforce_log_retention
from gpu_scheduler.agent.jobs.network import own_address
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.machine import LocalMachine
from gpu_scheduler.agent.oom_score import PROTECTED, set_oom_score
from gpu_scheduler.agent.server_link import ServerConnector
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.model.errors import ClusterError, SchedulerError

log = structlog.get_logger("agent")


def discovery_options(config: AgentConfig) -> DiscoveryOptions:
    """How the devices of a node are discovered."""
    method = "declared" if config.simulate else config.detection_method
    return DiscoveryOptions(
        method=method,
        declared=config.simulate,
        node=config.node,
        cpu_milli=config.cpu_milli,
        memory_mb=config.memory_mb,
        readings_file=Path(config.dir) / "readings.json",
        deadline_s=config.read_timeout_s,
    )


def apply_config(found: NodeInventory, config: AgentConfig) -> NodeInventory:
    """An inventory with the configured device limit, labels and rack, and with its fabric."""
    most = config.most_devices
    return replace(
        found,
        devices=found.devices[:most] if most else found.devices,
        labels=tuple(sorted({**dict(found.labels), **config.labels}.items())),
        rack=config.rack,
        fabric=find_fabric(),
    )


def device_monitor_for(
    config: AgentConfig, source: DeviceSource, found: NodeInventory
) -> DeviceMonitor | None:
    """The monitor of a node's devices; None where there are none and none can appear later."""
    if not found.devices and not isinstance(source, RetryingSource):
        return None
    rule = ForeignRule(
        memory_threshold=config.memory_threshold,
        load_threshold=config.load_threshold,
        ignore_names=ForeignRule().ignore_names + config.ignore_programs,
        ignore_users=config.ignore_users,
    )
    settings = MonitorSettings(
        monitor_interval_s=config.monitor_interval_s,
        utilization_window_s=config.utilization_window_s,
        foreign=rule,
        release_timeout_s=config.release_timeout_s,
        release_tolerance_mb=config.release_tolerance_mb,
        breaker_failures=config.breaker_failures,
        breaker_backoff_s=config.breaker_backoff_s,
    )
    owner_of = ProcessOwners(config.scratch_dir).owner_of

    def find() -> NodeInventory:
        # Drivers list new devices only after they are opened again.
        source.close()
        return apply_config(source.find(), config)

    monitor = DeviceMonitor(
        source,
        found,
        owner_of,
        settings=settings,
        health_file=Path(config.dir) / "devices.json",
        boot_id=LocalMachine().boot_id(),
    )
    monitor.hotplug = HotplugScan(
        find, found, Host().gpus, retry_when_empty=isinstance(source, RetryingSource)
    )
    return monitor


class AgentAlreadyRuns(ClusterError):
    """Another agent uses the same directory."""

    code = "agent_runs"
    exit_code = 7


@contextmanager
def exclusive_lock(config: AgentConfig) -> Iterator[None]:
    """Hold the lock of the agent's directory; raises AgentAlreadyRuns with the pid of its holder.

    The lock file contains the pid, and the digest of the configuration on the second line.
    """
    lock = os.open(Path(config.dir) / AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(lock, 20).decode("ascii", "replace").partition("\n")[0]
            raise AgentAlreadyRuns(
                f"another agent (pid {pid or 'unknown'}) works with {config.dir}; stop it, or "
                "choose another directory"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n{config.digest}\n".encode())
        yield
    finally:
        os.close(lock)


async def _join_and_run(
    config: AgentConfig, launcher: Launcher, found: NodeInventory, monitor: DeviceMonitor | None
) -> None:
    """Join the cluster if needed, then run the agent together with its key renewal."""
    if not config.address:
        config = replace(config, address=await asyncio.to_thread(own_address, config.targets))
    key_renewer = await key_renewer_for(config)
    connect = None if key_renewer is None else ServerConnector(config.targets, key_renewer)
    agent = Agent(config, launcher, found, monitor, connect)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.rescan_devices)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.run())
        tasks.create_task(agent.log_keeper.run())
        if config.logs_days:
            tasks.create_task(
                enforce_log_retention(launcher, Path(config.logs_dir), config.logs_days)
            )
        if key_renewer is not None:
            tasks.create_task(key_renewer.run())


async def run_agent(config: AgentConfig) -> None:
    """Run until a signal arrives or a server rejects this agent for good."""
    set_oom_score(PROTECTED)
    connecting = asyncio.ensure_future(Launcher.connect(config.dir))
    agent = asyncio.ensure_future(_run_with(config, connecting))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.cancel)
    try:
        await agent
    except asyncio.CancelledError:
        log.info("agent stopped; jobs continue")
    except BaseExceptionGroup as group:
        raise _root_cause(group) from None
    finally:
        await _leave_if_idle(connecting)


async def _run_with(config: AgentConfig, connecting: asyncio.Future[Launcher]) -> None:
    """Run the agent once its launcher answers, which an agent that is stopped waits for, too."""
    launcher = await asyncio.shield(connecting)
    source = await asyncio.to_thread(open_source, discovery_options(config))
    try:
        found = apply_config(await asyncio.to_thread(source.find), config)
        monitor = device_monitor_for(config, source, found)
        await _join_and_run(config, launcher, found, monitor)
    finally:
        source.close()


async def _leave_if_idle(connecting: asyncio.Future[Launcher]) -> None:
    """Let the launcher exit if no job runs; what has ended stays in its journal for the next."""
    with suppress(ClusterError, OSError):
        launcher = await connecting
        if all(over is not None for _, _, over in await launcher.held()):
            await launcher.leave()


def _root_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first SchedulerError that the tasks raised; the whole group if there is none."""
    known: BaseException | None = group.subgroup(SchedulerError)
    while isinstance(known, BaseExceptionGroup):
        known = known.exceptions[0]
    return group if known is None else known
