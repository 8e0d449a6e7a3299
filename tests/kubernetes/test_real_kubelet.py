"""Which GPUs containers really get: the agent on a real kubelet with containerd and a fake NVML."""

import json
import os
import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION, CLAIM_ANNOTATION
from gpu_scheduler.kubernetes.webhook.mutation import patch_of
from tests.fakes.nvml import FakeNvml, fake_nvml_library
from tests.kubernetes.lab.build import CONTROL_PLANE, NODE
from tests.kubernetes.lab.component import Component, until
from tests.kubernetes.lab.control_plane import ControlPlane
from tests.kubernetes.lab.fixtures import skip_unless_built
from tests.kubernetes.lab.image import IMAGE
from tests.kubernetes.lab.node import RealNode, missing_requirements
from tests.ports import lasting_port

__all__ = ["fake_nvml_library"]

pytestmark = pytest.mark.slow

GPUS = 4
CRDS = Path(__file__).parents[2] / "charts" / "gpu-scheduler" / "crds"
DRIVER_MAJOR = 195
TELL = 'echo "CVD=$CUDA_VISIBLE_DEVICES NVD=$NVIDIA_VISIBLE_DEVICES" /dev/nvidia*'


@dataclass(frozen=True, slots=True)
class Cluster:
    """A control plane with one real node, our scheduler and our agent."""

    plane: ControlPlane
    node: RealNode
    scheduler: Component
    agent: Component
    nvml: FakeNvml

    def apply(self, *manifests: dict[str, Any]) -> None:
        text = "\n---\n".join(json.dumps(one) for one in manifests)
        self.plane.kubectl("apply", "-f", "-", stdin=text)

    def get(self, kind: str, name: str) -> Any:
        return json.loads(self.plane.kubectl("get", kind, name, "-o", "json"))

    def until(self, condition: Any) -> None:
        until(condition, [self.scheduler, self.agent])

    def allocated(self, pod: str) -> list[str]:
        """UUIDs that the scheduler chose, in the order of the annotation.

        It names indices if the scheduler was faster than the first report of the agent.
        """
        annotations = self.get("pod", pod)["metadata"].get("annotations", {})
        uuids = {str(n): self.nvml.values[f"gpu.{n}.uuid"] for n in range(GPUS)}
        told = annotations.get(ALLOCATED_ANNOTATION, "").split(",")
        return [uuids.get(one, one) for one in told if one]

    def told(self, pod: str) -> str:
        """The last line of the newest container of a pod."""
        lines = self.node.log_of("default", pod)
        return lines[-1] if lines else ""

    def restarts(self, pod: str) -> int:
        statuses = self.get("pod", pod)["status"].get("containerStatuses", [])
        return sum(one["restartCount"] for one in statuses)

    def delete(self, *pods: str) -> None:
        self.plane.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")
        self.until(lambda: not self.node_has_pods())

    def node_has_pods(self) -> bool:
        return bool(json.loads(self.plane.kubectl("get", "pods", "-o", "json"))["items"])


@pytest.fixture(scope="module")
def cluster(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab = skip_unless_built(*CONTROL_PLANE, *NODE)
    if missing := missing_requirements():
        pytest.skip(f"a real kubelet needs {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("kubelet")
    nvml = FakeNvml(fake_nvml_library, directory / "nvml.state")
    nvml.a100s(GPUS)
    plane = ControlPlane(lab)
    node = RealNode(plane)
    driver_root = directory / "driver"
    (driver_root / "dev").mkdir(parents=True)
    for number in range(GPUS):
        path = driver_root / "dev" / f"nvidia{number}"
        os.mknod(path, 0o20666, os.makedev(DRIVER_MAJOR, number))
    agent = Component(
        *("agent", plane.kubeconfig, directory / "agent.log", "--node", node.name),
        *("--kubeconfig", str(plane.kubeconfig), "--kubelet-dir", str(node.kubelet_directory)),
        *("--cdi-dir", str(node.cdi_directory), "--driver-root", str(driver_root)),
        *("--state-dir", str(directory / "state"), "--read-interval", "1"),
        environment={key: nvml.env[key] for key in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")},
    )
    scheduler = Component(
        *("scheduler", plane.kubeconfig, directory / "scheduler.log", "--namespace", "default"),
        *("--listen", f"127.0.0.1:{lasting_port()}"),
    )
    made = Cluster(plane, node, scheduler, agent, nvml)
    try:
        plane.start()
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        node.start()
        agent.start()
        scheduler.start()
        made.until(lambda: offered(made) == str(GPUS))
        yield made
    finally:
        for component in (scheduler, agent):
            if component.process is not None:
                component.stop()
        node.stop()
        plane.stop()


def offered(cluster: Cluster) -> str:
    status = cluster.get("node", cluster.node.name)["status"]
    return str(status["allocatable"].get("nvidia.com/gpu", ""))


def pod(name: str, *, gpus: int = 0, then: str = "sleep 100000", **fields: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **fields.pop("metadata", {})},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", f"{TELL}; {then}"],
                    "resources": {"limits": limits},
                }
            ],
            **fields,
        },
    }


def expected(cluster: Cluster, uuids: list[str]) -> str:
    """What a container prints that has exactly these GPUs."""
    values = cluster.nvml.values
    numbers = {values[f"gpu.{n}.uuid"]: n for n in range(GPUS)}
    nodes = sorted(f"/dev/nvidia{numbers[uuid]}" for uuid in uuids)
    joined = ",".join(uuids)
    return f"CVD={joined} NVD={joined} {' '.join(nodes)}"


def test_two_pods_of_equal_size_never_swap_their_gpus(cluster: Cluster) -> None:
    for attempt in range(3):
        names = [f"pair-{attempt}-{letter}" for letter in "ab"]
        cluster.apply(*(pod(name, gpus=2) for name in names))
        cluster.until(lambda names=names: all(cluster.told(name) for name in names))
        given = {name: cluster.allocated(name) for name in names}
        assert len({uuid for uuids in given.values() for uuid in uuids}) == GPUS
        for name in names:
            assert cluster.told(name) == expected(cluster, given[name])
        cluster.delete(*names)


def test_restarts_of_container_agent_and_kubelet_keep_the_gpus(cluster: Cluster) -> None:
    names = ["steady-a", "steady-b"]
    # Ends by itself whenever it is told to, by a file on the node.
    marker = cluster.node.directory / "marker"
    marker.mkdir()
    ends = "while [ ! -e /marker/end-$HOSTNAME ]; do sleep 0.2; done"
    for name in names:
        made = pod(name, gpus=2, then=ends, hostname=name)
        made["spec"]["volumes"] = [{"name": "marker", "hostPath": {"path": str(marker)}}]
        made["spec"]["containers"][0]["volumeMounts"] = [{"name": "marker", "mountPath": "/marker"}]
        cluster.apply(made)
    cluster.until(lambda: all(cluster.told(name) for name in names))
    before = {name: expected(cluster, cluster.allocated(name)) for name in names}
    assert {name: cluster.told(name) for name in names} == before

    def restart_containers() -> None:
        counts = {name: cluster.restarts(name) for name in names}
        for name in names:
            (marker / f"end-{name}").touch()
        cluster.until(lambda: all(is_new(name, counts[name]) for name in names))
        assert {name: cluster.told(name) for name in names} == before

    def is_new(name: str, count: int) -> bool:
        if cluster.restarts(name) == count:
            return False
        # The next one would end at once as well.
        (marker / f"end-{name}").unlink(missing_ok=True)
        statuses = cluster.get("pod", name)["status"]["containerStatuses"]
        return "running" in statuses[0]["state"] and cluster.told(name) != ""

    restart_containers()
    assert cluster.agent.stop(signal.SIGKILL) != 0
    cluster.agent.start()
    cluster.node.stop_kubelet()
    cluster.node.start_kubelet()
    # The kubelet forgets its plugins; the agent registers again.
    cluster.until(lambda: offered(cluster) == str(GPUS))
    restart_containers()
    cluster.delete(*names)


def test_a_container_without_the_resource_gets_its_gpus_by_environment(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "one", "namespace": "default"},
        "spec": {"devices": {"count": 1}},
    }
    made = pod("by-environment", metadata={"annotations": {CLAIM_ANNOTATION: "one"}})
    for operation in patch_of(made):
        made["spec"]["containers"][0]["env"] = operation["value"]
    cluster.apply(claim, made)
    cluster.until(lambda: cluster.told("by-environment"))
    (uuid,) = cluster.allocated("by-environment")
    # No device node: a runtime of NVIDIA would add it by the variable.
    assert cluster.told("by-environment") == f"CVD={uuid} NVD={uuid} /dev/nvidia*"
    cluster.delete("by-environment")


def test_a_resource_claim_gives_exactly_the_allocated_devices(cluster: Cluster) -> None:
    """Here the test allocates: the scheduler does not allocate ResourceClaims."""
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "gpu.scheduling"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.scheduling'"}}]},
    }
    cluster.apply(device_class)
    cluster.until(lambda: len(slice_devices(cluster)) == GPUS)
    names = [f"claim-{letter}-{secrets.token_hex(2)}" for letter in "ab"]
    for name, index in zip(names, (3, 1), strict=True):
        claim_and_start(cluster, name, cluster.nvml.values[f"gpu.{index}.uuid"])
    cluster.until(lambda: all(cluster.told(name) for name in names))
    for name, index in zip(names, (3, 1), strict=True):
        uuid = cluster.nvml.values[f"gpu.{index}.uuid"]
        assert cluster.told(name) == expected(cluster, [uuid])
    cluster.delete(*names)


def slice_devices(cluster: Cluster) -> set[str]:
    slices = json.loads(cluster.plane.kubectl("get", "resourceslices", "-o", "json"))["items"]
    return {device["name"] for one in slices for device in one["spec"].get("devices", [])}


def claim_and_start(cluster: Cluster, name: str, uuid: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.scheduling"}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }
    made = pod(name, schedulerName="the-test")
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    cluster.apply(claim, made)
    uid = cluster.get("pod", name)["metadata"]["uid"]
    node = cluster.node.name
    result = {
        "request": "gpu",
        "driver": "gpu.scheduling",
        "pool": node,
        "device": uuid.lower(),
    }
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
    }
    cluster.plane.kubectl(
        *("patch", "resourceclaim", name, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": status})),
    )
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "uid": uid},
        "target": {"kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/default/pods/{name}/binding"
    cluster.plane.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
