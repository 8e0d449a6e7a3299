"""Answers of the fork server when the kernel fails."""

import array
import ctypes
import errno
import socket
import struct
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpu_scheduler.agent.spawn import fork_server

PLAIN = 56
PID = 4242


def answers(
    monkeypatch: pytest.MonkeyPatch, asked: list[bool], clone: Callable[..., int]
) -> list[int]:
    """Request children with and without a cgroup, one after the other."""
    monkeypatch.setattr(ctypes, "PyDLL", lambda *_, **__: SimpleNamespace(syscall=clone))
    ours, its = socket.socketpair()
    with ours, its:
        for has_group in asked:
            given = array.array("i", [its.fileno()] * (1 + has_group))
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)]
            ours.sendmsg([bytes([2 * has_group])], rights)
        ours.shutdown(socket.SHUT_WR)
        fork_server._serve(its, PLAIN)
        return [pid for (pid,) in struct.iter_unpack("=i", ours.recv(4096))]


@pytest.mark.parametrize("has_group", [False, True])
def test_failed_fork_does_not_affect_later_forks(
    monkeypatch: pytest.MonkeyPatch, has_group: bool
) -> None:
    calls = 0

    def clone(*_: object) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            return PID
        ctypes.set_errno(errno.EAGAIN)
        return -1

    assert answers(monkeypatch, [has_group, False, False], clone) == [-errno.EAGAIN, PID, PID]


def test_child_is_forked_plainly_without_clone_into_cgroup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clone(number: int, *_: object) -> int:
        if number == PLAIN:
            return PID
        ctypes.set_errno(errno.ENOSYS)
        return -1

    assert answers(monkeypatch, [True, True], clone) == [PID, PID]
