"""One agent from start to stop, for whoever starts it: its lock, its devices, its end.

Running jobs continue after it ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog

from gpu_scheduler.agent.config import AGENT_LOCK, AgentConfig
from gpu_scheduler.agent.devices.discovery import DiscoveryOptions, RetryingSource, open_source
from gpu_scheduler.agent.devices.host import Host, find_fabric
from gpu_scheduler.agent.devices.monitor import DeviceMonitor, HotplugScan, MonitorSettings
from gpu_scheduler.agent.devices.processes import ForeignRule, ProcessOwners
from gpu_scheduler.agent.devices.source import DeviceSource, NodeInventory
from gpu_scheduler.agent.identity import key_renewer_for
from gpu_scheduler.agent.jobs.logs import enforce_log_retention
from gpu_scheduler.agent.jobs.network import own_address
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.machine import LocalMachine
from gpu_scheduler.agent.server_link import ServerConnector
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.model.errors import ClusterError, SchedulerError

# --- From an agent's configuration to its devices: what to look for, and how to watch it.


def discovery_options(config: AgentConfig) -> DiscoveryOptions:
    """How devices are to be found."""
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
    """What was found, as far as it is to be used, and what people say about the node."""
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
    """Who looks at the devices from now on; nobody where there are none and none can come."""
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
    memory = Path(config.dir) / "devices.json"
    owner_of = ProcessOwners(config.scratch_dir).owner_of

    def find() -> NodeInventory:
        # Drivers tell of new devices only to who comes anew.
        source.close()
        return apply_config(source.find(), config)

    watcher = DeviceMonitor(
        source, found, owner_of, settings=settings, memory=memory, boot_id=LocalMachine().boot_id()
    )
    watcher.rescan = HotplugScan(find, found, Host().gpus, seeks=isinstance(source, RetryingSource))
    return watcher


# --- One agent from start to stop, for whoever starts it: its lock, its devices, its end.

log = structlog.get_logger("agent")


class AgentAlreadyRuns(ClusterError):
    """Another agent works with the same directory."""

    code = "agent_runs"
    exit_code = 7


@contextmanager
def exclusive_lock(config: AgentConfig) -> Iterator[None]:
    """Be the only agent of a directory, or say who is.

    In the lock stands the pid, and below it what this agent was told, as a digest.
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


async def _work(
    config: AgentConfig, launcher: Launcher, found: NodeInventory, watcher: DeviceMonitor | None
) -> None:
    """Become a node if this is none yet; then the agent, and the renewal of its key beside it."""
    if not config.address:
        config = replace(config, address=await asyncio.to_thread(own_address, config.targets))
    keeper = await key_renewer_for(config)
    connect = None if keeper is None else ServerConnector(config.targets, keeper)
    agent = Agent(config, launcher, found, watcher, connect)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.look_again)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.run())
        if config.logs_days:
            tasks.create_task(
                enforce_log_retention(launcher, Path(config.logs_dir), config.logs_days)
            )
        if keeper is not None:
            tasks.create_task(keeper.run())


async def run_agent(config: AgentConfig) -> None:
    """Work until told to stop by a signal, or sent away for good."""
    launcher = await Launcher.connect(config.dir)
    source = await asyncio.to_thread(open_source, discovery_options(config))
    found = apply_config(await asyncio.to_thread(source.find), config)
    watcher = device_monitor_for(config, source, found)
    agent = asyncio.ensure_future(_work(config, launcher, found, watcher))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.cancel)
    try:
        await agent
    except asyncio.CancelledError:
        log.info("the agent stops; jobs go on")
    except BaseExceptionGroup as group:
        raise _first_known(group) from None
    finally:
        source.close()
    if not await launcher.held():
        await launcher.leave()


def _first_known(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong in words, if there are some among what the tasks have raised."""
    known: BaseException | None = group.subgroup(SchedulerError)
    while isinstance(known, BaseExceptionGroup):
        known = known.exceptions[0]
    return group if known is None else known
