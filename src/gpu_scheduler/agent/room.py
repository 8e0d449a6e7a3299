"""Room on the disk of a node: without, no work can begin there, whatever it is.

A directory comes in, a reason why nothing can be written there goes out.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

LEAST_BYTES = 4 << 20
LEAST_FILES = 64
"""A job needs a few of each before it runs: its records, its log, its scratch directory."""
TRIED_BYTES = 256 << 10

_DISK_ERRORS = tuple(
    os.strerror(number).lower() for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
)


def is_about_disk(detail: str) -> bool:
    """Tell whether an error may come from a disk that is full or broken, be it which it may."""
    said = detail.lower()
    return any(one in said for one in _DISK_ERRORS)


def trouble(directory: Path, *, is_suspect: bool) -> str:
    """Why nothing can be written; empty if it can. Where it is suspect, that is tried."""
    try:
        free = os.statvfs(directory)
        if free.f_bavail * free.f_frsize < LEAST_BYTES:
            return f"the disk of {directory} is full: less than {LEAST_BYTES >> 20} MiB are free"
        if free.f_files and free.f_favail < LEAST_FILES:
            return f"the disk of {directory} is full: it can hold no more files"
        if is_suspect:
            _try_to_write(directory)
    except OSError as error:
        return f"nothing can be written to {directory}: {error.strerror}"
    return ""


def _try_to_write(directory: Path) -> None:
    """As a job would; nothing of it stays."""
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(TRIED_BYTES))
        file.flush()
        os.fsync(file.fileno())
