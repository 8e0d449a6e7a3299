"""Selection of the discovery method, and its errors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_scheduler.agent.devices.discovery import DiscoveryOptions, detect
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.model.errors import InvalidRequest
from tests.fakes.nvml import FakeNvml
from tests.fakes.smi import FakeSmi

HOST = Host(cores=4)
DRIVER_NOT_LOADED = 9


def test_nvml_is_preferred(fake_nvml: FakeNvml) -> None:
    source = detect(DiscoveryOptions(), host=HOST)
    assert source.find().detection == "nvml"
    assert len(source.read()) == 8
    source.close()


def test_nvidia_smi_is_fallback(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    smi = FakeSmi(tmp_path / "bin")
    smi.sample("desktop")
    source = detect(DiscoveryOptions(nvidia_smi=smi.command), host=HOST)
    assert source.find().detection == "nvidia-smi"
    assert len(source.read()) == 2


def test_node_without_driver_reports_cores_and_reason(fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    source = detect(DiscoveryOptions(nvidia_smi="no-such-smi"), host=HOST)
    found = source.find()
    assert found.detection == "none"
    assert found.devices == ()
    assert found.cpu_milli <= 4_000
    assert found.problem == (
        "no GPU was found (nvml: NVML: Driver Not Loaded; nvidia-smi: no-such-smi is not on PATH); "
        "to try without a GPU, declare some: --simulate 8xA100-80GB"
    )
    assert source.read() == []
    source.close()


def test_working_method_without_gpus_is_reported(fake_nvml: FakeNvml) -> None:
    fake_nvml.set(count=0)
    found = detect(DiscoveryOptions(method="nvml"), host=HOST).find()
    assert found.detection == "none"
    assert "nvml: it works, and there is no GPU" in found.problem


def test_explicit_method_has_no_fallback(fake_nvml: FakeNvml) -> None:
    found = detect(
        DiscoveryOptions(method="nvidia-smi", nvidia_smi="no-such-smi"), host=HOST
    ).find()
    assert found.detection == "none"
    assert "nvml" not in found.problem


def test_declaration_selects_its_method(fake_nvml: FakeNvml) -> None:
    for method in ("auto", "declared", "simulated"):
        found = detect(DiscoveryOptions(method=method, declared="2xL4"), host=HOST).find()
        assert found.detection == "declared"
        assert len(found.devices) == 2


def test_gpus_can_be_disabled(fake_nvml: FakeNvml) -> None:
    found = detect(DiscoveryOptions(method="none"), host=HOST).find()
    assert (found.detection, found.devices) == ("none", ())


def test_cores_and_memory_can_be_overridden_with_every_method(fake_nvml: FakeNvml) -> None:
    for wanted in (DiscoveryOptions(method="none", cpu_milli=500), DiscoveryOptions(cpu_milli=500)):
        source = detect(wanted, host=HOST)
        assert source.find().cpu_milli == 500
        assert source.find().memory_mb == HOST.memory_mb()
        source.read()
        source.close()
    assert detect(DiscoveryOptions(memory_mb=77), host=HOST).find().memory_mb == 77


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            DiscoveryOptions(method="cuda"),
            "expected one of auto, nvml, nvidia-smi, declared, simulated, none",
        ),
        (DiscoveryOptions(method="declared"), "no GPUs are declared"),
        (DiscoveryOptions(declared="many"), "cannot read 'many'"),
    ],
)
def test_impossible_override_is_rejected(wanted: DiscoveryOptions, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        detect(wanted, host=HOST)


def run(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_scheduler.agent.devices", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_module_prints_discovered_devices(fake_nvml: FakeNvml) -> None:
    seen = json.loads(run(env=fake_nvml.env).stdout)
    assert len(seen["found"]["devices"]) == len(seen["readings"]) == 8
    assert seen["found"]["detection"] == "nvml"


def test_module_reports_missing_driver_without_loading_pynvml(tmp_path: Path) -> None:
    env = os.environ | {"PATH": str(tmp_path), "PYTHONVERBOSE": "1"}
    done = run("auto", env=env)
    found = json.loads(done.stdout)["found"]
    if found["detection"] == "nvml" or "there is no GPU" in found["problem"]:
        pytest.skip("this machine has an NVIDIA driver")
    assert found["detection"] == "none"
    assert "libnvidia-ml.so.1 cannot be loaded" in done.stdout
    assert "import 'pynvml'" not in done.stderr


def test_module_rejects_invalid_declaration() -> None:
    done = run("declared", "lots", env=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.startswith("simulated GPUs 'lots': cannot read 'lots'")
