"""Forking a job so that it runs at most once.

A child waits at a gate. Only when the launcher has its record on disk does it say go; if the
launcher dies first, the gate closes and the child ends without having run anything. After go the
gate closes by itself at exec, or carries the reason why there was none.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_scheduler.agent.launcher.child import GO, become_job
from gpu_scheduler.agent.launcher.zygote import Zygote, ZygoteDied


@dataclass(slots=True, kw_only=True)
class Launch:
    """Everything a child needs to become the job. A `uid` of None: stay who we are."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    uid: int | None = None
    gid: int = 0
    user: str = ""
    umask: int = 0o022
    workdir: str = "/"
    log: int = -1
    log_of_user: str = ""
    joins: tuple[str, ...] = ()
    rlimits: list[tuple[int, int]] = field(default_factory=list)
    cpus: tuple[int, ...] = ()
    python: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    """Paths that the job's user must be able to reach, though the command runs as we are."""
    reaching_uid: int = 0


@dataclass(slots=True)
class Spawned:
    """A child at its gate."""

    pid: int
    gate: socket.socket


class Spawner:
    """Forks children, by the zygote while there is one: it is small, and so are its forks."""

    def __init__(self, zygote: Zygote | None = None) -> None:
        self._zygote = zygote

    def zygote_died(self) -> None:
        """From now on the launcher forks itself."""
        self._zygote = None

    def fork_at_gate(self, launch: Launch) -> Spawned:
        """Fork a child of ours that waits for go."""
        if self._zygote is not None:
            try:
                return _at_gate(launch, self._zygote_fork)
            except ZygoteDied:
                # If it made a child before it died, that child now finds its gate closed.
                self._zygote = None
        return _at_gate(launch, _own_fork)

    def _zygote_fork(self, launch: Launch, gate: int) -> int:
        if self._zygote is None:
            raise ZygoteDied
        values = {name: getattr(launch, name) for name in Launch.__slots__}
        return self._zygote.fork(values, gate, launch.log)


def _at_gate(launch: Launch, fork: Callable[[Launch, int], int]) -> Spawned:
    ours, its = socket.socketpair()
    try:
        pid = fork(launch, its.fileno())
    except OSError:
        ours.close()
        raise
    finally:
        its.close()
    ours.setblocking(False)
    return Spawned(pid, ours)


def _own_fork(launch: Launch, gate: int) -> int:
    pid = os.fork()
    if pid == 0:
        become_job(launch, gate)
    return pid


def say_go(gate: socket.socket) -> None:
    try:
        gate.send(GO)
    except OSError:
        return


def refusal(gate: socket.socket) -> str | None:
    """What the child wrote; "" when it became the job, None while it has not come so far."""
    try:
        return gate.recv(65536).decode(errors="replace")
    except BlockingIOError:
        return None
    except OSError:
        return ""
