"""This terminal and that of a job, joined: keys go there, output comes here.

A socket of `agent/runners/terminal_host.py` comes in; how the program at its other end ended goes
out, or that the person left. Whatever happens, this terminal is as before afterwards.
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
import struct
import sys
import termios
import time
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Any

from gpu_scheduler.model.errors import ClusterError, WrongState

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


def connect(path: str, *, patience_s: float = 0.0) -> socket.socket:
    """The socket of a job; one that is not there yet is waited for a little."""
    give_up = time.monotonic() + patience_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if error.errno not in (errno.ENOENT, errno.ECONNREFUSED):
                raise ClusterError(
                    f"cannot open the terminal at {path}: {error.strerror or error}; it is open to "
                    "the job's user on the job's node"
                ) from error
            if time.monotonic() > give_up:
                raise WrongState(f"there is no terminal at {path}; has the job ended?") from error
            time.sleep(0.05)
        else:
            return connection


class Link:
    """One conversation. `attach` and `start` return the wait status, None if it broke off."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
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
        self._open({"mode": "attach", "rows": rows, "columns": columns})
        with raw_terminal(self._modes, self._note_size):
            return self._copy()

    def start(self, argv: list[str], *, terminal: bool, directory: str) -> int | None:
        """Run another program inside the job."""
        rows, columns = window()
        asked = {
            "mode": "start",
            "argv": argv,
            "terminal": terminal,
            "directory": directory,
            "rows": rows,
            "columns": columns,
            "term": os.environ.get("TERM", ""),
        }
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
            if not self._hear():
                raise WrongState("the job ended at this moment")

    def _note_size(self, *_: object) -> None:
        self._resized = True

    def _copy(self) -> int | None:
        """Until the end, or until the other side is gone."""
        wake, note = os.pipe()
        os.set_blocking(note, False)
        before = signal.set_wakeup_fd(note, warn_on_full_buffer=False)
        sources: list[int] = [self._connection.fileno(), wake, 0]
        try:
            while True:
                status = self._show()
                if status is not None:
                    return status
                ready, _, _ = select.select(sources, [], [])
                if wake in ready:
                    os.read(wake, 4096)
                if self._resized:
                    self._resized = False
                    self._say(b"w", SIZE.pack(*window()))
                if 0 in ready and not self._type():
                    sources.remove(0)
                if self._connection.fileno() in ready and not self._hear():
                    return self._show()
        finally:
            signal.set_wakeup_fd(before)
            os.close(wake)
            os.close(note)

    def _hear(self) -> bool:
        try:
            data = self._connection.recv(PIECE)
        except OSError:
            data = b""
        self._heard += data
        return bool(data)

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
        # The other side may be gone: then its end is what is heard next.
        with contextlib.suppress(OSError):
            self._connection.sendall(HEAD.pack(kind, len(data)) + data)


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
