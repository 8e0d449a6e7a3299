"""What agents discover and measure, and what admins decide about devices."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.messages import (
    DeviceSample,
    DevicesSampled,
    Drain,
    NodeReported,
    NodeSilent,
    PauseDevice,
    ResumeDevice,
    SetNode,
    Submit,
)
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.explain import explain
from gpu_scheduler.model.errors import NeverFits, UnknownThing
from gpu_scheduler.model.launch import Launch, Runner
from gpu_scheduler.model.measurements import DeviceProcess
from gpu_scheduler.model.node import Device
from tests.builders import HOUR, a_device, a_job, a_node
from tests.scenarios.lab import Lab


def found(gpus: int = 2, **changes: object) -> NodeReported:
    devices = tuple(a_device(index=index, uuid=f"GPU-{index}") for index in range(gpus))
    return NodeReported(
        node_id="box", cpu_milli=16_000, memory_mb=64_000, devices=devices, **changes
    )


def device(lab: Lab, index: int, node: str = "box") -> Device:
    return lab.core.state.cluster.index.resources(node).node.devices[index]


def test_job_waits_until_agent_registers_node() -> None:
    lab = Lab(nodes=[])
    lab.submit(a_job(number=1, gpus=2))
    assert lab.running() == []
    lab.do(found())
    assert lab.running() == ["j1"]


def test_silent_node_gets_no_jobs_and_keeps_its_running_ones() -> None:
    lab = Lab(nodes=[])
    lab.do(found())
    lab.submit(a_job(number=1, gpus=1))
    lab.do(NodeSilent("box"))
    lab.submit(a_job(number=2, gpus=1))
    assert lab.running() == ["j1"]
    lab.do(found())
    assert lab.running() == ["j1", "j2"]


def test_paused_device_stays_paused_after_agent_reconnects() -> None:
    lab = Lab(nodes=[])
    lab.do(found(), PauseDevice("box", 0), NodeSilent("box"), found())
    assert device(lab, 0).paused
    lab.submit(a_job(number=1, gpus=1), a_job(number=2, gpus=1))
    assert lab.running() == ["j1"]
    lab.do(ResumeDevice("box", 0))
    assert lab.running() == ["j1", "j2"]


def test_unknown_device_cannot_be_paused() -> None:
    lab = Lab(nodes=[a_node(gpus=2)])
    with pytest.raises(UnknownThing, match="has no GPU 7; it has: 0, 1"):
        lab.tell(PauseDevice(a_node().id, 7))
    with pytest.raises(UnknownThing, match="node 'nowhere' is not known"):
        lab.tell(PauseDevice("nowhere", 0))


def test_hot_device_gets_no_jobs_until_well_below_threshold() -> None:
    lab = Lab(nodes=[], limits=CoreLimits(hot_above_c=75, hot_hysteresis_c=5))
    lab.do(found(gpus=1), DevicesSampled("box", (DeviceSample(index=0, temperature_c=76),)))
    lab.submit(a_job(number=1, gpus=1))
    assert lab.running() == []
    lab.do(DevicesSampled("box", (DeviceSample(index=0, temperature_c=72),)))
    assert lab.running() == []
    lab.do(DevicesSampled("box", (DeviceSample(index=0, temperature_c=70),)))
    assert lab.running() == ["j1"]


def test_device_with_foreign_process_is_not_allocated() -> None:
    lab = Lab(nodes=[])
    stranger = DeviceProcess(pid=4711, user="eve", memory_mb=900)
    lab.do(found(gpus=1), DevicesSampled("box", (DeviceSample(index=0, processes=(stranger,)),)))
    lab.submit(a_job(number=1, gpus=1))
    assert lab.running() == []
    lab.do(DevicesSampled("box", (DeviceSample(index=0),)))
    assert lab.running() == ["j1"]


def test_unchanged_readings_write_nothing() -> None:
    lab = Lab(nodes=[])
    lab.do(found(gpus=1))
    outcome = lab.tell(DevicesSampled("box", (DeviceSample(index=0, temperature_c=33),)))
    assert outcome.writes == []


def die_at_once(lab: Lab, *commands: str) -> None:
    for command in commands:
        number = lab.core.state.next_number
        lab.submit(a_job(number=number, gpus=1, command=(command,)))
        lab.ends(f"j{number}", exit_code=1)


def test_device_where_different_jobs_die_is_quarantined_and_can_be_resumed() -> None:
    lab = Lab(nodes=[], limits=CoreLimits(quarantine_after=4))
    lab.do(found(gpus=2))
    die_at_once(lab, "a", "b", "c", "d")
    bad = [index for index in (0, 1) if device(lab, index).quarantined]
    assert len(bad) == 1
    lab.submit(a_job(number=lab.core.state.next_number, gpus=1))
    assert lab.store.allocations()[0].placements[0].devices[0].index != bad[0]
    lab.do(ResumeDevice("box", bad[0]))
    assert not device(lab, bad[0]).quarantined


def test_repeated_failure_of_one_command_quarantines_no_device() -> None:
    lab = Lab(nodes=[], limits=CoreLimits(quarantine_after=4))
    lab.do(found(gpus=2))
    die_at_once(lab, *["pyton"] * 20)
    assert not any(device(lab, index).quarantined for index in (0, 1))


def test_jobs_of_one_user_quarantine_only_one_device_at_a_time() -> None:
    lab = Lab(nodes=[], limits=CoreLimits(quarantine_after=4))
    lab.do(found(gpus=4))

    def bad() -> list[int]:
        return [index for index in range(4) if device(lab, index).quarantined]

    die_at_once(lab, *[f"exit {number}" for number in range(60)])
    assert len(bad()) == 1
    number = lab.core.state.next_number
    lab.submit(a_job(number=number, gpus=1, user="ben", command=("b",)))
    lab.ends(f"j{number}", exit_code=1)
    assert len(bad()) == 2, "another user's job failed there as well"
    for index in bad():
        lab.do(ResumeDevice("box", index))
    die_at_once(lab, *[f"exit {number}" for number in range(60)])
    assert len(bad()) == 1


def test_attempt_that_ran_for_a_while_clears_device_suspicion() -> None:
    lab = Lab(nodes=[], limits=CoreLimits(quarantine_after=4))
    lab.do(found(gpus=2))
    die_at_once(lab, "a", "b", "c")
    number = lab.core.state.next_number
    lab.submit(a_job(number=number, gpus=1))
    lab.at(HOUR)
    lab.ends(f"j{number}", exit_code=1)
    die_at_once(lab, "d")
    assert not any(device(lab, index).quarantined for index in (0, 1))


def in_a_container(number: int, **changes: object) -> Submit:
    return Submit(
        a_job(number=number, **changes), Launch(runner=Runner.CONTAINER, image="pytorch:2.0")
    )


def test_container_job_waits_until_node_has_container_engine() -> None:
    lab = Lab(nodes=[])
    lab.do(found(), in_a_container(1))
    assert lab.running() == []
    assert lab.row("j1").reason.startswith("no node has a container engine")
    lab.do(found(labels=(("tgpu.runner.container", "yes"),)))
    assert lab.running() == ["j1"]


def test_container_job_reason_names_missing_engine_not_internal_label() -> None:
    engine = (("tgpu.runner.container", "yes"),)
    lab = Lab(nodes=[a_node(gpus=1, labels=engine)])
    lab.do(in_a_container(1), in_a_container(2))
    assert why(lab, 2) == "waiting for 1 GPU; the one node: too few free GPUs"
    lab.do(SetNode(a_node(gpus=1, ordinal=1, labels=(("disk", "ssd"),))))
    assert why(lab, 2) == (
        "waiting for 1 GPU; of 2 nodes: 1 x too few free GPUs, 1 x without a container engine"
    )
    lab.do(in_a_container(3, gpus=0, cpus=1, node_labels=(("disk", "ssd"),)))
    told = "no node offers 1 CPU core, labels disk=ssd, with a container engine; "
    assert told in lab.row("j3").reason


def why(lab: Lab, number: int) -> str:
    assert lab.last_plan is not None
    return str(explain(lab.core.state.cluster, lab.last_plan, number))


def test_oversized_container_job_is_rejected() -> None:
    lab = Lab(nodes=[])
    lab.do(found())
    with pytest.raises(NeverFits):
        lab.tell(in_a_container(1, gpus=99))


# --- other hardware than before


def test_node_may_return_with_different_hardware() -> None:
    lab = Lab(nodes=[])
    lab.do(found(gpus=8), NodeSilent("box"), found(gpus=4))
    lab.submit(a_job(number=1, gpus=4))
    assert lab.running() == ["j1"]
    with pytest.raises(NeverFits):
        lab.tell(Submit(a_job(number=2, gpus=8)))


def test_removed_device_stays_with_its_job_and_then_disappears() -> None:
    lab = Lab(nodes=[])
    lab.do(found(gpus=2))
    lab.submit(a_job(number=1, gpus=2))
    lab.do(found(gpus=1))
    assert lab.running() == ["j1"]
    assert not device(lab, 1).takes_work
    lab.ends("j1")
    assert len(lab.core.state.cluster.index.resources("box").node.devices) == 1
    lab.submit(a_job(number=2, gpus=1))
    assert lab.running() == ["j2"]


def test_jobs_continue_while_node_memory_shrinks() -> None:
    lab = Lab(nodes=[])
    lab.do(found(gpus=2))
    lab.submit(a_job(number=1, gpus=1, memory_mb=60_000))
    lab.do(replace(found(gpus=2), memory_mb=32_000))
    lab.submit(a_job(number=2, gpus=1, memory_mb=1_000))
    assert lab.running() == ["j1"]
    lab.ends("j1")
    assert lab.running() == ["j2"]
    assert lab.core.state.cluster.index.resources("box").node.memory_mb == 32_000


def test_drained_node_is_still_drained_after_silence() -> None:
    lab = Lab(nodes=[])
    lab.do(found())
    lab.do(Drain("box"), NodeSilent("box"), found())
    lab.submit(a_job(number=1))
    assert lab.running() == []
