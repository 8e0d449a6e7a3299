"""Forking a job so that it runs at most once.

A child waits at a gate. Only when the launcher has its record on disk does it say go; if the
launcher dies first, the gate closes and the child ends without having run anything. After go the
gate closes by itself at exec, or carries the reason why there was none.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.agent.spawn.child import GO, LATE, LENGTH, LOG, Asked, become_job
from gpu_scheduler.agent.spawn.fork_server import Zygote, ZygoteDied


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
    stdin: str = ""
    log: int = -1
    log_of_user: str = ""
    log_umask: int = 0o022
    group: int = -1
    """The directory of the control group to begin in; the first of `joins` stands for the same."""
    joins: tuple[str, ...] = ()
    rlimits: list[tuple[int, int]] = field(default_factory=list)
    cpus: tuple[int, ...] = ()
    python: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    """Paths that the job's user must be able to reach, though the command runs as we are."""
    root: str = ""
    reaching_uid: int = 0
    says_ready: bool = False


@dataclass(slots=True)
class Spawned:
    """A child at its gate."""

    pid: int
    gate: socket.socket

    def is_there(self) -> bool:
        """Tell whether it waits; who has ended has closed the gate."""
        try:
            self.gate.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def said(self) -> str:
        """What it wrote at its gate, if anything."""
        return (refusal(self.gate) or "") if self.gate.fileno() >= 0 else ""


_USUAL = {
    name: getattr(Asked, name)
    for name in Launch.__slots__
    if name not in {"environment", "group", "log"}
}
"""What a child takes for granted, and need not be told."""
_ENCODING = sys.getfilesystemencoding()
_NEVER_INTERNED = 2
"""The last version of marshal whose texts do not go into the table of all texts, which is large:
every place of it that a child touches is a page that has to be copied."""
NEVER_WENT = "its process ended before it ran the command"
Then = Callable[[Spawned | OSError], None]


class Spawner:
    """Forks children, by the zygote while there is one: it is small, and so are its forks.

    Children that are asked for in one turn are forked while the next are being asked for;
    `collect` then waits for all of them, and calls back by `call`: each child has its own answer,
    whatever happens over another.
    """

    def __init__(self, zygote: Zygote | None = None) -> None:
        self._zygote = zygote
        self._asked: list[tuple[Launch | None, socket.socket, Then]] = []
        self.call: Callable[[Then, Spawned | OSError], object] = lambda then, child: then(child)

    def zygote_died(self) -> None:
        """From now on the launcher forks itself."""
        self._zygote = None

    def begin(self, launch: Launch, then: Then) -> None:
        """Ask for a child of ours that waits for go; `then` hears of it at the latest in collect.

        The launch's log has to stay open until then.
        """
        if self._zygote is None:
            then(_own_fork(launch))
            return
        try:
            ours, its = socket.socketpair()
        except OSError as error:
            then(error)
            return
        try:
            self._zygote.ask(its.fileno(), launch.log, launch.group)
        except ZygoteDied:
            self._zygote = None
        finally:
            its.close()
        _tell(ours, launch)
        self._asked.append((launch, ours, then))

    def begin_waiting(self, joins: tuple[str, ...], group: int, then: Then) -> None:
        """Ask for a child that waits in these groups until `fill` tells it what to become."""
        if self._zygote is None:
            then(OSError("only the zygote forks ahead of time"))
            return
        try:
            ours, its = socket.socketpair()
        except OSError as error:
            then(error)
            return
        try:
            self._zygote.ask(its.fileno(), -1, group)
        except ZygoteDied as died:
            self._zygote = None
            ours.close()
            then(died)
            return
        finally:
            its.close()
        _write(ours, {"joins": joins})
        self._asked.append((None, ours, then))

    def fill(self, child: Spawned, launch: Launch) -> bool:
        """Tell a child that waits what to become; False if it is gone."""
        gate = child.gate
        gate.setblocking(True)
        try:
            socket.send_fds(gate, [LOG], [launch.log] if launch.log >= 0 else [])
        except OSError:
            return False
        _tell(gate, launch)
        gate.setblocking(False)
        return True

    def collect(self) -> None:
        """Wait for all that were asked for.

        Nobody hears of a child before all answers are read: who does may ask for another, whose
        answer comes last.
        """
        asked, self._asked = self._asked, []
        answers = [(then, self._answer(launch, gate)) for launch, gate, then in asked]
        for then, child in answers:
            self.call(then, child)

    def fork_at_gate(self, launch: Launch) -> Spawned:
        """One child, at once. Raises OSError if there can be none."""
        found: list[Spawned | OSError] = []
        self.collect()
        self.begin(launch, found.append)
        self.collect()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def _answer(self, launch: Launch | None, gate: socket.socket) -> Spawned | OSError:
        if self._zygote is not None:
            try:
                pid = self._zygote.answer()
            except ZygoteDied:
                self._zygote = None
            except OSError as error:
                gate.close()
                return error
            else:
                gate.setblocking(False)
                return Spawned(pid, gate)
        # If the zygote made a child before it died, that child now finds its gate closed.
        gate.close()
        return ZygoteDied("the zygote has died") if launch is None else _own_fork(launch)


def _tell(gate: socket.socket, launch: Launch) -> None:
    """What the child is to become. If nobody is there to read it, the zygote's answer says so."""
    _write(gate, _told(launch))


def _told(launch: Launch) -> dict[str, Any]:
    """The fields of a launch that its child has to be told."""
    told: dict[str, Any] = {"environment": _encoded(launch.environment)}
    for name, usual in _USUAL.items():
        value = getattr(launch, name)
        if value != usual:
            told[name] = value
    return told


def _encoded(environment: dict[str, str]) -> dict[bytes, bytes]:
    """As the kernel takes it: what need not be done in a child is done here."""
    return {
        name.encode(_ENCODING, "surrogateescape"): value.encode(_ENCODING, "surrogateescape")
        for name, value in environment.items()
    }


def _framed(values: dict[str, Any]) -> bytes:
    told = marshal.dumps(values, _NEVER_INTERNED)
    return LENGTH.pack(len(told)) + told


def _write(gate: socket.socket, values: dict[str, Any]) -> None:
    try:
        gate.sendall(_framed(values))
    except OSError:
        return


def _own_fork(launch: Launch) -> Spawned | OSError:
    told = _told(launch)
    try:
        ours, its = socket.socketpair()
    except OSError as error:
        return error
    try:
        pid = os.fork()
    except OSError as error:
        ours.close()
        its.close()
        return error
    if pid == 0:
        become_job(told, its.fileno(), launch.log)
    its.close()
    ours.setblocking(False)
    return Spawned(pid, ours)


def say_go(gate: socket.socket, late: dict[str, str] | None = None) -> None:
    """Let it run, with variables that were not known before; they are few, so one write does."""
    data = b""
    if late:
        data = LATE + _framed({"environment": _encoded(late)})
    try:
        gate.send(data + GO)
    except OSError:
        return


def refusal(gate: socket.socket) -> str | None:
    """What the child wrote; "" when it became the job, None while it has not come so far.

    Who ends without having read all that was said resets the gate: it never heard the word to go.
    """
    try:
        return gate.recv(65536).decode(errors="replace")
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return NEVER_WENT
    except OSError:
        return ""
