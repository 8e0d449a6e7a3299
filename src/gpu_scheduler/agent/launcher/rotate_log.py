"""Rotate one log: `python -I -S rotate_log.py PATH MAX_BYTES FILES`, a child of the launcher.

To copy and to truncate a log takes as long as the log is large, so the launcher does neither. The
log is copied to `.1` (older ones are renamed) and truncated while the job appends to it. The copy
continues until it has caught up with the job, so only what is written in the microseconds before
the truncation is lost; of a job that writes faster than its log is copied, the rest is lost. A
log that has grown to eight times its limit is cut: an eighth of the limit is kept of it, because
the copies of several such logs would take longer than their jobs need to fill the disk.

Only the standard library is imported, and nothing but `os` and `sys`: the child starts in 10 ms.
The arguments never change, since a launcher may be older than this file.
"""

from __future__ import annotations

import os
import sys

_CHUNK = 1 << 20
_COPY = ".copy"
_KEPT = 2
"""A log that is larger than so many times `max_bytes` keeps its newest part."""
_CATCH_UP = 1
"""How many times `max_bytes` are copied beyond that, of a log that grows meanwhile."""
_FLOODED = 8
"""A log that is larger than so many times `max_bytes` grows faster than it can be copied."""
_KEPT_OF_FLOOD = 1 / 8


def rotate(path: str, max_bytes: int, files: int) -> None:
    """Rotate the log if it is larger than its limit. On a full disk its old part is lost."""
    try:
        if os.stat(path, follow_symlinks=False).st_size <= max_bytes:
            return
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        copied = files > 0 and _copy(file, path, max_bytes)
        for number in range(files - 1, 0, -1) if copied else ():
            _rename(f"{path}.{number}", f"{path}.{number + 1}")
        # The new .1 appears only after the truncation, so that a reader sees nothing twice.
        os.ftruncate(file, 0)
        if copied:
            os.replace(f"{path}{_COPY}", f"{path}.1")
    except OSError:
        return
    finally:
        os.close(file)


def _copy(file: int, path: str, max_bytes: int) -> bool:
    """Copy the log beside itself; only the newest part of a log that grows too fast."""
    copy = f"{path}{_COPY}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        old = os.open(copy, flags, 0o600)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        is_flooded = size > _FLOODED * max_bytes
        kept = int(max_bytes * (_KEPT_OF_FLOOD if is_flooded else _KEPT))
        offset = max(0, size - kept)
        end = size if is_flooded else size + _CATCH_UP * max_bytes
        while offset < end:
            part = os.pread(file, min(_CHUNK, end - offset), offset)
            if not part:
                break
            offset += os.write(old, part)
    except OSError:
        os.unlink(copy)
        return False
    finally:
        os.close(old)
    return True


def _rename(old: str, new: str) -> None:
    try:
        os.replace(old, new)
    except OSError:
        return


if __name__ == "__main__":
    os.nice(5)
    rotate(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
