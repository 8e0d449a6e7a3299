"""Simulated admins: they drain nodes, pause GPUs, make reservations and retry failed jobs.

Their decisions hold: nothing is placed on a closed node, or on GPUs that are reserved for others.
In the end everything is open again. The same worlds have elastic gangs.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from gpu_scheduler.control.messages import (
    Drain,
    PauseDevice,
    Reserve,
    ResumeDevice,
    Retry,
    Uncordon,
)
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.plan import AdvanceReservation, Allocation
from gpu_scheduler.model.plan import ReservationSpec as Wanted
from gpu_scheduler.model.request import Request
from gpu_scheduler.store.interface import Store
from tests.faults.workload import TENANTS, Submission

if TYPE_CHECKING:
    from tests.faults.world import World

AS_MANY_WORLDS = 0.4
"""The share of worlds with admins and elastic gangs."""


def elastic_submissions(random: Random, nodes: int, gpus: int) -> list[Submission]:
    """Gangs that can run with fewer members than requested."""
    if nodes * gpus < 2:
        return []
    return [_elastic(random, number, nodes * gpus) for number in range(random.randint(0, 3))]


def _elastic(random: Random, number: int, gpus: int) -> Submission:
    members = (Request.for_gpus(1000),) * random.randint(2, min(4, gpus))
    run_ms = round(random.expovariate(1) * random.choice((8_000, 60_000))) + 20
    codes, stop_ms = random.choice(("0", "0", "1,0")), random.choice((10, 500, 20_000))
    if codes == "1,0" and run_ms % 2:
        codes = "137,0"  # as if killed: then the gang continues with fewer members
    argv = ("act", str(run_ms), codes, str(stop_ms))
    job = Job(
        id="",
        number=0,
        submit_ms=0,
        tenant=TENANTS[1],
        user="ada",
        members=members,
        min_members=random.randint(1, len(members) - 1),
        estimate_ms=run_ms,
        retries=random.choice((0, 1)),
        requeue_on_node_loss=random.random() < 0.5,
    )
    return Submission(f"elastic-{number}", replace(job, command=argv), argv)


class Admins:
    """The admins of one world."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random

    def begin(self) -> list[asyncio.Task[None]]:
        loop = self._world.loop
        return [
            loop.create_task(work)
            for work in (self._drain(), self._pause(), self._reserve(), self._retry())
        ]

    async def _until_something_is_wanted(self, mean_s: float) -> bool:
        """Wait; False when it is time to stop changing things."""
        await asyncio.sleep(self._random.uniform(1, 2 * mean_s))
        return self._world.loop.time() < self._world.faults_end_s

    async def _drain(self) -> None:
        ask = self._world.client.ask
        while await self._until_something_is_wanted(60):
            node = self._random.choice(self._world.nodes).name
            within_ms = self._random.choice((None, 0, 5_000, 40_000))
            await ask(Drain(node, "ada", "", within_ms))
            await asyncio.sleep(self._random.uniform(0, 60))
            await ask(Uncordon(node))

    async def _pause(self) -> None:
        ask = self._world.client.ask
        while await self._until_something_is_wanted(90):
            node = self._random.choice(self._world.nodes)
            index = self._random.randrange(node.gpus)
            await ask(PauseDevice(node.name, index))
            await asyncio.sleep(self._random.uniform(0, 60))
            await ask(ResumeDevice(node.name, index))

    async def _reserve(self) -> None:
        while await self._until_something_is_wanted(60):
            now_ms = self._random.choice(self._world.servers).machine.wall_ms()
            start_ms = now_ms + self._random.choice((0, 20_000, 60_000))
            wanted = Wanted(
                tenant=self._random.choice(TENANTS),
                gpus=self._random.randint(1, self._world.nodes[0].gpus),
                start_ms=start_ms,
                end_ms=start_ms + self._random.choice((5_000, 60_000)),
                preempts=self._random.random() < 0.5,
            )
            await self._world.client.ask(Reserve(wanted, "ada"))

    async def _retry(self) -> None:
        while await self._until_something_is_wanted(30):
            client, rows = self._world.client, self._world.disk.rows
            submission = self._random.choice(client.submissions)
            row = rows.job(submission.job_id) if submission.job_id else None
            if row is not None and row.state in {JobState.FAILED, JobState.CANCELLED}:
                client.retried.add(submission.job_id)
                await client.ask(Retry(submission.job_id))


def forbidden(world: World, allocation: Allocation, job: Job | None) -> str:
    """Why something should not have been placed where it starts; empty if it should."""
    rows = world.disk.rows
    closed = {node.id: node.closed for node in rows.nodes() if node.closed is not None}
    for placement in allocation.placements:
        found = closed.get(placement.node_id)
        if found is not None and found.since_ms < allocation.start_ms:
            return f"{allocation.id} was placed on {placement.node_id}, which was closed before"
    for window in rows.advance_reservations():
        if job is None or not _is_kept_from(window, allocation, job):
            continue
        if not _has_moved(rows, window, allocation.start_ms):
            return f"{allocation.id} was placed on GPUs that {window.id} keeps for {window.tenant}"
    return ""


def _has_moved(rows: Store, window: AdvanceReservation, since_ms: int) -> bool:
    """Whether the reservation got other devices since, and so had others then."""
    return any(
        event.kind == "reservation_changed"
        and event.at_ms >= since_ms
        and dict(event.data)["reservation"] == window.id
        for _, event in rows.events(limit=sys.maxsize)
    )


def _is_kept_from(window: AdvanceReservation, allocation: Allocation, job: Job) -> bool:
    at_ms = allocation.start_ms
    is_on = window.over_ms is None and window.start_ms <= at_ms < window.end_ms
    if not is_on or window.made_ms >= at_ms or window.tenant == job.tenant:
        return False
    kept = {(node, index) for node, indices in window.devices for index in indices}
    return any(
        (placement.node_id, share.index) in kept
        for placement in allocation.placements
        for share in placement.devices
    )
