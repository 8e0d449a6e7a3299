"""Device filter: denies devices to a v2 control group by a small eBPF program.

v1 has the file `devices.deny` for this; v2 has none. `device_numbers` reads the numbers of device
files for both.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

Device = tuple[str, int, int]
"""c or b, major, minor."""

_SYSCALL = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_DEVICE, _ALLOW_MULTI = 15, 6, 2
_LOAD_WORD, _AND, _UNLESS_EQUAL, _SET, _EXIT = 0x61, 0x54, 0x55, 0xB7, 0x95
_KINDS = {"b": 1, "c": 2}


def device_numbers(paths: Iterable[str]) -> list[Device]:
    """The device numbers of paths; paths that are missing or no device are left out."""
    found: list[Device] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            kind = "c" if stat.S_ISCHR(status.st_mode) else "b"
            found.append((kind, os.major(status.st_rdev), os.minor(status.st_rdev)))
    return sorted(set(found))


def filter_program(closed: Iterable[Device]) -> bytes:
    """The program: deny these devices, allow all others."""
    code = [
        _step(_LOAD_WORD, 2, 1, 0),
        _step(_AND, 2, 0, 0, 0xFFFF),
        _step(_LOAD_WORD, 3, 1, 4),
        _step(_LOAD_WORD, 4, 1, 8),
    ]
    for kind, major, minor in closed:
        code += [
            _step(_UNLESS_EQUAL, 2, 0, 4, _KINDS[kind]),
            _step(_UNLESS_EQUAL, 3, 0, 3, major),
            _step(_UNLESS_EQUAL, 4, 0, 2, minor),
            _step(_SET, 0, 0, 0, 0),
            _step(_EXIT),
        ]
    return b"".join([*code, _step(_SET, 0, 0, 0, 1), _step(_EXIT)])


def can_filter_devices() -> bool:
    """Whether this process may load such programs."""
    try:
        os.close(_load(()))
    except OSError:
        return False
    return True


def deny_devices(group: str, closed: Iterable[Device]) -> None:
    """Attach the program to the group at this path."""
    program = _load(closed)
    try:
        target = os.open(group, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _bpf(
                _PROG_ATTACH,
                struct.pack("=IIII", target, program, _ATTACH_DEVICE, _ALLOW_MULTI),
            )
        finally:
            os.close(target)
    finally:
        os.close(program)


def _load(closed: Iterable[Device]) -> int:
    code = ctypes.create_string_buffer(filter_program(closed))
    license_name = ctypes.create_string_buffer(b"MIT")
    attributes = struct.pack(
        "=IIQQIIQII",
        _TYPE_CGROUP_DEVICE,
        (len(code) - 1) // 8,
        ctypes.addressof(code),
        ctypes.addressof(license_name),
        *(0, 0, 0, 0, 0),
    )
    return _bpf(_PROG_LOAD, attributes)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(os.uname().machine)
    if number is None:
        raise OSError(38, "bpf() is not known on this machine")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(
        number, command, ctypes.byref(buffer), len(attributes)
    )
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf(): {os.strerror(code)}")
    return answer


def _step(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, target | source << 4, offset, value)
