"""Keeps one agent alive on this machine. It has a session of its own, and outlives the server."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from gpu_scheduler.agent.config import AGENT_LOCK, AGENT_LOG, AgentConfig
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.groups.cluster import ENGINES
from gpu_scheduler.settings.schema import Settings

LOOK_S = 0.5
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
LONGEST_STOP_S = 10.0
STOP_LOOK_S = 0.02
_MOST_IN_LOCK = 200
ALREADY_RUNS = 3
"""The exit code of an agent that finds another one in its place."""
log = structlog.get_logger("server")


class AgentProcess:
    """Starts the agent whenever none runs, and not more often than is wise.

    One that a former server has started is as good, and connects by itself; if it was told other
    things than ours would be, it makes room. By posix_spawn, as forking beside the threads of gRPC
    is hazardous.
    """

    def __init__(self, config: AgentConfig, is_connected: Callable[[], bool]) -> None:
        """Write down what the agent must know."""
        self._is_connected = is_connected
        self._file = Path(config.dir) / "agent.json"
        self._log = Path(config.dir) / AGENT_LOG
        self._lock = Path(config.dir) / AGENT_LOCK
        self._pid = 0
        self._told_to_stop = 0
        self._digest = config.digest
        config.write(self._file)

    async def run(self) -> None:
        """Until cancelled."""
        pid, digest = self._holder()
        if pid and digest != self._digest:
            await self.stop()
        wait_s = FIRST_WAIT_S
        while True:
            if self._is_connected():
                wait_s = FIRST_WAIT_S
            elif not self._runs() and not self._other():
                try:
                    self._start()
                except OSError as error:
                    log.warning("the agent cannot be started", error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_WAIT_S, wait_s * 2)
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """Ask the agent to stop, whoever has started it; jobs go on."""
        pid = self._pid if self._runs() else self._other()
        if not pid:
            return
        self._told_to_stop = pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        for _ in range(round(LONGEST_STOP_S / STOP_LOOK_S)):
            await asyncio.sleep(STOP_LOOK_S)
            # One that we did not start has given its lock back before it is gone.
            if not self._runs() and not _is_alive(pid):
                return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

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

    def _other(self) -> int:
        """The pid of an agent that runs, whoever has started it; 0 if there is none."""
        return self._holder()[0]

    def _holder(self) -> tuple[int, str]:
        """The same, and what that agent was told."""
        try:
            lock = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0, ""
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, _, digest = os.read(lock, _MOST_IN_LOCK).decode("ascii").partition("\n")
            return int(pid or 0), digest.strip()
        else:
            return 0, ""
        finally:
            os.close(lock)

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
        elif self._told_to_stop == self._pid:
            log.debug("the agent has stopped", exit_code=code)
        else:
            log.warning("the agent has died; another one is started", exit_code=code)
        self._pid = 0
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _clean_environment() -> dict[str, str]:
    """Ours, without what concerns only the server. Jobs get variables of their own."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TGPU_", "GPU_SCHEDULER_"))
    }


# --- From settings to what the agent of this machine must know.

MB_PER_GB = 1024


def agent_config_of(settings: Settings, paths: Paths) -> AgentConfig:
    """The agent's own configuration."""
    gpu, jobs, security = settings.gpu, settings.jobs, settings.security
    agent = settings.agent
    return AgentConfig(
        node=node_name(settings),
        targets=(f"unix:{paths.agent_socket}",),
        dir=paths.agent,
        logs_dir=paths.logs,
        scratch_dir=paths.scratch,
        detection_method="declared" if gpu.simulate else gpu.detection_method,
        simulate=gpu.simulate,
        most_devices=settings.scheduler.num_gpus,
        most_starts=settings.scheduler.max_workers,
        monitor_interval_s=gpu.monitor_interval_s,
        utilization_window_s=gpu.utilization_window_s,
        memory_threshold=gpu.memory_threshold,
        load_threshold=gpu.load_threshold,
        ignore_programs=gpu.ignore_programs,
        ignore_users=gpu.ignore_users,
        sharing=gpu.sharing,
        release_timeout_s=gpu.release_timeout_s,
        release_tolerance_mb=gpu.release_tolerance_mb,
        read_timeout_s=gpu.read_timeout_s,
        breaker_failures=gpu.breaker_failures,
        breaker_backoff_s=gpu.breaker_backoff_s,
        cpu_milli=round(agent.cpu_cores * 1000) or None,
        memory_mb=round(agent.memory_gb * MB_PER_GB) or None,
        address=agent.address,
        rack=agent.rack,
        labels=agent.labels,
        execution_methods=_methods(agent.execution_methods),
        heartbeat_interval_s=agent.heartbeat_interval_s,
        connection_timeout_s=agent.connection_timeout_s,
        retry_interval_s=agent.retry_interval_s,
        max_retry_interval_s=agent.max_retry_interval_s,
        grace_ms=round(jobs.grace_s * 1000),
        log_max_bytes=round(jobs.log_size_mb * (1 << 20)),
        log_files=jobs.log_backup_count,
        prolog=jobs.prolog,
        epilog=jobs.epilog,
        hook_timeout_ms=round(jobs.hook_timeout_s * 1000),
        start_timeout_ms=round(jobs.start_timeout_s * 1000),
        engine_timeout_ms=round(jobs.engine_timeout_s * 1000),
        enforce_limits=security.enable_resource_limits,
        default_memory_mb=round(security.max_memory_per_job_gb * MB_PER_GB),
        most_processes=security.max_processes_per_job,
        log_level=settings.logging.level,
        own_log_bytes=round(settings.logging.max_log_size_mb * (1 << 20)),
        own_log_backups=settings.logging.backup_count,
    )


def _methods(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What jobs may run in, by our own names, each once."""
    return tuple(dict.fromkeys("container" if one in ENGINES else one for one in wanted))


def node_name(settings: Settings) -> str:
    """The name that was given, or that of this machine without its domain."""
    return settings.agent.node_name or socket.gethostname().partition(".")[0] or "localhost"
