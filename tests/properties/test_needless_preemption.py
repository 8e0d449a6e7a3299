"""Guarantee: no job is preempted for a gang unless that is necessary and sufficient."""

from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Plan
from tests.builders import (
    DAY,
    HOUR,
    MINUTE,
    a_cluster,
    a_job,
    a_policy,
    a_request,
    a_state,
    on,
    running,
)
from tests.effort import examples

NOW = 10 * HOUR
CLASS = a_policy(name="easy", preemption=Preemption.CLASS, class_point_ms=MINUTE)


@dataclass(frozen=True)
class World:
    """Nodes with jobs of low and high classes, and a waiting urgent gang."""

    nodes: tuple[Node, ...]
    held: tuple[Running, ...]
    job: Job

    def decided(self, *, without: set[str]) -> Plan:
        left = [held for held in self.held if held.allocation.id not in without]
        cluster = a_state(policy=CLASS, nodes=self.nodes, held=left, queue=[self.job])
        return decide(cluster, CLASS, NOW)


def a_world(dice: Random) -> World:
    count, gpus = dice.choice([(4, 2), (3, 4), (2, 8)])
    free = {ordinal: list(range(gpus)) for ordinal in range(count)}
    held = []
    for number in range(100, 130):
        members, size = dice.choice([1, 1, 2]), dice.randint(1, 2)
        room = [ordinal for ordinal in free if len(free[ordinal]) >= size]
        dice.shuffle(room)
        places = [on(f"n{n}", [free[n].pop(0) for _ in range(size)]) for n in room[:members]]
        if places:
            priority = dice.choice([250, 250, 250, 250, 2500])
            job = a_job(number=number, gpus=size, members=len(places), priority=priority)
            start_ms = NOW - dice.choice([1, 30, 500]) * MINUTE
            held.append(running(job, *places, start_ms=start_ms, end_ms=NOW + DAY))
    sizes = [dice.randint(1, min(4, gpus)) for _ in range(dice.randint(2, 4))]
    members = tuple(a_request(gpus=size) for size in sizes)
    job = a_job(number=1, priority=2500, submit_ms=NOW)
    gang = replace(job, members=members, min_members=len(members))
    return World(a_cluster(nodes=count, gpus=gpus), tuple(held), gang)


@settings(max_examples=examples(150))
@given(dice=st.integers(0, 1 << 32).map(Random))
def test_gang_starts_only_when_all_its_victims_are_gone(dice: Random) -> None:
    world = a_world(dice)
    victims = {eviction.allocation_id for eviction in world.decided(without=set()).evictions}

    if victims:
        assert world.decided(without=victims).starts
    for spared in victims:
        assert not world.decided(without=victims - {spared}).starts
