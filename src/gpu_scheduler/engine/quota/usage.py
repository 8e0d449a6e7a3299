"""What counts against quotas in one cycle: running jobs, jobs that the cycle starts, and claims.

While running jobs are evicted to free a place for a job (a claim), the amounts of that job count as
held already: otherwise another job could use up the quota, and the evictions would be wasted. The
sums of the cluster state are not changed; the cycle has its own copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from gpu_scheduler.engine.queue import Entry, JobContext, JobShape
from gpu_scheduler.engine.quota.admission import Admission, Amounts, Sums, job_amounts, summed
from gpu_scheduler.engine.quota.tree import Right
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import Placement
from gpu_scheduler.model.quota_tree import ANY_MODEL
from gpu_scheduler.model.reasons import Reason, ReasonCode


class CycleHoldings:
    """What counts against quotas over all passes of a cycle: running jobs, starts and claims.

    `claims` are the jobs whose places are being freed, with what they will hold. Where no quota is
    set, only the running tasks of arrays are counted.
    """

    def __init__(self, state: ClusterState) -> None:
        """Begin with what runs."""
        self.has_quotas = state.has_quotas
        self.holdings = state.holdings.copy() if state.has_quotas else state.holdings
        self.tasks_started: dict[int, int] = {}
        self.claims: dict[int, tuple[Job, Amounts]] = {}

    def add_task(self, job: Job, change: int = 1) -> None:
        """Count one more running task of the job (or one less)."""
        self.tasks_started[job.number] = self.tasks_started.get(job.number, 0) + change

    def remove(self, job: Job, amounts: Amounts) -> None:
        """Count no more what a job held."""
        if self.has_quotas:
            self.holdings.add(job, amounts, -1)


class QuotaUsage:
    """Checks the quotas of arrays, users, tenants and pools in one pass, and counts what it starts.

    The calendar adds allocations to `evicting` as it evicts them; those that have `ended` hold
    nothing any more (only in a forecast).
    """

    def __init__(
        self, state: ClusterState, counted: CycleHoldings, *, evicting: set[str], ended: set[str]
    ) -> None:
        """Continue with what the cycle has counted so far."""
        self._state = state
        self._counted = counted
        self._evicting = evicting
        self._ended = ended
        self._evicting_sums: tuple[int, Sums] = (-1, [])
        self._last_least: tuple[Job, Amounts] | None = None
        self.admission = Admission(
            limits=state.tree_limits(),
            holdings=counted.holdings,
            tenant_usage=state.tenant_usage,
            waiting=state.waiting_milli(),
            user_usage=state.user_usage,
            policy=state.policy,
        )

    def refusal(self, entry: Entry) -> Reason | None:
        """Why a quota keeps the job from starting now with its minimum of members, or None."""
        job = entry.waiting.job
        if job.array is not None and job.array.max_running:
            running = self._state.running_tasks.get(job.number, 0)
            running += self._counted.tasks_started.get(job.number, 0)
            if running >= job.array.max_running:
                return Reason(ReasonCode.ARRAY_LIMIT, (("running", running),))
        if not self._state.has_quotas:
            return None
        return self.admission.refusal(job, self._least_amounts(job))

    def closing_reason(self, entry: Entry) -> Reason:
        """The node of the quota tree that closes a GPU model to the job."""
        return next(iter(self._closed_models(entry).values()))

    def _closed_models(self, entry: Entry) -> Mapping[str, Reason]:
        if not self.admission.tree.models:
            return {}
        job = entry.waiting.job
        return self.admission.closed_models(job, self._least_amounts(job))

    def narrowed(self, entry: Entry) -> Entry:
        """The job without the GPU models for which the quota tree has nothing left for it."""
        closed = self._closed_models(entry)
        if not closed:
            return entry
        job = entry.waiting.job
        known = self.admission.known_models
        members = []
        for request in job.members:
            models = [model for model in request.gpu_models or known if model not in closed]
            is_open = bool(models) and len(models) < len(request.gpu_models or known)
            members.append(replace(request, gpu_models=tuple(models)) if is_open else request)
        narrow = replace(job, members=tuple(members))
        if narrow == job:
            return entry
        shape = self._state.job_shape(
            narrow, rank=("narrowed", entry.shape.name), interactive=entry.shape.interactive
        )
        waiting = replace(entry.waiting, job=narrow)
        return Entry(waiting, shape, entry.group, entry.key, entry.static_class)

    def is_open_to(self, entry: Entry, placements: tuple[Placement, ...]) -> bool:
        """Tell whether the quota tree lets the job use the GPU models of these places.

        Asked of the job as it was submitted: models may be open now that were closed to it before.
        """
        entry = self._state.queue.entries[entry.number]
        closed = self._closed_models(entry)
        if not closed:
            return True
        return closed.keys().isdisjoint(self._placed(entry.waiting.job, placements).models)

    def refusal_of_claim(self, entry: Entry) -> Reason | None:
        """The same for a job that has a claim.

        The claims of other jobs do not count, as long as all claims together are within the quotas.
        """
        refused = self.refusal(entry)
        if refused is None or self.refusal_after_evictions(entry) is not None:
            return refused
        with self.admission.without(list(self._counted.claims.values())):
            return self.refusal(entry)

    def refusal_after_evictions(self, entry: Entry) -> Reason | None:
        """The same for the time when everything that is being evicted has ended."""
        with self.without_evicting():
            return self.refusal(entry)

    def has_right(self, entry: Entry) -> bool:
        """Tell whether the job may reclaim what others borrowed."""
        job, tree = entry.waiting.job, self.admission.tree
        return bool(tree.accounts) and tree.has_right(job, self._least_amounts(job))

    def right(self, entry: Entry) -> Right | None:
        """The right of the job to reclaim what others borrowed, or None."""
        if not self.admission.tree.accounts:
            return None
        job = entry.waiting.job
        return self.admission.tree.right(job, self._least_amounts(job))

    def rights_at_maximum(self, entry: Entry, refused: Reason) -> tuple[Right, ...]:
        """The rights to reclaim of a job that a node of the tree refuses at its maximum.

        Beside what it reclaims for room, also the resource that is at its maximum: jobs of other
        GPU models may fill the maximum in total. Its tenant must be allowed to preempt jobs of
        others.
        """
        job, tree = entry.waiting.job, self.admission.tree
        is_allowed = self._state.tenant(job.tenant).can_preempt_others
        if refused.code is not ReasonCode.QUOTA_NODE or not is_allowed:
            return ()
        resource = str(refused.get("model") or ANY_MODEL)
        rights = (self.right(entry), tree.right(job, self._least_amounts(job), resource))
        return tuple(dict.fromkeys(right for right in rights if right is not None))

    def within_pool_guarantee(self, entry: Entry, *, guaranteed_only: bool = False) -> bool:
        """Tell whether it is online work within the guarantee of its pool.

        A gang is checked with the members that it would start with.
        """
        job = entry.waiting.job
        if job.pool is not Pool.ONLINE:
            return False
        most = len(job.members)
        if job.min_members != most:
            most = self._members(job, guaranteed_only=guaranteed_only)
        return self.admission.members_within_guarantee(job) >= most

    def guaranteed_with_fewer_members(self, job: JobContext) -> bool:
        """Tell whether an elastic gang is within the pool guarantee only with fewer members."""
        spec = job.entry.waiting.job
        if spec.pool is not Pool.ONLINE or spec.min_members == len(spec.members):
            return False
        if self.admission.members_within_guarantee(spec) < spec.min_members:
            return False
        return not job.within_pool_guarantee

    def has_more_guaranteed_members(self, job: JobContext, members: int) -> bool:
        """Tell whether the guarantee covers more members than a place for an elastic gang has."""
        if not self.guaranteed_with_fewer_members(job):
            return False
        return members < self.admission.members_within_guarantee(job.entry.waiting.job)

    def admitted_shape(self, job: JobContext) -> JobShape:
        """The job with as many members as quotas and pools let it start with now."""
        spec = job.entry.waiting.job
        if not self._state.has_quotas or spec.min_members == len(spec.members):
            return job.entry.shape
        members = self._members(spec, guaranteed_only=job.guaranteed_only)
        return self._state.job_shape(spec, members=members)

    def _members(self, job: Job, *, guaranteed_only: bool) -> int:
        """With how many members an elastic gang would start; at least with its minimum."""
        most = self.admission.most_members(job, self._state.limit_ms(job))
        if guaranteed_only:
            most = min(most, self.admission.members_within_guarantee(job))
        return max(most, job.min_members)

    def _least_amounts(self, job: Job) -> Amounts:
        """What the job holds with its minimum of members; the last answer is kept."""
        if self._last_least is None or self._last_least[0] is not job:
            amounts = job_amounts(job, self._state.limit_ms(job), job.min_members)
            self._last_least = (job, amounts)
        return self._last_least[1]

    def pool_right(self, entry: Entry) -> Right | None:
        """The right of online work to reclaim what batch work borrowed from it, or None.

        Interactive work has a preemption reason of its own.
        """
        job, tree = entry.waiting.job, self.admission.tree
        if job.pool is not Pool.ONLINE or entry.shape.interactive or not self._state.pools:
            return None
        right = tree.pool_right(job, self._least_amounts(job))
        return right if right and tree.lends_to(right, job.tenant, Pool.BATCH) else None

    def without_evicting(self) -> AbstractContextManager[None]:
        """Leave what is being evicted out of the holdings for a while."""
        return self.admission.without(self.evicting_sums())

    def evicting_sums(self) -> Sums:
        """What is held by allocations that are being evicted."""
        if not self._state.has_quotas:
            return []
        count = len(self._evicting)
        if self._evicting_sums[0] != count:
            ids = sorted({*self._evicting, *self._state.stopping} - self._ended)
            self._evicting_sums = (count, summed(self._state.running[each] for each in ids))
        return self._evicting_sums[1]

    def evicting_names(self, tenant: str) -> list[str]:
        """The jobs and tasks of a tenant that are being evicted, by number."""
        ids = {*self._evicting, *self._state.stopping} - self._ended
        found = [self._state.running[allocation_id] for allocation_id in ids]
        own = [entry for entry in found if entry.running.job.tenant == tenant]
        own.sort(key=lambda entry: (entry.running.job.number, entry.end_key))
        return [entry.running.allocation.id.rsplit(".", 1)[0] for entry in own]

    def add_claim(self, entry: Entry, placements: tuple[Placement, ...]) -> None:
        """Count what the job will hold once its place is free."""
        if self._state.has_quotas:
            job = entry.waiting.job
            amounts = self._placed(job, placements)
            self._counted.claims[entry.number] = (job, amounts)
            self.add(job, amounts)

    def _placed(self, job: Job, placements: tuple[Placement, ...]) -> Amounts:
        """What a job holds on these places."""
        index = self._state.index
        grants = [index.resources(place.node_id).grant_for(place) for place in placements]
        return self._state.placed_amounts(job, grants)

    def remove_claim(self, entry: Entry) -> None:
        """Stop counting the claim of a job that is considered now."""
        claim = self._counted.claims.pop(entry.number, None)
        if claim is not None:
            job, amounts = claim
            self.admission.add(job, amounts, -1)
            self.admission.tree.wait(job.tenant, job.user, job.pool, amounts.gpu_milli)

    def add(self, job: Job, amounts: Amounts) -> None:
        """Count what a job holds from now on."""
        if self._state.has_quotas:
            self.admission.add(job, amounts)
            self.admission.tree.wait(job.tenant, job.user, job.pool, -amounts.gpu_milli)
