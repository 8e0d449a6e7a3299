"""A small process that forks for the launcher, so that forks stay cheap.

After a fork every page that the launcher touches is copied: measured, 300 faults and 1.3 ms for
each job. This process is forked off before the launcher has loaded anything, and touches little.
Its children are the launcher's own (CLONE_PARENT): their ends, and their orphans, come to the
launcher. Without it, or when it dies, the launcher forks itself.
"""

from __future__ import annotations

import array
import ctypes
import gc
import marshal
import os
import socket
import struct
from types import SimpleNamespace

from gpu_scheduler.agent.launcher.child import become_job

_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_CLONE_PARENT, _SIGCHLD = 0x8000, 17
_HEAD = struct.Struct("=Ii")
"""Length of the values, and whether a log comes with the gate."""
_ANSWER = struct.Struct("=i")
_PART = 1 << 16


class ZygoteDied(OSError):
    """It cannot fork any more."""


class Zygote:
    """The launcher's end."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel

    def ask(self, values: dict[str, object], gate: int, log: int) -> None:
        """Ask for a new child of this process, which will become the job."""
        data = marshal.dumps(values)
        rights = array.array("i", [gate] if log < 0 else [gate, log])
        head = _HEAD.pack(len(data), log >= 0)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        try:
            sent = self._channel.sendmsg([head, data], ancillary)
            if sent < len(head) + len(data):
                self._channel.sendall(data[sent - len(head) :])
        except OSError as error:
            raise ZygoteDied(str(error)) from error

    def answer(self) -> int:
        """The pid of the child that was asked for first; OSError if there is none."""
        try:
            answer = self._channel.recv(_ANSWER.size, socket.MSG_WAITALL)
        except OSError as error:
            raise ZygoteDied(str(error)) from error
        if len(answer) < _ANSWER.size:
            raise ZygoteDied("the zygote has died")
        pid: int = _ANSWER.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid


def start() -> Zygote | None:
    """Fork the zygote; None where the machine's way to clone is not known."""
    number = _CLONE.get(os.uname().machine)
    if number is None:
        return None
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid:
        its.close()
        return Zygote(pid, ours)
    try:
        ours.close()
        gc.collect()
        gc.freeze()
        gc.disable()
        _serve(its, number)
    finally:
        os._exit(0)


def _serve(channel: socket.socket, number: int) -> None:
    """Fork for as long as the launcher lives."""
    # Not through os.fork, which knows no flags; there is one thread, so nothing needs repair after.
    clone = ctypes.PyDLL(None, use_errno=True).syscall
    while True:
        values, descriptors = _receive(channel)
        if values is None:
            return
        pid = clone(number, _CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            launch = SimpleNamespace(**values)
            launch.log = descriptors[1] if len(descriptors) > 1 else -1
            become_job(launch, descriptors[0])  # type: ignore[arg-type]
        for descriptor in descriptors:
            os.close(descriptor)
        channel.sendall(_ANSWER.pack(pid if pid > 0 else -ctypes.get_errno()))


def _receive(channel: socket.socket) -> tuple[dict[str, object] | None, array.array[int]]:
    descriptors = array.array("i")
    room = socket.CMSG_SPACE(2 * descriptors.itemsize)
    data, extra, _, _ = channel.recvmsg(_PART, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, rights in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(rights[: len(rights) - len(rights) % descriptors.itemsize])
    if not data:
        return None, descriptors
    while len(data) < _HEAD.size:
        data += channel.recv(_PART)
    length, _ = _HEAD.unpack_from(data)
    parts = [data[_HEAD.size :]]
    missing = length - len(parts[0])
    while missing > 0:
        parts.append(channel.recv(min(missing, _PART)))
        if not parts[-1]:
            return None, descriptors
        missing -= len(parts[-1])
    return marshal.loads(b"".join(parts)), descriptors  # noqa: S302 - our own parent wrote it
