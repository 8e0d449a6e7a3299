"""A log file that rotates by size and outlives a full disk.

Lines come in, whole lines stand in the file. Only what every Python has is used here, as the
launcher stays small.
"""

from __future__ import annotations

import _thread
import json
import os
import time

MOST_BYTES = 10 << 20
BACKUPS = 3
PRIVATE = 0o600
_STANDARD = (1, 2)


class LineFile:
    """One file, rotated to `.1`, `.2` and so on. With `take_stderr`, it is where crashes go too.

    `lost` counts lines that could not be written since the last that could, `lost_ever` all.
    """

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int = MOST_BYTES,
        backups: int = BACKUPS,
        take_stderr: bool = False,
    ) -> None:
        """Open the file, or make it; raises OSError if that cannot be done."""
        self.path = path
        self.lost = 0
        self.lost_ever = 0
        self._max_bytes = max_bytes
        self._backups = backups
        self._take_stderr = take_stderr
        self._lock = _thread.allocate_lock()
        self._torn = False
        self._why = ""
        self._file = self._opened()

    def write(self, line: str) -> None:
        """Add a line, without its end. Never raises."""
        data = line.encode("utf-8", "backslashreplace").replace(b"\n", b"\\n") + b"\n"
        with self._lock:
            try:
                self._make_room(len(data))
                self._put(self._excuse() + data)
            except OSError as error:
                self._why = error.strerror or str(error)
                self.lost += 1
                self.lost_ever += 1
            else:
                self.lost = 0

    def close(self) -> None:
        """Let go of the file; standard error keeps it."""
        with self._lock:
            os.close(self._file)

    def _put(self, data: bytes) -> None:
        """All of it, or the file is torn: what comes next begins a new line."""
        if self._torn:
            data = b"\n" + data
        written = os.write(self._file, data)
        self._torn = written < len(data) and (self._torn or written > 0)
        if written < len(data):
            raise OSError(0, "the disk has no room for a whole line")

    def _excuse(self) -> bytes:
        if not self.lost:
            return b""
        told = say("WARNING", "diary", f"{self.lost} lines were lost here: {self._why}")
        return told.encode() + b"\n"

    def _make_room(self, size: int) -> None:
        has = os.fstat(self._file).st_size
        if has and has + size > self._max_bytes:
            try:
                self._rotate()
            except OSError as error:
                # It grows on rather than to lose what is said.
                self._why = error.strerror or str(error)

    def _rotate(self) -> None:
        if not self._backups:
            os.ftruncate(self._file, 0)
            return
        for number in range(self._backups - 1, 0, -1):
            older = f"{self.path}.{number}"
            if os.path.exists(older):  # noqa: PTH110
                os.replace(older, f"{self.path}.{number + 1}")  # noqa: PTH105
        os.replace(self.path, f"{self.path}.1")  # noqa: PTH105
        old, self._file = self._file, self._opened()
        self._torn = False
        os.close(old)

    def _opened(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self.path, flags, PRIVATE)
        if self._take_stderr:
            for number in _STANDARD:
                os.dup2(file, number)
        return file


def say(level: str, logger: str, message: str, **fields: object) -> str:
    """One line, as all our processes write it."""
    now = time.time()
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    line = {
        "timestamp": f"{moment}.{int(now % 1 * 1_000_000):06d}Z",
        "level": level,
        "logger": logger,
        "thread": "MainThread",
        "message": message,
    }
    return json.dumps(line | fields, ensure_ascii=False, default=str)
