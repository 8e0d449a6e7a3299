"""One agent from start to stop, for whoever starts it: its lock, its devices, its end.

Jobs are left alone, however it ends.
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

from gpu_scheduler.agent.building import as_configured, wanted_devices, watcher_of
from gpu_scheduler.agent.config import AGENT_LOCK, AgentConfig
from gpu_scheduler.agent.devices.inventory import Found
from gpu_scheduler.agent.devices.seeking import seek
from gpu_scheduler.agent.devices.watch import Watcher
from gpu_scheduler.agent.interfaces import own_address
from gpu_scheduler.agent.keeper import keeper_of
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.log_keeping import keep_logs
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.agent.stream import Servers
from gpu_scheduler.model.errors import ClusterError, SchedulerError

log = structlog.get_logger("agent")


class AgentRuns(ClusterError):
    """Another agent works with the same directory."""

    code = "agent_runs"
    exit_code = 7


@contextmanager
def alone(config: AgentConfig) -> Iterator[None]:
    """Be the only agent of a directory, or say who is.

    In the lock stands the pid, and below it what this agent was told, as a digest.
    """
    lock = os.open(Path(config.dir) / AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = os.read(lock, 20).decode("ascii", "replace").partition("\n")[0]
            raise AgentRuns(
                f"another agent (pid {pid or 'unknown'}) works with {config.dir}; stop it, or "
                "choose another directory"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n{config.digest}\n".encode())
        yield
    finally:
        os.close(lock)


async def _work(
    config: AgentConfig, launcher: Launcher, found: Found, watcher: Watcher | None
) -> None:
    """Become a node if this is none yet; then the agent, and the renewal of its key beside it."""
    if not config.address:
        config = replace(config, address=await asyncio.to_thread(own_address, config.targets))
    keeper = await keeper_of(config)
    connect = None if keeper is None else Servers(config.targets, keeper)
    agent = Agent(config, launcher, found, watcher, connect)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, agent.look_again)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(agent.run())
        if config.logs_days:
            tasks.create_task(keep_logs(launcher, Path(config.logs_dir), config.logs_days))
        if keeper is not None:
            tasks.create_task(keeper.run())


async def run_agent(config: AgentConfig) -> None:
    """Work until told to stop by a signal, or sent away for good."""
    launcher = await Launcher.connect(config.dir)
    source = await asyncio.to_thread(seek, wanted_devices(config))
    found = as_configured(await asyncio.to_thread(source.find), config)
    watcher = watcher_of(config, source, found)
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
