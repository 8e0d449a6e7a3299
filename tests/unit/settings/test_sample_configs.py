"""The sample files in configs/ are valid."""

import re
from pathlib import Path

import pytest
import yaml

from gpu_scheduler.cli.admin.start import _config
from gpu_scheduler.settings.sources import load

CONFIGS = Path(__file__).parents[3] / "configs"
UNITS = Path(__file__).parents[3] / "deploy" / "systemd"


def with_examples(text: str) -> str:
    """The file with every commented-out setting enabled; prose begins with '# '."""
    return re.sub(r"^( +)#(?! )", r"\1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", ["server.yaml", "agent.yaml"])
def test_sample_is_valid_as_is_and_with_examples(name: str, tmp_path: Path) -> None:
    assert load(str(CONFIGS / name), environ={}).notices == ()
    whole = tmp_path / name
    whole.write_text(with_examples((CONFIGS / name).read_text("utf-8")), encoding="utf-8")
    read = load(str(whole), environ={})
    for group, values in yaml.safe_load(whole.read_text("utf-8")).items():
        assert values, f"{group} has nothing to show"
        for key in values:
            assert read.origins[f"{group}.{key}"].startswith(str(whole)), key


def test_agent_sample_gives_startable_agent() -> None:
    settings = load(str(CONFIGS / "agent.yaml"), environ={}).settings
    # The token comes from its file, which is written on the node.
    config = _config(settings, settings.agent.labels, "a token")
    assert config.targets == ("head1.example:9090", "head2.example:9090")
    assert (config.retry_interval_s, config.max_retry_interval_s) == (0.1, 30)
    assert config.logs_days == 30


@pytest.mark.parametrize("name", ["server", "agent"])
def test_unit_keeps_jobs_running_and_names_config_of_sample(name: str) -> None:
    unit = (UNITS / f"gpu-scheduler-{name}.service").read_text("utf-8")
    assert "\nKillMode=process\n" in unit
    assert "\nDelegate=yes\n" in unit
    assert f"tgpu {name} --config /etc/gpu-scheduler/{name}.yaml\n" in unit
    assert f"cp configs/{name}.yaml /etc/gpu-scheduler/{name}.yaml" in unit
