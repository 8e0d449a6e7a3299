"""Directories like those of a vanished file server: every access blocks."""

import contextlib
import ctypes
import os
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher_rig import AS_ROOT

_IN = struct.Struct("=IIQQIIII")
"""The header of every request of the kernel: length, kind, number, node, uid, gid, pid."""
_INIT = 26
_INIT_ANSWER = struct.Struct("=IiQ IIIIHHIIHH8I")


@contextlib.contextmanager
def _mounted(place: Path) -> Iterator[int]:
    if not AS_ROOT or not os.path.exists("/dev/fuse"):  # noqa: PTH110
        pytest.skip("needs root and /dev/fuse")
    place.mkdir()
    side = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={side},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"hangs", str(place).encode(), b"fuse", 0, options):
        os.close(side)
        pytest.skip(f"cannot mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield side
    finally:
        subprocess.run(["umount", "-f", "-l", place], check=False)
        with contextlib.suppress(OSError):
            os.close(side)


@contextlib.contextmanager
def hanging_directory(place: Path) -> Iterator[Path]:
    """Every access to it blocks, and can be killed."""
    with _mounted(place):
        yield place


class Stuck:
    """A directory whose file server never answers: a process that waits cannot be killed."""

    def __init__(self, place: Path, side: int) -> None:
        self.place = place
        self.is_entered = threading.Event()
        self._side = side
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        number = _IN.unpack_from(os.read(self._side, 1 << 17))[2]
        answer = (_INIT_ANSWER.size, 0, number, 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0)
        os.write(self._side, _INIT_ANSWER.pack(*answer, *([0] * 8)))
        with contextlib.suppress(OSError):
            os.read(self._side, 1 << 17)
            self.is_entered.set()

    def let_go(self) -> None:
        """The file server is gone for good: all requests fail."""
        subprocess.run(["umount", "-f", "-l", self.place], check=True)


@contextlib.contextmanager
def stuck_directory(place: Path) -> Iterator[Stuck]:
    """The first process that accesses it cannot even be killed."""
    with _mounted(place) as side:
        yield Stuck(place, side)
