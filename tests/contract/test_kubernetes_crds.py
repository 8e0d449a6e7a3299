"""Our resources on a real API server: good objects are accepted, bad ones refused."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.configuration import read_kubeconfig
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS
from gpu_scheduler.kubernetes.crds.node_status import GPU_NODE_STATUSES
from gpu_scheduler.kubernetes.crds.registry import CUSTOM_RESOURCES
from tests.kubernetes.lab.control_plane import ControlPlane

pytestmark = pytest.mark.slow

CHART = Path(__file__).parents[2] / "charts" / "gpu-scheduler" / "crds"

SINGLE = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: single-gpu
spec:
  devices:
    count: 1
    exclusivity: Exclusive
"""
TRAINING = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: training-gpus
spec:
  devices:
    count: 4
    policy: contiguous
    exclusivity: Exclusive
  topology:
    mode: Preferred
    minBandwidthGBps: 600
"""
SHARED = {"exclusivity": "Shared"}
NOON, LATER = "2030-01-01T12:00:00Z", "2030-01-01T18:00:00Z"
GPU = {"index": 0, "uuid": "GPU-1", "model": "H100", "memoryMiB": 81559}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our definitions, which kubectl applied from the chart."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CHART))
    names = [f"crd/{resource.plural}.gpu.scheduling" for resource in CUSTOM_RESOURCES]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    return control_plane


@pytest.fixture
def namespace(cluster: ControlPlane) -> str:
    name = f"test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    return name


def manifest(kind: str, spec: dict[str, Any], **more: Any) -> str:
    name = f"x-{secrets.token_hex(4)}"
    head = {"apiVersion": "gpu.scheduling/v1", "kind": kind, "metadata": {"name": name}}
    return json.dumps({**head, "spec": spec, **more})


def claim(devices: dict[str, Any], **spec: Any) -> str:
    return manifest("GpuClaim", {"devices": devices, **spec})


def reservation(**spec: Any) -> str:
    given = {"queue": "vision", "count": 4, "startTime": NOON, "endTime": LATER}
    return manifest("GpuReservation", given | spec)


def queue(quota: dict[str, Any], **spec: Any) -> str:
    return manifest("GpuQueue", {"quotas": [quota], **spec})


@pytest.mark.parametrize(
    "text",
    [
        SINGLE,
        TRAINING,
        claim({}),
        claim({"fraction": 0.07, **SHARED}),
        claim({"fraction": 1, **SHARED}),
        claim({"memory": "16Gi", **SHARED}),
        claim({"memory": 17179869184, **SHARED}),
        claim({"migProfile": "1g.10gb", "count": 7, **SHARED}),
        claim({"migProfile": "1g.10gb+me"}),
        claim({"memory": "40Gi", "models": ["A100", "H100"]}),
        claim(
            {"count": 8, "policy": "spread"},
            topology={"mode": "Required", "minBandwidthGBps": 900, "sameRack": True},
            nodeSelector={"zone": "a"},
            gang={"group": "run-1", "minMembers": 2, "maxMembers": 4},
            queue="vision",
            priority=1500,
            maxRunTimeSeconds=3600,
            preemptible=False,
            beginTime=NOON,
        ),
        manifest("GpuNodeStatus", {}),
        manifest("GpuNodeStatus", {"pausedGPUs": [0, 3], "pauseReason": "fan"}),
        queue({"guaranteed": 8}),
        queue(
            {"model": "H100", "guaranteed": 8, "borrowingLimit": 0, "lendingLimit": 8},
            parent="company",
            namespaces=["vision", "vision-dev"],
            weight=3,
            tier="high",
            budget={"gpuHours": 1000, "period": "week"},
        ),
        reservation(),
        reservation(node="n1", gpuIndices=[0, 1, 2, 3], preempts=True, model="H100"),
    ],
)
def test_a_good_object_is_accepted(cluster: ControlPlane, namespace: str, text: str) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (manifest("GpuClaim", {}), "spec.devices: Required value"),
        (claim({"count": 0}), "should be greater than or equal to 1"),
        (claim({"policy": "random"}), 'supported values: "contiguous", "pack", "spread"'),
        (claim({"fraction": 0.5}), "a fraction is a part of a shared GPU"),
        (claim(SHARED), "a shared GPU needs its size"),
        (claim({"fraction": 0.333, **SHARED}), "the finest step of a fraction is 0.01"),
        (claim({"fraction": 1.5, **SHARED}), "should be less than or equal to 1"),
        (claim({"memory": "lots", **SHARED}), "memory must be a positive quantity"),
        (claim({"memory": 0, **SHARED}), "memory must be a positive quantity"),
        (claim({"migProfile": "huge"}), "spec.devices.migProfile: Invalid value"),
        (
            claim({"migProfile": "1g.10gb", "memory": "1Gi", **SHARED}),
            "a MIG profile has a fixed size",
        ),
        (claim({"models": ["A100", "A100"]}), "Duplicate value"),
        (claim({}, gang={"group": "x"}), "spec.gang.minMembers: Required value"),
        (claim({}, gang={"minMembers": 4, "maxMembers": 2}), "must not be less than minMembers"),
        (claim({}, beginTime="tomorrow"), "spec.beginTime"),
        (claim({}, typo=1), 'unknown field "spec.typo"'),
        (manifest("GpuNodeStatus", {"pausedGPUs": [1, 1]}), "Duplicate value"),
        (queue({"guaranteed": 4, "lendingLimit": 5}), "cannot lend more GPUs"),
        (queue({"model": "A100"}), "spec.quotas[0].guaranteed: Required value"),
        (queue({"guaranteed": 1}, weight=0), "should be greater than or equal to 1"),
        (reservation(endTime=NOON), "endTime must be after startTime"),
        (reservation(gpuIndices=[0, 1, 2, 3]), "gpuIndices belong to a node"),
        (reservation(node="n1", gpuIndices=[0]), "at least as many GPUs as count"),
    ],
)
def test_a_bad_object_is_refused_with_the_reason(
    cluster: ControlPlane, namespace: str, text: str, complaint: str
) -> None:
    said = cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=text, check=False)
    assert complaint in said


def test_a_queue_is_not_its_own_parent(cluster: ControlPlane) -> None:
    text = json.loads(queue({"guaranteed": 1}))
    text["spec"]["parent"] = text["metadata"]["name"]
    said = cluster.kubectl("create", "-f", "-", stdin=json.dumps(text), check=False)
    assert "a queue cannot be its own parent" in said


def test_the_queue_of_a_reservation_stays(cluster: ControlPlane) -> None:
    text = reservation()
    name = json.loads(text)["metadata"]["name"]
    cluster.kubectl("create", "-f", "-", stdin=text)
    changes = json.dumps({"spec": {"queue": "other"}})
    said = cluster.kubectl("patch", "gres", name, "--type=merge", "-p", changes, check=False)
    assert "the queue of a reservation cannot change" in said


def test_a_claim_is_explained(cluster: ControlPlane) -> None:
    said = until(
        lambda: cluster.kubectl("explain", "gpuclaim.spec", check=False),
        lambda text: "FIELDS" in text,
    )
    assert "What the claim asks for: GPUs, how they are connected" in said
    assert "devices\t<Object> -required-" in said
    assert "The GPUs that each pod of the claim needs." in said
    devices = cluster.kubectl("explain", "gpuclaim.spec.devices.exclusivity")
    assert "ENUM:\n    Exclusive\n    Shared" in devices
    assert "gives whole GPUs to this claim alone" in " ".join(devices.split())


def test_the_columns_tell_what_a_user_wants_to_know(cluster: ControlPlane, namespace: str) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=SINGLE)
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=TRAINING)
    running = {
        "phase": "Running",
        "node": "gpu-1",
        "gpus": "0",
        "members": [{"pod": "p", "node": "gpu-1", "devices": [{"index": 0, "uuid": "GPU-1"}]}],
    }
    waiting = {
        "phase": "Pending",
        "reason": "4 GPUs requested, 3 are free",
        "queuePosition": 2,
        "expectedStart": {"likely": NOON, "latest": LATER},
        "conditions": [
            {
                "type": "Scheduled",
                "status": "False",
                "reason": "NotEnoughGpus",
                "message": "4 GPUs requested, 3 are free",
                "lastTransitionTime": NOON,
            }
        ],
    }

    async def write() -> None:
        configuration = read_kubeconfig([cluster.kubeconfig])
        async with connect(configuration) as client:
            for name, status in (("single-gpu", running), ("training-gpus", waiting)):
                await client.apply(
                    GPU_CLAIMS,
                    name,
                    {"status": status},
                    namespace,
                    field_manager="gpu-scheduler",
                    subresource="status",
                )
            found = await client.get(GPU_CLAIMS, "training-gpus", namespace)
            assert found.status.queue_position == 2
            assert found.status.conditions[0].reason == "NotEnoughGpus"
            assert found.metadata.generation == 1

    asyncio.run(write())
    table = cluster.kubectl("get", "gclaim", "-n", namespace).splitlines()
    assert table[0].split("  ")[0] == "NAME"
    header = [name.strip() for name in table[0].split("  ") if name.strip()]
    assert header == ["NAME", "PHASE", "NODE", "GPUS", "EXPECTED START", "REASON", "AGE"]
    assert table[1].split()[:4] == ["single-gpu", "Running", "gpu-1", "0"]
    assert f"{NOON}" in table[2]
    assert "4 GPUs requested, 3 are free" in table[2]
    wide = cluster.kubectl("get", "gclaim", "-n", namespace, "-o", "wide")
    assert "POSITION" in wide.splitlines()[0]


def test_devices_of_a_running_claim_stay_and_those_of_a_waiting_one_may_change(
    cluster: ControlPlane, namespace: str
) -> None:
    cluster.kubectl("create", "-n", namespace, "-f", "-", stdin=SINGLE)
    more = ["patch", "gclaim", "single-gpu", "-n", namespace, "--type=merge", "-p"]
    cluster.kubectl(*more, '{"spec": {"devices": {"count": 2}}}')
    cluster.kubectl(*more, '{"status": {"node": "gpu-1"}}', "--subresource=status")
    said = cluster.kubectl(*more, '{"spec": {"devices": {"count": 3}}}', check=False)
    assert "devices cannot change while the claim has GPUs" in said
    cluster.kubectl(*more, '{"spec": {"priority": 5}}')


def test_a_node_status_is_written_by_the_agent_and_shown(cluster: ControlPlane) -> None:
    name = f"node-{secrets.token_hex(4)}"
    status = {
        "heartbeatTime": NOON,
        "gpuCount": 1,
        "availableGPUs": 0,
        "gpuModel": "H100",
        "maxTemperatureCelsius": 91,
        "supportsCDI": True,
        "gpus": [
            {
                **GPU,
                "hot": True,
                "health": {"state": "Probation", "xid": 79, "recovery": "ResetGPU"},
                "foreignProcesses": [{"pid": 7, "user": "eva", "memoryMiB": 10}],
            }
        ],
        "links": [{"a": 0, "b": 1, "links": 18, "bandwidthGBps": 900}],
        "adapters": [{"name": "mlx5_0", "rateGbps": 400, "active": True}],
    }

    async def write() -> None:
        async with connect(read_kubeconfig([cluster.kubeconfig])) as client:
            await create_and_report(client)

    async def create_and_report(client: ApiClient) -> None:
        await client.create(GPU_NODE_STATUSES, {"metadata": {"name": name}})
        await client.apply(
            GPU_NODE_STATUSES,
            name,
            {"status": status},
            field_manager="agent",
            subresource="status",
        )
        found = await client.get(GPU_NODE_STATUSES, name)
        (gpu,) = found.status.gpus
        assert gpu.health.xid == 79
        assert gpu.is_hot
        assert found.status.links[0].bandwidth_gbps == 900
        # What was read can be written back without loss.
        again = await client.replace(GPU_NODE_STATUSES, found, subresource="status")
        assert again == found

    asyncio.run(write())
    row = cluster.kubectl("get", "gns", name, "--no-headers").split()
    assert row[:5] == [name, "1", "0", "H100", "91"]


def until(read: Callable[[], str], condition: Callable[[str], bool]) -> str:
    """Read until it is so: the OpenAPI document follows a new definition after a moment."""
    end = time.monotonic() + 60
    while True:
        found = read()
        if condition(found) or time.monotonic() > end:
            return found
        time.sleep(0.2)
