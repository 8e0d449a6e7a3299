"""The definitions in the chart are those of the types, which read and write such objects."""

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import yaml

from gpu_scheduler.kubernetes.crds.__main__ import main
from gpu_scheduler.kubernetes.crds.claim import (
    GPU_CLAIMS,
    DeviceRequest,
    Exclusivity,
    GpuClaim,
    GpuClaimSpec,
    Policy,
    TopologyMode,
    TopologyRequest,
)
from gpu_scheduler.kubernetes.crds.definition import CustomResource
from gpu_scheduler.kubernetes.crds.registry import CUSTOM_RESOURCES
from gpu_scheduler.kubernetes.crds.schema import documented, schema_of
from gpu_scheduler.kubernetes.objects import ObjectMeta, Value

CHART = Path(__file__).parents[3] / "charts" / "gpu-scheduler" / "crds"

TRAINING = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: training-gpus
spec:
  devices:
    count: 4
    policy: contiguous
    exclusivity: Exclusive
  topology:
    mode: Preferred
    minBandwidthGBps: 600
"""


def properties(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of a schema with its path."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from properties(field, f"{path}.{name}")
    if "items" in schema:
        yield from properties(schema["items"], f"{path}[]")


def schema_in(resource: CustomResource[Any]) -> dict[str, Any]:
    version = resource.definition()["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def test_the_definitions_in_the_chart_are_current(tmp_path: Path) -> None:
    main(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in CHART.iterdir()}
    assert sorted(made) == sorted(kept)
    assert made == kept, "run 'make crds'"


@pytest.mark.parametrize("resource", CUSTOM_RESOURCES, ids=lambda resource: resource.kind)
def test_every_field_is_explained_in_a_sentence(resource: CustomResource[Any]) -> None:
    bare = [
        path
        for path, field in properties(schema_in(resource))
        if path != ".metadata" and not field.get("description", "").endswith(".")
    ]
    assert bare == []


@pytest.mark.parametrize("resource", CUSTOM_RESOURCES, ids=lambda resource: resource.kind)
def test_every_list_is_bounded(resource: CustomResource[Any]) -> None:
    """Kubernetes estimates the cost of a rule from the bounds, and refuses unbounded ones."""
    endless = [
        path
        for path, field in properties(schema_in(resource))
        if field.get("type") == "array" and "maxItems" not in field and "conditions" not in path
    ]
    assert endless == []


@pytest.mark.parametrize("resource", CUSTOM_RESOURCES, ids=lambda resource: resource.kind)
def test_columns_show_fields_that_exist(resource: CustomResource[Any]) -> None:
    known = {path for path, _ in properties(schema_in(resource))}
    unknown = [column.path for column in resource.columns if column.path not in known]
    assert unknown == []


def test_a_claim_is_read_as_a_value() -> None:
    claim = msgspec.convert(yaml.safe_load(TRAINING), GpuClaim)
    assert claim.spec == GpuClaimSpec(
        devices=DeviceRequest(count=4, policy=Policy.CONTIGUOUS, exclusivity=Exclusivity.EXCLUSIVE),
        topology=TopologyRequest(mode=TopologyMode.PREFERRED, min_bandwidth_gbps=600),
    )


def test_a_claim_is_written_without_what_it_leaves_open() -> None:
    claim = GpuClaim(
        metadata=ObjectMeta(name="a"),
        spec=GpuClaimSpec(
            devices=DeviceRequest(count=2), begin_time=datetime(2030, 1, 2, tzinfo=UTC)
        ),
    )
    assert msgspec.to_builtins(claim) == {
        "metadata": {"name": "a"},
        "spec": {"devices": {"count": 2}, "beginTime": "2030-01-02T00:00:00Z"},
    }
    assert GPU_CLAIMS.path("ns", "a") == "/apis/gpu.scheduling/v1/namespaces/ns/gpuclaims/a"


def test_the_forms_of_a_schema() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Part(Value, frozen=True, kw_only=True):
        """A part of
        the whole.
        """

        name: str

    class Whole(Value, frozen=True, kw_only=True):
        """The whole."""

        colour: Annotated[Colour, documented("Its colour.")] = Colour.RED
        parts: Annotated[tuple[Part, ...], documented("Its parts.", max_length=3)] = ()
        size_mb: Annotated[int | None, documented("Its size.", minimum=0)] = None
        ratio: Annotated[float, documented("A ratio.", ge=0)]
        labels: dict[str, str] = msgspec.field(default_factory=dict)
        amount: int | str = ""

    assert schema_of(Whole) == {
        "type": "object",
        "description": "The whole.",
        "properties": {
            "colour": {
                "type": "string",
                "enum": ["red"],
                "description": "Its colour.",
                "default": "red",
            },
            "parts": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "A part of the whole.",
                    "properties": {"name": {"type": "string"}},
                    "required": ["name"],
                },
                "maxItems": 3,
                "description": "Its parts.",
            },
            "sizeMb": {
                "type": "integer",
                "format": "int64",
                "description": "Its size.",
                "minimum": 0,
            },
            "ratio": {"type": "number", "minimum": 0, "description": "A ratio."},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "amount": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "x-kubernetes-int-or-string": True,
            },
        },
        "required": ["ratio"],
    }


@pytest.mark.parametrize("unknown", [bytes, int | bool, tuple[int, str]])
def test_a_type_without_a_form_in_kubernetes_is_refused(unknown: Any) -> None:
    with pytest.raises(TypeError, match="no form in a Kubernetes schema"):
        schema_of(unknown)
