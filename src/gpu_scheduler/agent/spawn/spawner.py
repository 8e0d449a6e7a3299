"""Forking children so that a job runs at most once.

A child waits at a gate, a socket pair. The launcher sends GO only when the record of the job is on
disk; if the launcher dies first, the gate closes and the child ends without having run anything.
After GO the exec closes the gate, or the child writes why there was none.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpu_scheduler.agent.spawn.child import GO, LATE, LENGTH, LOG, LaunchOrder, run_job
from gpu_scheduler.agent.spawn.fork_server import ForkServer, ForkServerDied


@dataclass(slots=True, kw_only=True)
class Launch:
    """Everything a child needs to execute a command. A `uid` of None: as the launcher's user."""

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
    """Descriptor of the control group to begin in; the first of `joins` is the same group."""
    joins: tuple[str, ...] = ()
    rlimits: list[tuple[int, int]] = field(default_factory=list)
    cpus: tuple[int, ...] = ()
    python: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    """Paths that the user `reaching_uid` must be able to read, though the command runs as us."""
    root: str = ""
    stage: str = ""
    """Where to bind `reachable`, opened as that user, before the command runs."""
    reaching_uid: int = 0
    says_ready: bool = False


@dataclass(slots=True)
class Spawned:
    """A child at its gate."""

    pid: int
    gate: socket.socket

    def is_alive(self) -> bool:
        """Tell whether it still waits; a child that has ended has closed the gate."""
        try:
            self.gate.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def read_refusal(self) -> str:
        """The text that it wrote to its gate; empty if none."""
        return (read_refusal(self.gate) or "") if self.gate.fileno() >= 0 else ""


_DEFAULTS = {
    name: getattr(LaunchOrder, name)
    for name in Launch.__slots__
    if name not in {"environment", "group", "log"}
}
"""Fields with these values are not sent to the child."""
_ENCODING = sys.getfilesystemencoding()
_MARSHAL_VERSION = 2
"""The last version that does not intern strings: the table of interned strings is large, and every
page of it that a child writes to has to be copied."""
NEVER_RELEASED = "its process ended before it ran the command"
Forked = Callable[..., None]
"""Called with its own arguments and the child, or the error."""
Arguments = tuple[object, ...]


class Spawner:
    """Forks children, by the fork server while there is one: its forks are cheap.

    The fork server forks children while the launcher requests the next ones; `collect` then reads
    all answers and makes the callbacks by `call`, so that an error over one child does not affect
    another.
    """

    def __init__(
        self,
        fork_server: ForkServer | None = None,
        call: Callable[..., object] = lambda forked, *arguments: forked(*arguments),
    ) -> None:
        self._fork_server = fork_server
        self._call = call
        self._requested: list[tuple[Launch | None, socket.socket, Forked, Arguments]] = []

    def fork_server_died(self, status: int = 0) -> None:
        """From now on the launcher forks itself."""
        del status
        self._fork_server = None

    def begin(self, launch: Launch, forked: Forked, *arguments: object) -> None:
        """Request a child that waits for GO; `collect` calls `forked`, if nothing did before.

        The launch's log has to stay open until then.
        """
        if self._fork_server is None:
            forked(*arguments, _fork(launch))
        else:
            self._request(launch, _order_fields(launch), launch.group, forked, arguments)

    def begin_waiting(
        self, joins: tuple[str, ...], group: int, forked: Forked, *arguments: object
    ) -> None:
        """Request a child that waits in these control groups until `fill` gives it an order."""
        if self._fork_server is None:
            forked(*arguments, OSError("only the fork server forks ahead of time"))
        else:
            self._request(None, {"joins": joins}, group, forked, arguments)

    def _request(
        self,
        launch: Launch | None,
        order: dict[str, Any],
        group: int,
        forked: Forked,
        arguments: Arguments,
    ) -> None:
        """Request a child and send its order. `collect` notices a dead fork server."""
        try:
            ours, its = socket.socketpair()
        except OSError as error:
            forked(*arguments, error)
            return
        try:
            if self._fork_server is not None:
                self._fork_server.request(its.fileno(), launch.log if launch else -1, group)
        except ForkServerDied:
            self._fork_server = None
        finally:
            its.close()
        # If no child is there to read it, the answer of the fork server says so.
        _write(ours, order)
        self._requested.append((launch, ours, forked, arguments))

    def fill(self, child: Spawned, launch: Launch) -> bool:
        """Give a pre-forked child its order; False if it is gone."""
        gate = child.gate
        gate.setblocking(True)
        try:
            socket.send_fds(gate, [LOG], [launch.log] if launch.log >= 0 else [])
        except OSError:
            return False
        _write(gate, _order_fields(launch))
        gate.setblocking(False)
        return True

    def collect(self) -> None:
        """Read the answers to all requests, then make the callbacks.

        In this order: a callback may request another child, whose answer comes last.
        """
        requested, self._requested = self._requested, []
        children = [self._read_child(launch, gate) for launch, gate, _, _ in requested]
        for (_, _, forked, arguments), child in zip(requested, children, strict=True):
            self._call(forked, *arguments, child)

    def fork_at_gate(self, launch: Launch) -> Spawned:
        """Fork one child at once. Raises OSError if that fails."""
        found: list[Spawned | OSError] = []
        self.collect()
        self.begin(launch, found.append)
        self.collect()
        if isinstance(found[0], OSError):
            raise found[0]
        return found[0]

    def _read_child(self, launch: Launch | None, gate: socket.socket) -> Spawned | OSError:
        if self._fork_server is not None:
            try:
                pid = self._fork_server.read_pid()
            except ForkServerDied:
                self._fork_server = None
            except OSError as error:
                gate.close()
                return error
            else:
                gate.setblocking(False)
                return Spawned(pid, gate)
        # A child that was forked before the fork server died finds its gate closed, and ends.
        gate.close()
        return ForkServerDied("the fork server has died") if launch is None else _fork(launch)


def _order_fields(launch: Launch) -> dict[str, Any]:
    """The fields of a launch that are sent to its child."""
    fields: dict[str, Any] = {"environment": _encode(launch.environment)}
    for name, default in _DEFAULTS.items():
        value = getattr(launch, name)
        if value != default:
            fields[name] = value
    return fields


def _encode(environment: dict[str, str]) -> dict[bytes, bytes]:
    """Bytes, as the kernel takes them; done here, to keep the child small."""
    return {
        name.encode(_ENCODING, "surrogateescape"): value.encode(_ENCODING, "surrogateescape")
        for name, value in environment.items()
    }


def _frame(fields: dict[str, Any]) -> bytes:
    data = marshal.dumps(fields, _MARSHAL_VERSION)
    return LENGTH.pack(len(data)) + data


def _write(gate: socket.socket, fields: dict[str, Any]) -> None:
    with suppress(OSError):
        gate.sendall(_frame(fields))


def _fork(launch: Launch) -> Spawned | OSError:
    """Fork in the launcher itself."""
    fields = _order_fields(launch)
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
        run_job(its.fileno(), launch.log, fields)
    its.close()
    ours.setblocking(False)
    return Spawned(pid, ours)


def send_go(gate: socket.socket, late: dict[str, str] | None = None) -> None:
    """Let it run, with variables that were not known before; they are few and fit in one write."""
    data = LATE + _frame({"environment": _encode(late)}) if late else b""
    with suppress(OSError):
        gate.send(data + GO)


def read_refusal(gate: socket.socket) -> str | None:
    """What the child wrote; "" after its exec, None while it has not got that far.

    A child that ends without having read everything resets the gate: it has not read GO.
    """
    try:
        return gate.recv(65536).decode(errors="replace")
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return NEVER_RELEASED
    except OSError:
        return ""
