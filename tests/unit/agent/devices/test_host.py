"""Cores, memory and topology of the host, from fake /proc and /sys trees."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.devices.host import Host, cpu_list, plain_bus_id

GIB = 1024**3
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal:       65536000 kB\nMemFree: 1 kB\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def a_host(root: Path, cores: int = 16) -> Host:
    return Host(root=root, cores=cores)


def test_whole_machine_counts_without_limits(root: Path) -> None:
    assert a_host(root).cpu_milli() == 16_000
    assert a_host(root).memory_mb() == 64_000


def test_narrowest_cgroup_v2_limit_counts(root: Path) -> None:
    write(root, "proc/self/mountinfo", V2_MOUNT)
    write(root, "proc/self/cgroup", "0::/lab/agent\n")
    write(root, "sys/fs/cgroup/lab/agent/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/lab/cpu.max", "250000 100000\n")
    write(root, "sys/fs/cgroup/lab/agent/memory.max", f"{8 * GIB}\n")
    write(root, "sys/fs/cgroup/lab/memory.max", f"{32 * GIB}\n")
    assert a_host(root).cpu_milli() == 2_500
    assert a_host(root).memory_mb() == 8 * 1024


def test_cgroup_v1_limits_count(root: Path) -> None:
    write(
        root,
        "proc/self/mountinfo",
        "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    )
    write(root, "proc/self/cgroup", "4:memory:/job\n3:cpuacct,cpu:/job\n0::/\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "150000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{4 * GIB}\n")
    assert a_host(root).cpu_milli() == 1_500
    assert a_host(root).memory_mb() == 4 * 1024


def test_largest_v1_number_means_no_limit(root: Path) -> None:
    write(root, "proc/self/mountinfo", "32 23 0:28 / /cg/memory rw - cgroup cgroup rw,memory\n")
    write(root, "proc/self/cgroup", "4:memory:/\n")
    write(root, "cg/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert a_host(root).memory_mb() == 64_000


def test_unlimited_v1_quota_is_no_limit(root: Path) -> None:
    write(root, "proc/self/mountinfo", "31 23 0:27 / /cg/cpu rw - cgroup cgroup rw,cpu\n")
    write(root, "proc/self/cgroup", "3:cpu:/\n")
    write(root, "cg/cpu/cpu.cfs_quota_us", "-1\n")
    write(root, "cg/cpu/cpu.cfs_period_us", "100000\n")
    assert a_host(root).cpu_milli() == 16_000


def test_container_is_limited_by_visible_cgroup(root: Path) -> None:
    write(
        root,
        "proc/self/mountinfo",
        "32 23 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup ro,memory\n",
    )
    write(root, "proc/self/cgroup", "4:memory:/docker/abc\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    assert a_host(root).memory_mb() == 2 * 1024


def test_cpu_affinity_of_process_counts() -> None:
    assert 0 < Host().cpu_milli() <= len(os.sched_getaffinity(0)) * 1000
    assert Host().memory_mb() > 0


def test_topology_and_device_node_are_found_by_bus_id(root: Path) -> None:
    bus = "0000:3b:00.0"
    write(root, f"sys/bus/pci/devices/{bus}/numa_node", "1\n")
    write(root, f"sys/bus/pci/devices/{bus}/local_cpulist", "0-2,8\n")
    write(
        root,
        f"proc/driver/nvidia/gpus/{bus}/information",
        "Model: \t\t NVIDIA A100\nDevice Minor: \t 3\n",
    )
    host = a_host(root)
    assert host.numa_node(bus) == 1
    assert host.near_cpus(bus) == (0, 1, 2, 8)
    assert host.device_path(bus) == "/dev/nvidia3"


def test_missing_kernel_values_are_unknown(root: Path) -> None:
    host = a_host(root)
    assert host.numa_node("0000:01:00.0") == -1
    assert host.near_cpus("0000:01:00.0") == ()
    assert host.device_path("0000:01:00.0") == ""
    assert host.process(1) == ("", "")


def test_process_is_named_by_program_not_arguments(root: Path) -> None:
    write(root, "proc/42/cmdline", "/usr/bin/python3\0train.py\0--token=secret\0")
    write(root, "proc/43/cmdline", "")
    write(root, "proc/43/comm", "kworker/0:1\n")
    write(root, "proc/44/cmdline", "sshd: alice [priv]")
    host = a_host(root)
    assert host.process(42)[1] == "python3"
    assert host.process(43)[1] == "kworker/0:1"
    assert host.process(44)[1] == "sshd:"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", ""),
        ("[N/A]", "[n/a]"),
    ],
)
def test_bus_ids_are_written_as_in_kernel(text: str, plain: str) -> None:
    assert plain_bus_id(text) == plain


@pytest.mark.parametrize(
    ("text", "cpus"), [("0-2,8", (0, 1, 2, 8)), ("5", (5,)), ("", ()), ("N/A", ()), ("3-", ())]
)
def test_cpu_lists_are_parsed(text: str, cpus: tuple[int, ...]) -> None:
    assert cpu_list(text) == cpus
