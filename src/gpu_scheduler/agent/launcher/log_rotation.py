"""Log files of jobs, rotated by size, and the launcher's own log.

Jobs append to their file directly, so a launcher that dies does not break them, and the file can be
copied and truncated while they write; what they write between copy and truncation (microseconds)
is lost. A file that the user named is opened by the user, and never rotated.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.logging_setup.rotating_file import RotatingFile, format_line

_CHUNK = 1 << 20
_COPY = ".copy"
LAUNCHER_LOG = "launcher.log"
LOGGER = "launcher"


def open_log(work: Work) -> int:
    """Open the log for the job's output; -1 if the launcher has no file to open."""
    if not work.log_path or work.log_of_user:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        return os.open(work.log_path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(work.log_path), mode=0o700, exist_ok=True)
        return os.open(work.log_path, flags, 0o600)


def append_note(work: Work, text: str) -> None:
    """Write a line of the launcher into the job's log. On a full disk the line is lost."""
    with suppress(OSError):
        file = open_log(work)
        if file >= 0:
            try:
                os.write(file, text.encode(errors="replace"))
            finally:
                os.close(file)


def rotate(work: Work) -> None:
    """Rotate the log if it is larger than its limit. On a full disk its old part is lost."""
    if not work.log_max_bytes or not work.log_path or work.log_of_user:
        return
    try:
        if os.stat(work.log_path).st_size <= work.log_max_bytes:
            return
        file = os.open(work.log_path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        copied = work.log_files > 0 and _copy(file, work)
        for number in range(work.log_files - 1, 0, -1) if copied else ():
            with suppress(OSError):
                os.replace(f"{work.log_path}.{number}", f"{work.log_path}.{number + 1}")
        # The new .1 appears only after the truncation, so that a reader sees nothing twice.
        os.ftruncate(file, 0)
        if copied:
            os.replace(f"{work.log_path}{_COPY}", f"{work.log_path}.1")
    except OSError:
        return
    finally:
        os.close(file)


def last_line(work: Work) -> str:
    """The last line of the log, for a message about what went wrong.

    Not of a file that the user named: the launcher may have more rights than the user.
    """
    if work.log_of_user:
        return ""
    try:
        file = os.open(work.log_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        size = os.fstat(file).st_size
        text = os.pread(file, 4096, max(0, size - 4096)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(file)
    return text.rstrip().rpartition("\n")[2].strip()[:500]


def _copy(file: int, work: Work) -> bool:
    """Copy the log beside itself; only the newest part of a log that grows too fast."""
    path = f"{work.log_path}{_COPY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        old = os.open(path, flags, 0o600)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        offset = max(0, size - 2 * work.log_max_bytes)
        while offset < size:
            part = os.pread(file, min(_CHUNK, size - offset), offset)
            if not part:
                break
            offset += os.write(old, part)
    except OSError:
        os.unlink(path)
        return False
    finally:
        os.close(old)
    return True


class LauncherLog:
    """The launcher's own log: lines of JSON, rotated; on a full disk lines are lost.

    Before it is opened, lines go to standard error.
    """

    def __init__(self) -> None:
        self._file: RotatingFile | None = None

    def open(self, directory: str) -> None:
        """From now on write to the file in this directory, and let crashes go there as well."""
        try:
            self._file = RotatingFile(os.path.join(directory, LAUNCHER_LOG), take_stderr=True)
        except OSError as error:
            self.warning(f"the log cannot be opened: {error}")

    def warning(self, message: str) -> None:
        self._write(format_line("WARNING", LOGGER, message))

    def error(self, error: BaseException) -> None:
        """Write an unexpected exception, with its traceback."""
        trace = "".join(traceback.format_exception(error))
        self._write(format_line("ERROR", LOGGER, f"unexpected error: {error!r}", exception=trace))

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line)
            return
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


launcher_log = LauncherLog()
