"""Permissions and problems of the state directory."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.server.state_directory import StateUnusable, prepare, write_server_file
from gpu_scheduler.settings.file_paths import Paths


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
