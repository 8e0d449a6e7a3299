"""Guarantee: with the tiniest budget of a cycle, every job that fits starts after a few cycles."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import StartOrder
from gpu_scheduler.control.messages import (
    Cancel,
    Ended,
    Reprioritise,
    RunCycle,
    SetNode,
    Started,
    Submit,
)
from gpu_scheduler.control.scheduling.cycle import refresh_account_usage
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job
from tests.builders import a_core, a_job, a_node, a_policy, started
from tests.effort import examples

HOUR_MS = 3_600_000
ENOUGH = 10_000
ARRIVALS = st.builds(
    a_job,
    id=st.just(""),
    number=st.just(0),
    gpus=st.sampled_from([0, 0.25, 0.5, 1, 2, 3, 4, 6, 8]),
    cpus=st.sampled_from([0, 1, 4]),
    tenant=st.sampled_from(["t1", "t2"]),
    user=st.sampled_from(["u1", "u2"]),
    priority=st.integers(0, 3),
    estimate_ms=st.sampled_from([HOUR_MS, 2 * HOUR_MS, 48 * HOUR_MS]),
)
TURNS = st.lists(
    st.tuples(
        st.lists(ARRIVALS, max_size=5),
        st.sampled_from(["", "cancel", "reprioritise", "end"]),
        st.integers(0, 1_000),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=12,
)


class TinyBudget:
    """A core with one node whose cycles examine very few jobs."""

    def __init__(self, policy: str, max_examined: int) -> None:
        """Begin with eight free GPUs."""
        self.policy = a_policy(name=policy, max_examined=max_examined)
        self.core: Core = a_core(policy=self.policy, nodes=[])
        self.core.apply(SetNode(a_node(gpus=8, cpus=16)), 0)
        self.now_ms = 0

    def submit(self, job: Job) -> None:
        self.core.apply(Submit(replace(job, submit_ms=self.now_ms)), self.now_ms)

    def cycle(self) -> None:
        for effect in self.core.apply(RunCycle(), self.now_ms).effects:
            if isinstance(effect, StartOrder):
                self.core.apply(Started(effect.allocation.id), self.now_ms)

    def change(self, deed: str, choice: int) -> None:
        """Cancel or reprioritise a waiting job, or let a running one end."""
        cluster = self.core.state.cluster
        waiting = [entry.waiting.job.id for entry in cluster.queue.in_order()]
        if deed == "end" and cluster.running:
            ended = sorted(cluster.running)[choice % len(cluster.running)]
            self.core.apply(Ended(ended, 0), self.now_ms)
        elif deed == "cancel" and waiting:
            self.core.apply(Cancel(waiting[choice % len(waiting)]), self.now_ms)
        elif deed == "reprioritise" and waiting:
            job_id = waiting[choice % len(waiting)]
            self.core.apply(Reprioritise(job_id, choice % 50), self.now_ms)

    def starts_without_a_bound(self) -> list[str]:
        """The jobs that a cycle would start now that examines the whole queue."""
        refresh_account_usage(self.core.state, self.now_ms)
        snapshot = replace(self.core.state.cluster.snapshot(), resume_after=None)
        policy = replace(self.policy, max_examined=ENOUGH)
        return started(decide(ClusterState.from_snapshot(snapshot, policy), policy, self.now_ms))


REORDERED = [
    a_job(id="", number=0, gpus=0.25, cpus=0, tenant="t2", priority=1, estimate_ms=2 * HOUR_MS),
    a_job(id="", number=0, gpus=8, cpus=0, tenant="t1", estimate_ms=HOUR_MS),
    a_job(id="", number=0, gpus=0.25, cpus=0, tenant="t2", estimate_ms=HOUR_MS),
]
"""Under fair share the start of the third moves the first behind the second."""


@pytest.mark.parametrize("policy", ["easy", "fair", "feedback", "skip"])
@example(turns=[(REORDERED, "reprioritise", 8, 0)], max_examined=3)
@settings(max_examples=examples(150))
@given(turns=TURNS, max_examined=st.integers(1, 4))
def test_every_job_that_fits_starts_within_a_few_cycles(
    policy: str, turns: list[tuple[list[Job], str, int, int]], max_examined: int
) -> None:
    """Jobs arrive, leave and move while a sweep over the queue is under way."""
    world = TinyBudget(policy, max_examined)
    for arrivals, deed, choice, cycles in turns:
        world.now_ms += 60_000
        for job in arrivals:
            world.submit(job)
        world.change(deed, choice)
        for _ in range(cycles):
            world.cycle()
    waits = len(world.core.state.cluster.queue)
    for _ in range(20 + 8 * waits):
        if not world.core.wants_cycle:
            break
        world.cycle()
    assert not world.core.wants_cycle, "the cycles do not come to an end"
    assert world.starts_without_a_bound() == []
