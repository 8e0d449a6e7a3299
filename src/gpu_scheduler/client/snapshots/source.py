"""Which files are the code: those of a git work tree that git does not ignore, or a directory.

Git is only asked, with its locks off: neither the index nor the work tree is touched, and no hook
or filter runs.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest

LEFT_OUT = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"),
    }
)
"""Directories that are no code, where there is no git to say so."""
MOST_FILES = 100_000
ASK_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Code as it lies there now. `files` are paths below `root`; `here` is where the job starts."""

    root: Path
    here: str
    files: tuple[str, ...]
    commit: str = ""
    dirty: bool = False


def find_source(directory: str) -> Source:
    """The code that a directory belongs to: its git work tree, else the directory itself."""
    place = Path(directory).resolve()
    top = _top_of(place)
    if top is None:
        return Source(root=place, here=".", files=tuple(sorted(_walked(place))))
    head = _git(top, "rev-parse", "--verify", "--quiet", "HEAD", may_fail=True)
    changes = _git(top, "status", "--porcelain", "-z", "--untracked-files=normal")
    return Source(
        root=top,
        here=str(place.relative_to(top)),
        files=tuple(sorted(_listed(top))),
        commit=head.decode().strip(),
        dirty=bool(changes),
    )


def _top_of(place: Path) -> Path | None:
    """The top of the git work tree, or None where there is none."""
    try:
        told = _git(place, "rev-parse", "--show-toplevel", may_fail=True)
    except FileNotFoundError:
        return None
    top = os.fsdecode(told).rstrip("\n")
    return Path(top).resolve() if top else None


def _listed(top: Path, before: str = "") -> Iterator[str]:
    """Files that git tracks or would track; those of submodules as well."""
    told = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in dict.fromkeys(os.fsdecode(part) for part in told.split(b"\0") if part):
        path = top / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue  # deleted, and not yet told to git
        if stat.S_ISDIR(mode):
            if (path / ".git").exists():
                yield from _listed(path, f"{before}{name.rstrip('/')}/")
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield f"{before}{name}"


def _walked(root: Path) -> Iterator[str]:
    """Every file below a directory, but for what is surely no code."""

    def refuse(error: OSError) -> None:
        raise InvalidRequest(
            f"{error.filename} cannot be read ({error.strerror}), so {root} cannot be copied"
        ) from error

    count = 0
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT and not os.path.exists(f"{folder}/{name}/pyvenv.cfg")  # noqa: PTH110 - it never raises
        )
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder) / name
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue  # gone meanwhile
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                count += 1
                if count > MOST_FILES:
                    raise InvalidRequest(
                        f"{root} has more than {MOST_FILES:,} files, too many for a snapshot; "
                        "make it a git repository that ignores data, or submit without --snapshot"
                    )
                yield str(path.relative_to(root))


def _git(place: Path, *words: str, may_fail: bool = False) -> bytes:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    } | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        ended = subprocess.run(  # noqa: S603
            ["git", "-c", "core.fsmonitor=false", "-C", os.fspath(place), *words],  # noqa: S607
            capture_output=True,
            env=environment,
            timeout=ASK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest(f"git takes longer than {ASK_SECONDS} s in {place}") from None
    trouble = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == 0:
        return ended.stdout
    if may_fail and (not trouble or "not a git repository" in trouble):
        return b""
    raise InvalidRequest(f"git cannot say what belongs to {place}: {trouble}")
