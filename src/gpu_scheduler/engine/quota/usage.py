"""What counts against limits in one cycle: what runs, what the cycle starts, what was promised.

While a place is being cleared for a job, what the job will hold counts as held, so that nobody is
stopped in vain because somebody else has used up the quota meanwhile. The sums of the cluster
state are not changed; the cycle has a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from gpu_scheduler.engine.preemption.candidates import Sums, summed, without
from gpu_scheduler.engine.queue import Entry, JobShape
from gpu_scheduler.engine.quota.rules import Admission, Amounts, job_amounts
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason, ReasonCode


class QuotaUsage:
    """Limits of arrays, users, tenants and pools, against what is held as the cycle goes on.

    `admission` answers for one pass; it is there from when that begins.
    """

    admission: Admission

    def __init__(self, state: ClusterState) -> None:
        """Begin with what runs; where nothing is limited, nothing is counted."""
        self._state = state
        self._holdings = state.holdings.copy() if state.has_limits else state.holdings
        self._tasks_running: dict[int, int] = {}
        self._promised: dict[int, tuple[Job, Amounts]] = {}
        self._only_part = False

    def begin(self, *, leaving: set[str], gone: set[str]) -> None:
        """A pass over the queue begins, with what has been counted so far.

        Allocations that are `leaving` are being stopped by this cycle, and `gone` ones hold nothing
        any more.
        """
        state = self._state
        self._leaving = leaving
        self._gone = gone
        self._sums_of_leaving: tuple[int, Sums] = (-1, [])
        self.admission = Admission(
            tenants=state.tenants,
            pools=state.pools,
            holdings=self._holdings,
            tenant_usage=state.tenant_usage,
            guarantees=state.pool_guarantees(),
            waiting_tenants=state.waiting_tenants(),
            user_usage=state.user_usage,
            policy=state.policy,
        )
        self.admission.online_waits_milli = state.online_waits_milli() if state.pools else 0

    def refusal(self, entry: Entry) -> Reason | None:
        """Why a limit keeps the job from starting now, with as few members as it can, or None."""
        job = entry.waiting.job
        if job.array is not None and job.array.max_running:
            running = self._state.running_tasks.get(job.number, 0)
            running += self._tasks_running.get(job.number, 0)
            if running >= job.array.max_running:
                return Reason(ReasonCode.ARRAY_LIMIT, (("running", running),))
        if not self._state.has_limits:
            return None
        amounts = job_amounts(job, self._state.limit_ms(job), job.min_members)
        return self.admission.refusal(job, amounts)

    def is_guaranteed(self, entry: Entry) -> bool:
        """Tell whether the tenant would hold no more GPUs than it is sure of (elastic quota)."""
        job = entry.waiting.job
        if not self._state.tenant(job.tenant).elastic:
            return False
        amounts = job_amounts(job, self._state.limit_ms(job), job.min_members)
        return self.admission.is_within_guarantee(job, amounts)

    def lent_milli(self, entry: Entry) -> int:
        """What batch work was lent, if this is online work within its part; else nothing.

        Interactive work has a ground of its own.
        """
        job = entry.waiting.job
        if job.pool is not Pool.ONLINE or entry.shape.interactive or not self._state.pools:
            return 0
        amounts = job_amounts(job, self._state.limit_ms(job), job.min_members)
        if not self.admission.is_within_pool(job, amounts):
            return 0
        return self.admission.pool_borrowed_milli(Pool.BATCH)

    def refusal_of_holder(self, entry: Entry) -> Reason | None:
        """The same for a job for which a place was cleared.

        What is promised to others is not in its way, as long as all of that can be kept.
        """
        refused = self.refusal(entry)
        if refused is None or self.refusal_soon(entry) is not None:
            return refused
        with without(self._holdings, list(self._promised.values())):
            return self.refusal(entry)

    def refusal_soon(self, entry: Entry) -> Reason | None:
        """The same for when everything has ended that is being stopped."""
        with self.when_they_left():
            return self.refusal(entry)

    def when_they_left(self) -> AbstractContextManager[None]:
        """Have what is being stopped count as gone for a while."""
        return without(self._holdings, self.of_leaving())

    def of_leaving(self) -> Sums:
        """What is held by those who are being stopped."""
        if not self._state.has_limits:
            return []
        count = len(self._leaving)
        if self._sums_of_leaving[0] != count:
            ids = {*self._leaving, *self._state.stopping} - self._gone
            sums = summed(self._state.running[allocation_id] for allocation_id in sorted(ids))
            self._sums_of_leaving = (count, sums)
        return self._sums_of_leaving[1]

    def names_of_leaving(self, tenant: str) -> list[str]:
        """The jobs and tasks of a tenant that are being stopped, by number."""
        ids = {*self._leaving, *self._state.stopping} - self._gone
        found = [self._state.running[allocation_id] for allocation_id in ids]
        own = [entry for entry in found if entry.running.job.tenant == tenant]
        own.sort(key=lambda entry: (entry.running.job.number, entry.end_key))
        return [entry.running.allocation.id.rsplit(".", 1)[0] for entry in own]

    def promise(self, entry: Entry, members: int) -> None:
        """A place is being cleared for the job: what it will hold is nobody else's."""
        if self._state.has_limits:
            job = entry.waiting.job
            amounts = job_amounts(job, self._state.limit_ms(job), members)
            self._promised[entry.number] = (job, amounts)
            self.grant(job, amounts)

    def turn_to(self, entry: Entry) -> None:
        """The job is looked at: what was promised to it is not in its own way."""
        promised = self._promised.pop(entry.number, None)
        if promised is not None:
            job, amounts = promised
            self._holdings.add(job, amounts, -1)
            self.admission.online_waits_milli += amounts.gpu_milli * (job.pool is Pool.ONLINE)

    def admitted(self, entry: Entry) -> JobShape:
        """The job with as many members as quotas and pools let it start with now."""
        job = entry.waiting.job
        if not self._state.has_limits or job.min_members == len(job.members):
            return entry.shape
        return self._state.job_shape(job, members=self._members(job))

    def _members(self, job: Job) -> int:
        """With how many members an elastic gang would start; at least with its minimum."""
        most = self.admission.most_members(job, self._state.limit_ms(job))
        if self._only_part:
            most = min(most, self.admission.members_within_guarantee(job))
        return max(most, job.min_members)

    def within_pool_guarantee(self, entry: Entry) -> bool:
        """Tell whether it is online work within its part, with the members it would start with."""
        job = entry.waiting.job
        if job.pool is not Pool.ONLINE:
            return False
        most = len(job.members)
        members = most if job.min_members == most else self._members(job)
        return self.admission.within_pool_guarantee(job, members)

    def borrows_in_vain(self, entry: Entry) -> bool:
        """Tell whether an elastic gang would come first if only it had fewer members."""
        job = entry.waiting.job
        if job.pool is not Pool.ONLINE or job.min_members == len(job.members):
            return False
        fewest = self.admission.within_pool_guarantee(job, job.min_members)
        return fewest and not self.within_pool_guarantee(entry)

    def is_sure_of_more(self, entry: Entry, members: int) -> bool:
        """Tell whether an elastic gang that borrows in vain has more members within its part."""
        if not self.borrows_in_vain(entry):
            return False
        return members < self.admission.members_within_guarantee(entry.waiting.job)

    @contextmanager
    def within_part(self) -> Iterator[None]:
        """For a while, let elastic gangs of online work have no more than is sure for them."""
        self._only_part = True
        try:
            yield
        finally:
            self._only_part = False

    def note_task(self, job: Job, change: int) -> None:
        """One more task of the job runs, or one less."""
        self._tasks_running[job.number] = self._tasks_running.get(job.number, 0) + change

    def grant(self, job: Job, amounts: Amounts) -> None:
        """This is held from now on, or will be."""
        if self._state.has_limits:
            self._holdings.add(job, amounts)
            self.admission.online_waits_milli -= amounts.gpu_milli * (job.pool is Pool.ONLINE)

    def let_go(self, job: Job, amounts: Amounts) -> None:
        """This is held no more."""
        if self._state.has_limits:
            self._holdings.add(job, amounts, -1)
