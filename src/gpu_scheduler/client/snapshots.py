"""Where snapshots are kept: one copy for each content, private to the user.

`<state>/snapshots/<tree>/files` holds the code, `snapshot.json` beside it says what it is. Jobs run
in there, and what they write stays there. So a copy is used again only while its code is still what
it was, and is dropped only when it has not been used for long and holds nothing but that code.
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

# --- Which files are the code: those of a git work tree that git does not ignore, or a directory.
#
# Git is only asked, with its locks off: neither the index nor the work tree is touched, and no hook
# or filter runs.

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


# --- Where snapshots are kept: one copy for each content, private to the user.

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
        """As a submission tells it."""
        return {
            "path": str(self.path),
            "source": str(self.source.root),
            "tree": self.tree,
            "commit": self.source.commit,
            "dirty": self.source.dirty,
        }

    def moved(self, word: str) -> str:
        """A path of the code as it is in the snapshot; every other word as it is."""
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
    """A snapshot on the shelf. `written` are files that jobs have made or changed."""

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
        """Take the directory, or refuse one that others could write to."""
        self._place = place
        if not place.parent.exists():
            # The state directory of a server that may follow, which is to be private as well.
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            place.parent.mkdir(mode=PRIVATE, exist_ok=True)
        place.mkdir(mode=PRIVATE, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise InvalidRequest(f"{place} is no directory of yours, so no code is kept there")
        if status.st_mode & OTHERS:
            place.chmod(PRIVATE)

    def take(self, directory: str, limit_mb: float = DEFAULT_LIMIT_MB) -> Snapshot:
        """Copy the code of a directory, unless the same is there already."""
        source = find_source(directory)
        check_size(source, limit_mb)
        tree = tree_hash(source.root, source.files)
        found = self._same(tree)
        reused = found is not None
        if found is None:
            found, tree = self._copied(source, limit_mb)
        os.utime(found / "snapshot.json")
        place = found / "files"
        start = place / source.here
        start.mkdir(parents=True, exist_ok=True)
        return Snapshot(path=place, directory=start, tree=tree, source=source, reused=reused)

    def kept(self) -> Iterator[Kept]:
        """All snapshots, the one used last first."""
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
        """Those that nobody has submitted with for so long."""
        return [kept for kept in self.kept() if kept.used_s < now_s - days * DAY_S]

    def drop(
        self, candidates: Iterable[Kept], in_use: Iterable[str], *, outputs: bool = False
    ) -> list[Kept]:
        """Remove snapshots, but those in use and those that hold what jobs wrote."""
        needed = set(in_use)
        dropped = []
        for kept in candidates:
            if str(kept.path) in needed or (kept.written and not outputs):
                continue
            shutil.rmtree(self._place / kept.name, ignore_errors=True)
            dropped.append(kept)
        self._drop_drafts()
        return dropped

    # --- copies

    def _same(self, tree: str) -> Path | None:
        """A copy of exactly this content, whose code no job has changed."""
        for entry in sorted(self._place.glob(f"{tree[:NAME_DIGITS]}*")):
            try:
                about = json.loads((entry / "snapshot.json").read_text(encoding="utf-8"))
                if about["tree"] == tree == tree_hash(entry / "files", about["files"]):
                    return entry
            except (OSError, ValueError, KeyError):
                continue
        return None

    def _copied(self, source: Source, limit_mb: float) -> tuple[Path, str]:
        """A new copy, and the hash of what was really copied: files may change meanwhile."""
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=self._place))
        try:
            files = draft / "files"
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
            (draft / "snapshot.json").write_text(json.dumps(about), encoding="utf-8")
            return self._named(draft, tree), tree
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _named(self, draft: Path, tree: str) -> Path:
        name = tree[:NAME_DIGITS]
        for number in range(1000):
            target = self._place / (f"{name}-{number}" if number else name)
            try:
                draft.rename(target)
            except OSError:
                continue  # somebody else was faster, or a job has changed that one
            return target
        raise InvalidRequest(f"there are too many copies of {name} in {self._place}; drop some")

    def _drop_drafts(self) -> None:
        """What a copy that was killed has left behind."""
        for draft in self._place.glob(".new-*"):
            if draft.stat().st_mtime < time.time() - DAY_S:
                shutil.rmtree(draft, ignore_errors=True)


def _size(count: int) -> str:
    return f"{count / MEGABYTE:.0f} MB" if count >= MEGABYTE else f"{count / 1024:.0f} kB"


def check_size(source: Source, limit_mb: float) -> None:
    """Refuse what is too large, and name what makes it so."""
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
        f"{limit_mb:g} MB; the largest files are {named}: let .gitignore name data, or allow more "
        "with --snapshot-limit"
    )


def tree_hash(root: Path, files: Iterable[str]) -> str:
    """Names, kinds and contents of files in one number; files that are not there are left out."""
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
    """Copy all files with their modes; says how many bytes."""
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
                f"the code in {source.root} grows while it is copied, beyond the limit; "
                "let .gitignore name what is being written"
            )
    return total


def _written(root: Path, code: set[str], tree: str) -> int:
    """How many files are not the code that was copied; changed code counts as one."""
    count = 0
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        inside = Path(folder).relative_to(root)
        count += sum(str(inside / name) not in code for name in names)
    return count or int(tree_hash(root, code) != tree)
