"""Who must yield. Only if it lets the waiting job start, and the cheapest victims first.

Grounds: a static class higher by at least the policy's gap; interactive work against batch work of
the same tenant, up to a cap and never against what could stop it in turn; a place that was only
lent (elastic quota) and is wanted back; a backfilled job that overran its prediction and stands in
the way of a due reservation; and, for the feedback policies, a lower level of attained service.
Aging and fair share are no ground, so evictions cannot go in circles
(docs/explanation/preemption.md).

Looks at a bounded number of nodes, and tries everything on shadows: the draft is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from gpu_scheduler.engine.admit import Admission, job_amounts
from gpu_scheduler.engine.kind import lowest_bits
from gpu_scheduler.engine.order import level_of
from gpu_scheduler.engine.picture import Picture, RunningEntry
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.reserve import Calendar
from gpu_scheduler.engine.shape import Part, Shape
from gpu_scheduler.engine.slot import Hold, Slot
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import Eviction
from gpu_scheduler.model.request import WHOLE_MILLI

Finder = Callable[[Shape, int | None], Hold | None]
Victims = list[tuple[RunningEntry, str]]
"""Running jobs that must leave, each with the ground for it."""
LENT = "lent"


class Preemptor:
    """Looks for victims in one cycle."""

    def __init__(
        self, picture: Picture, calendar: Calendar, admission: Admission, now_ms: int
    ) -> None:
        """`calendar.leaving` has those who have been chosen already."""
        self._picture = picture
        self._policy = picture.policy
        self._calendar = calendar
        self._admission = admission
        self._now_ms = now_ms
        self._by_class = picture.policy.preemption is Preemption.CLASS
        self._interactive = False
        self._others = True
        self._started_milli: dict[tuple[str, str], int] = {}

    def clear_place(
        self, entry: Entry, find: Finder, within: int | None, promised: int, *, is_due: bool
    ) -> tuple[list[Hold], list[Eviction]] | None:
        """Find who must leave so that the job fits, or None. `promised` nodes are not cleared.

        `is_due` says that the job has a reservation whose time has come, as first promised.
        """
        self._reclaims = self._reclaims_pool = False
        self._due = is_due
        if self._by_class:
            job = entry.waiting.job
            self._others = self._picture.tenant(job.tenant).can_preempt_others
            self._interactive = entry.shape.interactive and self._is_within_cap(job)
            if self._picture.has_limits:
                wanted = job_amounts(job, self._picture.limit_ms(job), job.min_members)
                self._reclaims = self._others and self._admission.is_within_guarantee(job, wanted)
                self._reclaims_pool = self._admission.is_within_pool(job, wanted)
            if not (self._others or self._interactive or self._reclaims_pool):
                return None
        nodes = self._nodes_with_victims(entry) & ~promised
        if not nodes:
            return None
        racks = self._picture.index.racks()
        if entry.shape.same_rack and len(racks) > 1:
            for bits in racks.values():
                inside = bits if within is None else bits & within
                found = _Clearing(self, entry, find, bits).run(inside, nodes & bits)
                if found is not None:
                    return found
            return None
        return _Clearing(self, entry, find, ~promised).run(within, nodes)

    def note_start(self, job: Job, gpu_milli: int) -> None:
        """An interactive job starts in this cycle, or will when its place is cleared."""
        owner = (job.tenant, job.user)
        self._started_milli[owner] = self._started_milli.get(owner, 0) + gpu_milli

    def ground(self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]) -> str:
        """Why this running job may be stopped for that waiting one; empty if it may not.

        `taken` is what is being taken back already from a tenant or pool that borrowed.
        """
        running = victim.running
        if running.stopping or running.allocation.id in self._calendar.leaving:
            return ""
        if not running.job.preemptible or running.job.number == entry.number:
            return ""
        if self._by_class and self._is_lent_by_pool(entry, victim, taken):
            return LENT
        if running.expected_end_ms - self._now_ms <= self._policy.eviction_ms:
            return ""
        if not self._by_class:
            return self._policy.preemption.value if self._is_worse(entry, victim) else ""
        ground = self._class_ground(entry, victim, taken)
        if ground:
            tenant = self._picture.tenant(running.job.tenant)
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

    def shadow(self, ordinal: int) -> Slot:
        """A node as it will be when those who were chosen before have left."""
        return self._calendar.shadow(self._picture.index.slots[ordinal])

    def victims_on(self, entry: Entry, ordinal: int, taken: dict[str | Pool, int]) -> Victims:
        """Everyone on a node who may be stopped, the cheapest first."""
        found = []
        for victim in self._picture.by_node.get(ordinal, {}).values():
            ground = self.ground(entry, victim, taken)
            if ground:
                found.append((self.cost(victim), victim.end_key, victim, ground))
        found.sort(key=itemgetter(0, 1))
        return [(victim, ground) for _, _, victim, ground in found]

    def barren_nodes(self, entry: Entry, shape: Shape) -> int:
        """Nodes on which there is nothing to be had for the job, as was found before."""
        if not self._can_remember(entry):
            return 0
        barren = self._picture.barren_nodes.of((shape.id, entry.static_class, self._due))
        return barren & ~self._calendar.unsettled

    def note_barren(self, entry: Entry, shape: Shape, nodes: int) -> None:
        """Remember nodes on which there is nothing to be had, as far as they are like that."""
        nodes &= ~self._calendar.unsettled
        if nodes and self._can_remember(entry) and self._calendar.rule is None:
            self._picture.barren_nodes.add((shape.id, entry.static_class, self._due), nodes)

    @property
    def picture(self) -> Picture:
        """The picture that is looked at."""
        return self._picture

    def _nodes_with_victims(self, entry: Entry) -> int:
        """The nodes where it is worth to look, as a bitmap."""
        bits = 0
        highest = entry.static_class - self._policy.preempt_gap
        worst = entry.static_class if self._due else highest
        if self._interactive:
            worst = max(worst, _above_batch(entry, self._policy.preempt_gap) - 1)
        reclaims = self._reclaims or self._reclaims_pool
        for static_class, nodes in self._picture.class_nodes.items():
            if not self._by_class or reclaims or static_class <= worst:
                bits |= nodes.bits
        return bits

    def _can_remember(self, entry: Entry) -> bool:
        """Tell whether who may be stopped is the same for all jobs of the class, at any time.

        What was lent changes with what others hold, and no array stops its own tasks.
        """
        if not self._by_class or self._reclaims or self._reclaims_pool or self._interactive:
            return False
        return not self._due or entry.waiting.job.array is None

    def _class_ground(
        self, entry: Entry, victim: RunningEntry, taken: dict[str | Pool, int]
    ) -> str:
        job = victim.running.job
        if job.pool is not entry.waiting.job.pool and self._admission.is_sure(
            job, victim.amounts.gpu_milli, taken.get(job.pool, 0)
        ):
            return ""
        if self._interactive and self._is_batch_of(entry, victim):
            return "interactive"
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

    def _is_batch_of(self, entry: Entry, victim: RunningEntry) -> bool:
        """Tell whether the victim is batch work of the same tenant that could not do the same."""
        job = victim.running.job
        return (
            job.tenant == entry.waiting.job.tenant
            and not job.interactive
            and job.pool is Pool.BATCH
            and victim.static_class < _above_batch(entry, self._policy.preempt_gap)
        )

    def _is_within_cap(self, job: Job) -> bool:
        """Tell whether the user may have this much more of interactive work by stopping others."""
        held = job.gpu_milli + self._started_milli.get((job.tenant, job.user), 0)
        for running in self._picture.running.values():
            other = running.running.job
            if other.interactive and (other.tenant, other.user) == (job.tenant, job.user):
                held += running.amounts.gpu_milli
        for number, reservation in self._picture.reservations.items():
            if reservation.claim and number != job.number:
                other = self._picture.queue.entries[number].waiting.job
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
        if not self._picture.tenant(job.tenant).allow_preemption:
            return False
        left = self._admission.pool_borrowed_milli(job.pool) - taken.get(job.pool, 0)
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


class _Clearing:
    """One search for places and victims, member by member."""

    def __init__(self, preemptor: Preemptor, entry: Entry, find: Finder, bounds: int) -> None:
        self._bounds = bounds
        self._preemptor = preemptor
        self._entry = entry
        self._find = find
        self._index = preemptor.picture.index
        self._shadows: dict[int, Slot] = {}
        self._chosen: dict[str, tuple[RunningEntry, str]] = {}
        self._taken: dict[str | Pool, int] = {}

    def run(self, within: int | None, nodes: int) -> tuple[list[Hold], list[Eviction]] | None:
        """Members beyond the minimum stop nobody; nobody is stopped for nothing."""
        shape = self._entry.shape
        holds: list[Hold] = []
        for member, request in enumerate(shape.members):
            hold = self._on_free_node(request, within)
            if hold is None and member < shape.min_members:
                hold = self._where_victims_leave(request, nodes)
            if hold is None:
                if member < shape.min_members:
                    return None
                break
            hold.member = member
            holds.append(hold)
        if not self._chosen:
            return None
        evictions = [
            Eviction(allocation_id, victim.running.job.id, self._entry.waiting.job.id, ground)
            for allocation_id, (victim, ground) in self._chosen.items()
        ]
        return holds, evictions

    def _on_free_node(self, shape: Shape, within: int | None) -> Hold | None:
        """A place that needs no victim, off the nodes that are being cleared."""
        cleared = 0
        for ordinal in self._shadows:
            cleared |= self._index.slots[ordinal].bit
        allowed = within
        if cleared:
            allowed = ~cleared if within is None else within & ~cleared
        hold = self._find(shape, allowed)
        if hold is None:
            return None
        shadow = self._shadows[hold.slot.ordinal] = self._preemptor.shadow(hold.slot.ordinal)
        self._index.take(hold.on(shadow))
        return hold

    def _where_victims_leave(self, shape: Shape, nodes: int) -> Hold | None:
        """The node where the least is lost, among a bounded number."""
        touched, fresh = self._candidates(shape, nodes)
        preemptor = self._preemptor
        barren = preemptor.barren_nodes(self._entry, shape) & ~touched
        found_barren = 0
        best: tuple[int, int, Victims] | None = None
        for slot in self._index.slots_in(touched | fresh & ~barren):
            room = self._room_on(slot.ordinal, shape)
            if room is None:
                found_barren |= slot.bit
                continue
            cost = sum(preemptor.cost(victim) for victim, _ in room)
            if best is None or cost < best[0]:
                best = (cost, slot.ordinal, room)
        preemptor.note_barren(self._entry, shape, found_barren & ~touched)
        if best is None:
            return None
        return self._take(best[1], shape, best[2])

    def _candidates(self, shape: Shape, nodes: int) -> tuple[int, int]:
        """The nodes that are being cleared already, and others up to the bound, by ordinal."""
        eligible = self._bounds & self._index.of_kinds(shape)
        selected = self._index.selected(shape.request)
        if selected is not None:
            eligible &= selected
        touched = 0
        for ordinal in self._shadows:
            touched |= self._index.slots[ordinal].bit
        touched &= eligible
        most = self._preemptor.picture.policy.max_victim_nodes
        if touched.bit_count() >= most:
            return lowest_bits(touched, most), 0
        return touched, lowest_bits(nodes & eligible, most - touched.bit_count())

    def _take(self, ordinal: int, shape: Shape, room: Victims) -> Hold | None:
        for victim, ground in room:
            self._chosen[victim.running.allocation.id] = (victim, ground)
            _take_back(self._taken, victim)
            for held in victim.holds:
                shadow = self._shadow(held.slot.ordinal)
                self._index.give(held.on(shadow))
        shadow = self._shadow(ordinal)
        hold = shadow.choose_any(shape)
        if hold is not None:
            self._index.take(hold)
        return hold

    def _shadow(self, ordinal: int) -> Slot:
        shadow = self._shadows.get(ordinal)
        if shadow is None:
            shadow = self._shadows[ordinal] = self._preemptor.shadow(ordinal)
        return shadow

    def _room_on(self, ordinal: int, shape: Shape) -> Victims | None:
        """The cheapest victims on one node that make room, none of them needless."""
        if self._copy_of(ordinal).choose_any(shape) is not None:
            return []
        victims = self._preemptor.victims_on(self._entry, ordinal, self._taken)
        room = self._room_without(victims, ordinal, shape)
        if room is None and any(ground == LENT for _, ground in victims):
            # What was lent may have been taken back from who leaves no device whole.
            room = self._room_without(self._whole_first(victims, ordinal), ordinal, shape)
        return room

    def _copy_of(self, ordinal: int) -> Slot:
        shadow = self._shadows.get(ordinal)
        return self._preemptor.shadow(ordinal) if shadow is None else shadow.copy()

    def _whole_first(self, victims: Victims, ordinal: int) -> Victims:
        """Those first whose devices can be cleared, and of these who takes the least for it."""
        leaving = {victim.running.allocation.id for victim, _ in victims}
        shared: dict[int, int] = {}
        stays: set[int] = set()
        for other in self._preemptor.picture.by_node.get(ordinal, {}).values():
            for position, share, _ in _parts_on(other, ordinal):
                shared[position] = shared.get(position, 0) + share
                if other.running.allocation.id not in leaving:
                    stays.add(position)

        def rank(item: tuple[RunningEntry, str]) -> tuple[bool, int, list[int]]:
            positions = sorted(position for position, _, _ in _parts_on(item[0], ordinal))
            is_shared = any(position in stays for position in positions)
            return is_shared, max((shared[p] for p in positions), default=WHOLE_MILLI), positions

        return sorted(victims, key=rank)

    def _room_without(self, victims: Victims, ordinal: int, shape: Shape) -> Victims | None:
        """Let one after the other leave until there is room."""
        index = self._index
        shadow = self._copy_of(ordinal)
        taken = dict(self._taken)
        leaving: Victims = []
        for victim, first_ground in victims:
            if victim.running.allocation.id in self._chosen:
                continue
            ground = first_ground
            if ground == LENT:
                # Others may have been chosen since, and less is lent then.
                ground = self._preemptor.ground(self._entry, victim, taken)
                if not ground:
                    continue
            _take_back(taken, victim)
            for hold in _on_node(victim, ordinal):
                index.give(hold.on(shadow))
            leaving.append((victim, ground))
            if shadow.choose_any(shape) is not None:
                return self._without_needless(leaving, shadow, shape)
        return None

    def _without_needless(self, leaving: Victims, shadow: Slot, shape: Shape) -> Victims:
        """Spare whoever need not leave, the dearest first; the last one made the room."""
        index = self._index
        for item in reversed(leaving[:-1]):
            parts = [hold.on(shadow) for hold in _on_node(item[0], shadow.ordinal)]
            for part in parts:
                index.take(part)
            if shadow.choose_any(shape) is None:
                for part in parts:
                    index.give(part)
            else:
                leaving.remove(item)
        return leaving


def _above_batch(entry: Entry, gap: int) -> int:
    """The rank of interactive work against batch work: no batch job that could stop it is below."""
    return entry.static_class + max(0, gap - 1)


def _take_back(taken: dict[str | Pool, int], victim: RunningEntry) -> None:
    job = victim.running.job
    for owner in (job.tenant, job.pool):
        taken[owner] = taken.get(owner, 0) + victim.amounts.gpu_milli


def _parts_on(entry: RunningEntry, ordinal: int) -> list[Part]:
    return [part for hold in _on_node(entry, ordinal) for part in hold.parts]


def _on_node(victim: RunningEntry, ordinal: int) -> list[Hold]:
    return [hold for hold in victim.holds if hold.slot.ordinal == ordinal]
