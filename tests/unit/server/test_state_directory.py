"""Permissions and problems of the state directory."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import StoreUnavailable
from gpu_scheduler.server.state_directory import StateUnusable, prepare, write_server_file
from gpu_scheduler.server.storage import open_store
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.sources import load

NOBODY = 65_534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def modes(*paths: str) -> list[str]:
    return [f"{Path(path).stat().st_mode & 0o777:o}" for path in paths]


def test_state_directory_with_separate_runtime_is_private(tmp_path: Path) -> None:
    paths = Paths(f"{tmp_path}/state", f"{tmp_path}/run")
    prepare(paths)
    assert modes(paths.state, paths.runtime, paths.scratch) == ["700", "755", "755"]


@pytest.mark.parametrize(("uid", "mode"), [(0, "711"), (None, "700")])
def test_state_directory_of_root_can_be_traversed_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int | None, mode: str
) -> None:
    state = tmp_path / "state"
    if uid is None:
        uid = os.geteuid() or 1000
    elif os.geteuid():
        pytest.skip("needs root")
    if uid != os.geteuid():
        state.mkdir()
        os.chown(state, uid, uid)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    paths = Paths(str(state), str(state))
    before = os.umask(0)
    try:
        prepare(paths)
        write_server_file(paths, {"pid": 1})
    finally:
        os.umask(before)
    assert modes(paths.state, paths.scratch) == [mode, "755"]
    assert modes(paths.agent, paths.attempts, paths.logs) == ["700"] * 3
    assert modes(paths.server_file) == ["600"]


def test_file_instead_of_the_state_directory_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.touch()
    for state in (str(file), f"{file}/below"):
        with pytest.raises(StateUnusable, match=r"is not a directory; choose another"):
            prepare(Paths(state, state))


# --- directories that others can change


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name, since paths of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        yield Path(directory)


def test_state_below_directory_that_all_can_write_is_rejected(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for state in (f"{shared}/state", f"{shared}/a/b/state"):
        with pytest.raises(
            StateUnusable, match=rf"all users may write {shared}.*chmod o-w {shared}"
        ):
            prepare(Paths(state, f"{place}/run"))
    with pytest.raises(StateUnusable, match=f"all users may write {shared}"):
        prepare(Paths(f"{place}/state", f"{shared}/run"))
    assert list(shared.iterdir()) == []


def test_state_below_sticky_directory_is_accepted(place: Path) -> None:
    """In /tmp only the owner of a directory can rename or remove it."""
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    prepare(Paths(f"{shared}/state", f"{shared}/state"))


@needs_root
def test_state_below_directory_of_another_user_is_rejected(place: Path) -> None:
    home = place / "home"
    home.mkdir(mode=0o755)
    os.chown(home, NOBODY, NOBODY)
    with pytest.raises(StateUnusable, match=rf"{home} belongs to uid {NOBODY}"):
        prepare(Paths(f"{home}/state", f"{home}/state"))


@needs_root
def test_state_below_directory_of_shared_group_is_rejected(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    os.chown(shared, 0, NOBODY)
    shared.chmod(0o775)
    with pytest.raises(StateUnusable, match=rf"group .* may write {shared}.*chmod g-w"):
        prepare(Paths(f"{shared}/state", f"{shared}/state"))


@needs_root
def test_link_of_another_user_to_state_is_rejected(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (place / "real").mkdir(mode=0o700)
    link = shared / "link"
    link.symlink_to(place / "real")
    prepare(Paths(f"{link}/state", f"{link}/state"))
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(StateUnusable, match=rf"{link} belongs to uid {NOBODY}"):
        prepare(Paths(f"{link}/state", f"{link}/state"))


def test_database_elsewhere_needs_safe_directory_too(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    settings = load(environ={"GPU_SCHEDULER_DATABASE_URL": f"sqlite://{shared}/jobs.db"}).settings
    with pytest.raises(StoreUnavailable, match=f"all users may write {shared}"):
        open_store(settings, Paths(str(place), str(place)))
