"""Dashboard and alert rules use existing metrics and labels."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from gpu_scheduler.kubernetes.scheduler.__main__ import _Metrics as SchedulerMetrics
from gpu_scheduler.kubernetes.scheduler.loop import Counters
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.measurements import DeviceReading, NodeFiles, NodeReadings
from gpu_scheduler.notify.retry_queue import Lane
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_predictors_report import a_predictor

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
RULES = DEPLOY / "prometheus" / "rules.yml"


class FakeNotifier:
    lanes = {"slack": Lane()}  # noqa: RUF012


@pytest.fixture(scope="module")
def labels() -> dict[str, set[str]]:
    """Every metric with its labels, as a server that has run jobs exports them."""
    with ApiLab(notifications=FakeNotifier()) as lab:
        job = lab.submit(gpu_count=1)
        lab.start(job)
        lab.end(job)
        lab.submit(gpu_count=8)
        lab.submit(gpu_count=8)
        lab.loop.telemetry["n0"] = NodeReadings(at_ms=1, readings=(DeviceReading(index=0),))
        lab.loop.loop_metrics.files["n0"] = NodeFiles(log_bytes=1, leftovers=1)
        lab.loop.core.state.gpu_meter.energy_uj["n0", 0] = 1
        lab.loop.loop_metrics.others["gpu_hot"] = 1
        service = {"name": "web", "replicas": 1, "command": ["serve"]}
        assert lab.post("/services", service).status == 201
        lab.loop.core.state.cluster.set_pools([PoolQuota(pool=Pool.ONLINE, percent=50)])
        assert lab.post("/tenants", {"name": "vision", "max_gpu_hours": 100}).status == 201
        lab.get("/jobs")
        lab.loop.core.state.predictor = a_predictor()
        on_kubernetes = CollectorRegistry(auto_describe=False)
        scheduler: Any = SimpleNamespace(counters=Counters(set_aside={"Pod": 1}))
        on_kubernetes.register(SchedulerMetrics(scheduler, lambda: True))
        served = lab.get("/metrics", root=True).body.decode()
        return labels_in(served) | labels_in(generate_latest(on_kubernetes).decode())


def labels_in(text: str) -> dict[str, set[str]]:
    """Every metric in an answer for Prometheus, with its labels."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := re.match(r"(\w+)(?:\{(.*)\})? ", line):
            names = re.findall(r"(\w+)=\"", match[2] or "")
            found.setdefault(match[1], set()).update(names)
    return found


def queries() -> list[str]:
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [str(one["query"]) for one in DASHBOARD["templating"]["list"]]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        asked += [rule["expr"] for rule in group["rules"]]
    return asked


def test_every_query_uses_existing_metrics_and_labels(
    labels: dict[str, set[str]],
) -> None:
    asked = 0
    for query in queries():
        for name, chosen in re.findall(r"(gpu_scheduler_\w+)(?:\{([^}]*)\})?", query):
            assert name in labels, query
            wanted = set(re.findall(r"(\w+)\s*=", chosen)) - {"instance", "job"}
            assert wanted <= labels[name] | {"le"}, query
            asked += 1
        for group in re.findall(r"by \(([^)]*)\)", query):
            known = {"le"}.union(*labels.values())
            assert {name.strip() for name in group.split(",")} <= known, query
    assert asked > 40


def test_documented_metrics_equal_existing_metrics(
    labels: dict[str, set[str]],
) -> None:
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    row = r"^\| `(gpu_scheduler_\w+)` \| \w+ \|([^|]*)\|"
    manual = dict(re.findall(row, page, re.MULTILINE))
    known = {
        re.sub(r"_(bucket|sum|count|created)$", "", name)
        for name in labels
        if name.startswith("gpu_scheduler_") and not name.endswith("_created")
    }
    assert set(manual) == known
    for name, listed in manual.items():
        has = labels.get(name, labels.get(f"{name}_bucket", set())) - {"le"}
        assert set(re.findall(r"`(\w+)`", listed)) == has, name


def test_panels_have_position_title_and_query() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["title"]
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"], panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                assert rule["annotations"]["summary"].endswith("."), rule["alert"]
                assert rule["annotations"]["description"], rule["alert"]
