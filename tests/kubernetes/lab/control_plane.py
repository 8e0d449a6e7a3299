"""etcd, kube-apiserver and kube-controller-manager on free ports of the loopback, without root.

RBAC is on, every identity has a client certificate, and the audit log holds each write that a
scheduler makes, with its body. `stop` kills our own processes by SIGKILL: a graceful stop takes
5 s and tests need nothing of what it saves.
"""

import ctypes
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from tests.kubernetes.lab.build import Lab
from tests.kubernetes.lab.certificates import Authority, write_key
from tests.kubernetes.lab.network import Egress
from tests.ports import lasting_port

BROKEN_OFF = ("INTERNAL_ERROR; received from peer", "storage is (re)initializing")
START_S = 120.0
API_SERVICE = "10.96.0.1"
"""The address of the API server as pods find it: the first of the range of Services."""
PR_SET_PDEATHSIG = 1

# Linux sends the signal of PR_SET_PDEATHSIG when the *thread* ends that started the process; this
# one lives as long as we do.
_SPAWNER = ThreadPoolExecutor(1)

AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  # What our own service accounts read, so that a test can compare it with what they may.
  - level: Metadata
    userGroups: ["system:serviceaccounts:gpu-scheduler"]
    verbs: [get, list, watch]
  - level: None
    verbs: [get, list, watch]
  - level: None
    namespaces: [kube-node-lease]
  - level: RequestResponse
    resources:
      - group: ""
        resources: [pods, pods/binding, pods/eviction, pods/status, nodes]
      - group: coordination.k8s.io
        resources: [leases]
      - group: resource.k8s.io
      - group: gpu.scheduling
  - level: Metadata
"""


class ControlPlane:
    """One control plane in a directory of its own."""

    def __init__(
        self,
        lab: Lab,
        *,
        directory: Path | None = None,
        dies_with_us: bool = True,
        api_server_flags: Sequence[str] = (),
        reaches_nodes: bool = False,
        node_lease_s: int = 40,
    ) -> None:
        """Without a directory it makes one and removes it at the end.

        With `reaches_nodes` the API server can call webhooks in pods of a real node, and its
        kubelet, for instance for logs. Nodes of kwok renew their lease four times in
        `node_lease_s`, and are not ready when they have not for half of it.
        """
        self.lab = lab
        self._is_temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tgpu-kubernetes-"))
        self._dies_with_us = dies_with_us
        self._api_server_flags = api_server_flags
        self._node_lease_s = node_lease_s
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.authority = Authority(self.directory)
        hosts = ["127.0.0.1", "localhost", API_SERVICE]
        self._certificate, self._key = self.authority.sign_server("kube-apiserver", hosts)
        account_key = ec.generate_private_key(ec.SECP256R1())
        self._account_key = write_key(self.directory / "service-accounts.key", account_key)
        self.etcd_url = f"http://127.0.0.1:{lasting_port()}"
        self._port = lasting_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.audit_log = self.directory / "audit.log"
        self.kubeconfig = self.kubeconfig_of("admin", ["system:masters"])
        self._tls = ssl.create_default_context(cafile=str(self.authority.certificate))
        self._tls.load_cert_chain(self.directory / "admin.crt", self.directory / "admin.key")
        self.egress = Egress(self.directory / "egress.sock", self.get) if reaches_nodes else None

    # --- running

    def start(self, *, controllers: bool = True) -> None:
        """Start it and wait until the API server is ready, and the default account exists."""
        self.start_etcd()
        self.start_api_server()
        if controllers:
            self.start_controller_manager()

    def start_etcd(self) -> None:
        peer = f"http://127.0.0.1:{lasting_port()}"
        self.spawn(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )

    def start_api_server(self) -> None:
        """Start it, also again after a kill: port, certificates and data are the same."""
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(AUDIT_POLICY, encoding="utf-8")
        self.spawn(
            "kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={self._certificate}",
            f"--tls-private-key-file={self._key}",
            f"--client-ca-file={self.authority.certificate}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._account_key}",
            f"--service-account-signing-key-file={self._account_key}",
            f"--audit-log-path={self.audit_log}",
            f"--audit-policy-file={policy}",
            "--audit-log-mode=blocking-strict",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--allow-privileged=true",
            "--profiling=false",
            *self._flags_of_egress(),
            *self._api_server_flags,
        )
        self.wait_for("/readyz")

    def _flags_of_egress(self) -> list[str]:
        if self.egress is None:
            return []
        transport = {"uds": {"udsName": str(self.egress.path)}}
        connection = {"proxyProtocol": "HTTPConnect", "transport": transport}
        config = self.directory / "egress.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "apiserver.k8s.io/v1beta1",
                    "kind": "EgressSelectorConfiguration",
                    "egressSelections": [{"name": "cluster", "connection": connection}],
                }
            ),
            encoding="utf-8",
        )
        certificate, key = self.authority.sign_user("kube-apiserver-kubelet-client")
        return [
            f"--egress-selector-config-file={config}",
            f"--kubelet-client-certificate={certificate}",
            f"--kubelet-client-key={key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def start_controller_manager(self) -> None:
        """Start it and wait until it has made the default service account."""
        config = self.kubeconfig_of("system:kube-controller-manager")
        self.spawn(
            "kube-controller-manager",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--bind-address=127.0.0.1",
            f"--secure-port={lasting_port()}",
            f"--cert-dir={self.directory}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._account_key}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            "--node-monitor-period=2s",
            f"--node-monitor-grace-period={self._node_lease_s // 2}s",
        )
        self.wait_for("/api/v1/namespaces/default/serviceaccounts/default")

    def start_kwok(self) -> None:
        """Let kwok run the nodes that are annotated `kwok.x-k8s.io/node: fake`."""
        config = self.kubeconfig_of("kwok", ["system:masters"])
        self.spawn(
            "kwok",
            f"--kubeconfig={config}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--config={self.lab.kwok_stages}",
            f"--node-lease-duration-seconds={self._node_lease_s}",
            f"--server-address=127.0.0.1:{lasting_port()}",
        )

    def start_scheduler(self) -> None:
        """Start kube-scheduler, the reference for what a node may run."""
        config = self.kubeconfig_of("system:kube-scheduler")
        self.spawn(
            "kube-scheduler",
            f"--kubeconfig={config}",
            f"--authentication-kubeconfig={config}",
            f"--authorization-kubeconfig={config}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={lasting_port()}",
        )

    def spawn(self, program: str, *flags: str) -> None:
        """Start a program of the lab."""
        self.processes[program] = _SPAWNER.submit(self._spawn, program, flags).result()

    def _spawn(self, program: str, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with (self.directory / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [self.lab.program(program), *flags],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=die_with_parent if self._dies_with_us else None,  # noqa: PLW1509
            )

    def kill(self, program: str) -> None:
        """End one of our processes at once."""
        process = self.processes.pop(program)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for program in reversed(list(self.processes)):
            self.kill(program)
        if self.egress is not None:
            self.egress.close()
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- talking to it

    def kubeconfig_of(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user, who exists by the certificate in it."""
        certificate, key = self.authority.sign_user(user, groups)
        credentials = {"client-certificate": str(certificate), "client-key": str(key)}
        return self._write_kubeconfig(certificate.with_suffix(".kubeconfig"), user, credentials)

    def kubeconfig_of_account(self, account: str, namespace: str, *flags: str) -> Path:
        """A kubeconfig with a token of a service account; flags are those of `create token`."""
        token = self.kubectl("-n", namespace, "create", "token", account, *flags).strip()
        path = self.directory / f"{account}.kubeconfig"
        return self._write_kubeconfig(path, account, {"token": token})

    def _write_kubeconfig(self, path: Path, user: str, credentials: dict[str, str]) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority": str(self.authority.certificate),
                    },
                }
            ],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        return path

    def get(self, path: str) -> Any:
        """Read a path as the administrator."""
        with urllib.request.urlopen(self.url + path, context=self._tls, timeout=5) as answer:
            text = answer.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl as the administrator; returns what it printed, errors too.

        The API server breaks off or rejects requests for a custom resource while a change of its
        definition takes effect; then kubectl is run again. `apply` and `get` may be repeated.
        """
        end = time.monotonic() + START_S
        while True:
            done = self._run_kubectl(arguments, stdin)
            is_broken_off = done.returncode and any(one in done.stdout for one in BROKEN_OFF)
            if not is_broken_off or time.monotonic() > end:
                break
            time.sleep(0.2)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stdout}")
        return done.stdout

    def _run_kubectl(
        self, arguments: tuple[str, ...], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.lab.program("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HOME": str(self.directory)},
            text=True,
            check=False,
        )

    def wait_for(self, path: str) -> None:
        """Until the API server answers it with 200."""
        end = time.monotonic() + START_S
        while True:
            try:
                self.get(path)
            except (OSError, urllib.error.URLError) as error:
                ended = [name for name, one in self.processes.items() if one.poll() is not None]
                if ended or time.monotonic() > end:
                    raise RuntimeError(self._report(path, ended)) from error
                time.sleep(0.05)
            else:
                return

    def _report(self, path: str, ended: list[str]) -> str:
        program = (ended or list(self.processes))[-1]
        log = (self.directory / f"{program}.log").read_text(errors="replace")[-2000:]
        return f"no answer to {path}; ended: {ended or 'none'}; end of {program}.log:\n{log}"


def kwok_node(name: str, *, gpus: int = 8, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The manifest of a node that kwok runs."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, **(labels or {})},
        },
        "status": {"allocatable": amounts, "capacity": amounts},
    }


def die_with_parent() -> None:
    """In a new process: end when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
