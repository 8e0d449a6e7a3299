"""Pages about Kubernetes name tests and metrics that exist."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from gpu_scheduler.kubernetes.agent.service import Agent, AgentOptions
from gpu_scheduler.kubernetes.scheduler.__main__ import _Metrics
from gpu_scheduler.kubernetes.scheduler.loop import Counters
from gpu_scheduler.kubernetes.webhook.http import application

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_the_comparison_names_tests_that_exist() -> None:
    text = (REFERENCE / "kubernetes-comparison.md").read_text()
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)(?:::(\w+))?`", text)
    assert len(named) > 12
    for path, test in named:
        assert (ROOT / path).exists(), path
        assert not test or f"def {test}(" in (ROOT / path).read_text(), test
    used, listed = set(re.findall(r"\[(\d+)\] \|", text)), re.findall(r"^(\d+)\. ", text, re.M)
    assert used == set(listed)


def test_every_metric_on_kubernetes_is_documented() -> None:
    registry = CollectorRegistry()
    scheduler: Any = SimpleNamespace(counters=Counters())
    registry.register(_Metrics(scheduler, lambda: True))
    Agent(cast("Any", None), AgentOptions(node="n"), registry)
    application(registry)
    served = set(re.findall(r"^# TYPE (\w+)", generate_latest(registry).decode(), re.M))
    page = (REFERENCE / "metrics.md").read_text().partition("## On Kubernetes")[2]
    documented = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert {name for name in served if not name.endswith("_created")} == documented
