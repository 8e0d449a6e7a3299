"""Connects this terminal to the terminal of a job: keys go there, output comes here.

A `Connection` carries bytes to and from `agent/runners/terminal_host.py` on the job's node: through
the Unix socket on this machine, or through a WebSocket of the server. It never blocks: what cannot
be sent now is buffered, so a slow peer delays neither keys nor output. A `TerminalSession` speaks
the protocol over it and returns the wait status of the program, or raises `Detached`. This terminal
is restored in every case.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import ssl
import struct
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.keepalive import allow_backlog
from gpu_scheduler.client.requests import decoded, job_path
from gpu_scheduler.client.websocket import (
    BINARY,
    CLOSE,
    PING,
    TEXT,
    Frames,
    accept_of,
    handshake_headers,
    masked,
    new_key,
)
from gpu_scheduler.model.errors import ClusterError, UnknownThing, WrongState

if TYPE_CHECKING:
    from gpu_scheduler.client.client import Client

CHUNK = 1 << 15
BUFFER_LIMIT = 1 << 18
"""With more than this unsent, no more input is read."""
READS_AT_ONCE = 8
CLOSE_TIMEOUT_S = 2.0
PING_INTERVAL_S = 15.0
SERVER_TIMEOUT_S = 50.0
"""A server that has sent nothing for so long, not even a pong, is lost."""
NORMAL_CLOSURE = 1000
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream(Protocol):
    """A plain or a TLS socket."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes | bytearray, /) -> int: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Connection:
    """The socket of a terminal on this machine; `closed` if the peer is gone, `reason` if known."""

    is_through_server = False

    def __init__(self, stream: Stream) -> None:
        """Takes over the socket."""
        stream.settimeout(0.0)
        self._stream = stream
        self._unsent = bytearray()
        self.closed = False
        self.reason = ""

    def fileno(self) -> int:
        """For `select`."""
        return self._stream.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` has something to send."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether the caller should send nothing more for now."""
        return len(self._unsent) > BUFFER_LIMIT

    def send(self, data: bytes) -> None:
        """Send the data, now or as soon as the socket takes it."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes. If the peer is gone, the next `receive` notices."""
        try:
            while self._unsent:
                del self._unsent[: self._stream.send(self._unsent)]
        except _WOULD_BLOCK:
            return
        except OSError:
            self._unsent.clear()

    def receive(self) -> bytes:
        """The data that has arrived."""
        try:
            data = self._stream.recv(PIECE)
        except _WOULD_BLOCK:
            return b""
        except OSError:
            data = b""
        self.closed = self.closed or not data
        return data

    def wait_s(self) -> float | None:
        """Seconds until `check` must be called; None for never."""
        return None

    def check(self) -> None:
        """Check that the peer is alive; called at least every `wait_s` seconds."""

    def close(self) -> None:
        """Send what is buffered, if that takes no longer than the timeout, and close."""
        give_up = time.monotonic() + CLOSE_TIMEOUT_S
        while self._has_pending() and not self.closed and time.monotonic() < give_up:
            select.select([self.fileno()], [self.fileno()] if self.has_unsent else [], [], 0.1)
            self.receive()
            self.flush()
        self._send_close()
        self._stream.close()

    def _has_pending(self) -> bool:
        return bool(self._unsent)

    def _send_close(self) -> None:
        """A Unix socket needs no closing message."""


class ServerConnection(Connection):
    """A connection through a WebSocket of the server, which grants credits for messages."""

    is_through_server = True

    def __init__(self, stream: Stream, received: bytes = b"") -> None:
        """`received` is the data that followed the handshake."""
        super().__init__(stream)
        self._frames = Frames()
        self._waiting = bytearray()
        self._credit = 0
        self._received_at = self._pinged_at = time.monotonic()
        self._early = self._decode(received)

    @property
    def is_full(self) -> bool:
        """Whether the caller should send nothing more for now."""
        return len(self._waiting) + len(self._unsent) > BUFFER_LIMIT

    def send(self, data: bytes) -> None:
        """Send the data, now or when the server grants credit."""
        self._waiting += data
        self.flush()

    def flush(self) -> None:
        """Send what the credit and the socket allow."""
        while self._waiting and self._credit:
            self._credit -= 1
            self._unsent += masked(BINARY, bytes(self._waiting[:CHUNK]))
            del self._waiting[:CHUNK]
        super().flush()

    def receive(self) -> bytes:
        """The data that has arrived; TLS may hold more than `select` shows, so it reads on."""
        heard, self._early = self._early, bytearray()
        for _ in range(READS_AT_ONCE):
            data = super().receive()
            heard += self._decode(data)
            if not data:
                break
        else:
            while pending := getattr(self._stream, "pending", int)():
                heard += self._decode(self._stream.recv(pending))
        return bytes(heard)

    def _decode(self, data: bytes) -> bytearray:
        heard = bytearray()
        if data:
            self._received_at = time.monotonic()
        for message in self._frames.feed(data):
            if self._frames.kind == TEXT:
                self._credit += int(message)
            else:
                heard += message
        self._unsent += self._frames.reply
        self._frames.reply.clear()
        if self._frames.closed:
            self.closed = True
            if self._frames.close_code != NORMAL_CLOSURE:
                self.reason = self._frames.close_reason
        self.flush()
        return heard

    def wait_s(self) -> float | None:
        """The interval of pings."""
        return PING_INTERVAL_S

    def check(self) -> None:
        """Ping a silent server, and give up after the timeout.

        A machine without power closes no connection.
        """
        now = time.monotonic()
        if now - self._received_at > SERVER_TIMEOUT_S:
            self.closed, self.reason = True, "the server does not answer"
        elif now - max(self._received_at, self._pinged_at) >= PING_INTERVAL_S:
            self._pinged_at = now
            self._unsent += masked(PING, b"")
            self.flush()

    def _has_pending(self) -> bool:
        return bool(self._unsent or self._waiting)

    def _send_close(self) -> None:
        if not self.closed:
            self._unsent += masked(CLOSE, NORMAL_CLOSURE.to_bytes(2, "big"))
            self.flush()


def connect_through_server(client: Client, job: str, member: int = 0) -> ServerConnection:
    """Connect to the terminal of a job on any node."""
    key = new_key()
    path = target(job_path(job, "terminal"), {"member": member or None})
    answer, connected, body = client.connection.upgrade(path, handshake_headers(key))
    if connected is None:
        try:
            decoded(answer.status, body)
        except UnknownThing as error:
            if "no WebSocket" not in str(error):
                raise
            raise WrongState(
                "the server is too old to connect to terminals on other nodes; update it"
            ) from error
        raise ClusterError("the server does not open a WebSocket; does a proxy block it?")
    if answer.headers.get("sec-websocket-accept") != accept_of(key):
        connected.close()
        raise ClusterError(
            "invalid WebSocket answer; is this the address of a gpu-scheduler server?"
        )
    allow_backlog(connected)
    return ServerConnection(connected, answer.rest)


def connect_locally(
    path: str, *, timeout_s: float = 0.0, is_running: Callable[[], bool] = lambda: True
) -> Connection:
    """Connect to a terminal on this machine.

    Waits for a socket that does not exist yet, while `is_running` says that the job runs: a short
    job may have ended, and its socket with it.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
                raise ClusterError(
                    f"cannot open the terminal at {path}: {error.strerror or error}; it is open to "
                    "the job's user on the job's node"
                ) from error
            if not is_running():
                raise WrongState("the job has just ended") from error
            if time.monotonic() > give_up:
                raise WrongState(f"there is no terminal at {path}; has the job ended?") from error
            time.sleep(0.05)
        else:
            return Connection(connection)


HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
STATUS = struct.Struct("!i")
PIECE = 1 << 16
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_ESCAPE = ord("~")
_LINE_ENDS = (ord("\r"), ord("\n"))
_PRIVATE_MODES = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_INITIAL_MODES = frozenset({7, 25})
"""Private modes that are on in a new terminal: wrapping and the cursor."""


class Ended(Exception):
    """A signal ends this program; the terminal is restored first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Detached(Exception):
    """The user detached with `Enter ~ d`."""


def window_size() -> tuple[int, int]:
    """Rows and columns of this terminal; 24 and 80 where there is none."""
    for descriptor in (1, 0, 2):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if size.lines and size.columns:
            return size.lines, size.columns
    return 24, 80


class TerminalSession:
    """`attach` and `start` return the wait status of the program, None if the connection broke."""

    def __init__(self, connection: Connection) -> None:
        """Takes over the connection, which is closed at the end."""
        self._connection = connection
        self._received = bytearray()
        self._modes: set[int] = set(_INITIAL_MODES)
        self._resized = False
        self._at_line_start = True
        self._escaping = False
        self._takes_escapes = False

    def attach(self) -> int | None:
        """Attach to the job's own terminal. Raises `Detached` when the user detaches."""
        rows, columns = window_size()
        self._takes_escapes = os.isatty(0)
        with contextlib.closing(self._connection):
            self._open({"mode": "attach", "rows": rows, "columns": columns})
            with raw_terminal(self._modes, self._note_size):
                return self._copy()

    def start(self, argv: list[str], *, terminal: bool, directory: str) -> int | None:
        """Run another program inside the job.

        If the directory does not exist on the job's node, it is that of the job.
        """
        rows, columns = window_size()
        request = {
            "mode": "start",
            "argv": argv,
            "terminal": terminal,
            "directory": directory,
            "rows": rows,
            "columns": columns,
            "term": os.environ.get("TERM", ""),
            "or_its_own": self._connection.is_through_server,
        }
        with contextlib.closing(self._connection):
            self._open(request)
            if not terminal:
                return self._copy()
            with raw_terminal(self._modes, self._note_size):
                return self._copy()

    def _open(self, request: dict[str, object]) -> None:
        self._send(b"o", json.dumps(request).encode())
        while True:
            for kind, data in self._messages():
                if kind == b"x":
                    raise WrongState(
                        f"the job rejected the connection: {data.decode(errors='replace')}"
                    )
                if kind == b"o":
                    return
            if self._connection.closed:
                raise WrongState(self._connection.reason or "the job has just ended")
            self._poll([], self._connection.wait_s())

    def _note_size(self, *_: object) -> None:
        self._resized = True

    def _copy(self) -> int | None:
        """Copy keys and output until the program ends or the peer is gone."""
        wake, note = os.pipe()
        os.set_blocking(note, False)
        before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
        has_input = True
        try:
            while True:
                status = self._write_output()
                if status is not None or self._connection.closed:
                    return status
                takes_keys = has_input and not self._connection.is_full
                ready = self._poll([wake, 0] if takes_keys else [wake], self._connection.wait_s())
                if wake in ready:
                    os.read(wake, 4096)
                if self._resized:
                    self._resized = False
                    self._send(b"w", SIZE.pack(*window_size()))
                if 0 in ready:
                    has_input = self._send_keys()
        finally:
            signal.set_wakeup_fd(before)
            os.close(wake)
            os.close(note)

    def _poll(self, sources: list[int], wait_s: float | None) -> list[int]:
        """Wait for input, serve the connection; returns the sources that are ready."""
        number = self._connection.fileno()
        targets = [number] if self._connection.has_unsent else []
        ready, writable, _ = select.select([number, *sources], targets, [], wait_s)
        if writable:
            self._connection.flush()
        if number in ready:
            self._received += self._connection.receive()
        self._connection.check()
        return ready

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._received) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._received)
            if len(self._received) < HEAD.size + length:
                return
            data = bytes(self._received[HEAD.size : HEAD.size + length])
            del self._received[: HEAD.size + length]
            yield kind, data

    def _write_output(self) -> int | None:
        """Write what was received; the wait status if the program has ended."""
        for kind, data in self._messages():
            if kind == b"d":
                self._follow_modes(data)
                write(1, data)
            elif kind == b"E":
                write(2, data)
            elif kind == b"n":
                write(2, b"\r\ntgpu: " + data + b"\r\n")
            elif kind == b"e":
                status: int = STATUS.unpack(data)[0]
                return status
        return None

    def _follow_modes(self, data: bytes) -> None:
        """Track the modes that the program switches, to reset them at the end."""
        for numbers, switch in _PRIVATE_MODES.findall(data):
            modes = {int(number) for number in numbers.split(b";") if number}
            self._modes.difference_update(modes)
            if switch == b"h":
                self._modes.update(modes)

    def _send_keys(self) -> bool:
        """Send what was typed; False at the end of the input."""
        try:
            data = os.read(0, PIECE)
        except OSError:
            data = b""
        if not data:
            self._send(b"c", b"")
            return False
        keys = self._without_escapes(data) if self._takes_escapes else data
        if keys:
            self._send(b"d", keys)
        return True

    def _without_escapes(self, data: bytes) -> bytes:
        """The keys without escapes: after a line end, `~d` detaches and `~~` is one `~`."""
        kept = bytearray()
        for key in data:
            if self._escaping:
                self._escaping = False
                if key in b"dD":
                    self._send(b"l", b"")
                    raise Detached
                if key != _ESCAPE:
                    kept.append(_ESCAPE)
                kept.append(key)
            elif key == _ESCAPE and self._at_line_start:
                self._escaping = True
            else:
                kept.append(key)
            self._at_line_start = key in _LINE_ENDS
        return bytes(kept)

    def _send(self, kind: bytes, data: bytes) -> None:
        self._connection.send(HEAD.pack(kind, len(data)) + data)


@contextlib.contextmanager
def raw_terminal(modes: set[int], resized: object) -> Iterator[None]:
    """Raw mode: every key goes through unchanged. The terminal is restored on exit."""
    try:
        before: list[Any] | None = termios.tcgetattr(0)
    except termios.error:
        before = None
    handlers = {number: signal.signal(number, raise_ended) for number in ENDING_SIGNALS}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resized)  # type: ignore[arg-type]
    try:
        if before is not None:
            tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        if before is not None:
            if sys.stdout.isatty():
                write(1, reset_sequence(modes))
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def reset_sequence(modes: set[int]) -> bytes:
    """The escape sequences that reset the private modes of a terminal."""
    off = sorted(modes - _INITIAL_MODES)
    on = sorted(_INITIAL_MODES - modes)
    parts = [f"\x1b[?{number}l" for number in off] + [f"\x1b[?{number}h" for number in on]
    return "".join(parts).encode()


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `Ended`, so that the caller can cancel the job first."""
    handlers = {number: signal.signal(number, raise_ended) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def write(target: int, data: bytes) -> None:
    """Write all data; a closed target is ignored."""
    with contextlib.suppress(BrokenPipeError):
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(target, view) :]
            except BlockingIOError:
                select.select([], [target], [])
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                return


def exit_code(status: int) -> int:
    """The exit code as a shell reports it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def raise_ended(number: int, frame: FrameType | None) -> None:
    """A signal handler that raises `Ended`."""
    del frame
    raise Ended(number)
