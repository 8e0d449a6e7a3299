"""Simulated users of services: they create, update, scale and delete them.

A replica is a process that is ready after a while. Some exit a few times before they stay. When
there are no more faults each service must return to its number of replicas; then it is deleted, and
nothing of it may run on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from gpu_scheduler.control.messages import CreateService, DeleteService, ScaleService, UpdateService
from gpu_scheduler.model.job import ENDED, Job
from gpu_scheduler.model.launch import Launch, Probe, ProbeKind
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.service import Replica, Restart, RestartRule, Service
from tests.faults.audit import Run
from tests.faults.workload import Client

if TYPE_CHECKING:
    from tests.faults.world import World

TENANT = "two"
PORT = 8000
AS_MANY_WORLDS = 0.4
"""The share of worlds with services."""


@dataclass(slots=True)
class WantedService:
    """A service as it was last acknowledged."""

    service: Service
    service_id: str = ""
    is_deleted: bool = False


def wanted_services(random: Random, nodes: int, gpus: int) -> list[WantedService]:
    """At most two small ones, so that both can be updated at once."""
    if random.random() >= AS_MANY_WORLDS:
        return []
    count = random.randint(1, 2 if nodes * gpus > 2 else 1)
    most = nodes // count
    return [
        WantedService(_service(random, f"svc-{number}", most, nodes * gpus))
        for number in range(count)
    ]


def _service(random: Random, name: str, places: int, gpus: int) -> Service:
    """`places` is the number of nodes: each node has a port only once."""
    has_port = places > 1 and random.random() < 0.5
    replicas = random.randint(1, places - 1 if has_port else max(1, gpus // 4))
    milli = random.choice((250, 500)) if gpus < 4 else random.choice((250, 500, 1000))
    job = Job(
        id="",
        number=0,
        submit_ms=0,
        tenant=TENANT,
        user="ada",
        members=(Request.for_gpus(milli),),
        min_members=1,
        requeue_on_node_loss=random.random() < 0.5,
    )
    policy = random.choice((Restart.ALWAYS, Restart.ALWAYS, Restart.ON_FAILURE, Restart.NEVER))
    probe = Probe(kind=random.choice((ProbeKind.TCP, ProbeKind.HTTP)), grace_ms=5_000)
    service = Service(
        id="",
        number=0,
        name=name,
        tenant=TENANT,
        user="ada",
        job=job,
        launch=Launch(argv=("serve",), workdir="/", uid=1000),
        replicas=min(replicas, 3),
        port=PORT if has_port else 0,
        probe=random.choice((None, probe, probe)),
        restart=RestartRule(policy=policy, max_backoff_ms=60_000),
        surge=random.random() < 0.5,
    )
    return _with_program(random, service)


def _with_program(random: Random, service: Service) -> Service:
    run_ms = round(random.expovariate(1 / 15_000)) + 20
    codes = random.choice(("", "", "", "1", "0,1", "1,1,1"))
    stop_ms = random.choice((10, 500, 20_000))
    warm_ms = random.choice((0, 300, 8_000))
    argv = ("serve", str(run_ms), codes, str(stop_ms), str(warm_ms))
    job, launch = replace(service.job, command=argv), replace(service.launch, argv=argv)
    return replace(service, job=job, launch=launch)


# --- users


async def have(client: Client, offer: WantedService, random: Random, until_s: float) -> None:
    """Create a service, then change it a few times; some are deleted before the faults end."""
    await asyncio.sleep(random.uniform(1, until_s / 2))
    service_id = await client.ask(CreateService(offer.service))
    if not service_id:
        return
    offer.service_id = service_id
    client.audit.note("service created", service_id)
    for _ in range(random.randint(0, 3)):
        await asyncio.sleep(random.uniform(1, until_s / 3))
        await _change(client, offer, random)
    if random.random() < 0.25:
        await delete(client, offer)


async def _change(client: Client, offer: WantedService, random: Random) -> None:
    kind = random.choice(("scale", "update", "update"))
    if kind == "scale":
        wanted = replace(offer.service, replicas=random.randint(0, offer.service.replicas))
        done = await client.ask(ScaleService(offer.service_id, wanted.replicas))
    else:
        wanted = _with_program(random, offer.service)
        done = await client.ask(UpdateService(offer.service_id, wanted))
    if done is not None:
        offer.service = wanted
        client.audit.note("service changed", offer.service_id, kind)


async def delete(client: Client, offer: WantedService) -> None:
    """Delete it for good."""
    if offer.service_id and not offer.is_deleted:
        offer.is_deleted = True
        await client.ask(DeleteService(offer.service_id))
        client.audit.note("service deleted", offer.service_id)


# --- checks


class Watch:
    """Checks all services after every commit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: set[str] = set()

    def look(self) -> None:
        for text in self._wrong():
            if text not in self._said:
                self._said.add(text)
                self._world.audit.problem(text)

    def _wrong(self) -> Iterator[str]:
        rows, audit = self._world.disk.rows, self._world.audit
        services = {service.id: service for service in rows.services()}
        for run in audit.alive:
            if run.service and run.service not in services:
                yield f"{run.key[0]} runs on {run.node}, and {run.service} is gone"
        if not services:
            return
        live = [row.job for row in rows.live_jobs() if row.job.service]
        for service in services.values():
            leaving = {replica.job_id for replica in service.members if replica.leaving}
            staying = [j for j in live if j.service == service.id and j.id not in leaving]
            most = service.replicas + service.surge
            if len(staying) > most:
                yield f"{service.id} has {len(staying)} replicas, and may have {most}"


def unfit(world: World) -> list[str]:
    """What is wrong when there are no more faults."""
    rows, audit = world.disk.rows, world.audit
    known = {service.id: service for service in rows.services()}
    runs = {run.job_id: run for run in audit.alive}
    found: list[str] = []
    for offer in world.offers:
        if offer.service_id and not offer.is_deleted:
            service = known.get(offer.service_id)
            if service is None:
                found.append(f"{offer.service_id} was acknowledged and is lost")
            else:
                found += _unfit(world, offer, service, runs)
    return found


def _unfit(world: World, offer: WantedService, service: Service, runs: dict[str, Run]) -> list[str]:
    name, wanted = service.id, offer.service
    if (service.replicas, service.launch.argv) != (wanted.replicas, wanted.launch.argv):
        return [f"{name} is not as it was last acknowledged"]
    over = [replica for replica in service.members if replica.is_over]
    if any(not _has_ended(world, replica.job_id) for replica in over):
        return [f"{name} gives up a replica that has not ended"]
    if over and service.restart.policy is Restart.ALWAYS:
        return [f"{name} does not start again what ended by itself"]
    number = max(0, wanted.replicas - len(over))
    fit = [r for r in service.live if r.generation == service.generation and _is_fit(r, runs)]
    if (len(fit), len(service.live)) != (number, number):
        return [f"{name} has {len(fit)} of {number} replicas: {service.state} {service.problem}"]
    return []


def _has_ended(world: World, job_id: str) -> bool:
    row = world.disk.rows.job(job_id)
    return row is not None and row.state in ENDED


def _is_fit(replica: Replica, runs: dict[str, Run]) -> bool:
    run = runs.get(replica.job_id)
    return run is not None and replica.ready and replica.port == run.port
