"""`tgpu config` prints, explains and checks settings."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.main import main
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.server.agent_process import agent_config_of
from gpu_scheduler.server.settings_rules import NODE_RULES, RULES, Rule
from gpu_scheduler.settings.catalogue import ITEMS, sample
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def test_sample_is_valid_settings_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample"]) == 0
    text = capsys.readouterr().out
    assert text == sample()
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: valid\n"


@pytest.mark.parametrize("words", [["sample"], ["schema"]], ids=" ".join)
def test_print_only_commands_reject_file_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    path = tmp_path / "c.yaml"
    assert main(["config", *words, str(path)]) == 2
    shown = capsys.readouterr()
    assert f"config {words[0]} > {path}" in shown.err
    assert shown.out == ""


def test_json_sample_has_every_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "sample", "--json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["api"]["http_port"] == 8080
    path = tmp_path / "c.json"
    path.write_text(text)
    assert main(["config", "check", "--json", "--config", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True


def test_show_prints_values_and_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("api:\n  http_port: 81\nsecurity:\n  admins: [ada, bob]\n")
    monkeypatch.setenv("GPU_SCHEDULER_CONFIG", str(path))
    monkeypatch.setenv("GPU_SCHEDULER_POLICY_ELASTIC", "no")
    assert main(["config", "show", "--tabs"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert f"api.http_port\t81\t{path}, line 2" in shown
    assert "policy.elastic\tfalse\tvariable GPU_SCHEDULER_POLICY_ELASTIC" in shown
    assert "api.metrics_port\t9091\tdefault" in shown
    assert main(["config", "show", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["security.admins"]["value"] == ["ada", "bob"]


def test_show_explains_one_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPU_SCHEDULER_GPU_SIMULATE", "2xA100-80GB")
    assert main(["config", "show", "gpu.simulate"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"value +2xA100-80GB\n", shown)
    assert re.search(r"about +Declared GPUs instead of real ones", shown)
    for word, told in (
        ("gpu.simulat", "did you mean 'gpu.simulate'?"),
        ("num_gpus", "did you mean 'scheduler.num_gpus'?"),
        ("jobs.yaml", "jobs.yaml: cannot be read"),
    ):
        assert main(["config", "show", word]) == 2
        assert told in capsys.readouterr().err


def test_setting_without_its_group_is_answered_with_the_group(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"num_gpus": 2}')
    assert main(["config", "check", str(file)]) == 2
    told = "there is no group 'num_gpus'; write it in its group, as in scheduler: {num_gpus: ...}"
    assert told in capsys.readouterr().err


def test_invalid_file_returns_2_and_names_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("api:\n  http_prot: 81\n")
    assert main(["config", "check", str(path)]) == 2
    assert f"{path}, line 2: there is no setting" in capsys.readouterr().err
    assert main(["config", "check", str(path), "--config", "/other"]) == 2


def test_setting_without_effect_is_noted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_SCHEDULER_DATABASE_PORT", "5433")
    assert main(["config", "check"]) == 0
    shown = capsys.readouterr()
    assert "no effect with SQLite" in shown.err
    assert "no file; variables and defaults: valid" in shown.out


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["api"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            "nodes: {suspect_after_s: 5}",
            "one late heartbeat would make a node suspect",
            id="suspect",
        ),
        pytest.param("nodes: {lost_after_s: 15}", "suspect before it is lost", id="lost"),
        pytest.param("nodes: {lease_s: 30}", "on nodes that are not lost yet", id="lease"),
        pytest.param(
            "replication: {heartbeat_timeout_s: 3}", "at least twice the interval", id="replication"
        ),
        pytest.param("api: {host: 0.0.0.0}", "others on the network could read tokens", id="plain"),
        pytest.param("api: {tls_key: k.pem}", "needs both", id="half-a-certificate"),
        pytest.param("grpc: {host: 0.0.0.0, tls: 'off'}", "without TLS", id="grpc"),
        pytest.param("server: {address: ftp://a}", "server.address cannot be used", id="address"),
        pytest.param("database: {url: mysql://a/b}", "begins with 'mysql'", id="database"),
        pytest.param(
            "agent: {execution_methods: [foo]}",
            'agent.execution_methods is ["foo"]; allowed is some of process, tmux',
            id="methods",
        ),
        pytest.param(
            "agent: {retry_interval_s: 9}",
            "agent.retry_interval_s is 9 and agent.max_retry_interval_s is 5",
            id="retry",
        ),
        pytest.param(
            "database: {pool_min: 9, pool_max: 2}",
            "database.pool_min is 9 and database.pool_max is 2; set pool_min to 2 or less",
            id="pool",
        ),
        pytest.param(
            "database: {host: h, pool_min: 9}", "database.pool_max is 8", id="pool-of-postgresql"
        ),
        pytest.param(
            "database: {url: 'postgresql://u:secret@a/d', host: b}",
            "database.url names 'a' and database.host is 'b'; leave out one of them",
            id="two-hosts",
        ),
        pytest.param(
            "database: {url: 'sqlite:///d/x.db', host: b}",
            "database.url names 'file /d/x.db' and database.host is 'b'",
            id="file-and-host",
        ),
        pytest.param(
            "quota: {online_percent: 0.7, batch_percent: 0.4}",
            "policy.online_percent is 70 and policy.batch_percent is 40, which is 110 per cent",
            id="pools",
        ),
        pytest.param(
            'gpu:\n  simulate: "\x07"',
            "line 2: has an invalid character (#x0007)",
            id="character",
        ),
        pytest.param("gpu: {simulate: 8x}", "8x", id="declared"),
        pytest.param("auth: {jwt_key_file: /k}", "auth.jwt_issuer is missing", id="issuer"),
        pytest.param(
            "notifications: {ca_file: /none.pem}", "notifications.ca_file", id="notifications"
        ),
        pytest.param(
            "security: {allowed_script_paths: [data]}", "has 'data'; each entry", id="scripts"
        ),
        pytest.param(
            "security: {conda_roots: [/opt/../home]}", "has '/opt/../home'", id="conda-roots"
        ),
    ],
)
def test_check_rejects_what_server_start_rejects_in_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 2
    checked = capsys.readouterr()
    assert why in checked.err
    assert "secret" not in checked.err
    assert "good" not in checked.out
    state = str(tmp_path / "s")
    assert main(["server", "--config", str(path), "--state-dir", state]) == 2
    assert capsys.readouterr().err == checked.err
    assert not Path(state).exists()


def test_check_prints_warnings_of_server_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("auth: {enabled: false}")
    assert main(["config", "check", "--json", str(path)]) == 0
    shown = capsys.readouterr()
    assert "note: auth is off" in shown.err
    assert "auth is off" in json.loads(shown.out)["notices"][0]


@pytest.mark.parametrize(
    "text",
    [
        "database: {url: 'postgresql://u@a/d', host: a}",
        "database: {url: 'postgresql:///d', host: a, pool_max: 1}",
        "policy: {online_percent: 70}",
        "policy: {online_percent: 70, batch_percent: 30}",
        "agent: {retry_interval_s: 5, execution_methods: [docker, tmux]}",
        "nodes: {fencing_command: [sh, -c, 'exit 1']}",
    ],
)
def test_redundant_or_incomplete_settings_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert main(["config", "check", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_check_warns_of_missing_fencing_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("nodes: {fencing_command: [/opt/fence, now]}")
    assert main(["config", "check", str(path)]) == 0
    told = capsys.readouterr().err
    assert "note: nodes.fencing_command begins with '/opt/fence', which is not an" in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("agent: {retry_interval_s: 9}", "so the first wait is longer than the longest"),
        ("agent: {execution_methods: [foo]}", "allowed is some of process"),
    ],
)
def test_agent_does_not_start_with_unworkable_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    work = tmp_path / "n"
    words = ["agent", "--server", "127.0.0.1:1", "--token", "t", "--work-dir", str(work)]
    assert main([*words, "--config", str(path)]) == 2
    assert why in capsys.readouterr().err
    assert not work.exists()


def test_every_runner_can_be_allowed_and_docker_means_container() -> None:
    assert set(Runner) <= set(ITEMS["agent.execution_methods"].choices)
    agent = replace(Settings().agent, execution_methods=("docker", "tmux", "podman"))
    config = agent_config_of(replace(Settings(), agent=agent), Paths("/s", "/r"))
    assert config.execution_methods == ("container", "tmux")


def test_check_warns_of_misspelt_tenant_in_the_quota_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("tenants: {vision: {}}\nquota_tree:\n  vison: {guaranteed_gpus: 2}\n")
    assert main(["config", "check", str(path)]) == 0
    told = capsys.readouterr().err
    assert f"note: {path}, line 3: node 'vison' of quota_tree has no children" in told
    assert "did you mean 'vision'?" in told


def test_check_warns_that_owners_get_no_notification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = '{kind: email, to: "{user}@lab.example", for_jobs: true}'
    path = tmp_path / "c.yaml"
    path.write_text(f"notifications: {{targets: {{mail: {target}, chat: {target}}}}}")
    assert main(["config", "check", str(path)]) == 0
    assert "(mail, chat) and no default one" in capsys.readouterr().err


def test_check_and_start_report_all_errors_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "jobs: {grace_s: long}\nserver: {address: ftp://a}\ngpu: {simulate: 8x}\n"
        "security:\n  allowed_script_paths: [data]\n  conda_roots: [/a/../b]\n"
        "nodes: {suspect_after_s: soon, lost_after_s: 1}\n"
    )
    assert main(["config", "check", str(path)]) == 2
    told = capsys.readouterr().err
    head, *lines = told.rstrip().split("\n")
    assert head == "tgpu: error: 6 errors in the settings:"
    places = [line.partition(": ")[0].strip() for line in lines]
    assert places == [f"{path}, line {number}" for number in (1, 7, 2, 3, 5, 6)]
    state = str(tmp_path / "s")
    for command in (["server"], ["up"], ["up", "--daemon"]):
        assert main([*command, "--config", str(path), "--state-dir", state]) == 2
        assert capsys.readouterr().err == told
    assert not Path(state).exists()


@pytest.mark.parametrize(
    ("groups", "rule"),
    [pytest.param(*row, id=row[1].__name__) for row in (*RULES, *NODE_RULES)],
)
def test_rule_reads_only_its_declared_groups(groups: str, rule: Rule) -> None:
    settings: Any = Reading()
    rule(settings)
    assert settings.read <= set(groups.split())


class Reading:
    """Settings that record which of their groups are read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(Settings(), name)
