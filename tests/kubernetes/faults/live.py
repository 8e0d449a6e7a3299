"""A real control plane with two schedulers, a webhook and agents, killed and frozen at random.

The API server keeps its objects as JSON in etcd, and the audit reads every revision of them from
etcd itself, in the order in which they were stored: no kill of the API server hides one. The API
server's own audit log tells who bound pods, and how often.
"""

import base64
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import yaml

from gpu_scheduler.kubernetes.names import CLAIM_ANNOTATION
from tests.chaos.single_server import compile_c
from tests.kubernetes.faults.audit import Audit, Bounds, Manifest, Stored
from tests.kubernetes.faults.variants import AS_IT_IS
from tests.kubernetes.lab.component import Component
from tests.kubernetes.lab.control_plane import ControlPlane, die_with_parent, kwok_node
from tests.ports import lasting_port

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "charts" / "gpu-scheduler" / "crds"
MANIFESTS = ROOT / "deployments" / "k8s" / "gpu-scheduler.yaml"
NAMESPACE = "chaos"
NAMES = ("a", "b")
REPORTED = ("n0", "n1")
"""Nodes with an agent; of the others the scheduler knows only the number of their GPUs."""
NOT_REVIEWED = "failed calling webhook"
MOST_SKEW_S = 400
PROGRESS_S = 5.0
DEADLINE_S = 180.0
PLURALS = {
    "minions": "nodes",
    "pods": "pods",
    "leases": "leases",
    "gpu.scheduling": "gpuclaims",
}
"""By the word that follows /registry/ in the keys of etcd."""
BOUNDS = Bounds(gang_s=240.0, lease_s=240.0, taint_s=90.0)
"""Generous: the machine may be busy with something else."""


class Revisions:
    """Follows etcd from the start, and shows each revision to an audit."""

    def __init__(self, url: str, audit: Audit) -> None:
        self._url = url
        self._audit = audit
        self._lock = threading.Lock()
        self._last: dict[str, Manifest] = {}
        self._revision = 0
        self.failure: BaseException | None = None
        threading.Thread(target=self._follow, daemon=True).start()

    def wait_for(self, revision: int) -> None:
        """Until everything up to this revision has been shown."""
        end = time.monotonic() + DEADLINE_S
        while self._revision < revision:
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < end, f"etcd's watch is at {self._revision} of {revision}"
            time.sleep(0.05)

    def finish(self) -> list[str]:
        with self._lock:
            return self._audit.finish(time.monotonic())

    def bindings(self) -> int:
        return self._audit.bindings

    def compact(self, revision: int) -> None:
        """Drop what is older; a watch of the API server from before then is too old."""
        self.wait_for(revision)
        body = json.dumps({"revision": str(revision)}).encode()
        urllib.request.urlopen(f"{self._url}/v3/kv/compaction", body, timeout=10).close()

    def _follow(self) -> None:
        def encoded(text: str) -> str:
            return base64.b64encode(text.encode()).decode()

        wanted = {
            "key": encoded("/registry/"),
            "range_end": encoded("/registry0"),
            "start_revision": "1",
        }
        body = json.dumps({"create_request": wanted}).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/v3/watch", body) as answer:
                for line in answer:
                    self._take(json.loads(line)["result"])
        except BaseException as error:  # noqa: BLE001 - told by wait_for
            self.failure = error

    def _take(self, result: dict[str, Any]) -> None:
        assert not result.get("canceled"), result
        for event in result.get("events", ()):
            key = base64.b64decode(event["kv"]["key"]).decode()
            plural = PLURALS.get(key.split("/")[2])
            if plural is None or (plural == "gpuclaims" and "/gpuclaims/" not in key):
                continue
            is_deleted = event.get("type") == "DELETE"
            if not is_deleted:
                self._last[key] = json.loads(base64.b64decode(event["kv"]["value"]))
            known = self._last.pop(key) if is_deleted else self._last[key]
            with self._lock:
                self._audit.see(
                    Stored(at=time.monotonic(), plural=plural, is_deleted=is_deleted, object=known)
                )
        self._revision = max(self._revision, int(result["header"]["revision"]))


class Chaos:
    """One run on a control plane of its own."""

    def __init__(self, plane: ControlPlane, directory: Path, seed: int) -> None:
        self.plane = plane
        self.directory = directory
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.audit = Audit(BOUNDS)
        self.revisions = Revisions(plane.etcd_url, self.audit)
        self.schedulers: dict[str, subprocess.Popen[bytes]] = {}
        self.variant = AS_IT_IS
        self._clock = directory / "clock.so"
        compile_c("clock.c", self._clock, "-shared", "-fPIC", "-O1")
        self._frozen: dict[int, float] = {}
        self._numbers = iter(range(1_000_000))
        self._foreign = iter(range(1_000_000))
        self._tasks: dict[str, list[Manifest]] = {}
        self._unreviewed: list[str] = []
        port = lasting_port()
        self._webhook_url = f"https://localhost:{port}/mutate"
        self._webhook = Component(
            *("webhook", plane.kubeconfig, directory / "webhook.log", "--namespace", NAMESPACE),
            *("--host", "127.0.0.1", "--port", str(port), "--dns-name", "localhost"),
        )
        self._agents = [
            Component(
                *("agent", plane.kubeconfig, directory / f"agent-{node}.log", "--node", node),
                *("--kubeconfig", str(plane.kubeconfig), "--declared", "4xA100-80GB"),
                *("--detection", "declared", "--dra", "no", "--device-plugin", "no"),
                *("--state-dir", str(directory / f"agent-{node}"), "--publish-interval", "2"),
            )
            for node in REPORTED
        ]

    # --- the cluster

    def build(self) -> None:
        plane = self.plane
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        plane.kubectl("wait", "--for=condition=Established", "-f", str(CRDS))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        for number in range(4):
            self.apply(kwok_node(f"n{number}", gpus=4))
        tainted = kwok_node("tainted", gpus=4)
        tainted["spec"] = {"taints": [{"key": "broken", "effect": "NoSchedule"}]}
        cordoned = kwok_node("cordoned", gpus=4)
        cordoned["spec"] = {"unschedulable": True}
        half = {"count": 1, "exclusivity": "Shared", "fraction": 0.5}
        self.apply(tainted, cordoned, self.claim("half", half))
        self._build_webhook()
        for agent in self._agents:
            agent.start()

    def _build_webhook(self) -> None:
        """With the registration of the chart, but the address of a process."""
        every = list(yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")))
        (registration,) = (one for one in every if one["kind"] == "MutatingWebhookConfiguration")
        registration["webhooks"][0]["clientConfig"] = {"url": self._webhook_url}
        (secret,) = (one for one in every if one["kind"] == "Secret")
        secret["metadata"]["namespace"] = NAMESPACE
        self.apply(registration, secret)
        self._webhook.start()
        self.until(lambda: "the API server trusts" in self._webhook.text(), "a trusted webhook")

    def apply(self, *manifests: Manifest) -> None:
        """Again if the webhook is not there: then the API server rejects our pods."""
        text = "\n---\n".join(map(json.dumps, manifests))

        def is_applied() -> bool:
            is_rejected = NOT_REVIEWED in self._kubectl("apply", "-f", "-", stdin=text)
            self.counts["pods rejected without the webhook"] += is_rejected
            return not is_rejected

        self.until(is_applied, "manifests are applied")

    def _kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.plane.kubectl("-n", NAMESPACE, *arguments, stdin=stdin, check=False)

    def claim(self, name: str, devices: Manifest, **spec: Any) -> Manifest:
        return {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"devices": devices, **spec},
        }

    def pod(self, name: str, *, gpus: int = 0, claim: str = "") -> Manifest:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "annotations": {CLAIM_ANNOTATION: claim} if claim else {},
            },
            "spec": {
                "schedulerName": "gpu-scheduler",
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}],
            },
        }

    # --- processes

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.kubernetes.faults.variants", self.variant]
        command += ["--namespace", NAMESPACE, "--listen", f"127.0.0.1:{lasting_port()}"]
        command += ["--gang-deadline", "15", "--log-level", "WARNING"]
        clock = self.directory / f"{name}.clock"
        clock.write_bytes(struct.pack("@q", self.random.randint(-MOST_SKEW_S, MOST_SKEW_S)))
        environment = os.environ | {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "LD_PRELOAD": str(self._clock),
            "CLOCK_FILE": str(clock),
        }
        with (self.directory / f"{name}.log").open("ab") as log:
            self.schedulers[name] = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def kill(self, name: str) -> None:
        process = self.schedulers.pop(name)
        process.kill()
        process.wait()
        self._frozen.pop(process.pid, None)
        self.counts[f"scheduler {name} killed"] += 1

    def thaw(self) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._frozen.clear()

    def stop(self) -> None:
        self.thaw()
        for process in self.schedulers.values():
            process.kill()
            process.wait()
        for component in (self._webhook, *self._agents):
            if component.process is not None:
                component.stop()

    # --- the run

    def disturb(self, kills: int) -> None:
        """Submit, delete and disturb until so many processes were killed."""
        for name in NAMES:
            self.start(name)
        killed = 0
        while killed < kills:
            self._submit()
            time.sleep(self.random.uniform(0.0, 1.0))
            match self.random.randrange(13):
                case 0 | 1 | 2 | 3 | 4:
                    killed += 1
                    self._kill_a_scheduler()
                case 5:
                    killed += 1
                    self._kill_the_api_server()
                case 6:
                    self._freeze()
                case 7:
                    self.thaw()
                case 8:
                    self._compact()
                case 9:
                    killed += 1
                    self._kill_the_webhook()
                case 10:
                    killed += 1
                    self._kill_an_agent()
                case 11:
                    self._freeze_the_webhook()
                case _:
                    self._change_a_node()

    def _submit(self) -> None:
        number = next(self._numbers)
        name = f"t{number}"
        match self.random.randrange(5):
            case 0:
                size = self.random.randint(2, 4)
                gang = {"minMembers": size}
                self.apply(
                    self.claim(name, {"count": 1}, gang=gang),
                    *(self.pod(f"{name}-{one}", claim=name) for one in range(size)),
                )
            case 1:
                self.apply(self.pod(name, claim="half"), self.pod(f"{name}-b", claim="half"))
            case _:
                self.apply(self.pod(name, gpus=self.random.choice([1, 1, 2])))
        # The oldest go, so that there is always something to bind.
        if number >= 6:
            old = f"t{number - 6}"
            found = self._kubectl("get", "pods", "-o", "name").split()
            mine = [one for one in found if one in (f"pod/{old}",) or f"/{old}-" in one]
            if mine:
                self._kubectl("delete", "--wait=false", *mine)

    def _kill_a_scheduler(self) -> None:
        """At work: after the next Binding, if there is one soon."""
        before, end = self.audit.bindings, time.monotonic() + PROGRESS_S
        while self.audit.bindings == before and time.monotonic() < end:
            time.sleep(0.02)
        name = self.random.choice(sorted(self.schedulers))
        self.kill(name)
        self.start(name)

    def _kill_the_api_server(self) -> None:
        self.plane.kill("kube-apiserver")
        self.counts["API server killed"] += 1
        self.plane.start_api_server()

    def _kill_the_webhook(self) -> None:
        self._webhook.stop()
        self._create_a_foreign_pod()
        self._webhook.start()
        self.counts["webhook killed"] += 1

    def _freeze_the_webhook(self) -> None:
        assert self._webhook.process is not None
        self._webhook.process.send_signal(signal.SIGSTOP)
        self._create_a_foreign_pod()
        self._webhook.process.send_signal(signal.SIGCONT)
        self.counts["webhook frozen"] += 1

    def _create_a_foreign_pod(self) -> None:
        """An outage of ours never keeps others from creating pods."""
        pod = self.pod(f"foreign-{next(self._foreign)}")
        pod["spec"]["schedulerName"] = "another-scheduler"
        name = pod["metadata"]["name"]
        said = self._kubectl("create", "-f", "-", stdin=json.dumps(pod))
        assert "created" in said, said
        self._kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

    def _kill_an_agent(self) -> None:
        agent = self.random.choice(self._agents)
        agent.stop()
        agent.start()
        self.counts["agent killed"] += 1

    def _freeze(self) -> None:
        """Freeze a scheduler, or the API server for a moment; schedulers thaw some faults later."""
        if self.random.random() < 0.3:
            pid = self.plane.processes["kube-apiserver"].pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.5, 5.0))
            os.kill(pid, signal.SIGCONT)
            self.counts["API server frozen"] += 1
            return
        pid = self.schedulers[self.random.choice(sorted(self.schedulers))].pid
        os.kill(pid, signal.SIGSTOP)
        self._frozen[pid] = time.monotonic()
        self.counts["scheduler frozen"] += 1

    def _compact(self) -> None:
        revision = int(self.plane.get("/api/v1/namespaces")["metadata"]["resourceVersion"])
        self.revisions.compact(revision)
        self.counts["etcd compacted"] += 1

    def _change_a_node(self) -> None:
        name = f"n{self.random.randrange(4)}"
        taints = [{"key": "busy", "effect": "NoSchedule"}] if self.random.random() < 0.5 else None
        patch = json.dumps({"spec": {"taints": taints}})
        self._kubectl("patch", "node", name, "--type=merge", "-p", patch)
        self.counts["taints changed"] += 1

    # --- the end

    def settle(self) -> None:
        """Repair everything, let every pod be bound, then delete all; no lease may remain."""
        self.thaw()
        for number in range(4):
            self._kubectl("patch", "node", f"n{number}", "--type=merge", "-p", UNTAINTED)
        for name in {*NAMES} - {*self.schedulers}:
            self.start(name)
        self.until(self._has_no_idle_gpu, "free GPUs are given to the pods that wait")
        self._unreviewed = [
            f"pod {one['metadata']['name']} was created without the webhook"
            for one in self._pods()
            if not any("valueFrom" in each for each in one["spec"]["containers"][0].get("env", ()))
        ]
        self._kubectl("delete", "pods", "--all", "--wait=false")
        self.until(
            lambda: not self._pods() and not self._device_leases(), "all leases are released"
        )
        revision = int(self.plane.get("/api/v1/namespaces")["metadata"]["resourceVersion"])
        self.revisions.wait_for(revision)

    def _pods(self) -> list[Manifest]:
        found: list[Manifest] = self.plane.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return found

    def _device_leases(self) -> list[str]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
        names = [one["metadata"]["name"] for one in self.plane.get(path)["items"]]
        return [name for name in names if name.startswith("gpu-") and name != "gpu-scheduler"]

    def _has_no_idle_gpu(self) -> bool:
        waiting = [one for one in self._pods() if not one["spec"].get("nodeName")]
        return not waiting or len(self._device_leases()) == 16

    def until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while True:
            with suppress(OSError):
                if condition():
                    return
            assert time.monotonic() < end, f"{what}: not within {DEADLINE_S:g} s; {self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}"
            for path in sorted(self.directory.glob("*.log"))
        )

    def findings(self) -> list[str]:
        """What the stored objects say, and what the API server's audit log says of Bindings."""
        found = [*self.revisions.finish(), *self._unreviewed]
        bound = Counter[str]()
        for line in self.plane.audit_log.read_text(encoding="utf-8").splitlines():
            with suppress(json.JSONDecodeError):  # a kill can leave half a line
                entry = json.loads(line)
                reference = entry.get("objectRef", {})
                is_binding = reference.get("subresource") == "binding"
                if is_binding and entry.get("responseStatus", {}).get("code") == 201:
                    bound[entry["requestObject"]["metadata"]["uid"]] += 1
        found += [f"pod {uid} was bound {times} times" for uid, times in bound.items() if times > 1]
        return found


UNTAINTED = json.dumps({"spec": {"taints": None}})
