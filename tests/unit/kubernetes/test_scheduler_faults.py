"""The scheduler against an API server in memory, on virtual time, killed and frozen at any write.

A checker outside of the scheduler reads the history of the API server: no GPU is given twice, no
pod is bound without the leases of its GPUs; and in the end no lease is left over and no gang is
half bound.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import Answer, ApiClient, Request, Stream
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.leader_election import LeaderElector
from gpu_scheduler.kubernetes.names import (
    ATTEMPT_ANNOTATION,
    HOLDERS_ANNOTATION,
    INDICES_ANNOTATION,
)
from gpu_scheduler.kubernetes.objects import LEASES, NODES, PODS, Lease, Pod
from gpu_scheduler.kubernetes.scheduler.devices import HeldDevice, Holder, lease_manifest
from gpu_scheduler.kubernetes.scheduler.loop import Scheduler
from gpu_scheduler.kubernetes.scheduler.repair import Release, Rollback
from gpu_scheduler.kubernetes.scheduler.writer import Writer
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import Part, VirtualLoop, part_name
from tests.kubernetes_objects import (
    FIELDS,
    NAMESPACE,
    NOW,
    Manifest,
    a_claim,
    a_node,
    a_pod,
)

# A process that is killed leaves coroutines that were never begun.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

LEASE_NAMESPACE = "gpu-scheduler"
POLICY = preset("fair")
LIVE = ("Pending", "Running")


class Stopping(FakeTransport):
    """Stops its process at one of its writes: before the API server hears of it, or after."""

    def __init__(self, api: FakeApi, random: Random) -> None:
        super().__init__(api)
        self.random = random
        self.writes = 0
        self.stop_at = 0
        self.after = False
        self.lag_seconds = 0.0
        self.stop: Callable[[], Awaitable[None]] | None = None

    async def send(self, request: Request) -> Answer:
        is_write = request.method != "GET" and not request.path.endswith("leases/gpu-scheduler")
        self.writes += is_write
        is_it = is_write and self.writes == self.stop_at and self.stop is not None
        self.latency_seconds = self.random.uniform(0.001, 0.01)
        if is_it and not self.after:
            await self.stop()  # type: ignore[misc]
        answer = await super().send(request)
        if is_it and self.after:
            await self.stop()  # type: ignore[misc]
        return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """A watch that is up to `lag_seconds` behind."""
        async with super().stream(request) as stream:
            yield replace(stream, chunks=self._late(stream.chunks))

    async def _late(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            await asyncio.sleep(self.random.uniform(0.0, self.lag_seconds))
            yield chunk


class World:
    """A cluster, its schedulers, and a kubelet that starts and ends pods."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop()
        self.api = FakeApi()
        self.api.now = self.now
        self.random = Random(seed)
        self.client = ApiClient(FakeTransport(self.api))
        self.parts: list[Part] = []
        self.tasks: list[asyncio.Task[Any]] = []

    def now(self) -> Any:
        return NOW + timedelta(seconds=self.loop.time())

    def scheduler(self, name: str, *, always_leads: bool = False) -> Stopping:
        """A scheduler process; by default one that stands for election."""
        part, transport = Part(name), Stopping(self.api, Random(f"{name} {self.random.random()}"))
        client = ApiClient(transport, random=Random(name))
        elector = LeaderElector(
            client,
            name="gpu-scheduler",
            namespace=LEASE_NAMESPACE,
            identity=name,
            on_elected=lambda _: scheduler.wake(),
            on_lost=lambda: None,
            clock=self.loop.time,
            random=Random(name),
        )
        scheduler = Scheduler(
            client,
            namespace=LEASE_NAMESPACE,
            identity=name,
            policy=POLICY,
            is_leader=(lambda: True) if always_leads else (lambda: elector.is_leader),
            now=self.now,
        )

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                if not always_leads:
                    tasks.create_task(elector.run())
                tasks.create_task(scheduler.run())

        self.parts.append(part)
        self.tasks.append(self.loop.start(part, work()))

        async def killed() -> None:
            self.loop.kill(part)
            await asyncio.sleep(1_000_000)

        async def frozen() -> None:
            self.loop.freeze(part)
            asyncio.get_running_loop().call_later(0, lambda: None)
            await asyncio.sleep(0)

        transport.stop = killed
        transport.killed, transport.frozen = killed, frozen  # type: ignore[attr-defined]
        transport.part = part  # type: ignore[attr-defined]
        return transport

    async def create(self, manifest: Manifest) -> None:
        resource = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
        made = json.loads(json.dumps(manifest))
        for field in ("uid", "creationTimestamp"):
            made["metadata"].pop(field, None)
        created = await self.client.create(resource, made)
        if manifest["kind"] == "Node":
            status = {"status": manifest["status"]}
            await self.client.patch(resource, created.metadata.name, status, subresource="status")

    async def set_status(self, manifest: Manifest) -> None:
        """The status of an object, which a create leaves out."""
        resource = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
        name, namespace = manifest["metadata"]["name"], manifest["metadata"].get("namespace", "")
        status = {"status": manifest["status"]}
        await self.client.patch(resource, name, status, namespace, subresource="status")

    async def kubelet(self) -> None:
        """Start what is bound, and end what is to be deleted."""
        while True:
            for (path, namespace, name), pod in list(self.api.objects.items()):
                if path != "/api/v1/pods" or not pod["spec"].get("nodeName"):
                    continue
                with suppress(KubernetesError):
                    if pod["metadata"].get("deletionTimestamp"):
                        await self.client.delete(PODS, name, namespace, grace_seconds=0)
                    elif pod["status"].get("phase") == "Pending":
                        changes = {"status": {"phase": "Running"}}
                        await self.client.patch(
                            PODS, name, changes, namespace, subresource="status"
                        )
            await asyncio.sleep(0.2)

    def pods(self) -> dict[str, Manifest]:
        return {
            name: one for (path, _, name), one in self.api.objects.items() if path == "/api/v1/pods"
        }

    def bound(self) -> set[str]:
        return {name for name, pod in self.pods().items() if pod["spec"].get("nodeName")}

    async def until(self, condition: Callable[[], bool], seconds: float = 200.0) -> None:
        end = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < end, f"still waiting; bound: {sorted(self.bound())}"
            await asyncio.sleep(0.1)


def indices(pod: Manifest) -> list[int]:
    told = pod["metadata"].get("annotations", {}).get(INDICES_ANNOTATION, "")
    return [int(one) for one in told.split(",") if one]


def check_history(api: FakeApi) -> None:
    """Replay every change: a GPU has one live pod, which has the lease when it is bound."""
    pods: dict[str, Manifest] = {}
    leases: dict[str, Manifest] = {}
    for change in api.history:
        meta = change.object["metadata"]
        if change.path.endswith("/leases"):
            if change.type == "DELETED":
                leases.pop(meta["name"], None)
            else:
                leases[meta["name"]] = change.object
            continue
        if change.path != "/api/v1/pods":
            continue
        uid = meta["uid"]
        if change.type == "DELETED":
            pods.pop(uid, None)
            continue
        was_bound = uid in pods and pods[uid]["spec"].get("nodeName")
        pods[uid] = change.object
        node = change.object["spec"].get("nodeName")
        if not node or was_bound:
            continue
        for index in indices(change.object):
            lease = leases.get(f"gpu-{node}-{index}")
            assert lease is not None, f"{meta['name']} was bound without the lease of GPU {index}"
            holders = json.loads(lease["metadata"]["annotations"][HOLDERS_ANNOTATION])
            assert uid in {one["uid"] for one in holders}, f"{meta['name']} has another's GPU"
        taken: dict[tuple[str, int], str] = {}
        for pod in pods.values():
            if pod["spec"].get("nodeName") and pod["status"].get("phase") in LIVE:
                for index in indices(pod):
                    place = (pod["spec"]["nodeName"], index)
                    other = taken.setdefault(place, pod["metadata"]["name"])
                    assert other == pod["metadata"]["name"], f"{place} was given twice"


def check_end(world: World) -> None:
    """Nothing is left over: leases are exactly those of bound pods, and the gang is whole."""
    pods = world.pods()
    held = {
        (one["metadata"]["name"], holder["pod"])
        for (path, _, _), one in world.api.objects.items()
        if path.endswith("/leases") and "holders" in str(one["metadata"].get("annotations"))
        for holder in json.loads(one["metadata"]["annotations"][HOLDERS_ANNOTATION])
    }
    wanted = {
        (f"gpu-{pod['spec']['nodeName']}-{index}", name)
        for name, pod in pods.items()
        if pod["spec"].get("nodeName")
        for index in indices(pod)
    }
    assert held == wanted
    workers = [name for name in pods if name.startswith("w")]
    assert len([name for name in workers if name in world.bound()]) in (0, len(workers))


async def cluster(world: World) -> None:
    """Two nodes of 4 GPUs; a gang of three pods with 2 GPUs each, and single pods."""
    for name in (NAMESPACE, LEASE_NAMESPACE):
        await world.create({"kind": "Namespace", "metadata": {"name": name}})
    for name in ("a", "b"):
        await world.create(a_node(name, gpus=4))
    await world.create(a_claim("train", devices={"count": 2}, gang={"minMembers": 3}))
    for number in range(3):
        await world.create(a_pod(f"w{number}", claim="train"))
    await world.create(a_pod("single", gpus=1, priority=10))


async def life(world: World) -> None:
    """The pods are bound; then an urgent one needs the GPUs of others."""
    await world.until(lambda: world.bound() >= {"w0", "w1", "w2", "single"})
    await world.create(a_pod("urgent", gpus=3, priority=1_000_000))
    await world.until(lambda: "urgent" in world.bound())


def play(
    world: World, prepare: Callable[[], None], *, ends: Callable[[World], Awaitable[None]] = life
) -> None:
    async def main() -> None:
        await cluster(world)
        prepare()
        kubelet = asyncio.create_task(world.kubelet())
        await ends(world)
        # Longer than every deadline for what may be half done.
        await asyncio.sleep(400)
        kubelet.cancel()
        for task in world.tasks:
            task.cancel()

    world.loop.run(main())
    check_history(world.api)
    check_end(world)


def writes_without_faults() -> int:
    world = World()
    first: list[Stopping] = []
    play(world, lambda: first.append(world.scheduler("first")))
    return first[0].writes


def test_pods_are_bound_and_preempted_without_faults() -> None:
    assert writes_without_faults() > 15


def test_pods_are_bound_while_reports_are_slow() -> None:
    world = World()

    def prepare() -> None:
        def is_report(request: Request) -> bool:
            return request.path.endswith(("/events", "/status")) and bool(part_name())

        world.api.faults.append(Fault(matches=is_report, times=1000, delay_seconds=29.0))
        world.scheduler("first")

    async def soon(world: World) -> None:
        await world.until(lambda: world.bound() >= {"w0", "w1", "w2", "single"}, seconds=10.0)

    play(world, prepare, ends=soon)


def test_pods_of_a_gang_that_is_being_created_are_not_told_that_others_are_missing() -> None:
    """They are told when the others are missing still after a while."""
    world = World()

    def told(name: str) -> list[str]:
        found = world.pods()[name].get("status", {}).get("conditions", ())
        return [one["message"] for one in found if one["type"] == "PodScheduled"]

    async def main() -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await world.create({"kind": "Namespace", "metadata": {"name": name}})
        await world.create(a_node("a", gpus=1))
        await world.create(a_claim("train", gang={"minMembers": 3}))
        world.scheduler("first", always_leads=True)
        for number in range(2):
            await world.create(a_pod(f"w{number}", claim="train"))
            await asyncio.sleep(0.5)
        assert not told("w0")
        await world.until(lambda: bool(told("w0")) and bool(told("w1")), seconds=10.0)
        assert "2 of the 3 pods" in told("w1")[0]
        for task in world.tasks:
            task.cancel()

    world.loop.run(main())


def test_a_claim_tells_its_gpus_right_after_the_binding() -> None:
    """Also while the scheduler does not see its own Binding yet."""
    world = World()

    def status() -> Manifest:
        found: Manifest = world.api.objects["/apis/gpu.scheduling/v1/gpuclaims", NAMESPACE, "one"]
        return found.get("status", {})

    async def main() -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await world.create({"kind": "Namespace", "metadata": {"name": name}})
        await world.create(a_node("a", gpus=1))
        await world.create(a_claim("one"))
        await world.create(a_pod("single", claim="one"))
        world.scheduler("first", always_leads=True).lag_seconds = 60.0
        await world.until(lambda: world.bound() == {"single"})
        await world.until(lambda: status().get("phase") == "Scheduled", seconds=0.5)
        assert (status()["node"], status()["gpus"]) == ("a", "0")

    world.loop.run(main())


def stopped_at(number: int, *, after: bool, freezes: bool, believes: bool = False) -> World:
    """The leader is killed, or frozen for a minute, at one of its writes; a standby follows.

    With `believes` the frozen one goes on as if it still led.
    """
    world = World(seed=number)

    def prepare() -> None:
        first = world.scheduler("first", always_leads=believes)
        first.stop_at, first.after = number, after
        if freezes:
            first.stop = first.frozen  # type: ignore[attr-defined]
            world.loop.call_later(
                60.0,
                lambda: world.loop.thaw(first.part),  # type: ignore[attr-defined]
            )
        world.loop.call_later(1.0, lambda: world.scheduler("second", always_leads=believes))

    play(world, prepare)
    return world


@pytest.mark.parametrize("number", range(1, 30, 4))
def test_the_next_leader_finishes_what_a_killed_one_began(number: int) -> None:
    stopped_at(number, after=number % 8 == 1, freezes=False)


def test_pods_that_the_next_leader_binds_get_their_event() -> None:
    one_of_the_bindings = 10
    world = World(seed=one_of_the_bindings)
    before: set[str] = set()

    def prepare() -> None:
        first = world.scheduler("first")
        first.stop_at = one_of_the_bindings
        kill = first.stop

        async def stop() -> None:
            before.update(world.bound())
            assert kill is not None
            await kill()

        first.stop = stop
        world.loop.call_later(1.0, lambda: world.scheduler("second"))

    play(world, prepare)
    told = {
        one["involvedObject"]["name"]: one["message"]
        for (path, _, _), one in world.api.objects.items()
        if path == "/api/v1/events" and one["reason"] == "Scheduled"
    }
    by_the_next = {"w0", "w1", "w2", "single"} - before
    assert by_the_next
    assert by_the_next <= told.keys()
    assert all(message.startswith("assigned to GPU ") for message in told.values())


@pytest.mark.parametrize("number", range(2, 30, 4))
def test_a_frozen_leader_does_no_harm_when_it_thaws(number: int) -> None:
    stopped_at(number, after=number % 8 == 2, freezes=True)


@pytest.mark.parametrize("number", range(1, 16, 3))
def test_a_frozen_leader_that_believes_to_lead_does_no_harm(number: int) -> None:
    stopped_at(number, after=True, freezes=True, believes=True)


@pytest.mark.slow
@pytest.mark.parametrize("freezes", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_a_stop_at_any_write_is_repaired(after: bool, freezes: bool) -> None:
    for number in range(1, 60, 2):
        stopped_at(number, after=after, freezes=freezes)


@pytest.mark.parametrize("seed", range(2))
def test_two_schedulers_that_both_believe_to_lead_never_share_a_gpu(seed: int) -> None:
    both_lead(seed)


@pytest.mark.parametrize("seed", range(3))
def test_lost_answers_conflicts_and_gaps_of_watches(seed: int) -> None:
    world = World(seed=seed)

    def prepare() -> None:
        def some(request: Request) -> bool:
            is_write = request.method != "GET" and not request.path.endswith("gpu-scheduler")
            return bool(part_name()) and is_write and world.random.random() < 0.15

        world.api.faults += [
            Fault(matches=some, times=8, loses_answer=True),
            Fault(matches=some, times=8, loses_request=True),
            Fault(
                matches=some,
                times=8,
                answer=Answer(status=500, headers={}, body=b"{}"),
            ),
        ]
        world.scheduler("first")
        world.scheduler("second")
        for seconds in (0.5, 1.0, 5.0, 20.0):
            world.loop.call_later(seconds, world.api.drop_watches)
            world.loop.call_later(seconds + 0.2, world.api.compact)

    play(world, prepare)


async def churn(world: World) -> None:
    """More pods than GPUs come and go; then one of the schedulers ends."""
    for number in range(10):
        await world.create(a_pod(f"p{number}", gpus=world.random.choice([1, 1, 2])))
        await asyncio.sleep(world.random.uniform(0.0, 0.4))
        gone = world.random.choice(sorted(world.pods()))
        if gone.startswith("p"):
            with suppress(KubernetesError):
                await world.client.delete(PODS, gone, NAMESPACE)
    world.loop.kill(world.parts[1])


def both_lead(seed: int) -> None:
    world = World(seed=seed)

    def prepare() -> None:
        for name in ("first", "second"):
            world.scheduler(name, always_leads=True).lag_seconds = 0.5

    play(world, prepare, ends=churn)


def late_write(number: int) -> None:
    """A write arrives after another leader has given the GPU to a second pod.

    The first write creates the lease, the second one binds the pod.
    """
    world = World()

    async def main() -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await world.create({"kind": "Namespace", "metadata": {"name": name}})
        await world.create(a_node("a", gpus=1))
        await world.create(a_pod("first", gpus=1))
        first = world.scheduler("old", always_leads=True)
        first.stop_at, first.stop = number, first.frozen  # type: ignore[attr-defined]
        await asyncio.sleep(5)
        assert first.writes == number
        await world.client.patch(NODES, "a", {"spec": {"unschedulable": True}})
        world.scheduler("new", always_leads=True)
        await asyncio.sleep(10)
        await world.create(a_pod("second", gpus=1, priority=1_000_000))
        await world.client.patch(NODES, "a", {"spec": {"unschedulable": False}})
        await world.until(lambda: world.bound() == {"second"})
        world.loop.thaw(first.part)  # type: ignore[attr-defined]
        await asyncio.sleep(30)
        for task in world.tasks:
            task.cancel()

    world.loop.run(main())
    check_history(world.api)
    assert world.bound() == {"second"}


def test_a_pod_that_has_ended_is_not_evicted_by_a_scheduler_that_is_behind() -> None:
    """Evicting it would delete it, and with it what its controller and its gang know."""
    world = World()

    async def main() -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await world.create({"kind": "Namespace", "metadata": {"name": name}})
        await world.create(a_node("a", gpus=1))
        await world.create(a_pod("low", gpus=1))
        scheduler = world.scheduler("first", always_leads=True)
        await world.until(lambda: world.bound() == {"low"})
        world.loop.kill(scheduler.part)  # type: ignore[attr-defined]
        seen = await world.client.get(PODS, "low", NAMESPACE)
        phase = {"status": {"phase": "Succeeded"}}
        await world.client.patch(PODS, "low", phase, NAMESPACE, subresource="status")
        writer = Writer(
            world.client, namespace=LEASE_NAMESPACE, identity="behind", is_leader=lambda: True
        )
        assert (await writer.evict([seen])).evicted == frozenset()
        assert "low" in world.pods()

    world.loop.run(main())


def test_a_scheduler_that_is_behind_does_not_set_an_old_attempt() -> None:
    """With it, a Binding that was given up would be possible again."""
    world = World()

    async def main() -> None:
        await world.create({"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await world.create(a_pod("single", gpus=1))
        writer = Writer(
            world.client, namespace=LEASE_NAMESPACE, identity="x", is_leader=lambda: True
        )

        async def give_up(pod: Pod) -> None:
            await writer.roll_back(Rollback(held=(), pods=(pod,), evicted=(), why="late"))

        first = await world.client.get(PODS, "single", NAMESPACE)
        await give_up(first)
        await give_up(await world.client.get(PODS, "single", NAMESPACE))
        await give_up(first)
        found = await world.client.get(PODS, "single", NAMESPACE)
        assert found.metadata.annotations[ATTEMPT_ANNOTATION] == "2"

    world.loop.run(main())


def test_a_late_release_leaves_the_lease_of_the_next_assignment() -> None:
    world = World()

    async def main() -> None:
        await world.create({"kind": "Namespace", "metadata": {"name": LEASE_NAMESPACE}})
        writer = Writer(
            world.client, namespace=LEASE_NAMESPACE, identity="x", is_leader=lambda: True
        )

        async def lease(start: str) -> HeldDevice:
            holder = Holder(uid="u", namespace=NAMESPACE, pod="single", start=start)
            manifest = lease_manifest(LEASE_NAMESPACE, "a", 0, [holder], NOW)
            made = await world.client.create(LEASES, manifest)
            return HeldDevice(node="a", index=0, holder=holder, lease=made)

        first = await lease("first")
        await writer.release(Release(held=first, is_gone=False))
        await lease("second")
        await writer.release(Release(held=first, is_gone=False))
        found = await world.client.get(LEASES, "gpu-a-0", LEASE_NAMESPACE)
        assert "second" in found.metadata.annotations[HOLDERS_ANNOTATION]

    world.loop.run(main())


@pytest.mark.parametrize("number", [1, 2])
def test_a_write_that_arrives_late_is_refused(number: int) -> None:
    late_write(number)


def test_the_checker_sees_a_missing_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(*_: object) -> bool:
        return True

    async def any_version(self: ApiClient, name: str, namespace: str, **given: Any) -> None:
        await bind(self, name, namespace, **{**given, "resource_version": ""})

    bind = ApiClient.bind
    monkeypatch.setattr(Writer, "_fence", careless)
    monkeypatch.setattr(ApiClient, "bind", any_version)
    with pytest.raises(AssertionError, match=r"another's GPU|given twice|without the lease"):
        late_write(2)


def test_the_checker_sees_a_scheduler_that_takes_leases_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def careless(_: Writer, lease: Lease, *_more: object) -> Lease:
        return lease

    monkeypatch.setattr(Writer, "_join", careless)
    with pytest.raises(AssertionError, match=r"another's GPU|given twice|without the lease"):
        late_write(1)
