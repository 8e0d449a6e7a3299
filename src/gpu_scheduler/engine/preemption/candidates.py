"""Own batch work that can leave, so that interactive or online work is within its limits.

Only work of the job's own tenant; where the limit is one of the user, only work of that user. For
online work, only as long as batch work holds what its pool was lent. A
budget of GPU-hours gets no larger by stopping somebody. Sums are changed while a relief is worked
out, and are as before when `tried` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from gpu_scheduler.engine.queue import GroupKey
from gpu_scheduler.engine.quota.rules import Admission, Amounts, Holdings
from gpu_scheduler.engine.state.cluster_state import RunningEntry
from gpu_scheduler.model.job import Job, Pool

INTERACTIVE = "interactive"
LENT = "lent"
Sums = list[tuple[Job, Amounts]]
"""What accounts hold together, each with any job of the account."""


def summed(entries: Iterable[RunningEntry]) -> Sums:
    """What these hold, by tenant, user and pool."""
    sums: dict[GroupKey, tuple[Job, Amounts]] = {}
    for entry in entries:
        job = entry.running.job
        account = (job.tenant, job.user, job.pool)
        if account not in sums:
            sums[account] = (job, Amounts())
        sums[account][1].add(entry.amounts)
    return list(sums.values())


@contextmanager
def without(holdings: Holdings, sums: Sums) -> Iterator[None]:
    """Have these sums not held for a while."""
    for job, amounts in sums:
        holdings.add(job, amounts, -1)
    try:
        yield
    finally:
        for job, amounts in sums:
            holdings.add(job, amounts)


class Candidates:
    """Own batch work that may be stopped for a job, the cheapest first."""

    __slots__ = ("entries", "nodes", "ranks", "sums")

    def __init__(self, entries: list[RunningEntry]) -> None:
        """`nodes` is where they run, as a bitmap, and `sums` is what they hold together."""
        self.entries = entries
        self.ranks = {entry.running.allocation.id: rank for rank, entry in enumerate(entries)}
        self.sums = summed(entries)
        self.nodes = 0
        for entry in entries:
            self.nodes |= entry.nodes


class SameTenantVictims:
    """Who leaves for one job, and whether it is within its limits then."""

    def __init__(
        self,
        admission: Admission,
        job: Job,
        wanted: Amounts,
        candidates: Candidates,
        *,
        of_user: bool,
        lent_milli: int = 0,
    ) -> None:
        """Nobody leaves yet. `of_user` says that all candidates are of the job's own user.

        With `lent_milli` they leave because so much was lent to batch work by the job's pool.
        """
        self._admission = admission
        self._job = job
        self._wanted = wanted
        self._left: dict[str, RunningEntry] = {}
        self.candidates = candidates
        self.lent_milli = lent_milli
        self.ground = LENT if lent_milli else INTERACTIVE
        self.whose = f"user {job.user}" if of_user else f"tenant {job.tenant}"

    @contextmanager
    def tried(self, leaving: Sums) -> Iterator[None]:
        """Work it out; `leaving` is on its way out already, and counts as gone."""
        with without(self._admission.holdings, leaving):
            try:
                yield
            finally:
                self.reset()

    def is_enough(self) -> bool:
        """Tell whether the job is within its limits as soon as those who leave are gone."""
        return self._admission.refusal(self._job, self._wanted) is None

    def would_be_enough(self) -> bool:
        """Tell whether it is when all leave that may be stopped for it."""
        with without(self._admission.holdings, self.candidates.sums):
            if not self.is_enough():
                return False
        if not self.lent_milli:
            return True
        is_enough = self.complete([])
        self.reset()
        return is_enough

    def leave(self, entry: RunningEntry) -> None:
        """This one leaves."""
        self._left[entry.running.allocation.id] = entry
        self._admission.holdings.add(entry.running.job, entry.amounts, -1)

    def stay(self, entry: RunningEntry) -> None:
        """This one does not leave after all."""
        del self._left[entry.running.allocation.id]
        self._admission.holdings.add(entry.running.job, entry.amounts)

    def can_stay(self, entry: RunningEntry) -> bool:
        """Tell whether it is enough without this one, which stays then."""
        self.stay(entry)
        if self.is_enough():
            return True
        self.leave(entry)
        return False

    def cheapest(self) -> list[RunningEntry] | None:
        """Who must leave besides those who do already, or None if that is never enough."""
        leaving: list[RunningEntry] = []
        if not self.complete(leaving):
            return None
        self.spare(leaving, lambda _: False)
        return leaving

    def complete(self, leaving: list[RunningEntry]) -> bool:
        """Let these leave, and the cheapest others until it is enough; False if it never is."""
        for entry in leaving:
            self.leave(entry)
        for entry in self.candidates.entries:
            if self.is_enough():
                return True
            if not self._may_more_leave():
                break
            if entry.running.allocation.id not in self._left:
                self.leave(entry)
                leaving.append(entry)
        return self.is_enough()

    def _may_more_leave(self) -> bool:
        """Tell whether the pool of the job still misses something that it has lent."""
        return not self.lent_milli or self._admission.pool_borrows(Pool.BATCH)

    def spare(self, leaving: list[RunningEntry], is_needed: Callable[[RunningEntry], bool]) -> None:
        """Let stay who need not leave, the dearest first; `is_needed` asks for other grounds."""
        ranks = self.candidates.ranks
        for entry in sorted(leaving, key=lambda entry: -ranks[entry.running.allocation.id]):
            self.stay(entry)
            if self.is_enough() and not is_needed(entry):
                leaving.remove(entry)
            else:
                self.leave(entry)

    def reset(self) -> None:
        """Nobody leaves after all."""
        self.stay_all(list(self._left.values()))

    def stay_all(self, entries: list[RunningEntry]) -> None:
        """None of these leaves after all."""
        for entry in entries:
            self.stay(entry)
