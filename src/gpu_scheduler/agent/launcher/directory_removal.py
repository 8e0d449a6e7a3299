"""Removal of scratch directories by child processes, for each user apart, until they are gone.

A directory may hold millions of files, or a file that cannot be removed. So the directories of one
user never wait for those of another, a child that fails or takes too long is started again with a
pause that doubles, and a user whose directories cannot be removed starts no more jobs at a limit.
Directories that a launcher leaves behind are found by the next one, by their names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gpu_scheduler.agent.launcher.log_rotation import launcher_log

COLLECT_MS = 200
"""Directories that are discarded within this time are removed by one child."""
BATCH = 50
MAX_CHILDREN = 4
TIMEOUT_MS = 60_000
FIRST_PAUSE_MS = 1_000
MAX_PAUSE_MS = 600_000
MAX_LEFT = 1_000
"""With so many directories that could not be removed, a user starts no more jobs."""
RunCommand = Callable[..., object]
"""Starts a command: (argv, timeout, done, its arguments). Then `done` gets (ok, output) as well."""
After = Callable[..., object]


class DirectoryRemoval:
    """Directories to remove, by user. `failed` ones were tried before; each is tried again."""

    def __init__(self, run_command: RunCommand, after: After) -> None:
        self._run_command = run_command
        self._after = after
        self._fresh: dict[int, list[str]] = {}
        self._failed: dict[int, list[str]] = {}
        self._pauses_ms: dict[int, int] = {}
        self._due: dict[int, None] = {}
        self._busy: set[int] = set()
        self._retrying: set[int] = set()

    def add(self, uid: int, path: str) -> None:
        """Remove a directory of this user with everything in it, soon."""
        paths = self._fresh.setdefault(uid, [])
        paths.append(path)
        if len(paths) == 1:
            self._after(COLLECT_MS, self._wake, uid)

    def failed(self, uid: int) -> int:
        """How many directories of a user could not be removed yet."""
        return len(self._failed.get(uid, ()))

    def check_limit(self, uid: int) -> None:
        """Raise if too many directories of the user could not be removed."""
        if self.failed(uid) >= MAX_LEFT:
            raise OSError(
                errno.EDQUOT,
                f"{self.failed(uid)} scratch directories of uid {uid} could not be removed; "
                "an administrator has to remove them (the launcher's log names them)",
            )

    def flush(self) -> None:
        """Start all removals at once, when the launcher exits; the children may outlive it."""
        for uid in {*self._fresh, *self._failed} - self._busy:
            self._start(uid)

    def _wake(self, uid: int) -> None:
        self._due[uid] = None
        self._start_due()

    def _start_due(self) -> None:
        """Start a child for each user who is due, the longest waiting first."""
        for uid in [uid for uid in self._due if uid not in self._busy]:
            if len(self._busy) >= MAX_CHILDREN:
                return
            del self._due[uid]
            self._start(uid)

    def _start(self, uid: int) -> None:
        """New directories go first: those that failed before may fail for ever."""
        waiting = [self._fresh.pop(uid, []), self._failed.pop(uid, [])]
        paths = waiting[0][:BATCH] or waiting[1][:BATCH]
        taken = set(paths)
        for kept, left in zip((self._fresh, self._failed), waiting, strict=True):
            if rest := [path for path in left if path not in taken]:
                kept[uid] = rest
        if not paths:
            return
        self._busy.add(uid)
        argv = ("rm", "-rf", "--", *paths)
        self._run_command(argv, TIMEOUT_MS, self._done, uid, paths)

    def _done(self, uid: int, paths: list[str], ok: bool, output: str) -> None:
        self._busy.discard(uid)
        left = [] if ok else [path for path in paths if os.path.lexists(path)]
        if left:
            self._failed.setdefault(uid, []).extend(left)
            launcher_log.warning(
                f"{self.failed(uid)} scratch directories of uid {uid} could not be removed, first "
                f"{left[0]}: {output[:300]}; they will be tried again"
            )
        if not self.failed(uid):
            self._pauses_ms.pop(uid, None)
        elif uid not in self._retrying:
            pause_ms = self._pauses_ms.get(uid, FIRST_PAUSE_MS)
            self._pauses_ms[uid] = min(MAX_PAUSE_MS, 2 * pause_ms)
            self._retrying.add(uid)
            self._after(pause_ms, self._retry, uid)
        if self._fresh.get(uid):
            self._due[uid] = None
        self._start_due()

    def _retry(self, uid: int) -> None:
        self._retrying.discard(uid)
        self._wake(uid)
