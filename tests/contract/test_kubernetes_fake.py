"""Random requests get the same outcomes and events of the fake as of the real API server."""

import asyncio
import secrets
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.client import ApiClient, Selection
from gpu_scheduler.kubernetes.client.configuration import Configuration, read_kubeconfig
from gpu_scheduler.kubernetes.client.errors import KubernetesError, NotFound
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.objects import LEASES, PODS, Object, Resource
from tests.effort import examples
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.server import serve
from tests.kubernetes.lab.control_plane import ControlPlane

pytestmark = pytest.mark.slow

STEPS = 60
NAMESPACES = Resource(type=Object, kind="Namespace", plural="namespaces", is_namespaced=False)
ACCOUNTS = Resource(type=Object, kind="ServiceAccount", plural="serviceaccounts")
NAMES = ("a", "b", "c")
Outcome = tuple[str, str]


class Player:
    """Plays random requests of a seed, and notes what came of each."""

    def __init__(self, client: ApiClient, namespace: str, seed: int) -> None:
        self.client = client
        self.namespace = namespace
        self.random = Random(seed)
        self.outcomes: list[Outcome] = []
        self.seen: dict[tuple[str, str], list[Any]] = {}
        """All that was read of each object, so that old versions can be used again."""

    async def play(self) -> None:
        for _ in range(STEPS):
            resource = self.random.choice((PODS, LEASES))
            name = self.random.choice(NAMES)
            actions = [self.create, self.read, self.label, self.finalize, self.delete, self.apply]
            actions += [self.bind, self.bind, self.evict, self.gate] if resource is PODS else []
            actions += [self.replace, self.replace] if resource is LEASES else []
            action = self.random.choice(actions)
            await self.note(f"{action.__name__} {resource.kind} {name}", action(resource, name))

    async def note(self, what: str, call: Coroutine[Any, Any, Any]) -> None:
        try:
            found = await call
        except KubernetesError as error:
            self.outcomes.append((what, type(error).__name__))
            return
        self.outcomes.append((what, "done"))
        if isinstance(found, Object):
            kind = what.split()[1]
            self.seen.setdefault((kind, found.metadata.name), []).append(found)

    def known(self, resource: Resource[Any], name: str) -> Any:
        """Some version of an object that was read, perhaps of an earlier one of its name."""
        found = self.seen.get((resource.kind, name))
        if not found:
            raise NotFound("never read")
        return self.random.choice(found[-3:])

    async def create(self, resource: Resource[Any], name: str) -> Any:
        content: dict[str, Any] = {"metadata": {"name": name}}
        if resource is PODS:
            gates = [{"name": "gpu.scheduling/wait"}] if self.random.random() < 0.2 else []
            container = {"name": "main", "image": "busybox"}
            content["spec"] = {"containers": [container], "schedulingGates": gates}
        return await self.client.create(resource, content, self.namespace)

    async def read(self, resource: Resource[Any], name: str) -> Any:
        return await self.client.get(resource, name, self.namespace)

    async def label(self, resource: Resource[Any], name: str) -> Any:
        changes: dict[str, Any] = {"labels": {"x": self.random.choice(("1", "2", None))}}
        if self.random.random() < 0.5:
            known = self.known(resource, name)
            changes["resourceVersion"] = known.metadata.resource_version
        return await self.client.patch(resource, name, {"metadata": changes}, self.namespace)

    async def finalize(self, resource: Resource[Any], name: str) -> Any:
        finalizers = self.random.choice((None, None, ["gpu.scheduling/release"]))
        changes = {"metadata": {"finalizers": finalizers}}
        return await self.client.patch(resource, name, changes, self.namespace)

    async def apply(self, resource: Resource[Any], name: str) -> Any:
        manager, value = self.random.choice(("one", "two")), self.random.choice(("1", "2"))
        force = self.random.random() < 0.3
        if resource is PODS:
            await self.read(resource, name)  # a pod is not created by its labels alone
        content = {"metadata": {"labels": {"applied": value}}}
        return await self.client.apply(
            resource, name, content, self.namespace, field_manager=manager, force=force
        )

    async def delete(self, resource: Resource[Any], name: str) -> None:
        uid = self.known(resource, name).metadata.uid if self.random.random() < 0.5 else ""
        grace = self.random.choice((None, 0))
        await self.client.delete(resource, name, self.namespace, uid=uid, grace_seconds=grace)

    async def replace(self, resource: Resource[Any], name: str) -> Any:
        return await self.client.replace(resource, self.known(resource, name))

    async def bind(self, resource: Resource[Any], name: str) -> None:
        known = self.known(resource, name).metadata
        version = known.resource_version if self.random.random() < 0.5 else ""
        await self.client.bind(
            name,
            self.namespace,
            uid=known.uid,
            node="node-1",
            annotations={"gpu.scheduling/allocated": "1"},
            resource_version=version,
        )

    async def evict(self, resource: Resource[Any], name: str) -> None:
        await self.client.evict(name, self.namespace, uid=self.known(resource, name).metadata.uid)

    async def gate(self, resource: Resource[Any], name: str) -> Any:
        changes = {"spec": {"schedulingGates": None}}
        return await self.client.patch(resource, name, changes, self.namespace)


async def history(client: ApiClient, seed: int) -> dict[str, Any]:
    """What came of the requests of a seed: outcomes, events and the final objects."""
    namespace = f"random-{secrets.token_hex(4)}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    selection = Selection(namespace=namespace)
    await account_of(client, namespace)
    began = {one.kind: await client.list(one, selection) for one in (PODS, LEASES)}
    player = Player(client, namespace, seed)
    await player.play()
    told: dict[str, Any] = {"outcomes": player.outcomes}
    for resource in (PODS, LEASES):
        listing = await client.list(resource, selection)
        told[resource.plural] = [shown(one) for one in listing.items]
        # An object of a last name ends the watch.
        body: dict[str, Any] = {"metadata": {"name": "end"}}
        if resource is PODS:
            body["spec"] = {"containers": [{"name": "main", "image": "busybox"}]}
        await client.create(resource, body, namespace)
        events = []
        version = began[resource.kind].resource_version
        watch = client.watch(resource, selection, resource_version=version)
        async for event in watch:
            if event.object is not None:
                events.append((event.type, *shown(event.object)))
                if event.object.metadata.name == "end":
                    break
        await watch.aclose()
        told[f"events of {resource.plural}"] = events
    return told


def shown(one: Any) -> tuple[Any, ...]:
    """What must be the same on both sides."""
    meta = one.metadata
    return (
        meta.name,
        meta.labels,
        meta.annotations,
        meta.finalizers,
        meta.deletion_timestamp is not None,
        getattr(one.spec, "node_name", ""),
    )


async def account_of(client: ApiClient, namespace: str) -> None:
    """Wait until pods can be created in a new namespace; the fake needs no account."""
    if client._transport._configuration.server.startswith("http:"):  # type: ignore[attr-defined]
        return
    async with asyncio.timeout(60):
        while True:
            try:
                await client.get(ACCOUNTS, "default", namespace)
            except NotFound:
                await asyncio.sleep(0.05)
            else:
                return


def test_random_requests_have_the_same_outcomes(control_plane: ControlPlane) -> None:
    async def main(seed: int) -> None:
        async with connect(read_kubeconfig([control_plane.kubeconfig])) as real:
            expected = await history(real, seed)
        async with serve(FakeApi()) as url, connect(Configuration(server=url)) as fake:
            found = await history(fake, seed)
        for part, value in expected.items():
            assert found[part] == value, f"seed {seed}: {part}"

    for seed in range(examples(20)):
        asyncio.run(main(seed))
