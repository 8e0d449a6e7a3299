"""Every alert fires in Prometheus when its cause is there, and not before."""

import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import lasting_port

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules.yml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
GPU = 'node="n0",gpu="3"'
LATE = [
    ('gpu_scheduler_start_ranges_total{result="late"}', "0+1x600"),
    ('gpu_scheduler_start_ranges_total{result="within"}', "0+1x600"),
]
CAUSES: dict[str, list[tuple[str, str]]] = {
    "GpuSchedulerDown": [('up{job="gpu-scheduler"}', "0x600")],
    "GpuSchedulerUnhealthy": [('gpu_scheduler_health{status="unhealthy"}', "1x600")],
    "GpuSchedulerDegraded": [('gpu_scheduler_health_check{check="clock"}', "0x600")],
    "GpuSchedulerDiskFull": [('gpu_scheduler_health_check{check="disk"}', "0x600")],
    "GpuSchedulerQueueStuck": [('gpu_scheduler_health_check{check="queue"}', "0x600")],
    "GpuSchedulerNoLeader": [("gpu_scheduler_kube_leader", "0x600")],
    "GpuStartsOutsideTheirRange": LATE,
    "GpuBudgetNearlyUsed": [
        ('gpu_scheduler_tenant_budget_used_ratio{tenant="vision"}', "0.95x600")
    ],
    "GpuSchedulerAgentAway": [('gpu_scheduler_agent_connected{node="n0"}', "0x600")],
    "GpuSchedulerCommitsFail": [("gpu_scheduler_commit_failures_total", "0+1x600")],
    "GpuUnhealthy": [(f'gpu_scheduler_gpu_condition{{{GPU},condition="unhealthy"}}', "1x600")],
    "GpuHot": [(f'gpu_scheduler_gpu_condition{{{GPU},condition="hot"}}', "1x600")],
    "GpuQueueWaitsWhileGpusAreFree": [
        ('gpu_scheduler_queue_jobs{tenant="vision"}', "2x600"),
        ("gpu_scheduler_gpus_free", "1x600"),
    ],
    "GpuAllocatedButIdle": [
        (f"gpu_scheduler_gpu_utilization{{{GPU}}}", "0.01x600"),
        (f"gpu_scheduler_gpu_allocated{{{GPU}}}", "1x600"),
    ],
    "GpuNotificationsWait": [
        ('gpu_scheduler_notifications_oldest_seconds{target="chat"}', "4000x600")
    ],
}
"""What Prometheus scrapes each minute when the alert should fire, in the notation of promtool."""
pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="no Prometheus here")


def labels_of(alert: str) -> dict[str, str]:
    """The labels that the alert has when its cause is there."""
    series = CAUSES[alert][0][0]
    own = dict(pair.split("=") for pair in series.partition("{")[2].rstrip("}").split(",") if pair)
    found = {name: value.strip('"') for name, value in own.items()}
    if alert in {"GpuQueueWaitsWhileGpusAreFree", "GpuStartsOutsideTheirRange"}:
        found = {}
    return found | ALERTS[alert]["labels"]


def filled(text: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        text = text.replace("{{ $labels." + name + " }}", value)
    return text


def test_every_alert_has_a_cause_here() -> None:
    assert set(CAUSES) == set(ALERTS)


@pytest.mark.parametrize("alert", sorted(CAUSES))
def test_alert_fires_after_its_time_and_not_without_its_cause(alert: str, tmp_path: Path) -> None:
    labels = labels_of(alert)
    annotations = {
        name: filled(text, labels) for name, text in ALERTS[alert]["annotations"].items()
    }
    firing = {"exp_labels": labels, "exp_annotations": annotations}
    series = [{"series": name, "values": values} for name, values in CAUSES[alert]]
    suite = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": series,
                "alert_rule_test": [
                    {"eval_time": "9h", "alertname": alert, "exp_alerts": [firing]},
                ],
            },
            {
                "interval": "1m",
                "input_series": [{"series": "something_else", "values": "1x600"}],
                "alert_rule_test": [{"eval_time": "9h", "alertname": alert, "exp_alerts": []}],
            },
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(suite))
    done = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A real Prometheus with our rules, evaluated each second; yields its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no Prometheus here")
    port = lasting_port()
    scraped = lasting_port()
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{RULES}']\n"
        "scrape_configs:\n  - job_name: gpu-scheduler\n    static_configs:\n"
        f"      - targets: ['127.0.0.1:{scraped}']\n"
    )
    words = [
        program,
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def ask(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path, timeout=30) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_real_prometheus_loads_the_rules_and_sees_a_server_that_is_down(prometheus: str) -> None:
    give_up = time.monotonic() + 60
    state = ""
    while state != "pending":
        assert time.monotonic() < give_up, state
        time.sleep(0.2)
        try:
            groups = ask(prometheus, "/api/v1/rules")["data"]["groups"]
        except OSError:
            continue
        rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
        assert set(ALERTS) <= set(rules)
        assert all(rule["health"] in {"ok", "unknown"} for rule in rules.values())
        state = rules["GpuSchedulerDown"]["state"]
