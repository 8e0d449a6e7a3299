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
log = structlog.get_logger("server")


class AgentProcess:
    """Starts the agent whenever none is connected, and not more often than is wise."""

    def __init__(self, config: AgentConfig, is_connected: Callable[[], bool]) -> None:
        """Write down what the agent must know."""
        self._config = config
        self._is_connected = is_connected
        self._file = Path(config.dir) / "agent.json"
        self._log = Path(config.dir) / "agent.log"
        self._process: asyncio.subprocess.Process | None = None
        config.write(self._file)

    async def run(self) -> None:
        """Until cancelled."""
        wait_s = FIRST_WAIT_S
        while True:
            if self._is_connected() or self._runs():
                wait_s = FIRST_WAIT_S if self._is_connected() else wait_s
                await asyncio.sleep(LOOK_S)
                continue
            if self._process is not None:
                log.warning("the agent has died; another one is started", exit=self._exit())
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
            await self._start()

    async def stop(self) -> None:
        """Ask the agent to stop; jobs go on."""
        if self._process is not None and self._runs():
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 5)
            except TimeoutError:
                self._process.kill()

    async def _start(self) -> None:
        with self._log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gpu_scheduler.agent", str(self._file)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd="/",
                env=_clean_environment(),
            )

    def _runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _exit(self) -> int | None:
        return None if self._process is None else self._process.returncode


def stop_agent_of(directory: str) -> bool:
    """Ask an agent that another server started to stop; False if there is none."""
    lock = Path(directory) / "agent.pid"
    try:
        pid = int(lock.read_text(encoding="ascii"))
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return False
    return True


def _clean_environment() -> dict[str, str]:
    """The agent's own variables must not leak into jobs, nor a caller's settings into the agent."""
    kept = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "USER", "LOGNAME", "TZ")
    return {name: os.environ[name] for name in kept if name in os.environ}
