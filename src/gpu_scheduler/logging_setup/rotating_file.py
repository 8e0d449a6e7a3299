"""A log file that rotates by size and survives a full disk.

Lines come in; the file contains only whole lines. The launcher imports this module, so that it
uses only light modules of the standard library.
"""

from __future__ import annotations

import _thread
import json
import os
import time

MAX_BYTES = 10 << 20
BACKUPS = 3
PRIVATE = 0o600
_STANDARD_STREAMS = (1, 2)


class RotatingFile:
    """One file, rotated to `.1`, `.2` and so on. With `take_stderr` it also gets crash reports.

    `lost` counts lines lost since the last successful write.
    """

    def __init__(
        self,
        path: str,
        *,
        max_bytes: int = MAX_BYTES,
        backups: int = BACKUPS,
        take_stderr: bool = False,
    ) -> None:
        """Open or create the file; raises OSError."""
        self.path = path
        self.lost = 0
        self._max_bytes = max_bytes
        self._backups = backups
        self._take_stderr = take_stderr
        self._lock = _thread.allocate_lock()
        self._is_torn = False
        self._last_error = ""
        self._file = self._open()

    def write(self, line: str) -> None:
        """Append a line, given without its newline. Never raises."""
        data = line.encode("utf-8", "backslashreplace").replace(b"\n", b"\\n") + b"\n"
        with self._lock:
            try:
                self._rotate_if_full(len(data))
                self._append(self._loss_report() + data)
            except OSError as error:
                self._last_error = error.strerror or str(error)
                self.lost += 1
            else:
                self.lost = 0

    def close(self) -> None:
        """Close the file; standard error may still use it."""
        with self._lock:
            os.close(self._file)

    def _append(self, data: bytes) -> None:
        """Write the data. After a partial write the next write begins a new line."""
        if self._is_torn:
            data = b"\n" + data
        written = os.write(self._file, data)
        self._is_torn = written < len(data) and (self._is_torn or written > 0)
        if written < len(data):
            raise OSError(0, "no space for a whole line")

    def _loss_report(self) -> bytes:
        if not self.lost:
            return b""
        line = format_line("WARNING", "logging", f"{self.lost} lines lost: {self._last_error}")
        return line.encode() + b"\n"

    def _rotate_if_full(self, size: int) -> None:
        used = os.fstat(self._file).st_size
        if used and used + size > self._max_bytes:
            try:
                self._rotate()
            except OSError as error:
                # Keep growing instead of losing lines.
                self._last_error = error.strerror or str(error)

    def _rotate(self) -> None:
        if not self._backups:
            os.ftruncate(self._file, 0)
            return
        for number in range(self._backups - 1, 0, -1):
            older = f"{self.path}.{number}"
            if os.path.exists(older):  # noqa: PTH110
                os.replace(older, f"{self.path}.{number + 1}")  # noqa: PTH105
        os.replace(self.path, f"{self.path}.1")  # noqa: PTH105
        old, self._file = self._file, self._open()
        self._is_torn = False
        os.close(old)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self.path, flags, PRIVATE)
        if self._take_stderr:
            for number in _STANDARD_STREAMS:
                os.dup2(file, number)
        return file


def format_line(level: str, logger: str, message: str, **fields: object) -> str:
    """One JSON line in the format of all our processes."""
    now = time.time()
    second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    line = {
        "timestamp": f"{second}.{int(now % 1 * 1_000_000):06d}Z",
        "level": level,
        "logger": logger,
        "thread": "MainThread",
        "message": message,
    }
    return json.dumps(line | fields, ensure_ascii=False, default=str)
