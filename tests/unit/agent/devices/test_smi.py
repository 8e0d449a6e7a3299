"""GPUs through nvidia-smi, with recorded outputs of real machines."""

import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.smi import SmiSource, number, parse_rows, parse_topology
from gpu_scheduler.agent.devices.source import DetectedSlice, DevicesUnreadable
from tests.fakes.smi import FakeSmi


@pytest.fixture
def smi(tmp_path: Path) -> FakeSmi:
    return FakeSmi(tmp_path / "bin")


def a_source(smi: FakeSmi, *, timeout_s: float = 10.0) -> SmiSource:
    return SmiSource(smi.command, host=Host(), timeout_s=timeout_s)


def test_dgx_is_found_with_island_and_local_cpus(smi: FakeSmi) -> None:
    smi.sample("dgx-a100")
    found = a_source(smi).find()
    assert found.detection == "nvidia-smi"
    assert found.labels == (("driver", "535.129.03"),)
    assert [device.index for device in found.devices] == list(range(8))
    assert {device.island for device in found.devices} == {0}
    assert {device.bandwidth_gbps for device in found.devices} == {600}
    device = found.devices[2]
    assert (device.model, device.memory_mb) == ("A100", 40960)
    assert device.pci_bus_id == "0000:47:00.0"
    assert device.cpus == (*range(16, 32), *range(144, 160))
    assert device.numa_node == 1


def test_dgx_is_read_with_its_processes(smi: FakeSmi) -> None:
    smi.sample("dgx-a100")
    source = a_source(smi)
    source.find()
    idle, busy = source.read()[:2]
    assert idle.temperature_c == 28
    assert idle.processes == ()
    assert idle.throttle_reasons == 0
    assert busy.utilisation_percent == 97
    assert busy.memory_used_mb == 38472
    assert busy.power_mw == 312_440
    assert busy.power_limit_mw == 400_000
    assert (busy.sm_clock_mhz, busy.memory_clock_mhz) == (1410, 1215)
    assert busy.throttle_reasons == 4
    assert busy.ecc_errors == 0
    assert [(p.pid, p.memory_mb) for p in busy.processes] == [(4294967, 38460), (4294968, None)]


def test_unsupported_values_are_unknown_and_indices_follow_bus(smi: FakeSmi) -> None:
    smi.sample("desktop")
    source = a_source(smi)
    devices = source.find().devices
    assert [device.model for device in devices] == ["GT1030", "RTX4090"]
    assert [device.island for device in devices] == [0, 1]
    assert [device.bandwidth_gbps for device in devices] == [0, 0]
    small, large = source.read()
    assert (small.utilisation_percent, small.power_mw, small.memory_clock_mhz) == (None, None, None)
    assert small.healthy
    assert large.ecc_errors is None
    assert large.power_mw == 28_910


def test_mig_slices_are_parsed_from_list(smi: FakeSmi) -> None:
    smi.sample("mig")
    split, whole = a_source(smi).find().devices
    assert [(s.profile, len(s.uuids)) for s in split.mig_slices] == [("1g.10gb", 2), ("3g.40gb", 1)]
    assert split.mig_slices[1] == DetectedSlice(
        profile="3g.40gb", uuids=("MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a",)
    )
    assert whole.mig_slices == ()


def test_slice_changes_appear_in_next_smi_reading(smi: FakeSmi) -> None:
    smi.sample("mig")
    source = a_source(smi)
    found, readings = source.find().devices, source.read()
    assert [set(reading.mig_uuids or ()) for reading in readings] == [
        device.mig_uuids for device in found
    ]
    kept = found[0].mig_slices[1].uuids
    lines = (smi.directory / "list").read_text().splitlines()
    smi.answer("list", "\n".join(line for line in lines if "1g.10gb" not in line))
    assert source.read()[0].mig_uuids == kept
    smi.answer("list", "", code=9)
    assert source.read()[0].mig_uuids is None, "that says nothing about them"


def test_field_unknown_to_old_driver_is_left_out(smi: FakeSmi) -> None:
    smi.refuse("mig.mode.current", "clocks_throttle_reasons.active")
    smi.answer("query-gpu", "0, GPU-1, Tesla V100-SXM2-16GB, 00000000:00:1E.0, 16384, 418.87\n")
    smi.answer("query-gpu-now", "GPU-1, 0, 0, 35, 24.10, 300.00, 135, 877, 0\n")
    source = a_source(smi)
    assert source.find().devices[0].model == "V100"
    assert source.read()[0].temperature_c == 35
    asked = len(smi.calls)
    source.read()
    assert len(smi.calls) == asked + 2  # the field is not requested again


def test_own_processes_are_attributed(smi: FakeSmi) -> None:
    smi.sample("mig")
    smi.answer(
        "query-compute-apps", f"GPU-513536b6-7d19-9063-b049-1e69664bb298, {os.getpid()}, 12\n"
    )
    process = a_source(smi).read()[0].processes[0]
    assert process.pid == os.getpid()
    assert process.user
    assert process.command


def test_lost_gpu_is_fault_and_others_continue(smi: FakeSmi) -> None:
    smi.sample("mig")
    source = a_source(smi)
    source.find()
    rows = (smi.directory / "query-gpu-now").read_text().splitlines()
    lost = "Unable to determine the device handle for GPU 0000:31:00.0: GPU is lost."
    smi.answer("query-gpu-now", f"{lost}\n{rows[1]}\n", code=15)
    gone, well = source.read()
    assert "does not list" in gone.fault
    assert well.healthy
    smi.answer("query-gpu-now", f"{rows[0].replace('30,', '[GPU is lost],')}\n{rows[1]}\n")
    gone, well = source.read()
    assert "lost" in gone.fault
    assert gone.needs_reset
    assert well.healthy


def test_failing_command_reports_reason(smi: FakeSmi) -> None:
    text = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
        "Make sure that the latest NVIDIA driver is installed and running."
    )
    smi.answer("query-gpu", f"{text}\n", code=9)
    with pytest.raises(DevicesUnreadable, match="couldn't communicate"):
        a_source(smi).find()


def test_machine_without_gpus_has_no_devices(smi: FakeSmi) -> None:
    smi.answer("query-gpu", "No devices were found\n")
    source = a_source(smi)
    assert source.find().devices == ()
    assert source.read() == []


def test_hanging_command_times_out(smi: FakeSmi) -> None:
    smi.delay(30)
    with pytest.raises(DevicesUnreadable, match=r"did not answer within 0\.1 s"):
        a_source(smi, timeout_s=0.1).find()


def test_missing_or_unusable_command_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DevicesUnreadable, match="not on PATH"):
        SmiSource("no-such-smi").find()
    broken = tmp_path / "nvidia-smi"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    with pytest.raises(DevicesUnreadable, match="cannot be run"):
        SmiSource(str(broken)).find()


@pytest.mark.parametrize(
    "text",
    ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "N/A", "ERR!", "", None],
)
def test_non_number_is_unknown(text: str | None) -> None:
    assert number(text) is None


def test_numbers_may_have_decimals() -> None:
    assert number("312.44") == 312


def test_malformed_lines_are_skipped() -> None:
    assert parse_rows("warning: x\n\n1, a\n", ("index", "uuid")) == [{"index": "1", "uuid": "a"}]


def test_hybrid_mesh_gives_peers_and_links() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tmlx5_0\tCPU Affinity\n"
        "GPU0\t X \tNV1\tNV2\tPIX\t0-19,40-59\n"
        "GPU1\tNV1\t X \tSYS\tSYS\t20-39\n"
        "GPU2\tNV2\tSYS\t X \tSYS\t\n"
        "mlx5_0\tPIX\tSYS\tSYS\t X \t\n"
    )
    rows = parse_topology(text)
    assert rows[0].peers == (1, 2)
    assert rows[0].links == 2
    assert rows[0].cpus == (*range(20), *range(40, 60))
    assert rows[1].peers == (0,)
    assert rows[2].cpus == ()
    assert set(rows) == {0, 1, 2}
