"""Finds the evictions that let a waiting job start: for want of room, or because of a quota.

A job evicts others only if it can start then, and the cheapest victims first. Which jobs may be
evicted and why is in `reasons`; the search over nodes is in `victims`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from gpu_scheduler.engine.preemption.reasons import PreemptionReasons, PreemptionRights
from gpu_scheduler.engine.preemption.same_tenant import SameTenantVictims
from gpu_scheduler.engine.preemption.victims import (
    FreedPlace,
    SearchSpace,
    VictimSearch,
    evictions_for,
)
from gpu_scheduler.engine.queue import JobContext
from gpu_scheduler.engine.quota.admission import job_amounts
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.engine.reservation.backfill_calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Eviction, PreemptionReason
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI

NO_ROOM = "stopping batch jobs of {whose} would not make room on any node"
OVER_CAP = (
    "it stops no batch job for that, as user {user} would hold more than {cap:g} GPUs with "
    "interactive jobs"
)
NO_CANDIDATES = "no batch job of {whose} may be stopped for it"
NOT_ENOUGH = "stopping {all} of {whose} that may be stopped would not be enough"
UNDER_WAY = "the jobs that are being stopped already free enough"
MOST_NAMES = 5
_WHOSE = {
    PreemptionReason.CLASS: "of a lower class",
    PreemptionReason.FEEDBACK: "that had more service",
    PreemptionReason.OVERRUN: "that ran for longer than expected",
    PreemptionReason.REMAINING: "with more left to run",
    PreemptionReason.INTERACTIVE: "of its own tenant",
    PreemptionReason.LENT: "on what was only lent",
}
"""How a message describes victims, by the preemption reason."""


class Preemptor:
    """Finds evictions in one pass."""

    def __init__(
        self, state: ClusterState, calendar: Calendar, quota: QuotaUsage, now_ms: int
    ) -> None:
        """`calendar.evicting` has the victims that were chosen already."""
        self._state = state
        self._calendar = calendar
        self._quota = quota
        self._reasons = PreemptionReasons(state, quota, calendar.evicting, now_ms)

    def add_start(self, job: Job, gpu_milli: int) -> None:
        """Count a job that starts in this cycle, or will when its place is free."""
        if job.interactive:
            self._reasons.add_interactive_start(job, gpu_milli)

    def preempt_for_room(
        self, job: JobContext, space: SearchSpace, *, reservation_due: bool
    ) -> FreedPlace | None:
        """Find victims so that the job fits, or None.

        `reservation_due` says that the job has a reservation whose first promised time has come.
        """
        rights = self._reasons.rights_for_room(job, reservation_due=reservation_due)
        if rights is None:
            return None
        return self._search(rights, space, self._reasons.nodes_with_victims(rights))

    def same_tenant_victims(self, job: JobContext, refused: Reason) -> SameTenantVictims | Reason:
        """The jobs that may leave for a job over a quota, or why it waits all the same."""
        spec = job.entry.waiting.job
        admission = self._quota.admission
        wanted = job_amounts(spec, self._state.limit_ms(spec), spec.min_members)
        over_budget = admission.over_budget(spec, wanted)
        if over_budget is not None:
            return over_budget
        with self._quota.without_evicting():
            if admission.refusal(spec, wanted) is None:
                return refused.besides(UNDER_WAY)
            of_user = admission.is_over_user_limit(spec, wanted)
        reclaims_pool = self._quota.pool_right(job.entry)
        reclaims = self._quota.rights_at_maximum(job.entry, refused)
        lent = reclaims or tuple(right for right in (reclaims_pool,) if right is not None)
        if not lent and not self._reasons.is_within_cap(spec):
            cap = self._state.policy.interactive_gpu_milli / WHOLE_MILLI
            return refused.besides(OVER_CAP.format(user=spec.user, cap=cap))
        rights = self._reasons.rights_at_quota(job, reclaims, reclaims_pool)
        candidates = self._reasons.victims_at_quota(rights, of_user=of_user)
        is_lent: Callable[[RunningEntry], bool] | None = None
        if lent:

            def is_lent(victim: RunningEntry) -> bool:
                tree, owner = admission.tree, victim.running.job
                return any(tree.is_lent(right, owner, victim.amounts, {}) for right in lent)

        victims = SameTenantVictims(
            admission, spec, wanted, rights, candidates, of_user=of_user, is_lent=is_lent
        )
        count = len(candidates.entries)
        with victims.tentatively(self._quota.evicting_sums()):
            if count and victims.would_be_enough():
                return victims
        why = NOT_ENOUGH if count else NO_CANDIDATES
        all_of_them = "the only batch job" if count == 1 else f"all {count} batch jobs"
        return refused.besides(why.format(all=all_of_them, whose=victims.owner))

    def narrowed_for(self, job: JobContext, victims: SameTenantVictims) -> JobContext:
        """The job with the GPU models that the quota tree opens to it once all victims leave."""
        entry = self._state.queue.entries[job.entry.number]
        admission = self._quota.admission
        with admission.without(self._quota.evicting_sums() + victims.candidates.sums):
            return replace(job, entry=self._quota.narrowed(entry))

    def preempt_same_tenant(
        self,
        job: JobContext,
        victims: SameTenantVictims,
        place: list[Grant] | None,
        space: SearchSpace,
    ) -> FreedPlace | None:
        """Choose the victims, for a free `place` if there is one, else for one that they leave."""
        with victims.tentatively(self._quota.evicting_sums()):
            if place is None:
                candidates = victims.candidates
                rights = replace(victims.rights, job=job, only=candidates)
                found = self._search(rights, space, candidates.nodes, victims)
                return found if found and self._is_open_to(job, found[0]) else None
            chosen = [(victim, victims.reason) for victim in victims.cheapest() or ()]
            if not chosen or not self._is_open_to(job, place):
                return None
            return place, evictions_for(job.entry, chosen)

    def _is_open_to(self, job: JobContext, grants: list[Grant]) -> bool:
        """Tell whether the quota tree lets the job use these places now."""
        placements = tuple(grant.placement() for grant in grants)
        return self._quota.is_open_to(job.entry, placements)

    def _search(
        self,
        rights: PreemptionRights,
        space: SearchSpace,
        nodes: int,
        same_tenant: SameTenantVictims | None = None,
    ) -> FreedPlace | None:
        """Look for victims on `nodes`, rack by rack if all members must be in one."""
        nodes &= ~space.reserved
        if not nodes:
            return None
        racks = self._state.index.racks()
        bounds: list[int | None] = [None]
        if rights.job.entry.shape.same_rack and len(racks) > 1:
            bounds = list(racks.values())
        for bits in bounds:
            search = VictimSearch(
                self._state,
                self._calendar,
                self._reasons,
                rights,
                space,
                same_tenant=same_tenant,
                bounds=bits,
            )
            found = search.run(nodes if bits is None else nodes & bits)
            if found is not None:
                return found
        return None


def no_room_reason(refused: Reason, victims: SameTenantVictims) -> Reason:
    """Why a job waits though evictions would bring it within its quotas."""
    return refused.besides(NO_ROOM.format(whose=victims.owner))


def claim_reason(evictions: list[Eviction]) -> Reason:
    """The reason of a job that waits for these evictions."""
    reasons = {eviction.ground for eviction in evictions}
    if reasons != {PreemptionReason.INTERACTIVE}:
        whose = " and ".join(sorted(_WHOSE[reason] for reason in reasons))
        return Reason(ReasonCode.CLAIMED, (("victims", len(evictions)), ("whose", whose)))
    return same_tenant_reason([eviction.allocation_id.rsplit(".", 1)[0] for eviction in evictions])


def same_tenant_reason(names: list[str]) -> Reason:
    """The reason of a job that waits until these jobs or tasks of its own tenant have stopped."""
    shown = [name.removeprefix("job-") for name in names[:MOST_NAMES]]
    if len(names) > MOST_NAMES:
        shown.append(f"and {len(names) - MOST_NAMES} more")
    jobs = f"job{'s' * (len(names) > 1)} {', '.join(shown)}"
    return Reason(ReasonCode.OWN_WORK, (("jobs", jobs), ("victims", len(names))))


class AttemptClass(Enum):
    """Jobs that share one budget of preemption attempts."""

    BATCH = auto()
    INTERACTIVE = auto()
    INTERACTIVE_AT_QUOTA = auto()
    ONLINE_GUARANTEED = auto()
    GUARANTEED_AT_QUOTA = auto()
    TENANT_GUARANTEED = auto()


FailureKey = tuple[bool, int, int]
"""A job shape alone or all that need the same room, its id, and what is closed to it."""


class AttemptBudget:
    """How many searches for victims one pass may still make, and which are known to fail.

    Jobs with preemption reasons of their own have a budget of their own, so that jobs that come
    before them and find no victims do not use it up.
    """

    def __init__(self, most: int) -> None:
        """At most so many attempts of every class."""
        self._most = most
        self._made = dict.fromkeys(AttemptClass, 0)
        self._failed: dict[FailureKey, int] = {}

    def is_left(self, attempt: AttemptClass = AttemptClass.BATCH) -> bool:
        """Tell whether there may be another attempt."""
        return self._made[attempt] < self._most

    def spend(self, attempt: AttemptClass) -> None:
        """Count an attempt."""
        self._made[attempt] += 1

    def has_failed(self, key: FailureKey, static_class: int) -> bool:
        """Tell whether a job of no lower class has found no victims."""
        return static_class <= self._failed.get(key, -1)

    def add_failure(self, key: FailureKey, static_class: int) -> None:
        """Remember that a job of this class has found no victims."""
        self._failed[key] = static_class
