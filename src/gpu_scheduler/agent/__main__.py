"""`python -m gpu_scheduler.agent FILE`: the agent as a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

import structlog
import uvloop

from gpu_scheduler.agent.building import first_devices, wanted_devices, watcher_of
from gpu_scheduler.agent.config import AGENT_LOCK, AGENT_LOG, AgentConfig
from gpu_scheduler.agent.devices.detect import detect
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.service import Agent
from gpu_scheduler.diary.lines import Diary, configure
from gpu_scheduler.model.errors import SchedulerError

EXIT_ALREADY_RUNS = 3
log = structlog.get_logger("agent")


def main(arguments: list[str]) -> int:
    """Run until told to stop. Jobs are left alone."""
    config = AgentConfig.read(Path(arguments[0]))
    lock = os.open(Path(config.dir) / AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return EXIT_ALREADY_RUNS
    # Only who has the lock may rotate the log.
    configure(
        Diary(
            file=str(Path(config.dir) / AGENT_LOG),
            level=config.log_level,
            max_bytes=config.own_log_bytes,
            backups=config.own_log_backups,
            take_stderr=True,
        )
    )
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    try:
        uvloop.run(_run(config))
    except SchedulerError as error:
        log.error("the agent cannot start", error=str(error))  # noqa: TRY400 - for people
        return error.exit_code
    return 0


async def _run(config: AgentConfig) -> None:
    launcher = await Launcher.connect(config.dir)
    source = await asyncio.to_thread(detect, wanted_devices(config))
    found = first_devices(await asyncio.to_thread(source.find), config.most_devices)
    watcher = watcher_of(config, source, found) if found.devices else None
    agent = asyncio.ensure_future(Agent(config, launcher, found, watcher).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, agent.cancel)
    try:
        await agent
    except asyncio.CancelledError:
        log.info("the agent stops; jobs go on")
    finally:
        source.close()
    if not await launcher.held():
        await launcher.leave()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
