"""`tgpu down` stops the named server and no other."""

import json
import os
import socket
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.cli.admin import down
from gpu_scheduler.cli.main import main
from gpu_scheduler.model.errors import InvalidRequest
from tests.acceptance.conftest import RealServer, a_state_dir

NOBODY = 65534


@pytest.fixture
def other() -> Iterator[RealServer]:
    """A second server beside that of the file."""
    with a_state_dir() as state_dir:
        running = RealServer(state_dir)
        running.start("1xA100")
        yield running


def facts(server: RealServer) -> dict[str, str]:
    """The contents of `server.json`; empty if the server has stopped."""
    file = Path(server.state_dir) / "server.json"
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


@pytest.mark.parametrize(("by", "name"), [("TGPU_SERVER", "state"), ("--server", "http")])
def test_down_stops_only_the_named_server(
    server: RealServer, other: RealServer, by: str, name: str
) -> None:
    stopped, before = facts(other), facts(server)
    words, variables = ((by, stopped[name]), {}) if by[0] == "-" else ((), {by: stopped[name]})
    told = server.tgpu("down", *words, **variables)
    assert told.stdout.startswith(f"server {stopped['pid']} stopped")
    assert not facts(other)
    assert facts(server) == before
    again = server.tgpu("down", *words, code=3, **variables)
    assert "no server answers at" in again.stderr


def test_up_and_down_report_json() -> None:
    with a_state_dir() as state_dir:
        own_server = RealServer(state_dir)
        where = ("--state-dir", own_server.state_dir)
        told = own_server.json("up", "--daemon", "--simulate", "1xA100", *where)
        log = told.pop("log")
        assert told == facts(own_server)
        assert Path(log).is_file()
        stopped = {"pid": told["pid"], "state": told["state"], "status": "stopped"}
        assert own_server.json("down", *where) == stopped


def test_state_dir_option_takes_precedence_over_environment_variable(
    server: RealServer, tmp_path: Path
) -> None:
    told = server.tgpu("down", "--state-dir", tmp_path, code=3)
    assert f"no server uses {tmp_path}" in told.stderr
    assert facts(server)


def test_down_rejects_several_servers_or_two_addresses(server: RealServer) -> None:
    told = server.tgpu("down", TGPU_SERVER=f"{server.state_dir},http://127.0.0.1:1", code=2)
    assert "names 2 servers" in told.stderr
    where = ("--state-dir", server.state_dir, "--server", server.state_dir)
    assert "leave out one" in server.tgpu("down", *where, code=2).stderr
    assert facts(server)


def test_down_leaves_unknown_listener_alone(server: RealServer) -> None:
    """As at the end of a tunnel to a remote server."""
    with socket.create_server(("127.0.0.1", 0)) as tunnel:
        address = f"http://127.0.0.1:{tunnel.getsockname()[1]}"
        told = server.tgpu("down", TGPU_SERVER=address, code=2)
    assert f"the server at {address} cannot be stopped" in told.stderr
    assert "behind a tunnel" in told.stderr
    assert facts(server)


def test_down_rejects_server_on_another_machine(
    server: RealServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(down, "_is_local", lambda _: False)
    monkeypatch.setenv("TGPU_SERVER", facts(server)["http"])
    assert main(["down"]) == 2
    assert "is on another machine (127.0.0.1); stop it there" in capsys.readouterr().err
    assert facts(server)


def test_down_accepts_only_addresses_of_this_machine() -> None:
    assert down._is_local("127.0.0.1")
    assert down._is_local("127.8.9.10")
    assert not down._is_local("192.0.2.1")
    assert not down._is_local("2001:db8::1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_down_rejects_server_of_another_user(server: RealServer) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(NOBODY)
        try:
            down.run(
                Namespace(state_dir=None, server=f"{server.state_dir}/server.sock", json=False)
            )
        except InvalidRequest as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        assert "it belongs to another user" in answer.read()
    os.waitpid(child, 0)
    assert facts(server)
