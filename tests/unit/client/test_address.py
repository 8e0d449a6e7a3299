"""Server addresses and the default places where a server is found."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.client.address import candidates, read_address
from gpu_scheduler.model.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("unix:/run/x.sock", "unix:/run/x.sock"),
        ("unix:///run/x.sock", "unix:/run/x.sock"),
        ("/run/x.sock", "unix:/run/x.sock"),
        ("http://localhost:9000/", "http://localhost:9000"),
        ("http://127.0.0.1", "http://127.0.0.1:8080"),
        ("localhost:81", "http://localhost:81"),
        ("http://[::1]:81", "http://[::1]:81"),
        ("[::1]", "http://[::1]:8080"),
    ],
)
def test_address_is_parsed(text: str, meaning: str) -> None:
    assert str(read_address(text)) == meaning


@pytest.mark.parametrize(
    "text", ["http://x/y", "x:port", "https://x:port", "http://:80", "x:99999"]
)
def test_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="server"):
        read_address(text)


def test_state_directory_means_its_socket(tmp_path: Path) -> None:
    assert str(read_address(str(tmp_path))) == f"unix:{tmp_path}/server.sock"


def test_named_server_is_only_candidate() -> None:
    variables = {"TGPU_SERVER": "http://a:1", "HOME": "/h"}
    assert [str(one) for one in candidates("http://b:2", variables)] == ["http://b:2"]
    assert [str(one) for one in candidates(None, variables)] == ["http://a:1"]
    state = {"GPU_SCHEDULER_STATE_DIR": "/s"}
    assert [str(one) for one in candidates(None, state)] == ["unix:/s/server.sock"]


def test_own_server_precedes_system_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = [str(one) for one in candidates(None, {"HOME": "/h", "XDG_RUNTIME_DIR": "/run/user/1"})]
    assert found == [
        "unix:/run/user/1/gpu-scheduler/server.sock",
        "unix:/run/gpu-scheduler/server.sock",
    ]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert len(candidates(None, {"HOME": "/h"})) == 1
    first, second = candidates("/x.sock", {}), candidates("unix:/x.sock", {})
    assert first == second
    assert len({*first, *second}) == 1
