"""Containers get the GPUs that the scheduler chose, whichever slots the kubelet chose."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpu_scheduler.agent.devices.source import DetectedDevice, DetectedSlice
from gpu_scheduler.kubernetes.agent.cdi import CdiDirectory, ContainerEdits
from gpu_scheduler.kubernetes.agent.device_plugin import DevicePlugin, KubeletSockets, slot_health
from gpu_scheduler.kubernetes.agent.dra_driver import DraDriver
from gpu_scheduler.kubernetes.agent.kubelet_api import dra_pb2 as dra
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.dynamic_resources import RESOURCE_CLAIMS
from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION, GPU_RESOURCE
from gpu_scheduler.kubernetes.objects import PODS
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport

DEADLINE_S = 60.0
DEVICES = tuple(
    DetectedDevice(index=index, uuid=f"GPU-{index}", path=f"/dev/nvidia{index}", memory_mb=1000)
    for index in range(4)
)


class Node:
    """A node with a fake kubelet, a plugin and a driver, and the API server behind them."""

    def __init__(self, directory: Path) -> None:
        self.api = FakeApi()
        self.client = ApiClient(FakeTransport(self.api))
        self.kubelet = FakeKubelet(directory / "kubelet")
        self.devices: tuple[DetectedDevice, ...] = DEVICES
        self.cdi = CdiDirectory(directory / "cdi")
        self.toolkit = directory / "toolkit"
        self.edits = ContainerEdits(toolkit_directories=(self.toolkit, directory / "cdi"))
        self.plugin = self.a_plugin()
        self.driver = DraDriver(
            self.client,
            node="node-1",
            devices=lambda: self.devices,
            cdi=self.cdi,
            edits=self.edits,
            kubelet_directory=self.kubelet.directory,
        )

    def a_plugin(self, resource: str = GPU_RESOURCE) -> DevicePlugin:
        return DevicePlugin(
            self.client,
            resource,
            node="node-1",
            devices=lambda: self.devices,
            cdi=self.cdi,
            edits=self.edits,
            sockets=KubeletSockets.below(self.kubelet.directory),
        )

    async def a_pod(self, name: str, allocated: str, *counts: int) -> None:
        """A pod that is assigned to the node, with one container for each count."""
        containers = [
            {
                "name": f"c{place}",
                "image": "busybox",
                "resources": {"limits": {GPU_RESOURCE: str(count)}},
            }
            for place, count in enumerate(counts)
        ]
        metadata: dict[str, Any] = {"name": name}
        if allocated:
            metadata["annotations"] = {ALLOCATED_ANNOTATION: allocated}
        spec = {"nodeName": "node-1", "containers": containers}
        await self.client.create(PODS, {"metadata": metadata, "spec": spec}, "default")

    async def a_claim(
        self, name: str, *devices: tuple[str, str], pool: str = "node-1"
    ) -> dra.Claim:
        """A claim with devices, each for a request."""
        made = await self.client.create(RESOURCE_CLAIMS, {"metadata": {"name": name}}, "default")
        results = [
            {"request": request, "driver": "gpu.scheduling", "pool": pool, "device": device}
            for request, device in devices
        ]
        if results:
            status = {"status": {"allocation": {"devices": {"results": results}}}}
            await self.client.patch(RESOURCE_CLAIMS, name, status, "default", subresource="status")
        return dra.Claim(namespace="default", uid=made.metadata.uid, name=name)

    def given(self, cdi_names: list[str]) -> tuple[list[str], dict[str, str]]:
        """The device nodes and variables that a runtime adds for these CDI names."""
        paths: list[str] = []
        variables: dict[str, str] = {}
        for path in sorted(self.cdi.directory.glob("*.json")):
            specification = json.loads(path.read_text())
            for device in specification["devices"]:
                if f"{specification['kind']}={device['name']}" in cdi_names:
                    edits = device["containerEdits"]
                    paths += [node["path"] for node in edits.get("deviceNodes", ())]
                    variables |= dict(line.split("=", 1) for line in edits["env"])
        return paths, variables

    async def gpus_of(self, pod: str, container: str = "c0") -> str:
        """Start a container; the GPUs that it sees."""
        paths, variables = self.given(await self.kubelet.start_container(pod, container))
        visible = variables["CUDA_VISIBLE_DEVICES"]
        numbers = [name.removeprefix("GPU-") for name in visible.split(",")]
        assert paths == [f"/dev/nvidia{number}" for number in numbers]
        assert variables["NVIDIA_VISIBLE_DEVICES"] == visible
        return visible


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - of a real socket
            await asyncio.sleep(0.01)


@asynccontextmanager
async def a_running_node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr("gpu_scheduler.kubernetes.agent.device_plugin.CHECK_SECONDS", 0.02)
    # The paths of unix sockets are limited to 107 characters.
    with tempfile.TemporaryDirectory(prefix="tgpu-") as directory:
        node = Node(Path(directory))
        await node.kubelet.start()
        await node.driver.start()
        await node.plugin.offer([device.uuid for device in DEVICES], frozenset())
        work = asyncio.create_task(node.plugin.run())
        await until(lambda: node.kubelet.allocatable() == 4)
        try:
            yield node
        finally:
            work.cancel()
            await asyncio.wait([work])
            await node.driver.stop()
            await node.kubelet.stop()


Scenario = Callable[[Node], Coroutine[Any, Any, None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scenario], None]:
    async def run(scenario: Scenario) -> None:
        async with a_running_node(monkeypatch) as node:
            await scenario(node)

    return lambda scenario: asyncio.run(run(scenario))


Play = Callable[[Scenario], None]


def test_two_pods_bound_together_never_swap_gpus(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-3", 1)
        await node.a_pod("b", "GPU-1", 1)
        await node.kubelet.admit("b", "c0", "slot-0")
        await node.kubelet.admit("a", "c0", "slot-1")
        assert await node.gpus_of("a") == "GPU-3"
        assert await node.gpus_of("b") == "GPU-1"

    play(scenario)


def test_pod_placed_before_the_first_report_of_the_agent_names_gpus_by_index(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "1,3", 2)
        await node.kubelet.admit("a", "c0", "slot-0", "slot-1")
        assert await node.gpus_of("a") == "GPU-1,GPU-3"

    play(scenario)


def test_container_restart_gets_the_same_gpus(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-2,GPU-3", 2)
        await node.kubelet.admit("a", "c0", "slot-0", "slot-1")
        assert await node.gpus_of("a") == "GPU-2,GPU-3"
        assert await node.gpus_of("a") == "GPU-2,GPU-3"

    play(scenario)


def test_slots_of_an_ended_pod_stand_for_the_gpus_of_the_next(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-2", 1)
        await node.kubelet.admit("a", "c0", "slot-0")
        assert await node.gpus_of("a") == "GPU-2"
        node.kubelet.end_pod("a")
        await node.a_pod("b", "GPU-0", 1)
        await node.kubelet.admit("b", "c0", "slot-0")
        assert await node.gpus_of("b") == "GPU-0"

    play(scenario)


def test_gpus_of_a_pod_are_dealt_out_to_its_containers_in_order(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-3,GPU-0,GPU-1", 1, 2)
        await node.kubelet.admit("a", "c0", "slot-2")
        await node.kubelet.admit("a", "c1", "slot-0", "slot-1")
        assert await node.gpus_of("a", "c1") == "GPU-0,GPU-1"
        assert await node.gpus_of("a", "c0") == "GPU-3"

    play(scenario)


@pytest.mark.parametrize(
    ("allocated", "reason"),
    [
        ("", "no annotation gpu.scheduling/allocated"),
        ("GPU-9", "allocated 0 for this container"),
        ("GPU-0", "asks for 2 of nvidia.com/gpu"),
    ],
)
def test_container_without_gpus_of_the_scheduler_does_not_start(
    play: Play, allocated: str, reason: str
) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", allocated, 2)
        await node.kubelet.admit("a", "c0", "slot-0", "slot-1")
        with pytest.raises(grpc.aio.AioRpcError, match=reason):
            await node.kubelet.start_container("a", "c0")
        assert not list(node.cdi.directory.glob("*"))

    play(scenario)


def test_plugin_registers_again_after_a_kubelet_restart(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-3", 1)
        await node.kubelet.admit("a", "c0", "slot-1")
        await node.kubelet.restart()
        assert node.kubelet.allocatable() == 0
        await until(lambda: node.kubelet.allocatable() == 4)
        assert node.kubelet.registered == [GPU_RESOURCE, GPU_RESOURCE]
        assert await node.gpus_of("a") == "GPU-3"

    play(scenario)


def test_another_plugin_process_gives_the_same_gpus(play: Play) -> None:
    async def scenario(node: Node) -> None:
        await node.a_pod("a", "GPU-3", 1)
        await node.kubelet.admit("a", "c0", "slot-1")
        after = node.a_plugin()
        await after.offer([device.uuid for device in DEVICES], frozenset())
        assert await after.write_specification(frozenset({"slot-1"})) == ("GPU-3",)
        assert await node.gpus_of("a") == "GPU-3"

    play(scenario)


def test_unhealthy_gpu_lowers_allocatable_and_a_recovery_raises_it(play: Play) -> None:
    async def scenario(node: Node) -> None:
        uuids = [device.uuid for device in DEVICES]
        await node.plugin.offer(uuids, frozenset({"GPU-2"}))
        await until(lambda: node.kubelet.allocatable() == 3)
        await node.plugin.offer(uuids, frozenset())
        await until(lambda: node.kubelet.allocatable() == 4)

    play(scenario)


def test_unhealthy_gpu_in_use_takes_its_own_slot() -> None:
    held = {"slot-0": "GPU-3", "slot-1": "GPU-0"}
    assert slot_health(4, held, frozenset({"GPU-3"})) == {
        "slot-0": False,
        "slot-1": True,
        "slot-2": True,
        "slot-3": True,
    }
    free = slot_health(4, held, frozenset({"GPU-1"}))
    assert [slot for slot, healthy in free.items() if not healthy] == ["slot-3"]


def test_claim_gets_exactly_the_allocated_devices(play: Play) -> None:
    async def scenario(node: Node) -> None:
        claim = await node.a_claim("c", ("gpu", "gpu-2"), ("gpu", "gpu-0"))
        prepared = (await node.kubelet.prepare(claim)).claims[claim.uid]
        assert prepared.error == ""
        assert [one.device_name for one in prepared.devices] == ["gpu-2", "gpu-0"]
        names = [name for one in prepared.devices for name in one.cdi_device_ids]
        assert node.given(names) == (
            ["/dev/nvidia2", "/dev/nvidia0"],
            {"NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0", "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-0"},
        )
        assert (await node.kubelet.prepare(claim)).claims[claim.uid] == prepared

    play(scenario)


def test_each_request_of_a_claim_has_devices_of_its_own(play: Play) -> None:
    async def scenario(node: Node) -> None:
        claim = await node.a_claim("c", ("big", "gpu-2"), ("small/first", "gpu-0"))
        prepared = (await node.kubelet.prepare(claim)).claims[claim.uid]
        big, small = prepared.devices
        assert list(small.request_names) == ["small/first"]
        assert node.given(list(big.cdi_device_ids))[0] == ["/dev/nvidia2"]
        paths, variables = node.given(list(small.cdi_device_ids))
        assert paths == ["/dev/nvidia0"]
        assert variables == {"NVIDIA_VISIBLE_DEVICES": "void"}

    play(scenario)


def test_released_claim_leaves_no_specification(play: Play) -> None:
    async def scenario(node: Node) -> None:
        claim = await node.a_claim("c", ("gpu", "gpu-2"))
        await node.kubelet.prepare(claim)
        assert len(list(node.cdi.directory.glob("*.json"))) == 1
        for _ in range(2):
            assert (await node.kubelet.unprepare(claim)).claims[claim.uid].error == ""
        assert not list(node.cdi.directory.glob("*"))

    play(scenario)


def test_claims_that_cannot_be_prepared_say_why(play: Play) -> None:
    async def scenario(node: Node) -> None:
        waiting = await node.a_claim("waiting")
        elsewhere = await node.a_claim("elsewhere", ("gpu", "gpu-2"), pool="node-2")
        unknown = await node.a_claim("unknown", ("gpu", "gpu-9"))
        missing = dra.Claim(namespace="default", uid="1", name="missing")
        replaced = dra.Claim(namespace="default", uid="2", name="waiting")
        good = await node.a_claim("good", ("gpu", "gpu-1"))
        claims = [waiting, elsewhere, unknown, missing, replaced, good]
        answer = (await node.kubelet.prepare(*claims)).claims
        assert answer[waiting.uid].error == "claim waiting is not allocated"
        assert answer[elsewhere.uid].error == "claim elsewhere has devices of node node-2"
        assert answer[unknown.uid].error == "this node has no device gpu-9"
        assert "missing" in answer["1"].error
        assert "was replaced" in answer["2"].error
        assert answer[good.uid].error == ""

    play(scenario)


def test_edits_of_nvidias_toolkit_are_used_where_it_has_described_the_gpus(play: Play) -> None:
    async def scenario(node: Node) -> None:
        node.toolkit.mkdir()
        shared = {
            "mounts": [{"hostPath": "/lib/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}]
        }
        devices = [
            {
                "name": str(index),
                "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{index}"}]},
            }
            for index in range(4)
        ]
        specification = {
            "cdiVersion": "0.6.0",
            "kind": "nvidia.com/gpu",
            "containerEdits": {**shared, "env": ["NVIDIA_VISIBLE_DEVICES=all"]},
            "devices": devices,
        }
        (node.toolkit / "nvidia.yaml").write_text(json.dumps(specification))
        edits = node.edits.of(["GPU-1", "GPU-3"], DEVICES)
        assert edits["mounts"] == shared["mounts"]
        assert [one["path"] for one in edits["deviceNodes"]] == ["/dev/nvidia1", "/dev/nvidia3"]
        assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES=GPU-1,GPU-3"]
        # The whole GPU would be more than the slice.
        sliced = DetectedDevice(
            index=0, uuid="GPU-0", mig_slices=(DetectedSlice(profile="1g.10gb", uuids=("MIG-7",)),)
        )
        assert "mounts" not in node.edits.of(["MIG-7"], [sliced])

    play(scenario)
