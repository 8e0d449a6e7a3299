"""Simulated users who submit jobs of every kind, cancel some, and retry unanswered requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    ConfirmDead,
    Hold,
    Release,
    SetTenant,
    Submit,
)
from gpu_scheduler.model.errors import ClusterError, InternalError, SchedulerError, StoreError
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Quota, Tenant
from tests.faults.audit import Audit
from tests.faults.network import Broken
from tests.faults.node import VirtualNode
from tests.faults.server import VirtualServer, request
from tests.faults.virtual_loop import VirtualLoop

ADMIN = Caller(user="ada", uid=1000, gid=1000, role=Role.ADMIN)
TENANTS = ("one", "two")
PAUSE_S = 2.0
TRIES = 4


@dataclass(slots=True)
class Submission:
    """A submission: its request and the answer."""

    key: str
    job: Job
    argv: tuple[str, ...]
    after: int | None = None
    job_id: str = ""
    refused: str = ""


@dataclass(slots=True)
class Client:
    """Everyone who sends requests to the servers."""

    events: VirtualLoop
    audit: Audit
    random: Random
    pick: Callable[[], VirtualServer]
    delay_s: Callable[[], float]
    attempts_of: Callable[[str], frozenset[str]]
    """The attempts of a job, as they are stored."""
    submissions: list[Submission] = field(default_factory=list)
    cancelled: dict[str, frozenset[str]] = field(default_factory=dict)
    """Jobs, and the attempts that each had when its cancel was acknowledged."""
    retried: set[str] = field(default_factory=set)
    """Jobs for which a retry was requested."""
    _number: int = 0

    async def ask(self, command: Command) -> str | None:
        """Repeat a request until it is answered; None if it was rejected for good."""
        self._number += 1
        key = f"key-{self._number}"
        while True:
            server = self.pick()
            work = partial(server.apply_once, key, command, ADMIN)
            try:
                return await request(self.events, server, self.delay_s, work)
            except (Broken, TimeoutError, ClusterError, StoreError, InternalError):
                await asyncio.sleep(self.random.uniform(0.2, PAUSE_S))
            except SchedulerError as error:
                self.audit.note("refused", key, type(error).__name__)
                return None

    async def set_up(self, quotas: dict[str, int]) -> None:
        for tenant, milli in quotas.items():
            await self.ask(SetTenant(Tenant(id=tenant, name=tenant, quota=Quota(gpu_milli=milli))))

    async def submit(self, submission: Submission, at_s: float) -> None:
        await asyncio.sleep(at_s)
        job = submission.job
        if submission.after is not None:
            before = self.submissions[submission.after].job_id
            if before:
                dependency = Dependency(DependencyKind.AFTER_OK, before)
                job = replace(job, dependencies=(dependency,))
        job_id = await self.ask(Submit(job, Launch(argv=submission.argv, workdir="/", uid=1000)))
        if job_id:
            submission.job_id = job_id
            self.audit.note("acknowledged", submission.key, job_id)

    async def cancel(self, submission: Submission, at_s: float) -> None:
        await asyncio.sleep(at_s)
        if submission.job_id and await self.ask(Cancel(submission.job_id)) is not None:
            self.cancelled[submission.job_id] = self.attempts_of(submission.job_id)
            self.audit.note("cancelled", submission.job_id)

    async def confirm_dead(self, node: VirtualNode) -> None:
        """An admin confirms that a machine is off; it is switched on after all servers know."""
        for _ in range(TRIES):
            await asyncio.sleep(self.random.uniform(5, 40))
            if await self.ask(ConfirmDead(node.name, "ada")) is not None:
                self.audit.note("confirmed dead", node.name)
                break
        await asyncio.sleep(self.random.uniform(0, 60))
        node.power_on()

    async def pause(self, submission: Submission, at_s: float) -> None:
        """Hold a job for a while."""
        await asyncio.sleep(at_s)
        if submission.job_id and await self.ask(Hold(submission.job_id)) is not None:
            await asyncio.sleep(self.random.uniform(1, 60))
            await self.ask(Release(submission.job_id))


def submissions_of(random: Random, nodes: int, gpus: int) -> list[Submission]:
    """Jobs of every kind, none of them too large for the nodes."""
    return [_submission(random, number, nodes, gpus) for number in range(random.randint(4, 16))]


def _submission(random: Random, number: int, nodes: int, gpus: int) -> Submission:
    kind = random.choice(("single", "single", "part", "part", "wide", "gang", "gang", "array"))
    members: tuple[Request, ...]
    array = None
    if kind == "part":
        members = (Request.for_gpus(random.choice((250, 500, 1500 if gpus > 1 else 500))),)
    elif kind == "wide":
        members = (Request.for_gpus(1000 * random.randint(1, gpus)),)
    elif kind == "gang":
        size = random.randint(2, max(2, min(4, nodes * gpus)))
        size = min(size, nodes * gpus)
        members = (Request.for_gpus(1000),) * size
    else:
        members = (Request.for_gpus(1000),)
    if kind == "array":
        tasks = IntervalSet.parse(f"0-{random.randint(1, 4)}")
        array = Array(tasks=tasks, max_running=random.choice((0, 0, 1, 2)))
    codes = random.choice(("0", "0", "0", "0", "1", "1,0", "3,1,0"))
    run_ms = round(random.expovariate(1) * random.choice((500, 8_000, 40_000, 120_000))) + 20
    stop_ms = random.choice((10, 500, 60_000))
    job = Job(
        id="",
        number=0,
        submit_ms=0,
        tenant=random.choice(TENANTS),
        user="ada",
        members=members,
        min_members=len(members),
        priority=random.choice((250, 750, 750, 2500)),
        estimate_ms=run_ms,
        max_runtime_ms=random.choice((0, 0, 0, max(1_000, run_ms // 2))),
        array=array,
        retries=random.choice((0, 0, 1, 2)),
        requeue_on_node_loss=random.random() < 0.3,
    )
    after = random.randrange(number) if number and random.random() < 0.15 else None
    argv: tuple[str, ...] = ("act", str(run_ms), codes, str(stop_ms))
    if kind == "gang" and run_ms % 2:
        # Nothing more is drawn here, so that old seeds give the same worlds.
        argv = ("meet", *argv[1:], str(run_ms % len(members)))
    return Submission(f"wish-{number}", replace(job, command=argv), argv, after)
