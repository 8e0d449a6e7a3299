"""Which GPUs containers really get: the agent on a real kubelet with containerd and a fake NVML."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.kubernetes.names import ALLOCATED_ANNOTATION, CLAIM_ANNOTATION
from gpu_scheduler.kubernetes.scheduler.devices import Holder, lease_manifest
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
DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu.scheduling"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.scheduling'"}}]},
}
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
        uid = self.get("pod", pod)["metadata"]["uid"]
        lines = self.node.log_of("default", pod, uid=uid)
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
        made.apply(DEVICE_CLASS)
        made.until(lambda: offered(made) == str(GPUS) and len(slice_devices(made)) == GPUS)
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


@contextmanager
def registers_again(cluster: Cluster) -> Iterator[None]:
    """Until the kubelet has registered both plugins of the agent once more, and reported."""

    def registered() -> list[int]:
        text = cluster.agent.text()
        return [
            text.count("device plugin registered"),
            text.count("kubelet has registered the DRA driver"),
        ]

    def heartbeat() -> str:
        conditions = cluster.get("node", cluster.node.name)["status"]["conditions"]
        return next(str(c["lastHeartbeatTime"]) for c in conditions if c["type"] == "Ready")

    before = registered()
    yield
    cluster.until(lambda: all(new > old for new, old in zip(registered(), before, strict=True)))
    last = heartbeat()
    cluster.until(lambda: heartbeat() != last)


def test_restarts_of_container_agent_and_kubelet_keep_the_gpus(cluster: Cluster) -> None:
    """Two GPUs by the device plugin, and one by each of the other ways."""
    # Ends once whenever it is told to, by a file on the node.
    marker = cluster.node.directory / "marker"
    marker.mkdir()
    end = "/marker/end-$HOSTNAME"
    ends = f"while [ ! -e {end} ]; do sleep 0.2; done; busybox rm {end}"
    made = [
        pod("by-plugin", gpus=2, then=ends),
        with_resource_claim(pod("by-dra", then=ends), "kept"),
        by_environment(pod("by-environment", then=ends), "one"),
    ]
    names = [one["metadata"]["name"] for one in made]
    for one in made:
        one["spec"]["hostname"] = one["metadata"]["name"]
        one["spec"]["volumes"] = [{"name": "marker", "hostPath": {"path": str(marker)}}]
        mount = {"name": "marker", "mountPath": "/marker"}
        one["spec"]["containers"][0]["volumeMounts"] = [mount]
    cluster.apply(gpu_claim("one"), resource_claim("kept"), *made)
    cluster.until(lambda: all(cluster.told(name) for name in names))
    before = {name: expected(cluster, cluster.allocated(name)) for name in names}
    (uuid,) = cluster.allocated("by-environment")
    before["by-environment"] = f"CVD={uuid} NVD={uuid} /dev/nvidia*"
    assert {name: cluster.told(name) for name in names} == before
    assert len({uuid for name in names for uuid in cluster.allocated(name)}) == GPUS

    def restart_containers() -> None:
        counts = {name: cluster.restarts(name) for name in names}
        for name in names:
            (marker / f"end-{name}").touch()
        cluster.until(lambda: all(is_new(name, counts[name]) for name in names))
        assert {name: cluster.told(name) for name in names} == before

    def is_new(name: str, count: int) -> bool:
        if cluster.restarts(name) == count:
            return False
        statuses = cluster.get("pod", name)["status"]["containerStatuses"]
        return "running" in statuses[0]["state"] and cluster.told(name) != ""

    restart_containers()
    with registers_again(cluster):
        assert cluster.agent.stop(signal.SIGKILL) != 0
        cluster.agent.start()
    # The kubelet forgets its plugins. Until they are back, it rejects a pod whose container ends.
    with registers_again(cluster):
        cluster.node.stop_kubelet()
        cluster.node.start_kubelet()
    cluster.until(lambda: offered(cluster) == str(GPUS))
    restart_containers()
    cluster.delete(*names)
    # A kubelet that starts removes the ResourceSlices; the agent writes them again.
    cluster.until(lambda: len(slice_devices(cluster)) == GPUS)


# --- by environment


def gpu_claim(name: str, **devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"count": 1, **devices}},
    }


def reviewed(made: dict[str, Any], claim: str, **options: str) -> dict[str, Any]:
    """A pod with a GpuClaim as the webhook changes it."""
    made["metadata"]["annotations"] = {CLAIM_ANNOTATION: claim}
    for operation in patch_of(made, **options):
        *path, last = operation["path"].strip("/").split("/")
        target: Any = made
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[last] = operation["value"]
    return made


def by_environment(made: dict[str, Any], claim: str) -> dict[str, Any]:
    return reviewed(made, claim)


def test_a_container_without_the_resource_gets_its_gpus_by_environment(cluster: Cluster) -> None:
    cluster.apply(gpu_claim("one"), by_environment(pod("by-environment"), "one"))
    cluster.until(lambda: cluster.told("by-environment"))
    (uuid,) = cluster.allocated("by-environment")
    # No device node: a runtime of NVIDIA would add it by the variable.
    assert cluster.told("by-environment") == f"CVD={uuid} NVD={uuid} /dev/nvidia*"
    cluster.delete("by-environment")


# --- Dynamic Resource Allocation


def resource_claim(name: str, *selectors: str, **asked: Any) -> dict[str, Any]:
    exactly = {
        "deviceClassName": "gpu.scheduling",
        "selectors": [{"cel": {"expression": one}} for one in selectors],
        **asked,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
    }


def with_resource_claim(
    made: dict[str, Any], name: str, source: str = "resourceClaimName"
) -> dict[str, Any]:
    made["spec"]["resourceClaims"] = [{"name": "mine", source: name}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    return made


def slice_devices(cluster: Cluster) -> set[str]:
    slices = json.loads(cluster.plane.kubectl("get", "resourceslices", "-o", "json"))["items"]
    return {device["name"] for one in slices for device in one["spec"].get("devices", [])}


def claims(cluster: Cluster) -> dict[str, Any]:
    found = json.loads(cluster.plane.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    return {one["metadata"]["name"]: one for one in found}


def test_a_claim_for_gpu_3_finds_it_and_no_other(cluster: Cluster) -> None:
    uuid = cluster.nvml.values["gpu.3.uuid"]
    claim = resource_claim("third", "device.attributes['gpu.scheduling'].index == 3")
    made = with_resource_claim(pod("third"), "third")
    # What the user writes does not give another GPU.
    made["spec"]["containers"][0]["env"] = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    cluster.apply(claim, made)
    cluster.until(lambda: cluster.told("third"))
    assert cluster.allocated("third") == [uuid]
    assert cluster.told("third") == expected(cluster, [uuid])
    reserved = claims(cluster)["third"]["status"]["reservedFor"]
    assert [one["name"] for one in reserved] == ["third"]
    cluster.delete("third")
    # Kubernetes takes the devices back, and the next pod may have them.
    cluster.until(lambda: "allocation" not in claims(cluster)["third"].get("status", {}))
    cluster.apply(with_resource_claim(pod("again"), "third"))
    cluster.until(lambda: cluster.told("again"))
    assert cluster.told("again") == expected(cluster, [uuid])
    cluster.delete("again")
    cluster.plane.kubectl("delete", "resourceclaim", "third")


def test_pods_of_a_claim_template_share_no_gpu_with_pods_of_other_ways(cluster: Cluster) -> None:
    template = resource_claim("pair", count=2)
    spec = {"spec": {"devices": template["spec"]["devices"]}}
    template |= {"kind": "ResourceClaimTemplate", "spec": spec}
    cluster.apply(
        template,
        with_resource_claim(pod("by-dra"), "pair", "resourceClaimTemplateName"),
        pod("by-plugin", gpus=1),
        gpu_claim("one"),
        by_environment(pod("by-environment"), "one"),
    )
    names = ["by-dra", "by-plugin", "by-environment"]
    cluster.until(lambda: all(cluster.told(name) for name in names))
    given = {name: cluster.allocated(name) for name in names}
    assert len({uuid for uuids in given.values() for uuid in uuids}) == GPUS
    for name in ("by-dra", "by-plugin"):
        assert cluster.told(name) == expected(cluster, given[name])
    # All GPUs are in use, so a further claim waits with a reason.
    cluster.apply(resource_claim("late"), with_resource_claim(pod("late"), "late"))

    def condition() -> str:
        found = cluster.get("pod", "late")["status"].get("conditions", [])
        return next((one["message"] for one in found if one["type"] == "PodScheduled"), "")

    cluster.until(lambda: "waiting for 1 GPU" in condition())
    cluster.plane.kubectl("delete", "pod", "by-plugin", "--grace-period=0", "--force")
    cluster.until(lambda: cluster.told("late"))
    assert cluster.told("late") == expected(cluster, given["by-plugin"])
    cluster.delete("by-dra", "by-environment", "late")
    cluster.plane.kubectl("delete", "resourceclaim", "late")
    cluster.until(lambda: not claims(cluster).keys() - {"kept"})


def test_a_pod_with_a_gpu_claim_gets_its_gpus_by_dra(cluster: Cluster) -> None:
    names = ["two-a", "two-b"]
    cluster.apply(
        gpu_claim("two", count=2),
        *(reviewed(pod(name), "two", claim_name=f"gpus-{name}") for name in names),
    )
    cluster.until(lambda: all(cluster.told(name) for name in names))
    given = {name: cluster.allocated(name) for name in names}
    assert len({uuid for uuids in given.values() for uuid in uuids}) == GPUS
    for name in names:
        assert cluster.told(name) == expected(cluster, given[name])
        results = claims(cluster)[f"gpus-{name}"]["status"]["allocation"]["devices"]["results"]
        assert [one["device"] for one in results] == [uuid.lower() for uuid in given[name]]
    cluster.delete(*names)
    # The claims are those of the pods, and go with them.
    cluster.until(lambda: not {"gpus-two-a", "gpus-two-b"} & claims(cluster).keys())


def test_a_scheduler_that_is_killed_between_allocation_and_binding(cluster: Cluster) -> None:
    """The next one finds leases and an allocated claim, and binds the pod with these devices."""
    cluster.scheduler.stop(signal.SIGKILL)
    made = with_resource_claim(pod("rescued"), "rescued")
    cluster.apply(resource_claim("rescued"), made)
    uid = cluster.get("pod", "rescued")["metadata"]["uid"]
    node, uuid = cluster.node.name, cluster.nvml.values["gpu.2.uuid"]
    holder = Holder(
        uid=uid,
        namespace="default",
        pod="rescued",
        uuid=uuid,
        start="killed-1",
        devices=(2,),
        attempt="0",
    )
    lease = lease_manifest("default", node, 2, (holder,), datetime.now(UTC))
    claim = claims(cluster)["rescued"]
    result = {"request": "gpus", "driver": "gpu.scheduling", "pool": node, "device": uuid.lower()}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "rescued", "uid": uid}],
    }
    finalizers = ["resource.kubernetes.io/delete-protection"]
    changes = {"metadata": {"finalizers": finalizers}}
    cluster.apply({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease})
    patch = ("patch", "resourceclaim", claim["metadata"]["name"], "--type=merge", "-p")
    cluster.plane.kubectl(*patch, json.dumps(changes))
    cluster.plane.kubectl(*patch, json.dumps({"status": status}), "--subresource=status")
    cluster.scheduler.start()
    cluster.until(lambda: cluster.told("rescued"))
    assert cluster.allocated("rescued") == [uuid]
    assert cluster.told("rescued") == expected(cluster, [uuid])
    cluster.delete("rescued")
