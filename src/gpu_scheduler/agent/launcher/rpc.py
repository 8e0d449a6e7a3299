"""The launcher's socket: lines of JSON with orders in, answers and reports out.

Only the launcher's own user and root may connect. Reads and writes never block; an agent that does
not read loses its connection, but no reports: it gets them again when it reconnects.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable

from gpu_scheduler.agent.launcher.loop import Loop, now_ms
from gpu_scheduler.agent.launcher.supervisor import Supervisor
from gpu_scheduler.agent.launcher_protocol import (
    MAX_LINE_BYTES,
    Key,
    Message,
    Report,
    decode_line,
    decode_work,
    encode_line,
    encode_report,
    introduction,
)

SOCKET = "launcher.sock"
ACCEPT_RETRY_MS = 200
MAX_UNSENT_BYTES = 64 * 1024 * 1024
Answer = Callable[..., None]
"""Answers an order: with an error text, or with fields by name."""


class RpcServer:
    """Listens, holds every connection, and hands orders to the supervisor.

    `stop_requested`: an agent has asked the launcher to leave.
    """

    def __init__(self, loop: Loop, directory: str) -> None:
        self._loop = loop
        self._supervisor: Supervisor | None = None
        self._connections: dict[int, Connection] = {}
        self.stop_requested = False
        self._alone_since_ms = now_ms()
        self._path = os.path.join(directory, SOCKET)
        self._listener = listen(self._path)

    def open(self, supervisor: Supervisor) -> None:
        """Accept connections from now on, and let the supervisor carry out their orders."""
        self._supervisor = supervisor
        self._loop.add(self._listener.fileno(), self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._listener.close()

    @property
    def alone_ms(self) -> int:
        """For how long there has been no connection."""
        return 0 if self._connections else now_ms() - self._alone_since_ms

    def broadcast(self, report: Report) -> None:
        """Send a report to every connection that watches."""
        watching = [one for one in self._connections.values() if one.watching]
        if watching:
            text = encode_line(encode_report(report))
            for connection in watching:
                connection.unsent += text

    def flush(self) -> None:
        """Send what has gathered in this turn."""
        for connection in list(self._connections.values()):
            if connection.unsent and not connection.send():
                self._close(connection)
            elif connection.waits_to_send != bool(connection.unsent):
                connection.waits_to_send = bool(connection.unsent)
                self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        self._loop.add(
            connection.descriptor, self._read, connection, writing=connection.waits_to_send
        )

    def _accept(self) -> None:
        listener = self._listener.fileno()
        try:
            peer, _ = self._listener.accept()
        except OSError:
            # Out of descriptors: without a pause the loop would call this again at once.
            self._loop.drop(listener)
            self._loop.after(ACCEPT_RETRY_MS, self._loop.add, listener, self._accept)
            return
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("3i", credentials)
        if uid not in {0, os.geteuid()}:
            peer.close()
            return
        peer.setblocking(False)
        connection = Connection(peer)
        self._connections[connection.descriptor] = connection
        self._watch(connection)

    def _read(self, connection: Connection) -> None:
        lines, is_open = connection.read_lines()
        for line in lines:
            self._handle(connection, line)
        if not is_open:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self._loop.drop(connection.descriptor)
        self._connections.pop(connection.descriptor, None)
        self._alone_since_ms = now_ms()
        connection.socket.close()

    def _handle(self, connection: Connection, line: bytes) -> None:
        try:
            order = decode_line(line)
        except ValueError as error:
            connection.unsent += encode_line({"error": f"not a line of JSON: {error}"})
            return
        number = order.get("n")

        def answer(error: str = "", **fields: object) -> None:
            message: Message = {"n": number, **fields}
            if error:
                message["error"] = error
            connection.unsent += encode_line(message)

        supervisor = self._supervisor
        if supervisor is None:
            answer("the launcher is not ready")
            return
        try:
            self._dispatch(supervisor, connection, order, answer)
        except (KeyError, ValueError, TypeError) as error:
            answer(f"bad order: {error}")
        except Exception as error:  # noqa: BLE001 - the caller gets an answer, and others go on
            supervisor.order_failed(error, _find_key(order))
            answer(f"the launcher failed: {error!r}")

    def _dispatch(  # noqa: PLR0912 - one case for each order
        self, supervisor: Supervisor, connection: Connection, order: Message, answer: Answer
    ) -> None:
        match order.get("do"):
            case "start":
                work = order["work"]
                try:
                    supervisor.start(decode_work(work), answer)
                except ValueError as error:
                    # Invalid work is over at once, with a reason that its owner can read.
                    supervisor.reject(_key(work), f"bad order: {error}")
                    answer()
            case "stop":
                grace = order.get("grace_ms")
                grace_ms = None if grace is None else int(grace)
                supervisor.stop(_key(order), str(order["why"]), grace_ms)
                answer()
            case "commit":
                environment, files = _texts(order, "environment"), _texts(order, "files")
                answer(supervisor.commit(_key(order), environment, files))
            case "forget":
                answer(supervisor.forget(_key(order)))
            case "held":
                answer(held=supervisor.held())
            case "watch":
                connection.watching = True
                capabilities = supervisor.capabilities()
                answer(pid=os.getpid(), capabilities=capabilities, **introduction())
                for report in supervisor.current_reports():
                    connection.unsent += encode_line(encode_report(report))
            case "leave":
                self.stop_requested = True
                answer()
            case "renew":
                supervisor.leases.renew(int(order["asked_ms"]))
                answer()
            case "warn":
                supervisor.warn(_key(order), str(order["text"]))
                answer()
            case "errand":
                supervisor.run_helper(
                    order, lambda ok, output: answer("" if ok else output or "failed")
                )
            case unknown:
                raise ValueError(f"no order is called {unknown!r}")


class Connection:
    """One connected agent: bytes in, lines out, and what was not sent yet."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.descriptor = peer.fileno()
        self.watching = False
        self.unsent = bytearray()
        self.waits_to_send = False
        self._partial = bytearray()

    def read_lines(self) -> tuple[list[bytes], bool]:
        """The complete lines that have come, and whether the connection is still open."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return [], True
        except OSError:
            return [], False
        lines: list[bytes] = []
        self._partial += data
        if b"\n" in data:
            *lines, rest = bytes(self._partial).split(b"\n")
            self._partial = bytearray(rest)
        return lines, bool(data) and len(self._partial) <= MAX_LINE_BYTES

    def send(self) -> bool:
        """Send as much as goes; False when the peer is gone or does not read."""
        try:
            sent = self.socket.send(self.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        del self.unsent[:sent]
        return len(self.unsent) <= MAX_UNSENT_BYTES


def listen(path: str) -> socket.socket:
    """Listen for our own user. An old socket is replaced: the lock says that its owner is gone."""
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


def _key(order: Message) -> Key:
    return str(order["allocation_id"]), int(order.get("member", 0))


def _find_key(order: Message) -> Key | None:
    """The attempt that an order is about, if it names one."""
    try:
        return _key(order.get("work", order))
    except (KeyError, ValueError, TypeError):
        return None


def _texts(order: Message, name: str) -> dict[str, str]:
    """A field of an order that must hold texts by name."""
    found = order.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise ValueError(f"{name} must hold texts")
    if any("\0" in text for pair in found.items() for text in pair):
        raise ValueError(f"{name} must not hold NUL characters")
    return found
