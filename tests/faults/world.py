"""One simulated world from one seed: servers, nodes, network, users, faults, and the audit.

The same seed gives the same world, call by call. `python -m tests.faults SEED` shows one.
"""

from __future__ import annotations

import asyncio
import gc
import random as chance
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import structlog

from gpu_scheduler.agent.jobs.probes import ProbeTarget
from gpu_scheduler.control.jobs.queueing import NOT_BEGUN
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Allocation
from tests.faults.admins import AS_MANY_WORLDS, Admins, elastic_submissions, forbidden
from tests.faults.audit import Audit
from tests.faults.disk import Disk
from tests.faults.fault_schedule import FaultSchedule, FaultTargets
from tests.faults.final_check import check_final_state, is_settled
from tests.faults.hooks import Hooks
from tests.faults.network import Connection, Network
from tests.faults.node import Site, VirtualNode
from tests.faults.restore_check import RestoreCheck
from tests.faults.server import VirtualServer
from tests.faults.services import Watch, delete, have, unfit, wanted_services
from tests.faults.virtual_loop import Endless, VirtualLoop, part_name
from tests.faults.workload import TENANTS, Client, submissions_of

PATIENCE_S = 6 * 3600.0
"""After the last fault everything must have settled in this time, all of it virtual: five long
tasks of an array take hours if they run one by one, and each of them three times.
"""
LOOK_S = 5.0
IMPATIENT_S = 0.5
LATE_S = 120.0
"""For this long after the last fault late attempts are still cancelled."""
REST_S = 90.0
"""After this time all servers know the leader."""


_NO_EPHEMERAL_PORTS = SimpleNamespace(read_text=lambda encoding: "0 0")
"""In place of the kernel's port range, which differs between machines."""


@dataclass(slots=True)
class WorldResult:
    """The result of a world."""

    seed: int
    fingerprint: str
    problems: list[str]
    virtual_s: float
    calls: int
    counts: dict[str, int] = field(default_factory=dict)
    trace: list[str] | None = None

    @property
    def replay(self) -> str:
        """The command that replays it."""
        return f"python -m tests.faults {self.seed}"


class World:
    """All parts of one run."""

    def __init__(
        self,
        seed: int,
        directory: Path,
        *,
        keep_trace: bool = False,
        fault_kinds: tuple[str, ...] = (),
    ) -> None:
        self.seed = seed
        self.loop = VirtualLoop()
        self.audit = Audit(keep_trace=keep_trace)
        self.audit.now = self.loop.time
        self.audit.stored = self._stored
        self.audit.job_of = self._job_of
        self.audit.forbidden = partial(forbidden, self)
        size = self._random("size")
        self.network = Network(self.loop, self._random("network"))
        self.disk = Disk(self.loop, self._random("disk"))
        servers = size.choice((1, 1, 2, 3))
        self.servers = [
            VirtualServer(self.loop, self.audit, self.disk, f"s{number}", is_alone=servers == 1)
            for number in range(servers)
        ]
        self._turns: dict[str, int] = {}
        site = Site(self.loop, self.audit, directory, self._connect)
        gpus = size.choice((1, 2, 4))
        self.nodes = [
            VirtualNode(site, f"n{number}", gpus, self._random(f"node {number}"))
            for number in range(size.randint(1, 4))
        ]
        self.client = Client(
            self.loop,
            self.audit,
            self._random("people"),
            self._pick,
            self.network.delay_s,
            self._attempts_of,
        )
        everything = len(self.nodes) * gpus * 1000
        self.quotas = {TENANTS[0]: max(1000, everything // 2), TENANTS[1]: everything}
        self.audit.rules.tenant_milli.update(self.quotas)
        self.client.submissions = submissions_of(self._random("wishes"), len(self.nodes), gpus)
        chances = self._random("admins")
        self.admins = Admins(self, chances) if chances.random() < AS_MANY_WORLDS else None
        if self.admins is not None:
            self.client.submissions += elastic_submissions(chances, len(self.nodes), gpus)
        self.offers = wanted_services(self._random("services"), len(self.nodes), gpus)
        self.hooks = Hooks(self, self._random("hook"))
        services = Watch(self)
        self._looks = (services.look, self.hooks.look, RestoreCheck(self).look)
        self.disk.look = self._look
        self._admins: list[asyncio.Task[None]] = []
        place = FaultTargets(
            self.loop, self.network, self.disk, self.nodes, self.servers, self._confirm_dead
        )
        self.fault_schedule = FaultSchedule(
            place, self._random("weather"), self.audit.note, fault_kinds
        )
        self.network.chance = self.disk.chance = self.fault_schedule.chance
        self.faults_end_s = size.choice((30.0, 120.0, 360.0))

    def _random(self, name: str) -> Random:
        """Each part has its own random source, so that a change in one affects no other."""
        return Random(f"{self.seed} {name}")

    def _connect(self, node: str) -> AbstractAsyncContextManager[Connection]:
        """To the server of the part that runs now."""
        turn = self._turns[node] = self._turns.get(node, -1) + 1
        return self.network.connect(node, self.servers[turn % len(self.servers)])

    def _look(self) -> None:
        for look in self._looks:
            look()

    def _stored(self, allocation_id: str) -> Allocation | None:
        found = (a for a in self.disk.rows.allocations() if a.id == allocation_id)
        return next(found, None)

    def _attempts_of(self, job_id: str) -> frozenset[str]:
        rows = self.disk.rows
        ended = (attempt.allocation_id for attempt in rows.attempts(job_id))
        return frozenset((*ended, *(a.id for a in rows.allocations() if a.job_id == job_id)))

    def _job_of(self, job_id: str) -> Job | None:
        row = self.disk.rows.job(job_id)
        return None if row is None else row.job

    def _node(self) -> VirtualNode:
        """The node of the agent that runs now."""
        name = part_name().partition("/")[0]
        return next(node for node in self.nodes if node.name == name)

    def is_free(self, port: int) -> bool:
        """What an agent sees of a port of its node."""
        return not self._node().listens(port)

    async def check(self, asked: ProbeTarget) -> str:
        """The answer of a replica to its agent's probe."""
        node = self._node()
        await asyncio.sleep(0.002)
        return "" if node.listens(asked.port) else "connection refused"

    def _pick(self) -> VirtualServer:
        return self.client.random.choice(self.servers)

    async def live(self) -> None:
        """From the first start to the end of the last job."""
        for server in self.servers:
            server.machine.boot()
            server.start()
        for node in self.nodes:
            node.power_on()
        await self.client.set_up(self.quotas)
        self.fault_schedule.schedule(self.faults_end_s)
        people = self._start_users()
        hooks = self.loop.create_task(self.hooks.live())
        await asyncio.sleep(self.faults_end_s)
        await self._until(
            lambda: all(task.done() for task in people + self._admins) and not unfit(self)
        )
        for text in unfit(self):
            self.audit.problem(text)
        for offer in self.offers:
            await delete(self.client, offer)
        await self._until(lambda: is_settled(self))
        hooks.cancel()
        await asyncio.sleep(REST_S)
        check_final_state(self)
        self.hooks.check_final_state()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition holds, or the time is up."""
        give_up_s = self.loop.time() + PATIENCE_S
        while self.loop.time() < give_up_s:
            if condition():
                break
            await asyncio.sleep(LOOK_S)

    async def judged(self) -> None:
        """Run the world; the teardown afterwards is not checked."""
        await self.live()
        self.audit.is_closed = True

    def _confirm_dead(self, node: VirtualNode) -> None:
        self._admins.append(self.loop.create_task(self.client.confirm_dead(node)))

    def _start_users(self) -> list[asyncio.Task[None]]:
        times, more, client = self._random("times"), self._random("more times"), self.client
        tasks = []
        for submission in client.submissions:
            # Nothing more is drawn for later features, so that old seeds give the same worlds.
            random = times if submission.key.startswith("wish") else more
            at_s = random.uniform(1, self.faults_end_s)
            tasks.append(self.loop.create_task(client.submit(submission, at_s)))
            if random.random() < 0.2:
                tasks.append(
                    self.loop.create_task(client.cancel(submission, at_s + random.uniform(0, 60)))
                )
            elif random.random() < 0.1:
                tasks.append(
                    self.loop.create_task(client.pause(submission, at_s + random.uniform(0, 20)))
                )
        tasks.append(self.loop.create_task(self._cancel_late_attempts()))
        if self.admins is not None:
            tasks += self.admins.begin()
        for number, offer in enumerate(self.offers):
            chances = self._random(f"service {number}")
            tasks.append(self.loop.create_task(have(client, offer, chances, self.faults_end_s)))
        return tasks

    async def _cancel_late_attempts(self) -> None:
        """Cancel half of the attempts that are being timed out."""
        random, seen = self._random("patience"), set[str]()
        while self.loop.time() < self.faults_end_s + LATE_S:
            await asyncio.sleep(IMPATIENT_S)
            late = [r.job.id for r in self.disk.rows.live_jobs() if r.stop_why == NOT_BEGUN]
            for submission in self.client.submissions:
                if submission.job_id in late and submission.job_id not in seen:
                    seen.add(submission.job_id)
                    if random.random() < 0.5:
                        await self.client.cancel(submission, 0)


def run_world(
    seed: int, *, keep_trace: bool = False, fault_kinds: tuple[str, ...] = ()
) -> WorldResult:
    """Run one world, and check it."""
    _settle_memory()
    with tempfile.TemporaryDirectory(prefix="faults") as directory, _quiet(seed) as complaints:
        world = World(seed, Path(directory), keep_trace=keep_trace, fault_kinds=fault_kinds)
        audit = world.audit
        try:
            with _own_network(world):
                world.loop.run(world.judged())
        except Endless as error:
            audit.problem(str(error))
        virtual_s, calls = world.loop.time(), world.loop.calls
        audit.problems[:0] = [*world.loop.failures, *complaints]
        result = WorldResult(
            seed, audit.fingerprint, audit.problems, virtual_s, calls, audit.counts, audit.trace
        )
        del world
        gc.collect()
    return result


@cache
def _settle_memory() -> None:
    """Objects of the program itself need not be collected after each world."""
    gc.collect()
    gc.freeze()


@contextmanager
def _quiet(seed: int) -> Iterator[list[str]]:
    """Seed the process-wide random source, and silence the logs.

    Yields the errors that our own code has logged.
    """
    complaints: list[str] = []
    state = chance.getstate()
    chance.seed(seed)
    config = structlog.get_config()
    structlog.configure(
        processors=[_complaint(complaints)],
        wrapper_class=structlog.make_filtering_bound_logger(40),
        cache_logger_on_first_use=False,
    )
    try:
        yield complaints
    finally:
        structlog.configure(**config)
        chance.setstate(state)


@contextmanager
def _own_network(world: World) -> Iterator[None]:
    """Ports are those of the nodes, and so few that the same one is often drawn."""

    def bind(port: int, reuse: int = 0) -> int:
        del reuse
        if not world.is_free(port):
            raise OSError(f"port {port} is in use")
        return port

    with (
        patch("gpu_scheduler.agent.jobs.network.EPHEMERAL_RANGE", _NO_EPHEMERAL_PORTS),
        patch("gpu_scheduler.agent.jobs.network._bind", bind),
        patch("gpu_scheduler.agent.jobs.orders.is_free", world.is_free),
        patch("gpu_scheduler.agent.jobs.probes.probe", world.check),
    ):
        yield


def _complaint(complaints: list[str]) -> Callable[..., Any]:
    def hear(_: object, __: str, event: dict[str, Any]) -> Any:
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SchedulerError):
            complaints.append(f"our own code failed: {event['event']}: {error!r}")
        raise structlog.DropEvent

    return hear
