"""A full-screen terminal: keys in, lines out; the terminal is restored at the end.

Only changed lines are written, which is fast over slow connections. SIGTERM and SIGHUP raise
`Ended`, Ctrl-Z restores the terminal until `fg`, and a change of the window size is seen at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from gpu_scheduler.cli.interactive.terminal import Ended, window_size

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_S = 0.05
"""Bytes that follow an Escape within this time belong to it: slow connections split key codes."""
KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[C": "right",
    b"\x1bOC": "right",
    b"\x1b[D": "left",
    b"\x1bOD": "left",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1bOH": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1bOF": "end",
    b"\x1bOP": "?",
    b"\x1b[11~": "?",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x0c": "redraw",
    b"\x02": "page-up",
    b"\x06": "page-down",
    b"\x04": "q",
}


class Screen:
    """A context manager. `keys` waits for input, `draw` shows lines."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wake, self._note = os.pipe()

    def __enter__(self) -> Screen:
        for descriptor in (self._wake, self._note):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._note, warn_on_full_buffer=False)
        for number, handler in (
            (signal.SIGTERM, _end),
            (signal.SIGHUP, _end),
            (signal.SIGTSTP, self._suspend),
            (signal.SIGCONT, self._resume),
            (signal.SIGWINCH, self._on_resize),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._before = termios.tcgetattr(0)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._note)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return window_size()

    def keys(self, wait_s: float) -> list[str]:
        """The keys that were pressed; empty after `wait_s`, or when the window size changed."""
        ready, _, _ = select.select([0, self._wake], [], [], max(0.0, wait_s))
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if 0 not in ready:
            return []
        data = os.read(0, 1024)
        if not data:
            raise Ended(signal.SIGHUP)
        if data.endswith(b"\x1b") and select.select([0], [], [], _ESCAPE_S)[0]:
            data += os.read(0, 1024)
        return list(split_keys(data))

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, one for each row of the window."""
        parts = []
        for row, line in enumerate(lines):
            if row >= len(self._shown) or self._shown[row] != line:
                parts.append(f"\x1b[{row + 1};1H\x1b[2K{line}\x1b[0m")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        if parts:
            _write("".join(parts).encode(sys.stdout.encoding or "utf-8", "replace"))
        self._shown = list(lines)

    def clear(self) -> None:
        """Clear the screen; the next `draw` writes all lines."""
        self._shown = []
        _write(b"\x1b[2J")

    def _on_resize(self, *_: object) -> None:
        self.clear()

    def _enter(self) -> None:
        tty.setcbreak(0, termios.TCSADRAIN)
        _write(_ENTER)
        self._shown = []

    def _restore(self) -> None:
        _write(_LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._restore()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # The process is stopped here until SIGCONT.
        signal.signal(number, self._suspend)

    def _resume(self, *_: object) -> None:
        self._enter()


def split_keys(data: bytes) -> Iterator[str]:
    """Key codes and characters, by name."""
    place = 0
    while place < len(data):
        code = next(
            (data[place : place + n] for n in (5, 4, 3) if data[place : place + n] in KEYS), b""
        )
        if not code and data[place : place + 1] == b"\x1b" and place + 1 < len(data):
            # An unknown key: skip the whole sequence.
            place = _sequence_end(data, place + 1)
            continue
        if not code:
            code = _character(data, place)
        place += len(code)
        named = KEYS.get(code)
        text = named or code.decode("utf-8", "ignore")
        if text and (named or text.isprintable()):
            yield text


def _sequence_end(data: bytes, place: int) -> int:
    if data[place : place + 1] not in (b"[", b"O"):
        return place + 1
    place += 1
    while place < len(data) and not 0x40 <= data[place] <= 0x7E:
        place += 1
    return place + 1


def _character(data: bytes, place: int) -> bytes:
    first = data[place]
    length = 1 + (first >= 0xC0) + (first >= 0xE0) + (first >= 0xF0)
    return data[place : place + length]


def _write(data: bytes) -> None:
    """Write all data; a closed terminal is ignored."""
    with contextlib.suppress(OSError):
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    raise Ended(number)
