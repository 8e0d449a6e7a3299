"""What counts against limits in one cycle: what runs, and what the cycle starts or promises.

The picture's own sums are left as they are; the cycle has a copy.
"""

from __future__ import annotations

from gpu_scheduler.engine.admit import Admission, Amounts, job_amounts
from gpu_scheduler.engine.picture import Picture
from gpu_scheduler.engine.queue import Entry, JobShape
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason, ReasonCode


class Limits:
    """Limits of arrays, users, tenants and pools, against what is held as the cycle goes on.

    `admission` answers for one pass; it is there from when that begins.
    """

    admission: Admission

    def __init__(self, picture: Picture) -> None:
        """Begin with what runs; where nothing is limited, nothing is counted."""
        self._picture = picture
        self._holdings = picture.holdings.copy() if picture.has_limits else picture.holdings
        self._tasks_running: dict[int, int] = {}

    def begin(self) -> None:
        """A pass over the queue begins, with what has been counted so far."""
        picture = self._picture
        self.admission = Admission(
            tenants=picture.tenants,
            pools=picture.pools,
            holdings=self._holdings,
            standings=picture.tenant_standings,
            total_gpu_milli=picture.total_gpu_milli,
            waiting_tenants=picture.waiting_tenants(),
            user_standings=picture.user_standings,
            policy=picture.policy,
        )
        self.admission.online_waits_milli = picture.online_waits_milli() if picture.pools else 0

    def refusal(self, entry: Entry) -> Reason | None:
        """Why a limit keeps the job from starting now, with as few members as it can, or None."""
        job = entry.waiting.job
        if job.array is not None and job.array.max_running:
            running = self._picture.running_tasks.get(job.number, 0)
            running += self._tasks_running.get(job.number, 0)
            if running >= job.array.max_running:
                return Reason(ReasonCode.ARRAY_LIMIT, (("running", running),))
        if not self._picture.has_limits:
            return None
        amounts = job_amounts(job, self._picture.limit_ms(job), job.min_members)
        return self.admission.refusal(job, amounts)

    def admitted(self, entry: Entry) -> JobShape:
        """The job with as many members as quotas and pools let it start with now."""
        job = entry.waiting.job
        if not self._picture.has_limits or job.min_members == len(job.members):
            return entry.shape
        most = self.admission.most_members(job, self._picture.limit_ms(job))
        return self._picture.job_shape(job, members=max(most, job.min_members))

    def note_task(self, job: Job, change: int) -> None:
        """One more task of the job runs, or one less."""
        self._tasks_running[job.number] = self._tasks_running.get(job.number, 0) + change

    def hold(self, job: Job, amounts: Amounts) -> None:
        """This is held from now on, or will be."""
        if self._picture.has_limits:
            self._holdings.add(job, amounts)
            self.admission.online_waits_milli -= amounts.gpu_milli * (job.pool is Pool.ONLINE)

    def let_go(self, job: Job, amounts: Amounts) -> None:
        """This is held no more."""
        if self._picture.has_limits:
            self._holdings.add(job, amounts, -1)
