"""GPUs through unmodified pynvml on a fake driver."""

import os
from collections.abc import Iterator

import pytest

from gpu_scheduler.agent.devices.monitor import DeviceMonitor, HotplugScan
from gpu_scheduler.agent.devices.nvml import NvmlSource
from gpu_scheduler.agent.devices.source import DetectedSlice, DevicesUnreadable, NodeInventory
from tests.fakes.nvml import FakeNvml

NOT_SUPPORTED, GPU_IS_LOST, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, UNKNOWN = 3, 15, 9, 13, 999


@pytest.fixture
def source(fake_nvml: FakeNvml) -> Iterator[NvmlSource]:
    source = NvmlSource()
    yield source
    source.close()


def test_eight_gpus_are_found_with_requestable_properties(source: NvmlSource) -> None:
    found = source.find()
    assert found.detection == "nvml"
    assert found.problem == ""
    assert found.labels == (("cuda", "12.4"), ("driver", "550.54.15"))
    assert [device.index for device in found.devices] == list(range(8))
    first, last = found.devices[0], found.devices[7]
    assert first.model == "A100"
    assert first.name == "NVIDIA A100-SXM4-80GB"
    assert first.memory_mb == 81920
    assert first.pci_bus_id == "0000:07:00.0"
    assert first.path == "/dev/nvidia0"
    assert (first.numa_node, last.numa_node) == (0, 1)
    assert first.cpus == (0, 1, 2, 3, 8, 9, 10, 11)
    assert last.cpus == (4, 5, 6, 7, 12, 13, 14, 15)


def test_gpus_are_numbered_in_pci_bus_order(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu(0, pci="0000:ff:00.0", minor=5)
    devices = source.find().devices
    assert devices[7].pci_bus_id == "0000:ff:00.0"
    assert devices[7].path == "/dev/nvidia5"
    assert devices[7].index == 7
    assert [reading.index for reading in source.read()] == list(range(8))
    assert source.read()[7].temperature_c == 30


def test_nvswitch_joins_all_gpus_into_one_island(source: NvmlSource) -> None:
    devices = source.find().devices
    assert {device.island for device in devices} == {0}
    assert {device.bandwidth_gbps for device in devices} == {600}


def test_direct_links_form_islands_and_unlinked_gpu_is_alone(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.change(
        {"count": 5} | {f"gpu.{g}.link.{n}": None for g in range(5) for n in range(12)}
    )
    for gpu, peer in ((0, 2), (2, 0), (1, 3), (3, 1)):
        fake_nvml.gpu(gpu, link__0=fake_nvml.values[f"gpu.{peer}.pci"], link__1="down")
    devices = source.find().devices
    assert [device.island for device in devices] == [0, 1, 0, 1, 2]
    assert [device.bandwidth_gbps for device in devices] == [50, 50, 50, 50, 0]


def test_links_without_remote_address_lead_to_one_fabric(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.fail("nvmlDeviceGetNvLinkRemotePciInfo_v2", NOT_SUPPORTED)
    assert {device.island for device in source.find().devices} == {0}


def test_mig_slices_are_found_by_profile_with_uuids(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.split(2, "3g.40gb", "1g.10gb", "1g.10gb")
    whole, split = source.find().devices[1:3]
    assert whole.mig_slices == ()
    assert split.mig_slices == (
        DetectedSlice(
            profile="1g.10gb",
            uuids=(
                "MIG-00020001-58ce-5a9a-8f9a-dbc22a66a000",
                "MIG-00020002-58ce-5a9a-8f9a-dbc22a66a000",
            ),
        ),
        DetectedSlice(profile="3g.40gb", uuids=("MIG-00020000-58ce-5a9a-8f9a-dbc22a66a000",)),
    )
    reading = source.read()[2]
    assert reading.utilisation_percent is None
    assert reading.healthy


def test_mig_profile_is_derived_from_size_when_name_lacks_it(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.split(0, "2g.20gb")
    fake_nvml.fail("nvmlDeviceGetName", NOT_SUPPORTED, gpu=0)
    assert source.find().devices[0].mig_slices[0].profile == "2g.20gb"


def test_mig_mode_without_slices_is_fault(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu(1, mig=1)
    source.find()
    assert source.read()[1].fault == "MIG mode is on and no slice was made"


def test_readings_follow_changes(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.gpu(
        4,
        temperature=83,
        memory_used_mb=70_000,
        utilisation=97,
        power_mw=391_000,
        sm_clock=1410,
        throttle=0x21,
        ecc=2,
    )
    reading = source.read()[4]
    assert reading.temperature_c == 83
    assert reading.memory_used_mb == 70_000
    assert reading.utilisation_percent == 97
    assert (reading.power_mw, reading.power_limit_mw) == (391_000, 400_000)
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1410, 1593)
    assert reading.throttle_reasons == 0x20  # idleness, bit 0, is no throttle reason to report
    assert reading.ecc_errors == 2
    assert reading.fault == ""


def test_processes_have_user_and_command_and_appear_once(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    us = os.getpid()
    fake_nvml.gpu(3, compute=f"{us}:1024,4194999:?", graphics=f"{us}:16,4194998:64")
    processes = {process.pid: process for process in source.read()[3].processes}
    assert processes[us].memory_mb == 1024
    assert processes[us].command
    assert processes[us].user
    assert not processes[us].graphics
    assert processes[4194999].memory_mb is None
    assert processes[4194998].graphics
    assert source.read()[2].processes == ()


def test_processes_sharing_gpu_have_own_loads(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    def loads() -> list[int | None]:
        return [process.load_percent for process in source.read()[3].processes]

    fake_nvml.gpu(3, compute="4194998:1,4194999:1")
    assert loads() == [None, None], "a driver that does not tell"
    fake_nvml.gpu(3, loads="4194999:70,17:5")
    assert loads() == [0, 70]
    fake_nvml.gpu(3, loads="4194999:4000000")
    assert loads() == [0, 0], "nonsense is left out"
    fake_nvml.gpu(3, loads="")
    assert loads() == [0, 0], "nobody did anything"
    fake_nvml.gpu(3, compute="4194999:1", loads="4194999:70")
    assert loads() == [None], "alone, the load is that of the GPU"


def test_older_driver_calls_are_supported(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    for call in (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetRemappedRows",
    ):
        fake_nvml.fail(call, FUNCTION_NOT_FOUND)
    fake_nvml.gpu(0, compute="4194999:5", throttle=0x40)
    assert source.find().devices[0].memory_mb == 81920
    assert source.find().devices[0].bandwidth_gbps == 600
    reading = source.read()[0]
    assert reading.temperature_c == 30
    assert reading.throttle_reasons == 0x40
    assert [process.pid for process in reading.processes] == [4194999]


def test_unsupported_queries_become_unknown(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    keep = {"name", "uuid", "pci"}
    values = {k: None for k in fake_nvml.values if k.startswith("gpu.0.") and k[6:] not in keep}
    fake_nvml.change(dict(values))
    for call in (
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetGraphicsRunningProcesses_v2",
    ):
        fake_nvml.fail(call, NOT_SUPPORTED, gpu=0)
    device = source.find().devices[0]
    assert (device.memory_mb, device.path, device.numa_node, device.cpus) == (0, "", -1, ())
    reading = source.read()[0]
    assert reading.healthy
    assert reading.temperature_c is None
    assert reading.utilisation_percent is None
    assert reading.power_mw is None
    assert reading.ecc_errors is None
    assert reading.processes == ()


def test_lost_gpu_is_fault_and_others_continue(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.fail("*", GPU_IS_LOST, gpu=5)
    readings = source.read()
    assert "lost" in readings[5].fault
    assert readings[5].needs_reset
    assert all(reading.healthy for reading in readings if reading.index != 5)
    fake_nvml.mend()
    assert source.read()[5].healthy


def test_gpu_lost_from_start_keeps_its_index(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("*", GPU_IS_LOST, gpu=2)
    found = source.find()
    assert len(found.devices) == 8
    assert found.devices[2].memory_mb == 0
    assert found.devices[3].pci_bus_id == "0000:1f:00.0"
    assert found.problem.startswith("GPU 2: the GPU is lost")
    assert not source.read()[2].healthy


def test_xid_is_reported_once_for_its_gpu(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.xid(1, 31)  # before any listener was registered
    source.find()
    fake_nvml.xid(6, 79)
    fake_nvml.xid(6, 45)
    readings = source.read()
    assert [reading.xids for reading in readings if reading.xids] == [(79, 45)]
    assert readings[6].xids == (79, 45)
    assert all(reading.xids == () for reading in source.read())


def test_driver_reports_pending_reset(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.gpu(0, recovery_action=1)
    fake_nvml.gpu(1, recovery_action=0)
    fake_nvml.gpu(2, remap_failed=1)
    readings = source.read()
    assert readings[0].fault == "the driver asks to reset the GPU"
    assert readings[1].healthy
    assert "row" in readings[2].fault


def test_one_gpu_with_unknown_error_is_fault(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.fail("nvmlDeviceGetTemperatureV", UNKNOWN, gpu=1)
    readings = source.read()
    assert readings[1].fault == "NVML: Unknown Error"
    assert not readings[1].needs_reset
    assert readings[0].healthy


def test_driver_that_answers_for_no_gpu_is_error(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.fail("nvmlDeviceGetTemperatureV", UNKNOWN)
    with pytest.raises(DevicesUnreadable, match="answers for no GPU"):
        source.read()


def test_reloaded_driver_is_read_again(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", DRIVER_NOT_LOADED)
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    for _ in range(2):
        with pytest.raises(DevicesUnreadable, match="Driver Not Loaded"):
            source.read()
    fake_nvml.mend()
    assert len(source.read()) == 8
    fake_nvml.xid(3, 79)
    assert source.read()[3].xids == (79,)


def test_discovery_without_driver_is_error(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.fail("nvmlInitWithFlags", DRIVER_NOT_LOADED)
    with pytest.raises(DevicesUnreadable, match="Driver Not Loaded"):
        source.find()


def test_driver_without_version_or_events_is_supported(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    for call in (
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion",
        "nvmlEventSetCreate",
    ):
        fake_nvml.fail(call, UNKNOWN)
    assert source.find().labels == ()
    assert len(source.read()) == 8


def test_vanished_gpu_is_missing_until_it_returns(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    source.find()
    fake_nvml.fail("*", GPU_IS_LOST, gpu=7)
    source.read()
    fake_nvml.mend()
    fake_nvml.set(count=7)
    assert source.read()[7].needs_reset
    fake_nvml.set(count=8)
    assert source.read()[7].healthy


def test_driver_without_gpus_has_no_devices(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.set(count=0)
    assert source.find().devices == ()
    assert source.read() == []


def watched(source: NvmlSource) -> DeviceMonitor:
    found = source.find()
    monitor = DeviceMonitor(source, found, lambda _: None)
    monitor.hotplug = HotplugScan(source.find, found, tuple)
    return monitor


def profiles(found: NodeInventory | None, index: int) -> dict[str, int]:
    assert found is not None
    return {piece.profile: len(piece.uuids) for piece in found.devices[index].mig_slices}


def test_created_and_destroyed_slices_appear_at_next_reading(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    monitor = watched(source)
    monitor.read()
    assert not monitor.rescan_requested
    for change, slices in (
        (lambda: fake_nvml.split(2, "3g.40gb", "3g.40gb"), {"3g.40gb": 2}),
        (lambda: fake_nvml.split(2, "3g.40gb"), {"3g.40gb": 1}),
        (lambda: fake_nvml.split(2, "3g.40gb", era=1), {"3g.40gb": 1}),
        (lambda: fake_nvml.split(2, "3g.40gb", "1g.10gb", era=1), {"1g.10gb": 1, "3g.40gb": 1}),
        (lambda: fake_nvml.unsplit(2), {}),
    ):
        change()
        monitor.read()
        assert monitor.rescan_requested
        assert profiles(monitor.detect_changes(), 2) == slices
        monitor.read()
        assert not monitor.rescan_requested


def test_gpu_without_slices_recovers_when_slices_are_created(
    source: NvmlSource, fake_nvml: FakeNvml
) -> None:
    monitor = watched(source)
    fake_nvml.split(2)
    assert not monitor.read().readings[2].healthy
    assert not monitor.rescan_requested, "there were no slices before, and there are none"
    fake_nvml.split(2, "7g.80gb")
    monitor.read()
    assert source.read()[2].fault == ""
    assert profiles(monitor.detect_changes(), 2) == {"7g.80gb": 1}


def test_unresponsive_gpu_has_not_lost_its_slices(source: NvmlSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.split(2, "3g.40gb")
    monitor = watched(source)
    fake_nvml.fail("*", GPU_IS_LOST, gpu=2)
    monitor.read()
    assert not monitor.rescan_requested
