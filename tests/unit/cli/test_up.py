"""What `tgpu up` rejects before it starts anything."""

import socket
from pathlib import Path

import pytest

from gpu_scheduler.cli.admin.start import show_started, warn_of_shared_server
from gpu_scheduler.cli.main import COMMANDS, main, parser_for
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.file_paths import Paths

FACTS = dict.fromkeys(("version", "http", "metrics", "socket", "state", "nodes"), "")


def test_next_step_names_server_that_is_not_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hardware = {"summary": "", "problem": "", "gpus": 1}
    facts = FACTS | {"socket": "/x y/server.sock", "state": "/x y", "pid": 1, "node": "n0"}
    for named, step in (
        ("/elsewhere", "export TGPU_SERVER='/x y'; tgpu submit"),
        ("no:address", "export TGPU_SERVER='/x y'; tgpu submit"),
        ("unix:/x y/server.sock", "tgpu submit"),
    ):
        monkeypatch.setenv("TGPU_SERVER", named)
        show_started({**facts, "hardware": hardware})
        assert f"next     {step} --gpus 1" in capsys.readouterr().out


def test_next_step_requests_gpu_only_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = FACTS | {"socket": "/x/server.sock"}
    monkeypatch.setenv("TGPU_SERVER", "/x/server.sock")
    for gpus, step in ((0, "tgpu submit -- python"), (8, "tgpu submit --gpus 1 -- python")):
        hardware = {"summary": "", "problem": "", "gpus": gpus}
        show_started({**facts, "pid": 1, "node": "n0", "hardware": hardware})
        assert f"next     {step} train.py" in capsys.readouterr().out


def test_second_scheduler_beside_system_one_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpu_scheduler.settings.file_paths.ROOT_RUNTIME", str(tmp_path))
    own = Paths(state=str(tmp_path), runtime=str(tmp_path / "own"))
    warn_of_shared_server(own)
    assert capsys.readouterr().err == ""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/server.sock")
        listening.listen()
        warn_of_shared_server(own)
        assert "warning: a server for all users is already running" in capsys.readouterr().err
        warn_of_shared_server(own, is_simulated=True)
        told = capsys.readouterr().err
        assert "your commands use this one" in told
        assert "allocated" not in told
        warn_of_shared_server(Paths(state=str(tmp_path), runtime=str(tmp_path)))
    warn_of_shared_server(own)  # its socket is left, and no process listens
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", [[], ["--daemon"]])
@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("banana", "cannot read 'banana'; expected COUNTxMODEL-MEMORY"),
        ("8xFOO", "the memory of a 'FOO' is not known; add it, as in 8xFOO-24GB"),
        ("0xA100", "asks for 0 GPUs"),
    ],
)
def test_invalid_gpu_declaration_is_rejected_at_once(
    how: list[str],
    declared: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    state = tmp_path / "state"
    assert main(["up", "--state-dir", str(state), "--simulate", declared, *how]) == 2
    assert message in capsys.readouterr().err
    assert not state.exists()


@pytest.mark.parametrize("command", ["up", "server"])
@pytest.mark.parametrize(
    "option", ["--simulate", "--state-dir", "--config", "--policy", "--node-name", "--log-level"]
)
def test_empty_option_value_is_rejected(option: str, command: str) -> None:
    # Only parsed: executed, it would start a real server in the default place.
    _, parser = parser_for(command, COMMANDS[command])
    with pytest.raises(InvalidRequest, match=f"{option} is empty; is a variable not set"):
        parser.read([option, ""])


@pytest.mark.parametrize(
    "option",
    ["--server", "--token", "--token-file", "--config", "--name", "--simulate", "--work-dir"],
)
def test_empty_option_value_is_rejected_by_agent(option: str) -> None:
    _, parser = parser_for("agent", COMMANDS["agent"])
    for word in ("", " "):
        with pytest.raises(InvalidRequest, match=f"{option} is empty; is a variable not set"):
            parser.read([option, word])


def test_empty_server_is_rejected_by_every_command() -> None:
    for name in COMMANDS:
        _, parser = parser_for(name, COMMANDS[name])
        for action in (a for a in parser._actions if "--server" in a.option_strings):
            assert callable(action.type), f"{name} takes any word"
            with pytest.raises(InvalidRequest, match="--server is empty"):
                action.type("")


def test_agent_with_missing_token_file_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["agent", "--server", "127.0.0.1:1", "--name", "n1", "--simulate", "1xH100"]
    file, work = tmp_path / "join.token", str(tmp_path / "n1")
    assert main([*words, "--work-dir", work, "--token-file", str(file)]) == 2
    told = capsys.readouterr().err
    assert f"the token file {file} is missing or empty, and node 'n1' has not joined" in told
