"""Telemetry that the monitor makes from readings."""

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

import gpu_scheduler
from gpu_scheduler.agent.devices.monitor import DeviceMonitor, MonitorSettings, boot_clock
from gpu_scheduler.agent.devices.processes import ForeignRule, ProcessAttribution
from gpu_scheduler.agent.devices.source import (
    DetectedDevice,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
)
from gpu_scheduler.agent.launcher.processes import start_ticks
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings

NOBODY = 2**22 + 1
"""No process has this number."""
FOUND = NodeInventory(
    cpu_milli=1,
    memory_mb=1,
    devices=(DetectedDevice(index=0, uuid="GPU-a", memory_mb=80_000),),
)


class Bench:
    """A monitor over one device whose next reading, owners and clock the test sets."""

    def __init__(self, memory: Path | None = None, boot_id: str = "boot-1") -> None:
        self.now = 10_000.0
        self.next: Reading | Exception = Reading(index=0)
        self.owners: dict[int, str] = {}
        self.monitor = DeviceMonitor(
            self,
            FOUND,
            self.owners.get,
            settings=MonitorSettings(foreign=ForeignRule(ignore_users=("gdm",))),
            health_file=memory,
            boot_id=boot_id,
            clock=lambda: self.now,
            wall_clock=lambda: 1_700_000_000.5,
        )

    def find(self) -> NodeInventory:
        return FOUND

    def read(self) -> list[Reading]:
        if isinstance(self.next, Exception):
            raise self.next
        return [self.next]

    def close(self) -> None: ...

    def look(self, **values: object) -> NodeReadings:
        self.next = Reading(index=0, **values)  # type: ignore[arg-type]
        return self.monitor.read()

    def processes(self, *processes: Process, **values: object) -> tuple[DeviceProcess, ...]:
        return self.look(processes=processes, **values).readings[0].processes


def test_readings_become_telemetry() -> None:
    telemetry = Bench().look(
        utilisation_percent=50,
        memory_used_mb=3,
        temperature_c=88,
        power_mw=7,
        power_limit_mw=8,
        sm_clock_mhz=9,
        throttle_reasons=64,
        ecc_errors=1,
    )
    assert telemetry.at_ms == 1_700_000_000_500
    assert telemetry.problem == ""
    assert telemetry.readings[0] == DeviceReading(
        index=0,
        utilisation_percent=50,
        memory_used_mb=3,
        temperature_c=88,
        power_mw=7,
        power_limit_mw=8,
        sm_clock_mhz=9,
        throttle_reasons=64,
        ecc_errors=1,
        load_percent=50,
        power_known=True,
    )


def test_excluded_devices_are_not_reported() -> None:
    bench = Bench()
    bench.read = lambda: [Reading(index=0), Reading(index=1)]  # type: ignore[method-assign]
    assert [reading.index for reading in bench.monitor.read().readings] == [0]


def test_unknown_values_are_zero_on_wire() -> None:
    assert Bench().look().readings[0] == DeviceReading(index=0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NodeReadings, "Telemetry"),
        (DeviceReading, "DeviceReading"),
        (DeviceProcess, "DeviceProcess"),
    ],
)
def test_values_have_fields_of_wire_message(value: type, message: str) -> None:
    proto = Path(gpu_scheduler.__file__).with_name("wire") / "agent.proto"
    body = re.search(rf"message {message} {{(.*?)\n}}", proto.read_text(), re.DOTALL)
    assert body is not None
    wire = set(re.findall(r"(\w+) = \d+;", body[1]))
    assert wire - {field.name for field in fields(value)} == set()
    assert {field.name for field in fields(value)} - wire <= {"why"}


def test_utilisation_is_mean_over_window() -> None:
    bench = Bench()
    for load in (100, 0, 50):
        bench.look(utilisation_percent=load)
        bench.now += 5
    assert bench.look(utilisation_percent=50).readings[0].utilisation_percent == 50
    bench.now += 61
    assert bench.look(utilisation_percent=10).readings[0].utilisation_percent == 10


def test_process_of_job_carries_its_allocation() -> None:
    bench = Bench()
    bench.owners[7] = "job-1.1"
    assert bench.processes(Process(pid=7, user="eve", command="python3", memory_mb=5)) == (
        DeviceProcess(pid=7, user="eve", command="python3", memory_mb=5, allocation_id="job-1.1"),
    )


def test_foreign_compute_process_is_foreign_at_once() -> None:
    found = Bench().processes(Process(pid=8, user="bob", command="python3", memory_mb=300))
    assert found == (DeviceProcess(pid=8, user="bob", command="python3", memory_mb=300),)


@pytest.mark.parametrize(
    "process",
    [
        Process(pid=8, command="Xorg", memory_mb=79_000),
        Process(pid=8, command="gnome-shell", graphics=True),
        Process(pid=8, command="nvidia-cuda-mps-server"),
        Process(pid=8, user="gdm", command="something"),
        Process(pid=8, command="firefox", memory_mb=900, graphics=True),
    ],
)
def test_desktop_and_ignored_processes_do_not_occupy_device(process: Process) -> None:
    assert Bench().processes(process) == ()


def test_graphics_program_occupies_device_when_it_fills_it() -> None:
    game = Process(pid=8, command="game", memory_mb=70_000, graphics=True)
    assert [process.pid for process in Bench().processes(game)] == [8]


def test_process_of_job_keeps_attribution_while_driver_lists_it() -> None:
    bench = Bench()
    bench.owners[NOBODY] = "job-1.1"
    bench.processes(Process(pid=NOBODY, user="ada", command="python3", memory_mb=5))
    bench.owners.clear()
    bench.now += 1000
    left = DeviceProcess(
        pid=NOBODY, user="ada", command="python3", memory_mb=9, allocation_id="job-1.1"
    )
    assert bench.processes(Process(pid=NOBODY, memory_mb=9)) == (left,)
    assert bench.processes() == ()
    assert bench.processes(Process(pid=NOBODY))[0].allocation_id == ""


def test_reused_pid_is_another_process() -> None:
    bench = Bench()
    bench.owners[os.getpid()] = "job-1.1"
    bench.processes(Process(pid=os.getpid()))
    bench.owners.clear()
    assert bench.processes(Process(pid=os.getpid()))[0].allocation_id == "job-1.1"
    began = start_ticks(os.getpid())
    attribution = ProcessAttribution(bench.owners.get, ForeignRule(), lambda _: next(ticks))
    ticks = iter((began, began + 1))
    bench.owners[7] = "job-1.1"
    reading = Reading(index=0, processes=(Process(pid=7),))
    assert attribution.attribute(reading, None, 1)[0][1] == "job-1.1"
    bench.owners.clear()
    assert attribution.attribute(reading, None, 1)[0][1] == ""


def test_load_of_just_ended_job_is_not_foreign() -> None:
    bench = Bench()
    bench.owners[7] = "job-1.1"
    bench.processes(Process(pid=7), utilisation_percent=100)
    bench.now += 5
    assert bench.processes(utilisation_percent=100) == ()
    bench.now += 61
    assert bench.processes(utilisation_percent=100)[0].pid == 0


def test_memory_not_released_by_job_is_reported() -> None:
    bench = Bench()
    bench.owners[7] = "job-1.1"
    job = Process(pid=7, memory_mb=5_000)
    assert bench.look(memory_used_mb=400).readings[0].unexplained_mb == 0
    during = bench.look(processes=(job,), memory_used_mb=5_900)
    assert during.readings[0].unexplained_mb == 0
    assert bench.look(memory_used_mb=3_400).readings[0].unexplained_mb == 3_000
    assert bench.look(memory_used_mb=600).readings[0].unexplained_mb == 0
    assert bench.look(memory_used_mb=3_400).readings[0].unexplained_mb == 0, "no job was there"


def test_memory_of_job_too_short_to_be_seen_must_be_released() -> None:
    bench = Bench()
    bench.look(memory_used_mb=10)
    bench.monitor.mark_in_use([0])
    assert bench.look(memory_used_mb=2_010).readings[0].unexplained_mb == 2_000
    bench.monitor.mark_repaired(0)
    assert bench.look(memory_used_mb=2_010).readings[0].unexplained_mb == 0


def test_memory_of_unseen_or_unsized_process_is_not_blamed_on_job() -> None:
    bench = Bench()
    bench.look(memory_used_mb=10)
    bench.monitor.mark_in_use([0])
    somebody = Process(pid=8, user="bob", memory_mb=None)
    reading = bench.look(processes=(somebody,), memory_used_mb=2_010).readings[0]
    assert reading.unexplained_mb == 0


def test_resumed_device_is_trusted_again() -> None:
    bench = Bench()
    assert not bench.look(xids=(79,)).readings[0].healthy
    bench.monitor.mark_repaired(0)
    assert bench.look().readings[0].healthy
    bench.look(fault="it is lost")
    bench.monitor.mark_repaired(0)
    assert not bench.look(fault="it is lost").readings[0].healthy, "it still stands against it"


def test_resume_order_is_acknowledged_once_stored(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    bench = Bench(path)
    bench.look(xids=(79,))
    bench.monitor.mark_repaired(0, mark=7)
    bench.next = DevicesUnreadable("driver asleep")
    assert bench.monitor.read().readings[0].trusted == 0, "nothing was read, nothing written"
    reading = bench.look().readings[0]
    assert (reading.trusted, reading.healthy) == (7, True)
    assert Bench(path).look().readings[0].healthy
    assert bench.look().readings[0].trusted == 7


def test_late_resume_order_clears_only_earlier_errors() -> None:
    bench = Bench()
    bench.look(xids=(79,))
    bench.now += 60
    bench.monitor.mark_repaired(0, mark=7, ago_s=120)
    reading = bench.look().readings[0]
    assert (reading.trusted, reading.healthy) == (7, False)
    bench.monitor.mark_repaired(0, mark=8, ago_s=30)
    reading = bench.look().readings[0]
    assert (reading.trusted, reading.healthy) == (8, True)


def test_full_device_without_visible_process_is_occupied() -> None:
    taken = DeviceProcess(pid=0, command="unseen", memory_mb=70_000)
    assert Bench().processes(memory_used_mb=70_000) == (taken,)
    assert Bench().processes(memory_used_mb=60_000) == ()


def test_busy_device_without_visible_process_is_occupied() -> None:
    assert Bench().processes(utilisation_percent=95)[0].pid == 0
    assert Bench().processes(utilisation_percent=70) == ()


def test_full_device_with_own_job_is_not_occupied() -> None:
    bench = Bench()
    bench.owners[7] = "job-1.1"
    found = bench.processes(Process(pid=7), memory_used_mb=79_000, utilisation_percent=100)
    assert [process.allocation_id for process in found] == ["job-1.1"]


def test_application_xid_is_reported_once_without_effect() -> None:
    bench = Bench()
    reading = bench.look(xids=(31,)).readings[0]
    assert (reading.xid, reading.healthy) == (31, True)
    assert bench.look().readings[0].xid == 0


def test_fatal_xid_is_reported_until_device_is_healthy() -> None:
    bench = Bench()
    reading = bench.look(xids=(79,)).readings[0]
    assert (reading.xid, reading.healthy) == (79, False)
    assert reading.why == "XID 79: the GPU has fallen off the bus"
    bench.now += 300
    assert bench.look().readings[0].xid == 79
    bench.now += 300
    assert bench.look().readings[0].healthy
    assert bench.look().readings[0].xid == 0


def test_last_telemetry_is_repeated_with_problem_while_devices_are_unreadable() -> None:
    bench = Bench()
    bench.look(temperature_c=40)
    bench.next = DevicesUnreadable("driver asleep")
    telemetry = bench.monitor.read()
    assert telemetry.readings[0].temperature_c == 40
    assert telemetry.problem.startswith("GPUs cannot be read: driver asleep")
    assert bench.look(temperature_c=41).problem == ""


def test_unhealthy_state_survives_agent_but_not_reboot(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    Bench(path).look(xids=(79,))
    assert not Bench(path).look().readings[0].healthy
    assert Bench(path, boot_id="boot-2").look().readings[0].healthy


def test_healthy_device_writes_no_state(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    bench = Bench(path)
    bench.look(ecc_errors=0)
    bench.look(ecc_errors=0)
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", '])
def test_unreadable_state_file_is_treated_as_missing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "health.json"
    path.write_text(text)
    assert Bench(path).look().readings[0].healthy


def test_unwritable_state_file_loses_only_persistence(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "missing" / "health.json")
    assert not bench.look(xids=(79,)).readings[0].healthy


def test_clock_counts_from_boot() -> None:
    assert 0 < boot_clock() <= boot_clock()
