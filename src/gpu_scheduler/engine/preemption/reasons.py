"""For which reason a running job may be evicted for a waiting one, and what the eviction costs.

Reasons: a static class higher by at least the policy's gap; interactive work against batch work of
the same tenant, up to a cap and never against work that could evict it in turn, for want of room or
because the tenant is at a quota; resources that were only lent (along the quota tree, or by online
work to batch work), for want of room or at a quota; a backfilled job that
overran its prediction and delays a reservation that is due; and, for the feedback policies, a lower
level of attained service. Aging and fair share are no reason, so evictions cannot go in circles
(docs/explanation/preemption.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from gpu_scheduler.engine.policy import HOUR_MS, Preemption
from gpu_scheduler.engine.priority import level_of
from gpu_scheduler.engine.queue import Entry, JobContext
from gpu_scheduler.engine.quota.admission import job_amounts, summed
from gpu_scheduler.engine.quota.resource_limits import Key, Reclaimed
from gpu_scheduler.engine.quota.tree import QuotaTree, Right
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import PreemptionReason
from gpu_scheduler.model.request import WHOLE_MILLI

Victims = list[tuple[RunningEntry, PreemptionReason]]
"""Running jobs to evict, each with the preemption reason."""

GAIN_MS = HOUR_MS
"""An eviction that frees a place for so long counts its losses twice."""
EACH_MS = HOUR_MS
"""Each victim waits again, whatever its size: that counts as much as so much lost GPU time."""
PAYS_OFF = 4
"""An eviction pays off if it frees a place for so many times the run time that it loses."""


class Candidates:
    """Jobs that may be evicted so that another is within its quotas, cheapest first."""

    __slots__ = ("entries", "nodes", "ranks", "sums")

    def __init__(self, entries: list[RunningEntry]) -> None:
        """`nodes` is where they run, as a bitmap, and `sums` is what they hold together."""
        self.entries = entries
        self.ranks = {entry.running.allocation.id: rank for rank, entry in enumerate(entries)}
        self.sums = summed(entries)
        self.nodes = 0
        for entry in entries:
            self.nodes |= entry.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRights:
    """Which preemption reasons the considered job has.

    By class: `other_tenants` may be its victims; it may evict batch work of its tenant for
    `interactive` work; it `reclaims` what accounts borrowed, and `reclaims_pool` what its pool
    lent. `would_borrow` says that it would borrow from the other pool, and `reservation_due` that
    the time of its reservation has come. `path` are its own nodes of the `tree`, from which what is
    lent is read. With `only`, all victims are among these candidates.
    """

    job: JobContext
    tree: QuotaTree
    path: frozenset[Key] = frozenset()
    other_tenants: bool = True
    interactive: bool = False
    reclaims: tuple[Right, ...] = ()
    reclaims_pool: Right | None = None
    would_borrow: bool = False
    reservation_due: bool = False
    only: Candidates | None = None


class PreemptionReasons:
    """The rules of one pass; `evicting` are the allocations that the pass evicts already."""

    def __init__(
        self, state: ClusterState, quota: QuotaUsage, evicting: set[str], now_ms: int
    ) -> None:
        """Read the rules from the policy of the state."""
        self._state = state
        self._policy = state.policy
        self._quota = quota
        self._admission = quota.admission
        self._evicting = evicting
        self._now_ms = now_ms
        self._by_class = state.policy.preemption is Preemption.CLASS
        self._interactive_milli: dict[tuple[str, str], int] = {}
        self._own_batch: dict[tuple[str, str, int, int], Candidates] = {}

    def rights_for_room(self, job: JobContext, *, reservation_due: bool) -> PreemptionRights | None:
        """The rights of a job that does not fit; None if it may evict no job."""
        if not self._by_class:
            tree = self._admission.tree
            return PreemptionRights(job=job, tree=tree, reservation_due=reservation_due)
        spec = job.entry.waiting.job
        others = self._state.tenant(spec.tenant).can_preempt_others
        interactive = job.entry.shape.interactive and self.is_within_cap(spec)
        tree = self._admission.tree
        reclaims = reclaims_pool = None
        if self._state.has_quotas:
            wanted = job_amounts(spec, self._state.limit_ms(spec), spec.min_members)
            reclaims = self._quota.right(job.entry) if others else None
            reclaims_pool = tree.pool_right(spec, wanted)
        if not (others or interactive or reclaims_pool):
            return None
        return PreemptionRights(
            job=job,
            tree=tree,
            path=tree.path(spec),
            other_tenants=others,
            interactive=interactive,
            reclaims=() if reclaims is None else (reclaims,),
            reclaims_pool=reclaims_pool,
            would_borrow=reclaims_pool is None and tree.lends(spec.pool),
            reservation_due=reservation_due,
        )

    def rights_at_quota(
        self, job: JobContext, reclaims: tuple[Right, ...], reclaims_pool: Right | None
    ) -> PreemptionRights:
        """The rights of a job over a quota: it reclaims what was lent, or it is interactive.

        What is lent is read from a copy of the tree: while victims are chosen, those that leave are
        not in the holdings.
        """
        tree = self._admission.tree
        lends = bool(reclaims or reclaims_pool)
        return PreemptionRights(
            job=job,
            tree=tree.copy() if lends else tree,
            path=tree.path(job.entry.waiting.job),
            other_tenants=False,
            interactive=not lends,
            reclaims=reclaims,
            reclaims_pool=reclaims_pool,
        )

    def victims_at_quota(self, rights: PreemptionRights, *, of_user: bool) -> Candidates:
        """Jobs that may be evicted for one over a quota.

        They are of the same tenant (or user), unless it reclaims what other nodes borrowed.
        """
        spec = rights.job.entry.waiting.job
        user = spec.user if of_user else ""
        above = self._above_batch(rights.job.entry) if rights.interactive else -1
        key = (spec.tenant, user, above, len(self._evicting))
        found = None if rights.reclaims else self._own_batch.get(key)
        if found is None:
            reclaimed = self.reclaimed()
            victims = [
                victim
                for victim in self._state.running.values()
                if (
                    rights.reclaims
                    or (
                        victim.running.job.tenant == spec.tenant
                        and user in {"", victim.running.job.user}
                    )
                )
                and self.reason(rights, victim, reclaimed)
            ]
            victims.sort(key=lambda victim: (self.cost(victim), victim.end_key))
            found = Candidates(victims)
            if not rights.reclaims:
                self._own_batch[key] = found
        return found

    def reason(
        self, rights: PreemptionRights, victim: RunningEntry, reclaimed: Reclaimed
    ) -> PreemptionReason | None:
        """Why this running job may be evicted for the considered one; None if it may not."""
        running = victim.running
        entry = rights.job.entry
        if (
            running.stopping
            or running.allocation.id in self._evicting
            or not running.job.preemptible
        ):
            return None
        if running.job.number == entry.number:
            return None
        if rights.only is not None and running.allocation.id not in rights.only.ranks:
            return None
        if rights.reclaims_pool and self._is_lent(rights, rights.reclaims_pool, victim, reclaimed):
            return PreemptionReason.LENT
        if running.expected_end_ms - self._now_ms <= self._policy.eviction_ms:
            return None
        if not self._by_class:
            has_less_right = self._has_less_right(entry, victim) and not self._is_spared(victim)
            return PreemptionReason(self._policy.preemption) if has_less_right else None
        tenant = self._state.tenant(running.job.tenant)
        reason = None
        if tenant.allow_preemption and running.preemptions < tenant.max_preemptions:
            reason = self._class_reason(rights, victim, reclaimed)
        if reason is PreemptionReason.CLASS and self._is_spared(victim):
            reason = None
        if (
            not reason
            and rights.reclaims
            and not self._is_guaranteed_to_other_pool(rights, victim, reclaimed)
            and any(self._is_lent(rights, each, victim, reclaimed) for each in rights.reclaims)
        ):
            return PreemptionReason.LENT
        return reason

    def cost(self, victim: RunningEntry) -> int:
        """Lost GPU time, more for a job that was evicted before.

        With known restart costs every victim costs something, so that one wide victim is better
        than many narrow ones, and the more the less it has left to run: its eviction gains little.
        """
        running = victim.running
        if running.backfilled and running.overrun:
            return 0
        lost_ms, each_ms = self._lost_ms(running), 0
        if self._policy.restart is not None:
            left_ms = max(1, running.expected_end_ms - self._now_ms)
            lost_ms += lost_ms * GAIN_MS // left_ms
            each_ms = EACH_MS
        gpu_milli = max(WHOLE_MILLI, victim.amounts.gpu_milli)
        return (lost_ms * gpu_milli // WHOLE_MILLI + each_ms) * (1 + running.preemptions)

    def _lost_ms(self, running: Running) -> int:
        """The run time that an eviction loses: since the last checkpoint, and for the restart."""
        restart = self._policy.restart
        unsaved_ms = max(0, self._now_ms - max(running.allocation.start_ms, running.checkpoint_ms))
        if restart is None:
            return unsaved_ms + self._policy.eviction_ms
        if restart.checkpoint_every_ms and not running.checkpoint_ms:
            # Which part of the interval has passed is not known.
            unsaved_ms = min(unsaved_ms, restart.checkpoint_every_ms // 2)
        return unsaved_ms + self._policy.eviction_ms + restart.restart_ms

    def _is_spared(self, victim: RunningEntry) -> bool:
        """Tell whether the job should end before its eviction would pay off.

        A job that has run longer than expected is no longer spared, so no job waits for one for
        longer than `spare_ms`.
        """
        restart, running = self._policy.restart, victim.running
        if restart is None or running.overrun:
            return False
        left_ms = running.expected_end_ms - self._now_ms
        return left_ms <= min(PAYS_OFF * self._lost_ms(running), restart.spare_ms)

    def victims_on(self, rights: PreemptionRights, ordinal: int, reclaimed: Reclaimed) -> Victims:
        """All jobs on a node that may be evicted, the cheapest first."""
        found = []
        for victim in self._state.by_node.get(ordinal, {}).values():
            reason = self.reason(rights, victim, reclaimed)
            if reason:
                found.append((self.cost(victim), victim.end_key, victim, reason))
        found.sort(key=itemgetter(0, 1))
        return [(victim, reason) for _, _, victim, reason in found]

    def nodes_with_victims(self, rights: PreemptionRights) -> int:
        """The nodes that may have victims, as a bitmap.

        The search looks only at a bounded number of nodes, so it should get no others.
        """
        if not self._by_class:
            return self._nodes_of_classes(None)
        bits = 0
        entry = rights.job.entry
        if rights.other_tenants:
            gap = 0 if rights.reservation_due else self._policy.preempt_gap
            bits |= self._nodes_of_classes(entry.static_class - gap)
        if rights.interactive:
            own = self._state.account_nodes.get((entry.waiting.job.tenant, Pool.BATCH))
            if own is not None:
                bits |= own.bits & self._nodes_of_classes(self._above_batch(entry) - 1)
        for right in (*rights.reclaims, rights.reclaims_pool):
            if right is not None:
                bits |= self._nodes_of_borrowers(rights, right)
        return bits

    def is_cacheable(self, rights: PreemptionRights) -> bool:
        """Tell whether the same victims may be evicted for all jobs of the class, at any time.

        What was lent changes with what other accounts hold, and an array evicts none of its own
        tasks.
        """
        if not self._by_class or rights.reclaims_pool is not None or rights.interactive:
            return False
        if rights.would_borrow or rights.tree.accounts:
            return False
        return not rights.reservation_due or rights.job.entry.waiting.job.array is None

    @staticmethod
    def is_independent(
        rights: PreemptionRights, victim: RunningEntry, reason: PreemptionReason
    ) -> bool:
        """Tell whether a reason is independent of what other victims return."""
        if reason is PreemptionReason.LENT or rights.tree.accounts:
            return False
        return victim.running.job.pool is Pool.BATCH and not rights.would_borrow

    def reclaimed(self) -> Reclaimed:
        """The resources already being reclaimed from each node."""
        reclaimed: Reclaimed = {}
        for job, amounts in self._quota.evicting_sums():
            self._admission.tree.reclaim(reclaimed, job, amounts)
        return reclaimed

    def reclaim(self, reclaimed: Reclaimed, victim: RunningEntry) -> None:
        """Count the resources reclaimed from one more victim."""
        self._admission.tree.reclaim(reclaimed, victim.running.job, victim.amounts)

    def add_interactive_start(self, job: Job, gpu_milli: int) -> None:
        """An interactive job starts in this cycle, or will when its place is free."""
        owner = (job.tenant, job.user)
        self._interactive_milli[owner] = self._interactive_milli.get(owner, 0) + gpu_milli

    def is_within_cap(self, job: Job) -> bool:
        """Tell whether the user may hold this much more interactive work by evicting jobs."""
        owner = (job.tenant, job.user)
        held = job.gpu_milli + self._interactive_milli.get(owner, 0)
        for running in self._state.running.values():
            other = running.running.job
            if other.interactive and (other.tenant, other.user) == owner:
                held += running.amounts.gpu_milli
        for number, reservation in self._state.reservations.items():
            if reservation.claim and number != job.number:
                other = self._state.queue.entries[number].waiting.job
                if other.interactive and (other.tenant, other.user) == owner:
                    held += other.gpu_milli
        return held <= self._policy.interactive_gpu_milli

    def _class_reason(
        self, rights: PreemptionRights, victim: RunningEntry, reclaimed: Reclaimed
    ) -> PreemptionReason | None:
        entry = rights.job.entry
        running = victim.running
        if rights.interactive and self._is_batch_of(entry, victim):
            reason = PreemptionReason.INTERACTIVE
        elif not rights.other_tenants:
            return None
        elif victim.static_class + self._policy.preempt_gap <= entry.static_class:
            reason = PreemptionReason.CLASS
        elif (
            running.backfilled
            and running.overrun
            and victim.static_class <= entry.static_class
            and rights.reservation_due
        ):
            reason = PreemptionReason.OVERRUN
        else:
            return None
        if self._is_guaranteed_to_other_pool(rights, victim, reclaimed):
            return None
        if rights.tree.is_guaranteed(running.job, victim.amounts, rights.path, reclaimed):
            return None
        return reason

    def _is_guaranteed_to_other_pool(
        self, rights: PreemptionRights, victim: RunningEntry, reclaimed: Reclaimed
    ) -> bool:
        """Tell whether the victim uses the guarantee of the other pool.

        No job takes that from online work. A job that would only borrow it does not take it from
        batch work: batch work would reclaim it at once, and so on without end.
        """
        job = victim.running.job
        if job.pool is Pool.BATCH and not rights.would_borrow:
            return False
        own = rights.job.entry.waiting.job.pool
        return rights.tree.is_guaranteed_to_pool(job, victim.amounts, own, reclaimed)

    def _is_batch_of(self, entry: Entry, victim: RunningEntry) -> bool:
        """Tell whether the victim is batch work of the same tenant that could not evict the job."""
        job = victim.running.job
        return (
            job.tenant == entry.waiting.job.tenant
            and not job.interactive
            and job.pool is Pool.BATCH
            and victim.static_class < self._above_batch(entry)
        )

    def _is_lent(
        self, rights: PreemptionRights, right: Right, victim: RunningEntry, reclaimed: Reclaimed
    ) -> bool:
        """Tell whether reclaiming this leaves every borrower its whole guarantee.

        What was lent is always given back, however often the victim was evicted. What a pool lent
        also if the victim should end soon, and to online work even if the victim is larger than
        what batch work borrowed.
        """
        job = victim.running.job
        if not self._state.tenant(job.tenant).allow_preemption:
            return False
        return rights.tree.is_lent(right, job, victim.amounts, reclaimed)

    def _has_less_right(self, entry: Entry, victim: RunningEntry) -> bool:
        """For policies by remaining time or attained service: compare the two jobs."""
        running = victim.running
        waiting = entry.waiting
        ran_ms = self._now_ms - running.allocation.start_ms
        if self._policy.preemption is Preemption.REMAINING:
            left = running.expected_end_ms - self._now_ms
            return left > waiting.expected_ms - waiting.attained_ms + self._policy.eviction_ms
        feedback = self._state.feedback
        if running.protected or ran_ms < feedback.quantum_ms:
            return False
        mine = level_of(
            waiting.served_ms, waiting.job.gpu_milli, feedback, protected=waiting.protected
        )
        theirs = level_of(running.served_ms + ran_ms, running.job.gpu_milli, feedback)
        return theirs > mine

    def _above_batch(self, entry: Entry) -> int:
        """The class of interactive work against batch work: no batch job below can evict it."""
        return entry.static_class + max(0, self._policy.preempt_gap - 1)

    def _nodes_of_classes(self, highest: int | None) -> int:
        """The nodes that run jobs of these classes, up to the `highest`."""
        bits = 0
        for static_class, nodes in self._state.class_nodes.items():
            if highest is None or static_class <= highest:
                bits |= nodes.bits
        return bits

    def _nodes_of_borrowers(self, rights: PreemptionRights, right: Right) -> int:
        """The nodes that run jobs of tenants or pools that hold more than their guarantee."""
        bits = 0
        for (tenant_id, pool), nodes in self._state.account_nodes.items():
            if rights.tree.lends_to(right, tenant_id, pool):
                bits |= nodes.bits
        return bits
