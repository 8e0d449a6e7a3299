"""Scratch directories of work that is over, kept for the next work of the same user.

Two renames take the place of making and removing a directory, which on a journalling file system
costs milliseconds: 3.5 ms for a removal alone, measured on ext4. Only empty directories come here,
and each serves only the user whom it belongs to. Those that nobody needs are removed by a child,
many at once, so that the launcher does not wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable

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
