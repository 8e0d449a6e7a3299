"""Settings with named entries: notification targets and prices."""

from pathlib import Path

import pytest

from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.settings.sources import load


def loaded(tmp_path: Path, text: str):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load(str(path), environ={}).settings


def test_entries_are_keyed_by_name(tmp_path: Path) -> None:
    settings = loaded(
        tmp_path,
        "notifications:\n  targets:\n    slack: {kind: webhook, url: https://hooks.example/x,"
        " events: [fail, gpu_free]}\n    mail:\n      kind: email\n      to: '{user}@lab.example'\n"
        "      for_jobs: true\ncosts:\n  gpu_hour: {A100: 1.5, RTX 4090: 1}\n",
    )
    targets = settings.notifications.targets
    assert (targets["slack"].events, targets["mail"].to) == (
        ("fail", "gpu_free"),
        "{user}@lab.example",
    )
    assert settings.costs.gpu_hour == {"A100": 1.5, "RTX 4090": 1.0}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{kind: pigeon, to: x}", "entry 'a'.*pigeon"),
        ("{kind: email, to: 5}", "entry 'a': to: expected a string, got a whole number"),
        ("{kind: webhook}", "needs url or url_file"),
        ("{kind: webhook, url: 'ftp://x'}", "http:// or https://"),
        ("{kind: email, to: x, url: 'https://x'}", "email has no url"),
        ("{kind: command, command: [page]}", "give an absolute path"),
        ("{kind: email, to: x, event: [end]}", "unknown field `event`"),
        ("{kind: email, to: x, events: [lunch]}", "lunch"),
        ("5", "entry 'a'"),
    ],
)
def test_invalid_entry_is_rejected_with_file_line_and_name(
    tmp_path: Path, entry: str, said: str
) -> None:
    with pytest.raises(SchedulerError, match=said) as refused:
        loaded(tmp_path, f"notifications:\n  targets:\n    a: {entry}\n")
    assert "config.yaml" in str(refused.value)
    assert "line 3" in str(refused.value)


def test_non_table_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match="names with values"):
        loaded(tmp_path, "costs:\n  gpu_hour: [1, 2]\n")
    with pytest.raises(SchedulerError, match="A100"):
        loaded(tmp_path, "costs:\n  gpu_hour: {A100: -1}\n")


def test_variable_holds_table_as_json() -> None:
    variables = {"GPU_SCHEDULER_COSTS_GPU_HOUR": '{"A100": 2}'}
    assert load(None, environ=variables | {"HOME": "/nonexistent"}).settings.costs.gpu_hour == {
        "A100": 2.0
    }
    with pytest.raises(SchedulerError, match="GPU_SCHEDULER_COSTS_GPU_HOUR"):
        load(None, environ={"GPU_SCHEDULER_COSTS_GPU_HOUR": "{", "HOME": "/nonexistent"})


def test_name_of_an_invalid_entry_is_reported_first(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match=r"has an entry 7; it needs a name"):
        loaded(tmp_path, "notifications:\n  targets:\n    7: {kind: pigeon, to: x}\n")
