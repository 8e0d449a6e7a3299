"""The Kubernetes scheduler on a real control plane, beside bare clients that make the same writes.

etcd, kube-apiserver, kube-controller-manager and kwok run on this machine, with nodes of 8 GPUs.
Pods with a GpuClaim each, ten for each node, exist before the scheduler starts: eight are bound and
two wait. The value is how many are bound in a second, from the first Binding until the last one and
the status of each claim are written. The floor is what 16 bare clients reach, which write for each
pod a Lease, a Binding and the status of its claim; kube-scheduler binds as many pods in the same
run. Then, on the full cluster: the reason for a gang that can never start, a gang of one-GPU pods,
a restart, and a standby that takes over.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.progress import show
from benchmarks.result import Result, result, rounded, skipped
from gpu_scheduler.kubernetes.client.client import Request
from gpu_scheduler.kubernetes.client.configuration import load_configuration
from gpu_scheduler.kubernetes.client.http import HttpTransport, connect
from gpu_scheduler.kubernetes.crds.claim import GPU_CLAIMS, ClaimPhase, GpuClaim
from gpu_scheduler.kubernetes.names import CLAIM_ANNOTATION, DEVICE_LEASE_LABEL, SCHEDULER_NAME
from gpu_scheduler.kubernetes.objects import LEASES, NODES, PODS, Pod
from gpu_scheduler.kubernetes.reflector import Reflector
from tests.kubernetes.lab.build import CONTROL_PLANE, lab
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node
from tests.ports import lasting_port

NODES_WANTED = 1000
GPUS = 8
CLIENTS = 16
GANG = 512
NODE_LEASE_S = 600
"""Longer than kubelets have it: the heartbeats of 1,000 nodes alone keep half a core busy."""
COMPARED = 1500
"""So many pods are bound by the bare clients, and by kube-scheduler."""
MIN_RATIO = 0.8
MOST_GANG_S = 5.0
MOST_REASON_S = 1.0
MOST_MEMORY_MB = 400.0
MOST_RESTART_S = 10.0
MOST_FAILOVER_S = 5.0
DEADLINE_S = 900.0
NAMESPACE = "bench"
CRDS = Path(__file__).parents[1] / "charts" / "gpu-scheduler" / "crds"
Manifest = dict[str, Any]


def measure(repeats: int, nodes: int = 0) -> Result:
    """One run: each of its figures is a sum over many pods, or takes a cluster of its own."""
    del repeats
    programs = lab()
    missing = programs.missing([*CONTROL_PLANE, "kwok", "kube-scheduler"])
    if missing:
        return skipped("kubernetes", f"not built: {', '.join(missing)}; run 'make kubernetes-lab'")
    plane = ControlPlane(programs, node_lease_s=NODE_LEASE_S)
    try:
        plane.start()
        plane.start_kwok()
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        plane.kubectl("wait", "--for=condition=Established", "-f", str(CRDS))
        plane.kubectl("create", "namespace", NAMESPACE)
        plane.wait_for(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
        return asyncio.run(_measure(plane, nodes or NODES_WANTED))
    finally:
        plane.stop()


async def _measure(plane: ControlPlane, nodes: int) -> Result:
    async with a_bench(plane, nodes) as bench:
        await bench.make_nodes()
        floor = await bench.bind_bare()
        show(f"kubernetes: bare clients {rounded(floor)} pods/s")
        kube = await bench.bind_by_kube_scheduler()
        show(f"kubernetes: kube-scheduler {rounded(kube)} pods/s")
        found = await bench.bind_by_us()
        bound_s, settled_s, decided_s = found
        show(f"kubernetes: ours {rounded(GPUS * nodes / settled_s)} pods/s")
        memory_mb = bench.memory_mb()
        reason_s = await bench.refuse_a_gang()
        show(f"kubernetes: {rounded(reason_s)} s, {rounded(memory_mb)} MB")
        gang_s, gang = await bench.start_a_gang()
        show(f"kubernetes: {rounded(gang_s)} s")
        restart_s = await bench.restart()
        show(f"kubernetes: {rounded(restart_s)} s")
        failover_s = await bench.fail_over()
        memory_mb = max(memory_mb, bench.memory_mb())
        value = GPUS * nodes / settled_s
        return result(
            "kubernetes",
            value,
            "pods/s",
            floor=floor,
            repeats=1,
            target=rounded(MIN_RATIO * floor),
            also_met=gang_s <= MOST_GANG_S
            and reason_s <= MOST_REASON_S
            and memory_mb <= MOST_MEMORY_MB
            and restart_s <= MOST_RESTART_S
            and failover_s <= MOST_FAILOVER_S,
            version=plane.lab.version,
            nodes=nodes,
            running=GPUS * nodes,
            waiting=2 * nodes,
            bindings_per_s=rounded(GPUS * nodes / bound_s),
            kube_scheduler_per_s=rounded(kube),
            start_to_first_binding_s=rounded(decided_s),
            reason_for_impossible_gang_s=rounded(reason_s),
            gang_pods=gang,
            gang_s=rounded(gang_s),
            memory_mb=rounded(memory_mb),
            restart_to_first_decision_s=rounded(restart_s),
            failover_after_lease_s=rounded(failover_s),
        )


@asynccontextmanager
async def a_bench(plane: ControlPlane, nodes: int) -> AsyncIterator[Bench]:
    os.environ["KUBECONFIG"] = str(plane.kubeconfig)
    configuration = load_configuration()
    async with connect(configuration) as client:
        bench = Bench(plane, nodes, HttpTransport(configuration))
        bench.pods, bench.claims = Reflector(client, PODS), Reflector(client, GPU_CLAIMS)
        bench.pods.add_handler(bench)
        tasks = [asyncio.create_task(one.run()) for one in (bench.pods, bench.claims)]
        try:
            await bench.pods.wait_until_synced()
            await bench.claims.wait_until_synced()
            yield bench
        finally:
            for process in bench.processes:
                process.kill()
                process.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await bench.transport.close()


class Bench:
    """What the measurements share: connections, caches, and the processes of the scheduler."""

    pods: Reflector[Pod]
    claims: Reflector[GpuClaim]

    def __init__(self, plane: ControlPlane, nodes: int, transport: HttpTransport) -> None:
        """Nothing is started yet."""
        self.plane = plane
        self.nodes = nodes
        self.transport = transport
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: list[int] = []
        self.bound_at: dict[str, float] = {}
        self.told_at: dict[str, float] = {}
        self.directory = Path(tempfile.mkdtemp(prefix="tgpu-bench-", dir=plane.directory))

    # --- a handler of changes of pods

    def on_added(self, new: Pod) -> None:
        """Note when a pod was first seen bound, or with a reason why it waits."""
        self._note(new)

    def on_updated(self, _: Pod, new: Pod) -> None:
        """The same."""
        self._note(new)

    def on_deleted(self, last: Pod) -> None:
        """Nothing to note."""

    def _note(self, pod: Pod) -> None:
        name = pod.metadata.name
        if pod.spec.node_name:
            self.bound_at.setdefault(name, time.monotonic())
        elif any(one.type == "PodScheduled" for one in pod.status.conditions):
            self.told_at.setdefault(name, time.monotonic())

    # --- requests

    async def send(self, method: str, path: str, body: Manifest | None = None) -> None:
        """One bare request; a conflict or a missing object is an error."""
        answer = await self.transport.send(
            Request(
                method=method,
                path=path,
                body=b"" if body is None else json.dumps(body).encode(),
                content_type="application/merge-patch+json"
                if method == "PATCH"
                else "application/json",
                timeout_seconds=60.0,
            )
        )
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")

    async def all_at_once(self, writes: Iterable[Callable[[], Awaitable[None]]]) -> None:
        """By 16 clients, each of which takes the next one when it is done."""
        left = iter(writes)

        async def client() -> None:
            for write in left:
                await write()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the caches will show."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not within {DEADLINE_S:g} s; {self._log()}")
            await asyncio.sleep(0.01)

    def _log(self) -> str:
        log = self.directory / "scheduler.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else ""

    # --- the cluster

    async def make_nodes(self) -> None:
        """Create the nodes, and wait until kwok has made them ready."""
        show(f"kubernetes: {self.nodes} nodes")
        path = NODES.path()

        def make(number: int) -> Callable[[], Awaitable[None]]:
            return lambda: self.send("POST", path, kwok_node(f"n{number:04}", gpus=GPUS))

        await self.all_at_once(map(make, range(self.nodes)))
        while True:
            found = self.plane.get("/api/v1/nodes?resourceVersion=0")["items"]
            ready = sum(
                one["type"] == "Ready" and one["status"] == "True"
                for node in found
                for one in node["status"].get("conditions", ())
            )
            if ready >= self.nodes:
                return
            await asyncio.sleep(0.5)

    async def make_pods(
        self, prefix: str, count: int, *, scheduler: str = SCHEDULER_NAME, claims: bool = True
    ) -> list[str]:
        """Create pods with a GPU each, and a claim for each."""
        names = [f"{prefix}{number:05}" for number in range(count)]
        if claims:
            await self.all_at_once(
                lambda name=name: self.send("POST", GPU_CLAIMS.path(NAMESPACE), _claim(name))  # type: ignore[misc]
                for name in names
            )
        await self.all_at_once(
            lambda name=name: self.send(  # type: ignore[misc]
                "POST", PODS.path(NAMESPACE), _pod(name, scheduler, name if claims else "")
            )
            for name in names
        )
        await self.until(lambda: all((NAMESPACE, n) in self.pods.objects for n in names), "pods")
        return names

    async def delete(self, names: Iterable[str]) -> None:
        """Delete pods, and wait until they are gone."""
        listed = list(names)

        async def one(name: str) -> None:
            await self.send("DELETE", PODS.path(NAMESPACE, name) + "?gracePeriodSeconds=0")

        await self.all_at_once(lambda name=name: one(name) for name in listed)  # type: ignore[misc]
        await self.until(
            lambda: not any((NAMESPACE, name) in self.pods.objects for name in listed), "deletion"
        )

    # --- the floor and the peer

    def compared(self) -> int:
        """How many pods the others bind: half of the GPUs at most."""
        return min(COMPARED, GPUS * self.nodes // 2)

    async def bind_bare(self) -> float:
        """Pods bound per second by clients that only write."""
        show("kubernetes: bare clients")
        names = await self.make_pods("bare", self.compared())

        async def bind(number: int) -> None:
            name, node = names[number], f"n{number // GPUS:04}"
            await self.send("POST", LEASES.path(NAMESPACE), _lease(name, node, number % GPUS))
            await self.send("POST", PODS.path(NAMESPACE, name, "binding"), _binding(name, node))
            await self.send(
                "PATCH", GPU_CLAIMS.path(NAMESPACE, name, "status"), _status(name, node)
            )

        began = time.monotonic()
        await self.all_at_once(
            lambda number=number: bind(number)  # type: ignore[misc]
            for number in range(len(names))
        )
        seconds = time.monotonic() - began
        await self.delete(names)
        await self.all_at_once(
            lambda name=name: self.send("DELETE", GPU_CLAIMS.path(NAMESPACE, name))  # type: ignore[misc]
            for name in names
        )
        await self.all_at_once(
            lambda number=number: self.send(  # type: ignore[misc]
                "DELETE",
                LEASES.path(NAMESPACE, f"gpu-n{number // GPUS:04}-{number % GPUS}"),
            )
            for number in range(len(names))
        )
        return len(names) / seconds

    async def bind_by_kube_scheduler(self) -> float:
        """The same number of pods, bound by kube-scheduler, from its first Binding to its last."""
        show("kubernetes: kube-scheduler")
        names = await self.make_pods(
            "kube", self.compared(), scheduler="default-scheduler", claims=False
        )
        self.plane.start_scheduler()
        await self.until(lambda: all(name in self.bound_at for name in names), "kube-scheduler")
        self.plane.kill("kube-scheduler")
        times = [self.bound_at[name] for name in names]
        await self.delete(names)
        return len(names) / (max(times) - min(times))

    # --- ours

    def start(self) -> None:
        """Start a process of the scheduler."""
        port = lasting_port()
        command = [sys.executable, "-m", "gpu_scheduler.kubernetes.scheduler"]
        command += ["--namespace", NAMESPACE, "--listen", f"127.0.0.1:{port}"]
        with (self.directory / "scheduler.log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.ports.append(port)

    def stop(self, number: int) -> None:
        """End the oldest process."""
        process = self.processes.pop(0)
        self.ports.pop(0)
        process.send_signal(number)
        process.wait()

    def memory_mb(self) -> float:
        """The resident memory of the oldest process."""
        status = Path(f"/proc/{self.processes[0].pid}/status").read_text(encoding="utf-8")
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024

    async def bind_by_us(self) -> tuple[float, float, float]:
        """Seconds of all Bindings, of these with all statuses, and until the first Binding."""
        show("kubernetes: pods")
        names = await self.make_pods("pod", 10 * self.nodes)
        show("kubernetes: our scheduler")
        began = time.monotonic()
        self.start()
        room = GPUS * self.nodes
        await self.until(lambda: sum(name in self.bound_at for name in names) >= room, "Bindings")
        times = [self.bound_at[name] for name in names if name in self.bound_at]
        await self.until(lambda: self._placed_claims() >= room, "statuses")
        return max(times) - min(times), time.monotonic() - min(times), min(times) - began

    def _placed_claims(self) -> int:
        placed = (ClaimPhase.SCHEDULED, ClaimPhase.RUNNING)
        return sum(one.status.phase in placed for one in self.claims.objects.values())

    async def _gang(self, name: str, count: int, gpus: int) -> tuple[list[str], float]:
        """Create a gang; returns its pods, and when the last one was created."""
        claim = _claim(name)
        claim["spec"] = {"devices": {"count": gpus}, "gang": {"minMembers": count}}
        await self.send("POST", GPU_CLAIMS.path(NAMESPACE), claim)
        names = [f"{name}-{number}" for number in range(count)]
        await self.all_at_once(
            lambda pod=pod: self.send(  # type: ignore[misc]
                "POST", PODS.path(NAMESPACE), _pod(pod, SCHEDULER_NAME, name, gpus)
            )
            for pod in names
        )
        return names, time.monotonic()

    async def refuse_a_gang(self) -> float:
        """Seconds until each pod of a gang that fits no node says why it waits."""
        show("kubernetes: an impossible gang")
        await self._rest()
        names, created = await self._gang("impossible", 10, 2 * GPUS)
        await self.until(lambda: all(name in self.told_at for name in names), "reasons")
        seconds = max(self.told_at[name] for name in names) - created
        await self.delete(names)
        return seconds

    async def start_a_gang(self) -> tuple[float, int]:
        """Seconds until all pods of a large gang are bound; the others leave it room."""
        show("kubernetes: a gang")
        count = min(GANG, GPUS * self.nodes // 2)
        waiting = [pod.metadata.name for pod in self._ours() if not pod.spec.node_name]
        await self.delete(waiting)
        await self.delete(pod.metadata.name for pod in self._ours()[:count])
        await self._rest()
        names, created = await self._gang("gang", count, 1)
        await self.until(lambda: all(name in self.bound_at for name in names), "the gang")
        return max(self.bound_at[name] for name in names) - created, count

    def _ours(self) -> list[Pod]:
        found = [one for key, one in sorted(self.pods.objects.items()) if key[0] == NAMESPACE]
        return [pod for pod in found if pod.metadata.name.startswith("pod")]

    async def _rest(self) -> None:
        """Until the leases are those of the pods, and statuses and events are written."""
        path = LEASES.path(NAMESPACE) + f"?labelSelector={DEVICE_LEASE_LABEL}%3Dtrue"
        while True:
            before = self.pods.resource_version, self.claims.resource_version
            await asyncio.sleep(5.0)
            held = len(self.plane.get(path)["items"])
            bound = sum(bool(one.spec.node_name) for one in self.pods.objects.values())
            now = self.pods.resource_version, self.claims.resource_version
            if held == bound and before == now:
                return

    async def _free_a_gpu(self) -> None:
        await self.delete([self._ours()[0].metadata.name])

    async def restart(self) -> float:
        """Seconds from the start of a process to a Binding; the last one has released its lead."""
        show("kubernetes: a restart")
        await self._free_a_gpu()
        self.stop(signal.SIGTERM)
        (name,) = await self.make_pods("restart", 1)
        began = time.monotonic()
        self.start()
        await self.until(lambda: name in self.bound_at, "the restart")
        return self.bound_at[name] - began

    async def fail_over(self) -> float:
        """Seconds from the end of the lease of a killed leader to a Binding by the standby."""
        show("kubernetes: a failover")
        await self._rest()
        await self._free_a_gpu()
        await self._rest()
        self.start()
        await asyncio.to_thread(_wait_until_ready, self.ports[-1])
        self.stop(signal.SIGKILL)
        lease = self.plane.get(LEASES.path(NAMESPACE, SCHEDULER_NAME))["spec"]
        renewed = datetime.fromisoformat(lease["renewTime"])
        left = lease["leaseDurationSeconds"] - (datetime.now(UTC) - renewed).total_seconds()
        ends: float = time.monotonic() + left
        (name,) = await self.make_pods("failover", 1)
        await self.until(lambda: name in self.bound_at, "the failover")
        return self.bound_at[name] - ends


def _wait_until_ready(port: int) -> None:
    """Until a scheduler says that its caches are filled."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"a scheduler was not ready within {DEADLINE_S:g} s")


def _claim(name: str) -> Manifest:
    return {
        "apiVersion": GPU_CLAIMS.api_version,
        "kind": GPU_CLAIMS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"devices": {"count": 1}},
    }


def _pod(name: str, scheduler: str, claim: str, gpus: int = 1) -> Manifest:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {CLAIM_ANNOTATION: claim} if claim else {},
        },
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "busybox", "resources": resources}],
        },
    }


def _lease(name: str, node: str, index: int) -> Manifest:
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {
            "name": f"gpu-{node}-{index}",
            "namespace": NAMESPACE,
            "annotations": {"bench/holders": json.dumps([{"uid": name, "devices": [index]}])},
        },
        "spec": {"holderIdentity": name},
    }


def _binding(name: str, node: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": {"bench/allocated": "0"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def _status(name: str, node: str) -> Manifest:
    member = {"pod": name, "uid": name, "node": node, "devices": [{"index": 0, "uuid": "0"}]}
    return {"status": {"phase": "Scheduled", "node": node, "gpus": "0", "members": [member]}}
