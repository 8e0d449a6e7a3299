"""Preemption at a quota: which jobs leave so that a job is within its quotas.

For interactive work, and for online work within its guarantee if batch work borrowed from it: only
jobs of the same tenant leave; where the quota is one of the user, only jobs of that user. For work
within a guarantee of the quota tree, what other nodes borrowed below the node that is at its
maximum. Stopping jobs does not help against a budget of GPU-hours. The holdings are changed while
victims are chosen, and are as before when `tentatively` ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gpu_scheduler.engine.preemption.reasons import Candidates, PreemptionRights
from gpu_scheduler.engine.quota.admission import Admission, Amounts, Sums
from gpu_scheduler.engine.state.cluster_state import RunningEntry
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import PreemptionReason


@dataclass(slots=True, eq=False)
class SameTenantVictims:
    """The jobs that leave for one job, and whether it is within its quotas without them.

    `of_user` says that all candidates are of the job's own user. If they leave because they hold
    what was lent, `is_lent` tells whether that is still so of a candidate.
    """

    _admission: Admission
    _job: Job
    _wanted: Amounts
    rights: PreemptionRights
    candidates: Candidates
    of_user: bool
    is_lent: Callable[[RunningEntry], bool] | None
    _leaving: dict[str, RunningEntry] = field(default_factory=dict)

    @property
    def reason(self) -> PreemptionReason:
        """For which reason they leave."""
        return PreemptionReason.INTERACTIVE if self.is_lent is None else PreemptionReason.LENT

    @property
    def owner(self) -> str:
        """Whose jobs they are, in a message."""
        if self.rights.reclaims:
            return "other nodes of the quota tree"
        return f"user {self._job.user}" if self.of_user else f"tenant {self._job.tenant}"

    @contextmanager
    def tentatively(self, evicting: Sums) -> Iterator[None]:
        """Choose victims without what is being evicted already; undo the choice at the end."""
        with self._admission.without(evicting):
            try:
                yield
            finally:
                self.reset()

    def is_enough(self) -> bool:
        """Tell whether the job is within its quotas as soon as the victims have left."""
        return self._admission.refusal(self._job, self._wanted) is None

    def would_be_enough(self) -> bool:
        """Tell whether it is when all candidates leave."""
        with self._admission.without(self.candidates.sums):
            if not self.is_enough():
                return False
        if self.is_lent is None:
            return True
        is_enough = self.complete([])
        self.reset()
        return is_enough

    def leave(self, entry: RunningEntry) -> None:
        """Let a job leave."""
        self._leaving[entry.running.allocation.id] = entry
        self._admission.add(entry.running.job, entry.amounts, -1)

    def stay(self, entry: RunningEntry) -> None:
        """Let a job stay after all."""
        del self._leaving[entry.running.allocation.id]
        self._admission.add(entry.running.job, entry.amounts)

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
            if entry.running.allocation.id not in self._leaving and (
                self.is_lent is None or self.is_lent(entry)
            ):
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
