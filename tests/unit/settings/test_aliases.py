"""A settings file with the names of another scheduler."""

from pathlib import Path

import pytest

from gpu_scheduler.cli.admin.start import _config
from gpu_scheduler.cli.main import main
from gpu_scheduler.model.errors import InvalidInput
from gpu_scheduler.server.agent_process import node_name
from gpu_scheduler.settings.sources import load

FILE = """
server:
  grpc_address: ":9191"
  http_address: "127.0.0.1:8181"
scheduler:
  role: "standby"
  schedule_interval: 5
  snapshot_interval: 30
replication:
  enabled: true
  peer_address: "scheduler-standby:9090"
  heartbeat_interval: 3
  heartbeat_timeout: 9
quota:
  online_percent: 0.7
  batch_percent: 0.3
agent:
  heartbeat_timeout: 20
storage:
  snapshot_dir: "/var/lib/dgpu-scheduler/state"
logging:
  level: "info"
  format: "json"
  output: "stdout"
"""
AGENT_FILE = """
agent:
  id: ""
  heartbeat_interval: 5
scheduler:
  master_address: "scheduler-master:9090"
  standby_address: "scheduler-standby:9090"
  connection_timeout: 10
  retry_interval: 2
  max_retry_interval: 30
gpu:
  detection_method: "nvml"
  health_check_interval: 30
executor:
  execution_method: "docker"
  work_dir: "/var/lib/dgpu-agent/tasks"
  docker:
    socket: "/var/run/docker.sock"
    default_image: "nvidia/cuda:12.0-runtime-ubuntu22.04"
logging:
  level: "info"
  format: "json"
  output: "stdout"
"""


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    return str(file)


def test_all_names_of_other_scheduler_file_are_read(tmp_path: Path) -> None:
    loaded = load(written(tmp_path, FILE), environ={})
    settings = loaded.settings
    assert (settings.api.grpc_port, settings.api.http_port) == (9191, 8181)
    assert settings.server.role == "standby"
    assert settings.scheduler.scheduling_interval_ms == 5000
    replication = settings.replication
    assert (replication.heartbeat_interval_s, replication.heartbeat_timeout_s) == (3, 9)
    assert (settings.policy.online_percent, settings.policy.batch_percent) == (70, 30)
    assert settings.nodes.suspect_after_s == 20
    assert settings.logging.level == "INFO"
    assert settings.logging.structured
    assert loaded.origins["policy.online_percent"].endswith("scheduler.yaml, line 15")
    assert [notice.partition(": ")[2].split()[0] for notice in loaded.notices] == [
        "scheduler.snapshot_interval",
        "storage.snapshot_dir",
    ]


def test_all_names_of_other_agent_file_are_used_by_agent(tmp_path: Path) -> None:
    text = AGENT_FILE.replace('id: ""', 'id: "n7"').replace("interval: 5", "interval: 4")
    loaded = load(written(tmp_path, text), environ={})
    config = _config(loaded.settings, {}, "")
    assert config.node == "n7"
    assert config.heartbeat_interval_s == 4
    assert config.targets == ("scheduler-master:9090", "scheduler-standby:9090")
    assert config.connection_timeout_s == 10
    assert (config.retry_interval_s, config.max_retry_interval_s) == (2, 30)
    assert (config.detection_method, config.monitor_interval_s) == ("nvml", 30)
    assert config.execution_methods == ("container",)
    assert config.dir == "/var/lib/dgpu-agent/tasks/agent"
    assert [notice.partition(": ")[2].split()[0] for notice in loaded.notices] == [
        "executor.docker.socket",
        "executor.docker.default_image",
    ]


def test_other_agent_file_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, AGENT_FILE)
    assert main(["config", "check", file]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith(": valid\n")
    assert "executor.docker.default_image has no effect: each job names its own image" in shown.err
    where = ["--work-dir", str(tmp_path / "n"), "--token-file", str(tmp_path / "no token")]
    assert main(["agent", "--config", file, *where]) == 2
    told = capsys.readouterr().err
    assert "has not joined;" in told, "it is refused for its token alone"
    assert node_name(load(file, environ={}).settings) in told, "an empty id is the host's name"


def test_agent_file_with_one_server_gives_one(tmp_path: Path) -> None:
    text = 'scheduler:\n  master_address: "localhost:19090"\n  standby_address: ""\n'
    text += "executor:\n  execution_method: process\n  docker:\n"
    settings = load(written(tmp_path, text), environ={}).settings
    assert settings.agent.servers == ("localhost:19090",)
    assert settings.agent.execution_methods == ("process",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quota:\n  online_percent: 70\n", "between 0.0 and 1.0"),
        ("quota:\n  offline_percent: 0.5\n", "no group 'quota'"),
        ("server:\n  http_address: eighty\n", "write host:port"),
        ("scheduler:\n  role: primary\n", "master"),
        ("logging:\n  format: xml\n", "json or text"),
        ("executor:\n  execution_method: vm\n", "docker or process"),
        ("executor:\n  docker: {sokcet: /x}\n", "executor.docker.socket"),
        ("executor:\n  docker: yes\n", "executor.docker is True"),
        ("scheduler:\n  master_address: 9090\n", "write host:port"),
        ("scheduler:\n  retry_interval: soon\n", "agent.retry_interval_s is 'soon'"),
    ],
)
def test_invalid_value_is_rejected_with_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match="line 2") as error:
        load(written(tmp_path, text), environ={})
    assert told in str(error.value)
