"""Precedence of the sources of settings, and errors with their place."""

import json
import os
from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.model.quota_tree import NodeQuota
from gpu_scheduler.settings.fields import SettingErrors
from gpu_scheduler.settings.sources import config_file, load


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def refusal(path: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load(written(path, text), environ={})
    return str(caught.value).replace(str(path), "config.yaml")


def test_defaults_apply_without_sources(tmp_path: Path) -> None:
    loaded = load(environ={"HOME": str(tmp_path)})
    assert loaded.settings.api.http_port == 8080
    assert loaded.settings.api.metrics_port == 9091
    assert loaded.settings.scheduler.max_queue_size >= 1_000_000
    assert set(loaded.origins.values()) == {"default"}


def test_flag_overrides_variable_which_overrides_file(config: Path) -> None:
    file = written(config, "api:\n  http_port: 1\n  grpc_port: 2\n  metrics_port: 3\n")
    environ = {"GPU_SCHEDULER_API_HTTP_PORT": "11", "GPU_SCHEDULER_API_GRPC_PORT": "12"}
    loaded = load(file, flags={"api.http_port": 21, "api.host": None}, environ=environ)
    api = loaded.settings.api
    assert (api.http_port, api.grpc_port, api.metrics_port) == (21, 12, 3)
    assert loaded.origins["api.http_port"] == "flag"
    assert loaded.origins["api.grpc_port"] == "variable GPU_SCHEDULER_API_GRPC_PORT"
    assert loaded.origins["api.metrics_port"] == f"{file}, line 4"
    assert loaded.origins["api.host"] == "default"


def test_json_file_is_read(tmp_path: Path) -> None:
    text = json.dumps({"gpu": {"memory_threshold": 1}, "logging": {"structured": False}}, indent=2)
    settings = load(written(tmp_path / "config.json", text), environ={}).settings
    assert settings.gpu.memory_threshold == 1.0
    assert settings.logging.structured is False


def test_file_is_chosen_by_flag_then_variable_then_default(tmp_path: Path) -> None:
    home = tmp_path / "home" / ".config" / "gpu-scheduler"
    home.mkdir(parents=True)
    usual = home / "config.yaml"
    usual.write_text("")
    environ = {"HOME": str(tmp_path / "home")}
    assert config_file(None, environ) == str(usual)
    environ["GPU_SCHEDULER_CONFIG"] = "/other.yaml"
    assert config_file(None, environ) == "/other.yaml"
    assert config_file("/named.yaml", environ) == "/named.yaml"


def test_unknown_key_error_names_line_and_nearest_key(config: Path) -> None:
    assert refusal(config, "api:\n  http_prot: 1\n") == (
        "config.yaml, line 2: there is no setting 'api.http_prot'; did you mean 'api.http_port'?"
    )
    assert refusal(config, "\nschedular:\n  num_gpus: 1\n") == (
        "config.yaml, line 2: there is no group 'schedular'; did you mean 'scheduler'?"
    )
    assert "did you mean 'jobs.queue_size_limit'?" in refusal(config, "api:\n  queue_size_limit: 1")
    assert "'database' has url" in refusal(config, "database:\n  xyzzy: 1\n")


def test_invalid_value_error_names_line_value_and_range(config: Path) -> None:
    assert refusal(config, "api:\n  http_port: 70000\n") == (
        "config.yaml, line 2: api.http_port is 70000; allowed is a whole number from 0 to 65,535"
    )
    assert "is 'high'; allowed is a number from 0 to 1" in refusal(
        config, "gpu:\n  load_threshold: high\n"
    )
    assert "is true; allowed is a whole number" in refusal(config, "api: {http_port: yes}")
    assert "is 1; allowed is true or false" in refusal(config, "policy: {elastic: 1}")
    assert "allowed is one of DEBUG, INFO" in refusal(config, "logging:\n  level: LOUD\n")
    assert "a list of strings" in refusal(config, "security:\n  allowed_script_paths: /tmp\n")
    assert "is nan" in refusal(config, "gpu: {load_threshold: .nan}")


def test_repeated_key_is_rejected(config: Path) -> None:
    assert refusal(config, "api:\n  http_port: 1\n  http_port: 2\n") == (
        "config.yaml, line 3: 'http_port' is repeated, first on line 2; remove one"
    )
    assert "line 3" in refusal(config, "api:\n  http_port: 1\napi:\n  grpc_port: 2\n")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("api: [1, 2", "line 1: not valid YAML or JSON"),
        ("- a\n- b\n", "the file must have entries of the form"),
        ("api: 5\n", "group 'api' must have entries of the form"),
        ("a: 1\n---\nb: 2\n", "not valid YAML or JSON"),
        ("api:\n  host: !!python/name:os.system x\n", "line 2: not valid YAML or JSON"),
    ],
)
def test_invalid_settings_file_is_rejected(config: Path, text: str, part: str) -> None:
    assert part in refusal(config, text)


def test_empty_file_or_group_changes_nothing(config: Path) -> None:
    assert set(load(written(config, ""), environ={}).origins.values()) == {"default"}
    assert set(load(written(config, "api:\n"), environ={}).origins.values()) == {"default"}


def test_file_writable_by_others_is_rejected(config: Path) -> None:
    file = written(config, "api: {http_port: 1}")
    config.chmod(0o666)
    with pytest.raises(InvalidInput, match="chmod o-w"):
        load(file, environ={})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_of_another_user_is_rejected(config: Path) -> None:
    file = written(config, "")
    os.chown(file, 12345, 12345)
    with pytest.raises(InvalidInput, match="uid 12345"):
        load(file, environ={})


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        load(str(tmp_path / "missing.yaml"), environ={})
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"api:\n  host: \xff\n")
    with pytest.raises(InvalidInput, match="line 2: is not UTF-8"):
        load(str(broken), environ={})
    large = tmp_path / "large.yaml"
    large.write_text("#" * 1_000_001)
    with pytest.raises(InvalidInput, match="larger"):
        load(str(large), environ={})


def test_variables_are_parsed_by_type_of_setting(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "GPU_SCHEDULER_SCHEDULER_ENABLE_PREEMPTION": "off",
        "GPU_SCHEDULER_SCHEDULER_THERMAL_THRESHOLD": "80",
        "GPU_SCHEDULER_SECURITY_ALLOWED_SCRIPT_PATHS": "/data, /home",
        "GPU_SCHEDULER_AGENT_NODE_NAME": "box",
        "GPU_SCHEDULER_STATE_DIR": "/tmp/x",
    }
    settings = load(environ=environ).settings
    assert settings.scheduler.enable_preemption is False
    assert settings.scheduler.thermal_threshold == 80.0
    assert settings.security.allowed_script_paths == ("/data", "/home")
    assert settings.agent.node_name == "box"


def test_invalid_variable_is_named(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    with pytest.raises(InvalidRequest) as caught:
        load(environ=home | {"GPU_SCHEDULER_API_HTTP_PROT": "1"})
    assert "did you mean GPU_SCHEDULER_API_HTTP_PORT?" in str(caught.value)
    with pytest.raises(InvalidRequest) as caught:
        load(environ=home | {"GPU_SCHEDULER_API_HTTP_PORT": "many"})
    assert str(caught.value) == (
        "variable GPU_SCHEDULER_API_HTTP_PORT: api.http_port is 'many'; "
        "allowed is a whole number from 0 to 65,535"
    )


def test_invalid_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"did you mean 'api\.host'"):
        load(flags={"api.hots": "x"}, environ={"HOME": str(tmp_path)})
    flags = {"api.http_port": "0"}
    assert load(flags=flags, environ={"HOME": str(tmp_path)}).settings.api.http_port == 0


def test_postgresql_settings_are_read(config: Path) -> None:
    file = written(config, "database:\n  host: localhost\n  port: 5433\n")
    loaded = load(file, environ={"GPU_SCHEDULER_DATABASE_PASSWORD": "gpu123"})
    assert loaded.notices == ()
    assert loaded.settings.database.port == 5433
    assert loaded.settings.database.is_postgresql


def test_postgresql_variables_do_not_stop_sqlite_server(tmp_path: Path) -> None:
    environ = {
        "HOME": str(tmp_path),
        "GPU_SCHEDULER_DATABASE_PASSWORD": "gpu123",
        "GPU_SCHEDULER_DATABASE_PORT": "5433",
        "GPU_SCHEDULER_API_HTTP_PORT": "8080",
    }
    loaded = load(environ=environ)
    assert loaded.settings.api.http_port == 8080
    assert [notice.partition(": ")[2] for notice in loaded.notices] == [
        "database.port has no effect with SQLite; set database.host as well",
        "database.password has no effect with SQLite; set database.host as well",
    ]


# --- tenants and `auth: off`


def test_tenants_in_file_have_api_fields(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("tenants:\n  vision: {linux_groups: [vision], max_gpus: 8}\n  audio:\n")
    vision, audio = load(str(file), environ={}).settings.tenants
    assert (vision.id, vision.patch.linux_groups, vision.patch.max_gpus) == (
        "vision",
        ["vision"],
        8,
    )
    assert (audio.id, audio.origin) == ("audio", f"{file}, line 3")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants:\n  a b: {}\n", "line 2: tenant 'a b' is not a valid id"),
        ("tenants:\n  vision: {max_gpu: 8}\n", "line 2: tenant 'vision': .*max_gpu"),
        ("tenants:\n  vision: {max_gpus: -1}\n", "tenant 'vision': max_gpus: expected a number"),
        ("tenants:\n  vision: [1]\n", "line 2: tenant 'vision': "),
        ("tenants: 3\n", "line 1: tenants must have entries of the form"),
        ("auth: maybe\n", "line 1: group 'auth' must have entries of the form"),
    ],
)
def test_invalid_tenant_is_rejected_with_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        load(str(file), environ={})


# --- the quota tree


def test_quota_tree_is_read_with_limits_in_total_and_by_model(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "quota_tree:\n"
        "  science: {guaranteed_gpus: 13, models: {A100: {guaranteed_gpus: 4}}, max_gpus: 24}\n"
        "  physics: {parent: science, guaranteed_gpus: 8, weight: 2, budget_gpu_hours: 10}\n"
        "  optics: {parent: physics, guaranteed_gpus: 4.5, lending_limit: 2, borrowing_limit: 1}\n"
        "  optics/ann: {parent: optics, max_gpus: 2}\n"
        "  biology: {parent: science, models: {A100: {guaranteed_gpus: 4, max_gpus: 6}}}\n"
        "  guests:\n"
    )
    nodes = {node.name: node for node in load(str(file), environ={}).settings.quota_tree}
    assert nodes["science"].quotas == (
        NodeQuota(guaranteed_milli=13_000, maximum_milli=24_000),
        NodeQuota(model="A100", guaranteed_milli=4000),
    )
    assert nodes["optics"].quotas == (
        NodeQuota(guaranteed_milli=4500, borrowing_limit_milli=1000, lending_limit_milli=2000),
    )
    assert nodes["biology"].quotas == (
        NodeQuota(guaranteed_milli=4000),
        NodeQuota(model="A100", guaranteed_milli=4000, maximum_milli=6000),
    )
    assert {node.name: node.parent for node in nodes.values()} == {
        "biology": "science",
        "guests": "",
        "optics": "physics",
        "optics/ann": "optics",
        "physics": "science",
        "science": "",
    }
    physics = nodes["physics"]
    assert (physics.weight_milli, physics.budget_gpu_milli_ms) == (2000, 10 * 1000 * 3_600_000)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ("a: {parent: b}\n  b: {parent: a}", "line 2: quota_tree: node 'a' is below itself"),
        ("a: {}\n  b: {parent: nine}", "line 3: .*'b' has parent 'nine', which is not in the tree"),
        (
            "a: {guaranteed_gpus: 2}\n  b: {parent: a, guaranteed_gpus: 3}",
            "line 2: .*'a' is guaranteed 2 GPUs, and its children 3 GPUs together",
        ),
        (
            (
                "a: {guaranteed_gpus: 4, models: {A100: {guaranteed_gpus: 1}}}\n"
                "  b: {parent: a, models: {A100: {guaranteed_gpus: 2}}}"
            ),
            "'a' is guaranteed 1 GPUs of A100, and its children 2 GPUs together",
        ),
        ("a: {guaranteed_gpus: 4, max_gpus: 3}", "the maximum must not be less"),
        ("a: {guaranteed_gpus: 4, lending_limit: 5}", "cannot lend more than it is guaranteed"),
        (
            "a: {guaranteed_gpus: 1, models: {A100: {guaranteed_gpus: 2}}}",
            "guaranteed 1 GPUs in total, and 2 GPUs by model",
        ),
        ("a: {max_gpu: 3}", "line 2: node 'a' of quota_tree: .*max_gpu"),
        ("a: {guaranteed_gpus: -1}", "node 'a' of quota_tree: guaranteed_gpus"),
        ("a: {weight: 0}", "node 'a' of quota_tree: weight"),
        ("a b: {}", "line 2: quota_tree: 'a b' is not the name of a node"),
        ("cluster: {}", "'cluster' is the name of the root"),
        ("a: {}\n  a/ann: {}", "'a/ann' is for one user of tenant 'a'.* write parent: a"),
        ("a: {}\n  a: {}", "line 3"),
    ],
)
def test_invalid_quota_tree_is_rejected_with_line(tmp_path: Path, tree: str, said: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"quota_tree:\n  {tree}\n")
    with pytest.raises(InvalidInput, match=said):
        load(str(file), environ={})


def test_model_of_a_quota_may_be_spelt_in_any_case(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("quota_tree:\n  a: {models: {h100: {guaranteed_gpus: 4}}}\n")
    (node,) = load(str(file), environ={}).settings.quota_tree
    assert node.guaranteed_milli("H100") == 4000
    assert node.origin == f"{file}, line 2"


def test_quota_tree_has_at_most_sixteen_levels(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    chain = [f"  n{level}: {{parent: n{level - 1}}}\n" for level in range(1, 17)]
    file.write_text("quota_tree:\n  n0:\n" + "".join(chain[:-1]))
    assert len(load(str(file), environ={}).settings.quota_tree) == 16
    file.write_text("quota_tree:\n  n0:\n" + "".join(chain))
    with pytest.raises(InvalidInput, match="node 'n16' is on level 17; at most 16 levels"):
        load(str(file), environ={})


def test_auth_off_is_short_for_setting(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("auth: off\n")
    loaded = load(str(file), environ={})
    assert loaded.settings.auth.enabled is False
    assert loaded.origins["auth.enabled"] == f"{file}, line 1"


# --- several mistakes


def test_all_errors_are_reported_with_their_places(
    config: Path,
) -> None:
    file = written(
        config,
        "api:\n  http_prot: 81\n  http_port: many\n  http_port: 3\nlogginx: {}\njobs: [1]\n"
        "tenants:\n  a b: {}\n  two: {nonsense: 1}\n"
        "notifications:\n  targets: {a: {kind: 3}, b: 4}\n",
    )
    environ = {"GPU_SCHEDULER_JOBS_GRACE_S": "long", "GPU_SCHEDULER_API_PROT": "1"}
    with pytest.raises(SettingErrors) as caught:
        load(file, flags={"logging.level": "LOUD", "x.y": 1}, environ=environ)
    places = [told.replace(file, "f").partition(": ")[0] for told in caught.value.messages]
    assert places == [
        *(f"f, line {line}" for line in (2, 3, 4, 5, 6, 11, 11, 8, 9)),
        "variable GPU_SCHEDULER_API_PROT names no setting; did you mean GPU_SCHEDULER_API_HOST?",
        "variable GPU_SCHEDULER_JOBS_GRACE_S",
        *("command line", "command line"),
    ]
    first, *lines = str(caught.value).split("\n")
    assert first == "13 errors in the settings:"
    assert [line.strip() for line in lines] == list(caught.value.messages)
    assert caught.value.exit_code == 2


def test_variables_are_read_even_if_file_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(SettingErrors) as caught:
        load(str(tmp_path / "none.yaml"), environ={"GPU_SCHEDULER_JOBS_GRACE_S": "long"})
    assert len(caught.value.messages) == 2


def test_single_error_is_raised_as_it_is(config: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        load(written(config, "jobs:\n  grace_s: long\n"), environ={})
    assert str(caught.value) == (
        f"{config}, line 2: jobs.grace_s is 'long'; allowed is a number from 0 to 3,600"
    )
