"""From settings to what the agent of this machine must know."""

from __future__ import annotations

import socket

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.settings.cluster import ENGINES
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.places import Paths

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
