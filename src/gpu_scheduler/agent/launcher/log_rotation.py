"""Log files of jobs, rotated by size, and the launcher's own log.

Jobs append to their file directly, so a launcher that dies does not break them, and `rotate_log`
can copy and truncate the file while they write. A file that the user named is opened by the user,
and never rotated.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

from gpu_scheduler.agent.launcher_protocol import Work
from gpu_scheduler.logging_setup.rotating_file import RotatingFile, format_line

ROTATE_LOG = f"{os.path.dirname(os.path.abspath(__file__))}/rotate_log.py"
ROTATE_TIMEOUT_MS = 60_000
MAX_ROTATIONS = 2
"""Children that copy logs at once: they compete for the disk with everything else."""
_MAX_MESSAGE = 500
LAUNCHER_LOG = "launcher.log"
LOGGER = "launcher"
StartChild = Callable[..., object]
"""Starts a command: (argv, timeout, done, its arguments). Then `done` gets (ok, output) as well."""


def open_log(work: Work) -> int:
    """Open the log for the job's output; -1 if the launcher has no file to open."""
    if not work.log_path or work.log_of_user:
        return -1
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        return os.open(work.log_path, flags, 0o600)
    except FileNotFoundError:
        directory = os.path.dirname(work.log_path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            # The agent reads the group as the uid of the job's user, for the budget of the user's
            # logs. With mode 700 it gives no access. An invalid uid is rejected later.
            with suppress(OSError, OverflowError):
                os.chown(directory, -1, work.uid)
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


def _last_part(work: Work) -> str:
    """The end of the log.

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
    return text.rstrip()


def last_line(work: Work) -> str:
    """The last line of the log, for a message about what went wrong."""
    return _last_part(work).rpartition("\n")[2].strip()[:_MAX_MESSAGE]


def engine_error(work: Work) -> str:
    """What a container engine has written about its failure, on one line; else the last line."""
    _, begin, rest = _last_part(work).rpartition("\nError: ")
    return " ".join((begin + rest).split())[:_MAX_MESSAGE] if begin else last_line(work)


class LogRotation:
    """Rotates logs in child processes: the launcher only looks at the size of each log.

    At most `MAX_ROTATIONS` run at once, and one for each user, so that a user whose jobs flood
    their logs delays neither the launcher nor the rotation of other users' logs for long.
    """

    def __init__(self, start_child: StartChild) -> None:
        self._start_child = start_child
        self._waiting: dict[int, dict[str, Work]] = {}
        self._running: dict[int, str] = {}

    def check(self, work: Work) -> None:
        """Rotate the log soon, if it is larger than its limit."""
        if not work.log_max_bytes or not work.log_path or work.log_of_user:
            return
        if self._running.get(work.uid) == work.log_path:
            return
        try:
            if os.stat(work.log_path, follow_symlinks=False).st_size <= work.log_max_bytes:
                return
        except OSError:
            return
        self._waiting.setdefault(work.uid, {}).setdefault(work.log_path, work)
        self._start()

    def _start(self) -> None:
        """Start children for the users who have waited longest."""
        for uid in [uid for uid in self._waiting if uid not in self._running]:
            if len(self._running) >= MAX_ROTATIONS:
                return
            logs = self._waiting.pop(uid)
            work = logs.pop(next(iter(logs)))
            if logs:
                self._waiting[uid] = logs
            self._running[uid] = work.log_path
            self._start_child(_rotate_command(work), ROTATE_TIMEOUT_MS, self._rotated, uid)

    def _rotated(self, uid: int, ok: bool, output: str) -> None:
        self._running.pop(uid, None)
        if not ok:
            launcher_log.warning(f"a log of uid {uid} could not be rotated: {output}")
        self._start()


def _rotate_command(work: Work) -> tuple[str, ...]:
    limits = (str(work.log_max_bytes), str(work.log_files))
    return (sys.executable, "-I", "-S", ROTATE_LOG, work.log_path, *limits)


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
