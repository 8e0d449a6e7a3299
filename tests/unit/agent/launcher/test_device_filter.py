"""The device filter of v2 control groups."""

import os
import struct
from pathlib import Path

import pytest

from gpu_scheduler.agent.cgroups import mounts
from gpu_scheduler.agent.device_filter import (
    can_filter_devices,
    deny_devices,
    device_numbers,
    filter_program,
)


def test_only_device_nodes_have_device_numbers(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    paths = ["/dev/null", "/dev/zero", str(tmp_path / "file"), str(tmp_path / "none"), "/dev/null"]
    assert device_numbers(paths) == [("c", 1, 3), ("c", 1, 5)]


def test_device_filter_denies_closed_devices_and_allows_the_rest() -> None:
    """Interpret the few instructions that it uses."""
    code = filter_program([("c", 195, 0), ("c", 195, 3), ("b", 8, 0)])

    def allowed(kind: int, major: int, minor: int) -> bool:
        memory = struct.pack("<III", 6 << 16 | kind, major, minor)
        registers = [0] * 11
        at = 0
        while True:
            operation, registers_used, offset, value = struct.unpack_from("<BBhi", code, at * 8)
            target = registers_used & 15
            at += 1
            if operation == 0x61:
                registers[target] = struct.unpack_from("<I", memory, offset)[0]
            elif operation == 0x54:
                registers[target] &= value
            elif operation == 0x55:
                at += offset if registers[target] != value else 0
            elif operation == 0xB7:
                registers[target] = value
            else:
                assert operation == 0x95
                return bool(registers[0])

    assert not allowed(2, 195, 0)
    assert not allowed(2, 195, 3)
    assert not allowed(1, 8, 0)
    assert allowed(2, 195, 1)
    assert allowed(1, 195, 0)
    assert allowed(2, 8, 0)


def test_kernel_accepts_device_filter(tmp_path: Path) -> None:
    tree = mounts(Path("/proc/self/mountinfo").read_text(encoding="utf-8")).v2
    if os.geteuid() != 0 or not tree or not can_filter_devices():
        pytest.skip("needs root, a v2 tree and leave to load programs")
    group = Path(tree) / f"tgpu-test-{os.getpid()}"
    group.mkdir()
    node = tmp_path / "node"
    os.mknod(node, 0o666 | 0o020000, os.makedev(1, 3))
    try:
        deny_devices(str(group), [("c", 1, 3)])
        child = os.fork()
        if child == 0:
            status = 9
            try:
                (group / "cgroup.procs").write_text("0", encoding="ascii")
                os.close(os.open("/dev/zero", os.O_RDONLY))
                try:
                    os.open(node, os.O_RDONLY)
                except PermissionError:
                    status = 7
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        group.rmdir()
