"""A simulated cluster on virtual time, with schedulers that fail in every way a seed thinks of.

Real: the scheduler with its caches, leader election and client. Simulated: the API server, the
kubelets, the controllers that replace evicted pods, the clocks, and the network between. Faults
happen for the first two minutes; then all work has to be done, and nothing may be left over.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import structlog

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import Answer, ApiClient, Request, Stream
from gpu_scheduler.kubernetes.client.errors import KubernetesError, OutcomeUnknown, Unreachable
from gpu_scheduler.kubernetes.leader_election import LeaderElector
from gpu_scheduler.kubernetes.objects import PODS
from gpu_scheduler.kubernetes.scheduler.loop import LoopSettings, Scheduler
from gpu_scheduler.kubernetes.scheduler.repair import Deadlines
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults import virtual_loop
from tests.faults.virtual_loop import Endless, Part, VirtualLoop
from tests.kubernetes.faults.audit import Audit, Bounds, Stored
from tests.kubernetes_objects import (
    FIELDS,
    NAMESPACE,
    NOW,
    Manifest,
    a_claim,
    a_node,
    a_pod,
    an_owner,
)

LEASE_NAMESPACE = "gpu-scheduler"
POLICY = preset("fair")
FAULTS_S = 120.0
MOST_S = 1500.0
"""Longer than all deadlines and time-outs one after the other."""
LATEST_S = 40.0
"""A write that was delayed on its way arrives at most so late."""
SILENCE_S = 75.0
"""A watch that says nothing is noticed after that time."""
SETTINGS = LoopSettings(deadlines=Deadlines(gang_ms=30_000))
PREFIX_OF_PLURALS = {
    "/api/v1/nodes": "nodes",
    "/api/v1/pods": "pods",
    "/apis/coordination.k8s.io/v1/leases": "leases",
    "/apis/gpu.scheduling/v1/gpuclaims": "gpuclaims",
}
KINDS = ("kill", "freeze", "believe", "outage", "watch", "silence", "write", "late", "skew", "node")


@dataclass(frozen=True, kw_only=True)
class WorldResult:
    """What became of one world."""

    seed: int
    problems: tuple[str, ...]
    counts: Counter[str]
    virtual_s: float
    trace: tuple[str, ...] = ()


class LossyTransport(FakeTransport):
    """The way of one scheduler to the API server."""

    def __init__(self, world: "World", process: "Process") -> None:
        super().__init__(world.api)
        self.world = world
        self.process = process
        self.random = Random(f"{world.seed} {process.name} {process.lives}")
        self.lag_s = self.random.choice([0.0, 0.0, 0.05, 1.0])

    async def send(self, request: Request) -> Answer:
        world, random = self.world, self.random
        await asyncio.sleep(random.uniform(0.001, 0.01))
        if world.is_down:
            raise Unreachable(f"{request}: no connection")
        is_write = request.method != "GET"
        if not is_write or not world.is_faulty:
            return self.api.handle(request)
        if world.has("kill") and random.random() < 0.01:
            is_before = random.random() < 0.5
            answer = None if is_before else self.api.handle(request)
            world.kill(self.process)
            await asyncio.sleep(0)  # for ever: this process is dead
            return answer or Answer(status=500, headers={}, body=b"{}")
        if world.has("late") and random.random() < 0.04:
            world.note("late")
            world.loop.tell(None, random.uniform(0.1, LATEST_S), self.api.handle, request)
            await asyncio.sleep(random.uniform(0.1, request.timeout_seconds))
            raise OutcomeUnknown(f"{request}: no answer")
        if world.has("write") and random.random() < 0.1:
            return await self._fail(request)
        return self.api.handle(request)

    async def _fail(self, request: Request) -> Answer:
        self.world.note("write")
        match self.random.randrange(5):
            case 0:
                await asyncio.sleep(self.random.uniform(0.1, request.timeout_seconds))
                raise OutcomeUnknown(f"{request}: the request was lost")
            case 1:
                self.api.handle(request)
                await asyncio.sleep(self.random.uniform(0.1, request.timeout_seconds))
                raise OutcomeUnknown(f"{request}: the answer was lost")
            case 2:
                return Answer(status=self.random.choice([500, 503]), headers={}, body=b"{}")
            case 3:
                return Answer(status=429, headers={"retry-after": "1"}, body=b"{}")
            case _:
                await asyncio.sleep(self.random.uniform(0.1, 8.0))
                answer = self.api.handle(request)
                await asyncio.sleep(self.random.uniform(0.1, 8.0))
                return answer

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """A watch that is up to `lag_s` behind."""
        if self.world.is_down:
            raise Unreachable(f"{request}: no connection")
        async with super().stream(request) as stream:
            yield replace(stream, chunks=self._late(stream.chunks))

    async def _late(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if self.lag_s and self.world.is_faulty:
                await asyncio.sleep(self.random.uniform(0.0, self.lag_s))
            yield chunk


@dataclass(kw_only=True)
class Process:
    """A scheduler that is started again after each death."""

    name: str
    lives: int = 0
    part: Part = field(default_factory=lambda: Part(""))
    skew_s: float = 0.0
    pace: float = 1.0


class World:
    """One cluster, and what happens in it."""

    def __init__(self, seed: int, kinds: tuple[str, ...], *, keeps_trace: bool) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.kinds = kinds
        self.loop = VirtualLoop()
        self.api = FakeApi()
        self.api.now = self.now
        uids = count(1)
        uid_random = Random(f"uids {seed}")
        self.api.new_uid = lambda: f"{uid_random.getrandbits(32):08x}-{next(uids)}"
        self.client = ApiClient(FakeTransport(self.api))
        self.processes: list[Process] = []
        self.counts: Counter[str] = Counter()
        self.trace: list[str] | None = [] if keeps_trace else None
        self.is_down = False
        self.is_faulty = True
        self.audit = Audit(
            Bounds(
                taint_s=10.0
                + (LATEST_S if "write" in kinds else 0.0)
                + (LATEST_S if "late" in kinds else 0.0)
                + (SILENCE_S if "silence" in kinds else 0.0)
                + (80.0 if "outage" in kinds or "freeze" in kinds else 0.0)
            )
        )
        self._seen = 0
        self._pairs = 0
        """Pods with two GPUs that fit at once."""
        self._ends: dict[str, float] = {}
        self._tasks: dict[str, Manifest] = {}
        self._left: dict[str, int] = {}
        """How many pods of a task have to succeed still."""

    def has(self, kind: str) -> bool:
        return kind in self.kinds

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.loop.time())

    def note(self, kind: str, text: str = "") -> None:
        self.counts[kind] += 1
        if self.trace is not None:
            self.trace.append(f"{self.loop.time():8.2f} {kind} {text}")

    # --- schedulers

    def start(self, process: Process) -> None:
        process.lives += 1
        identity = f"{process.name}-{process.lives}"
        process.part = Part(identity)
        random = Random(f"{self.seed} {identity}")
        client = ApiClient(LossyTransport(self, process), random=random)
        believes = self.has("believe") and process.name == "a"
        # Another machine: its boot time is another one, and its clock is a little fast or slow.
        boot_s, pace = random.uniform(0.0, 1e6), process.pace
        elector = LeaderElector(
            client,
            name="gpu-scheduler",
            namespace=LEASE_NAMESPACE,
            identity=identity,
            on_elected=lambda _: scheduler.wake(),
            on_lost=lambda: None,
            clock=lambda: boot_s + self.loop.time() * pace,
            random=random,
        )
        scheduler = Scheduler(
            client,
            namespace=LEASE_NAMESPACE,
            identity=identity,
            policy=POLICY,
            is_leader=lambda: elector.is_leader or (believes and self.is_faulty),
            now=lambda: self.now() + timedelta(seconds=process.skew_s),
            settings=SETTINGS,
        )

        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(elector.run())
                tasks.create_task(scheduler.run())

        self.loop.start(process.part, work())

    def kill(self, process: Process) -> None:
        self.note("kill", process.part.name)
        self.loop.kill(process.part)
        self.loop.tell(None, self.random.uniform(0.2, 12.0), self.start, process)

    # --- the cluster

    async def build(self) -> None:
        for name in (NAMESPACE, LEASE_NAMESPACE):
            await self.create({"kind": "Namespace", "metadata": {"name": name}})
        for number in range(3):
            gpus = self.random.choice([2, 4])
            self._pairs += gpus // 2
            await self.create(a_node(f"n{number}", gpus=gpus))
        taint = {"key": "broken", "value": "yes", "effect": "NoSchedule"}
        await self.create(a_node("tainted", gpus=4, taints=[taint]))
        await self.create(a_node("cordoned", gpus=4, unschedulable=True))
        await self.create(
            a_claim("half", devices={"count": 1, "exclusivity": "Shared", "fraction": 0.5})
        )

    async def create(self, manifest: Manifest) -> None:
        resource = next(one for one in FIELDS.values() if one.kind == manifest["kind"])
        made = json.loads(json.dumps(manifest))
        for name in ("uid", "creationTimestamp"):
            made["metadata"].pop(name, None)
        await self.client.create(resource, made)

    def _of(self, plural: str) -> list[Manifest]:
        return [one for key, one in self.api.objects.items() if key[0] == plural]

    async def submit(self) -> None:
        """Single pods, parts of GPUs, urgent ones and gangs, in the first minute and a half."""
        random = self.random
        for number in range(random.randint(8, 16)):
            await asyncio.sleep(random.uniform(0.0, 8.0))
            name = f"t{number}"
            match random.randrange(6):
                case 0 | 1:
                    size, least = random.randint(2, 4), 2
                    claim = a_claim(
                        name,
                        devices={"count": random.choice([1, 2]) if size <= self._pairs else 1},
                        gang={"minMembers": random.choice([least, size])},
                    )
                    await self.create(claim)
                    made = a_pod(name, claim=name, owner=an_owner("Job", name))
                    self._left[name] = size
                case 2:
                    made, self._left[name] = a_pod(name, claim="half"), 1
                case 3:
                    made = a_pod(name, gpus=random.choice([1, 2]), priority=100_000)
                    self._left[name] = 1
                case _:
                    made, self._left[name] = a_pod(name, gpus=random.choice([1, 1, 2])), 1
            made["metadata"].setdefault("labels", {})["task"] = name
            self._tasks[name] = made
        self._tasks["end"] = {}

    async def controllers(self) -> None:
        """Keep as many pods of each task as have to succeed still."""
        made = count(1)
        while True:
            pods = Counter(
                pod["metadata"].get("labels", {}).get("task")
                for pod in self._of("/api/v1/pods")
                if pod["status"].get("phase") not in ("Succeeded", "Failed")
            )
            for name, template in list(self._tasks.items()):
                for _ in range(self._left.get(name, 0) - pods[name]):
                    pod = json.loads(json.dumps(template))
                    pod["metadata"]["name"] = f"{name}-{next(made)}"
                    await self.create(pod)
            await asyncio.sleep(1.0)

    async def kubelets(self) -> None:
        """Start what is bound, end it after its time, and delete what is to go after a grace."""
        random = Random(f"kubelets {self.seed}")
        while True:
            for pod in self._of("/api/v1/pods"):
                meta = pod["metadata"]
                phase = pod["status"].get("phase")
                if not pod["spec"].get("nodeName") or phase in ("Succeeded", "Failed"):
                    continue
                now, uid = self.loop.time(), meta["uid"]
                if meta.get("deletionTimestamp"):
                    end = self._ends.setdefault(f"grace {uid}", now + random.uniform(0.0, 8.0))
                    if now >= end:
                        with suppress(KubernetesError):
                            await self.client.delete(
                                PODS, meta["name"], meta["namespace"], uid=uid, grace_seconds=0
                            )
                elif phase == "Pending":
                    self._ends[uid] = now + random.uniform(2.0, 30.0)
                    await self._set_phase(pod, "Running")
                elif now >= self._ends[uid]:
                    failed = self.is_faulty and random.random() < 0.1
                    await self._set_phase(pod, "Failed" if failed else "Succeeded")
                    if not failed:
                        self._left[meta["labels"]["task"]] -= 1
            await asyncio.sleep(0.5)

    async def _set_phase(self, pod: Manifest, phase: str) -> None:
        meta = pod["metadata"]
        with suppress(KubernetesError):
            changes = {"metadata": {"uid": meta["uid"]}, "status": {"phase": phase}}
            await self.client.patch(
                PODS, meta["name"], changes, meta["namespace"], subresource="status"
            )

    # --- faults

    async def faults(self) -> None:
        makers: dict[str, Callable[[], Awaitable[None]]] = {
            "kill": self._kill_any,
            "freeze": self._freeze,
            "outage": self._outage,
            "watch": self._break_watches,
            "silence": self._silence,
            "skew": self._skew,
            "node": self._change_node,
        }
        chosen = [make for kind, make in makers.items() if self.has(kind)]
        end = self.loop.time() + FAULTS_S
        while self.loop.time() < end:
            await asyncio.sleep(self.random.uniform(0.0, 8.0))
            if chosen:
                await self.random.choice(chosen)()
        self.is_faulty = False

    async def _kill_any(self) -> None:
        process = self.random.choice(self.processes)
        if not process.part.is_dead:
            self.kill(process)

    async def _freeze(self) -> None:
        part = self.random.choice(self.processes).part
        if not part.is_dead and not part.is_frozen:
            self.note("freeze", part.name)
            self.loop.freeze(part)
            self.loop.tell(None, self.random.uniform(0.5, 45.0), self.loop.thaw, part)

    async def _outage(self) -> None:
        self.note("outage")
        self.is_down = True
        self.api.drop_watches()
        await asyncio.sleep(self.random.uniform(0.2, 15.0))
        self.is_down = False

    async def _break_watches(self) -> None:
        self.note("watch")
        self.random.choice([self.api.drop_watches, self.api.expire_watches])()
        if self.random.random() < 0.5:
            self.api.compact()

    async def _silence(self) -> None:
        self.note("silence")
        self.api.silence_watches()

    async def _skew(self) -> None:
        self.note("skew")
        self.random.choice(self.processes).skew_s = self.random.uniform(-400.0, 400.0)

    async def _change_node(self) -> None:
        name = f"n{self.random.randrange(3)}"
        self.note("node", name)
        flag = self.random.random() < 0.5
        taints = [{"key": "busy", "value": "yes", "effect": "NoSchedule"}] if flag else []
        await self.client.patch(
            FIELDS["nodes"],
            name,
            {"spec": {"taints": taints, "unschedulable": self.random.random() < 0.3}},
        )

    async def _heal_nodes(self) -> None:
        for number in range(3):
            changes = {"spec": {"taints": [], "unschedulable": False}}
            await self.client.patch(FIELDS["nodes"], f"n{number}", changes)

    # --- judging

    async def watch(self) -> None:
        """Show the audit every change."""
        while True:
            await self._show_changes()
            await asyncio.sleep(0.25)

    async def _show_changes(self) -> None:
        for change in self.api.history[self._seen :]:
            plural = PREFIX_OF_PLURALS.get(change.path)
            if plural is not None:
                self.audit.see(
                    Stored(
                        at=self.loop.time(),
                        plural=plural,
                        is_deleted=change.type == "DELETED",
                        object=change.object,
                    )
                )
        self._seen = len(self.api.history)

    def is_done(self) -> bool:
        is_submitted = "end" in self._tasks
        return is_submitted and not any(self._left.values()) and not self.leases()

    def _what_is_left(self) -> str:
        told = [
            f"{pod['metadata']['name']} ({condition['message']})"
            for pod in self._of("/api/v1/pods")
            for condition in pod["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]
        left = {name: number for name, number in self._left.items() if number}
        return f"left at the end: of tasks {left}, leases {self.leases()}, waiting {told}"

    def leases(self) -> list[str]:
        return [
            one["metadata"]["name"]
            for one in self._of("/apis/coordination.k8s.io/v1/leases")
            if one["metadata"]["name"] != "gpu-scheduler"
        ]

    async def main(self) -> None:
        await self.build()
        for name in "ab" if self.random.random() < 0.8 else "abc":
            process = Process(name=name, pace=self.random.uniform(0.95, 1.05))
            self.processes.append(process)
            self.start(process)
        helpers = [
            asyncio.create_task(one)
            for one in (self.kubelets(), self.controllers(), self.submit(), self.watch())
        ]
        await self.faults()
        await self._heal_nodes()
        while not self.is_done():
            if self.loop.time() > MOST_S or any(one.done() and one.exception() for one in helpers):
                break
            await asyncio.sleep(1.0)
        for one in helpers:
            if one.done() and one.exception():
                raise one.exception()  # type: ignore[misc]
        await asyncio.sleep(0.5)
        await self._show_changes()
        if not self.is_done():
            self.audit.findings.append(self._what_is_left())
        self.audit.finish(self.loop.time())


def run_world(seed: int, kinds: tuple[str, ...] = (), *, keeps_trace: bool = False) -> WorldResult:
    """Run the world of a seed, with some kinds of faults (by default several by chance)."""
    if not kinds:
        random = Random(f"kinds {seed}")
        kinds = tuple(kind for kind in KINDS if random.random() < 0.5)
    world = World(seed, kinds, keeps_trace=keeps_trace)
    problems: list[str] = []
    with _quiet(), patch.object(virtual_loop, "MOST_CALLS", 5_000_000):
        try:
            world.loop.run(world.main())
        except Endless as error:
            problems.append(str(error))
    problems += world.audit.findings
    problems += [text for text in world.loop.failures if "CancelledError" not in text]
    world.counts["bound"] = world.audit.bindings
    return WorldResult(
        seed=seed,
        problems=tuple(problems),
        counts=world.counts,
        virtual_s=world.loop.time(),
        trace=tuple(world.trace or ()),
    )


@contextmanager
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory(), processors=[_drop])
    try:
        yield
    finally:
        structlog.configure(**before)


def _drop(*_: Any) -> Any:
    raise structlog.DropEvent
