"""Same-tenant preemption at a quota: which batch jobs leave so that a job is within its quotas.

For interactive work, and for online work within its guarantee if batch work borrowed from it. Only
jobs of the same tenant leave; where the quota is one of the user, only jobs of that user. Stopping
jobs does not help against a budget of GPU-hours. The holdings are changed while victims are chosen,
and are as before when `tentatively` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu_scheduler.engine.preemption.reasons import Candidates
from gpu_scheduler.engine.quota.rules import Admission, Amounts, Sums, without
from gpu_scheduler.engine.state.cluster_state import RunningEntry
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import PreemptionReason


@dataclass(slots=True, eq=False)
class SameTenantVictims:
    """The jobs that leave for one job, and whether it is within its quotas without them.

    `of_user` says that all candidates are of the job's own user. With `lent_milli` they leave
    because batch work borrowed so much from the job's pool.
    """

    _admission: Admission
    _job: Job
    _wanted: Amounts
    candidates: Candidates
    of_user: bool
    lent_milli: int
    _leaving: dict[str, RunningEntry] = field(default_factory=dict)

    @property
    def reason(self) -> PreemptionReason:
        """For which reason they leave."""
        return PreemptionReason.LENT if self.lent_milli else PreemptionReason.INTERACTIVE

    @property
    def owner(self) -> str:
        """Whose jobs they are, in a message."""
        return f"user {self._job.user}" if self.of_user else f"tenant {self._job.tenant}"

    @contextmanager
    def tentatively(self, evicting: Sums) -> Iterator[None]:
        """Choose victims without what is being evicted already; undo the choice at the end."""
        with without(self._admission.holdings, evicting):
            try:
                yield
            finally:
                self.reset()

    def is_enough(self) -> bool:
        """Tell whether the job is within its quotas as soon as the victims have left."""
        return self._admission.refusal(self._job, self._wanted) is None

    def would_be_enough(self) -> bool:
        """Tell whether it is when all candidates leave."""
        with without(self._admission.holdings, self.candidates.sums):
            if not self.is_enough():
                return False
        if not self.lent_milli:
            return True
        is_enough = self.complete([])
        self.reset()
        return is_enough

    def leave(self, entry: RunningEntry) -> None:
        """Let a job leave."""
        self._leaving[entry.running.allocation.id] = entry
        self._admission.holdings.add(entry.running.job, entry.amounts, -1)

    def stay(self, entry: RunningEntry) -> None:
        """Let a job stay after all."""
        del self._leaving[entry.running.allocation.id]
        self._admission.holdings.add(entry.running.job, entry.amounts)

    def try_to_keep(self, entry: RunningEntry) -> bool:
        """Let a job stay if the others are enough; tell whether it stays."""
        self.stay(entry)
        if self.is_enough():
            return True
        self.leave(entry)
        return False

    def cheapest(self) -> list[RunningEntry] | None:
        """The jobs that must leave in addition, or None if that is never enough."""
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
            if self.lent_milli and not self._admission.pool_borrows(Pool.BATCH):
                break  # All that the job's pool has lent is back.
            if entry.running.allocation.id not in self._leaving:
                self.leave(entry)
                leaving.append(entry)
        return self.is_enough()

    def spare(self, leaving: list[RunningEntry], is_needed: Callable[[RunningEntry], bool]) -> None:
        """Let stay all jobs that need not leave, the most expensive first.

        `is_needed` tells whether a job must leave for a reason other than the quota.
        """
        ranks = self.candidates.ranks
        for entry in sorted(leaving, key=lambda entry: -ranks[entry.running.allocation.id]):
            self.stay(entry)
            if self.is_enough() and not is_needed(entry):
                leaving.remove(entry)
            else:
                self.leave(entry)

    def reset(self) -> None:
        """Let all jobs stay."""
        self.stay_all(list(self._leaving.values()))

    def stay_all(self, entries: list[RunningEntry]) -> None:
        """Let these jobs stay."""
        for entry in entries:
            self.stay(entry)
