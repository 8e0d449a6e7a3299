"""Log files of jobs: opened for appending, capped by size, never in a job's way.

Jobs write to the file directly, so the launcher's death cannot break them. Because they append,
the file can be copied and cut while they write; what comes in between the copy and the cut
(microseconds) is lost. A file that the user named is opened by the user, and never cut.
"""

from __future__ import annotations

import os
import sys
import traceback

from gpu_scheduler.agent.work import Work
from gpu_scheduler.logging_setup.rotating_file import LineFile, say

_CHUNK = 1 << 20
_COPY = ".copy"


def open_log(work: Work) -> int:
    """A descriptor for the job's output; -1 if there is no file to open here."""
    if not work.log_path or work.log_of_user:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        return os.open(work.log_path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(work.log_path), mode=0o700, exist_ok=True)
        return os.open(work.log_path, flags, 0o600)


def note(work: Work, text: str) -> None:
    """A line of ours in the log. A disk that is full costs the line."""
    try:
        file = open_log(work)
    except OSError:
        return
    if file >= 0:
        try:
            os.write(file, text.encode(errors="replace"))
        except OSError:
            return
        finally:
            os.close(file)


def cap(work: Work) -> None:
    """Rotate the log if it has grown past its size. A full disk: the old part is given up."""
    if not work.log_max_bytes or not work.log_path or work.log_of_user:
        return
    try:
        if os.stat(work.log_path).st_size <= work.log_max_bytes:
            return
        file = os.open(work.log_path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        copied = work.log_files > 0 and _copied(file, work)
        if copied:
            _move_on(work)
        # Whoever reads along sees the new .1 only when the log is cut, and so nothing twice.
        os.ftruncate(file, 0)
        if copied:
            os.replace(f"{work.log_path}{_COPY}", f"{work.log_path}.1")
    except OSError:
        return
    finally:
        os.close(file)


def last_line(work: Work) -> str:
    """The last line of the log, for a message about what went wrong.

    Not of a file that the user named: we might read it with more rights than the user has.
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


def _copied(file: int, work: Work) -> bool:
    """Copy the log beside itself; of one that grows too fast only the newest bytes."""
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


def _move_on(work: Work) -> None:
    """Shift .1 to .2 and so on."""
    for number in range(work.log_files - 1, 0, -1):
        try:
            os.replace(f"{work.log_path}.{number}", f"{work.log_path}.{number + 1}")
        except OSError:
            continue


# --- The launcher's own log: lines of JSON, rotated, lost rather than waited for on a full disk.

LOG = "launcher.log"
LOGGER = "launcher"


class OwnLog:
    """Before it is opened, lines go to standard error."""

    def __init__(self) -> None:
        self._file: LineFile | None = None

    def open(self, directory: str) -> None:
        """From now on write to the file of this directory, to which crashes go as well."""
        try:
            self._file = LineFile(os.path.join(directory, LOG), take_stderr=True)
        except OSError as error:
            self.warn(f"the log cannot be opened: {error}")

    def warn(self, message: str) -> None:
        """Something to look at."""
        self._write(say("WARNING", LOGGER, message))

    def fail(self, error: BaseException) -> None:
        """A mistake of ours, with all that led to it."""
        told = "".join(traceback.format_exception(error))
        self._write(say("ERROR", LOGGER, f"a part failed: {error!r}", exception=told))

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line)
            return
        try:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except OSError:
            return


own_log = OwnLog()
