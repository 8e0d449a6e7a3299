"""The launcher's socket: lines of orders in, lines of answers and reports out.

Only the launcher's own user and root are let in. Reads and writes never block; an agent that does
not read loses its connection, not its reports: they are told again when it comes back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable

from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher.messages import (
    MOST_LINE_BYTES,
    Form,
    introduction,
    line,
    parsed,
    report_form,
    work_from,
)
from gpu_scheduler.agent.launcher.supervisor import Supervisor
from gpu_scheduler.agent.work import Report

SOCKET = "launcher.sock"
ACCEPT_AGAIN_MS = 200
MOST_UNSENT_BYTES = 64 * 1024 * 1024


class Door:
    """Listens, and holds every connection."""

    def __init__(self, loop: Loop, directory: str) -> None:
        self._loop = loop
        self._supervisor: Supervisor | None = None
        self._callers: dict[int, Caller] = {}
        self.stop_asked = False
        self._alone_at_ms = now_ms()
        self._path = os.path.join(directory, SOCKET)
        self._listener = listen(self._path)

    def open(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._loop.add(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Leave nothing that answers no more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._listener.close()

    @property
    def alone_ms(self) -> int:
        """For how long nobody has been connected."""
        return 0 if self._callers else now_ms() - self._alone_at_ms

    def tell(self, report: Report) -> None:
        """To everybody who watches."""
        watching = [caller for caller in self._callers.values() if caller.watching]
        if watching:
            text = line(report_form(report))
            for caller in watching:
                caller.unsent += text

    def flush(self) -> None:
        """Send what has gathered in this turn."""
        for caller in list(self._callers.values()):
            if caller.unsent and not caller.send():
                self._close(caller)
            elif caller.waits_to_send != bool(caller.unsent):
                caller.waits_to_send = bool(caller.unsent)
                self._loop.add(caller.descriptor, caller.ready, writing=caller.waits_to_send)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Out of descriptors: it would be called again at once.
            self._loop.drop(self._listener.fileno())
            self._loop.after(
                ACCEPT_AGAIN_MS, lambda: self._loop.add(self._listener.fileno(), self._accept)
            )
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in {0, os.geteuid()}:
            connection.close()
            return
        connection.setblocking(False)
        caller = Caller(connection, self._handle)
        caller.ready = lambda: self._read(caller)
        self._callers[caller.descriptor] = caller
        self._loop.add(caller.descriptor, caller.ready)

    def _read(self, caller: Caller) -> None:
        if not caller.read():
            self._close(caller)

    def _close(self, caller: Caller) -> None:
        self._loop.drop(caller.descriptor)
        self._callers.pop(caller.descriptor, None)
        self._alone_at_ms = now_ms()
        caller.connection.close()

    def _handle(self, caller: Caller, order: Form) -> None:
        number = order.get("n")

        def answer(bad: str = "", **more: object) -> None:
            form: Form = {"n": number, **more}
            if bad:
                form["error"] = bad
            caller.unsent += line(form)

        try:
            self._do(caller, order, answer)
        except (KeyError, ValueError, TypeError) as error:
            answer(f"bad order: {error}")
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it, and others go on
            self._loop.failed(error)
            answer(f"the launcher failed: {error!r}")

    def _do(self, caller: Caller, order: Form, answer: Callable[..., None]) -> None:
        supervisor = self._supervisor
        if supervisor is None:
            raise ValueError("not ready")
        what = order.get("do")
        if what == "start":
            self._start(supervisor, order["work"], answer)
        elif what == "stop":
            grace = order.get("grace_ms")
            supervisor.stop(
                _key(order), str(order["why"]), None if grace is None else int(grace), answer
            )
        elif what == "commit":
            supervisor.commit(
                _key(order), _texts(order, "environment"), _texts(order, "files"), answer
            )
        elif what == "forget":
            supervisor.forget(_key(order), answer)
        elif what == "held":
            answer(held=supervisor.held())
        elif what == "watch":
            caller.watching = True
            answer(pid=os.getpid(), capabilities=supervisor.describe(), **introduction())
            for report in supervisor.current_reports():
                caller.unsent += line(report_form(report))
        elif what == "leave":
            self.stop_asked = True
            answer()
        else:
            self._do_beside(supervisor, order, answer)

    def _do_beside(self, supervisor: Supervisor, order: Form, answer: Callable[..., None]) -> None:
        """What is not about the life of a job."""
        what = order.get("do")
        if what == "renew":
            supervisor.renew(int(order["asked_ms"]), answer)
        elif what == "warn":
            supervisor.warn(_key(order), str(order["text"]), answer)
        elif what == "errand":
            supervisor.errand(order, lambda well, text: answer("" if well else text or "failed"))
        else:
            raise ValueError(f"no order is called {what!r}")

    def _start(self, supervisor: Supervisor, form: Form, answer: Callable[..., None]) -> None:
        """Work that makes no sense is over at once, for a reason that its owner can read."""
        try:
            supervisor.start(work_from(form), answer)
        except ValueError as error:
            supervisor.reject(_key(form), f"bad order: {error}", answer)


class Caller:
    """An agent, or somebody else, who is connected: orders come in, answers and reports go out."""

    def __init__(self, connection: socket.socket, handle: Callable[[Caller, Form], None]) -> None:
        self.connection = connection
        self.descriptor = connection.fileno()
        self.watching = False
        self.unsent = bytearray()
        self.waits_to_send = False
        self.ready: Callable[[], None] = lambda: None
        self._handle = handle
        self._partial = bytearray()

    def read(self) -> bool:
        """Handle every whole line that has come; False when the caller is gone."""
        try:
            data = self.connection.recv(1 << 20)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._partial += data
        if b"\n" in data:
            *lines, rest = bytes(self._partial).split(b"\n")
            self._partial = bytearray(rest)
            for text in lines:
                self._order(text)
        return bool(data) and len(self._partial) <= MOST_LINE_BYTES

    def _order(self, text: bytes) -> None:
        try:
            order = parsed(text)
        except ValueError as error:
            self.unsent += line({"error": f"not a line of JSON: {error}"})
            return
        self._handle(self, order)

    def send(self) -> bool:
        """Send as much as goes; False when the caller is gone or does not read."""
        try:
            sent = self.connection.send(self.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        del self.unsent[:sent]
        return len(self.unsent) <= MOST_UNSENT_BYTES


def listen(path: str) -> socket.socket:
    """A socket for our own user. One that was left behind is replaced: the lock says we may."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(16)
    return listener


def _key(order: Form) -> tuple[str, int]:
    return str(order["allocation_id"]), int(order.get("member", 0))


def _texts(order: Form, name: str) -> dict[str, str]:
    """Texts by name, as an order holds them."""
    found = order.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{name} must hold texts")
    if any("\0" in text for pair in found.items() for text in pair):
        raise ValueError(f"{name} must not hold NUL characters")
    return found
