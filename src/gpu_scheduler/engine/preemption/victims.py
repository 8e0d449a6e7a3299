"""The search for victims: a place for one job and the jobs that must leave it, member by member.

In: the job with its preemption rights, and where it may go. Out: a place and evictions, or None.
The search looks at a bounded number of nodes and tries everything on copies of them. What it tries
in the transaction, to see which victims are not needed, is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_scheduler.engine.placement.gangs import try_all
from gpu_scheduler.engine.placement.gpu_choice import lowest_bits
from gpu_scheduler.engine.placement.placer import Placer
from gpu_scheduler.engine.preemption.reasons import (
    PreemptionReasons,
    PreemptionRights,
    Victims,
)
from gpu_scheduler.engine.preemption.same_tenant import SameTenantVictims
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.reservation.backfill_calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry
from gpu_scheduler.engine.state.equivalence_classes import Part, RequestShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.model.plan import Eviction, PreemptionReason
from gpu_scheduler.model.request import WHOLE_MILLI

FreedPlace = tuple[list[Grant], list[Eviction]]
"""A place, and the evictions that free it."""
Room = tuple[int, Victims]
"""What it costs to make room on a node, and the victims."""
MOST_FINDS = 4_000
"""At most so many searches for a place, to see which victims of a gang are not needed."""


class WhatIfNodes:
    """What-if copies of nodes, on which victims have left and members are placed.

    What was found out about a node for one member is valid for other members of the same shape,
    until something changes there. `touched` are the copied nodes, as a bitmap.
    """

    def __init__(self, index: NodeIndex, copy_node: Callable[[int], NodeResources]) -> None:
        """`copy_node` copies a node, by ordinal, as it is before anything is tried."""
        self._index = index
        self._copy_node = copy_node
        self._copies: dict[int, NodeResources] = {}
        self._full: dict[int, int] = {}
        self._rooms: dict[int, dict[int, Room]] = {}
        self.touched = 0

    def at(self, ordinal: int) -> NodeResources:
        """The copy of a node, which counts as touched from now on."""
        copy = self._copies.get(ordinal)
        if copy is None:
            copy = self._copies[ordinal] = self._copy_node(ordinal)
            self.touched |= copy.bit
        return copy

    def scratch_copy(self, ordinal: int) -> NodeResources:
        """A further copy of the node as it is now, to try something on."""
        copy = self._copies.get(ordinal)
        return self._copy_node(ordinal) if copy is None else copy.copy()

    def take(self, grant: Grant) -> None:
        """Place a member."""
        copy = self.at(grant.resources.ordinal)
        self._index.take(grant.on(copy))
        self._forget(copy.bit)

    def evict(self, victim: RunningEntry) -> None:
        """Remove a running job from all its nodes."""
        for grant in victim.grants:
            self._index.give(grant.on(self.at(grant.resources.ordinal)))
        self._forget(victim.nodes)

    def full_for(self, shape: RequestShape) -> int:
        """Nodes that are known to have no room for the shape, whatever is evicted."""
        return self._full.get(shape.id, 0)

    def add_full(self, shape: RequestShape, nodes: int) -> None:
        """Remember that the shape does not fit on these nodes."""
        self._full[shape.id] = self.full_for(shape) | nodes

    def rooms_for(self, shape: RequestShape) -> dict[int, Room]:
        """The victims for the shape by ordinal, as far as known; the caller adds others."""
        return self._rooms.setdefault(shape.id, {})

    def _forget(self, nodes: int) -> None:
        """Forget earlier results for these nodes."""
        for shape_id in self._full:
            self._full[shape_id] &= ~nodes
        for known in self._rooms.values():
            for resources in self._index.nodes_in(nodes):
                known.pop(resources.ordinal, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Where a job may go: free places `within` some nodes, freed ones not on `reserved` nodes.

    It gets at most this many `members`.
    """

    placer: Placer
    within: int | None
    reserved: int
    members: int


class VictimSearch:
    """One search for places and victims for one job."""

    def __init__(
        self,
        state: ClusterState,
        calendar: Calendar,
        reasons: PreemptionReasons,
        rights: PreemptionRights,
        space: SearchSpace,
        *,
        same_tenant: SameTenantVictims | None = None,
        bounds: int | None = None,
    ) -> None:
        """With `same_tenant` the job is over a quota; with `bounds` it must use these nodes."""
        self._bounds = ~space.reserved if bounds is None else bounds
        self._within = space.within
        if bounds is not None:
            self._within = bounds if space.within is None else bounds & space.within
        self._same_tenant = same_tenant
        self._state = state
        self._index = state.index
        self._calendar = calendar
        self._reasons = reasons
        self._rights = rights
        self._entry = rights.job.entry
        self._transaction = space.placer.transaction
        self._find = space.placer.find
        self._members = space.members
        exclusion = rights.job.exclusion
        self._what_if = WhatIfNodes(
            self._index,
            lambda ordinal: calendar.after_evictions(self._index.nodes[ordinal], exclusion),
        )
        self._chosen: dict[str, tuple[RunningEntry, PreemptionReason]] = {}
        self._reclaimed = reasons.reclaimed()

    def run(self, nodes: int) -> FreedPlace | None:
        """Look for victims on `nodes`; None if evictions would not let the job start.

        Members beyond the minimum get no victims. With the last member of the minimum all victims
        are chosen that must leave for a quota.
        """
        shape = self._entry.shape
        grants: list[Grant] = []
        if self._same_tenant is not None:
            self._same_tenant.reset()
        for member, request in enumerate(shape.members[: self._members]):
            grant = self._on_free_node(request)
            if grant is None and member < shape.min_members:
                is_last = member == shape.min_members - 1
                grant = self._on_freed_node(request, nodes, is_last=is_last)
            if grant is None:
                if member < shape.min_members:
                    return None
                break
            grant.member = member
            grants.append(grant)
        if not self._meet_quota() or not self._chosen:
            return None
        if len(grants) > 1:
            grants = self._spare(grants)
        return grants, evictions_for(self._entry, list(self._chosen.values()))

    def _spare(self, grants: list[Grant]) -> list[Grant]:
        """Spare victims without which all members have places as well, the most expensive first.

        The victims of one member may have become needless by those of another.
        """
        shape, transaction = self._entry.shape, self._transaction
        cost = self._reasons.cost
        victims = sorted(self._chosen.values(), key=lambda item: (-cost(item[0]), item[0].end_key))
        mark = transaction.mark()
        for victim, _ in victims:
            for grant in victim.grants:
                transaction.give(grant)
        for victim, _ in victims[: MOST_FINDS // len(grants)]:
            if len(self._chosen) == 1:
                break
            before = transaction.mark()
            for grant in victim.grants:
                transaction.take(grant)
            others = try_all(
                shape.members[: self._members],
                shape.min_members,
                transaction,
                self._find,
                self._within,
            )
            if others is not None and (
                self._same_tenant is None or self._same_tenant.try_to_keep(victim)
            ):
                grants = others
                del self._chosen[victim.running.allocation.id]
            else:
                transaction.undo(before)
        transaction.undo(mark)
        return grants

    def _meet_quota(self) -> bool:
        """Evict further jobs if those that make room are not enough for the quota."""
        same_tenant = self._same_tenant
        if same_tenant is None or same_tenant.is_enough():
            return True
        more = same_tenant.cheapest()
        for victim in more or ():
            self._chosen[victim.running.allocation.id] = (victim, same_tenant.reason)
        return more is not None

    def _on_free_node(self, shape: RequestShape) -> Grant | None:
        """A place that needs no victim, off the nodes that are being freed."""
        allowed = self._within
        touched = self._what_if.touched
        if touched:
            allowed = ~touched if allowed is None else allowed & ~touched
        grant = self._find(shape, allowed)
        if grant is not None:
            self._what_if.take(grant)
        return grant

    def _on_freed_node(self, shape: RequestShape, nodes: int, *, is_last: bool) -> Grant | None:
        """A place on the node where evictions cost the least, among a bounded number."""
        touched, fresh = self._nodes_to_search(shape, nodes)
        job = self._rights.job
        unchanged = ~self._calendar.changed_nodes
        cache = self._state.preemption_cache
        key = (shape.id, job.entry.static_class, self._rights.reservation_due)
        is_cacheable = self._reasons.is_cacheable(self._rights)
        if is_cacheable:
            fresh &= ~(cache.of(key) & unchanged & ~touched)
        without_room = 0
        best: tuple[int, int, Victims] | None = None
        for resources in self._index.nodes_in(touched | fresh):
            found = self._cheapest_room(resources.ordinal, shape, is_last=is_last)
            if found is None:
                without_room |= resources.bit
            elif best is None or found[0] < best[0]:
                best = (found[0], resources.ordinal, found[1])
        self._what_if.add_full(shape, without_room)
        learned = without_room & ~touched & unchanged
        if learned and is_cacheable and job.exclusion is None:
            cache.add(key, learned)
        return None if best is None else self._evict(best[1], shape, best[2])

    def _nodes_to_search(self, shape: RequestShape, nodes: int) -> tuple[int, int]:
        """The nodes that are being freed already, and others: of each up to the bound.

        Where another member of the shape had no room there is none, unless more has left since.
        """
        eligible = (
            self._bounds & self._index.of_node_classes(shape) & ~self._what_if.full_for(shape)
        )
        selected = self._index.selected(shape.request)
        if selected is not None:
            eligible &= selected
        most = self._state.policy.max_victim_nodes
        touched = self._what_if.touched
        return (
            lowest_bits(eligible & touched, most),
            lowest_bits(eligible & nodes & ~touched, most),
        )

    def _cheapest_room(self, ordinal: int, shape: RequestShape, *, is_last: bool) -> Room | None:
        """The victims on one node and their cost, as found for another member or computed now."""
        known = self._what_if.rooms_for(shape)
        at_quota = self._same_tenant is not None and is_last
        if ordinal in known and not at_quota:
            return known[ordinal]
        victims = self._victims_on(ordinal, shape)
        if victims is not None and at_quota:
            victims = self._victims_within_quota(victims, ordinal, shape)
        if victims is None:
            return None
        found = (sum(self._reasons.cost(victim) for victim, _ in victims), victims)
        if all(self._reasons.is_independent(self._rights, *item) for item in victims):
            known[ordinal] = found
        return found

    def _evict(self, ordinal: int, shape: RequestShape, victims: Victims) -> Grant | None:
        """Choose the victims and place the member on the node that they leave."""
        for victim, reason in victims:
            self._chosen[victim.running.allocation.id] = (victim, reason)
            self._reasons.reclaim(self._reclaimed, victim)
            if self._same_tenant is not None:
                self._same_tenant.leave(victim)
            self._what_if.evict(victim)
        grant = self._what_if.at(ordinal).choose_any(shape)
        if grant is not None:
            self._what_if.take(grant)
        return grant

    def _victims_on(self, ordinal: int, shape: RequestShape) -> Victims | None:
        """The cheapest victims on one node that make room, none of them needless."""
        if self._what_if.scratch_copy(ordinal).choose_any(shape) is not None:
            return []
        victims = self._reasons.victims_on(self._rights, ordinal, self._reclaimed)
        if not victims:
            return None
        room = self._first_that_make_room(victims, ordinal, shape)
        if room is None and any(reason is PreemptionReason.LENT for _, reason in victims):
            # What was lent may have been reclaimed from victims that leave no device whole.
            room = self._first_that_make_room(self._whole_first(victims, ordinal), ordinal, shape)
        return room

    def _victims_within_quota(
        self, victims: Victims, ordinal: int, shape: RequestShape
    ) -> Victims | None:
        """The victims that make room on one node, and further ones so that the quota is met."""
        same_tenant = self._same_tenant
        if same_tenant is None:
            return None
        leaving = [victim for victim, _ in victims]
        found: Victims | None = None
        if same_tenant.complete(leaving):
            copy = self._what_if.scratch_copy(ordinal)
            for victim in leaving:
                for grant in _on_node(victim, ordinal):
                    self._index.give(grant.on(copy))
            same_tenant.spare(leaving, lambda victim: self._is_needed(victim, copy, shape))
            found = [(victim, same_tenant.reason) for victim in leaving]
        same_tenant.stay_all(leaving)
        return found

    def _is_needed(self, victim: RunningEntry, copy: NodeResources, shape: RequestShape) -> bool:
        """Tell whether there is no room unless this one leaves; if there is, it stays there."""
        grants = [grant.on(copy) for grant in _on_node(victim, copy.ordinal)]
        for grant in grants:
            self._index.take(grant)
        if copy.choose_any(shape) is not None:
            return False
        for grant in grants:
            self._index.give(grant)
        return True

    def _whole_first(self, victims: Victims, ordinal: int) -> Victims:
        """First victims on devices that can be freed wholly, and of these the least used devices.

        A device can be freed wholly if only victims use it.
        """
        leaving = {victim.running.allocation.id for victim, _ in victims}
        shared: dict[int, int] = {}
        stays: set[int] = set()
        for other in self._state.by_node.get(ordinal, {}).values():
            for position, share, _ in _parts_on(other, ordinal):
                shared[position] = shared.get(position, 0) + share
                if other.running.allocation.id not in leaving:
                    stays.add(position)

        def rank(item: tuple[RunningEntry, PreemptionReason]) -> tuple[bool, int, list[int]]:
            positions = sorted(position for position, _, _ in _parts_on(item[0], ordinal))
            is_shared = any(position in stays for position in positions)
            return is_shared, max((shared[p] for p in positions), default=WHOLE_MILLI), positions

        return sorted(victims, key=rank)

    def _first_that_make_room(
        self, victims: Victims, ordinal: int, shape: RequestShape
    ) -> Victims | None:
        """Evict one after the other until there is room; then spare the needless ones."""
        copy = self._what_if.scratch_copy(ordinal)
        reclaimed = dict(self._reclaimed)
        leaving: Victims = []
        for victim, first_reason in victims:
            if victim.running.allocation.id in self._chosen:
                continue
            reason: PreemptionReason | None = first_reason
            if first_reason is PreemptionReason.LENT:
                # Other victims may have been chosen since, and less is lent then.
                reason = self._reasons.reason(self._rights, victim, reclaimed)
            if reason is None:
                continue
            self._reasons.reclaim(reclaimed, victim)
            for grant in _on_node(victim, ordinal):
                self._index.give(grant.on(copy))
            leaving.append((victim, reason))
            if copy.choose_any(shape) is not None:
                # The last one made the room; of the others the most expensive are spared first.
                for item in reversed(leaving[:-1]):
                    if not self._is_needed(item[0], copy, shape):
                        leaving.remove(item)
                return leaving
        return None


def evictions_for(entry: Entry, victims: Victims) -> list[Eviction]:
    """Evictions of these victims for that job."""
    return [
        Eviction(victim.running.allocation.id, victim.running.job.id, entry.waiting.job.id, reason)
        for victim, reason in victims
    ]


def _parts_on(entry: RunningEntry, ordinal: int) -> list[Part]:
    return [part for grant in _on_node(entry, ordinal) for part in grant.parts]


def _on_node(victim: RunningEntry, ordinal: int) -> list[Grant]:
    return [grant for grant in victim.grants if grant.resources.ordinal == ordinal]
