"""The REST API: the OpenAPI document without its prose, and the metrics of a real scrape."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpu_scheduler.api.routes.metrics import SchedulerCollector
from tests.interface.stored import check_snapshot
from tests.unit.api.lab import ApiLab

REFERENCE = Path(__file__).parents[2] / "docs/reference/rest.md"
PROSE = ("description", "summary")
FIXED_VALUES = ("state", "status", "check", "condition", "pool", "le")
"""Labels whose values are part of the interface; others are names of nodes, tenants and so on."""


def test_openapi_document(api: ApiLab) -> None:
    check_snapshot("openapi.json", without_prose(api.get("/openapi.json", root=True).json))


def test_pages_outside_the_openapi_document(api: ApiLab) -> None:
    pages = ("/openapi.json", "/docs", "/metrics", "/health")
    found = {}
    for page in pages:
        reply = api.get(page, root=True)
        found[page] = f"{reply.status} {reply.headers.get('content-type', '')}"
    check_snapshot("pages.json", found)


def test_metrics(api: ApiLab) -> None:
    text = api.get("/metrics", root=True).body.decode()
    values: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        kept = values.setdefault(family.name, {})
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label in FIXED_VALUES and not (label == "status" and "path" in sample.labels):
                    kept.setdefault(label, set()).add(value)
    app = api.applications.main
    families = {
        family.name: {
            "type": family.type,
            "labels": list(getattr(family, "_labelnames", ())),
            "values": {label: sorted(kept) for label, kept in values[family.name].items()},
        }
        for family in SchedulerCollector(app._context, app.requests).collect()
    }
    assert families.keys() == values.keys()
    check_snapshot("metrics.json", families)


def without_prose(document: Any) -> Any:
    """Without descriptions and summaries; a field that is called `description` stays."""
    if isinstance(document, dict):
        return {
            name: without_prose(value)
            for name, value in document.items()
            if name not in PROSE or not isinstance(value, str)
        }
    if isinstance(document, list):
        return [without_prose(value) for value in document]
    return document


@pytest.mark.parametrize(
    ("path", "method"), [("/plan", "get"), ("/what-if", "post"), ("/quota/tree", "get")]
)
def test_every_field_of_a_forecast_is_documented(api: ApiLab, path: str, method: str) -> None:
    document = api.get("/openapi.json", root=True).json
    operation = document["paths"][f"/api/v1{path}"][method]
    schemas = document["components"]["schemas"]
    found: dict[str, None] = {}
    left = [operation["responses"]["200"]]
    while left:
        for name in re.findall(r"'#/components/schemas/(\w+)'", str(left.pop())):
            if name not in found:
                found[name] = None
                left.append(schemas[name])
    fields = {field for name in found for field in schemas[name]["properties"]}
    assert "made_at" in fields or "nodes" in fields
    page = REFERENCE.read_text()
    assert not {field for field in fields if f"`{field}`" not in page and f'"{field}"' not in page}
