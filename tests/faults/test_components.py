"""Tests of the components of the fault simulation."""

import asyncio
from random import Random
from typing import Any

import pytest

from gpu_scheduler.agent.launcher_protocol import Work, WorkDevice
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind
from tests.builders import a_job
from tests.faults.audit import Audit
from tests.faults.launcher import Journal
from tests.faults.virtual_loop import Endless, Part, VirtualLoop


def test_virtual_hour_passes_at_once() -> None:
    loop = VirtualLoop()

    async def wait() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert loop.run(wait()) == 3600


def test_killed_part_does_nothing_more_and_frozen_part_continues_later() -> None:
    loop, done = VirtualLoop(), []
    killed, frozen = Part("killed"), Part("frozen")

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(1)
            done.append((name, loop.time()))
        finally:
            done.append((f"{name} cleans up", loop.time()))

    async def live() -> list[tuple[str, float]]:
        loop.start(killed, work("killed"))
        loop.start(frozen, work("frozen"))
        await asyncio.sleep(0.5)
        loop.kill(killed)
        loop.freeze(frozen)
        await asyncio.sleep(9.5)
        assert done == []
        loop.thaw(frozen)
        await asyncio.sleep(1)
        return list(done)

    assert loop.run(live()) == [("frozen", 10.0), ("frozen cleans up", 10.0)]


def test_world_without_pending_events_ends() -> None:
    loop = VirtualLoop()

    async def wait() -> None:
        await loop.create_future()

    with pytest.raises(Endless):
        loop.run(wait())


def test_only_synced_data_survives_power_loss() -> None:
    kept = set()
    for seed in range(50):
        journal = Journal()
        journal.write("accepted", ("a", 0))
        journal.sync()
        journal.write("end", ("a", 0))
        journal.write("accepted", ("b", 0))
        journal.lose_power(Random(seed))
        kept.add(tuple((entry.kind, entry.key[0]) for entry in journal.entries))
    first, end, second = ("accepted", "a"), ("end", "a"), ("accepted", "b")
    assert kept == {(first,), (first, end), (first, end, second)}


def audited(*works: Work) -> list[str]:
    """The findings of the audit when all of these run on one node with one GPU."""
    audit = Audit()
    audit.rules.device_memory_mb = {("n0", 0): 100}
    audit.job_of = lambda job_id: a_job(id=job_id, tenant="one", **JOBS.get(job_id, {}))
    audit.rules.tenant_milli = {"one": 1500}
    audit.stored = lambda _: None
    for work in works:
        audit.began("n0", work)
    return [text for text in audit.problems if "not stored" not in text]


JOBS: dict[str, dict[str, Any]] = {
    "array": {"array": Array(tasks=IntervalSet.parse("0-3"), max_running=1)},
    "later": {"dependencies": (Dependency(DependencyKind.AFTER_OK, "j1"),)},
}


def part(
    job: str,
    attempt: int = 1,
    milli: int = 250,
    memory_mb: int = 25,
    task: int | None = None,
    port: int = 0,
) -> Work:
    device = WorkDevice(index=0, share_milli=milli, memory_mb=memory_mb)
    return Work(
        allocation_id=f"{job}.{attempt}",
        job_id=job,
        task=task,
        attempt=attempt,
        devices=(device,),
        environment={"TGPU_SERVICE_PORT": str(port)} if port else {},
    )


@pytest.mark.parametrize(
    ("works", "said"),
    [
        ((part("j1"), part("j2")), ""),
        ((part("j1"), part("j1")), "a second time"),
        ((part("j1"), part("j1", attempt=2)), "still runs"),
        ((part("j1", milli=600), part("j2", milli=600)), "bears 1200 thousandths"),
        ((part("j1", memory_mb=60), part("j2", memory_mb=60)), "bears 120 of 100 MiB"),
        ((part("j1", milli=600), part("j2", milli=1000)), "1600 of 1500"),
        ((part("array"),), ""),
        ((part("array"), part("array", attempt=2, task=1)), "2 tasks of array run, and 1 may"),
        ((part("later"),), "later began, and j1 before it has not ended well"),
        ((part("s1", port=80), part("s2", port=81)), ""),
        ((part("s1", port=80), part("s2", port=80)), "port 80 of n0 was given to s2.1"),
    ],
)
def test_audit_detects_violations(works: tuple[Work, ...], said: str) -> None:
    problems = audited(*works)
    assert any(said in text for text in problems) if said else problems == []


def test_unstored_command_must_not_start() -> None:
    audit = Audit()
    audit.rules.device_memory_mb = {("n0", 0): 100}
    audit.began("n0", part("j1"))
    assert any("is not stored" in text for text in audit.problems)
