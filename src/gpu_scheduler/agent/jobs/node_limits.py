"""Limits of a node beside those of each job: processes and memory of all jobs, of each user, and of
a job that requests no memory.

They keep a part of the machine for the system and for the scheduler itself. A node that serves one
user has the same limit for this user and for all jobs, and no default of the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import NodeInventory

MIN_RESERVED_MB = 1024
"""Or a quarter of a small machine."""
MAX_RESERVED_MB = 16 * 1024
RESERVED_PART = 20
WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """The limits; 0: none. The fields are those of `Work`."""

    max_user_processes: int = 0
    max_all_processes: int = 0
    max_all_memory_mb: int = 0


def node_limits(
    config: AgentConfig, *, kernel_processes: int, host_memory_mb: int, many_users: bool
) -> NodeLimits:
    """The limits of a node; those that are not configured are parts of what the host has."""
    if not config.enforce_limits:
        return NodeLimits()
    processes = kernel_processes * 3 // 4
    if config.max_all_processes:
        processes = min(config.max_all_processes, processes or config.max_all_processes)
    of_user = config.max_user_processes or (processes // 2 if many_users else processes)
    reserved_mb = config.reserved_memory_mb or min(
        MAX_RESERVED_MB,
        max(min(MIN_RESERVED_MB, host_memory_mb // 4), host_memory_mb // RESERVED_PART),
    )
    return NodeLimits(
        max_user_processes=min(of_user, processes or of_user),
        max_all_processes=processes,
        max_all_memory_mb=max(0, host_memory_mb - reserved_mb),
    )


def default_memory_mb(
    config: AgentConfig, inventory: NodeInventory, gpu_milli: int, cpu_milli: int
) -> int:
    """The memory of a job that requests none: its share of the node by GPUs or CPU cores.

    0: no limit, since the default is switched off.
    """
    if not config.enforce_limits or not config.default_memory_percent:
        return 0
    gpus_milli = len(inventory.devices) * WHOLE_MILLI
    by_gpus = inventory.memory_mb * gpu_milli // gpus_milli if gpus_milli else 0
    by_cpus = inventory.memory_mb * cpu_milli // inventory.cpu_milli if inventory.cpu_milli else 0
    share_mb = max(by_gpus, by_cpus) * config.default_memory_percent // 100
    return min(inventory.memory_mb, max(share_mb, config.default_memory_floor_mb))
