"""Work over a limit of its tenant: which batch work of the tenant may leave for it.

For interactive work, and for online work within its part of all GPUs if batch work was lent some.

Says who may, or why that does not help. Never work of other tenants, and nobody in vain: neither
if all of it were not enough, nor for a budget, which does not grow by stopping somebody.
"""

from __future__ import annotations

from gpu_scheduler.engine.preemption.candidates import INTERACTIVE, LENT, SameTenantVictims
from gpu_scheduler.engine.preemption.preemptor import Preemptor
from gpu_scheduler.engine.preemption.victims import SearchSpace, VictimsFound, evictions_for
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.quota.rules import job_amounts
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.plan import Eviction
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI

NO_ROOM = "stopping batch jobs of {whose} would not make room on any node"
OVER_CAP = (
    "it stops no batch job for that, as user {user} would hold more than {cap:g} GPUs with "
    "interactive jobs"
)
NOBODY = "no batch job of {whose} may be stopped for it"
NOT_ENOUGH = "stopping {all} of {whose} that may be stopped would not be enough"
UNDER_WAY = "what is being stopped already will be enough"
MOST_NAMES = 5
_WHOSE = {
    "class": "of a lower class",
    "feedback": "that had more service",
    "overrun": "that ran for longer than expected",
    "remaining": "with more left to run",
    INTERACTIVE: "of its own tenant",
    LENT: "on what was only lent",
}
"""What is said of jobs that leave, by the ground for it."""


class SameTenantPreemption:
    """Answers for one cycle, against limits that change as it goes on."""

    def __init__(self, state: ClusterState, limits: QuotaUsage, preemptor: Preemptor) -> None:
        """Nobody has been looked at yet."""
        self._state = state
        self._limits = limits
        self._preemptor = preemptor

    def relief(self, entry: Entry, refused: Reason) -> SameTenantVictims | Reason:
        """Who may leave for a job that was refused, or why it waits all the same."""
        job = entry.waiting.job
        admission = self._limits.admission
        wanted = job_amounts(job, self._state.limit_ms(job), job.min_members)
        over_budget = admission.over_budget(job, wanted)
        if over_budget is not None:
            return over_budget
        with self._limits.when_they_left():
            if admission.refusal(job, wanted) is None:
                return refused.besides(UNDER_WAY)
            of_user = admission.is_over_user_limit(job, wanted)
        lent_milli = self._limits.lent_milli(entry)
        if not lent_milli and not self._preemptor.is_within_cap(job):
            cap = self._state.policy.interactive_gpu_milli / WHOLE_MILLI
            return refused.besides(OVER_CAP.format(user=job.user, cap=cap))
        candidates = self._preemptor.own_batch(entry, of_user=of_user, lent_milli=lent_milli)
        relief = SameTenantVictims(
            admission, job, wanted, candidates, of_user=of_user, lent_milli=lent_milli
        )
        count = len(relief.candidates.entries)
        with relief.tried(self._limits.of_leaving()):
            if count and relief.would_be_enough():
                return relief
        why = NOT_ENOUGH if count else NOBODY
        all_of_them = "the only batch job" if count == 1 else f"all {count} batch jobs"
        return refused.besides(why.format(all=all_of_them, whose=relief.whose))

    def find(
        self,
        entry: Entry,
        relief: SameTenantVictims,
        place: list[Grant] | None,
        search: SearchSpace,
    ) -> VictimsFound | None:
        """Who leaves, for a free `place` if there is one, else for one that they leave."""
        with relief.tried(self._limits.of_leaving()):
            if place is None:
                return self._preemptor.clear_own(entry, search, relief)
            victims = [(victim, relief.ground) for victim in relief.cheapest() or ()]
            return (place, evictions_for(entry, victims)) if victims else None

    def no_room(self, refused: Reason, relief: SameTenantVictims) -> Reason:
        """Why the job waits though its limits would be kept."""
        return refused.besides(NO_ROOM.format(whose=relief.whose))


def claimed(evictions: list[Eviction]) -> Reason:
    """The reason of a job for whose place these are being stopped."""
    grounds = dict.fromkeys(eviction.ground for eviction in evictions)
    if any(ground != INTERACTIVE for ground in grounds):
        whose = " and ".join(sorted(_WHOSE[ground] for ground in grounds))
        return Reason(ReasonCode.CLAIMED, (("victims", len(evictions)), ("whose", whose)))
    return stopping([eviction.allocation_id.rsplit(".", 1)[0] for eviction in evictions])


def stopping(names: list[str]) -> Reason:
    """The reason of a job for which these jobs or tasks of its own tenant are being stopped."""
    shown = [name.removeprefix("job-") for name in names[:MOST_NAMES]]
    if len(names) > MOST_NAMES:
        shown.append(f"and {len(names) - MOST_NAMES} more")
    jobs = f"job{'s' * (len(names) > 1)} {', '.join(shown)}"
    return Reason(ReasonCode.OWN_WORK, (("jobs", jobs), ("victims", len(names))))
