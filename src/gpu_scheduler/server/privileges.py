"""The server gives up privileges that it does not need, before it parses anything from outside.

This is for a server of root that starts no other programs: one without an agent of its own, since
jobs inherit what it gives up. It keeps the capabilities in `KEPT`, gains none by executing a
program, and writes only below `writable` (Landlock). What the kernel does not offer is logged, and
`tgpu doctor` reads the result from /proc. The calls concern one thread, and later ones inherit
from it: the caller must not have started another yet.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from tempfile import gettempdir

import structlog

from gpu_scheduler.server.state_directory import prepare
from gpu_scheduler.server.storage import sqlite_file
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings

KEPT = {
    "dac_override": 1,
    "dac_read_search": 2,
    "net_bind_service": 10,
    "sys_ptrace": 19,
}
"""Capabilities by number: to use files that belong to others (keys, settings, a log directory), to
listen on low ports, and to find out which process of which user holds a loopback connection."""

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 23, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522
_SYS_LANDLOCK = (444, 445, 446)
"""Numbers of landlock_create_ruleset, _add_rule and _restrict_self, equal on all architectures."""
_RULE_PATH_BENEATH = 1
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITES_TO_DIRECTORIES = sum(1 << bit for bit in (4, 5, 6, 7, 8, 9, 10, 11, 12))
"""Remove directories and files; make devices, directories, files, sockets, FIFOs and links."""
_REFER = 1 << 13
_VERSION_WITH_REFER, _VERSION_WITH_TRUNCATE = 2, 3
log = structlog.get_logger("server")


def confine_server(settings: Settings, paths: Paths) -> None:
    """Reduce the privileges of a server of root, unless it runs programs of the site."""
    if os.geteuid() != 0:
        return
    targets = settings.notifications.targets.values()
    if settings.nodes.fencing_command or any(target.kind == "command" for target in targets):
        log.info("privileges are not reduced: commands of the site run with them")
        return
    prepare(paths)
    files = [settings.files.log_file]
    if not settings.database.is_postgresql:
        files.append(str(sqlite_file(settings, paths)))
    places = [str(Path(file).absolute().parent) for file in files if file]
    reduce_privileges([paths.state, paths.runtime, gettempdir(), *places])


def reduce_privileges(writable: Iterable[str]) -> None:
    """Drop unneeded privileges; directories that do not exist are not writable later either."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        log.warning("privileges are not reduced: other threads run already")
        return
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    for name, work in (
        ("capabilities beyond the needed ones", _drop_bounding_set),
        ("new privileges of programs", _forbid_new_privileges),
        ("writing outside of its directories", lambda of: _restrict_writes(of, writable)),
        ("capabilities beyond the needed ones", _drop_capabilities),
    ):
        try:
            work(library)
        except OSError as error:
            log.warning(
                "the kernel did not take away a privilege", privilege=name, error=str(error)
            )


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _prctl(library: ctypes.CDLL, option: int, value: int) -> int:
    return _check(library.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _drop_bounding_set(library: ctypes.CDLL) -> None:
    """No program that the server may ever execute gets the other capabilities."""
    for number in range(64):
        try:
            has_it = _prctl(library, _PR_CAPBSET_READ, number)
        except OSError:
            return  # the kernel has no further capabilities
        if has_it and number not in KEPT.values():
            _prctl(library, _PR_CAPBSET_DROP, number)


def _forbid_new_privileges(library: ctypes.CDLL) -> None:
    _prctl(library, _PR_SET_NO_NEW_PRIVS, 1)


def _drop_capabilities(library: ctypes.CDLL) -> None:
    """Keep those of `KEPT` that it has; none is inherited."""
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    data = ctypes.create_string_buffer(24)
    _check(library.capget(header, data))
    permitted = struct.unpack("6I", data.raw)[1]
    kept = permitted & sum(1 << number for number in KEPT.values())
    _check(library.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)))


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0: none."""
    library = ctypes.CDLL(None, use_errno=True)
    found: int = library.syscall(_SYS_LANDLOCK[0], None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def _restrict_writes(library: ctypes.CDLL, writable: Iterable[str]) -> None:
    """Let the process write only below these directories; reading is not restricted."""
    create, add, restrict = _SYS_LANDLOCK
    version = landlock_version()
    if not version:
        raise OSError(errno.EOPNOTSUPP, "this kernel has no Landlock")
    rights = _WRITE_FILE | _WRITES_TO_DIRECTORIES
    if version >= _VERSION_WITH_REFER:
        rights |= _REFER
    if version >= _VERSION_WITH_TRUNCATE:
        rights |= _TRUNCATE
    rules = struct.pack("Q", rights)
    ruleset = _check(
        library.syscall(create, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    )
    try:
        for place in dict.fromkeys((*writable, "/dev")):
            if Path(place).is_dir():
                _allow(library, add, ruleset, place, rights)
        _check(library.syscall(restrict, ruleset, ctypes.c_uint32(0)))
    finally:
        os.close(ruleset)


def _allow(library: ctypes.CDLL, add: int, ruleset: int, place: str, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        _check(library.syscall(add, ruleset, _RULE_PATH_BENEATH, rule, ctypes.c_uint32(0)))
    finally:
        os.close(descriptor)
