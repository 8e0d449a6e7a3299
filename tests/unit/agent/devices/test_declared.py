"""Declared (simulated) devices."""

import json
from pathlib import Path

import pytest

from gpu_scheduler.agent.devices.declared import DeclaredSource, parse_declared
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.source import DevicesUnreadable
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import canonical_model_name, short_model_name

SMALL = Host(root=Path("/nowhere"), cores=2)


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("8xA100-80GB", [(8, "A100", 81920)]),
        ("1xA100-40GB", [(1, "A100", 40960)]),
        ("8xA100", [(8, "A100", 81920)]),
        ("2xl4", [(2, "L4", 24576)]),
        ("4xH100-80GB,2xL4-24GB", [(4, "H100", 81920), (2, "L4", 24576)]),
        (" 2 x RTX-4090 , 1xRTX 4090-24GB", [(2, "RTX4090", 24576), (1, "RTX4090", 24576)]),
        ("3xMyChip-512MB", [(3, "MyChip", 512)]),
        ("8*A100-80G", [(8, "A100", 81920)]),
    ],
)
def test_declaration_is_parsed(text: str, groups: list[tuple[int, str, int]]) -> None:
    assert [(g.count, g.model, g.memory_mb) for g in parse_declared(text)] == groups


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "cannot read ''"),
        ("A100", "cannot read 'A100'"),
        ("8xA100-80GB,", "cannot read ''"),
        ("8x", "cannot read '8x'"),
        ("-1xA100", "cannot read '-1xA100'"),
        ("8xA100-80TB", "'A100-80TB' is not known"),
        ("0xA100", "asks for 0 GPUs"),
        ("2xChip", "add it, as in 2xChip-24GB"),
        ("2xA100-0GB", "has no memory"),
        ("2000xA100", "at most 1024"),
    ],
)
def test_invalid_declaration_error_lists_valid_forms(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^simulated GPUs '") as refusal:
        parse_declared(text)
    assert told in str(refusal.value)


def test_eight_nvlink_gpus_form_island_and_pcie_cards_stand_alone() -> None:
    devices = DeclaredSource("8xA100-80GB,2xL4,1xH100", host=SMALL).find().devices
    assert [device.island for device in devices] == [0] * 8 + [1, 2, 3]
    assert [device.bandwidth_gbps for device in devices] == [600] * 8 + [0, 0, 0]
    assert [device.index for device in devices] == list(range(11))


def test_sixteen_gpus_form_two_islands() -> None:
    devices = DeclaredSource("16xH100", host=SMALL).find().devices
    assert [device.island for device in devices] == [0] * 8 + [1] * 8
    assert {device.bandwidth_gbps for device in devices} == {900}


def test_declared_node_has_matching_cores_and_memory() -> None:
    found = DeclaredSource("8xA100-80GB", host=SMALL).find()
    assert found.detection == "declared"
    assert found.cpu_milli == 64_000
    assert found.memory_mb == 2 * 8 * 81920
    large = DeclaredSource("1xL4", host=Host(cores=96, root=Path("/nowhere"))).find()
    assert large.cpu_milli == 96_000


def test_cores_and_memory_can_be_declared() -> None:
    found = DeclaredSource("1xL4", host=SMALL, cpu_milli=3_500, memory_mb=100).find()
    assert (found.cpu_milli, found.memory_mb) == (3_500, 100)


def test_uuids_are_stable_and_unique() -> None:
    def uuids(node: str) -> list[str]:
        return [d.uuid for d in DeclaredSource("2xL4", node=node, host=SMALL).find().devices]

    assert uuids("a") == uuids("a")
    assert len({*uuids("a"), *uuids("b")}) == 4


def test_missing_readings_file_means_healthy_and_unknown() -> None:
    readings = DeclaredSource("2xL4", host=SMALL).read()
    assert [reading.index for reading in readings] == [0, 1]
    assert all(reading.healthy and reading.temperature_c is None for reading in readings)


def test_readings_file_can_make_devices_hot_faulty_and_foreign(tmp_path: Path) -> None:
    path = tmp_path / "readings.json"
    source = DeclaredSource("2xL4", host=SMALL, readings_file=path)
    assert source.read()[0].temperature_c is None
    said = {
        "0": {"temperature_c": 91, "processes": [{"pid": 7, "user": "bob", "memory_mb": 5}]},
        "1": {"fault": "lost", "xids": [79]},
    }
    path.write_text(json.dumps(said))
    first, second = source.read()
    assert first.temperature_c == 91
    assert first.processes[0].user == "bob"
    assert (second.fault, second.xids) == ("lost", (79,))
    assert source.read()[1].xids == ()
    path.unlink()
    assert source.read()[1].healthy


@pytest.mark.parametrize("text", ["{", "[]", '{"0": 5}', '{"0": {"processes": [{"no": 1}]}}'])
def test_unreadable_readings_file_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "readings.json"
    path.write_text(text)
    with pytest.raises(DevicesUnreadable):
        DeclaredSource("1xL4", host=SMALL, readings_file=path).read()


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "A100"),
        ("NVIDIA Graphics", "GPU"),
        ("", "GPU"),
    ],
)
def test_product_name_is_shortened_to_common_model_name(name: str, model: str) -> None:
    assert short_model_name(name) == model


def test_model_name_has_several_spellings() -> None:
    assert canonical_model_name("rtx-4090") == canonical_model_name("RTX 4090") == "RTX4090"
    assert canonical_model_name("Other") == "Other"
