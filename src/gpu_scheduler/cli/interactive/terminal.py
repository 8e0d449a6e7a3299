"""This terminal and that of a job, joined: keys go there, output comes here.

A way to a socket of `agent/runners/terminal_host.py` comes in; how the program at its other end
ended goes out, or that the person left. Whatever happens, this terminal is as before afterwards.
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
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from gpu_scheduler.client.http1 import target
from gpu_scheduler.client.requests import decoded, job_path
from gpu_scheduler.client.socket_options import allow_backlog
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

# --- Ways to the terminal of a job: its socket on this machine, or through the server to any node.
#
# Both are a stream of bytes each way that never blocks: what cannot go out now is kept, and what
# has
# not come yet is nothing. So somebody who does not read holds up neither keys nor output.

CHUNK = 1 << 15
ENOUGH = 1 << 18
"""More than this is not kept: keys, or a file that is sent, wait where they come from."""
AT_ONCE = 8
LAST_WORDS_S = 2.0
ASK_S = 15.0
GONE_S = 50.0
"""A server that has not even answered for so long is gone."""
OVER = 1000
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Stream(Protocol):
    """What both kinds of sockets can do."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes | bytearray, /) -> int: ...
    def settimeout(self, timeout: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Way:
    """The socket of a terminal on this machine. `gone`: nothing more comes, and `why` if known."""

    is_relayed = False

    def __init__(self, connection: Stream) -> None:
        """Takes the socket over."""
        connection.settimeout(0.0)
        self._connection = connection
        self._unsent = bytearray()
        self.gone = False
        self.why = ""

    def fileno(self) -> int:
        """For `select`."""
        return self._connection.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether it is worth a `flush` when the socket can be written to."""
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be said for now."""
        return len(self._unsent) > ENOUGH

    def say(self, data: bytes) -> None:
        """Say it, now or as soon as it goes."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send what goes. If the other side is gone, its end is what is heard next."""
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
        except _LATER:
            return
        except OSError:
            self._unsent.clear()

    def hear(self) -> bytes:
        """What has come by now."""
        try:
            data = self._connection.recv(PIECE)
        except _LATER:
            return b""
        except OSError:
            data = b""
        self.gone = self.gone or not data
        return data

    def wait_s(self) -> float | None:
        """How long there may be nothing to do; None: as long as it takes."""
        return None

    def tend(self) -> None:
        """Look after the connection; to be called from time to time."""

    def finish(self) -> None:
        """Let the last words go out, if they are taken soon, and close."""
        give_up = time.monotonic() + LAST_WORDS_S
        while self._is_waiting() and not self.gone and time.monotonic() < give_up:
            select.select([self.fileno()], [self.fileno()] if self.has_unsent else [], [], 0.1)
            self.hear()
            self.flush()
        self._farewell()
        self._connection.close()

    def _is_waiting(self) -> bool:
        return bool(self._unsent)

    def _farewell(self) -> None:
        """Nothing needs to be said."""


class Relayed(Way):
    """The same through a WebSocket of the server, which says how many messages it takes."""

    is_relayed = True

    def __init__(self, connection: Stream, already: bytes = b"") -> None:
        """`already` is what has come behind the handshake."""
        super().__init__(connection)
        self._frames = Frames()
        self._waiting = bytearray()
        self._credit = 0
        self._heard_at = self._asked_at = time.monotonic()
        self._early = self._understood(already)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be said for now."""
        return len(self._waiting) + len(self._unsent) > ENOUGH

    def say(self, data: bytes) -> None:
        """Say it, now or as soon as it is taken."""
        self._waiting += data
        self.flush()

    def flush(self) -> None:
        """Send what goes and is taken."""
        while self._waiting and self._credit:
            self._credit -= 1
            self._unsent += masked(BINARY, bytes(self._waiting[:CHUNK]))
            del self._waiting[:CHUNK]
        super().flush()

    def hear(self) -> bytes:
        """What has come by now. TLS may have more than the socket shows, so it is asked again."""
        heard, self._early = self._early, bytearray()
        for _ in range(AT_ONCE):
            data = super().hear()
            heard += self._understood(data)
            if not data:
                break
        else:
            while pending := getattr(self._connection, "pending", int)():
                heard += self._understood(self._connection.recv(pending))
        return bytes(heard)

    def _understood(self, data: bytes) -> bytearray:
        heard = bytearray()
        if data:
            self._heard_at = time.monotonic()
        for message in self._frames.feed(data):
            if self._frames.kind == TEXT:
                self._credit += int(message)
            else:
                heard += message
        self._unsent += self._frames.reply
        self._frames.reply.clear()
        if self._frames.closed:
            self.gone = True
            if self._frames.close_code != OVER:
                self.why = self._frames.close_reason
        self.flush()
        return heard

    def wait_s(self) -> float | None:
        """Until the server is to be asked whether it is still there."""
        return ASK_S

    def tend(self) -> None:
        """Ask the server for a sign when it has been silent for a while, and do not wait for ever.

        A machine that lost its power closes no connection.
        """
        now = time.monotonic()
        if now - self._heard_at > GONE_S:
            self.gone, self.why = True, "the server does not answer"
        elif now - max(self._heard_at, self._asked_at) >= ASK_S:
            self._asked_at = now
            self._unsent += masked(PING, b"")
            self.flush()

    def _is_waiting(self) -> bool:
        return bool(self._unsent or self._waiting)

    def _farewell(self) -> None:
        if not self.gone:
            self._unsent += masked(CLOSE, OVER.to_bytes(2, "big"))
            self.flush()


def relayed(client: Client, job: str, member: int = 0) -> Relayed:
    """The way to a job's terminal through the server; raises why there is none."""
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
                "the server is of a version that brings no terminals from other nodes; update it"
            ) from error
        raise ClusterError("the server does not open a WebSocket; what is between it and you?")
    if answer.headers.get("sec-websocket-accept") != accept_of(key):
        connected.close()
        raise ClusterError("what answers there does not speak WebSocket as it should")
    allow_backlog(connected)
    return Relayed(connected, answer.rest)


def here(path: str, *, patience_s: float = 0.0) -> Way:
    """The way to a terminal on this machine."""
    return Way(_connected(path, time.monotonic() + patience_s))


def _connected(path: str, give_up: float) -> socket.socket:
    """The socket of a job; one that is not there yet is waited for a little."""
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
            if time.monotonic() > give_up:
                raise WrongState(f"there is no terminal at {path}; has the job ended?") from error
            time.sleep(0.05)
        else:
            return connection


# --- This terminal and that of a job, joined: keys go there, output comes here.

HEAD = struct.Struct("!cI")
SIZE = struct.Struct("!HH")
STATUS = struct.Struct("!i")
PIECE = 1 << 16
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
DETACH = "Enter ~ d"
_ESCAPE = ord("~")
_LINE_ENDS = (ord("\r"), ord("\n"))
_PRIVATE_MODES = re.compile(rb"\x1b\[\?([\d;]+)([hl])")
_SHOWN_AT_FIRST = frozenset({7, 25})
"""Private modes that are on in every fresh terminal: wrapping, and the cursor."""


class Ended(Exception):
    """A signal ends this program; the terminal is put right first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Left(Exception):
    """The person left by the keys for it."""


def window() -> tuple[int, int]:
    """Rows and columns of this terminal; 24 and 80 where there is none."""
    for descriptor in (1, 0, 2):
        try:
            size = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if size.lines and size.columns:
            return size.lines, size.columns
    return 24, 80


class Link:
    """One conversation. `attach` and `start` return the wait status, None if it broke off."""

    def __init__(self, way: Way) -> None:
        """Takes the way over; it is closed afterwards."""
        self._way = way
        self._heard = bytearray()
        self._modes: set[int] = set(_SHOWN_AT_FIRST)
        self._resized = False
        self._at_line_start = True
        self._escaping = False
        self._takes_escapes = False

    def attach(self) -> int | None:
        """Join the job's own terminal. Raises `Left` when the person leaves by the keys for it."""
        rows, columns = window()
        self._takes_escapes = os.isatty(0)
        with _finished(self._way):
            self._open({"mode": "attach", "rows": rows, "columns": columns})
            with raw_terminal(self._modes, self._note_size):
                return self._copy()

    def start(self, argv: list[str], *, terminal: bool, directory: str) -> int | None:
        """Run another program inside the job.

        On another machine the directory may not exist: then it is that of the job.
        """
        rows, columns = window()
        asked = {
            "mode": "start",
            "argv": argv,
            "terminal": terminal,
            "directory": directory,
            "rows": rows,
            "columns": columns,
            "term": os.environ.get("TERM", ""),
            "or_its_own": self._way.is_relayed,
        }
        with _finished(self._way):
            self._open(asked)
            if not terminal:
                return self._copy()
            with raw_terminal(self._modes, self._note_size):
                return self._copy()

    def _open(self, asked: dict[str, object]) -> None:
        self._say(b"o", json.dumps(asked).encode())
        while True:
            for kind, data in self._messages():
                if kind == b"x":
                    raise WrongState(f"the job refused: {data.decode(errors='replace')}")
                if kind == b"o":
                    return
            if self._way.gone:
                raise WrongState(self._way.why or "the job ended at this moment")
            self._turn([], self._way.wait_s())

    def _note_size(self, *_: object) -> None:
        self._resized = True

    def _copy(self) -> int | None:
        """Until the end, or until the other side is gone."""
        wake, note = os.pipe()
        os.set_blocking(note, False)
        before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
        has_input = True
        try:
            while True:
                status = self._show()
                if status is not None or self._way.gone:
                    return status
                takes_keys = has_input and not self._way.is_full
                ready = self._turn([wake, 0] if takes_keys else [wake], self._way.wait_s())
                if wake in ready:
                    os.read(wake, 4096)
                if self._resized:
                    self._resized = False
                    self._say(b"w", SIZE.pack(*window()))
                if 0 in ready:
                    has_input = self._type()
        finally:
            signal.set_wakeup_fd(before)
            os.close(wake)
            os.close(note)

    def _turn(self, sources: list[int], wait_s: float | None) -> list[int]:
        """Wait until something can be done, and do what the way needs; who else is ready."""
        way = self._way.fileno()
        targets = [way] if self._way.has_unsent else []
        ready, writable, _ = select.select([way, *sources], targets, [], wait_s)
        if writable:
            self._way.flush()
        if way in ready:
            self._heard += self._way.hear()
        self._way.tend()
        return ready

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while len(self._heard) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._heard)
            if len(self._heard) < HEAD.size + length:
                return
            data = bytes(self._heard[HEAD.size : HEAD.size + length])
            del self._heard[: HEAD.size + length]
            yield kind, data

    def _show(self) -> int | None:
        """Print what has come; the status if that was the end."""
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
        """Remember what the program has switched on, to switch it off if we leave it so."""
        for numbers, way in _PRIVATE_MODES.findall(data):
            modes = {int(number) for number in numbers.split(b";") if number}
            self._modes.difference_update(modes)
            if way == b"h":
                self._modes.update(modes)

    def _type(self) -> bool:
        """Send what was typed; False at the end of the input."""
        try:
            data = os.read(0, PIECE)
        except OSError:
            data = b""
        if not data:
            self._say(b"c", b"")
            return False
        keys = self._without_escapes(data) if self._takes_escapes else data
        if keys:
            self._say(b"d", keys)
        return True

    def _without_escapes(self, data: bytes) -> bytes:
        """`~d` after a line end leaves, `~~` is one `~`; all else is as it was typed."""
        kept = bytearray()
        for key in data:
            if self._escaping:
                self._escaping = False
                if key in b"dD":
                    self._say(b"l", b"")
                    raise Left
                if key != _ESCAPE:
                    kept.append(_ESCAPE)
                kept.append(key)
            elif key == _ESCAPE and self._at_line_start:
                self._escaping = True
            else:
                kept.append(key)
            self._at_line_start = key in _LINE_ENDS
        return bytes(kept)

    def _say(self, kind: bytes, data: bytes) -> None:
        self._way.say(HEAD.pack(kind, len(data)) + data)


@contextlib.contextmanager
def _finished(way: Way) -> Iterator[None]:
    """Whatever happens, the last words are sent and the way is closed."""
    try:
        yield
    finally:
        way.finish()


@contextlib.contextmanager
def raw_terminal(modes: set[int], resized: object) -> Iterator[None]:
    """Every key goes through as it is. On any way out the terminal is as it was."""
    before = _attributes()
    handlers = {number: signal.signal(number, _end) for number in ENDING_SIGNALS}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, resized)  # type: ignore[arg-type]
    try:
        if before is not None:
            tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        if before is not None:
            if sys.stdout.isatty():
                write(1, undo(modes))
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def undo(modes: set[int]) -> bytes:
    """What brings the private modes of a terminal back to those of a fresh one."""
    off = sorted(modes - _SHOWN_AT_FIRST)
    on = sorted(_SHOWN_AT_FIRST - modes)
    parts = [f"\x1b[?{number}l" for number in off] + [f"\x1b[?{number}h" for number in on]
    return "".join(parts).encode()


@contextlib.contextmanager
def ending_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP become `Ended`, so that something can be done about the job first."""
    handlers = {number: signal.signal(number, _end) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def write(target: int, data: bytes) -> None:
    """All of it; a side that is gone is not written to."""
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
    """As a shell says it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _attributes() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    raise Ended(number)
