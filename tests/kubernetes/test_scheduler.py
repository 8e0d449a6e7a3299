"""The scheduler process on a real control plane, with nodes that kwok runs, used by kubectl."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    CLAIM_ANNOTATION,
    INDICES_ANNOTATION,
)
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node
from tests.ports import lasting_port

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
CRDS = Path(__file__).parents[2] / "charts" / "gpu-scheduler" / "crds"
QUICK_START = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: single-gpu
spec:
  devices:
    count: 1
    exclusivity: Exclusive
"""


class Cluster:
    """A namespace, nodes of its own, and a scheduler process."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self.log = directory / "scheduler.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = lasting_port()

    def start(self) -> None:
        command = [sys.executable, "-m", "gpu_scheduler.kubernetes.scheduler"]
        command += ["--namespace", self.namespace, "--listen", f"127.0.0.1:{self.port}"]
        environment = os.environ | {"KUBECONFIG": str(self.plane.kubeconfig)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, *manifests: dict[str, Any] | str) -> None:
        texts = [one if isinstance(one, str) else json.dumps(one) for one in manifests]
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(texts))

    def get(self, kind: str, name: str = "") -> Any:
        found = json.loads(self.kubectl("get", kind, *([name] if name else []), "-o", "json"))
        return found if name else found["items"]

    def add_node(self, name: str, gpus: int) -> None:
        self.apply(kwok_node(f"{self.namespace}-{name}", gpus=gpus, labels={"for": self.namespace}))

    def pod(self, name: str, *, gpus: int = 0, claim: str = "", **spec: Any) -> dict[str, Any]:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "annotations": {CLAIM_ANNOTATION: claim} if claim else {},
            },
            "spec": {
                "schedulerName": "gpu-scheduler",
                "nodeSelector": {"for": self.namespace},
                "containers": [container],
                **spec,
            },
        }

    def bound(self) -> dict[str, tuple[str, str]]:
        """Node and GPU indices of the pods that are bound."""
        return {
            pod["metadata"]["name"]: (
                pod["spec"]["nodeName"],
                pod["metadata"]["annotations"].get(INDICES_ANNOTATION, ""),
            )
            for pod in self.get("pods")
            if pod["spec"].get("nodeName")
        }

    def device_leases(self) -> list[str]:
        return sorted(
            name
            for one in self.get("leases")
            if (name := one["metadata"]["name"]).startswith(f"gpu-{self.namespace}")
        )

    def metrics(self) -> str:
        """What the scheduler serves for Prometheus; nothing before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as page:
                return str(page.read().decode())
        except OSError:
            return ""

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; a scheduler that has ended fails the test at once."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            has_ended = self.process is not None and self.process.poll() is not None
            if has_ended or time.monotonic() > end:
                what = "the scheduler has ended" if has_ended else "still waiting"
                pytest.fail(f"{what}; its log ends with\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)


@contextmanager
def a_cluster(plane: ControlPlane, directory: Path) -> Iterator[Cluster]:
    namespace = f"gpu-{secrets.token_hex(4)}"
    plane.kubectl("apply", "--server-side", "-f", str(CRDS))
    plane.kubectl("wait", "--for=condition=Established", "-f", str(CRDS))
    plane.kubectl("create", "namespace", namespace)
    plane.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    cluster = Cluster(plane, namespace, directory)
    try:
        yield cluster
    finally:
        if cluster.process is not None and cluster.process.poll() is None:
            cluster.stop()
        plane.kubectl("delete", "namespace", namespace, "--wait=false")
        plane.kubectl("delete", "nodes", "-l", f"for={namespace}")


@pytest.fixture
def cluster(kwok: ControlPlane, tmp_path: Path) -> Iterator[Cluster]:
    with a_cluster(kwok, tmp_path) as made:
        yield made


def test_the_quick_start_from_claim_to_running_pod(cluster: Cluster) -> None:
    cluster.add_node("a", 2)
    cluster.start()
    cluster.apply(QUICK_START, cluster.pod("gpu-test", claim="single-gpu", gpus=1))
    node = f"{cluster.namespace}-a"
    cluster.until(lambda: cluster.bound() == {"gpu-test": (node, "0")})
    pod = cluster.get("pod", "gpu-test")
    assert pod["metadata"]["annotations"][ALLOCATED_ANNOTATION] == "0"
    assert cluster.device_leases() == [f"gpu-{node}-0"]
    columns = ["single-gpu", "Running", node, "0"]
    cluster.until(
        lambda: (
            cluster.kubectl("get", "gclaim", "single-gpu", "--no-headers").split()[:4] == columns
        )
    )
    cluster.until(lambda: "assigned to GPU 0" in cluster.kubectl("get", "events"))
    # Pods that other tests have left on this control plane are bound as well.
    cluster.until(lambda: bool(re.search(r"_pods_bound_total [1-9]", cluster.metrics())))
    cluster.kubectl("delete", "pod", "gpu-test")
    cluster.until(lambda: cluster.device_leases() == [])
    assert cluster.stop(signal.SIGTERM) == 0


def test_a_pod_that_does_not_fit_says_why_and_starts_when_a_node_comes(cluster: Cluster) -> None:
    cluster.add_node("a", 1)
    cluster.start()
    cluster.apply(cluster.pod("big", gpus=4))

    def condition() -> dict[str, str]:
        found = cluster.get("pod", "big")["status"].get("conditions", [])
        return next((one for one in found if one["type"] == "PodScheduled"), {})

    # While the scheduler does not know the node yet, the reason is another one.
    cluster.until(lambda: "waiting for 4 GPUs" in condition().get("message", ""))
    assert (condition()["status"], condition()["reason"]) == ("False", "Unschedulable")
    cluster.add_node("b", 4)
    cluster.until(lambda: "big" in cluster.bound())


def test_the_pods_of_a_job_start_as_a_gang(cluster: Cluster) -> None:
    cluster.add_node("a", 4)
    cluster.start()
    claim = yaml.safe_load(QUICK_START)
    claim["metadata"] = {"name": "train", "annotations": {"gpu.scheduling/owner": "Job/train"}}
    claim["spec"] = {"devices": {"count": 2}, "gang": {"minMembers": 3}}
    template = cluster.pod("x")
    template["spec"]["restartPolicy"] = "Never"
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train"},
        "spec": {
            "parallelism": 3,
            "completions": 3,
            "template": {"spec": template["spec"]},
        },
    }
    cluster.apply(claim, job)

    def status() -> dict[str, Any]:
        found: dict[str, Any] = cluster.get("gclaim", "train").get("status", {})
        return found

    cluster.until(lambda: "for each of 3 members" in status().get("reason", ""))
    assert cluster.bound() == {}
    cluster.add_node("b", 2)
    cluster.until(lambda: len(cluster.bound()) == 3)
    # kwok ends the pods of a Job at once.
    cluster.until(lambda: status()["phase"] == "Completed")
    cluster.until(lambda: cluster.device_leases() == [])


def test_urgent_pods_evict_others_by_the_eviction_api(cluster: Cluster) -> None:
    cluster.add_node("a", 1)
    cluster.start()
    urgent = f"urgent-{cluster.namespace}"
    cluster.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": urgent},
            "value": 100_000,
        },
        cluster.pod("low", gpus=1),
    )
    cluster.until(lambda: "low" in cluster.bound())
    cluster.apply(cluster.pod("high", gpus=1, priorityClassName=urgent))
    cluster.until(lambda: cluster.bound().keys() == {"high"})
    why = f"evicted for {cluster.namespace}/high"
    cluster.until(lambda: why in cluster.kubectl("get", "events"))
    cluster.plane.kubectl("delete", "priorityclass", urgent)


def test_a_killed_scheduler_is_followed_by_one_that_knows_everything(cluster: Cluster) -> None:
    for name in "abc":
        cluster.add_node(name, 8)
    cluster.apply(*(cluster.pod(f"p{n}", gpus=2) for n in range(16)))
    cluster.start()
    cluster.until(lambda: len(cluster.bound()) >= 2)
    cluster.stop()
    cluster.start()
    cluster.until(lambda: len(cluster.bound()) == 12)
    given = [
        (node, index) for node, indices in cluster.bound().values() for index in indices.split(",")
    ]
    assert len(given) == len(set(given)) == 24
    cluster.until(lambda: len(cluster.device_leases()) == 24)
    for pod in list(cluster.bound())[:4]:
        cluster.kubectl("delete", "pod", pod, "--wait=false")
    cluster.until(lambda: len(cluster.bound()) == 12 and len(cluster.get("pods")) == 12)
    cluster.until(lambda: len(cluster.device_leases()) == 24)


def test_a_volume_is_made_where_its_driver_has_capacity(cluster: Cluster) -> None:
    for name in "ab":
        cluster.add_node(name, 1)
    node, name = f"{cluster.namespace}-b", f"disk-{cluster.namespace}"
    cluster.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": name},
            "spec": {"storageCapacity": True},
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": name,
            "volumeBindingMode": "WaitForFirstConsumer",
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIStorageCapacity",
            "metadata": {"name": "there"},
            "storageClassName": name,
            "capacity": "20Gi",
            "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": name,
                "resources": {"requests": {"storage": "10Gi"}},
            },
        },
        cluster.pod(
            "p",
            gpus=1,
            volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        ),
    )
    cluster.start()

    def selected() -> str:
        annotations = cluster.get("pvc", "data")["metadata"].get("annotations", {})
        return str(annotations.get("volume.kubernetes.io/selected-node", ""))

    cluster.until(lambda: bool(selected()))
    assert selected() == node
    assert cluster.device_leases() == [f"gpu-{node}-0"]
    cluster.plane.kubectl("delete", "csidriver,storageclass", name)


def test_kubectl_gpu_shows_the_fleet(cluster: Cluster) -> None:
    cluster.add_node("a", 2)
    cluster.apply(
        QUICK_START,
        cluster.pod("first", claim="single-gpu"),
        cluster.pod("large", gpus=9),
    )
    cluster.start()
    cluster.until(lambda: "first" in cluster.bound())
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def gpu(*arguments: str) -> str:
        command = [str(cluster.plane.lab.program("kubectl")), "gpu", *arguments]
        done = subprocess.run(
            command,
            env=os.environ | {"KUBECONFIG": str(cluster.plane.kubeconfig), "PATH": path},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = ("-n", cluster.namespace)
    node = f"{cluster.namespace}-a"
    cluster.until(lambda: "9 GPUs" in gpu("list", *where))
    rows = {line.split("\t")[0]: line for line in gpu("list", "--tabs", *where).splitlines()}
    assert f"{node}[0]" in rows[f"{cluster.namespace}/first"]
    assert "9 GPUs" in gpu("explain", "large", *where)
    assert f"{cluster.namespace}/first ({cluster.namespace})" in gpu("gpus")
    assert f"{node}\tonline\t2\t1" in gpu("nodes", "--tabs")
    assert f"{cluster.namespace}/first" in gpu("top", "--once", *where)


def test_a_reservation_keeps_its_gpus_through_a_restart(cluster: Cluster) -> None:
    cluster.add_node("a", 2)
    node, queue = f"{cluster.namespace}-a", f"team-{cluster.namespace}"
    now = datetime.now(UTC)
    cluster.apply(
        {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuQueue",
            "metadata": {"name": queue},
            "spec": {},
        },
        {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuReservation",
            "metadata": {"name": queue},
            "spec": {
                "queue": queue,
                "node": node,
                "count": 1,
                "startTime": (now - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "endTime": (now + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        },
    )

    def status() -> dict[str, Any]:
        return dict(cluster.get("gpureservation", queue).get("status", {}))

    cluster.start()
    cluster.until(lambda: status().get("phase") == "Active")
    where = status()["where"]
    assert where == f"{node}[0]"
    cluster.stop()
    cluster.start()
    cluster.apply(
        cluster.pod("p", gpus=1),
        cluster.pod("q", gpus=1),
        {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "own"},
            "spec": {"devices": {"count": 1}, "queue": queue},
        },
        cluster.pod("own", claim="own"),
    )
    cluster.until(lambda: "own" in cluster.bound() and len(cluster.bound()) == 2)
    assert cluster.bound()["own"] == (node, "0"), "others may not use the reserved GPU"
    assert status()["where"] == where
    cluster.plane.kubectl("delete", "gpureservation,gpuqueue", queue)
