"""Snapshots of the user's code: one private copy for each content, in which jobs run.

`<state>/snapshots/<tree>/files` holds the code, `snapshot.json` beside it describes the copy. Files
that jobs write there stay there. So a copy is reused only while its code is unchanged, and removed
only after long disuse and if it holds nothing but that code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest

# Finding the code: the files of a git work tree that git does not ignore, or those of a directory.
# Git only runs read-only commands without optional locks, so the index and the work tree do not
# change, and no hook or filter runs.

IGNORED_DIRECTORIES = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"),
    }
)
"""Directories that are left out of a snapshot if the code is not in a git work tree."""
MAX_FILES = 100_000
GIT_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The code to copy. `files` are paths below `root`; `here` is where the job starts."""

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
    """The top of the git work tree, or None without git or outside of a work tree."""
    try:
        output = _git(place, "rev-parse", "--show-toplevel", may_fail=True)
    except FileNotFoundError:
        return None
    top = os.fsdecode(output).rstrip("\n")
    return Path(top).resolve() if top else None


def _listed(top: Path, before: str = "") -> Iterator[str]:
    """Files that git tracks or would track; also those of submodules."""
    output = _git(top, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in dict.fromkeys(os.fsdecode(part) for part in output.split(b"\0") if part):
        path = top / name
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue  # deleted in the work tree, still in the index
        if stat.S_ISDIR(mode):
            if (path / ".git").exists():
                yield from _listed(path, f"{before}{name.rstrip('/')}/")
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield f"{before}{name}"


def _walked(root: Path) -> Iterator[str]:
    """Every file below a directory, except in ignored directories and virtual environments."""

    def reject(error: OSError) -> None:
        raise InvalidRequest(
            f"{error.filename} cannot be read ({error.strerror}), so {root} cannot be copied"
        ) from error

    count = 0
    for folder, folders, names in os.walk(root, onerror=reject):
        folders[:] = sorted(
            name
            for name in folders
            if name not in IGNORED_DIRECTORIES and not os.path.exists(f"{folder}/{name}/pyvenv.cfg")  # noqa: PTH110 - it never raises
        )
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for name in (*names, *links):
            path = Path(folder) / name
            try:
                mode = path.lstat().st_mode
            except OSError:
                continue  # deleted since it was listed
            if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                count += 1
                if count > MAX_FILES:
                    raise InvalidRequest(
                        f"{root} has more than {MAX_FILES:,} files, too many for a snapshot; "
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
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest(f"git did not finish within {GIT_TIMEOUT_S} s in {place}") from None
    error = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == 0:
        return ended.stdout
    if may_fail and (not error or "not a git repository" in error):
        return b""
    raise InvalidRequest(f"git cannot list the files of {place}: {error}")


# Storing the copies.

MEGABYTE = 1 << 20
DEFAULT_LIMIT_MB = 512
KEPT_DAYS = 30.0
DAY_S = 86_400.0
PRIVATE = 0o700
OTHERS = 0o077
CHUNK = 1 << 20
NAME_DIGITS = 24
LARGEST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A copy of some code. `directory` is where the job starts, inside of `path`."""

    path: Path
    directory: Path
    tree: str
    source: Source
    reused: bool = False

    def form(self) -> dict[str, object]:
        """The `snapshot` field of a submission."""
        return {
            "path": str(self.path),
            "source": str(self.source.root),
            "tree": self.tree,
            "commit": self.source.commit,
            "dirty": self.source.dirty,
        }

    def moved(self, word: str) -> str:
        """The path in the snapshot if `word` is an absolute path of the code; else `word`."""
        if not word.startswith("/"):
            return word
        try:
            inside = Path(word).resolve().relative_to(self.source.root)
        except ValueError:
            return word
        copy = self.path / inside
        return str(copy) if copy.exists() else word


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A stored snapshot. `written` counts the files that jobs have made or changed."""

    name: str
    path: Path
    source: str
    commit: str
    dirty: bool
    size_bytes: int
    used_s: float
    written: int


class Shelf:
    """The snapshots of one user."""

    def __init__(self, place: Path) -> None:
        """Create the directory, private to the user; reject one that belongs to another user."""
        self._place = place
        if not place.parent.exists():
            # A server may use this state directory later, so it must be private as well.
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            place.parent.mkdir(mode=PRIVATE, exist_ok=True)
        place.mkdir(mode=PRIVATE, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise InvalidRequest(
                f"{place} is not a directory that belongs to you, so no snapshot is stored there"
            )
        if status.st_mode & OTHERS:
            place.chmod(PRIVATE)

    def take(self, directory: str, limit_mb: float = DEFAULT_LIMIT_MB) -> Snapshot:
        """Copy the code of a directory, or reuse an unchanged copy of the same content."""
        source = find_source(directory)
        check_size(source, limit_mb)
        tree = tree_hash(source.root, source.files)
        found = self._find_unchanged(tree)
        reused = found is not None
        if found is None:
            found, tree = self._make_copy(source, limit_mb)
        os.utime(found / "snapshot.json")
        place = found / "files"
        start = place / source.here
        start.mkdir(parents=True, exist_ok=True)
        return Snapshot(path=place, directory=start, tree=tree, source=source, reused=reused)

    def kept(self) -> Iterator[Kept]:
        """All snapshots, the most recently used first."""
        found = []
        for entry in self._place.iterdir():
            try:
                about = json.loads((entry / "snapshot.json").read_text(encoding="utf-8"))
                used_s = (entry / "snapshot.json").stat().st_mtime
            except (OSError, ValueError):
                continue
            found.append((used_s, entry, about))
        for used_s, entry, about in sorted(found, key=lambda item: (-item[0], item[1].name)):
            yield Kept(
                name=entry.name,
                path=entry / "files",
                source=about["source"],
                commit=about["commit"],
                dirty=about["dirty"],
                size_bytes=about["size_bytes"],
                used_s=used_s,
                written=_written(entry / "files", set(about["files"]), about["tree"]),
            )

    def unused(self, now_s: float, days: float = KEPT_DAYS) -> list[Kept]:
        """Snapshots that no submission has used for this many days."""
        return [kept for kept in self.kept() if kept.used_s < now_s - days * DAY_S]

    def drop(
        self, candidates: Iterable[Kept], in_use: Iterable[str], *, outputs: bool = False
    ) -> list[Kept]:
        """Remove snapshots, but not those in use, nor (without `outputs`) those with job files."""
        needed = set(in_use)
        dropped = []
        for kept in candidates:
            if str(kept.path) in needed or (kept.written and not outputs):
                continue
            shutil.rmtree(self._place / kept.name, ignore_errors=True)
            dropped.append(kept)
        self._remove_partial_copies()
        return dropped

    def _find_unchanged(self, tree: str) -> Path | None:
        """A copy of exactly this content whose code no job has changed."""
        for entry in sorted(self._place.glob(f"{tree[:NAME_DIGITS]}*")):
            try:
                about = json.loads((entry / "snapshot.json").read_text(encoding="utf-8"))
                if about["tree"] == tree == tree_hash(entry / "files", about["files"]):
                    return entry
            except (OSError, ValueError, KeyError):
                continue
        return None

    def _make_copy(self, source: Source, limit_mb: float) -> tuple[Path, str]:
        """A new copy, and the hash of the copied files: they may change during the copy."""
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self._place))
        try:
            files = temporary / "files"
            files.mkdir()
            size = _copy(source, files, round(limit_mb * MEGABYTE))
            tree = tree_hash(files, source.files)
            about = {
                "tree": tree,
                "source": str(source.root),
                "commit": source.commit,
                "dirty": source.dirty,
                "files": [name for name in source.files if os.path.lexists(files / name)],
                "size_bytes": size,
                "taken_s": time.time(),
            }
            (temporary / "snapshot.json").write_text(json.dumps(about), encoding="utf-8")
            return self._move_into_place(temporary, tree), tree
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _move_into_place(self, temporary: Path, tree: str) -> Path:
        name = tree[:NAME_DIGITS]
        for number in range(1000):
            target = self._place / (f"{name}-{number}" if number else name)
            try:
                temporary.rename(target)
            except OSError:
                continue  # the name is taken: by a concurrent copy, or by one that a job changed
            return target
        raise InvalidRequest(f"there are too many copies of {name} in {self._place}; remove some")

    def _remove_partial_copies(self) -> None:
        """Remove what interrupted copies have left behind."""
        for temporary in self._place.glob(".new-*"):
            if temporary.stat().st_mtime < time.time() - DAY_S:
                shutil.rmtree(temporary, ignore_errors=True)


def _size(count: int) -> str:
    return f"{count / MEGABYTE:.0f} MB" if count >= MEGABYTE else f"{count / 1024:.0f} kB"


def check_size(source: Source, limit_mb: float) -> None:
    """Reject code that is too large, and name its largest files."""
    sizes = {}
    for name in source.files:
        try:
            sizes[name] = (source.root / name).lstat().st_size
        except OSError:
            continue
    total = sum(sizes.values())
    if total <= limit_mb * MEGABYTE:
        return
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:LARGEST_SHOWN]
    named = ", ".join(f"{name} ({_size(sizes[name])})" for name in largest)
    raise InvalidRequest(
        f"the code in {source.root} has {total / MEGABYTE:.0f} MB and a snapshot may have "
        f"{limit_mb:g} MB; the largest files are {named}: add data to .gitignore, or allow more "
        "with --snapshot-limit"
    )


def tree_hash(root: Path, files: Iterable[str]) -> str:
    """One hash of the names, kinds and contents of files; missing files are ignored."""
    total = hashlib.sha256()
    for name in sorted(files):
        path = root / name
        try:
            status = path.lstat()
            kind, content = _content(path, status)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}") from error
        total.update(f"{kind} {len(os.fsencode(name))} ".encode())
        total.update(os.fsencode(name) + b"\0" + content)
    return total.hexdigest()


def _content(path: Path, status: os.stat_result) -> tuple[str, bytes]:
    if stat.S_ISLNK(status.st_mode):
        return "link", hashlib.sha256(os.fsencode(path.readlink())).digest()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return ("program" if status.st_mode & 0o111 else "file"), digest


def _copy(source: Source, target: Path, limit: int) -> int:
    """Copy all files with their modes; returns the number of bytes."""
    total = 0
    for name in source.files:
        path, copy = source.root / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, copy, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InvalidRequest(f"{path} cannot be copied: {error.strerror or error}") from error
        total += copy.lstat().st_size
        if total > limit:
            raise InvalidRequest(
                f"the code in {source.root} grew beyond the limit while it was copied; "
                "add the files that are being written to .gitignore"
            )
    return total


def _written(root: Path, code: set[str], tree: str) -> int:
    """How many files are not part of the copied code; changed code counts as one file."""
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        inside = Path(folder).relative_to(root)
        count += sum(str(inside / name) not in code for name in names)
    return count or int(tree_hash(root, code) != tree)
