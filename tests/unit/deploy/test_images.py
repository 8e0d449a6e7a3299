"""Images and the compose file name existing options, settings, files and ports."""

import json
import re
from argparse import ArgumentParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.cli.admin.start import register_agent, register_server
from gpu_scheduler.cli.cluster.status import register_health
from gpu_scheduler.settings.sources import load

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy" / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVER = (DOCKER / "server.Dockerfile").read_text()
COMMANDS = {"server": register_server, "agent": register_agent, "health": register_health}


def understood(words: list[str]) -> None:
    """Fail unless the command line accepts these arguments."""
    if words[:2] == ["python", "-m"]:
        assert find_spec(f"{words[2]}.__main__") is not None
        return
    assert words[0] == "tgpu"
    parser = ArgumentParser(exit_on_error=False)
    COMMANDS[words[1]](parser)
    parser.parse_args(words[2:])


def lists_in(text: str, instruction: str) -> list[list[str]]:
    return [json.loads(found) for found in re.findall(rf"{instruction} (\[.*\])", text)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_image_runs_existing_commands_from_existing_files(path: Path) -> None:
    text = path.read_text().replace("\\\n", " ")
    entry = lists_in(text, "ENTRYPOINT")
    assert len(entry) == 1
    for words in entry + lists_in(text, "CMD"):
        understood(words)
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, flags=re.MULTILINE):
        for source in line.split()[:-1]:
            made_by_build = source.startswith("dist/")
            assert made_by_build or (ROOT / source).is_file(), source
    # .dockerignore lets the files of the images through.
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    wanted = {"*", "!dist/*.whl", "!requirements/run.txt", "!requirements/kubernetes.txt"}
    assert wanted <= set(ignored)


def test_image_server_is_not_root_and_uses_default_ports() -> None:
    text = SERVER
    assert re.search(r"^USER gpu-scheduler$", text, flags=re.MULTILINE)
    api = load(None, environ={}).settings.api
    assert f"EXPOSE {api.http_port} {api.grpc_port} {api.metrics_port}" in text


@pytest.mark.parametrize("name", [name for name in COMPOSE["services"] if name != "database"])
def test_compose_service_has_existing_settings_and_options(name: str) -> None:
    service = COMPOSE["services"][name]
    variables = {
        variable: str(value).replace("${DATABASE_PASSWORD:-change-me}", "change-me")
        for variable, value in service.get("environment", {}).items()
    }
    loaded = load(None, environ=variables)
    if name.startswith("server"):
        assert loaded.settings.database.host in COMPOSE["services"]
        assert loaded.settings.server.address == f"http://{name}:8080"
    image = service["image"].removeprefix("gpu-scheduler-")
    entry = lists_in((DOCKER / f"{image}.Dockerfile").read_text(), "ENTRYPOINT")[0]
    understood(entry + service.get("command", []))
    for volume in service["volumes"]:
        assert volume.partition(":")[0] in COMPOSE["volumes"]


def test_commands_in_server_container_find_server() -> None:
    (entry,) = lists_in(SERVER, "ENTRYPOINT")
    state_dir = entry[entry.index("--state-dir") + 1]
    assert f"TGPU_SERVER={state_dir}\n" in SERVER
    assert f"VOLUME {state_dir}\n" in SERVER


@pytest.mark.parametrize("name", ["server-a", "server-b"])
def test_compose_server_owns_its_volume_and_has_time_to_stop(name: str) -> None:
    service = COMPOSE["services"][name]
    # A volume belongs to the image's user at first, and a server uses no directory of another user.
    assert "user" not in service
    assert "-o gpu-scheduler -g gpu-scheduler /var/lib/gpu-scheduler" in SERVER
    waits = load(None, environ={}).settings.scheduler.graceful_shutdown_timeout_s
    assert float(service["stop_grace_period"].removesuffix("s")) > waits
    assert service["init"] is True


@pytest.mark.parametrize("name", ["node-1", "node-2"])
def test_node_token_is_not_on_command_line_or_in_repository(
    name: str,
) -> None:
    service = COMPOSE["services"][name]
    assert "--token" not in service["command"]
    (secret,) = service["secrets"]
    settings = load(None, environ=service["environment"]).settings
    assert settings.agent.token_file == f"/run/secrets/{secret}"
    path = (DOCKER / COMPOSE["secrets"][secret]["file"]).relative_to(ROOT)
    assert str(path) in (ROOT / ".gitignore").read_text().splitlines()
    assert service["init"] is True
