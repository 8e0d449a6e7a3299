"""Leases of GPUs of which several pods have a part: joined, restored and completed."""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.names import (
    ALLOCATED_ANNOTATION,
    HOLDERS_ANNOTATION,
    INDICES_ANNOTATION,
)
from gpu_scheduler.kubernetes.objects import LEASES, NAMESPACES, Lease
from gpu_scheduler.kubernetes.scheduler.decision import Memory, Translation, make_decision
from gpu_scheduler.kubernetes.scheduler.loop import _Ahead
from gpu_scheduler.kubernetes.scheduler.objects_view import Objects
from gpu_scheduler.kubernetes.scheduler.repair import Repairs, find_repairs
from gpu_scheduler.kubernetes.scheduler.writer import Writer
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport
from tests.kubernetes_objects import (
    NAMESPACE,
    NOW,
    NOW_MS,
    Manifest,
    a_claim,
    a_gpu,
    a_lease,
    a_node,
    a_node_status,
    a_pod,
    meta,
    objects_of,
)

POLICY = preset("fair")
LEASE_NAMESPACE = "gpu-scheduler"
OLD_LEASE = "2026-05-03T12:00:00Z"
_KEPT = ("name", "namespace", "labels", "annotations")


class Cluster:
    """An API server in memory, and a writer of leases."""

    def __init__(self) -> None:
        self.client = ApiClient(FakeTransport(FakeApi()))
        self.writer = Writer(
            self.client,
            namespace=LEASE_NAMESPACE,
            identity="x",
            is_leader=lambda: True,
            now=lambda: NOW,
        )

    async def stored(self, lease: Manifest) -> Lease:
        """A lease as the API server keeps it."""
        for name in (LEASE_NAMESPACE, NAMESPACE):
            await self.client.create(NAMESPACES, {"metadata": {"name": name}})
        metadata = {k: v for k, v in lease["metadata"].items() if k in _KEPT}
        return await self.client.create(LEASES, {**lease, "metadata": metadata})

    async def holders(self) -> list[dict[str, Any]]:
        found = await self.client.get(LEASES, "gpu-n-0", LEASE_NAMESPACE)
        return list(json.loads(found.metadata.annotations[HOLDERS_ANNOTATION]))


def repairs(*manifests: Manifest) -> Repairs:
    objects = objects_of(*manifests)
    translation = Translation(objects, POLICY, NOW_MS, Memory())
    return find_repairs(objects, translation, now_ms=NOW_MS, incomplete_since_ms={})


def a_part(name: str = "part", **devices: Any) -> Manifest:
    return a_claim(name, devices={"count": 1, "exclusivity": "Shared", **devices})


def a_bound_pod(name: str, uuids: str) -> Manifest:
    told = {ALLOCATED_ANNOTATION: uuids, INDICES_ANNOTATION: "0"}
    return a_pod(name, claim="part", node="n", annotations=told)


# --- deadlines


def volumes() -> list[Manifest]:
    """A claim whose volume is made once the node is known."""
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": meta("data", NAMESPACE),
            "spec": {"storageClassName": "fast", "accessModes": ["ReadWriteOnce"]},
        },
        {
            "kind": "StorageClass",
            "metadata": meta("fast"),
            "provisioner": "csi.example.com",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    ]


def test_a_pod_that_joins_an_old_lease_may_wait_for_its_volume() -> None:
    """The age of the lease is that of its first holder, and not of this assignment."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    pod = a_pod("p", claim="part", volumes=[volume])
    lease = a_lease(pod, "n", 0, share_milli=500, start="s", attempt="0", since_ms=NOW_MS - 5_000)
    lease["spec"]["acquireTime"] = OLD_LEASE
    cluster = (a_node("n"), a_node_status("n", [a_gpu(0)]), a_part(fraction=0.5), *volumes())
    assert not repairs(*cluster, pod, lease).rollbacks


def test_the_last_holder_of_an_old_lease_is_still_bound_by_the_next_leader() -> None:
    pod = a_pod("p", claim="part")
    lease = a_lease(pod, "n", 0, share_milli=500, start="s", attempt="0", since_ms=NOW_MS - 5_000)
    lease["spec"]["acquireTime"] = OLD_LEASE
    found = repairs(a_node("n"), a_node_status("n", [a_gpu(0)]), a_part(fraction=0.5), pod, lease)
    assert [one.pod.metadata.name for one in found.completions] == ["p"]


# --- joins


def test_memory_of_a_gpu_is_not_given_beyond_its_size() -> None:
    """The decision was made before another scheduler gave most of the memory away."""

    async def main() -> None:
        nodes = (a_node("n", gpus=1), a_node_status("n", [a_gpu(0)]), a_part(memory="60Gi"))
        decision = make_decision(objects_of(*nodes, a_pod("p", claim="part")), POLICY, NOW_MS)
        cluster = Cluster()
        other = a_pod("other", claim="part")
        await cluster.stored(
            a_lease(other, "n", 0, share_milli=0, memory_mib=60 * 1024, uuid="GPU-n-0", start="t")
        )
        leases, pods = await cluster.writer.assign(decision.assignments[0])
        assert (leases, pods) == ([], [])
        assert [one["pod"] for one in await cluster.holders()] == ["other"]

    asyncio.run(main())


def test_leases_of_one_gpu_that_are_told_out_of_order_keep_all_holders() -> None:
    """Assignments that share a GPU are carried out at once, and the first may end last."""
    [cached] = objects_of(a_lease(a_pod("p"), "n", 0)).leases.values()

    def at(version: int) -> Lease:
        meta_now = replace(cached.metadata, resource_version=str(version))
        return replace(cached, metadata=meta_now)

    ahead = _Ahead(60.0)
    ahead.add_lease(at(8), 0.0)
    ahead.add_lease(at(7), 0.0)
    [shown] = ahead.merged(Objects(), 1.0).leases.values()
    assert shown.metadata.resource_version == "8"


# --- what is restored


SLICES = [{"uuid": f"MIG-{number}", "profile": "1g.10gb"} for number in range(3)]


def mig_cluster() -> tuple[Manifest, ...]:
    node = a_node_status("n", [a_gpu(0, mode="MIG", migSlices=SLICES)])
    return a_node("n", gpus=1), node, a_part(migProfile="1g.10gb")


def test_the_slices_of_a_restored_lease_are_not_given_again() -> None:
    async def main() -> None:
        pod = a_bound_pod("bound", "MIG-0,MIG-1")
        missing = repairs(*mig_cluster(), pod).missing
        assert [one.holder.uuid for one in missing] == ["MIG-0", "MIG-1"]
        cluster = Cluster()
        await cluster.stored(a_lease(pod, "n", 1))
        for one in missing:
            assert await cluster.writer.restore(one)
        lease = a_lease(pod, "n", 0)
        held = json.dumps(await cluster.holders())
        lease["metadata"]["annotations"][HOLDERS_ANNOTATION] = held
        assert not repairs(*mig_cluster(), pod, lease).missing
        pods = [a_pod(f"p{number}", claim="part") for number in range(3)]
        decision = make_decision(objects_of(*mig_cluster(), pod, lease, *pods), POLICY, NOW_MS)
        given = [one.devices[0].uuid for each in decision.assignments for one in each.pods]
        assert given == ["MIG-2"]

    asyncio.run(main())


def test_a_share_that_a_late_cache_does_not_show_is_not_restored_beside_itself() -> None:
    async def main() -> None:
        pod = a_bound_pod("bound", "GPU-n-0")
        nodes = (a_node("n", gpus=1), a_node_status("n", [a_gpu(0)]), a_part(fraction=0.25))
        [missing] = repairs(*nodes, pod).missing
        cluster = Cluster()
        await cluster.stored(
            a_lease(pod, "n", 0, share_milli=250, uuid="GPU-n-0", start="s", attempt="0")
        )
        assert await cluster.writer.restore(missing)
        assert len(await cluster.holders()) == 1

    asyncio.run(main())


def test_a_time_limit_beyond_what_kubernetes_accepts_becomes_the_longest() -> None:
    pod = a_pod("p", claim="part", node="n")
    lease = a_lease(pod, "n", 0)
    claim = a_claim("part", maxRunTimeSeconds=10**12)
    [limit] = repairs(a_node("n", gpus=1), claim, pod, lease).limits
    assert limit.seconds == 2**31 - 1
