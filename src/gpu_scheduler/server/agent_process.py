"""Keeps one agent alive on this machine. It has a session of its own, and outlives the server."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_scheduler.agent.config import AgentConfig

LOOK_S = 0.5
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
LONGEST_STOP_S = 5.0
ALREADY_RUNS = 3
"""The exit code of an agent that finds another one in its place."""
log = structlog.get_logger("server")


class AgentProcess:
    """Starts the agent whenever none is connected, and not more often than is wise.

    By posix_spawn, as forking beside the threads of gRPC is hazardous.
    """

    def __init__(self, config: AgentConfig, is_connected: Callable[[], bool]) -> None:
        """Write down what the agent must know."""
        self._is_connected = is_connected
        self._file = Path(config.dir) / "agent.json"
        self._log = Path(config.dir) / "agent.log"
        self._pid = 0
        config.write(self._file)

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = FIRST_WAIT_S
        while True:
            if self._is_connected():
                wait_s = FIRST_WAIT_S
            elif not self._runs():
                self._start()
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Ask the agent to stop; jobs go on."""
        if not self._runs():
            return
        os.kill(self._pid, signal.SIGTERM)
        for _ in range(round(LONGEST_STOP_S / LOOK_S)):
            await asyncio.sleep(LOOK_S / 10)
            if not self._runs():
                return
        os.kill(self._pid, signal.SIGKILL)

    def _start(self) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "gpu_scheduler.agent", str(self._file)],
            _clean_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def _runs(self) -> bool:
        """Tell whether the agent that we started lives; one that has died is buried."""
        if not self._pid:
            return False
        gone, status = os.waitpid(self._pid, os.WNOHANG)
        if not gone:
            return True
        code = os.waitstatus_to_exitcode(status)
        if code == ALREADY_RUNS:
            log.debug("an agent runs already; it will connect")
        else:
            log.warning("the agent has died; another one is started", exit_code=code)
        self._pid = 0
        return False


def _clean_environment() -> dict[str, str]:
    """The agent's own variables must not leak into jobs, nor a caller's settings into the agent."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "USER", "LOGNAME", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}
