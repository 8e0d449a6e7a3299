"""Limits of a node beside those of each job."""

from typing import Any

import pytest

from gpu_scheduler.agent.config import AgentConfig
from gpu_scheduler.agent.devices.source import DetectedDevice, NodeInventory
from gpu_scheduler.agent.jobs.orders import NodeLimits, default_memory_mb, node_limits

GB = 1024


def a_config(**values: Any) -> AgentConfig:
    return AgentConfig(node="n", targets=(), dir="", logs_dir="", scratch_dir="", **values)


def limits(*, many_users: bool = True, memory_gb: int = 100, **values: Any) -> NodeLimits:
    return node_limits(
        a_config(**values),
        kernel_processes=1000,
        host_memory_mb=memory_gb * GB,
        many_users=many_users,
    )


def test_jobs_leave_processes_and_memory_for_the_system() -> None:
    assert limits() == NodeLimits(
        max_user_processes=375, max_all_processes=750, max_all_memory_mb=95 * GB
    )
    assert limits(many_users=False).max_user_processes == 750


def test_configured_limits_stay_below_the_kernel_maximum() -> None:
    found = limits(max_user_processes=50, max_all_processes=5_000, reserved_memory_mb=10 * GB)
    assert found == NodeLimits(
        max_user_processes=50, max_all_processes=750, max_all_memory_mb=90 * GB
    )
    assert limits(max_user_processes=500, max_all_processes=60).max_user_processes == 60
    assert limits(enforce_limits=False) == NodeLimits()


@pytest.mark.parametrize(("memory_gb", "left_gb"), [(2, 1.5), (8, 7), (1000, 984)])
def test_reserved_memory_depends_on_the_machine(memory_gb: int, left_gb: float) -> None:
    assert limits(memory_gb=memory_gb).max_all_memory_mb == left_gb * GB


@pytest.mark.parametrize(
    ("gpu_milli", "cpu_milli", "gb"),
    [(1000, 0, 25), (4000, 0, 100), (500, 0, 12.5), (0, 0, 8), (0, 8000, 50), (100, 0, 8)],
)
def test_job_without_memory_gets_its_share_of_the_node(
    gpu_milli: int, cpu_milli: int, gb: float
) -> None:
    devices = tuple(
        DetectedDevice(index=index, model="A100", memory_mb=80 * GB) for index in range(4)
    )
    node = NodeInventory(cpu_milli=16_000, memory_mb=100 * GB, devices=devices)
    config = a_config(default_memory_percent=100, default_memory_floor_mb=8 * GB)
    assert default_memory_mb(config, node, gpu_milli, cpu_milli) == gb * GB
    assert default_memory_mb(a_config(), node, gpu_milli, cpu_milli) == 0
