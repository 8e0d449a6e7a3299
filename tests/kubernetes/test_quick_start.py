"""The quick start, word for word, on a real cluster: chart, claim, pod, and what its log says.

The control plane and the kubelet are real; NVML is a fake, and the image of the pod is a local one
with a stand-in for nvidia-smi. Helm installs the chart. Its three programs run as processes beside
the cluster, with the tokens of its service accounts, since the node has no image with Python;
therefore the API server reaches the webhook by `webhook.url`. Logs are read on the node.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fakes.nvml import FakeNvml, fake_nvml_library
from tests.kubernetes.lab.build import CONTROL_PLANE, NODE
from tests.kubernetes.lab.component import Component, until
from tests.kubernetes.lab.control_plane import ControlPlane
from tests.kubernetes.lab.fixtures import skip_unless_built
from tests.kubernetes.lab.node import RealNode, missing_requirements
from tests.ports import lasting_port

__all__ = ["fake_nvml_library"]

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMESPACE = "gpu-scheduler"
GPUS = 8
DRIVER_MAJOR = 195
NVIDIA_SMI = """#!/bin/sh
# Lists the device nodes of this container, with the UUIDs that its variable names.
count() { set -- /dev/nvidia[0-9]*; [ -e "$1" ] && echo $# || echo 0; }
uuid() { echo "$NVIDIA_VISIBLE_DEVICES" | busybox cut -d, -f"$1"; }
[ "$1" = -L ] || echo "index, name, memory.total [MiB]"
n=0
while [ $n -lt "$(count)" ]; do
  if [ "$1" = -L ]; then echo "GPU $n: NVIDIA A100 (UUID: $(uuid $((n + 1))))"
  else echo "$n, NVIDIA A100, 81920 MiB"; fi
  n=$((n + 1))
done
"""
IMAGES = {
    "docker.io/nvidia/cuda:12.4.1-runtime-ubuntu22.04": {
        "bash": '#!/bin/sh\nexec sh "$@"\n',
        "nvidia-smi": NVIDIA_SMI,
    }
}

INSTALL = "helm install gpu-scheduler charts/gpu-scheduler -n gpu-scheduler"
CLAIM = """
kubectl apply -f - <<EOF
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata:
  name: single-gpu
spec:
  devices:
    count: 1
    exclusivity: Exclusive
EOF
"""
POD = """
kubectl apply -f - <<'EOF'
apiVersion: v1
kind: Pod
metadata:
  name: gpu-test
  namespace: gpu-scheduler
  annotations:
    gpu.scheduling/claim: single-gpu
spec:
  schedulerName: gpu-scheduler
  restartPolicy: Never
  containers:
    - name: cuda-test
      image: nvidia/cuda:12.4.1-runtime-ubuntu22.04
      command: ["bash","-lc","echo CVD=$CUDA_VISIBLE_DEVICES; nvidia-smi -L && nvidia-smi --query-gpu=index,name,memory.total --format=csv"]
      resources:
        limits:
          nvidia.com/gpu: "1"
EOF
"""  # noqa: E501 - as users have it
TRAINING = """
kubectl apply -f - <<EOF
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
EOF
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster with one real node, the chart, and its programs."""

    plane: ControlPlane
    node: RealNode
    nvml: FakeNvml
    programs: list[Component]

    def shell(self, command: str) -> str:
        """Run a command of the text in a shell, as a user does in the repository."""
        tools = self.plane.lab.program("kubectl").parent
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "KUBECONFIG": str(self.plane.kubeconfig),
            "HOME": str(self.plane.directory),
        }
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout

    def phase(self, pod: str) -> str:
        return self.shell(f"kubectl get pod {pod} -o jsonpath='{{.status.phase}}'").strip()

    def ends(self, pod: str) -> None:
        until(lambda: self.phase(pod) in ("Succeeded", "Failed"), self.programs)
        assert self.phase(pod) == "Succeeded"

    def allocated(self, pod: str) -> list[str]:
        annotation = r"jsonpath='{.metadata.annotations.gpu\.scheduling/allocated}'"
        return self.shell(f"kubectl get pod {pod} -o {annotation}").strip().split(",")

    def uuid(self, index: int) -> str:
        return self.nvml.values[f"gpu.{index}.uuid"]


@pytest.fixture(scope="module")
def cluster(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab = skip_unless_built(*CONTROL_PLANE, *NODE, "helm")
    if missing := missing_requirements():
        pytest.skip(f"a real kubelet needs {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("quick-start")
    nvml = FakeNvml(fake_nvml_library, directory / "nvml.state")
    nvml.a100s(GPUS)
    driver_root = directory / "driver"
    (driver_root / "dev").mkdir(parents=True)
    for number in range(GPUS):
        path = driver_root / "dev" / f"nvidia{number}"
        os.mknod(path, 0o20666, os.makedev(DRIVER_MAJOR, number))
    plane = ControlPlane(lab)
    node = RealNode(plane, scripts=IMAGES)
    made = Cluster(plane, node, nvml, [])
    port = lasting_port()
    try:
        plane.start()
        made.shell(f"kubectl create namespace {NAMESPACE}")
        made.shell(f"kubectl config set-context --current --namespace {NAMESPACE}")
        plane.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        notes = made.shell(f"{INSTALL} --set webhook.url=https://localhost:{port}/mutate")
        assert "Dynamic Resource Allocation is on" in notes
        node.start()
        made.programs.extend(programs(made, directory, driver_root, port))
        for program in made.programs:
            program.start()
        until(lambda: "the API server trusts" in made.programs[0].text(), made.programs)
        until(lambda: offered(made) == str(GPUS), made.programs)
        until(lambda: node.name in made.shell("kubectl get resourceslices"), made.programs)
        yield made
    finally:
        for program in made.programs:
            if program.process is not None:
                program.stop()
        node.stop()
        plane.stop()


def programs(cluster: Cluster, directory: Path, driver_root: Path, port: int) -> list[Component]:
    """Webhook, scheduler and agent with the options of the chart, where these matter here."""
    plane, node, nvml = cluster.plane, cluster.node, cluster.nvml
    webhook = Component(
        *("webhook", plane.kubeconfig_of_account("gpu-scheduler-webhook", NAMESPACE)),
        *(directory / "webhook.log", "--namespace", NAMESPACE, "--host", "127.0.0.1"),
        *("--port", str(port), "--dns-name", "localhost", "--dra", "yes"),
    )
    scheduler = Component(
        *("scheduler", plane.kubeconfig_of_account("gpu-scheduler-scheduler", NAMESPACE)),
        *(directory / "scheduler.log", "--namespace", NAMESPACE, "--dra", "yes"),
        *("--listen", f"127.0.0.1:{lasting_port()}"),
    )
    account = plane.kubeconfig_of_account(
        *("gpu-scheduler-agent", NAMESPACE, "--bound-object-kind=Node"),
        f"--bound-object-name={node.name}",
    )
    agent = Component(
        *("agent", account, directory / "agent.log", "--node", node.name, "--dra", "yes"),
        *("--kubeconfig", str(account), "--kubelet-dir", str(node.kubelet_directory)),
        *("--cdi-dir", str(node.cdi_directory), "--driver-root", str(driver_root)),
        *("--state-dir", str(directory / "state"), "--read-interval", "1"),
        environment={key: nvml.env[key] for key in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")},
    )
    return [webhook, scheduler, agent]


def offered(cluster: Cluster) -> str:
    status = json.loads(cluster.shell(f"kubectl get node {cluster.node.name} -o json"))["status"]
    return str(status["allocatable"].get("nvidia.com/gpu", ""))


def apply_pod(cluster: Cluster, manifest: str) -> None:
    """The API server uses the new certificates of a webhook a moment after it has them."""

    def is_applied() -> bool:
        try:
            cluster.shell(manifest)
        except AssertionError as error:
            if "failed calling webhook" not in str(error):
                raise
            return False
        return True

    until(is_applied, cluster.programs)


def test_the_quick_start(cluster: Cluster) -> None:
    cluster.shell(CLAIM)
    apply_pod(cluster, POD)
    cluster.ends("gpu-test")
    claims = cluster.shell("kubectl get gclaim -n gpu-scheduler")
    assert "NAME" in claims
    assert "single-gpu" in claims
    nodes = cluster.shell("kubectl get gns -n gpu-scheduler -o wide")
    assert cluster.node.name in nodes
    (uuid,) = cluster.allocated("gpu-test")
    assert uuid in {cluster.uuid(index) for index in range(GPUS)}
    uid = cluster.shell("kubectl get pod gpu-test -o jsonpath='{.metadata.uid}'").strip()
    assert cluster.node.log_of(NAMESPACE, "gpu-test", "cuda-test", uid=uid) == [
        f"CVD={uuid}",
        f"GPU 0: NVIDIA A100 (UUID: {uuid})",
        "index, name, memory.total [MiB]",
        "0, NVIDIA A100, 81920 MiB",
    ]


@pytest.mark.parametrize("way", ["DRA", "device plugin"])
def test_the_example_with_topology(cluster: Cluster, way: str) -> None:
    """Four adjacent GPUs; without nvidia.com/gpu in the pod, the webhook gives a ResourceClaim."""
    cluster.shell(TRAINING)
    name = f"train-{way.partition(' ')[0].lower()}"
    manifest = POD.replace("single-gpu", "training-gpus").replace("gpu-test", name)
    limits = '      resources:\n        limits:\n          nvidia.com/gpu: "1"\n'
    assert limits in manifest
    four = limits.replace('"1"', '"4"') if way == "device plugin" else ""
    apply_pod(cluster, manifest.replace(limits, four))
    cluster.ends(name)
    has_claim = cluster.shell(f"kubectl get pod {name} -o jsonpath='{{.spec.resourceClaims}}'")
    assert bool(has_claim.strip()) is (way == "DRA")
    uuids = cluster.allocated(name)
    places = [index for index in range(GPUS) if cluster.uuid(index) in uuids]
    assert places == list(range(places[0], places[0] + 4))
    lines = cluster.node.log_of(NAMESPACE, name, "cuda-test")
    assert lines[0] == f"CVD={','.join(uuids)}"
    assert lines[1:5] == [
        f"GPU {place}: NVIDIA A100 (UUID: {uuid})" for place, uuid in enumerate(uuids)
    ]
    assert len(lines) == 10
