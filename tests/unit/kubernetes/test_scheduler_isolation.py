"""One object that nothing can be decided with does not stop the scheduling of others."""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.scheduler import queues, workloads
from gpu_scheduler.kubernetes.scheduler.loop import Scheduler
from gpu_scheduler.model.job import Job
from tests.effort import examples
from tests.fakes.kubernetes.api import Change, FakeApi
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import VirtualLoop
from tests.kubernetes_objects import (
    FIELDS,
    NAMESPACE,
    NOW,
    Manifest,
    a_claim,
    a_device_class,
    a_dra_node,
    a_gpu,
    a_lease,
    a_node,
    a_node_status,
    a_pod,
    a_queue,
    a_reservation,
    a_resource_claim,
    meta,
)

LEASES_IN = "gpu-scheduler"
VICTIM, GOOD = {"kubernetes.io/hostname": "victim"}, {"kubernetes.io/hostname": "good"}
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**30,
    1.5,
    "",
    "x",
    "-1",
    "1e999999999",
    "9" * 400,
    "\u0000",
    "2026-13-45T99:99:99Z",
    [],
    {},
    [None],
    [{}],
    {"x": None},
    {"": {"": [[]]}},
)


class World:
    """An API server that stores anything, and a scheduler that leads."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.api = FakeApi()
        self.api.now = lambda: NOW + timedelta(seconds=self.loop.time())
        self.scheduler: Scheduler | None = None

    def store(self, manifest: Manifest) -> Manifest:
        resource = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
        path = resource.path()
        stored = self.api._store(path, json.loads(json.dumps(manifest)))
        if "uid" in manifest["metadata"]:
            stored["metadata"]["uid"] = manifest["metadata"]["uid"]
        return stored

    def change(self, manifest: Manifest, new: Manifest) -> None:
        """Put anything in the place of an object, and tell the watches."""
        path = next(one for one in FIELDS.values() if one.kind == manifest["kind"]).path()
        self.api.version += 1
        new["metadata"]["resourceVersion"] = str(self.api.version)
        meta = new["metadata"]
        old = self.api.objects[path, meta.get("namespace", ""), meta["name"]]
        self.api.objects[path, meta.get("namespace", ""), meta["name"]] = new
        self.api._publish(Change(self.api.version, path, "MODIFIED", new, old))

    def pod(self, name: str, namespace: str = NAMESPACE) -> Manifest:
        found: Manifest = self.api.objects["/api/v1/pods", namespace, name]
        return found

    def is_bound(self, name: str, namespace: str = NAMESPACE) -> bool:
        return bool(self.pod(name, namespace)["spec"].get("nodeName"))

    def events(self, reason: str) -> list[Manifest]:
        return [
            one
            for (path, _, _), one in self.api.objects.items()
            if path == "/api/v1/events" and one["reason"] == reason
        ]

    async def until(self, condition: Callable[[], bool], seconds: float = 300.0) -> None:
        end = self.loop.time() + seconds
        while not condition():
            assert self.loop.time() < end, "the innocent pod still waits"
            await asyncio.sleep(0.1)

    def start(self) -> "asyncio.Task[None]":
        self.scheduler = Scheduler(
            ApiClient(FakeTransport(self.api)),
            namespace=LEASES_IN,
            identity="s",
            policy=preset("fair"),
            is_leader=lambda: True,
            now=self.api.now,
        )
        return asyncio.create_task(self.scheduler.run())

    def cluster(self) -> list[Manifest]:
        """A node with an innocent pod, and one of each kind of object that may turn hostile."""
        for name in (NAMESPACE, LEASES_IN, "other", "team"):
            self.store({"kind": "Namespace", "metadata": {"name": name}})
        self.store(a_node("good", gpus=4))
        bound = a_pod(
            "bound", node="victim", gpus=1, annotations={"gpu.scheduling/gpu-indices": "0"}
        )
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        gang = {"devices": {"count": 1}, "gang": {"minMembers": 2}}
        node, status, resource_slice = a_dra_node("victim", 2)
        made = [
            node,
            status,
            resource_slice,
            bound,
            a_lease(bound, "victim", 0),
            a_pod("waiting", gpus=1, nodeSelector=VICTIM, volumes=[volume]),
            a_pod("claiming", claim="one", nodeSelector=VICTIM, tolerations=[{"key": "a"}]),
            a_claim("one", nodeSelector=VICTIM, maxRunTimeSeconds=60),
            a_claim("gang", **gang),
            a_queue("team", namespaces=["team"], quotas=[{"guaranteed": 1}]),
            a_reservation("r", model="H100"),
            a_device_class(),
            a_resource_claim("rc"),
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
            {
                "kind": "PodDisruptionBudget",
                "metadata": meta("budget", NAMESPACE),
                "spec": {"selector": {"matchLabels": {"a": "b"}}, "minAvailable": 1},
                "status": {"disruptionsAllowed": 0},
            },
        ]
        for manifest in made:
            self.store(manifest)
        return made

    def innocent(self, name: str) -> None:
        self.store(a_pod(name, gpus=1, namespace="other", nodeSelector=GOOD))


def paths(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a manifest but those that identify it."""
    pairs: Any = ()
    if isinstance(content, dict):
        pairs = content.items()
    elif isinstance(content, list):
        pairs = enumerate(content)
    for key, value in pairs:
        place = (*at, key)
        if place == ("kind",) or place in {("metadata",), ("spec",), ("status",)}:
            if place != ("kind",):
                yield from paths(value, place)
            continue
        if place[0] == "metadata" and key in ("name", "namespace", "uid", "resourceVersion"):
            continue
        yield place
        yield from paths(value, place)


def with_value(manifest: Manifest, place: tuple[Any, ...], value: Any) -> Manifest:
    made = copy.deepcopy(manifest)
    inner: Any = made
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return made


PLACES = [
    (number, place)
    for number, manifest in enumerate(World().cluster())
    for place in paths(manifest)
]


@settings(max_examples=examples(120))
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(HOSTILE)), min_size=1, max_size=3
    ),
    is_seen_by_watch=st.booleans(),
)
def test_no_object_stops_the_pods_of_others(
    changes: list[tuple[tuple[int, tuple[Any, ...]], Any]], is_seen_by_watch: bool
) -> None:
    world = World()
    made = world.cluster()

    def turn_hostile() -> None:
        for (number, place), value in changes:
            manifest = made[number]
            stored = next(
                one
                for (_, namespace, name), one in world.api.objects.items()
                if one["kind"] == manifest["kind"]
                and name == manifest["metadata"]["name"]
                and namespace == manifest["metadata"].get("namespace", "")
            )
            try:
                world.change(manifest, with_value(stored, place, value))
            except (KeyError, IndexError, TypeError):
                continue  # the place was in what another change has replaced

    async def main() -> None:
        if not is_seen_by_watch:
            turn_hostile()
        running = world.start()
        world.innocent("first")
        await world.until(lambda: world.is_bound("first", "other"))
        if is_seen_by_watch:
            turn_hostile()
        world.innocent("second")
        await world.until(lambda: world.is_bound("second", "other"))
        assert world.scheduler is not None
        assert world.scheduler.counters.failed_cycles == 0
        assert not running.done()
        running.cancel()

    with capture_logs():  # to print a traceback takes seconds
        world.loop.run(main())
    assert world.loop.failures == []


def play(prepare: Callable[[World], None], check: Callable[[World], None]) -> None:
    """An innocent pod is bound beside what is prepared; then check what is told."""
    world = World()

    async def main() -> None:
        for name in (NAMESPACE, LEASES_IN, "other"):
            world.store({"kind": "Namespace", "metadata": {"name": name}})
        world.store(a_node("good", gpus=4))
        prepare(world)
        world.innocent("innocent")
        running = world.start()
        await world.until(lambda: world.is_bound("innocent", "other"))
        await asyncio.sleep(30)
        check(world)
        running.cancel()

    with capture_logs():  # to print a traceback takes seconds
        world.loop.run(main())


def condition(pod: Manifest) -> str:
    return str(next(one["message"] for one in pod["status"]["conditions"]))


def test_pod_with_a_quantity_that_is_none_waits_with_the_reason() -> None:
    def prepare(world: World) -> None:
        world.store(a_pod("odd", gpus=1, requests={"cpu": "much"}))

    def check(world: World) -> None:
        assert not world.is_bound("odd")
        assert "'much' is no quantity" in condition(world.pod("odd"))
        (event,) = world.events("SetAside")
        assert event["involvedObject"]["name"] == "odd"
        assert world.scheduler is not None
        assert world.scheduler.counters.set_aside == {"Pod": 1}

    play(prepare, check)


def test_node_with_a_bound_pod_that_cannot_be_read_takes_no_new_pods() -> None:
    """What the pod takes of the node is unknown."""

    def prepare(world: World) -> None:
        world.store(a_node("n", gpus=4))
        odd = a_pod("odd", node="n", scheduler="default-scheduler")
        odd["spec"]["containers"] = "many"
        world.store(odd)
        world.store(a_pod("next", gpus=1, nodeSelector={"kubernetes.io/hostname": "n"}))

    def check(world: World) -> None:
        assert not world.is_bound("next")
        (event,) = world.events("SetAside")
        assert "expected" in event["message"].lower()

    play(prepare, check)


def test_pods_of_a_claim_that_cannot_be_used_name_it() -> None:
    def prepare(world: World) -> None:
        world.store(a_claim("odd", devices={"count": "several"}))
        world.store(a_pod("p", claim="odd"))

    def check(world: World) -> None:
        assert "cannot judge its GpuClaim 'odd'" in condition(world.pod("p"))

    play(prepare, check)


@pytest.mark.parametrize("kind", ["pod", "claim", "queue"])
def test_object_that_makes_a_decision_fail_is_found(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a defect of the scheduler that only this object meets."""
    make_job, quota_node = workloads._JobMaker._job, queues._quota_node

    def job(self: Any, group: Any, *given: Any) -> Job:
        name = group.claim.metadata.name if kind == "claim" and group.claim else group.id
        if name.endswith("odd"):
            raise RuntimeError("a defect")
        return make_job(self, group, *given)

    def node(name: str, queue: Any) -> Any:
        if name == "odd":
            raise RuntimeError("a defect")
        return quota_node(name, queue)

    def prepare(world: World) -> None:
        world.store(a_node_status("good", [a_gpu(n, "good") for n in range(4)]))
        match kind:
            case "pod":
                world.store(a_pod("odd", gpus=1))
            case "claim":
                world.store(a_claim("odd"))
                world.store(a_pod("p", claim="odd"))
            case _:
                world.store(a_queue("odd", namespaces=[NAMESPACE]))

    def check(world: World) -> None:
        (event,) = world.events("SetAside")
        assert event["involvedObject"]["name"] == "odd"
        assert "a defect" in event["message"]
        if kind == "pod":
            assert "a defect" in condition(world.pod("odd"))

    monkeypatch.setattr(workloads._JobMaker, "_job", job)
    monkeypatch.setattr(queues, "_quota_node", node)
    play(prepare, check)


def test_object_is_tried_again_when_it_has_changed() -> None:
    world = World()

    async def main() -> None:
        for name in (NAMESPACE, LEASES_IN):
            world.store({"kind": "Namespace", "metadata": {"name": name}})
        world.store(a_node("good", gpus=4))
        odd = a_pod("odd", gpus=1)
        world.store({**odd, "spec": {**odd["spec"], "overhead": {"cpu": "much"}}})
        running = world.start()
        await world.until(lambda: bool(world.events("SetAside")))
        world.change(odd, with_value(world.pod("odd"), ("spec", "overhead"), {}))
        await world.until(lambda: world.is_bound("odd"))
        running.cancel()

    with capture_logs():  # to print a traceback takes seconds
        world.loop.run(main())


def test_nothing_is_written_when_the_term_has_changed_since_the_cycle_began() -> None:
    """Another process may have led in between, and caches may be behind it."""
    world = World()
    terms = iter([1])

    async def main() -> None:
        for name in (NAMESPACE, LEASES_IN):
            world.store({"kind": "Namespace", "metadata": {"name": name}})
        world.store(a_node("good", gpus=4))
        world.store(a_pod("p", gpus=1))
        running = world.start()
        assert world.scheduler is not None
        with patch.object(world.scheduler, "_term", lambda: next(terms, 2)):
            before = world.api.version
            await world.until(lambda: world.scheduler.counters.cycles > 0)  # type: ignore[union-attr]
            assert world.api.version == before
            await world.until(lambda: world.is_bound("p"))  # the next cycle is of the new term
        running.cancel()

    with capture_logs():  # to print a traceback takes seconds
        world.loop.run(main())
