"""Paths for an override, for root and for users."""

from pathlib import Path

import pytest

from gpu_scheduler.settings.file_paths import paths


def test_override_holds_all_paths(tmp_path: Path) -> None:
    found = paths(str(tmp_path), environ={}, uid=1000)
    assert found.state == found.runtime == str(tmp_path)
    assert found.server_socket == f"{tmp_path}/server.sock"
    variable = {"GPU_SCHEDULER_STATE_DIR": str(tmp_path)}
    assert paths(environ=variable, uid=0).state == str(tmp_path)
    assert paths("/other", environ=variable).state == "/other"


def test_root_uses_system_paths() -> None:
    found = paths(environ={"XDG_STATE_HOME": "/x"}, uid=0)
    assert (found.state, found.runtime) == ("/var/lib/gpu-scheduler", "/run/gpu-scheduler")


@pytest.mark.parametrize(
    ("environ", "state", "runtime"),
    [
        ({"HOME": "/h"}, "/h/.local/state/gpu-scheduler", "/h/.local/state/gpu-scheduler"),
        (
            {"HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r"},
            "/s/gpu-scheduler",
            "/r/gpu-scheduler",
        ),
        (
            {"HOME": "/h", "XDG_STATE_HOME": "relative"},
            "/h/.local/state/gpu-scheduler",
            "/h/.local/state/gpu-scheduler",
        ),
    ],
)
def test_user_paths_follow_xdg(environ: dict[str, str], state: str, runtime: str) -> None:
    found = paths(environ=environ, uid=1000)
    assert (found.state, found.runtime) == (state, runtime)


def test_every_path_is_in_state_or_runtime_directory() -> None:
    found = paths("/s", environ={})
    inside = (
        *(found.database, found.server_lock, found.server_file, found.agent_socket, found.agent),
        *(found.launcher_socket, found.attempts, found.logs, found.scratch),
    )
    assert all(path.startswith("/s/") for path in inside)
    assert len(set(inside)) == len(inside)
    assert "/s" in repr(found)
