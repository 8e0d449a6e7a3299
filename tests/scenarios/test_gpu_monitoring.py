"""GPU use of jobs is measured; jobs are warned and stopped, and GPUs with leftovers are held."""

from typing import Any

import pytest

from gpu_scheduler.control.gpu_metering import Action, GpuRules
from gpu_scheduler.control.messages import DeviceSample, DevicesSampled, NodeReported, ResumeDevice
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.measurements import HOUR_MS, DeviceProcess, Measure
from tests.builders import a_core, a_device, a_job, an_array
from tests.scenarios.lab import Lab

S, MINUTE = 1_000, 60_000
GIVEN_MB = 40_960


def a_lab(**rules: Any) -> Lab:
    """One GPU of 80 GiB; using a tenth more than allocated is too much."""
    lab = Lab(nodes=[], limits=CoreLimits(gpu_rules=GpuRules(**rules), hot_above_c=80))
    device = a_device(index=0, uuid="GPU-0", memory_mb=2 * GIVEN_MB)
    lab.do(NodeReported(node_id="box", cpu_milli=16_000, memory_mb=64_000, devices=(device,)))
    return lab


def read(lab: Lab, at_s: float, memory: dict[str, int] | None = None, **values: Any) -> None:
    """A reading of the only GPU, with the memory used by allocations."""
    lab.now_ms = round(at_s * S)
    processes = tuple(
        DeviceProcess(pid=100 + place, user="ada", memory_mb=used_mb, allocation_id=name)
        for place, (name, used_mb) in enumerate((memory or {}).items())
    )
    processes += values.pop("processes", ())
    load = values.get("load_percent")
    reading = DeviceSample(index=0, processes=processes, utilisation_percent=load, **values)
    lab.do(DevicesSampled("box", (reading,)))


def halves(lab: Lab) -> None:
    lab.submit(a_job(number=1, gpus=0.5), a_job(number=2, gpus=0.5, user="eve"))


# --- memory


def test_job_over_gpu_memory_is_warned_then_stopped_and_neighbour_survives() -> None:
    lab = a_lab(memory=Action.STOP, memory_grace_ms=10 * S)
    halves(lab)
    read(lab, 1, {"j1.1": 50_000, "j2.1": 30_000})
    assert [warning.allocation_id for warning in lab.warnings] == ["j1.1"]
    assert "it uses 50000 MiB of the memory of GPU 0 on box and was given 40960" in (
        lab.warnings[0].text
    )
    read(lab, 10, {"j1.1": 50_000, "j2.1": 30_000})
    assert lab.running() == ["j1", "j2"]
    read(lab, 11, {"j1.1": 50_000, "j2.1": 30_000})
    assert lab.stopped() == [("j1.1", "gpu_memory")]
    assert lab.running() == ["j2"]
    row = lab.row("j1")
    assert row.state is JobState.FAILED
    assert row.reason.startswith("stopped for its GPU memory: it uses 50000 MiB")
    assert "gpu_memory_warning" in lab.events("j1")


def test_job_stopped_for_memory_is_not_retried() -> None:
    lab = a_lab(memory=Action.STOP, memory_grace_ms=0)
    lab.submit(a_job(number=1, gpus=0.5, retries=3))
    read(lab, 1, {"j1.1": 50_000})
    read(lab, 2, {"j1.1": 50_000})
    assert lab.state("j1") is JobState.FAILED


def test_stop_reason_is_recorded_in_attempt_of_array_task() -> None:
    lab = a_lab(memory=Action.STOP, memory_grace_ms=0)
    lab.submit(an_array(tasks="0-1", gpus=0.5))
    read(lab, 1, {"j1_0.1": 50_000})
    read(lab, 2, {"j1_0.1": 50_000})
    (attempt,) = lab.store.attempts("j1", 0)
    assert attempt.detail.startswith("stopped for its GPU memory: it uses 50000 MiB")
    assert lab.tasks("j1") == {"running": "1", "failed": "0"}


def test_job_that_frees_memory_in_time_continues_and_is_warned_again() -> None:
    lab = a_lab(memory=Action.STOP, memory_grace_ms=10 * S)
    halves(lab)
    for at_s, used_mb in ((1, 50_000), (9, 40_000), (12, 50_000), (21, 50_000)):
        read(lab, at_s, {"j1.1": used_mb})
    assert lab.stopped() == []
    kinds = [kind for kind in lab.events("j1") if kind.startswith("gpu_")]
    assert kinds == ["gpu_memory_warning", "gpu_memory_ok", "gpu_memory_warning"]


@pytest.mark.parametrize(
    ("rules", "gpus", "used_mb"),
    [
        ({"memory": Action.OFF}, 0.5, 80_000),
        ({"memory": Action.STOP}, 0.5, GIVEN_MB * 110 // 100),
        ({"memory": Action.STOP}, 1, 80_000),
    ],
    ids=["no rule", "within the tolerance", "whole GPU"],
)
def test_exempt_jobs_are_neither_warned_nor_stopped(
    rules: dict[str, Any], gpus: float, used_mb: int
) -> None:
    lab = a_lab(memory_grace_ms=0, **rules)
    lab.submit(a_job(number=1, gpus=gpus))
    for at_s in (1, 2, 3):
        read(lab, at_s, {"j1.1": used_mb})
    assert (lab.warnings, lab.stops) == ([], [])


def test_warn_mode_warns_once_and_never_stops() -> None:
    lab = a_lab(memory=Action.WARN, memory_grace_ms=0)
    halves(lab)
    for at_s in (1, 2, 3):
        read(lab, at_s, {"j1.1": 80_000})
    assert (len(lab.warnings), lab.stops) == (1, [])


# --- idleness


def test_idle_job_is_warned_then_stopped() -> None:
    lab = a_lab(idle=Action.STOP, idle_ms=2 * MINUTE, idle_grace_ms=MINUTE)
    lab.submit(a_job(number=1))
    for at_s in (0, 30, 60, 90):
        read(lab, at_s, load_percent=2)
    assert lab.warnings == []
    read(lab, 120, load_percent=2)
    assert "under 5 % for 2 minutes; it is stopped in 60 s" in lab.warnings[0].text
    read(lab, 150, load_percent=2)
    assert lab.stops == []
    read(lab, 180, load_percent=2)
    assert lab.stopped() == [("j1.1", "gpu_idle")]
    assert lab.row("j1").reason == (
        "stopped for idle GPUs: its GPUs have been under 5 % for 3 minutes"
    )


def test_activity_resets_idle_time() -> None:
    lab = a_lab(idle=Action.STOP, idle_ms=2 * MINUTE, idle_grace_ms=MINUTE)
    lab.submit(a_job(number=1))
    for at_s in range(0, 150, 30):
        read(lab, at_s, load_percent=0)
    read(lab, 160, load_percent=60)
    for at_s in range(180, 270, 30):
        read(lab, at_s, load_percent=0)
    assert lab.stops == []
    kinds = [kind for kind in lab.events("j1") if kind.startswith("gpu_")]
    assert kinds == ["gpu_idle_warning", "gpu_idle_over"]


@pytest.mark.parametrize(
    ("rules", "job"),
    [
        ({"idle_exempt_users": frozenset({"ada"})}, {}),
        ({"idle_exempt_tenants": frozenset({"vision"})}, {}),
        ({"idle_exempts_interactive": True}, {"interactive": True}),
        ({}, {"allow_idle": True}),
        ({"idle": Action.OFF}, {}),
    ],
    ids=["user", "tenant", "interactive", "job", "no rule"],
)
def test_exempt_jobs_may_be_idle(rules: dict[str, Any], job: dict[str, Any]) -> None:
    lab = a_lab(**({"idle": Action.STOP, "idle_ms": S, "idle_grace_ms": 0} | rules))
    lab.submit(a_job(number=1, **job))
    for at_s in range(0, 60, 10):
        read(lab, at_s, load_percent=0)
    assert (lab.warnings, lab.stops) == ([], [])


def test_idle_exemption_counts_only_where_site_allows_it() -> None:
    lab = a_lab(idle=Action.STOP, idle_ms=S, idle_grace_ms=0, idle_opt_out=False)
    lab.submit(a_job(number=1, allow_idle=True))
    for at_s in range(0, 60, 10):
        read(lab, at_s, load_percent=0)
    assert lab.stopped() == [("j1.1", "gpu_idle")]


def test_idle_job_beside_busy_one_is_detected_by_per_process_load() -> None:
    lab = a_lab(idle=Action.STOP, idle_ms=S, idle_grace_ms=0)
    halves(lab)
    busy, idle = (
        DeviceProcess(pid=pid, allocation_id=name, load_percent=load)
        for pid, name, load in ((7, "j1.1", 90), (8, "j2.1", 0))
    )
    for at_s in range(0, 60, 10):
        read(lab, at_s, processes=(busy, idle), load_percent=90)
    assert lab.stopped() == [("j2.1", "gpu_idle")]
    assert lab.running() == ["j1"]
    lab.ends("j1")
    one, two = (lab.store.attempt_measures(name)[0].measure for name in ("j1", "j2"))
    assert (one.mean_percent, two.mean_percent) == (90, 0)


def test_device_without_load_reading_counts_as_busy() -> None:
    lab = a_lab(idle=Action.STOP, idle_ms=S, idle_grace_ms=0)
    lab.submit(a_job(number=1))
    for at_s in range(0, 60, 10):
        read(lab, at_s, load_percent=None)
    assert (lab.warnings, lab.stops) == ([], [])


# --- leftovers on devices


def test_device_with_leftover_process_is_held_until_it_is_gone() -> None:
    lab = a_lab()
    lab.submit(a_job(number=1))
    read(lab, 1, {"j1.1": 9_000})
    lab.ends("j1")
    read(lab, 2, {"j1.1": 9_000})
    lab.submit(a_job(number=2))
    assert lab.running() == []
    leak = next(event for _, event in lab.store.events() if event.kind == "gpu_leak")
    assert dict(leak.data) == {
        "node": "box",
        "gpu": 0,
        "pid": 100,
        "of_user": "ada",
        "command": "",
        "memory_mb": 9_000,
        "job": "j1",
    }
    read(lab, 3)
    assert lab.running() == ["j2"]


def test_reported_foreign_process_stays_the_same() -> None:
    lab = a_lab()
    for at_s, sizes in ((1, (900, 500)), (2, (500, 900)), (3, (900, 500))):
        strangers = tuple(
            DeviceProcess(pid=pid, user="eve", memory_mb=size)
            for pid, size in zip((7, 8), sizes, strict=True)
        )
        read(lab, at_s, processes=strangers)
    kinds = [event.kind for _, event in lab.store.events() if event.kind.startswith("gpu_")]
    assert kinds == ["gpu_foreign"]


def test_unreleased_memory_holds_device() -> None:
    lab = a_lab()
    read(lab, 1, unexplained_mb=4_000)
    lab.submit(a_job(number=1))
    assert lab.running() == []
    read(lab, 2)
    assert lab.running() == ["j1"]


def test_admin_can_resume_device_despite_leftovers() -> None:
    lab = a_lab()
    stranger = DeviceProcess(pid=4711, user="eve", memory_mb=500)
    read(lab, 1, {"j9.1": 9_000})
    lab.submit(a_job(number=1))
    lab.do(ResumeDevice("box", 0))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    read(lab, 2, {"j9.1": 9_000})
    lab.submit(a_job(number=2))
    assert lab.running() == ["j2"]
    lab.ends("j2")
    read(lab, 3, {"j9.1": 9_000}, processes=(stranger,))
    lab.submit(a_job(number=3))
    assert lab.running() == [], "only that process was forgiven"


# --- measures


def test_energy_is_divided_by_share_and_sums_to_device_energy() -> None:
    lab = a_lab()
    lab.submit(a_job(number=1, gpus=0.75), a_job(number=2, gpus=0.25))
    read(lab, 0, power_mw=400_000, load_percent=80)
    for at_s in (10, 20, 30):
        read(lab, at_s, {"j1.1": 1_000}, power_mw=400_000, load_percent=80)
    lab.ends("j1", "j2")
    one, two = (lab.store.attempt_measures(name)[0].measure for name in ("j1", "j2"))
    assert (one.energy_uj, two.energy_uj) == (300_000 * 30 * S, 100_000 * 30 * S)
    assert one.mean_percent == two.mean_percent == 80
    assert (one.peak_memory_mb, two.peak_memory_mb) == (1_000, 0)
    account = lab.core.state.usage_totals.total(("vision", "ada"))
    assert account.energy_uj == 400_000 * 30 * S


def test_job_is_measured_from_its_start() -> None:
    lab = a_lab()
    read(lab, 0, power_mw=1_000)
    lab.now_ms = 6 * S
    lab.submit(a_job(number=1))
    read(lab, 10, power_mw=1_000)
    lab.ends("j1")
    assert lab.store.attempt_measures("j1")[0].measure == Measure(
        power_ms=4 * S, energy_uj=4_000 * S
    )


def test_gap_without_readings_is_not_interpolated() -> None:
    lab = a_lab(longest_gap_ms=30 * S)
    lab.submit(a_job(number=1))
    for at_s in (0, 10, 3_000, 3_010):
        read(lab, at_s, power_mw=1_000)
    lab.ends("j1")
    assert lab.store.attempt_measures("j1")[0].measure.power_ms == 20 * S


def test_job_on_device_without_sensors_has_no_measure() -> None:
    lab = a_lab()
    lab.submit(a_job(number=1))
    for at_s in (0, 10, 20):
        read(lab, at_s)
    lab.ends("j1")
    assert lab.store.attempt_measures("j1") == []


def test_device_hours_are_written_as_they_pass() -> None:
    lab = a_lab()
    lab.submit(a_job(number=1))
    for at_s in range(3_500, 3_700, 10):
        read(lab, at_s, power_mw=1_000, load_percent=50, memory_used_mb=at_s, temperature_c=60)
    first, second = lab.store.device_hours(0, 2 * HOUR_MS)
    assert (first.hour_ms, second.hour_ms) == (0, HOUR_MS)
    assert (first.read_ms, first.busy_percent_ms) == (90 * S, 50 * 90 * S)
    assert (first.peak_memory_mb, first.peak_temperature_c) == (3_590, 60)
    assert first.held_milli_ms == 1000 * 90 * S
    assert second.read_ms < 100 * S


def test_usage_sums_continue_after_restart() -> None:
    lab = a_lab(memory=Action.STOP, memory_grace_ms=MINUTE)
    lab.submit(a_job(number=1, gpus=0.5))
    for at_s in range(0, 80, 10):
        read(lab, at_s, power_mw=1_000)
    written = lab.store.attempt_measures("j1")[0].measure.energy_uj
    assert written == 1_000 * 60 * S
    lab.store.commit(lab.core.ledger_writes())
    lab.core = a_core(nodes=[], tenants=[], limits=lab.core.state.limits)
    restore(lab.core.state, lab.store, lab.now_ms)
    for at_s in (80, 90):
        read(lab, at_s, {"j1.1": 80_000}, power_mw=1_000)
    lab.ends("j1")
    (row,) = lab.store.attempt_measures("j1")
    assert row.measure.energy_uj == written + 1_000 * 10 * S
    assert row.warning.startswith("it uses 80000 MiB")
