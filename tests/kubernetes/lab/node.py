"""A real node: containerd and kubelet in namespaces of their own, as root.

The namespaces (mounts, network, processes) keep the machine as it is: own /run and /var/lib, no
bridge on the host, and all containers end with the first process of the process namespace. The
kubelet reaches the API server on the same loopback address as on the host by `Forwarder`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.kubernetes.lab import nvidia_runtime
from tests.kubernetes.lab.component import DEADLINE_S
from tests.kubernetes.lab.control_plane import API_SERVICE, ControlPlane, die_with_parent
from tests.kubernetes.lab.image import PAUSE_IMAGE, write_images
from tests.kubernetes.lab.network import Forwarder

ADDRESS = "10.77.0.1"
CNI_PLUGINS = Path("/usr/lib/cni")
RUNC = Path("/usr/sbin/runc")
DRIVER_MAJOR = 195
"""The number that device nodes of NVIDIA's driver have."""

# The kubelet sets these for the whole machine; here it finds files that have its values already.
SETUP = """
ip link set lo up
ip addr add {address}/32 dev lo
ip addr add {service}/32 dev lo
for place in /run /var/lib /var/log; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/sysctl /var/lib/kubelet
for pair in kernel/panic=10 kernel/panic_on_oops=1 vm/overcommit_memory=1; do
  file=/run/sysctl/${{pair##*/}}
  echo ${{pair#*=}} > $file
  mount --bind $file /proc/sys/${{pair%=*}}
done
mount --bind {directory}/kubelet /var/lib/kubelet
mkdir /run/cdi
mount --bind {directory}/cdi /run/cdi
# What pods make in directories of the node stays in its namespaces.
mkdir -p /run/etc/upper /run/etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc/upper,workdir=/run/etc/work /etc
{devices}
touch {directory}/ready
exec sleep infinity
"""
# Device nodes of its own: those of the GPUs are on no other machine.
DEVICES = """
mkdir /run/dev
mount -t tmpfs -o mode=755 tmpfs /run/dev
for name in null zero full random urandom tty ptmx kmsg fuse; do
  [ ! -e /dev/$name ] || cp -a /dev/$name /run/dev/
done
mkdir /run/dev/pts /run/dev/shm /run/dev/mqueue
mount --bind /dev/pts /run/dev/pts
ln -s /proc/self/fd /run/dev/fd
for minor in {minors}; do mknod -m 666 /run/dev/nvidia$minor c {major} $minor; done
mount --rbind /run/dev /dev
"""
CONTAINERD = """
version = 2
root = "{directory}/containerd/root"
state = "{directory}/containerd/state"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{directory}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  cdi_spec_dirs = ["{directory}/cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{runtime}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "{directory}/cni"
"""


def missing_requirements() -> list[str]:
    """What this machine lacks to run a node; nothing if it can."""
    found = [] if os.geteuid() == 0 else ["root"]
    tools = ("unshare", "nsenter", "ip", "mount")
    found += [tool for tool in tools if shutil.which(tool) is None]
    files = {
        "runc": RUNC,
        "containernetworking-plugins": CNI_PLUGINS / "bridge",
        "busybox-static": Path("/usr/bin/busybox"),
    }
    found += [package for package, path in files.items() if not path.exists()]
    if not found:
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            found = ["the right to make namespaces"]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of a fake NVML, which containers see as with NVIDIA's container runtime."""

    uuids: Sequence[str]
    """By the number of their device node."""
    library: Path
    state: Path


class RealNode:
    """containerd and kubelet; GPUs are given by the agent of the chart, or by one of a test."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "real-0",
        *,
        scripts: Mapping[str, Mapping[str, str]] | None = None,
        gpus: NodeGpus | None = None,
    ) -> None:
        """`scripts` are further images, as in `write_images`."""
        self.plane = plane
        self._scripts = scripts
        self._gpus = gpus
        self.name = name
        # Short, because the paths of Unix sockets are limited.
        self.directory = Path(tempfile.mkdtemp(prefix="tgn-", dir="/tmp"))
        self.kubelet_directory = self.directory / "kubelet"
        self.cdi_directory = self.directory / "cdi"
        self.pod_logs = self.directory / "logs"
        for folder in ("kubelet", "cdi", "cni", "containerd", "logs"):
            (self.directory / folder).mkdir()
        self._socket = self.directory / "containerd.sock"
        # Of its own, since a kubelet removes the control groups of pods that it does not know.
        self._control_group = self.directory.name
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._init = 0
        self._forwarders: list[Forwarder] = []

    def start(self) -> None:
        for hierarchy in _hierarchies():
            (hierarchy / self._control_group).mkdir()
        self._enter_namespaces()
        self._start_containerd()
        self.start_kubelet()

    def _enter_namespaces(self) -> None:
        minors = range(len(self._gpus.uuids)) if self._gpus is not None else ()
        devices = DEVICES.format(major=DRIVER_MAJOR, minors=" ".join(map(str, minors)))
        script = SETUP.format(
            address=ADDRESS,
            service=API_SERVICE,
            directory=self.directory,
            devices=devices if minors else "",
        )
        flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", *flags, "--propagation", "slave", "sh", "-ec", script]
        self._spawn("unshare", command)
        self._wait((self.directory / "ready").exists, "unshare")
        parent = self._processes["unshare"].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        self._init = int(children[0])
        port = int(self.plane.url.rpartition(":")[2])
        network = Path(f"/proc/{self._init}/ns/net")
        self._forwarders = [
            Forwarder(network, ("127.0.0.1", port), port),
            Forwarder(network, (API_SERVICE, 443), port),  # as pods find it
        ]
        if self.plane.egress is not None:
            self.plane.egress.namespace = network

    def _inside(self, *command: str | Path) -> list[str]:
        flags = ("--net", "--mount", "--pid")
        return ["nsenter", "--target", str(self._init), *flags, "--", *map(str, command)]

    def _start_containerd(self) -> None:
        config = self.directory / "containerd.toml"
        config.write_text(
            CONTAINERD.format(
                directory=self.directory,
                socket=self._socket,
                pause=PAUSE_IMAGE,
                runtime=self._runtime(),
                cni=CNI_PLUGINS,
            )
        )
        ranges = [[{"subnet": "10.88.0.0/16"}]]
        addresses = {
            "type": "host-local",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(self.directory / "cni-ipam"),
        }
        network = {
            "cniVersion": "0.4.0",
            "name": "lab",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipam": addresses,
                }
            ],
        }
        (self.directory / "cni" / "10-lab.conflist").write_text(json.dumps(network))
        self._spawn("containerd", self._inside(self._program("containerd"), "--config", config))
        self._wait(lambda: self._ctr("version"), "containerd")
        images = self.directory / "images.tar"
        write_images(images, self._scripts)
        self.load(images)

    def load(self, images: Path) -> None:
        """Import images from an archive, so that pods need no registry."""
        assert self._ctr("-n", "k8s.io", "images", "import", str(images))

    def _runtime(self) -> Path:
        """runc, or with GPUs a program that stands in for NVIDIA's container runtime."""
        if self._gpus is None:
            return RUNC
        facts = self.directory / "nvidia.json"
        facts.write_text(
            json.dumps(
                {
                    "runc": str(RUNC),
                    "major": DRIVER_MAJOR,
                    "minors": {uuid: minor for minor, uuid in enumerate(self._gpus.uuids)},
                    "library": str(self._gpus.library),
                    "state": str(self._gpus.state),
                }
            ),
            encoding="utf-8",
        )
        program = self.directory / "nvidia-container-runtime"
        command = f"{sys.executable} -IS {nvidia_runtime.__file__} {facts}"
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    def _program(self, name: str) -> Path:
        return self.plane.lab.program(name)

    def _ctr(self, *arguments: str) -> bool:
        command = self._inside(self._program("ctr"), "--address", self._socket, *arguments)
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def start_kubelet(self) -> None:
        """Start it, also again after a stop, and wait until the node is ready."""
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.plane.authority.certificate)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._control_group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "podLogsDir": str(self.pod_logs),
            "resolvConf": "",
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "imagefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.inodesFree": "0%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "2s",
        }
        path = self.directory / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        user = self.plane.kubeconfig_of(f"system:node:{self.name}", ["system:nodes"])
        self._spawn(
            "kubelet",
            self._inside(
                self._program("kubelet"),
                f"--config={path}",
                f"--kubeconfig={user}",
                f"--hostname-override={self.name}",
                f"--node-ip={ADDRESS}",
                f"--cert-dir={self.directory / 'pki'}",
            ),
        )
        self._wait(self._is_ready, "kubelet")

    def stop_kubelet(self) -> None:
        """Kill it; its containers run on."""
        self._kill("kubelet")

    def _is_ready(self) -> bool:
        said = self.plane.kubectl(
            *("get", "node", self.name, "-o"),
            "jsonpath={.status.conditions[?(@.type=='Ready')].status}",
            check=False,
        )
        return said.strip() == "True"

    def log_of(
        self, namespace: str, pod: str, container: str = "main", *, uid: str = "*"
    ) -> list[str]:
        """What the last container of a pod has printed, by line.

        Logs of a pod that was deleted a moment ago may be there still: with the uid they are not
        those of the next pod of the same name.
        """
        files = self.pod_logs.glob(f"{namespace}_{pod}_{uid}/{container}/*.log")
        newest = sorted(files, key=lambda path: int(path.stem))
        lines = newest[-1].read_text().splitlines() if newest else []
        return [line.split(" ", 3)[3] for line in lines if line.count(" ") >= 3]

    def kill(self, words: str) -> int:
        """Kill what runs in containers with these words in its command; returns how many."""
        killed = 0
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if words in command and self._control_group in (folder / "cgroup").read_text():
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed += 1
        return killed

    # --- processes

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PATH": f"{self._program('ctr').parent}:{os.environ['PATH']}"},
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def _wait(self, condition: Callable[[], bool], program: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            has_ended = self._processes[program].poll() is not None
            if has_ended or time.monotonic() > end:
                text = (self.directory / f"{program}.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{program} is not ready; its log ends with\n{text}")
            time.sleep(0.1)

    def _kill(self, name: str) -> None:
        """nsenter has forked the program for its process namespace; both end."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        with suppress(OSError):
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for child in children.split():
                os.kill(int(child), signal.SIGKILL)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all processes of the namespaces, and remove what they leave on the machine."""
        self._kill("kubelet")
        for forwarder in self._forwarders:
            forwarder.close()
        if self._init:
            with suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
        for name in list(self._processes):
            self._kill(name)
        self._remove_control_groups()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _remove_control_groups(self) -> None:
        """The kernel lets them be removed when the last process has ended."""
        end = time.monotonic() + DEADLINE_S
        tops = [hierarchy / self._control_group for hierarchy in _hierarchies()]
        while any(top.exists() for top in tops) and time.monotonic() < end:
            for top in tops:
                for folder, _, _ in os.walk(top, topdown=False):
                    with suppress(OSError):
                        Path(folder).rmdir()
            time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """Where control groups are made: one place with version 2, one for each controller before."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    places = {path.resolve() for path in root.iterdir()}
    return sorted(path for path in places if (path / "cgroup.procs").exists())
