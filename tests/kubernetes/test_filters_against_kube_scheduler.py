"""Our filters beside those of the real kube-scheduler: random nodes and pods on one API server.

For each random pod and node, a copy of the pod that is pinned to the node goes to kube-scheduler.
What ours accepts, kube-scheduler must bind; what ours rejects, it must reject. The copy is deleted
before the next one, so that both judge the same cluster. `make soak` compares more clusters.
"""

import asyncio
import json
import os
import secrets
from random import Random
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.configuration import read_kubeconfig
from gpu_scheduler.kubernetes.client.errors import KubernetesError, NotFound
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.objects import NODES, PODS
from gpu_scheduler.kubernetes.scheduler import filters as our_filters
from gpu_scheduler.kubernetes.scheduler.filters import Filters
from gpu_scheduler.kubernetes.scheduler.loop import RESOURCES
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node

pytestmark = pytest.mark.slow

CLUSTERS = int(os.environ.get("TGPU_COMPARED_CLUSTERS", "2"))
"""How many random clusters are compared."""
NODE_COUNT, PLACED, JUDGED = 5, 8, 8
DEADLINE_S = 120.0
SURE_S = 20.0
"""A rejection may come from a cache that is behind: kube-scheduler tries again within this time."""
PIN = "example.com/node-"
OURS = ("nodes", "pods", "namespaces")
HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"

Manifest = dict[str, Any]


class RandomCluster:
    """Nodes, pods on them, and pods to be judged; the same for a seed but for the namespace."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.namespace = f"compare-{secrets.token_hex(4)}"

    def node(self, number: int) -> Manifest:
        pick, chance = self.random.choice, self.random.random
        name = f"{self.namespace}-{number}"
        labels = {"for": self.namespace}
        if chance() < 0.8:
            labels[ZONE] = pick("ab")
        if chance() < 0.5:
            labels["disk"] = pick(("ssd", "hdd"))
        if chance() < 0.5:
            labels["generation"] = str(self.random.randint(1, 9))
        made = kwok_node(name, gpus=pick((0, 2, 4)), labels=labels)
        amounts = made["status"]["allocatable"]
        amounts |= {
            "cpu": pick(("2500m", "4", "8")),
            "memory": pick(("2Gi", "8Gi")),
            "pods": pick(("3", "110", "110")),
            "ephemeral-storage": pick(("1Gi", "20Gi")),
            f"{PIN}{number}": "1",
        }
        made["status"]["capacity"] = amounts
        spec: Manifest = {}
        if chance() < 0.15:
            spec["unschedulable"] = True
        if chance() < 0.4:
            effect = pick(("NoSchedule", "PreferNoSchedule", "NoExecute"))
            spec["taints"] = [{"key": "team", "value": pick(("x", "y")), "effect": effect}]
        return {**made, "spec": spec}

    def pod(self, name: str, *, rules: bool = True) -> Manifest:
        pick, chance = self.random.choice, self.random.random
        requests = {"cpu": pick(("0", "100m", "900m", "2"))}
        limits: Manifest = {}
        if chance() < 0.5:
            requests["memory"] = pick(("100Mi", "900Mi", "3Gi"))
        if chance() < 0.3:
            requests["ephemeral-storage"] = pick(("500Mi", "10Gi"))
        if chance() < 0.4:
            limits["nvidia.com/gpu"] = requests["nvidia.com/gpu"] = pick(("1", "2"))
        container: Manifest = {
            "name": "main",
            "image": "none",
            "resources": {"requests": requests, "limits": limits},
        }
        if chance() < 0.3:
            port = {"containerPort": 80, "hostPort": pick((8080, 8081))}
            address = pick(("", "127.0.0.1", "10.0.0.1"))
            container["ports"] = [port | ({"hostIP": address} if address else {})]
        spec: Manifest = {"containers": [container], "terminationGracePeriodSeconds": 0}
        if chance() < 0.2:
            spec["initContainers"] = [
                {
                    "name": "first",
                    "image": "none",
                    "resources": {"requests": {"cpu": pick(("1", "3"))}},
                    **({"restartPolicy": "Always"} if chance() < 0.5 else {}),
                }
            ]
        if rules:
            spec |= self.rules()
        labels = {"app": pick("pqr")}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def rules(self) -> Manifest:
        pick, chance = self.random.choice, self.random.random
        spec: Manifest = {}
        if chance() < 0.2:
            spec["nodeSelector"] = {"disk": pick(("ssd", "hdd"))}
        if chance() < 0.5:
            spec["tolerations"] = [self.toleration() for _ in range(self.random.randint(1, 2))]
        affinity: Manifest = {}
        if chance() < 0.4:
            terms = [
                {"matchExpressions": [self.expression() for _ in range(self.random.randint(1, 2))]}
                for _ in range(self.random.randint(1, 2))
            ]
            affinity["nodeAffinity"] = {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        for kind, likely in (("podAffinity", 0.15), ("podAntiAffinity", 0.25)):
            if chance() < likely:
                affinity[kind] = {"requiredDuringSchedulingIgnoredDuringExecution": [self.term()]}
        if affinity:
            spec["affinity"] = affinity
        if chance() < 0.3:
            spec["topologySpreadConstraints"] = [
                {
                    "maxSkew": pick((1, 2)),
                    "topologyKey": pick((ZONE, HOSTNAME)),
                    "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": pick("pqr")}},
                    **({"minDomains": 2} if chance() < 0.3 else {}),
                    **({"nodeTaintsPolicy": "Honor"} if chance() < 0.4 else {}),
                    **({"nodeAffinityPolicy": "Ignore"} if chance() < 0.4 else {}),
                }
            ]
        return spec

    def toleration(self) -> Manifest:
        pick = self.random.choice
        effect = pick(({}, {"effect": "NoSchedule"}, {"effect": "NoExecute"}))
        return pick(
            (
                {"key": "team", "operator": "Equal", "value": pick("xy"), **effect},
                {"key": "team", "operator": "Exists", **effect},
                {"operator": "Exists", **effect},
            )
        )

    def expression(self) -> Manifest:
        pick = self.random.choice
        return pick(
            (
                {"key": "disk", "operator": "In", "values": [pick(("ssd", "hdd"))]},
                {"key": "disk", "operator": "NotIn", "values": ["ssd"]},
                {"key": "disk", "operator": pick(("Exists", "DoesNotExist"))},
                {"key": "generation", "operator": pick(("Gt", "Lt")), "values": ["5"]},
            )
        )

    def term(self) -> Manifest:
        pick = self.random.choice
        return {
            "topologyKey": pick((ZONE, HOSTNAME)),
            "labelSelector": {"matchLabels": {"app": pick("pqr")}},
        }


def pinned(pod: Manifest, name: str, node: int) -> Manifest:
    """A copy of a pod that asks for what only this node has; no other rule is touched."""
    made: Manifest = json.loads(json.dumps(pod))
    made["metadata"]["name"] = name
    resources = made["spec"]["containers"][0]["resources"]
    for amounts in (resources["requests"], resources["limits"]):
        amounts[f"{PIN}{node}"] = "1"
    return made


class Comparison:
    """One random cluster on the API server."""

    def __init__(self, client: ApiClient, cluster: RandomCluster) -> None:
        self._client = client
        self._cluster = cluster
        self.pairs = self.accepted = 0
        self.differences: list[str] = []

    async def run(self) -> None:
        cluster = self._cluster
        namespace = {"metadata": {"name": cluster.namespace}}
        await self._client.create(RESOURCES["namespaces"], namespace)
        account = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default"
        await self._until(lambda: self._exists(account))
        names = []
        for number in range(NODE_COUNT):
            made = await self._client.create(NODES, cluster.node(number))
            names.append(made.metadata.name)
        await self._until(lambda: self._are_ready(names))
        for number in range(PLACED):
            pod = cluster.pod(f"placed-{number}", rules=number % 2 == 0)
            pod["spec"]["nodeName"] = cluster.random.choice(names)
            # Taints with NoExecute would delete it.
            pod["spec"]["tolerations"] = [{"operator": "Exists"}]
            await self._client.create(PODS, pod)
        for number in range(JUDGED):
            await self._judge(cluster.pod(f"judged-{number}"), names)

    async def _judge(self, pod: Manifest, names: list[str]) -> None:
        """Compare both on every node for one pod."""
        name = pod["metadata"]["name"]
        gated = {**pod, "spec": {**pod["spec"], "schedulingGates": [{"name": "test/never"}]}}
        read = await self._client.create(PODS, gated)
        await self._client.delete(PODS, name, self._cluster.namespace, grace_seconds=0)
        filters = Filters(await self._objects())
        assert not filters.refusal(read)
        rules = filters.rules(read)
        for place, node in enumerate(names):
            why = filters.rejection(rules, node)
            is_bound, told = await self._ask(pinned(pod, f"{name}-{place}", place), sure=not why)
            self.pairs += 1
            self.accepted += not why
            if is_bound == bool(why):
                ours = f"rejects ({why})" if why else "accepts"
                self.differences.append(
                    f"{name} on {node}: ours {ours}, kube-scheduler "
                    f"{'binds' if is_bound else 'rejects: ' + told}; {pod['spec']}"
                )

    async def _ask(self, pod: Manifest, *, sure: bool) -> tuple[bool, str]:
        """Whether kube-scheduler binds a pod, and what it says if not."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        await self._client.create(PODS, pod)
        loop = asyncio.get_running_loop()
        end, sure_at = loop.time() + DEADLINE_S, 0.0
        while True:
            found = await self._client.get(PODS, name, namespace)
            told = [one.message for one in found.status.conditions if one.status == "False"]
            if found.spec.node_name or (told and not sure):
                break
            if told:
                sure_at = sure_at or loop.time() + SURE_S
                if loop.time() > sure_at:
                    break
            assert loop.time() < end, f"kube-scheduler does not judge {name}"
            await asyncio.sleep(0.02)
        await self._client.delete(PODS, name, namespace, grace_seconds=0)
        await self._until(lambda: self._is_gone(name))
        return bool(found.spec.node_name), " ".join(told)

    async def _objects(self) -> Objects:
        listed = {field: await self._client.list(RESOURCES[field]) for field in OURS}
        return Objects(**{f: {one.key: one for one in found.items} for f, found in listed.items()})

    async def _until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not await condition():  # noqa: ASYNC110 - the API server is asked
                await asyncio.sleep(0.1)

    async def _exists(self, path: str) -> bool:
        try:
            await self._client._call("GET", path, repeatable=True)
        except KubernetesError:
            return False
        return True

    async def _is_gone(self, name: str) -> bool:
        try:
            await self._client.get(PODS, name, self._cluster.namespace)
        except NotFound:
            return True
        return False

    async def _are_ready(self, names: list[str]) -> bool:
        nodes = [await self._client.get(NODES, name) for name in names]
        return all(
            our_filters.is_ready(node)
            and not any("not-ready" in taint.key for taint in node.spec.taints)
            and (not node.spec.unschedulable or any("unsched" in t.key for t in node.spec.taints))
            for node in nodes
        )


def compare(plane: ControlPlane, seed: int) -> Comparison:
    cluster = RandomCluster(seed)

    async def main() -> Comparison:
        async with connect(read_kubeconfig([plane.kubeconfig])) as client:
            comparison = Comparison(client, cluster)
            await comparison.run()
            return comparison

    try:
        return asyncio.run(main())
    finally:
        plane.kubectl("delete", "namespace", cluster.namespace, "--wait=false", check=False)
        plane.kubectl("delete", "nodes", "-l", f"for={cluster.namespace}", check=False)


def test_ours_accepts_exactly_the_nodes_that_kube_scheduler_accepts(
    kube_scheduler: ControlPlane,
) -> None:
    pairs = accepted = 0
    for seed in range(CLUSTERS):
        found = compare(kube_scheduler, seed)
        assert found.differences == [], f"seed {seed}"
        pairs += found.pairs
        accepted += found.accepted
    assert pairs == CLUSTERS * NODE_COUNT * JUDGED
    assert pairs // 10 < accepted < pairs - pairs // 10


def test_filters_that_forget_taints_are_caught(
    kube_scheduler: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(our_filters, "untolerated", lambda _pod, _node: None)
    monkeypatch.setattr(f"{__name__}.SURE_S", 0.5)
    differences = [one for seed in range(2) for one in compare(kube_scheduler, seed).differences]
    assert any("ours accepts, kube-scheduler rejects" in one for one in differences)
