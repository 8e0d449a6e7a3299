"""Keeps one agent process running on this machine. The agent outlives the server."""

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

POLL_S = 0.5
FIRST_RETRY_S = 0.2
LONGEST_RETRY_S = 10.0
STOP_TIMEOUT_S = 10.0
STOP_POLL_S = 0.02
_LOCK_FILE_BYTES = 200
MB_PER_GB = 1024
ALREADY_RUNS = 3
"""Exit code of an agent that finds another agent running."""
log = structlog.get_logger("server")


class AgentProcess:
    """Starts the agent when none runs, with back-off.

    An agent that an earlier server started connects by itself and is kept, unless its
    configuration differs. The agent is started with posix_spawn, because a fork beside the threads
    of gRPC can crash.
    """

    def __init__(self, config: AgentConfig, is_connected: Callable[[], bool]) -> None:
        """Write the configuration of the agent."""
        self._is_connected = is_connected
        self._file = Path(config.dir) / "agent.json"
        self._log = Path(config.dir) / AGENT_LOG
        self._lock = Path(config.dir) / AGENT_LOCK
        self._pid = 0
        self._stopping_pid = 0
        self._digest = config.digest
        config.write(self._file)

    async def run(self) -> None:
        """Start and restart the agent until cancelled."""
        pid, digest = self._running_agent()
        if pid and digest != self._digest:
            await self.stop()
        wait_s = FIRST_RETRY_S
        while True:
            if self._is_connected():
                wait_s = FIRST_RETRY_S
            elif not self._runs() and not self._running_agent()[0]:
                try:
                    self._start()
                except OSError as error:
                    log.warning("cannot start the agent; will retry", error=str(error))
                await asyncio.sleep(wait_s)
                wait_s = min(LONGEST_RETRY_S, wait_s * 2)
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Stop the agent, also one of an earlier server; jobs keep running."""
        pid = self._pid if self._runs() else self._running_agent()[0]
        if not pid:
            return
        self._stopping_pid = pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        for _ in range(round(STOP_TIMEOUT_S / STOP_POLL_S)):
            await asyncio.sleep(STOP_POLL_S)
            # An agent of an earlier server releases its lock before it exits.
            if not self._runs() and not _is_alive(pid):
                return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _start(self) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "gpu_scheduler.agent", str(self._file)],
            _clean_environment(),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self._log), append, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def _running_agent(self) -> tuple[int, str]:
        """The pid of the running agent and the digest of its configuration; 0 if none runs."""
        try:
            lock = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0, ""
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, _, digest = os.read(lock, _LOCK_FILE_BYTES).decode("ascii").partition("\n")
            return int(pid or 0), digest.strip()
        else:
            return 0, ""
        finally:
            os.close(lock)

    def _runs(self) -> bool:
        """Whether the agent that this server started runs; reaps it if it has exited."""
        if not self._pid:
            return False
        reaped, status = os.waitpid(self._pid, os.WNOHANG)
        if not reaped:
            return True
        code = os.waitstatus_to_exitcode(status)
        if code == ALREADY_RUNS:
            log.debug("another agent is running; it will connect")
        elif self._stopping_pid == self._pid:
            log.debug("agent stopped", exit_code=code)
        else:
            log.warning("agent died; restarting it", exit_code=code)
        self._pid = 0
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _clean_environment() -> dict[str, str]:
    """The server's environment without variables for the server only."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TGPU_", "GPU_SCHEDULER_"))
    }


def agent_config_of(settings: Settings, paths: Paths) -> AgentConfig:
    """The configuration of the local agent."""
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
        log_job_bytes=round(jobs.log_job_mb * (1 << 20)),
        log_user_bytes=round(jobs.log_user_mb * (1 << 20)),
        log_total_bytes=round(jobs.log_total_mb * (1 << 20)),
        log_free_bytes=round(jobs.log_free_mb * (1 << 20)),
        prolog=jobs.prolog,
        epilog=jobs.epilog,
        hook_timeout_ms=round(jobs.hook_timeout_s * 1000),
        start_timeout_ms=round(jobs.start_timeout_s * 1000),
        engine_timeout_ms=round(jobs.engine_timeout_s * 1000),
        engine_user=agent.container_engine_user,
        image_stores=agent.container_image_stores,
        allowed_images=agent.container_allowed_images,
        enforce_limits=security.enable_resource_limits,
        default_memory_mb=round(security.max_memory_per_job_gb * MB_PER_GB),
        most_processes=security.max_processes_per_job,
        max_user_processes=security.max_processes_per_user,
        max_all_processes=security.max_processes_total,
        reserved_memory_mb=round(security.reserved_memory_gb * MB_PER_GB),
        default_memory_percent=security.default_memory_percent,
        default_memory_floor_mb=round(security.default_memory_floor_gb * MB_PER_GB),
        log_level=settings.logging.level,
        own_log_bytes=round(settings.logging.max_log_size_mb * (1 << 20)),
        own_log_backups=settings.logging.backup_count,
    )


def _methods(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The runners by our own names, without duplicates."""
    return tuple(dict.fromkeys("container" if one in ENGINES else one for one in wanted))


def node_name(settings: Settings) -> str:
    """The configured node name, or the host name without its domain."""
    return settings.agent.node_name or socket.gethostname().partition(".")[0] or "localhost"
