"""Disk space that only the store can use, so that commands which end work succeed on a full disk.

The blocks are preallocated behind the end of SQLite's log (`-wal`), where the next commits go. No
other process can take them, unlike the space of a deleted file. Whether the disk is full comes out:
the control loop then accepts only commands that need few blocks and help to free space.

File systems that cannot preallocate (NFS, for example) have no reserve; that is no error.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 16 << 20
"""Some hundred commits."""
LARGEST_PART = 16
"""The reserve takes at most this part of a small disk."""
FULL_BELOW_BYTES = 8 << 20
FULL_BELOW_PART = 64
_KEEP_SIZE = 1
_SHM_BYTES = 64 << 10
"""SQLite's index of its log, for 8,000 pages: as many as the reserve and a usual log have."""
KIB = 1 << 10


class SpaceReserve:
    """The preallocated part of the log of one SQLite file."""

    def __init__(self, path: Path) -> None:
        """Reserve nothing yet."""
        self._path = path.resolve()
        self._log = Path(f"{self._path}-wal")
        self._index = Path(f"{self._path}-shm")
        self._end = 0
        self._size = 0

    def renew(self) -> None:
        """Extend the reserve after the log has grown. Call it with the file open, after commits."""
        try:
            size = self._log.stat().st_size
            disk = os.statvfs(self._path.parent)
        except OSError:
            return
        if size < self._size:
            self._end = 0  # SQLite has truncated the log, and the reserve with it
        self._size = size
        wanted = min(RESERVE_BYTES, disk.f_blocks * disk.f_frsize // LARGEST_PART)
        if self._end - size > wanted * 3 // 4 or _free_bytes(disk) < 2 * wanted:
            return
        self._end = size + wanted
        with suppress(OSError):
            # SQLite takes no locks on its log; closing a descriptor of it therefore drops none.
            log = os.open(self._log, os.O_WRONLY | os.O_NOFOLLOW)
            try:
                _preallocate(log, _KEEP_SIZE, self._end)
            finally:
                os.close(log)
        self._extend_index()

    def full_reason(self) -> str:
        """Why nothing should be written but what ends work; empty while the disk has space."""
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return ""
        free = _free_bytes(disk)
        if free >= min(FULL_BELOW_BYTES, disk.f_blocks * disk.f_frsize // FULL_BELOW_PART):
            return ""
        return (
            f"the disk is full: {free // KIB:,} KiB are free at {self._path.parent}; free some "
            "space. Until then no job starts; cancel, hold, drain, cordon and pause still work"
        )

    def _extend_index(self) -> None:
        """Extend the index by SQLite's own descriptor: closing another would drop its locks."""
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if descriptor.readlink() == self._index and self._index.stat().st_size < _SHM_BYTES:
                    _preallocate(int(descriptor.name), 0, _SHM_BYTES)


def _free_bytes(disk: os.statvfs_result) -> int:
    """What `df` shows. `f_bfree` also counts blocks that ext4 keeps back even from root."""
    return disk.f_bavail * disk.f_frsize


def _preallocate(file: int, mode: int, size: int) -> None:
    """Call fallocate(2); posix_fallocate would write zeros where it is not supported."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    if call(file, mode, 0, size):
        raise OSError(ctypes.get_errno(), "fallocate")
