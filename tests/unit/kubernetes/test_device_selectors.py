"""The CEL of device selectors: what is selected, and what is outside of the subset."""

from typing import Any

import pytest

from gpu_scheduler.kubernetes.scheduler.dra.selectors import device_value, parse_selector
from gpu_scheduler.model.errors import InvalidRequest

DEVICE = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "NVIDIA H100 80GB HBM3"},
        "index": {"int": 3},
        "healthy": {"bool": True},
        "other.example/serial": {"string": "x"},
    },
    "capacity": {"memory": {"value": "81920Mi"}},
}
OURS = 'device.attributes["gpu.scheduling"]'
MEMORY = "device.capacity['gpu.scheduling'].memory"


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'gpu.scheduling'",
        f"{OURS}.model == 'NVIDIA H100 80GB HBM3'",
        f"{OURS}['model'].startsWith('NVIDIA') && {OURS}.model.endsWith('HBM3')",
        f"{OURS}.model.lowerAscii().contains('h100')",
        f"{OURS}.index == 3 && {OURS}.index >= 3 && {OURS}.index < 4 && {OURS}.index != -3",
        f"{OURS}.index in [1, 3]",
        f"{OURS}.healthy",
        f"!({OURS}.index > 3)",
        f"!!{OURS}.healthy",
        f"{MEMORY}.compareTo(quantity('40Gi')) >= 0",
        f"{MEMORY}.isGreaterThan(quantity('40Gi')) && !{MEMORY}.isLessThan(quantity('80G'))",
        f"{MEMORY} == quantity('80Gi')",
        "device.attributes['other.example'].serial == 'x'",
        f"has({OURS}.index) && !has({OURS}.island)",
        f"'index' in {OURS} && !('island' in {OURS})",
        "'other.example' in device.attributes",
        # The other side decides.
        f"{OURS}.island == 0 || {OURS}.index == 3",
        f"!({OURS}.island == 0 && {OURS}.index == 4)",
        "true || false && false",
        # As long as Kubernetes accepts, whatever the stack of Python.
        "!" * 10_000 + "true",
        " && ".join(["true"] * 1_200),
        " || ".join([*["false"] * 1_000, "true"]),
    ],
)
def test_a_device_is_selected(expression: str) -> None:
    assert parse_selector(expression).selects(device_value(DEVICE))


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'gpu.nvidia.com'",
        f"{OURS}.model == 'NVIDIA H100'",
        f"{OURS}.island == 0",
        f"{OURS}.island != 0",
        f"!({OURS}.island == 0)",
        f"{OURS}.island == 0 && {OURS}.index == 3",
        "device.attributes['unknown'].index == 3",
        # Values of different types are not equal, and have no order.
        f"{OURS}.index == '3'",
        f"{OURS}.index < '4'",
        f"{OURS}.healthy == 1",
        f"{MEMORY} > 40",
        "device.driver",
        f"{OURS}.index.startsWith('3')",
        "1 in 2",
        f"[1] in {OURS}",
        "!!!3",
        "!" * 9_999 + "true",
        "!3 == 3",
    ],
)
def test_a_device_is_not_selected(expression: str) -> None:
    assert not parse_selector(expression).selects(device_value(DEVICE))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "its end is not expected"),
        ("device.driver ==", "its end is not expected"),
        ("device.driver == 'a' device", "'device' is not expected"),
        (f"{OURS}.model.matches('H100|A100')", "it calls matches()"),
        ("cel.bind(a, device, true)", "cel is not expected"),
        (f"{OURS}.index + 1 == 4", "it has '+ 1 == 4'"),
        (f"{OURS}.index == 3.5", "it has '3.5'"),
        ("quantity(device.driver) == 1", "quantity() takes a string"),
        ("quantity('much') == 1", "is no quantity"),
        ("has(device)", "has() takes a field"),
        ("(true", "')' is missing"),
        ("device.", "a name is missing"),
        ("device.driver.startsWith()", "takes 1 arguments"),
        (r"device.driver == 'a\n'", "it has"),
        (f"1 == {'9' * 5_000}", "too large a number"),
        ("(" * 60 + "true" + ")" * 60, "nested too deeply"),
        ("true" + " " * 10_240, "too long"),
        ("device.allowMultipleAllocations ? true : false", "it has '? true"),
    ],
)
def test_what_is_outside_of_the_subset_is_rejected(expression: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_selector(expression)
    assert why in str(error.value)


def test_every_cut_of_an_expression_is_read_or_rejected() -> None:
    text = f"!({OURS}.model in ['a', 'b']) || has({OURS}.index) && {MEMORY} >= quantity('1Gi')"
    device: dict[str, Any] = device_value(DEVICE)
    for end in range(len(text)):
        try:
            selector = parse_selector(text[:end])
        except InvalidRequest:
            continue
        selector.selects(device)


def test_too_many_calls_in_a_row_are_rejected() -> None:
    """An error of the interpreter would stop the scheduler for all pods."""
    selector = parse_selector("device.driver" + ".lowerAscii()" * 700 + " == 'a'")
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        selector.selects(device_value(DEVICE))
