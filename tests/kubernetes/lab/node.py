"""A real node: containerd and kubelet in namespaces of their own, as root.

The namespaces (mounts, network, processes) keep the machine as it is: own /run and /var/lib, no
bridge on the host, and all containers end with the first process of the process namespace. The
kubelet reaches the API server on the same loopback address as on the host by `Forwarder`.
"""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import yaml

from tests.kubernetes.lab.component import DEADLINE_S
from tests.kubernetes.lab.control_plane import ControlPlane, die_with_parent
from tests.kubernetes.lab.image import PAUSE_IMAGE, write_images

ADDRESS = "10.77.0.1"
CNI_PLUGINS = Path("/usr/lib/cni")
RUNC = Path("/usr/sbin/runc")
CLONE_NEWNET = 0x40000000

# The kubelet sets these for the whole machine; here it finds files that have its values already.
SETUP = """
ip link set lo up
ip addr add {address}/32 dev lo
for place in /run /var/lib /var/log; do mount -t tmpfs tmpfs $place; done
mkdir -p /run/sysctl /var/lib/kubelet
for pair in kernel/panic=10 kernel/panic_on_oops=1 vm/overcommit_memory=1; do
  file=/run/sysctl/${{pair##*/}}
  echo ${{pair#*=}} > $file
  mount --bind $file /proc/sys/${{pair%=*}}
done
mount --bind {directory}/kubelet /var/lib/kubelet
touch {directory}/ready
exec sleep infinity
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
        BinaryName = "{runc}"
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


class Forwarder:
    """Connections to a port of the loopback in a network namespace go to that of the host."""

    def __init__(self, namespace: Path, port: int) -> None:
        self._port = port
        made: list[socket.socket] = []
        # A thread changes its namespace for itself only, and ends with it.
        thread = threading.Thread(target=self._listen, args=(namespace, made))
        thread.start()
        thread.join()
        (self._listener,) = made
        threading.Thread(target=self._serve, daemon=True).start()

    def _listen(self, namespace: Path, made: list[socket.socket]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with namespace.open() as file:
            if libc.setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns failed")
        made.append(socket.create_server(("127.0.0.1", self._port)))

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                inner, _ = self._listener.accept()
                try:
                    outer = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    inner.close()
                    continue
                threading.Thread(target=_join, args=(inner, outer), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _join(inner: socket.socket, outer: socket.socket) -> None:
    """Copy in both directions until one side ends."""
    with inner, outer:
        back = threading.Thread(target=_copy, args=(outer, inner), daemon=True)
        back.start()
        _copy(inner, outer)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class RealNode:
    """containerd and kubelet; GPUs come from an agent that the test starts."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "real-0",
        *,
        scripts: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`scripts` are further images, as in `write_images`."""
        self.plane = plane
        self._scripts = scripts
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
        self._forwarder: Forwarder | None = None

    def start(self) -> None:
        for hierarchy in _hierarchies():
            (hierarchy / self._control_group).mkdir()
        self._enter_namespaces()
        self._start_containerd()
        self.start_kubelet()

    def _enter_namespaces(self) -> None:
        script = SETUP.format(address=ADDRESS, directory=self.directory)
        flags = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", *flags, "--propagation", "slave", "sh", "-ec", script]
        self._spawn("unshare", command)
        self._wait((self.directory / "ready").exists, "unshare")
        parent = self._processes["unshare"].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        self._init = int(children[0])
        port = int(self.plane.url.rpartition(":")[2])
        self._forwarder = Forwarder(Path(f"/proc/{self._init}/ns/net"), port)

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
                runc=RUNC,
                cni=CNI_PLUGINS,
            )
        )
        ranges = [[{"subnet": "10.88.0.0/16"}]]
        data = str(self.directory / "cni-ipam")
        network = {
            "cniVersion": "0.4.0",
            "name": "lab",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": True,
                    "ipam": {"type": "host-local", "ranges": ranges, "dataDir": data},
                }
            ],
        }
        (self.directory / "cni" / "10-lab.conflist").write_text(json.dumps(network))
        self._spawn("containerd", self._inside(self._program("containerd"), "--config", config))
        self._wait(lambda: self._ctr("version"), "containerd")
        images = self.directory / "images.tar"
        write_images(images, self._scripts)
        assert self._ctr("-n", "k8s.io", "images", "import", str(images))

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
        if self._forwarder is not None:
            self._forwarder.close()
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
