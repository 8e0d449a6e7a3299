"""The agent of a Kubernetes node as a process: fake NVML, a kubelet and an API server around it."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.errors import NotFound
from gpu_scheduler.kubernetes.crds.node_status import (
    GPU_NODE_STATUSES,
    GpuNodeStatusStatus,
    HealthState,
)
from gpu_scheduler.kubernetes.dynamic_resources import RESOURCE_SLICES
from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION, GPU_RESOURCE
from gpu_scheduler.kubernetes.objects import NODES, PODS
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.server import serve
from tests.fakes.kubernetes.transport import FakeTransport
from tests.fakes.nvml import FakeNvml, fake_nvml, fake_nvml_library

__all__ = ["fake_nvml", "fake_nvml_library"]

DEADLINE_S = 60.0
UUID = "GPU-{:08d}-7d19-9063-b049-1e69664bb298"


class AgentProcess:
    """One agent, which can be killed and started again."""

    def __init__(self, directory: Path, url: str, nvml: FakeNvml) -> None:
        self.directory = directory
        self.nvml = nvml
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake"}}],
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
        }
        self.config = directory / "kubeconfig"
        self.config.write_text(json.dumps(config))
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpu_scheduler.kubernetes.agent", "--node=node-1"),
            f"--kubeconfig={self.config}",
            f"--kubelet-dir={self.directory / 'kubelet'}",
            f"--cdi-dir={self.directory / 'cdi'}",
            f"--state-dir={self.directory / 'state'}",
            "--read-interval=0.1",
            env=self.nvml.env,
        )

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return await self.process.wait()


@asynccontextmanager
async def a_node(nvml: FakeNvml) -> AsyncIterator[tuple[AgentProcess, FakeKubelet, ApiClient]]:
    nvml.a100s(4)
    api = FakeApi()
    client = ApiClient(FakeTransport(api))
    info = {"kubeletVersion": "v1.35.8", "containerRuntimeVersion": "containerd://2.2.9"}
    await client.create(NODES, {"metadata": {"name": "node-1"}, "status": {"nodeInfo": info}})
    with tempfile.TemporaryDirectory(prefix="tgpu-") as name:
        kubelet = FakeKubelet(Path(name) / "kubelet")
        await kubelet.start()
        async with serve(api) as url:
            agent = AgentProcess(Path(name), url, nvml)
            await agent.start()
            try:
                yield agent, kubelet, client
            finally:
                if agent.process is not None and agent.process.returncode is None:
                    await agent.kill()
                await kubelet.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def status_when(
    client: ApiClient, condition: Callable[[GpuNodeStatusStatus], bool]
) -> GpuNodeStatusStatus:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                status = (await client.get(GPU_NODE_STATUSES, "node-1")).status
                if condition(status):
                    return status
            except NotFound:
                pass
            await asyncio.sleep(0.05)


def test_agent_publishes_the_gpus_and_their_health(fake_nvml: FakeNvml) -> None:
    async def scenario() -> None:
        async with a_node(fake_nvml) as (agent, _, client):
            status = await status_when(client, lambda one: one.gpu_count == 4)
            assert status.gpus[2].uuid == UUID.format(2)
            assert (status.available_gpus, status.supports_cdi) == (4, True)
            assert {(one.a, one.b) for one in status.links} >= {(0, 1), (2, 3)}
            fake_nvml.xid(1, 79)
            status = await status_when(client, lambda one: one.available_gpus == 3)
            assert status.gpus[1].health.state is HealthState.PROBATION
            assert status.gpus[1].health.xid == 79
            devices = (await client.get(RESOURCE_SLICES, "node-1-gpu.scheduling")).spec.devices
            assert [one["name"] for one in devices] == [UUID.format(n).lower() for n in range(4)]
            assert await agent.terminate() == 0

    asyncio.run(scenario())


def test_containers_get_the_same_gpus_after_agent_and_kubelet_were_killed(
    fake_nvml: FakeNvml,
) -> None:
    async def scenario() -> None:
        async with a_node(fake_nvml) as (agent, kubelet, client):
            await until(lambda: kubelet.allocatable() == 4)
            for name, index in (("a", 3), ("b", 0)):
                pod = {
                    "metadata": {
                        "name": name,
                        "annotations": {ALLOCATED_ANNOTATION: UUID.format(index)},
                    },
                    "spec": {
                        "nodeName": "node-1",
                        "containers": [
                            {
                                "name": "main",
                                "image": "busybox",
                                "resources": {"limits": {GPU_RESOURCE: "1"}},
                            }
                        ],
                    },
                }
                await client.create(PODS, pod, "default")
            await kubelet.admit("b", "main", "slot-3")
            await kubelet.admit("a", "main", "slot-0")
            for _ in range(2):
                for name, index in (("a", 3), ("b", 0)):
                    [cdi_name] = await kubelet.start_container(name, "main")
                    found = specification(agent.directory / "cdi", cdi_name)
                    assert found["deviceNodes"][0]["path"] == f"/dev/nvidia{index}"
                    assert f"CUDA_VISIBLE_DEVICES={UUID.format(index)}" in found["env"]
                await agent.kill()
                await kubelet.restart()
                await agent.start()
                await until(lambda: kubelet.allocatable() == 4)

    asyncio.run(scenario())


def specification(directory: Path, name: str) -> dict[str, list[dict[str, str]]]:
    """The edits of a CDI device."""
    kind, _, device = name.partition("=")
    for path in directory.glob("*.json"):
        content = json.loads(path.read_text())
        for one in content["devices"]:
            if (content["kind"], one["name"]) == (kind, device):
                return one["containerEdits"]
    raise AssertionError(f"no specification of {name}")
