"""The conda environments of a site, for where only certain programs may run.

What a job calls its environment comes in; the directory that it means and the conda that enters it
come out, or a refusal. A name is sought in the site's own installations and nowhere else: what a
user's settings of conda say does not count. An environment there runs scripts of its own when it
is entered, so it must belong to who keeps the installations, and not be the job's user's to change.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpu_scheduler.model.launch import Launch
from gpu_scheduler.server.places import both, lies_in

BASE = "base"
"""What conda calls the environment that an installation itself is."""
META = "conda-meta"
"""The directory by which conda knows an environment."""
MOST_NAMED = 10


class Unfit(Exception):
    """An environment that no job may run in here; the text says which and why."""


class SiteConda:
    """`security.conda_roots` of one server."""

    def __init__(
        self, roots: Iterable[str], allowed: tuple[str, ...], trusted: tuple[str, ...]
    ) -> None:
        """In directories that are `allowed` anybody's programs may be, in others only the site's.

        `trusted` are all of them, and the roots too.
        """
        self._roots = tuple(root.rstrip("/") for root in roots)
        self._allowed = allowed
        self._trusted = trusted

    def prefix(self, launch: Launch) -> str:
        """The directory of the job's environment, without any link on the way."""
        word = launch.conda
        found = self._by_path(word) if "/" in word else self._by_name(word)
        real = os.path.realpath(found)
        if not lies_in(found, self._trusted):
            raise Unfit(f"the job runs in the conda environment {found}{_behind(found, real)}")
        if not lies_in(found, self._allowed):
            self._check_owners(Path(real), launch)
        return real

    def conda_for(self, prefix: str) -> str:
        """The site's conda that enters an environment: its own, else the first; or none."""
        own = [root for root in self._roots if lies_in(prefix, both([root]))]
        for root in (*own, *self._roots):
            program = f"{root}/bin/conda"
            if os.access(program, os.X_OK) and lies_in(program, self._trusted):
                return program
        return ""

    def _by_path(self, word: str) -> str:
        if not word.startswith("/") or ".." in word.split("/"):
            raise Unfit(
                f"the job runs in the conda environment '{word}', which is neither a name nor a "
                "whole path"
            )
        return word

    def _by_name(self, name: str) -> str:
        if not name.isprintable() or name.startswith(("-", ".")):
            raise Unfit(f"the job runs in the conda environment {name!r}, which is no name of one")
        for root in self._roots:
            place = root if name == BASE else f"{root}/envs/{name}"
            if Path(place, META).is_dir():
                return place
        raise Unfit(
            f"the job runs in the conda environment '{name}', and the site has "
            f"{self._names()} (security.conda_roots)"
        )

    def _names(self) -> str:
        """What there is instead."""
        names = sorted({name for root in self._roots for name in _environments(root)})
        if not names:
            return "none"
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"only {', '.join(names[:MOST_NAMED])}{more}"

    def _check_owners(self, prefix: Path, launch: Launch) -> None:
        """Whoever can change an environment can run anything by being in it."""
        if launch.uid == os.geteuid():
            return  # whoever has made the rule
        keepers = {0, os.geteuid(), *(uid for root in self._roots for uid in _owner(root))}
        for place in (*self._way_to(prefix), *_started_from(prefix)):
            owner = _owner(str(place))
            if not owner <= keepers:
                raise Unfit(
                    f"the job runs in the conda environment {prefix}, and {place} belongs to "
                    f"uid {min(owner)} and not to who keeps the site's conda"
                )
            if _may_change(place, launch):
                raise Unfit(
                    f"the job runs in the conda environment {prefix}, and its user may change "
                    f"{place}"
                )

    def _way_to(self, prefix: Path) -> Iterator[Path]:
        """The environment, and what it lies in, as far as that is conda's."""
        yield prefix
        for parent in prefix.parents:
            if not lies_in(str(parent), self._trusted):
                return
            yield parent


def _environments(root: str) -> list[str]:
    try:
        found = [one.name for one in Path(root, "envs").iterdir() if (one / META).is_dir()]
    except OSError:
        found = []
    return [*found, BASE] if Path(root, META).is_dir() else found


def _started_from(prefix: Path) -> Iterator[Path]:
    """What is run for a job of the environment before anything that it names itself."""
    hooks = prefix / "etc/conda/activate.d"
    yield from (prefix / "bin", prefix / "lib", prefix / "etc", hooks.parent, hooks)
    try:
        yield from hooks.iterdir()
    except OSError:
        return


def _owner(place: str) -> set[int]:
    """The uid of who owns it; nobody if there is no such thing."""
    try:
        return {Path(place).stat().st_uid}
    except OSError:
        return set()


def _may_change(place: Path, launch: Launch) -> bool:
    """Tell whether its permissions let the job's user write there; a link is what it leads to."""
    try:
        found = place.stat()
    except OSError:
        return False
    if found.st_uid == launch.uid:
        return True
    mode = found.st_mode
    if stat.S_ISDIR(mode) and mode & stat.S_ISVTX:
        return False  # what others have put there stays theirs
    if mode & stat.S_IWOTH:
        return True
    if not mode & stat.S_IWGRP:
        return False
    return found.st_gid in {launch.gid, *os.getgrouplist(launch.user, launch.gid)}


def _behind(path: str, real: str) -> str:
    return "" if real == os.path.normpath(path) else f" (which is {real})"
