"""The contract of every device source, compared with what other tools see of the same driver."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.devices.declared import DeclaredSource
from gpu_scheduler.agent.devices.discovery import (
    DiscoveryOptions,
    EmptySource,
    TimeLimitedSource,
    detect,
)
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.monitor import DeviceMonitor, HotplugScan
from gpu_scheduler.agent.devices.nvml import NvmlSource
from gpu_scheduler.agent.devices.smi import SmiSource
from gpu_scheduler.agent.devices.source import DeviceSource, DevicesUnreadable
from tests.fakes.nvml import FakeNvml, fake_nvml, fake_nvml_library
from tests.fakes.smi import FakeSmi

__all__ = ["fake_nvml", "fake_nvml_library"]

HOST = Host(cores=4)
GPU_IS_LOST, DRIVER_NOT_LOADED = 15, 9


@dataclass
class Case:
    """A source, and how to break one device or all of them; None if it cannot be broken."""

    source: DeviceSource
    spoil_one: Callable[[], object] | None = None
    spoil_all: Callable[[], object] | None = None
    mend: Callable[[], object] = lambda: None


def nvml_case(request: pytest.FixtureRequest) -> Case:
    fake: FakeNvml = request.getfixturevalue("fake_nvml")
    return Case(
        source=NvmlSource(HOST),
        spoil_one=lambda: fake.fail("*", GPU_IS_LOST, gpu=1),
        spoil_all=lambda: fake.fail("nvmlDeviceGetMemoryInfo_v2", DRIVER_NOT_LOADED),
        mend=fake.mend,
    )


def bounded_case(request: pytest.FixtureRequest) -> Case:
    case = nvml_case(request)
    return dataclasses.replace(case, source=TimeLimitedSource(case.source, deadline_s=30))


def given_case(request: pytest.FixtureRequest) -> Case:
    case = nvml_case(request)
    return dataclasses.replace(case, source=detect(DiscoveryOptions(cpu_milli=1), host=HOST))


def smi_case(request: pytest.FixtureRequest) -> Case:
    smi = FakeSmi(request.getfixturevalue("tmp_path") / "bin")
    smi.sample("dgx-a100")
    rows = (smi.directory / "query-gpu-now").read_text()
    rest = "".join(line + "\n" for n, line in enumerate(rows.splitlines()) if n != 1)
    return Case(
        source=SmiSource(smi.command, host=HOST),
        spoil_one=lambda: smi.answer("query-gpu-now", rest, code=15),
        spoil_all=lambda: smi.answer("query-gpu-now", "NVIDIA-SMI has failed\n", code=9),
        mend=lambda: smi.answer("query-gpu-now", rows),
    )


def declared_case(request: pytest.FixtureRequest) -> Case:
    path: Path = request.getfixturevalue("tmp_path") / "readings.json"
    return Case(
        source=DeclaredSource("8xA100-80GB", host=HOST, readings_file=path),
        spoil_one=lambda: path.write_text('{"1": {"fault": "lost"}}'),
        spoil_all=lambda: path.write_text("nonsense"),
        mend=path.unlink,
    )


def none_case(request: pytest.FixtureRequest) -> Case:
    return Case(source=EmptySource(HOST, "there are none"))


@pytest.fixture(
    params=[nvml_case, bounded_case, given_case, smi_case, declared_case, none_case],
    ids=lambda make: make.__name__.removesuffix("_case"),
)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    case: Case = request.param(request)
    yield case
    case.source.close()


def test_node_has_cores_memory_and_discovery_source(case: Case) -> None:
    found = case.source.find()
    assert found.cpu_milli > 0
    assert found.memory_mb > 0
    assert found.detection in {"nvml", "nvidia-smi", "declared", "none"}
    assert bool(found.devices) or found.problem


def test_devices_are_numbered_from_zero_with_unique_ids(case: Case) -> None:
    devices = case.source.find().devices
    assert [device.index for device in devices] == list(range(len(devices)))
    assert len({device.uuid for device in devices}) == len(devices)
    assert all(device.uuid.startswith("GPU-") for device in devices)
    assert all(device.memory_mb > 0 and device.model for device in devices)
    assert all(" " not in device.model for device in devices)


def test_islands_are_numbered_and_only_linked_devices_have_bandwidth(case: Case) -> None:
    devices = case.source.find().devices
    islands = [device.island for device in devices]
    assert sorted(set(islands)) == list(range(len(set(islands))))
    for device in devices:
        assert (islands.count(device.island) > 1) == (device.bandwidth_gbps > 0)


def test_repeated_discovery_gives_same_result(case: Case) -> None:
    assert case.source.find() == case.source.find()


def test_each_device_has_one_reading_in_order(case: Case) -> None:
    found = case.source.find()
    for _ in range(2):
        assert [r.index for r in case.source.read()] == [d.index for d in found.devices]


def test_source_can_be_read_before_discovery(case: Case) -> None:
    assert [reading.index for reading in case.source.read()] == list(range(len(case.source.read())))


def test_healthy_devices_have_no_faults(case: Case) -> None:
    assert all(reading.healthy for reading in case.source.read())


def test_source_may_be_closed_twice_and_reused(case: Case) -> None:
    before = case.source.find()
    case.source.close()
    case.source.close()
    assert case.source.find() == before
    assert len(case.source.read()) == len(before.devices)


def test_bad_device_is_reported_as_fault_not_error(case: Case) -> None:
    if case.spoil_one is None:
        pytest.skip("this source has no device that could go bad")
    case.source.find()
    case.spoil_one()
    readings = case.source.read()
    assert [reading.index for reading in readings if reading.fault] == [1]
    case.mend()
    assert all(reading.healthy for reading in case.source.read())


def test_unresponsive_driver_raises_one_error_type_and_can_recover(case: Case) -> None:
    if case.spoil_all is None:
        pytest.skip("this source has no driver that could fail")
    count = len(case.source.find().devices)
    case.spoil_all()
    for _ in range(2):
        with pytest.raises(DevicesUnreadable) as error:
            case.source.read()
        assert str(error.value)
        assert error.value.code == "devices_unreadable"
    case.mend()
    assert len(case.source.read()) == count


def test_all_values_survive_json(case: Case) -> None:
    found, readings = case.source.find(), case.source.read()
    json.dumps([dataclasses.asdict(found), [dataclasses.asdict(reading) for reading in readings]])


def test_monitor_reads_every_source(case: Case) -> None:
    found = case.source.find()
    telemetry = DeviceMonitor(case.source, found, lambda pid: None).read()
    assert telemetry.problem == ""
    assert [reading.index for reading in telemetry.readings] == list(range(len(found.devices)))
    assert all(reading.healthy for reading in telemetry.readings)


# --- other tools on the same driver


@pytest.fixture
def busy(fake_nvml: FakeNvml) -> Iterator[tuple[FakeNvml, list[int]]]:
    """Two GPUs with real processes, a hot one, one with MIG and one without a sensor."""
    sleepers = [subprocess.Popen(["/bin/sleep", "60"]) for _ in range(2)]
    pids = [sleeper.pid for sleeper in sleepers]
    fake_nvml.gpu(1, compute=f"{pids[0]}:1024,{pids[1]}:2048", memory_used_mb=3100, utilisation=77)
    fake_nvml.gpu(2, graphics=f"{pids[1]}:64", temperature=88, power_mw=250_900)
    fake_nvml.gpu(3, temperature=None)
    fake_nvml.split(4, "3g.40gb", "3g.40gb")
    yield fake_nvml, pids
    for sleeper in sleepers:
        sleeper.kill()
        sleeper.wait()


def test_gpustat_sees_same_devices(busy: tuple[FakeNvml, list[int]]) -> None:
    fake, pids = busy
    done = subprocess.run(
        [sys.executable, "-m", "gpustat", "--json"],
        env=fake.env,
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout)
    source = NvmlSource(HOST)
    found, readings = source.find(), source.read()
    source.close()
    assert dict(found.labels)["driver"] == theirs["driver_version"]
    assert len(theirs["gpus"]) == 8
    for device, reading, gpu in zip(found.devices, readings, theirs["gpus"], strict=True):
        assert device.name == gpu["name"]
        assert device.uuid == gpu["uuid"]
        assert device.memory_mb == gpu["memory.total"]
        assert reading.memory_used_mb == gpu["memory.used"]
        assert reading.temperature_c == gpu["temperature.gpu"]
        assert reading.utilisation_percent == gpu["utilization.gpu"]
        assert (reading.power_mw or 0) // 1000 == gpu["power.draw"]
        assert (reading.power_limit_mw or 0) // 1000 == gpu["enforced.power.limit"]
        ours = {(p.pid, p.user, p.command, p.memory_mb) for p in reading.processes}
        assert ours == {
            (p["pid"], p["username"], p["command"], p["gpu_memory_usage"]) for p in gpu["processes"]
        }
    assert {process.pid for process in readings[1].processes} == set(pids)


BINDING = """
import json, pynvml as n
n.nvmlInit()
seen = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    seen.append({
        "name": n.nvmlDeviceGetName(h),
        "uuid": n.nvmlDeviceGetUUID(h),
        "pci": n.nvmlDeviceGetPciInfo(h).busId,
        "minor": n.nvmlDeviceGetMinorNumber(h),
        "total": n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).total,
        "mig": n.nvmlDeviceGetMigMode(h)[0],
        "pids": sorted(p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)),
        "links": sum(n.nvmlDeviceGetNvLinkState(h, link) for link in range(12)),
    })
print(json.dumps(seen))
"""


def test_unmodified_pynvml_sees_same_devices(busy: tuple[FakeNvml, list[int]]) -> None:
    fake, _ = busy
    command = [sys.executable, "-c", BINDING]
    done = subprocess.run(command, env=fake.env, capture_output=True, text=True, check=True)
    source = NvmlSource(HOST)
    found, readings = source.find(), source.read()
    source.close()
    for device, reading, gpu in zip(found.devices, readings, json.loads(done.stdout), strict=True):
        assert (device.name, device.uuid) == (gpu["name"], gpu["uuid"])
        assert device.pci_bus_id == gpu["pci"].lower()[4:]
        assert device.path == f"/dev/nvidia{gpu['minor']}"
        assert device.memory_mb == gpu["total"] // 1024**2
        assert bool(device.mig_slices) == bool(gpu["mig"])
        assert sorted(p.pid for p in reading.processes if not p.graphics) == gpu["pids"]
        assert device.bandwidth_gbps == gpu["links"] * 50


def test_foreign_process_is_seen_with_user_and_own_job_is_not_foreign(
    busy: tuple[FakeNvml, list[int]],
) -> None:
    _, (ours, theirs) = busy
    source = detect(DiscoveryOptions(), host=HOST)
    monitor = DeviceMonitor(source, source.find(), {ours: "job-1.1"}.get)
    processes = {p.pid: p for p in monitor.read().readings[1].processes}
    source.close()
    assert processes[ours].allocation_id == "job-1.1"
    assert processes[theirs].allocation_id == ""
    assert processes[theirs].command == "sleep"
    assert processes[theirs].user == Host().process(os.getpid())[0]
    assert processes[theirs].memory_mb == 2048


SLICES = """
import json, pynvml as n
n.nvmlInit()
seen = {}
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    if n.nvmlDeviceGetMigMode(h)[0]:
        seen[i] = []
        for place in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
            try:
                part = n.nvmlDeviceGetMigDeviceHandleByIndex(h, place)
            except n.NVMLError_NotFound:
                continue
            seen[i].append(n.nvmlDeviceGetUUID(part))
print(json.dumps(seen))
"""


def test_pynvml_and_gpustat_see_same_devices_while_mig_changes(
    fake_nvml: FakeNvml,
) -> None:
    source = NvmlSource(HOST)
    found = source.find()
    monitor = DeviceMonitor(source, found, lambda _: None)
    monitor.hotplug = HotplugScan(source.find, found, tuple)

    def seen_by(*words: str) -> Any:
        command = [sys.executable, *words]
        done = subprocess.run(
            command, env=fake_nvml.env, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    for profiles, era in ((("3g.40gb", "3g.40gb"), 0), (("1g.10gb", "3g.40gb"), 1), ((), 0)):
        if profiles:
            fake_nvml.split(5, *profiles, era=era)
        else:
            fake_nvml.unsplit(5)
        monitor.read()
        now = monitor.detect_changes()
        assert now is not None
        ours = {str(d.index): sorted(d.mig_uuids) for d in now.devices if d.mig_slices}
        assert ours == {gpu: sorted(uuids) for gpu, uuids in seen_by("-c", SLICES).items()}
        assert [gpu["uuid"] for gpu in seen_by("-m", "gpustat", "--json")["gpus"]] == [
            device.uuid for device in now.devices
        ]
    source.close()
