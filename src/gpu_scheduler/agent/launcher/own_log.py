"""The launcher's own log: lines of JSON, rotated, lost rather than waited for on a full disk."""

from __future__ import annotations

import os
import sys
import traceback

from gpu_scheduler.diary.files import LineFile, say

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
