"""Scratch directories: what a job shares with the launcher, and a pool of empty ones.

A scratch directory holds the checkpoint file, the stop reason and the script. It belongs to the
job's user, and the launcher may be root: so nothing here follows a link that the user could have
put there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from gpu_scheduler.agent.launcher.directory_removal import DirectoryRemoval
from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.launcher_protocol import Saved, Work
from gpu_scheduler.agent.runners import rootless

STOP_FILE = "stop-reason"
CHECKPOINT_FILE = "checkpoint"
_TERMINAL_FILES = ("terminal_host.py", "terminal_use.py", "terminal.sock")
_SESSION_FILES = ("shim.py", "end.json", "end.json.new", "tmux.sock")
_GANG_FILES = ("hostfile", "machinefile")
_OWN_FILES = frozenset(
    {STOP_FILE, CHECKPOINT_FILE, "script", *_SESSION_FILES, *_TERMINAL_FILES, *_GANG_FILES}
)
_PRIVATE = 0o700
_DAY_NS = 86_400 * 10**9
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FREE_PREFIX = "spare-"
"""Names of work contain a dot, so none of them looks like this."""
DISCARDED_PREFIX = "gone-"
"""Names directories to remove; those of a launcher that has died are found by it."""
MAX_FREE = 64
_ACL_ATTRIBUTES = frozenset({"system.posix_acl_access", "system.posix_acl_default"})


def make(work: Work, files: dict[str, str], pool: DirectoryPool) -> None:
    """Make the directory for the job's user alone, with these files in it."""
    path = work.scratch_dir
    pool.removal.check_limit(work.uid)
    if not pool.take(path, work.uid) and _mkdir(path) and not files and os.geteuid() == work.uid:
        return
    with _opened(path) as directory:
        status = os.fstat(directory)
        if status.st_mode & 0o7777 != _PRIVATE:
            os.fchmod(directory, _PRIVATE)
        if os.geteuid() == 0 and (status.st_uid, status.st_gid) != (work.uid, work.gid):
            os.fchown(directory, work.uid, work.gid)
        for name, text in files.items():
            _write(directory, name, text, work, 0o700)


def add(work: Work, files: dict[str, str]) -> None:
    """Write or replace files in a directory that was made before."""
    with _opened(work.scratch_dir) as directory:
        for name, text in files.items():
            _write(directory, name, text, work, 0o600)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """A descriptor of a directory, for the time of the block."""
    directory = os.open(path, _DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


def _mkdir(path: str) -> bool:
    """Make the directory; False if it already exists."""
    try:
        os.mkdir(path, _PRIVATE)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.mkdir(path, _PRIVATE)
    except FileExistsError:
        return False
    return True


def write_stop_reason(work: Work, why: str) -> None:
    """Write the file that tells the job why it is stopped, if its directory still allows it."""
    if work.scratch_dir:
        with suppress(OSError):
            add(work, {STOP_FILE: why + "\n"})


def checkpoint_time(work: Work) -> int:
    """When the job last touched its checkpoint file, in nanoseconds; 0 if never.

    The user can set any time: one more than a day in the future is ignored.
    """
    try:
        touched = os.lstat(f"{work.scratch_dir}/{CHECKPOINT_FILE}").st_mtime_ns
    except OSError:
        return 0
    return touched if touched < time.time_ns() + _DAY_NS else 0


def clear(path: str, pool: DirectoryPool) -> None:
    """Give the directory to the pool if it holds only the launcher's files, else discard it."""
    try:
        directory = os.open(path, _DIRECTORY)
    except OSError:
        return
    try:
        if _empty(directory):
            pool.keep(path, directory)
        else:
            pool.discard(path)
    finally:
        os.close(directory)


def _empty(directory: int) -> bool:
    """Remove the launcher's files; False if there are others."""
    try:
        names = os.listdir(directory)
        for name in names:
            if name in _OWN_FILES:
                os.unlink(name, dir_fd=directory)
    except OSError:
        return False
    return _OWN_FILES.issuperset(names)


def read_small(path: str) -> str:
    """Read a small file that the job's user wrote; "" if there is no such file."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.read(descriptor, 4096).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""


def read_podman_file(work: Work, name: str) -> str | None:
    """Read a small file of podman's state, which the job's user could have replaced by links.

    None if there is no such file.
    """
    with suppress(OSError), _opened(work.scratch_dir) as scratch:
        state = os.open(rootless.STATE, _DIRECTORY, dir_fd=scratch)
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=state)
            try:
                return os.read(file, 4096).decode(errors="replace")
            finally:
                os.close(file)
        finally:
            os.close(state)
    return None


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


def new_checkpoint(attempt: Attempt) -> Saved | None:
    """The report if the job has touched its checkpoint file since the last call."""
    touched = checkpoint_time(attempt.work) if attempt.work.scratch_dir else 0
    if touched <= attempt.checkpoint_ns:
        return None
    attempt.checkpoint_ns = touched
    return saved_report(attempt)


def saved_report(attempt: Attempt) -> Saved:
    """When the job last touched its checkpoint file."""
    return Saved(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        at_ms=attempt.checkpoint_ns // 1_000_000,
    )


class DirectoryPool:
    """Empty scratch directories of finished work, for the next work of the same user.

    Two renames replace making and removing a directory, which costs milliseconds on a journalling
    file system: 3.5 ms for a removal alone, measured on ext4. Only empty directories are kept, and
    each serves only its owner. Others are given to `removal`.
    """

    def __init__(self, removal: DirectoryRemoval) -> None:
        self.removal = removal
        self._free: dict[tuple[str, int], list[str]] = {}
        self._homes: set[str] = set()
        self._count = 0
        self._number = 0

    def take(self, path: str, uid: int) -> bool:
        """Rename a free directory of the user to this path; False if there is none."""
        home = os.path.dirname(path)
        self._adopt_old(home)
        free = self._free.get((home, uid), [])
        while free:
            self._count -= 1
            with suppress(OSError):
                os.rename(free.pop(), path)
                return True
        return False

    def keep(self, path: str, directory: int) -> None:
        """Keep an empty directory, open as `directory`; discard it if it cannot be kept."""
        is_wanted = self._count < MAX_FREE and not _has_acl(directory)
        free = self._rename(path, FREE_PREFIX) if is_wanted else ""
        if not free:
            self.discard(path)
            return
        self._count += 1
        owner = (os.path.dirname(path), os.fstat(directory).st_uid)
        self._free.setdefault(owner, []).append(free)

    def discard(self, path: str) -> None:
        """Remove a directory with everything in it, soon."""
        try:
            uid = os.lstat(path).st_uid
        except OSError:
            return
        self.removal.add(uid, self._rename(path, DISCARDED_PREFIX) or path)

    def _rename(self, path: str, prefix: str) -> str:
        """Rename a directory in its place; returns the new path, or "" if that failed."""
        home = os.path.dirname(path)
        self._adopt_old(home)
        self._number += 1
        renamed = f"{home}/{prefix}{self._number}"
        try:
            os.rename(path, renamed)
        except OSError:
            return ""
        return renamed

    def clear(self) -> None:
        """Remove all free directories, when the launcher exits.

        Discarded ones are removed by a child, which may outlive us.
        """
        for free in self._free.values():
            for path in free:
                with suppress(OSError):
                    os.rmdir(path)
        self._free.clear()
        self.removal.flush()

    def _adopt_old(self, home: str) -> None:
        """Take over the directories of a former launcher."""
        if home in self._homes:
            return
        self._homes.add(home)
        try:
            names = os.listdir(home)
        except OSError:
            return
        for name in names:
            kind, _, number = name.partition("-")
            prefix = f"{kind}-"
            if prefix not in (FREE_PREFIX, DISCARDED_PREFIX) or not number.isdecimal():
                continue
            self._number = max(self._number, int(number))
            path = f"{home}/{name}"
            try:
                uid = os.lstat(path).st_uid
            except OSError:
                continue
            if prefix == DISCARDED_PREFIX:
                self.removal.add(uid, path)
                continue
            self._count += 1
            self._free.setdefault((home, uid), []).append(path)


def _has_acl(directory: int) -> bool:
    """Users whom an access list lets in must not get into the next job's directory."""
    try:
        return not _ACL_ATTRIBUTES.isdisjoint(os.listxattr(directory))
    except OSError:
        return False
