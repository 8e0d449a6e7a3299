"""What a scheduler relies on in the Kubernetes API: the same of the fake as of kube-apiserver."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gpu_scheduler.kubernetes.client.client import ApiClient, Selection, WatchEvent
from gpu_scheduler.kubernetes.client.configuration import Configuration, read_kubeconfig
from gpu_scheduler.kubernetes.client.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    EvictionBlocked,
    Gone,
    Invalid,
    NotFound,
)
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.crds.claim import (
    GPU_CLAIMS,
    ClaimPhase,
    DeviceRequest,
    GpuClaim,
    GpuClaimSpec,
    GpuClaimStatus,
)
from gpu_scheduler.kubernetes.objects import (
    LEASES,
    NODES,
    PODS,
    Lease,
    LeaseSpec,
    Object,
    ObjectMeta,
    Pod,
    Resource,
)
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.server import serve
from tests.kubernetes.lab.control_plane import ControlPlane

DEADLINE_S = 60.0
DEFINITION = Path(__file__).parents[2] / "charts" / "gpu-scheduler" / "crds" / "gpuclaims.yaml"
NAMESPACES = Resource(type=Object, kind="Namespace", plural="namespaces", is_namespaced=False)
ACCOUNTS = Resource(type=Object, kind="ServiceAccount", plural="serviceaccounts")
BUDGETS = Resource(
    type=Object, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy"
)


@dataclass
class Cluster:
    """A client of an API server, and a namespace of the test's own there."""

    client: ApiClient
    namespace: str
    forget_history: Callable[[], None]
    """Lets the server drop old versions, as it does after some minutes."""

    async def a_pod(self, name: str, **changes: Any) -> Pod:
        return await self.client.create(PODS, pod(name, **changes), self.namespace)

    async def a_lease(self, name: str, holder: str = "us") -> Lease:
        spec = LeaseSpec(holder_identity=holder, lease_duration_seconds=15)
        lease = Lease(metadata=ObjectMeta(name=name), spec=spec)
        return await self.client.create(LEASES, lease, self.namespace)

    async def bind(self, bound: Pod, node: str = "node-1", **more: Any) -> None:
        name = bound.metadata.name
        uid = more.pop("uid", bound.metadata.uid)
        await self.client.bind(name, self.namespace, uid=uid, node=node, **more)

    async def pod(self, name: str) -> Pod:
        return await self.client.get(PODS, name, self.namespace)

    def selection(self, **more: str) -> Selection:
        return Selection(namespace=self.namespace, **more)


Scenario = Callable[[Cluster], Coroutine[Any, Any, None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=["fake", pytest.param("kube-apiserver", marks=pytest.mark.slow)])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scenario against an API server."""
    if request.param == "fake":
        return lambda scenario: asyncio.run(_on_fake(scenario))
    control_plane = request.getfixturevalue("control_plane")
    return lambda scenario: asyncio.run(_on_real(scenario, control_plane))


@pytest.fixture
def play_with_claims(request: pytest.FixtureRequest, play: Play) -> Play:
    """The same where GpuClaims are known."""
    if request.node.callspec.params["play"] != "fake":
        kubectl = request.getfixturevalue("control_plane").kubectl
        kubectl("apply", "--server-side", "-f", str(DEFINITION))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(DEFINITION))
    return play


async def _on_fake(scenario: Scenario) -> None:
    api = FakeApi()
    async with serve(api) as url, _cluster(Configuration(server=url), api.compact) as cluster:
        await scenario(cluster)


async def _on_real(scenario: Scenario, control_plane: ControlPlane) -> None:
    def restart() -> None:
        control_plane.kill("kube-apiserver")
        control_plane.start_api_server()

    async with _cluster(read_kubeconfig([control_plane.kubeconfig]), restart) as cluster:

        async def account_exists() -> bool:
            try:
                await cluster.client.get(ACCOUNTS, "default", cluster.namespace)
            except NotFound:
                return False
            return True

        await until(account_exists)
        await scenario(cluster)


@asynccontextmanager
async def _cluster(
    configuration: Configuration, forget_history: Callable[[], None]
) -> AsyncIterator[Cluster]:
    async with connect(configuration) as client, asyncio.timeout(DEADLINE_S):
        namespace = f"test-{secrets.token_hex(4)}"
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield Cluster(client, namespace, forget_history)


def pod(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    metadata: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": labels or {}, **(metadata or {})},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "containers": [{"name": "main", "image": "busybox"}],
            **spec,
        },
    }


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait for it; the deadline of the scenario ends a vain wait."""
    while not await condition():  # noqa: ASYNC110 - the other side is a server
        await asyncio.sleep(0.05)


async def events_of(
    cluster: Cluster, resource: Resource[Any], version: str, count: int, **selection: Any
) -> list[WatchEvent[Any]]:
    """The first events after a version, without bookmarks."""
    found: list[WatchEvent[Any]] = []
    watch = cluster.client.watch(resource, cluster.selection(**selection), resource_version=version)
    async for event in watch:
        if event.type != "BOOKMARK":
            found.append(event)
        if len(found) == count:
            break
    await watch.aclose()
    return found


def told(events: list[WatchEvent[Any]]) -> list[tuple[str, str]]:
    return [(event.type, event.object.metadata.name) for event in events]


# --- reading and creating


def test_a_created_object_has_identity_and_version(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        made = await cluster.a_pod("a", labels={"app": "x"})
        assert made.metadata.uid
        assert made.metadata.resource_version
        assert made.metadata.creation_timestamp is not None
        assert made.metadata.namespace == cluster.namespace
        assert made.metadata.labels == {"app": "x"}
        assert made.spec.scheduler_name == "gpu-scheduler"
        assert made.status.phase == "Pending"
        assert await cluster.pod("a") == made

    play(scenario)


def test_a_name_is_made_from_its_beginning(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        body = pod("")
        body["metadata"] = {"generateName": "worker-"}
        made = await cluster.client.create(PODS, body, cluster.namespace)
        assert made.metadata.name.startswith("worker-")
        assert len(made.metadata.name) > len("worker-")

    play(scenario)


def test_an_unknown_object_resource_or_namespace_is_not_found(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(NotFound):
            await cluster.pod("nothing")
        with pytest.raises(NotFound):
            await cluster.client.create(PODS, pod("a"), "no-such-namespace")
        nothing = Resource(type=Object, kind="Nothing", plural="nothings", group="no.such")
        with pytest.raises(NotFound):
            await cluster.client.get(nothing, "a", cluster.namespace)

    play(scenario)


def test_a_lease_is_created_only_once(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.a_lease("gpu-node-1-0", "first")
        with pytest.raises(AlreadyExists):
            await cluster.a_lease("gpu-node-1-0", "second")
        found = await cluster.client.get(LEASES, "gpu-node-1-0", cluster.namespace)
        assert found.spec.holder_identity == "first"

    play(scenario)


def test_an_invalid_object_is_refused_with_the_field(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(Invalid) as caught:
            await cluster.a_pod("a", containers=[])
        assert "spec.containers" in [cause.field for cause in caught.value.causes]
        with pytest.raises(Invalid) as caught:
            await cluster.a_pod("Not_A_Name")
        assert "metadata.name" in [cause.field for cause in caught.value.causes]

    play(scenario)


def test_a_list_in_pages_is_one_list(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        names = [f"gpu-{n:02}" for n in range(11)]
        for name in names:
            await cluster.a_lease(name)
        listing = await cluster.client.list(LEASES, cluster.selection(), page_size=4)
        assert [lease.metadata.name for lease in listing.items] == names
        await cluster.a_lease("later")
        (event,) = await events_of(cluster, LEASES, listing.resource_version, 1)
        assert told([event]) == [("ADDED", "later")]

    play(scenario)


def test_an_empty_list_has_a_version_too(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        listing = await cluster.client.list(PODS, cluster.selection())
        assert listing.items == []
        assert int(listing.resource_version) > 0

    play(scenario)


def test_selectors_by_field_and_label(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.a_pod("ours", labels={"app": "a", "tier": "x"})
        bound = await cluster.a_pod("bound", labels={"app": "b"})
        await cluster.a_pod("other", schedulerName="default-scheduler")
        await cluster.bind(bound)

        async def names(**selection: str) -> list[str]:
            found = await cluster.client.list(PODS, cluster.selection(**selection))
            return [one.metadata.name for one in found.items]

        queue = "spec.schedulerName=gpu-scheduler,spec.nodeName="
        assert await names(fields=queue) == ["ours"]
        assert await names(fields="spec.nodeName!=") == ["bound"]
        assert await names(fields="metadata.name=other") == ["other"]
        assert await names(fields="status.phase=Pending,spec.nodeName=node-1") == ["bound"]
        assert await names(labels="app") == ["bound", "ours"]
        assert await names(labels="!app") == ["other"]
        assert await names(labels="app=a") == ["ours"]
        assert await names(labels="app in (b, c)") == ["bound"]
        assert await names(labels="app!=b,tier") == ["ours"]
        assert await names(labels="app notin (a)") == ["bound", "other"]
        with pytest.raises(BadRequest):
            await names(fields="spec.priority=5")

    play(scenario)


# --- changing


def test_a_replacement_of_an_old_version_is_a_conflict(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client
        first = await cluster.a_lease("lock")
        spec = LeaseSpec(holder_identity="two", lease_duration_seconds=15)
        second = await client.replace(LEASES, Lease(metadata=first.metadata, spec=spec))
        assert second.metadata.resource_version != first.metadata.resource_version
        assert second.metadata.uid == first.metadata.uid
        spec = LeaseSpec(holder_identity="three", lease_duration_seconds=15)
        with pytest.raises(Conflict) as caught:
            await client.replace(LEASES, Lease(metadata=first.metadata, spec=spec))
        assert not isinstance(caught.value, AlreadyExists)
        found = await client.get(LEASES, "lock", cluster.namespace)
        assert found.spec.holder_identity == "two"

    play(scenario)


def test_a_write_without_a_change_keeps_the_version(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.a_lease("lock")
        again = await cluster.client.replace(LEASES, first)
        assert again.metadata.resource_version == first.metadata.resource_version

    play(scenario)


def test_a_merge_patch_changes_and_deletes_fields(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        made = await cluster.a_pod("a", labels={"keep": "1", "drop": "2"})
        changes: dict[str, Any] = {"metadata": {"labels": {"drop": None, "new": "3"}}}
        new = await cluster.client.patch(PODS, "a", changes, cluster.namespace)
        assert new.metadata.labels == {"keep": "1", "new": "3"}
        changes["metadata"]["resourceVersion"] = made.metadata.resource_version
        changes["metadata"]["labels"] = {"new": "4"}
        with pytest.raises(Conflict):
            await cluster.client.patch(PODS, "a", changes, cluster.namespace)

    play(scenario)


def test_a_status_is_written_only_by_its_subresource(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.a_pod("a")
        client = cluster.client
        waiting = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "8 GPUs requested, but the largest node has 4",
        }
        changes = {"metadata": {"labels": {"x": "y"}}, "status": {"conditions": [waiting]}}
        await client.patch(PODS, "a", changes, cluster.namespace)
        assert (await cluster.pod("a")).status.conditions == ()
        new = await client.patch(
            PODS,
            "a",
            {"metadata": {"labels": {"x": "z"}}, "status": {"conditions": [waiting]}},
            cluster.namespace,
            subresource="status",
        )
        assert new.status.conditions[0].message == waiting["message"]
        assert new.metadata.labels["x"] == "z"  # custom resources would ignore this here

    play(scenario)


def test_each_manager_owns_the_fields_that_it_applied(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        async def apply(manager: str, *, force: bool = False, **annotations: str) -> Lease:
            content = {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": "a"}}
            return await cluster.client.apply(
                LEASES, "lock", content, cluster.namespace, field_manager=manager, force=force
            )

        made = await apply("one", shared="1", mine="1")
        assert made.metadata.annotations == {"shared": "1", "mine": "1"}
        again = await apply("one", shared="1", mine="1")
        assert again.metadata.resource_version == made.metadata.resource_version
        with pytest.raises(Conflict) as caught:
            await apply("two", shared="2")
        assert caught.value.causes[0].reason == "FieldManagerConflict"
        assert "shared" in caught.value.causes[0].field
        taken = await apply("two", force=True, shared="2", other="2")
        assert taken.metadata.annotations == {"shared": "2", "mine": "1", "other": "2"}
        left = await apply("one")
        assert left.metadata.annotations == {"shared": "2", "other": "2"}

    play(scenario)


def test_an_ordinary_write_owns_what_it_changed(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.a_lease("lock")
        changes = {"metadata": {"annotations": {"note": "by hand"}}}
        await client.patch(LEASES, "lock", changes, namespace)
        content = {"metadata": {"annotations": {"note": "by us"}}}
        with pytest.raises(Conflict):
            await client.apply(LEASES, "lock", content, namespace, field_manager="us")
        new = await client.apply(LEASES, "lock", content, namespace, field_manager="us", force=True)
        assert new.metadata.annotations["note"] == "by us"

    play(scenario)


def test_an_applied_status_condition_is_found_by_its_type(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.a_pod("a")

        async def apply(manager: str, kind: str, status: str) -> Pod:
            content = {"status": {"conditions": [{"type": kind, "status": status}]}}
            return await cluster.client.apply(
                PODS, "a", content, cluster.namespace, field_manager=manager, subresource="status"
            )

        await apply("one", "gpu.scheduling/Healthy", "True")
        await apply("two", "gpu.scheduling/Cool", "True")
        new = await apply("one", "gpu.scheduling/Healthy", "False")
        found = {condition.type: condition.status for condition in new.status.conditions}
        assert found == {"gpu.scheduling/Healthy": "False", "gpu.scheduling/Cool": "True"}

    play(scenario)


# --- custom resources


def test_a_custom_resource_has_spec_and_status_apart(play_with_claims: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        wanted = GpuClaim(
            metadata=ObjectMeta(name="a", labels={"x": "1"}),
            spec=GpuClaimSpec(devices=DeviceRequest(count=2)),
            status=GpuClaimStatus(phase=ClaimPhase.RUNNING),
        )
        made = await client.create(GPU_CLAIMS, wanted, namespace)
        assert made.spec.devices.count == 2
        assert made.status.phase is None
        assert made.metadata.generation == 1

        other = structs.replace(
            made,
            metadata=structs.replace(made.metadata, labels={"x": "2"}),
            spec=GpuClaimSpec(devices=DeviceRequest(count=3)),
            status=GpuClaimStatus(phase=ClaimPhase.PENDING),
        )
        told = await client.replace(GPU_CLAIMS, other, subresource="status")
        assert told.status.phase is ClaimPhase.PENDING
        assert told.spec.devices.count == 2
        assert told.metadata.labels == {"x": "1"}
        assert told.metadata.generation == 1

        with pytest.raises(Conflict):
            await client.replace(GPU_CLAIMS, other)
        current = structs.replace(
            other,
            metadata=structs.replace(
                other.metadata, resource_version=told.metadata.resource_version
            ),
            status=GpuClaimStatus(),
        )
        changed = await client.replace(GPU_CLAIMS, current)
        assert changed.status.phase is ClaimPhase.PENDING
        assert changed.spec.devices.count == 3
        assert changed.metadata.labels == {"x": "2"}
        assert changed.metadata.generation == 2

    play_with_claims(scenario)


def test_two_writers_of_a_status_keep_their_own_conditions(play_with_claims: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        spec = GpuClaimSpec(devices=DeviceRequest())
        claim = GpuClaim(metadata=ObjectMeta(name="a"), spec=spec)
        await client.create(GPU_CLAIMS, claim, namespace)

        async def apply(manager: str, **status: Any) -> GpuClaim:
            return await client.apply(
                GPU_CLAIMS,
                "a",
                {"status": status},
                namespace,
                field_manager=manager,
                subresource="status",
            )

        def condition(kind: str) -> dict[str, str]:
            time = "2030-01-01T00:00:00Z"
            said = {"status": "True", "reason": "Fine", "message": "", "lastTransitionTime": time}
            return {"type": kind, **said}

        await apply("scheduler", phase="Pending", conditions=[condition("Scheduled")])
        both = await apply("agent", conditions=[condition("Healthy")])
        assert {one.type for one in both.status.conditions} == {"Scheduled", "Healthy"}
        left = await apply("scheduler", phase="Running", conditions=[])
        assert [one.type for one in left.status.conditions] == ["Healthy"]
        assert left.status.phase is ClaimPhase.RUNNING

    play_with_claims(scenario)


# --- deleting


def test_a_delete_can_be_bound_to_one_incarnation(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        lease = await cluster.a_lease("lock")
        with pytest.raises(Conflict):
            await client.delete(LEASES, "lock", namespace, uid="another")
        with pytest.raises(Conflict):
            await client.delete(LEASES, "lock", namespace, resource_version="1")
        await client.delete(LEASES, "lock", namespace, uid=lease.metadata.uid)
        with pytest.raises(NotFound):
            await client.delete(LEASES, "lock", namespace)

    play(scenario)


def test_an_object_with_a_finalizer_stays_until_that_is_removed(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.a_pod("a", metadata={"finalizers": ["gpu.scheduling/release"]})
        await client.delete(PODS, "a", namespace)
        found = await cluster.pod("a")
        assert found.metadata.deletion_timestamp is not None
        await client.patch(PODS, "a", {"metadata": {"finalizers": None}}, namespace)
        with pytest.raises(NotFound):
            await cluster.pod("a")

    play(scenario)


def test_what_belongs_to_a_deleted_object_is_deleted(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        owner = await cluster.a_pod("owner")
        reference = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner.metadata.uid}
        metadata = {"name": "gpu-node-1-0", "ownerReferences": [reference]}
        await client.create(LEASES, {"metadata": metadata}, namespace)
        await client.delete(PODS, "owner", namespace, propagation="Background")

        async def is_gone() -> bool:
            try:
                await client.get(LEASES, "gpu-node-1-0", namespace)
            except NotFound:
                return True
            return False

        await until(is_gone)

    play(scenario)


def test_a_pod_on_a_node_ends_with_grace(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.bind(await cluster.a_pod("a"))
        await client.delete(PODS, "a", namespace)
        found = await cluster.pod("a")
        assert found.metadata.deletion_timestamp is not None
        assert found.metadata.deletion_grace_period_seconds == 30
        await client.delete(PODS, "a", namespace, grace_seconds=0)
        with pytest.raises(NotFound):
            await cluster.pod("a")

    play(scenario)


# --- binding and evicting


def test_a_binding_writes_node_and_annotations_together(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        made = await cluster.a_pod("a", metadata={"annotations": {"before": "1"}})
        await cluster.bind(made, annotations={"gpu.scheduling/allocated": "3,5"})
        found = await cluster.pod("a")
        assert found.spec.node_name == "node-1"
        assert found.metadata.annotations == {"before": "1", "gpu.scheduling/allocated": "3,5"}
        (condition,) = found.status.conditions
        assert (condition.type, condition.status) == ("PodScheduled", "True")

    play(scenario)


def test_a_pod_is_bound_only_once(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        made = await cluster.a_pod("a")

        async def bind(node: str) -> bool:
            try:
                await cluster.bind(made, node)
            except Conflict:
                return False
            return True

        outcomes = await asyncio.gather(*(bind(f"node-{n}") for n in range(8)))
        assert outcomes.count(True) == 1
        found = await cluster.pod("a")
        assert found.spec.node_name == f"node-{outcomes.index(True)}"

    play(scenario)


def test_a_binding_needs_the_same_pod_and_version(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        made = await cluster.a_pod("a")
        with pytest.raises(Conflict):
            await cluster.bind(made, uid="another")
        changes = {"metadata": {"labels": {"x": "y"}}}
        await cluster.client.patch(PODS, "a", changes, cluster.namespace)
        with pytest.raises(Conflict):
            await cluster.bind(made, resource_version=made.metadata.resource_version)
        assert (await cluster.pod("a")).spec.node_name == ""
        with pytest.raises(NotFound):
            await cluster.client.bind("nothing", cluster.namespace, uid="x", node="node-1")

    play(scenario)


def test_a_gated_or_deleted_pod_is_not_bound(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        gated = await cluster.a_pod("gated", schedulingGates=[{"name": "gpu.scheduling/wait"}])
        with pytest.raises(Conflict):
            await cluster.bind(gated)
        going = await cluster.a_pod("going", metadata={"finalizers": ["gpu.scheduling/release"]})
        await cluster.client.delete(PODS, "going", cluster.namespace)
        with pytest.raises(Conflict):
            await cluster.bind(going)

    play(scenario)


def test_an_evicted_pod_is_deleted(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        made = await cluster.a_pod("a")
        with pytest.raises(Conflict):
            await client.evict("a", namespace, uid="another")
        await client.evict("a", namespace, uid=made.metadata.uid)
        with pytest.raises(NotFound):
            await cluster.pod("a")
        with pytest.raises(NotFound):
            await client.evict("a", namespace)

    play(scenario)


def test_an_eviction_can_name_the_version_of_the_pod(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        old = await cluster.a_pod("a")
        await cluster.bind(old)
        ended = {"status": {"phase": "Succeeded"}}
        new = await client.patch(PODS, "a", ended, namespace, subresource="status")
        with pytest.raises(Conflict):
            await client.evict("a", namespace, resource_version=old.metadata.resource_version)
        assert (await cluster.pod("a")).metadata.deletion_timestamp is None
        await client.evict("a", namespace, resource_version=new.metadata.resource_version)
        with pytest.raises(NotFound):
            await cluster.pod("a")

    play(scenario)


def test_an_eviction_that_names_the_version_ends_a_running_pod(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.bind(await cluster.a_pod("a"))
        running = {"status": {"phase": "Running"}}
        pod = await client.patch(PODS, "a", running, namespace, subresource="status")
        await client.evict("a", namespace, resource_version=pod.metadata.resource_version)
        assert (await cluster.pod("a")).metadata.deletion_timestamp is not None

    play(scenario)


def test_a_disruption_budget_blocks_an_eviction(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.bind(await cluster.a_pod("a", labels={"app": "x"}))
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await client.patch(PODS, "a", {"status": ready}, namespace, subresource="status")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}
        await client.create(BUDGETS, {"metadata": {"name": "one"}, "spec": spec}, namespace)
        with pytest.raises(EvictionBlocked):
            await client.evict("a", namespace)
        assert (await cluster.pod("a")).metadata.deletion_timestamp is None

    play(scenario)


# --- watching


def test_a_watch_continues_where_the_list_ended(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        await cluster.a_lease("before")
        listing = await client.list(LEASES, cluster.selection())
        await cluster.a_lease("a")
        await client.patch(LEASES, "before", {"metadata": {"labels": {"x": "y"}}}, namespace)
        await client.delete(LEASES, "a", namespace)
        events = await events_of(cluster, LEASES, listing.resource_version, 3)
        assert told(events) == [("ADDED", "a"), ("MODIFIED", "before"), ("DELETED", "a")]
        versions = [int(event.resource_version) for event in events]
        assert versions == sorted(set(versions))
        # Any event is a place from which to go on.
        later = await events_of(cluster, LEASES, events[0].resource_version, 2)
        assert told(later) == told(events[1:])

    play(scenario)


@pytest.mark.parametrize("grace_seconds", [None, 0])
def test_a_pod_is_marked_before_it_goes(play: Play, grace_seconds: int | None) -> None:
    async def scenario(cluster: Cluster) -> None:
        client, namespace = cluster.client, cluster.namespace
        listing = await client.list(PODS, cluster.selection())
        await cluster.a_pod("a")
        await client.delete(PODS, "a", namespace, grace_seconds=grace_seconds)
        events = await events_of(cluster, PODS, listing.resource_version, 3)
        assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        assert events[1].object.metadata.deletion_timestamp is not None

    play(scenario)


def test_an_object_that_leaves_the_selection_is_deleted_there(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        listing = await cluster.client.list(PODS, cluster.selection())
        made = await cluster.a_pod("a")
        await cluster.bind(made)
        version = listing.resource_version
        waiting = await events_of(cluster, PODS, version, 2, fields="spec.nodeName=")
        assert told(waiting) == [("ADDED", "a"), ("DELETED", "a")]
        bound = await events_of(cluster, PODS, version, 1, fields="spec.nodeName!=")
        assert told(bound) == [("ADDED", "a")]

    play(scenario)


def test_a_watch_from_a_version_too_old_is_gone(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        old = await cluster.a_lease("old")
        for n in range(3):
            await cluster.a_lease(f"gpu-{n}")
        cluster.forget_history()
        listing = await cluster.client.list(LEASES, cluster.selection())
        assert len(listing.items) == 4
        with pytest.raises(Gone):
            await events_of(cluster, LEASES, old.metadata.resource_version, 1)

    play(scenario)


def test_a_watch_ends_in_time_and_sends_a_bookmark_before(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        client = cluster.client
        listing = await client.list(LEASES, cluster.selection())
        watch = client.watch(
            LEASES,
            cluster.selection(),
            resource_version=listing.resource_version,
            lifetime_seconds=7,
        )

        async def collect() -> list[WatchEvent[Lease]]:
            return [event async for event in watch]

        collecting = asyncio.create_task(collect())
        # A change elsewhere moves the version on; the watch hears of that only by a bookmark.
        await asyncio.sleep(1)
        name = f"elsewhere-{secrets.token_hex(4)}"
        other = await client.create(LEASES, {"metadata": {"name": name}}, "default")
        events = await collecting
        assert {event.type for event in events} == {"BOOKMARK"}
        assert int(events[-1].resource_version) >= int(other.metadata.resource_version)

    play(scenario)


def test_a_watch_of_a_malformed_selector_is_refused(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(BadRequest):
            await events_of(cluster, PODS, "0", 1, fields="spec.priority=5")

    play(scenario)


def test_a_node_is_read_with_what_it_can_give(play: Play) -> None:
    async def scenario(cluster: Cluster) -> None:
        name = f"node-{secrets.token_hex(4)}"
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        await cluster.client.create(
            NODES,
            {
                "metadata": {"name": name, "labels": {"rack": "r1"}},
                "spec": {"taints": [{"key": "gpu", "value": "bad", "effect": "NoSchedule"}]},
                "status": {"capacity": amounts, "allocatable": amounts},
            },
        )
        node = await cluster.client.get(NODES, name)
        assert node.metadata.labels["rack"] == "r1"
        assert node.status.allocatable["nvidia.com/gpu"] == "8"
        assert ("gpu", "bad", "NoSchedule") in [
            (taint.key, taint.value, taint.effect) for taint in node.spec.taints
        ]
        await cluster.client.delete(NODES, name)

    play(scenario)
