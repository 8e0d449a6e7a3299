"""A small process that forks for the launcher, so that forks stay cheap.

After a fork every page that the launcher touches is copied: measured, 300 faults and 1.3 ms for
each job. This process is forked off before the launcher has loaded anything, and touches little:
it gets descriptors, forks and answers; the child itself reads at its gate what it is to become.
Its children are the launcher's own (CLONE_PARENT): their ends, and their orphans, come to the
launcher. They begin inside their control group where the kernel can do that (CLONE_INTO_CGROUP):
who goes there later waits for all CPUs, measured 12 ms. Without the zygote, or when it dies, the
launcher forks itself.
"""

from __future__ import annotations

import array
import ctypes
import errno
import gc
import os
import socket
import struct

from gpu_scheduler.agent.spawn.child import become_asked_job, rehearse

_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_CLONE3 = 435
_CLONE_PARENT, _SIGCHLD = 0x8000, 17
_CLONE_INTO_CGROUP = 0x200000000
_FLAGS, _CGROUP, _WORDS = 0, 10, 11
"""Places in the arguments of clone3, and how many there are."""
_TRY_AGAIN = frozenset({errno.EAGAIN, errno.ENOMEM})
_ANSWER = struct.Struct("=i")
_RIGHTS = 3


class ZygoteDied(OSError):
    """It cannot fork any more."""


class Zygote:
    """The launcher's end."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel

    def ask(self, gate: int, log: int, group: int) -> None:
        """Ask for a new child of this process that waits at the gate for what it is to become.

        `log` and `group`, a directory of control groups, may be -1.
        """
        given = [descriptor for descriptor in (gate, log, group) if descriptor >= 0]
        which = bytes([(log >= 0) + 2 * (group >= 0)])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))]
        try:
            self._channel.sendmsg([which], rights)
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
        rehearse(its.fileno())
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
    # The signal at its end is that of the zygote itself, as always with CLONE_PARENT.
    words = (ctypes.c_uint64 * _WORDS)()
    words[_FLAGS] = _CLONE_PARENT | _CLONE_INTO_CGROUP
    size = ctypes.sizeof(words)
    rights = array.array("i", [0] * _RIGHTS)
    room = socket.CMSG_SPACE(_RIGHTS * rights.itemsize)
    while True:
        which, extra, _, _ = channel.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        if not which:
            return
        given = array.array("i", extra[0][2])
        log = given[1] if which[0] & 1 else -1
        pid = -1
        # A call that goes well leaves the number as it was: an old error must not pass for a new.
        ctypes.set_errno(0)
        if which[0] & 2:
            words[_CGROUP] = given[-1]
            pid = clone(_CLONE3, words, size)
        entered = pid >= 0
        if not entered and ctypes.get_errno() not in _TRY_AGAIN:
            pid = clone(number, _CLONE_PARENT | _SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            become_asked_job(given[0], log, entered)
        for descriptor in given:
            os.close(descriptor)
        channel.send(_ANSWER.pack(pid if pid > 0 else -ctypes.get_errno()))
