"""Histories drawn from a seeded source, for processes in which Hypothesis does not run."""

from contextlib import suppress
from random import Random

from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from tests.properties.rig import Rig
from tests.properties.strategies import (
    ANY_REQUEST,
    ARRAYS,
    EVERY_POLICY,
    HARDWARE,
    PAUSES,
    PRIORITIES,
    SHAPES,
    STEP_MS,
    TENANTS,
    USERS,
    Job,
    Node,
    Pool,
    Scenario,
    Step,
    Work,
)


def scenario_of(seed: int, *, jobs: int = 12) -> Scenario:
    """A history that is the same in every process."""
    chance = Random(seed)
    nodes = tuple(
        Node(
            id=f"n{ordinal}",
            ordinal=ordinal,
            cpu_milli=8_000,
            memory_mb=64_000,
            devices=chance.choice(HARDWARE[:5]),
            rack=chance.choice(("r1", "r2")),
            labels=chance.choice(((), (("zone", "a"),))),
        )
        for ordinal in range(3)
    )
    steps = [Step(chance.choice(PAUSES), a_work(f"j{number}", chance)) for number in range(jobs)]
    tenants = tuple(
        Tenant(
            id=name,
            tier=chance.choice(tuple(Tier)),
            quota=chance.choice((Quota(), Quota(gpu_milli=3_000))),
            elastic=chance.choice((True, False)),
        )
        for name in TENANTS
    )
    return Scenario(nodes=nodes, steps=tuple(steps), tenants=tenants)


def a_work(name: str, chance: Random) -> Work:
    """One job."""
    _, most, least = chance.choice(SHAPES)
    job = Job(
        id=name,
        number=0,
        submit_ms=0,
        tenant=chance.choice(TENANTS),
        user=chance.choice(USERS),
        members=tuple(chance.choice(ANY_REQUEST) for _ in range(most)),
        min_members=least,
        priority=chance.choice(PRIORITIES),
        pool=chance.choice(tuple(Pool)),
        array=chance.choice(ARRAYS),
    )
    return Work(job, chance.randint(1, 12) * STEP_MS)


def plans_of_some_histories() -> str:
    """Every plan of a few histories under every policy, as one text."""
    lines = []
    for number, policy in enumerate(EVERY_POLICY):
        rig = Rig(scenario_of(number), policy)
        with suppress(AssertionError):  # Failures must be identical; other tests judge them.
            for _ in range(25):
                if not rig.advance():
                    break
        lines += [plan.to_json() for _, plan in rig.record.plans]
    return "\n".join(lines)
