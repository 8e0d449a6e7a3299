"""What the agent reports of its node, and how often it writes."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.agent.devices.health import DeviceHealth
from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice, NodeInventory
from gpu_scheduler.kubernetes.agent.node_status import HeatLimits, Observation, node_status
from gpu_scheduler.kubernetes.agent.pods import PodProcesses
from gpu_scheduler.kubernetes.agent.publisher import Publisher, PublishSettings
from gpu_scheduler.kubernetes.agent.service import offered_resources
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.container_runtime import supports_cdi
from gpu_scheduler.kubernetes.crds.node_status import (
    GPU_NODE_STATUSES,
    GpuMode,
    GpuNodeStatusStatus,
    HealthState,
    Recovery,
)
from gpu_scheduler.kubernetes.dynamic_resources import RESOURCE_SLICES
from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION
from gpu_scheduler.kubernetes.objects import NODES, NodeSystemInfo, ObjectMeta, Pod
from gpu_scheduler.model.measurements import DeviceProcess, DeviceReading, NodeReadings
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import VirtualLoop

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HEAT = HeatLimits(hot_celsius=80, cooling_celsius=5)


def a_device(index: int, **more: Any) -> DetectedDevice:
    return DetectedDevice(
        index=index, uuid=f"GPU-{index}", name="NVIDIA H100", memory_mb=81_559, **more
    )


def seen(*readings: DeviceReading, **more: Any) -> Observation:
    devices = more.pop("devices", tuple(a_device(one.index) for one in readings))
    inventory = NodeInventory(
        cpu_milli=1, memory_mb=1, devices=devices, labels=(("cuda", "12.4"), ("driver", "550.1"))
    )
    given = {"health": {}, "now": NOW, "uptime_seconds": 1000.0} | more
    return Observation(
        inventory=inventory, readings=NodeReadings(at_ms=0, readings=readings), **given
    )


def status_of(
    observation: Observation, previous: GpuNodeStatusStatus | None = None
) -> GpuNodeStatusStatus:
    return node_status(observation, previous or GpuNodeStatusStatus(), HEAT)


def test_status_has_inventory_readings_and_versions() -> None:
    reading = DeviceReading(
        index=0,
        temperature_c=40,
        power_mw=70_500,
        power_known=True,
        power_limit_mw=700_000,
        load_percent=3,
        memory_used_mb=10,
    )
    devices = (
        a_device(0, island=0, bandwidth_gbps=900, numa_node=1, pci_bus_id="0000:07:00.0"),
        a_device(1, island=0, bandwidth_gbps=600),
    )
    status = status_of(seen(reading, DeviceReading(index=1), devices=devices))
    gpu = status.gpus[0]
    assert (gpu.uuid, gpu.model, gpu.memory_mib) == ("GPU-0", "NVIDIA H100", 81_559)
    assert (gpu.temperature_celsius, gpu.power_watts, gpu.power_limit_watts) == (40, 70, 700)
    assert (gpu.utilization_percent, gpu.memory_used_mib, gpu.numa_node) == (3, 10, 1)
    assert (status.driver_version, status.cuda_version) == ("550.1", "12.4")
    assert (status.gpu_count, status.available_gpus, status.gpu_model) == (2, 2, "NVIDIA H100")
    assert [(one.a, one.b, one.bandwidth_gbps) for one in status.links] == [(0, 1, 600)]


def test_fatal_error_is_on_probation_with_the_time_of_its_end() -> None:
    health = DeviceHealth(why="XID 79: the GPU has fallen off the bus", until=1600.0)
    reading = DeviceReading(index=0, xid=79, healthy=False, why=health.why)
    status = status_of(seen(reading, health={0: health}))
    found = status.gpus[0].health
    assert (found.state, found.xid, found.recovery) == (HealthState.PROBATION, 79, Recovery.WAIT)
    assert found.probation_until == NOW + timedelta(seconds=600)
    assert status.available_gpus == 0
    later = seen(
        reading, health={0: health}, now=NOW + timedelta(seconds=30.5), uptime_seconds=1030.0
    )
    again = status_of(later, status).gpus[0].health
    assert (again.since, again.probation_until) == (NOW, found.probation_until)


def test_fault_that_only_a_reset_ends_says_so() -> None:
    health = DeviceHealth(why="the driver asks to reset the GPU", standing=True, needs_reset=True)
    found = status_of(seen(DeviceReading(index=0), health={0: health})).gpus[0].health
    assert (found.state, found.recovery) == (HealthState.UNHEALTHY, Recovery.RESET_GPU)
    assert found.probation_until is None


def test_hot_gpu_accepts_work_again_only_when_it_is_clearly_cooler() -> None:
    status = GpuNodeStatusStatus()
    hot = []
    for temperature in (80, 81, 78, 76, 75, 80):
        status = status_of(seen(DeviceReading(index=0, temperature_c=temperature)), status)
        hot.append(status.gpus[0].is_hot)
    assert hot == [False, True, True, True, False, False]


def test_gpu_with_foreign_process_or_paused_is_not_available() -> None:
    foreign = DeviceProcess(pid=7, user="ann", command="python", memory_mb=100)
    ours = DeviceProcess(pid=8, allocation_id="uid")
    status = status_of(
        seen(
            DeviceReading(index=0, processes=(foreign, ours)),
            DeviceReading(index=1, processes=(ours,)),
            DeviceReading(index=2),
            paused=[2],
        )
    )
    assert [process.pid for process in status.gpus[0].foreign_processes] == [7]
    assert status.gpus[1].foreign_processes == ()
    assert status.available_gpus == 1


def test_mig_slices_are_listed_and_offered_by_profile() -> None:
    slices = (
        DetectedSlice(profile="1g.10gb", uuids=("MIG-1", "MIG-2")),
        DetectedSlice(profile="3g.40gb", uuids=("MIG-3",)),
    )
    devices = (a_device(0, mig_slices=slices), a_device(1), a_device(2))
    status = status_of(seen(DeviceReading(index=0), devices=devices))
    assert status.gpus[0].mode is GpuMode.MIG
    found = [(one.uuid, one.profile) for one in status.gpus[0].mig_slices]
    assert found == [("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb"), ("MIG-3", "3g.40gb")]
    assert offered_resources(devices, {0, 2}) == {
        "nvidia.com/gpu": (("GPU-1", "GPU-2"), frozenset({"GPU-2"})),
        "nvidia.com/mig-1g.10gb": (("MIG-1", "MIG-2"), frozenset({"MIG-1", "MIG-2"})),
        "nvidia.com/mig-3g.40gb": (("MIG-3",), frozenset({"MIG-3"})),
    }


def test_problem_of_the_driver_is_a_condition_that_keeps_its_time() -> None:
    bad = seen(DeviceReading(index=0))
    bad = replace(bad, readings=NodeReadings(at_ms=0, problem="GPUs cannot be read"))
    first = status_of(bad)
    second = status_of(replace(bad, now=NOW + timedelta(minutes=1)), first)
    [readable] = [one for one in second.conditions if one.type == "DevicesReadable"]
    assert (readable.status, readable.message) == ("False", "GPUs cannot be read")
    assert readable.last_transition_time == NOW


@pytest.mark.parametrize(
    ("runtime", "supported"),
    [
        ("containerd://1.6.20~ds1", False),
        ("containerd://1.7.24", None),
        ("containerd://2.2.9", True),
        ("cri-o://1.27.1", False),
        ("cri-o://1.33.0", True),
        ("docker://20.10.1", None),
        ("", None),
    ],
)
def test_cdi_is_known_from_the_version_of_the_runtime(runtime: str, supported: bool | None) -> None:
    assert supports_cdi(NodeSystemInfo(container_runtime_version=runtime)) is supported


@pytest.mark.parametrize(
    "group",
    [
        "0::/kubepods/besteffort/pod0a1b2c3d-0000-1111-2222-333344445555/abc",
        "0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_1111_2222_333344445555.slice/cri-abc.scope",
    ],
)
def test_process_of_a_pod_with_gpus_is_not_foreign(tmp_path: Path, group: str) -> None:
    uid = "0a1b2c3d-0000-1111-2222-333344445555"
    annotations = {ALLOCATED_ANNOTATION: "GPU-0"}
    pod = Pod(metadata=ObjectMeta(name="a", namespace="d", uid=uid, annotations=annotations))
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(group + "\n")
    assert PodProcesses({pod.key: pod}, tmp_path).owner_of(7) == uid
    assert PodProcesses({}, tmp_path).owner_of(7) is None
    assert PodProcesses({pod.key: pod}, tmp_path).owner_of(8) is None


# --- writing


def play(scenario: Callable[[FakeApi, Publisher], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on virtual time, beside a publisher."""
    loop = VirtualLoop()
    api = FakeApi()
    client = ApiClient(FakeTransport(api))

    async def run() -> None:
        await client.create(NODES, {"metadata": {"name": "node-1"}})
        publisher = Publisher(
            client, "node-1", heat=HEAT, settings=PublishSettings(), clock=loop.time
        )
        work = asyncio.create_task(publisher.run())
        await scenario(api, publisher)
        work.cancel()

    loop.run(run())


async def pass_time(publisher: Publisher, seconds: int, observation: Observation) -> None:
    """A reading each second, none like the one before."""
    for second in range(seconds):
        readings = tuple(
            replace(one, memory_used_mb=second) for one in observation.readings.readings
        )
        publisher.observe(replace(observation, readings=NodeReadings(at_ms=0, readings=readings)))
        await asyncio.sleep(1.0)


def test_a_node_that_was_made_anew_owns_what_its_agent_reports() -> None:
    """With the uid of the old one, Kubernetes would delete the report again and again."""

    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        client = ApiClient(FakeTransport(api))
        calm = seen(DeviceReading(index=0, temperature_c=40))
        await pass_time(publisher, 2, calm)
        for resource in (GPU_NODE_STATUSES, NODES):
            await client.delete(resource, "node-1")
        node = await client.create(NODES, {"metadata": {"name": "node-1"}})
        await pass_time(publisher, 40, calm)
        [owner] = (await client.get(GPU_NODE_STATUSES, "node-1")).metadata.owner_references
        assert owner.uid == node.metadata.uid

    play(scenario)


def test_readings_are_written_now_and_then_and_health_at_once() -> None:
    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        client = ApiClient(FakeTransport(api))
        calm = seen(DeviceReading(index=0, temperature_c=40))
        await pass_time(publisher, 90, calm)
        assert publisher.writes == 3
        sick = replace(calm, health={0: DeviceHealth(why="XID 79", until=5000.0)})
        await pass_time(publisher, 2, sick)
        assert publisher.writes == 4
        stored = await client.get(GPU_NODE_STATUSES, "node-1")
        assert stored.status.gpus[0].health.reason == "XID 79"
        assert stored.metadata.owner_references[0].kind == "Node"

    play(scenario)


def test_health_and_heat_are_events_of_the_node() -> None:
    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        ill = {0: DeviceHealth(why="XID 79", standing=True)}
        publisher.observe(seen(DeviceReading(index=0)))
        await asyncio.sleep(3)
        publisher.observe(seen(DeviceReading(index=0, temperature_c=95), health=ill))
        await asyncio.sleep(3)
        watched = {0: DeviceHealth(why="XID 79", until=1600.0)}
        publisher.observe(seen(DeviceReading(index=0, temperature_c=95), health=watched))
        await asyncio.sleep(3)
        publisher.observe(seen(DeviceReading(index=0)))
        await asyncio.sleep(3)
        events = [one for (path, _, _), one in api.objects.items() if path.endswith("/events")]
        assert [(one["reason"], one["type"]) for one in events] == [
            ("GpuUnhealthy", "Warning"),
            ("GpuHot", "Warning"),
            ("GpuOnProbation", "Normal"),
            ("GpuRecovered", "Normal"),
            ("GpuCooled", "Normal"),
        ]
        assert "GPU 0 (GPU-0) gets no new work: " in events[0]["message"]
        assert events[0]["involvedObject"]["kind"] == "Node"

    play(scenario)


def test_resource_slice_is_written_only_when_its_devices_change() -> None:
    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        client = ApiClient(FakeTransport(api))
        calm = seen(DeviceReading(index=0), DeviceReading(index=1))
        await pass_time(publisher, 70, calm)
        first = await client.get(RESOURCE_SLICES, "node-1-gpu.scheduling")
        assert (first.spec.node_name, first.spec.pool.generation) == ("node-1", 1)
        assert [one["name"] for one in first.spec.devices] == ["gpu-0", "gpu-1"]
        sick = replace(calm, health={1: DeviceHealth(why="XID 79", until=5000.0)})
        await pass_time(publisher, 2, sick)
        second = await client.get(RESOURCE_SLICES, "node-1-gpu.scheduling")
        assert second.spec.pool.generation == 2
        assert [one["attributes"]["healthy"]["bool"] for one in second.spec.devices] == [
            True,
            False,
        ]

    play(scenario)


def test_resource_slice_that_a_kubelet_has_deleted_is_written_again() -> None:
    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        client = ApiClient(FakeTransport(api))
        calm = seen(DeviceReading(index=0))
        await pass_time(publisher, 5, calm)
        await client.delete(RESOURCE_SLICES, "node-1-gpu.scheduling")
        await pass_time(publisher, 60, calm)
        stored = await client.get(RESOURCE_SLICES, "node-1-gpu.scheduling")
        assert [one["name"] for one in stored.spec.devices] == ["gpu-0"]

    play(scenario)


def test_failed_write_is_repeated_and_pauses_are_respected() -> None:
    async def scenario(api: FakeApi, publisher: Publisher) -> None:
        client = ApiClient(FakeTransport(api))
        calm = seen(DeviceReading(index=0), DeviceReading(index=1))
        api.faults.append(
            Fault(matches=lambda request: request.method == "PUT", times=2, loses_request=True)
        )
        await pass_time(publisher, 120, calm)
        assert publisher.failures == 2
        await client.patch(GPU_NODE_STATUSES, "node-1", {"spec": {"pausedGPUs": [1]}})
        await pass_time(publisher, 40, calm)
        stored = await client.get(GPU_NODE_STATUSES, "node-1")
        assert (stored.status.gpu_count, stored.status.available_gpus) == (2, 1)

    play(scenario)
