"""The fork server: a small process that forks for the launcher, so that forks stay cheap.

After a fork every page that the launcher touches is copied: measured, 300 page faults and 1.3 ms
for each job. The fork server is forked before the launcher has loaded anything, and touches little:
it receives descriptors, forks and answers; the child itself reads its order from its gate. Its
children are children of the launcher (CLONE_PARENT), which reaps them and inherits their orphans.
They begin inside their control group where the kernel supports it (CLONE_INTO_CGROUP): a process
that moves there later waits for all CPUs, measured 12 ms. Without the fork server, or when it dies,
the launcher forks itself.
"""

from __future__ import annotations

import array
import ctypes
import errno
import gc
import os
import socket
import struct

from gpu_scheduler.agent.spawn.child import run_job, warm_up

_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_CLONE3 = 435
_CLONE_PARENT, _SIGCHLD = 0x8000, 17
_CLONE_INTO_CGROUP = 0x200000000
_FLAGS, _CGROUP, _WORDS = 0, 10, 11
"""Positions in the arguments of clone3, and their number."""
_OUT_OF_RESOURCES = frozenset({errno.EAGAIN, errno.ENOMEM})
_ANSWER = struct.Struct("=i")
_MAX_DESCRIPTORS = 3


class ForkServerDied(OSError):
    """The fork server has died."""


class ForkServer:
    """The launcher's side of the fork server."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel

    def request(self, gate: int, log: int, group: int) -> None:
        """Request a new child of this process that waits at the gate for its order.

        `log` and `group`, the directory of a control group, may be -1.
        """
        descriptors = [descriptor for descriptor in (gate, log, group) if descriptor >= 0]
        flags = bytes([(log >= 0) + 2 * (group >= 0)])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        try:
            self._channel.sendmsg([flags], rights)
        except OSError as error:
            raise ForkServerDied(str(error)) from error

    def read_pid(self) -> int:
        """The pid for the oldest unanswered request; OSError if the fork failed."""
        try:
            answer = self._channel.recv(_ANSWER.size, socket.MSG_WAITALL)
        except OSError as error:
            raise ForkServerDied(str(error)) from error
        if len(answer) < _ANSWER.size:
            raise ForkServerDied("the fork server has died")
        pid: int = _ANSWER.unpack(answer)[0]
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid


def start() -> ForkServer | None:
    """Fork the fork server; None on machines whose clone system call is not known."""
    number = _CLONE.get(os.uname().machine)
    if number is None:
        return None
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid:
        its.close()
        return ForkServer(pid, ours)
    try:
        ours.close()
        warm_up(its.fileno())
        gc.collect()
        gc.freeze()
        gc.disable()
        _serve(its, number)
    finally:
        os._exit(0)


def _serve(channel: socket.socket, number: int) -> None:
    """Fork for as long as the launcher lives."""
    # Not by os.fork, which takes no flags; with one thread nothing needs repair after the fork.
    clone = ctypes.PyDLL(None, use_errno=True).syscall
    # With CLONE_PARENT the exit signal of the child is that of the fork server.
    words = (ctypes.c_uint64 * _WORDS)()
    words[_FLAGS] = _CLONE_PARENT | _CLONE_INTO_CGROUP
    size = ctypes.sizeof(words)
    rights = array.array("i", [0] * _MAX_DESCRIPTORS)
    room = socket.CMSG_SPACE(_MAX_DESCRIPTORS * rights.itemsize)
    while True:
        flags, extra, _, _ = channel.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        if not flags:
            return
        descriptors = array.array("i", extra[0][2])
        log = descriptors[1] if flags[0] & 1 else -1
        pid = -1
        # A successful call leaves errno unchanged: an old error must not be taken for a new one.
        ctypes.set_errno(0)
        if flags[0] & 2:
            words[_CGROUP] = descriptors[-1]
            pid = clone(_CLONE3, words, size)
        entered = pid >= 0
        if not entered and ctypes.get_errno() not in _OUT_OF_RESOURCES:
            pid = clone(number, _CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            run_job(descriptors[0], log, entered=entered)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(_ANSWER.pack(pid if pid > 0 else -ctypes.get_errno()))
