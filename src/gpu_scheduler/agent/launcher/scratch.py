"""The directory that a job shares with the launcher: checkpoint file, stop reason, script.

It belongs to the job's user, and the launcher may be root: so nothing here follows a link that the
user could have put there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gpu_scheduler.agent.launcher.lifecycle.attempt import Attempt
from gpu_scheduler.agent.work import Saved, Work

# --- Scratch directories of work that is over, kept for the next work of the same user.
#
# Two renames take the place of making and removing a directory, which on a journalling file system
# costs milliseconds: 3.5 ms for a removal alone, measured on ext4. Only empty directories come
# here,
# and each serves only the user whom it belongs to. Those that nobody needs are removed by a child,
# many at once, so that the launcher does not wait.

PREFIX = "spare-"
"""Names of work hold a dot, so none of them looks like this."""
GONE = "gone-"
"""Begins the names of those that are on their way out: a launcher that dies leaves them so."""
MOST = 64
TOGETHER = 200
LATER_MS = 200
_ACCESS_LISTS = frozenset({"system.posix_acl_access", "system.posix_acl_default"})

Remove = Callable[[list[str]], None]
Later = Callable[[float, Callable[[], None]], object]


class Spares:
    """Empty directories by place and user. `remove` takes paths away without waiting."""

    def __init__(self, remove: Remove, later: Later) -> None:
        self._remove = remove
        self._later = later
        self._free: dict[tuple[str, int], list[str]] = {}
        self._homes: set[str] = set()
        self._count = 0
        self._number = 0
        self._unwanted: list[str] = []

    def take(self, path: str, uid: int) -> bool:
        """Let a spare directory of the user have this name; False if there is none."""
        home = os.path.dirname(path)
        self._find_left(home)
        free = self._free.get((home, uid), [])
        while free:
            self._count -= 1
            try:
                os.rename(free.pop(), path)
            except OSError:
                continue
            return True
        return False

    def keep(self, path: str, directory: int) -> None:
        """Keep an empty directory, open as `directory`, for later; or remove it, if need be."""
        if self._count >= MOST or not _is_plain(directory):
            self.drop(path)
            return
        spare = self._set_aside(path, PREFIX)
        if not spare:
            self.drop(path)
            return
        self._count += 1
        owner = (os.path.dirname(path), os.fstat(directory).st_uid)
        self._free.setdefault(owner, []).append(spare)

    def drop(self, path: str) -> None:
        """Remove a directory with all that is in it, soon."""
        self._unwant(self._set_aside(path, GONE) or path)

    def _set_aside(self, path: str, prefix: str) -> str:
        """Give a directory a new name beside its old one; "" if it keeps the old one."""
        home = os.path.dirname(path)
        self._find_left(home)
        self._number += 1
        aside = f"{home}/{prefix}{self._number}"
        try:
            os.rename(path, aside)
        except OSError:
            return ""
        return aside

    def _unwant(self, path: str) -> None:
        if not self._unwanted:
            self._later(LATER_MS, self._drop_all)
        self._unwanted.append(path)

    def clear(self) -> None:
        """Remove all that are spare, when the launcher ends for good.

        Those that hold something are removed by a child, which may outlive us.
        """
        for free in self._free.values():
            for path in free:
                try:
                    os.rmdir(path)
                except OSError:
                    continue
        self._free.clear()
        self._drop_all()

    def _drop_all(self) -> None:
        unwanted, self._unwanted = self._unwanted, []
        for first in range(0, len(unwanted), TOGETHER):
            self._remove(unwanted[first : first + TOGETHER])

    def _find_left(self, home: str) -> None:
        """Take over what a former launcher kept."""
        if home in self._homes:
            return
        self._homes.add(home)
        try:
            names = os.listdir(home)
        except OSError:
            return
        for name in names:
            kind, _, number = name.partition("-")
            if f"{kind}-" in (PREFIX, GONE) and number.isdecimal():
                self._number = max(self._number, int(number))
                path = f"{home}/{name}"
                self._adopt(home, path) if kind == PREFIX[:-1] else self._unwant(path)

    def _adopt(self, home: str, path: str) -> None:
        try:
            uid = os.lstat(path).st_uid
        except OSError:
            return
        self._count += 1
        self._free.setdefault((home, uid), []).append(path)


def _is_plain(directory: int) -> bool:
    """Whom the user let in by an access list must not get into the next job's directory."""
    try:
        return _ACCESS_LISTS.isdisjoint(os.listxattr(directory))
    except OSError:
        return True


# --- The directory that a job shares with the launcher: checkpoint file, stop reason, script.

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


# --- What a job has saved, as it shows by touching its checkpoint file.


def newly_saved(attempt: Attempt) -> Saved | None:
    """What to report if the job has saved its work since the last look."""
    touched = checkpoint_time(attempt.work) if attempt.work.scratch_dir else 0
    if touched <= attempt.checkpoint_ns:
        return None
    attempt.checkpoint_ns = touched
    return saved_report(attempt)


def saved_report(attempt: Attempt) -> Saved:
    """When the job saved its work last."""
    return Saved(
        allocation_id=attempt.key[0],
        member=attempt.key[1],
        at_ms=attempt.checkpoint_ns // 1_000_000,
    )
