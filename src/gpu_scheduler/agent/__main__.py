"""`python -m gpu_scheduler.agent FILE`: the agent as a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog
import uvloop

from gpu_scheduler.agent.config import AGENT_LOCK, AgentConfig
from gpu_scheduler.agent.devices.detect import Wanted, detect
from gpu_scheduler.agent.devices.foreign import ForeignRule
from gpu_scheduler.agent.devices.inventory import DeviceSource, Found
from gpu_scheduler.agent.devices.watch import Watcher, WatchSettings
from gpu_scheduler.agent.launcher_client import Launcher
from gpu_scheduler.agent.owners import Owners
from gpu_scheduler.agent.service import Agent, boot_id
from gpu_scheduler.model.errors import SchedulerError

EXIT_ALREADY_RUNS = 3
log = structlog.get_logger("agent")


def main(arguments: list[str]) -> int:
    """Run until told to stop. Jobs are left alone."""
    config = AgentConfig.read(Path(arguments[0]))
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(config.log_level.lower()),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *_: _Lines(),
    )
    lock = os.open(Path(config.dir) / AGENT_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log.info("another agent runs here", dir=config.dir)
        return EXIT_ALREADY_RUNS
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
    source = await asyncio.to_thread(detect, _wanted(config))
    found = _first_devices(await asyncio.to_thread(source.find), config.most_devices)
    watcher = _watcher(config, source, found) if found.devices else None
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


class _Lines:
    """Log lines on standard error. On a full disk a line is lost, and not the agent."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            print(message, file=sys.stderr, flush=True)  # noqa: T201 - this is the log

    debug = info = warning = error = critical = exception = log = msg


def _wanted(config: AgentConfig) -> Wanted:
    method = "declared" if config.simulate else config.detection_method
    return Wanted(
        method=method,
        declared=config.simulate,
        node=config.node,
        cpu_milli=config.cpu_milli,
        memory_mb=config.memory_mb,
        readings_file=Path(config.dir) / "readings.json",
        deadline_s=config.read_timeout_s,
    )


def _first_devices(found: Found, most: int) -> Found:
    return replace(found, devices=found.devices[:most]) if most else found


def _watcher(config: AgentConfig, source: DeviceSource, found: Found) -> Watcher:
    rule = ForeignRule(
        memory_threshold=config.memory_threshold,
        load_threshold=config.load_threshold,
        ignore_names=ForeignRule().ignore_names + config.ignore_programs,
        ignore_users=config.ignore_users,
    )
    settings = WatchSettings(
        monitor_interval_s=config.monitor_interval_s,
        utilization_window_s=config.utilization_window_s,
        foreign=rule,
        release_timeout_s=config.release_timeout_s,
        release_tolerance_mb=config.release_tolerance_mb,
        breaker_failures=config.breaker_failures,
        breaker_backoff_s=config.breaker_backoff_s,
    )
    memory = Path(config.dir) / "devices.json"
    owner_of = Owners(config.scratch_dir).owner_of
    return Watcher(source, found, owner_of, settings=settings, memory=memory, boot_id=boot_id())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
