"""A file with the names of another scheduler means what its writer meant."""

from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidInput
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


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    return str(file)


def test_all_names_of_the_other_file_are_read_as_ours(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("quota:\n  online_percent: 70\n", "between 0.0 and 1.0"),
        ("quota:\n  offline_percent: 0.5\n", "no group 'quota'"),
        ("server:\n  http_address: eighty\n", "write host:port"),
        ("scheduler:\n  role: primary\n", "master"),
        ("logging:\n  format: xml\n", "json or text"),
    ],
)
def test_a_wrong_value_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InvalidInput, match="line 2") as error:
        load(written(tmp_path, text), environ={})
    assert told in str(error.value)
