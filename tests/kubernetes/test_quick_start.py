"""The quick start, word for word, on a real cluster: chart, claim, pod, and what its log says.

The control plane, kube-scheduler and the kubelet are real; Helm installs the chart without options,
and its Deployments and its DaemonSet run in containers. NVML is a fake, a program stands in for
NVIDIA's container runtime, and images are local: ours under its name, and one with a stand-in for
nvidia-smi under the name in the text.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.fakes.nvml import FakeNvml, fake_nvml_library
from tests.kubernetes.lab.build import CONTROL_PLANE, NODE
from tests.kubernetes.lab.component import until
from tests.kubernetes.lab.control_plane import ControlPlane
from tests.kubernetes.lab.fixtures import skip_unless_built
from tests.kubernetes.lab.image import write_program_image
from tests.kubernetes.lab.node import NodeGpus, RealNode, missing_requirements

__all__ = ["fake_nvml_library"]

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NAMESPACE = "gpu-scheduler"
GPUS = 8
READY_S = 300.0
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
    """A cluster with one real node, and the chart."""

    plane: ControlPlane
    node: RealNode
    nvml: FakeNvml

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
        try:
            until(lambda: self.phase(pod) in ("Succeeded", "Failed"))
        except AssertionError as error:
            raise AssertionError(self.report()) from error
        assert self.phase(pod) == "Succeeded", self.report()

    def report(self) -> str:
        """What an administrator would look at."""
        logs = "kubectl logs --tail=20 --prefix --max-log-requests=9 -l app.kubernetes.io/name"
        commands = (
            "kubectl get pods -o wide",
            "kubectl get gclaim,gns",
            "kubectl get events",
            f"{logs}=gpu-scheduler",
        )
        return "\n".join(self.shell(f"{command} || true") for command in commands)

    def allocated(self, pod: str) -> list[str]:
        annotation = r"jsonpath='{.metadata.annotations.gpu\.scheduling/allocated}'"
        return self.shell(f"kubectl get pod {pod} -o {annotation}").strip().split(",")

    def uuid(self, index: int) -> str:
        return self.nvml.values[f"gpu.{index}.uuid"]


@pytest.fixture(scope="module")
def cluster(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lab = skip_unless_built(*CONTROL_PLANE, *NODE, "kube-scheduler", "helm")
    if missing := missing_requirements():
        pytest.skip(f"a real kubelet needs {', '.join(missing)}")
    directory = tmp_path_factory.mktemp("quick-start")
    (directory / "nvml").mkdir()
    nvml = FakeNvml(fake_nvml_library, directory / "nvml" / "state")
    nvml.a100s(GPUS)
    uuids = [nvml.values[f"gpu.{number}.uuid"] for number in range(GPUS)]
    gpus = NodeGpus(uuids=uuids, library=nvml.library, state=nvml.state)
    plane = ControlPlane(lab, reaches_nodes=True)
    node = RealNode(plane, scripts=IMAGES, gpus=gpus)
    made = Cluster(plane, node, nvml)
    try:
        plane.start()
        plane.start_scheduler()
        node.start()
        write_program_image(directory / "image.tar", program_image())
        node.load(directory / "image.tar")
        made.shell(f"kubectl create namespace {NAMESPACE}")
        made.shell(f"kubectl config set-context --current --namespace {NAMESPACE}")
        plane.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        notes = made.shell(INSTALL)
        assert "Dynamic Resource Allocation is on" in notes
        is_ready(made)
        yield made
    finally:
        node.stop()
        plane.stop()


def program_image() -> str:
    """The image that the chart names by default, as containerd writes its name."""
    chart = yaml.safe_load((ROOT / "charts/gpu-scheduler/Chart.yaml").read_text())
    return f"docker.io/library/gpu-scheduler:{chart['appVersion']}"


def is_ready(cluster: Cluster) -> None:
    """Wait until the programs of the chart run, and GPUs are offered in both ways."""
    deadline = f"--timeout={READY_S:g}s"
    try:
        for name in ("scheduler", "webhook"):
            cluster.shell(f"kubectl rollout status {deadline} deployment/gpu-scheduler-{name}")
        cluster.shell(f"kubectl rollout status {deadline} daemonset/gpu-scheduler-agent")
        until(lambda: offered(cluster) == str(GPUS))
        until(lambda: cluster.node.name in cluster.shell("kubectl get resourceslices"))
    except AssertionError as error:
        raise AssertionError(cluster.report()) from error


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

    until(is_applied)


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
    # UUIDs, because a container counts its own devices from 0; the index is in the claim.
    assert cluster.shell("kubectl logs gpu-test -n gpu-scheduler").splitlines() == [
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
    lines = cluster.shell(f"kubectl logs {name}").splitlines()
    assert lines[0] == f"CVD={','.join(uuids)}"
    assert lines[1:5] == [
        f"GPU {place}: NVIDIA A100 (UUID: {uuid})" for place, uuid in enumerate(uuids)
    ]
    assert len(lines) == 10


@pytest.mark.parametrize("program", ["scheduler", "webhook", "agent"])
def test_pods_get_their_gpus_when_a_program_of_ours_was_killed(
    cluster: Cluster, program: str
) -> None:
    """All its containers at once; the kubelet starts them again."""

    def restarts() -> int:
        label = f"kubectl get pods -l app.kubernetes.io/component={program}"
        counts = cluster.shell(f"{label} -o jsonpath='{{..restartCount}}'")
        return sum(map(int, counts.split()))

    cluster.shell(CLAIM)
    before = restarts()
    killed = cluster.node.kill(f"gpu_scheduler.kubernetes.{program}")
    assert killed == (1 if program == "agent" else 2)
    names = [f"{program}-{letter}" for letter in "abc"]
    if program == "agent":
        # The kubelet rejects pods for the device plugin while it is away.
        until(lambda: restarts() == before + killed)
        is_ready(cluster)
    for name in names:
        apply_pod(cluster, POD.replace("gpu-test", name))
    given = []
    for name in names:
        cluster.ends(name)
        (uuid,) = cluster.allocated(name)
        lines = cluster.shell(f"kubectl logs {name}").splitlines()
        assert lines[:2] == [f"CVD={uuid}", f"GPU 0: NVIDIA A100 (UUID: {uuid})"]
        assert len(lines) == 4
        given.append(uuid)
    assert set(given) <= {cluster.uuid(index) for index in range(GPUS)}
    is_ready(cluster)
    assert restarts() == before + killed
