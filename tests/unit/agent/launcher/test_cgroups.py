"""Control groups: discovery and limits."""

import os
import resource
from pathlib import Path

import pytest

from gpu_scheduler.agent.cgroups import (
    Cgroups,
    Group,
    kernel_process_limit,
    make_v2,
    mounts,
    own_groups,
    place_v2,
)
from gpu_scheduler.agent.launcher_protocol import Work

HYBRID = """\
25 30 0:22 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
28 25 0:25 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
29 25 0:26 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
"""
PURE = "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
NONE = "25 30 0:22 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n"


def test_cgroup_trees_are_recognised_by_file_system_type() -> None:
    hybrid = mounts(HYBRID)
    assert hybrid.v2 == "/sys/fs/cgroup/unified"
    assert hybrid.v1 == {"cpu": "/sys/fs/cgroup/cpu,cpuacct", "memory": "/sys/fs/cgroup/memory"}
    assert (mounts(PURE).v2, mounts(PURE).v1) == ("/sys/fs/cgroup", {})
    assert (mounts(NONE).v2, mounts(NONE).v1) == ("", {})


def test_own_cgroups_are_read_by_controller() -> None:
    text = "9:name=systemd:/\n4:cpu,cpuacct:/x\n0::/user.slice/a:b.scope\n"
    assert own_groups(text) == {
        "name=systemd": "/",
        "cpu": "/x",
        "cpuacct": "/x",
        "": "/user.slice/a:b.scope",
    }


def a_tree(directory: Path) -> Path:
    """A directory that looks like a delegated v2 cgroup with two processes in it."""
    inside = directory / "service"
    inside.mkdir()
    (inside / "cgroup.controllers").write_text("cpuset cpu memory pids\n", encoding="ascii")
    (inside / "cgroup.subtree_control").touch()
    (inside / "cgroup.procs").write_text("11\n12\n", encoding="ascii")
    (inside / "supervisors").mkdir()
    (inside / "supervisors" / "cgroup.procs").touch()
    return inside


def test_delegated_cgroup_is_emptied_for_its_children(tmp_path: Path) -> None:
    inside = a_tree(tmp_path)
    os.setxattr(inside, "user.delegate", b"1")
    assert place_v2(str(tmp_path), "/service/supervisors") == str(inside)
    (inside / "gpu-scheduler").mkdir()
    (inside / "gpu-scheduler" / "cgroup.subtree_control").write_text("cpu memory", encoding="ascii")
    path, controllers = make_v2(str(inside), str(tmp_path), ("gpu-scheduler",))
    assert path == str(inside / "gpu-scheduler")
    assert controllers == {"cpu", "memory"}
    assert (inside / "supervisors" / "cgroup.procs").read_text(encoding="ascii") == "12"
    assert (inside / "cgroup.subtree_control").read_text(encoding="ascii").startswith("+pids")


@pytest.mark.parametrize(
    ("uid", "own", "expected"),
    [
        # systemd restarts root's service in /service, which must therefore stay undivided.
        (0, "/service", ""),
        (0, "/service/supervisors", "/service"),
        (0, "/elsewhere/supervisors", ""),
        (1000, "/service", "/service"),
        (1000, "/service/supervisors", "/service"),
    ],
    ids=["root", "root-in-leaf", "root-in-leaf-not-delegated", "user", "user-in-leaf"],
)
def test_root_divides_service_cgroup_only_when_started_in_its_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, own: str, expected: str
) -> None:
    os.setxattr(a_tree(tmp_path), "user.delegate", b"1")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert place_v2(str(tmp_path), own) == f"{tmp_path}{expected}"


def a_host(directory: Path, controllers: set[str]) -> Cgroups:
    """Control groups on a plain directory in place of the kernel's."""
    cgroups = Cgroups.__new__(Cgroups)
    cgroups._v2 = str(directory)
    cgroups._v2_controllers = frozenset(controllers)
    cgroups._v1 = {}
    cgroups._filters_devices = False
    return cgroups


def test_v2_limits_are_written_in_kernel_format(tmp_path: Path) -> None:
    group = tmp_path / "a.0"
    group.mkdir()
    for name in ("cpu.max", "memory.max", "memory.swap.max", "pids.max"):
        (group / name).touch()
    cgroups = a_host(tmp_path, {"cpu", "memory", "pids"})
    work = Work(allocation_id="a", cpu_milli=1500, memory_mb=64, max_processes=9)
    made = cgroups.open("a.0", work)
    assert made == Group((str(group),), str(group), is_v2=True)
    assert {file.name: file.read_text(encoding="ascii") for file in group.iterdir()} == {
        "cpu.max": "150000 100000",
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "pids.max": "9",
    }
    assert cgroups.rlimits(work) == []
    (group / "memory.events").write_text("low 0\noom 2\noom_kill 1\n", encoding="ascii")
    assert made.out_of_memory()


def test_smallest_cpu_limit_is_accepted_by_kernel(tmp_path: Path) -> None:
    (tmp_path / "a.0").mkdir()
    (tmp_path / "a.0" / "cpu.max").touch()
    a_host(tmp_path, {"cpu"}).open("a.0", Work(allocation_id="a", cpu_milli=5))
    assert (tmp_path / "a.0" / "cpu.max").read_text(encoding="ascii") == "1000 100000"


def test_only_data_size_is_limited_without_cgroups() -> None:
    cgroups = a_host(Path("/"), set())
    work = Work(allocation_id="a", cpu_milli=1500, memory_mb=64, max_processes=9)
    assert cgroups.rlimits(work) == [(resource.RLIMIT_DATA, 64 << 20)]
    assert cgroups.rlimits(Work(allocation_id="a")) == []
    assert cgroups.capabilities() == {
        "tracking": "cgroup v2",
        "cpu": "none",
        "memory": "rlimit",
        "processes": "none",
        "user_processes": "rlimit",
        "devices": "none",
    }


def test_failed_limit_leaves_no_cgroup(tmp_path: Path) -> None:
    cgroups = a_host(tmp_path, {"memory"})
    with pytest.raises(FileNotFoundError):
        cgroups.open("a.0", Work(allocation_id="a", memory_mb=64))
    assert list(tmp_path.iterdir()) == []


def test_null_cgroup_has_no_processes() -> None:
    group = Group()
    assert (group.pids(), group.kill(), group.out_of_memory(), group.remove()) == (
        [],
        False,
        False,
        True,
    )


def test_processes_in_nested_cgroups_are_found(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n2\n", encoding="ascii")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "cgroup.procs").write_text("3\n", encoding="ascii")
    assert Group((str(tmp_path),)).pids() == [1, 2, 3]
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n", encoding="ascii")
    assert Group((str(tmp_path),)).pids() == []


def test_limits_of_all_jobs_and_default_memory_are_written(tmp_path: Path) -> None:
    group = tmp_path / "a.0"
    group.mkdir()
    for name in ("memory.max", "pids.max"):
        (tmp_path / name).touch()
        (group / name).touch()
    cgroups = a_host(tmp_path, {"memory", "pids"})
    limits = {"max_all_processes": 70, "max_all_memory_mb": 64, "default_memory_mb": 5}
    cgroups.open("a.0", Work(allocation_id="a", max_processes=9, **limits))
    assert (tmp_path / "pids.max").read_text(encoding="ascii") == "70"
    assert (tmp_path / "memory.max").read_text(encoding="ascii") == str(64 << 20)
    assert (group / "memory.max").read_text(encoding="ascii") == str(5 << 20)
    cgroups.open("a.0", Work(allocation_id="a"))
    assert (tmp_path / "pids.max").read_text(encoding="ascii").startswith("max")


def test_processes_of_user_are_limited_in_any_host_except_for_root() -> None:
    cgroups = a_host(Path("/"), set())
    work = Work(allocation_id="a", uid=1, max_user_processes=40, default_memory_mb=9)
    assert cgroups.rlimits(work) == [(resource.RLIMIT_NPROC, 40)], "no default without a cgroup"
    assert cgroups.rlimits(Work(allocation_id="a", max_user_processes=40)) == []


def test_kernel_process_limit_is_known() -> None:
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))
    assert 0 < kernel_process_limit() <= pid_max
