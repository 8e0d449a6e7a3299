"""A small world around the control core, on virtual time, with an independent audit.

At one time, ends come first, then steps, then cycles until nothing more is ordered.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush

from gpu_scheduler.control.core import Core
from gpu_scheduler.control.effects import StartOrder, StopOrder
from gpu_scheduler.control.messages import (
    Ended,
    NodeFenced,
    RunCycle,
    SetNode,
    SetPools,
    SetTenant,
    Started,
    Submit,
)
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import CallerError, ClusterError
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Plan
from gpu_scheduler.store.memory import MemoryStore
from tests.properties.audit import Audit
from tests.properties.strategies import BRISK, Scenario, Work

PREEMPTED = "preempted"
MANY_CYCLES = 60
MANY_MOMENTS = 1_000


class KnownRunTimes:
    """Knows the true run time of every job."""

    def __init__(self) -> None:
        """The rig gives the true run time at submission."""
        self.run_ms: dict[str, int] = {}

    def expect(self, job: Job, now_ms: int) -> int:
        return self.run_ms[job.id]

    def exceed(self, job: Job, elapsed_ms: int, now_ms: int) -> int:
        return max(self.run_ms[job.id], elapsed_ms + 1)

    def begin(self, job: Job, now_ms: int) -> None:
        """Nothing to note."""

    def end(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class StopBehaviour:
    """How long a stop takes, and whether an evicted job keeps its progress."""

    stop_ms: int = 0
    keeps_progress: bool = True


@dataclass(slots=True)
class Attempt:
    """One run of one task."""

    job: Job
    task: int | None
    start_ms: int
    left_ms: int
    exit_code: int
    stop_why: str = ""


@dataclass(slots=True)
class Record:
    """The observations that the properties judge."""

    first_starts: dict[tuple[str, int | None], int] = field(default_factory=dict)
    submitted: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    plans: list[tuple[int, Plan]] = field(default_factory=list)
    evictions: int = 0


class Rig:
    """The core, the audit and everything in progress."""

    def __init__(
        self,
        scenario: Scenario,
        policy: Policy | str,
        physics: StopBehaviour | None = None,
        watch: Callable[["Rig", Plan], None] | None = None,
    ) -> None:
        """Set nodes, tenants and pools of the core. `watch` sees every committed plan."""
        self.predictor = KnownRunTimes()
        chosen = BRISK[policy] if isinstance(policy, str) else policy
        self.core = Core(chosen, self.predictor, CoreLimits(backoff_ms=1_000))
        self.store = MemoryStore()
        self.audit = Audit()
        self.record = Record()
        self.physics = physics or StopBehaviour()
        self.now_ms = 0
        self.attempts: dict[str, Attempt] = {}
        self._watch = watch
        self._ends: list[tuple[int, int, str, str]] = []
        self._sequence = 0
        self._works: dict[str, Work] = {}
        self._dead: dict[str, set[str]] = {}
        self._done: dict[tuple[str, int | None], int] = {}
        self._tries: dict[tuple[str, int | None], int] = {}
        for node in scenario.nodes:
            self._set_node(node)
        for tenant in scenario.tenants:
            self.audit.tenants[tenant.id] = tenant
            self.apply(SetTenant(tenant))
        for pool in scenario.pools:
            self.audit.pools[pool.pool] = pool
            self.apply(SetPools((pool,)))
        self._steps = list(reversed(scenario.steps))
        self._due_ms = self._steps[-1].pause_ms if self._steps else 0

    # --- time

    def run(self) -> None:
        """Advance until nothing is in progress and nothing is due."""
        for _ in range(MANY_MOMENTS):
            if not self.advance():
                return
        raise AssertionError(f"still going on after {MANY_MOMENTS} moments: {self.waiting()}")

    def advance(self) -> bool:
        """Advance to the next event; False if there is none."""
        if not self._steps and not self._ends and not self.core.state.jobs:
            return False
        moments = [self._ends[0][0]] if self._ends else []
        if self._steps:
            moments.append(self._due_ms)
        timer_ms = self.core.next_timer_ms()
        if timer_ms is not None:
            moments.append(timer_ms)
        if not moments:
            return False
        self.now_ms = max(self.now_ms, min(moments))
        while self._ends and self._ends[0][0] <= self.now_ms:
            _, _, allocation_id, kind = heappop(self._ends)
            self._end(allocation_id, kind)
        while self._steps and self._due_ms <= self.now_ms:
            step = self._steps.pop()
            self._do(step.deed)
            if self._steps:
                self._due_ms = self.now_ms + self._steps[-1].pause_ms
        self.cycles()
        return True

    def cycles(self) -> None:
        """Run cycles until nothing more is ordered, which must be soon."""
        for _ in range(MANY_CYCLES):
            answer = self.apply(RunCycle())
            for effect in answer.effects:
                if isinstance(effect, StartOrder):
                    self._start(effect)
            if answer.plan is not None:
                self.record.plans.append((self.now_ms, answer.plan))
                self.record.evictions += len(answer.plan.evictions)
                if self._watch is not None:
                    self._watch(self, answer.plan)
            for effect in answer.effects:
                if isinstance(effect, StopOrder):
                    self._stop(effect)
            if not answer.effects:
                return
        raise AssertionError(f"{MANY_CYCLES} cycles at one moment, and still orders")

    def waiting(self) -> list[str]:
        """The jobs that have not ended."""
        return sorted(self.core.state.jobs)

    # --- commands

    def apply(self, message: object):
        """Apply a message to the core and commit its writes."""
        answer = self.core.apply(message, self.now_ms)  # type: ignore[arg-type]
        self.store.commit(answer.writes)
        if not isinstance(message, RunCycle):
            for effect in answer.effects:
                if isinstance(effect, StopOrder):
                    self._stop(effect)
        return answer

    def _do(self, deed: object) -> None:
        if isinstance(deed, Work):
            self.submit(deed)
        elif isinstance(deed, Node):
            self._set_node(deed)
        elif isinstance(deed, NodeFenced):
            self._fence(deed.node_id)
        else:
            with suppress(CallerError, ClusterError):
                self.apply(deed)

    def submit(self, work: Work) -> bool:
        """Submit; False if the core rejected it."""
        self.predictor.run_ms[work.job.id] = work.run_ms
        try:
            self.apply(Submit(work.job))
        except (CallerError, ClusterError):
            self.record.refused.append(work.job.id)
            return False
        self._works[work.job.id] = work
        self.record.submitted[work.job.id] = self.now_ms
        return True

    def _set_node(self, node: Node) -> None:
        self.audit.nodes[node.id] = node
        self.apply(SetNode(node))

    def _fence(self, node_id: str) -> None:
        """Attempts only on dead nodes are gone; a gang with members elsewhere is stopped."""
        for allocation_id, (_, allocation) in list(self.audit.held.items()):
            nodes = {placement.node_id for placement in allocation.placements}
            if node_id in nodes:
                dead = self._dead.setdefault(allocation_id, set())
                dead.add(node_id)
                if dead == nodes:
                    self.audit.end(allocation_id, self.now_ms)
                    del self.attempts[allocation_id]
        self.apply(NodeFenced(node_id))
        self.audit.nodes[node_id] = self.core.state.cluster.index.resources(node_id).node

    # --- orders

    def _start(self, order: StartOrder) -> None:
        allocation = order.allocation
        key = (allocation.job_id, allocation.task)
        self.audit.start(order.job, allocation)
        work = self._works[allocation.job_id]
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        exit_code = work.exits[tries - 1] if tries <= len(work.exits) else 0
        left_ms = max(1, work.run_ms - self._done.get(key, 0))
        attempt = Attempt(order.job, allocation.task, self.now_ms, left_ms, exit_code)
        self.attempts[allocation.id] = attempt
        self.record.first_starts.setdefault(key, self.now_ms)
        self._later(self.now_ms + left_ms, allocation.id, "end")
        self.apply(Started(allocation.id))

    def _stop(self, order: StopOrder) -> None:
        attempt = self.attempts.get(order.allocation_id)
        if attempt is None:
            return
        attempt.stop_why = order.why
        if self.physics.stop_ms:
            self._later(self.now_ms + self.physics.stop_ms, order.allocation_id, "stop")
        else:
            self._end(order.allocation_id, "stop")

    def _end(self, allocation_id: str, kind: str) -> None:
        attempt = self.attempts.pop(allocation_id, None)
        if attempt is None:
            return
        self.audit.end(allocation_id, self.now_ms)
        if kind == "end":
            self.apply(Ended(allocation_id, attempt.exit_code))
            return
        progress_ms = 0
        if self.physics.keeps_progress and attempt.stop_why == PREEMPTED:
            progress_ms = self.now_ms - attempt.start_ms
            key = (attempt.job.id, attempt.task)
            self._done[key] = self._done.get(key, 0) + progress_ms
        self.apply(Ended(allocation_id, None, 15, progress_ms))

    def _later(self, at_ms: int, allocation_id: str, kind: str) -> None:
        self._sequence += 1
        heappush(self._ends, (at_ms, self._sequence, allocation_id, kind))
