"""Everything the core knows, in one place. Only the modules of this package change it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush

from gpu_scheduler.control.life import JobLife, TaskLife
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.policy import DAY_MS, HOUR_MS, MINUTE_MS, Policy
from gpu_scheduler.ledger.accounts import Accounts
from gpu_scheduler.ledger.shares import Shares
from gpu_scheduler.model.errors import UnknownThing
from gpu_scheduler.model.states import JobState
from gpu_scheduler.predict.socket import Predictor


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers that bound the core, not the policy."""

    max_queued_tasks: int = 1_000_000
    remembered_ends: int = 100_000
    backoff_ms: int = 10_000
    max_backoff_ms: int = 10 * MINUTE_MS
    usage_half_life_ms: int = 7 * DAY_MS
    recent_half_life_ms: int = 6 * HOUR_MS


class Book:
    """Lives of jobs, the engine's picture, the ledger and the timers."""

    def __init__(self, policy: Policy, predictor: Predictor, limits: Limits) -> None:
        """Start empty."""
        self.policy = policy
        self.predictor = predictor
        self.limits = limits
        self.picture = Picture(policy)
        self.shares = Shares(
            half_life_ms=limits.usage_half_life_ms, recent_half_life_ms=limits.recent_half_life_ms
        )
        self.accounts = Accounts()
        self.lives: dict[str, JobLife] = {}
        self.by_number: dict[int, JobLife] = {}
        self.by_allocation: dict[str, tuple[JobLife, int | None]] = {}
        self.dependents: dict[str, dict[str, None]] = {}
        self.ended: OrderedDict[str, JobState] = OrderedDict()
        self.next_number = 1
        self.queued_tasks = 0
        self.changed = False
        self.tick_ms = -1
        self._timers: list[tuple[int, str, str]] = []

    def life(self, job_id: str) -> JobLife:
        """A job that has not ended."""
        life = self.lives.get(job_id)
        if life is None:
            if job_id in self.ended:
                raise UnknownThing(f"job {job_id} has ended as {self.ended[job_id]}")
            raise UnknownThing(f"job {job_id} is not known")
        return life

    def running(self, allocation_id: str) -> tuple[JobLife, int | None, TaskLife] | None:
        """Whose allocation this is, if it is still held."""
        found = self.by_allocation.get(allocation_id)
        if found is None:
            return None
        life, task = found
        return life, task, life.task(task)

    def set_timer(self, at_ms: int, kind: str, name: str) -> None:
        """Look at something at a later time."""
        heappush(self._timers, (at_ms, kind, name))

    def due_timers(self, now_ms: int) -> list[tuple[str, str]]:
        """What should be looked at now."""
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            _, kind, name = heappop(self._timers)
            due.append((kind, name))
        return due

    def next_timer_ms(self) -> int | None:
        """When something is due, if anything is."""
        return self._timers[0][0] if self._timers else None

    def forget(self, life: JobLife, state: JobState) -> None:
        """A job has ended; only how it ended is remembered, and not for ever."""
        del self.lives[life.job.id]
        del self.by_number[life.job.number]
        self.ended[life.job.id] = state
        if len(self.ended) > self.limits.remembered_ends:
            self.ended.popitem(last=False)
