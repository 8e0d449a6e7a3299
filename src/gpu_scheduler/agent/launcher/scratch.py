"""The directory that a job shares with the launcher: checkpoint file, stop reason, script.

It belongs to the job's user, and the launcher may be root: so nothing here follows a link that the
user could have put there.
"""

from __future__ import annotations

import os
import time

from gpu_scheduler.agent.launcher.spares import Spares
from gpu_scheduler.agent.work import Work

STOP_FILE = "stop-reason"
CHECKPOINT_FILE = "checkpoint"
_TERMINAL = ("terminal_host.py", "terminal_use.py", "terminal.sock")
_SESSION = ("shim.py", "end.json", "end.json.new", "tmux.sock")
_GANG = ("hostfile", "machinefile")
_KNOWN = frozenset({STOP_FILE, CHECKPOINT_FILE, "script", *_SESSION, *_TERMINAL, *_GANG})
_PRIVATE = 0o700
_DAY_NS = 86_400 * 10**9
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def make(work: Work, files: dict[str, str], spares: Spares) -> None:
    """Make the directory for the job's user alone, with these files in it."""
    path = work.scratch_dir
    if not spares.take(path, work.uid) and _made(path) and not files and os.geteuid() == work.uid:
        return
    directory = os.open(path, _DIRECTORY)
    try:
        found = os.fstat(directory)
        if found.st_mode & 0o7777 != _PRIVATE:
            os.fchmod(directory, _PRIVATE)
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (work.uid, work.gid):
            os.fchown(directory, work.uid, work.gid)
        for name, text in files.items():
            _write(directory, name, text, work, 0o700)
    finally:
        os.close(directory)


def add(work: Work, files: dict[str, str]) -> None:
    """Write files into a directory that was made before, in place of those of these names."""
    directory = os.open(work.scratch_dir, _DIRECTORY)
    try:
        for name, text in files.items():
            _write(directory, name, text, work, 0o600)
    finally:
        os.close(directory)


def _made(path: str) -> bool:
    """Make the directory; False if it is there already."""
    try:
        os.mkdir(path, _PRIVATE)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, _PRIVATE)
    except FileExistsError:
        return False
    return True


def write_stop_reason(work: Work, why: str) -> None:
    """Tell the job why it is being stopped. A job that broke its directory goes without."""
    if not work.scratch_dir:
        return
    try:
        directory = os.open(work.scratch_dir, _DIRECTORY)
    except OSError:
        return
    try:
        _write(directory, STOP_FILE, why + "\n", work, 0o600)
    except OSError:
        return
    finally:
        os.close(directory)


def checkpoint_time(work: Work) -> int:
    """When the job last touched its checkpoint file, in nanoseconds; 0 if never.

    The user can set any time: one that is still to come by far says nothing.
    """
    try:
        touched = os.lstat(f"{work.scratch_dir}/{CHECKPOINT_FILE}").st_mtime_ns
    except OSError:
        return 0
    return touched if touched < time.time_ns() + _DAY_NS else 0


def clear(path: str, spares: Spares) -> None:
    """Take the directory away, or keep it for others if only our own files were in it."""
    try:
        directory = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        if _emptied(directory):
            spares.keep(path, directory)
        else:
            spares.drop(path)
    finally:
        os.close(directory)


def _emptied(directory: int) -> bool:
    """Remove our own files; False if there is more."""
    try:
        names = os.listdir(directory)
        for name in names:
            if name in _KNOWN:
                os.unlink(name, dir_fd=directory)
    except OSError:
        return False
    return _KNOWN.issuperset(names)


def read_small(path: str) -> str:
    """A small file that the job's user wrote; "" if there is none, or something else is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _write(directory: int, name: str, text: str, work: Work, mode: int) -> None:
    fresh = f".{name}.{os.urandom(4).hex()}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
    file = os.open(fresh, flags, mode, dir_fd=directory)
    try:
        view = memoryview(text.encode(errors="surrogateescape"))
        while view:
            view = view[os.write(file, view) :]
        if os.geteuid() == 0:
            os.fchown(file, work.uid, work.gid)
    except OSError:
        os.unlink(fresh, dir_fd=directory)
        raise
    finally:
        os.close(file)
    os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
