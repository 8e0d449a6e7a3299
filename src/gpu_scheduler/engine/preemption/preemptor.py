"""Who must yield. Only if it lets the waiting job start, and the cheapest victims first.

Grounds: a static class higher by at least the policy's gap; interactive work against batch work of
the same tenant, up to a cap and never against what could stop it in turn, for want of room or
because the tenant is at a limit; a place that was only lent (elastic quota, or by online work to
batch work, then at a limit of the tenant as well) and is wanted back; a
backfilled job that overran its prediction and stands in the way of a due reservation; and, for the
feedback policies, a lower level of attained service. Aging and fair share are no ground, so
evictions cannot go in circles (docs/explanation/preemption.md).
"""

from __future__ import annotations

from operator import itemgetter

from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.preemption.candidates import (
    INTERACTIVE,
    LENT,
    Candidates,
    SameTenantVictims,
)
from gpu_scheduler.engine.preemption.victims import SearchSpace, Victims, VictimSearch, VictimsFound
from gpu_scheduler.engine.priority import level_of
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.quota.rules import job_amounts
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.engine.reservation.calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.engine.state.node_resources import NodeResources
from gpu_scheduler.engine.state.request_shape import RequestShape
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.request import WHOLE_MILLI


class Preemptor:
    """Looks for victims in one cycle."""

    def __init__(
        self, state: ClusterState, calendar: Calendar, limits: QuotaUsage, now_ms: int
    ) -> None:
        """`calendar.leaving` has those who have been chosen already."""
        self._state = state
        self._policy = state.policy
        self._calendar = calendar
        self._limits = limits
        self._admission = limits.admission
        self._now_ms = now_ms
        self._by_class = state.policy.preemption is Preemption.CLASS
        self._interactive = self._would_borrow = False
        self._others = True
        self._started_milli: dict[tuple[str, str], int] = {}
        self._only: Candidates | None = None
        self._lent_milli = 0
        self._own_batch: dict[tuple[str, str, int, int], Candidates] = {}

    def clear_place(
        self, entry: Entry, search: SearchSpace, *, is_due: bool
    ) -> VictimsFound | None:
        """Find who must leave so that the job fits, or None.

        `is_due` says that the job has a reservation whose time has come, as first promised.
        """
        self._reclaims = self._reclaims_pool = self._would_borrow = False
        self._due = is_due
        self._only = None
        self._lent_milli = 0
        if self._by_class:
            job = entry.waiting.job
            self._others = self._state.tenant(job.tenant).can_preempt_others
            self._interactive = entry.shape.interactive and self.is_within_cap(job)
            if self._state.has_limits:
                wanted = job_amounts(job, self._state.limit_ms(job), job.min_members)
                self._reclaims = self._others and self._admission.is_within_guarantee(job, wanted)
                self._reclaims_pool = self._admission.is_within_pool(job, wanted)
                self._would_borrow = self._admission.would_borrow(job, wanted)
            if not (self._others or self._interactive or self._reclaims_pool):
                return None
        return self._cleared(entry, search, self._nodes_with_victims(entry))

    def clear_own(
        self, entry: Entry, search: SearchSpace, relief: SameTenantVictims
    ) -> VictimsFound | None:
        """The same for a job over a limit: nobody leaves but the candidates."""
        self._turn_to_own(relief.candidates, relief.lent_milli)
        return self._cleared(entry, search, relief.candidates.nodes, relief)

    def own_batch(self, entry: Entry, *, of_user: bool, lent_milli: int) -> Candidates:
        """Batch work of the job's own tenant (or user) that may be stopped for it.

        As interactive work does; or with `lent_milli`, as so much was lent by the job's pool.
        """
        self._turn_to_own(None, lent_milli)
        job = entry.waiting.job
        user = job.user if of_user else ""
        above = -1 if lent_milli else _above_batch(entry, self._policy.preempt_gap)
        key = (job.tenant, user, above, len(self._calendar.leaving))
        found = self._own_batch.get(key)
        if found is None:
            taken = self.taken()
            victims = [
                victim
                for victim in self._state.running.values()
                if victim.running.job.tenant == job.tenant
                and user in {"", victim.running.job.user}
                and self.ground(entry, victim, taken)
            ]
            victims.sort(key=lambda victim: (self.cost(victim), victim.end_key))
            found = self._own_batch[key] = Candidates(victims)
        return found

    def note_start(self, job: Job, gpu_milli: int) -> None:
        """An interactive job starts in this cycle, or will when its place is cleared."""
        owner = (job.tenant, job.user)
        self._started_milli[owner] = self._started_milli.get(owner, 0) + gpu_milli

    def taken(self) -> dict[str | Pool, int]:
        """What is being taken from each tenant and pool already: they hold it, and not for long."""
        taken: dict[str | Pool, int] = {}
        for job, amounts in self._limits.of_leaving():
            for owner in (job.tenant, job.pool):
                taken[owner] = taken.get(owner, 0) + amounts.gpu_milli
        return taken

    def ground(self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]) -> str:
        """Why this running job may be stopped for that waiting one; empty if it may not.

        `taken` is what is being taken back already from a tenant or pool that borrowed.
        """
        running = victim.running
        if running.stopping or running.allocation.id in self._calendar.leaving:
            return ""
        if not running.job.preemptible or running.job.number == entry.number:
            return ""
        if self._only is not None and running.allocation.id not in self._only.ranks:
            return ""
        if self._by_class and self._is_lent_by_pool(entry, victim, taken):
            return LENT
        if running.expected_end_ms - self._now_ms <= self._policy.eviction_ms:
            return ""
        if not self._by_class:
            return self._policy.preemption.value if self._is_worse(entry, victim) else ""
        ground = self._class_ground(entry, victim, taken)
        if ground:
            tenant = self._state.tenant(running.job.tenant)
            if not tenant.allow_preemption or running.preemptions >= tenant.max_preemptions:
                return ""
        return ground

    def cost(self, victim: RunningEntry) -> int:
        """Work since the last checkpoint, more for those who were stopped before."""
        running = victim.running
        if running.backfilled and running.overrun:
            return 0
        since = max(running.allocation.start_ms, running.checkpoint_ms)
        lost_ms = max(0, self._now_ms - since) + self._policy.eviction_ms
        gpu_milli = max(WHOLE_MILLI, victim.amounts.gpu_milli)
        return lost_ms * gpu_milli // WHOLE_MILLI * (1 + running.preemptions)

    def shadow(self, ordinal: int) -> NodeResources:
        """A node as it will be when those who were chosen before have left."""
        return self._calendar.shadow(self._state.index.nodes[ordinal])

    def victims_on(self, entry: Entry, ordinal: int, taken: dict[str | Pool, int]) -> Victims:
        """Everyone on a node who may be stopped, the cheapest first."""
        found = []
        for victim in self._state.by_node.get(ordinal, {}).values():
            ground = self.ground(entry, victim, taken)
            if ground:
                found.append((self.cost(victim), victim.end_key, victim, ground))
        found.sort(key=itemgetter(0, 1))
        return [(victim, ground) for _, _, victim, ground in found]

    def barren_nodes(self, entry: Entry, shape: RequestShape) -> int:
        """Nodes on which there is nothing to be had for the job, as was found before."""
        if not self._can_remember(entry):
            return 0
        barren = self._state.preemption_cache.of((shape.id, entry.static_class, self._due))
        return barren & ~self._calendar.unsettled

    def note_barren(self, entry: Entry, shape: RequestShape, nodes: int) -> None:
        """Remember nodes on which there is nothing to be had, as far as they are like that."""
        nodes &= ~self._calendar.unsettled
        if nodes and self._can_remember(entry) and self._calendar.rule is None:
            self._state.preemption_cache.add((shape.id, entry.static_class, self._due), nodes)

    @property
    def state(self) -> ClusterState:
        """The cluster state that is looked at."""
        return self._state

    def _turn_to_own(self, only: Candidates | None, lent_milli: int) -> None:
        """From here on what was lent is the only ground, or else an interactive job.

        With `only`, against these.
        """
        self._reclaims = self._due = self._others = self._would_borrow = False
        self._reclaims_pool = lent_milli > 0
        self._interactive = not lent_milli
        self._lent_milli = lent_milli
        self._only = only

    def _cleared(
        self, entry: Entry, search: SearchSpace, nodes: int, relief: SameTenantVictims | None = None
    ) -> VictimsFound | None:
        """Look for victims on `nodes`, rack by rack if all members must be in one."""
        nodes &= ~search.promised
        if not nodes:
            return None
        racks = self._state.index.racks()
        if entry.shape.same_rack and len(racks) > 1:
            for bits in racks.values():
                found = VictimSearch(self, entry, search, relief, bits).run(nodes & bits)
                if found is not None:
                    return found
            return None
        return VictimSearch(self, entry, search, relief).run(nodes)

    def _nodes_with_victims(self, entry: Entry) -> int:
        """The nodes where it is worth to look, as a bitmap.

        Only a bounded number of them is looked at, so no others should be there.
        """
        if not self._by_class:
            return self._nodes_of_classes(None)
        bits = 0
        gap = self._policy.preempt_gap
        if self._others:
            worst = entry.static_class if self._due else entry.static_class - gap
            bits |= self._nodes_of_classes(worst)
        if self._interactive:
            own = self._state.account_nodes.get((entry.waiting.job.tenant, Pool.BATCH))
            if own is not None:
                bits |= own.bits & self._nodes_of_classes(_above_batch(entry, gap) - 1)
        if self._reclaims or self._reclaims_pool:
            bits |= self._nodes_with_lent(entry.waiting.job.pool)
        return bits

    def _nodes_of_classes(self, highest: int | None) -> int:
        """Where work of these classes runs, up to the `highest`."""
        bits = 0
        for static_class, nodes in self._state.class_nodes.items():
            if highest is None or static_class <= highest:
                bits |= nodes.bits
        return bits

    def _nodes_with_lent(self, pool: Pool) -> int:
        """Where work of those runs who hold more than they are sure of."""
        bits = 0
        admission = self._admission
        for (tenant_id, other), nodes in self._state.account_nodes.items():
            by_pool = self._reclaims_pool and other is not pool and admission.pool_borrows(other)
            if by_pool or (self._reclaims and admission.borrows(tenant_id)):
                bits |= nodes.bits
        return bits

    def _can_remember(self, entry: Entry) -> bool:
        """Tell whether who may be stopped is the same for all jobs of the class, at any time.

        What was lent changes with what others hold, and no array stops its own tasks.
        """
        if not self._by_class or self._reclaims or self._reclaims_pool or self._interactive:
            return False
        if self._would_borrow:
            return False
        return not self._due or entry.waiting.job.array is None

    def _class_ground(
        self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]
    ) -> str:
        if self._is_sure_for_other_pool(entry, victim, taken):
            return ""
        if self._interactive and self._is_batch_of(entry, victim):
            return INTERACTIVE
        if not self._others:
            return ""
        if victim.static_class + self._policy.preempt_gap <= entry.static_class:
            return "class"
        if self._is_lent(victim, taken):
            return LENT
        if (
            victim.running.backfilled
            and victim.running.overrun
            and victim.static_class <= entry.static_class
            and self._due
        ):
            return "overrun"
        return ""

    def _is_sure_for_other_pool(
        self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]
    ) -> bool:
        """Tell whether the victim stands on what the other pool is sure of.

        From online work nobody takes that. From batch work nobody does who would only borrow it:
        batch work would take it back at once, and so on without end.
        """
        job = victim.running.job
        if job.pool is entry.waiting.job.pool:
            return False
        if job.pool is Pool.BATCH and not self._would_borrow:
            return False
        gpu_milli, taken_milli = victim.amounts.gpu_milli, taken.get(job.pool, 0)
        return self._admission.is_guaranteed(job, gpu_milli, taken_milli)

    def is_lasting(self, victim: RunningEntry, ground: str) -> bool:
        """Tell whether a ground does not depend on what is taken back from others."""
        return ground != LENT and victim.running.job.pool is Pool.BATCH and not self._would_borrow

    def _is_batch_of(self, entry: Entry, victim: RunningEntry) -> bool:
        """Tell whether the victim is batch work of the same tenant that could not do the same."""
        job = victim.running.job
        return (
            job.tenant == entry.waiting.job.tenant
            and not job.interactive
            and job.pool is Pool.BATCH
            and victim.static_class < _above_batch(entry, self._policy.preempt_gap)
        )

    def is_within_cap(self, job: Job) -> bool:
        """Tell whether the user may have this much more of interactive work by stopping others."""
        held = job.gpu_milli + self._started_milli.get((job.tenant, job.user), 0)
        for running in self._state.running.values():
            other = running.running.job
            if other.interactive and (other.tenant, other.user) == (job.tenant, job.user):
                held += running.amounts.gpu_milli
        for number, reservation in self._state.reservations.items():
            if reservation.claim and number != job.number:
                other = self._state.queue.entries[number].waiting.job
                if other.interactive and (other.tenant, other.user) == (job.tenant, job.user):
                    held += other.gpu_milli
        return held <= self._policy.interactive_gpu_milli

    def _is_lent(self, victim: RunningEntry, taken: dict[str | Pool, int]) -> bool:
        """Tell whether taking this back leaves the borrower all that it is sure of."""
        job = victim.running.job
        gpu_milli = victim.amounts.gpu_milli
        left = self._admission.borrowed_milli(job.tenant) - taken.get(job.tenant, 0)
        return self._reclaims and gpu_milli <= left

    def _is_lent_by_pool(
        self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]
    ) -> bool:
        """Tell whether the victim stands on what the waiting job's pool is sure of.

        That was lent on the condition that it is given back: how often the victim has been stopped
        and when it should end does not matter. Online work also takes back from a batch job that is
        larger than what is borrowed; batch work leaves online work all that it is sure of.
        """
        job = victim.running.job
        gpu_milli = victim.amounts.gpu_milli
        if not self._reclaims_pool or job.pool is entry.waiting.job.pool or not gpu_milli:
            return False
        if not self._state.tenant(job.tenant).allow_preemption:
            return False
        # While a relief is worked out, those who leave are not in the sums.
        lent_milli = self._lent_milli or self._admission.pool_borrowed_milli(job.pool)
        left = lent_milli - taken.get(job.pool, 0)
        return left > 0 if job.pool is Pool.BATCH else gpu_milli <= left

    def _is_worse(self, entry: Entry, victim: RunningEntry) -> bool:
        running = victim.running
        waiting = entry.waiting
        ran_ms = self._now_ms - running.allocation.start_ms
        if self._policy.preemption is Preemption.REMAINING:
            left = running.expected_end_ms - self._now_ms
            return left > waiting.expected_ms - waiting.attained_ms + self._policy.eviction_ms
        feedback = self._policy.feedback
        if running.protected or ran_ms < feedback.quantum_ms:
            return False
        mine = level_of(
            waiting.served_ms, waiting.job.gpu_milli, feedback, protected=waiting.protected
        )
        theirs = level_of(running.served_ms + ran_ms, running.job.gpu_milli, feedback)
        return theirs > mine


def _above_batch(entry: Entry, gap: int) -> int:
    """The rank of interactive work against batch work: no batch job that could stop it is below."""
    return entry.static_class + max(0, gap - 1)
