"""Code snapshots: complete, without side effects, stored once and privately."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_scheduler.client.code_snapshots import Shelf, find_source
from gpu_scheduler.model.errors import InvalidRequest


def git(place: Path, *words: str) -> str:
    names = ("-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=no")
    told = subprocess.run(
        ["git", *names, *words], cwd=place, check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "src").mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    (place / "train.py").write_text("print(1)\n")
    (place / "src" / "model.py").write_text("x = 1\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / ".gitignore").write_text("data/\n*.pt\n")
    (place / "link").symlink_to("train.py")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "first")
    return place


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "state" / "snapshots")


def test_state_directory_created_by_snapshots_is_private(shelf: Shelf, tmp_path: Path) -> None:
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "snapshots").stat().st_mode & 0o777 == 0o700


def test_clean_tree_is_copied_with_its_commit(repository: Path, shelf: Shelf) -> None:
    shot = shelf.take(str(repository))
    assert shot.source.commit == git(repository, "rev-parse", "HEAD")
    assert not shot.source.dirty
    assert (shot.path / "src" / "model.py").read_text() == "x = 1\n"
    assert os.access(shot.path / "run.sh", os.X_OK)
    assert (shot.path / "link").readlink() == Path("train.py")
    assert not (shot.path / ".git").exists()
    assert shot.directory == shot.path


def test_changed_new_and_deleted_files_are_included_and_ignored_ones_are_not(
    repository: Path, shelf: Shelf
) -> None:
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").write_text("fresh\n")
    (repository / "run.sh").unlink()
    (repository / "data").mkdir()
    (repository / "data" / "big.bin").write_text("x")
    (repository / "weights.pt").write_text("x")
    shot = shelf.take(str(repository))
    assert shot.source.dirty
    assert (shot.path / "train.py").read_text() == "print(2)\n"
    assert sorted(path.name for path in shot.path.iterdir()) == [
        *(".gitignore", "link", "new.py", "src", "train.py"),
    ]


def test_neither_index_nor_work_tree_is_touched(repository: Path, shelf: Shelf) -> None:
    (repository / "train.py").write_text("staged\n")
    git(repository, "add", "train.py")
    (repository / "train.py").write_text("later\n")
    (repository / "new.py").write_text("new\n")
    status = git(repository, "status", "--porcelain")
    before = _of_git(repository)
    shot = shelf.take(str(repository))
    assert _of_git(repository) == before
    assert (shot.path / "train.py").read_text() == "later\n"
    assert git(repository, "status", "--porcelain") == status
    assert git(repository, "stash", "list") == ""


def _of_git(repository: Path) -> dict[str, tuple[int, bytes]]:
    """Every file in .git, with its time and content."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted((repository / ".git").rglob("*"))
        if path.is_file()
    }


def test_job_starts_in_same_directory_of_snapshot(repository: Path, shelf: Shelf) -> None:
    shot = shelf.take(str(repository / "src"))
    assert shot.directory == shot.path / "src"
    assert shot.moved(str(repository / "train.py")) == str(shot.path / "train.py")
    assert shot.moved("/usr/bin/env") == "/usr/bin/env"
    assert shot.moved("train.py") == "train.py"
    assert shot.moved(str(repository / "no such")) == str(repository / "no such")


def test_same_code_is_stored_once_and_other_code_separately(repository: Path, shelf: Shelf) -> None:
    first = shelf.take(str(repository))
    again = shelf.take(str(repository / "src"))
    assert again.reused
    assert again.path == first.path
    (repository / "train.py").write_text("other\n")
    other = shelf.take(str(repository))
    assert other.path != first.path
    (repository / "run.sh").chmod(0o644)
    assert shelf.take(str(repository)).path != other.path
    assert len(list(shelf.kept())) == 3


def test_code_changed_by_job_is_not_reused(repository: Path, shelf: Shelf) -> None:
    first = shelf.take(str(repository))
    (first.path / "train.py").write_text("spoilt\n")
    again = shelf.take(str(repository))
    assert again.path != first.path
    assert (again.path / "train.py").read_text() == "print(1)\n"


def test_files_written_by_jobs_are_never_deleted(repository: Path, shelf: Shelf) -> None:
    first = shelf.take(str(repository))
    (first.path / "checkpoint.pt").write_text("dear")
    assert shelf.take(str(repository)).path == first.path
    later = time.time() + 31 * 86_400
    assert [kept.written for kept in shelf.unused(later)] == [1]
    assert shelf.drop(shelf.unused(later), []) == []
    assert (first.path / "checkpoint.pt").exists()
    assert len(shelf.drop(shelf.unused(later), [], outputs=True)) == 1


def test_old_snapshots_are_deleted_unless_needed(repository: Path, shelf: Shelf) -> None:
    shot = shelf.take(str(repository))
    now = time.time()
    assert shelf.unused(now) == []
    old = shelf.unused(now + 31 * 86_400)
    assert shelf.drop(old, [str(shot.path)]) == []
    assert [kept.path for kept in shelf.drop(old, [])] == [shot.path]
    assert not shot.path.exists()


def test_snapshot_directory_is_private_to_the_user(tmp_path: Path, repository: Path) -> None:
    place = tmp_path / "open"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    shot = Shelf(place).take(str(repository))
    assert place.stat().st_mode & 0o777 == 0o700
    assert (shot.path.parent.stat().st_mode & 0o077) == 0
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "linked").symlink_to(target)
    with pytest.raises(InvalidRequest, match="not a directory that belongs to you"):
        Shelf(tmp_path / "linked")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of somebody else")
def test_directory_of_another_user_is_rejected(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir()
    os.chown(place, 12_345, 12_345)
    with pytest.raises(InvalidRequest, match="not a directory that belongs to you"):
        Shelf(place)


def test_directory_without_git_is_copied(tmp_path: Path, shelf: Shelf) -> None:
    place = tmp_path / "plain"
    for name in ("a.py", "sub/b.py", "__pycache__/c.pyc", ".venv/bin/python", "env/pyvenv.cfg"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)
    (place / "dir").symlink_to("sub")
    os.mkfifo(place / "pipe")
    shot = shelf.take(str(place))
    assert shot.source.files == ("a.py", "dir", "sub/b.py")
    assert shot.source.commit == ""
    assert (shot.path / "dir" / "b.py").read_text() == "sub/b.py"


def test_oversized_directory_is_rejected_with_reason(
    repository: Path, shelf: Shelf, tmp_path: Path
) -> None:
    (repository / "huge.npy").write_bytes(b"x" * (3 << 20))
    (repository / "small.npy").write_bytes(b"x" * 3000)
    told = r"3 MB .* 1 MB; the largest files are huge\.npy \(3 MB\), small\.npy \(3 kB\)"
    with pytest.raises(InvalidRequest, match=told):
        shelf.take(str(repository), limit_mb=1)
    assert list((tmp_path / "state" / "snapshots").iterdir()) == []
    assert shelf.take(str(repository), limit_mb=4).path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_unreadable_file_is_named_and_nothing_is_copied(tmp_path: Path) -> None:
    place = tmp_path / "plain"
    (place / "closed").mkdir(parents=True)
    (place / "secret.py").write_text("x")
    (place / "secret.py").chmod(0)
    (place / "closed").chmod(0)
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gpu_scheduler.client.code_snapshots import Shelf\n"
        "from gpu_scheduler.model.errors import InvalidRequest\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n"
        "    Shelf(Path(sys.argv[2])).take(sys.argv[1])\n"
        "except InvalidRequest as error:\n"
        "    print(error)\n"
    )
    for parent in (tmp_path, *tmp_path.parents[:3]):
        if parent.stat().st_uid == 0 and parent != Path("/tmp"):
            parent.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 65534, 65534)
    words = [sys.executable, "-c", program, str(place), str(state)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "closed cannot be read (Permission denied)" in told
    (place / "closed").rmdir()
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "secret.py cannot be read: Permission denied" in told
    assert list(state.iterdir()) == []


def test_submodules_are_included(repository: Path, shelf: Shelf, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.py").write_text("lib\n")
    git(library, "add", "-A")
    git(library, "commit", "-q", "-m", "lib")
    git(
        repository,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "-q",
        str(library),
        "ext",
    )
    (repository / "ext" / "fresh.py").write_text("fresh\n")
    shot = shelf.take(str(repository))
    assert (shot.path / "ext" / "lib.py").read_text() == "lib\n"
    assert (shot.path / "ext" / "fresh.py").read_text() == "fresh\n"


def test_repository_without_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("a")
    source = find_source(str(tmp_path))
    assert (source.commit, source.dirty, source.files) == ("", True, ("a.py",))


def test_names_with_special_characters_are_kept(repository: Path, shelf: Shelf) -> None:
    names = ["a b.py", "ä\n.py", "-rf", os.fsdecode(b"\xff.py")]
    for name in names:
        (repository / name).write_text(name, errors="surrogateescape")
    shot = shelf.take(str(repository))
    assert all((shot.path / name).exists() for name in names)
    assert json.loads((shot.path.parent / "snapshot.json").read_text())["tree"] == shot.tree
    assert shelf.take(str(repository)).reused
