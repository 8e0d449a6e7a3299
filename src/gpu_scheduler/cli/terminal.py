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
import struct
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import Any

from gpu_scheduler.cli.ways import Way
from gpu_scheduler.model.errors import WrongState

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
