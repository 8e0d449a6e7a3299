"""One search for a place and for those who must leave it, member by member.

Looks at a bounded number of nodes, and tries everything on shadows of them. What is tried in the
draft, to see who need not leave, is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_scheduler.engine.placement import placer
from gpu_scheduler.engine.placement.placer import Placer
from gpu_scheduler.engine.preemption.candidates import LENT, SameTenantVictims
from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import RunningEntry
from gpu_scheduler.engine.state.node_class import lowest_bits
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.request_shape import Part, RequestShape
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.plan import Eviction
from gpu_scheduler.model.request import WHOLE_MILLI

if TYPE_CHECKING:
    from gpu_scheduler.engine.preemption.preemptor import Preemptor

# --- Copies of the nodes on which a place is being cleared, and what is known of such nodes.
#
# The copies have what leaves given back and what members get taken. What was found out about a node
# for one member holds for others of the same shape, until something changes there.

Victims = list[tuple[RunningEntry, str]]
"""Running jobs that must leave, each with the ground for it."""
Room = tuple[int, Victims]
"""What it costs to make room on a node, and who must leave."""


class WhatIfNodes:
    """Shadows by ordinal; `touched` are their nodes, as a bitmap."""

    def __init__(self, index: NodeIndex, shadow_of: Callable[[int], NodeResources]) -> None:
        """`shadow_of` makes a copy of a node as it will be before anything is tried."""
        self._index = index
        self._shadow_of = shadow_of
        self._nodes: dict[int, NodeResources] = {}
        self._full: dict[int, int] = {}
        self._rooms: dict[int, dict[int, Room]] = {}
        self.touched = 0

    def at(self, ordinal: int) -> NodeResources:
        """The shadow of a node, which counts as touched from now on."""
        shadow = self._nodes.get(ordinal)
        if shadow is None:
            shadow = self._nodes[ordinal] = self._shadow_of(ordinal)
            self.touched |= shadow.bit
        return shadow

    def copy_of(self, ordinal: int) -> NodeResources:
        """The node as it is now, to try something on."""
        shadow = self._nodes.get(ordinal)
        return self._shadow_of(ordinal) if shadow is None else shadow.copy()

    def take(self, grant: Grant) -> None:
        """A member gets this."""
        shadow = self.at(grant.resources.ordinal)
        self._index.take(grant.on(shadow))
        self._note_change(shadow.bit)

    def leave(self, victim: RunningEntry) -> None:
        """A running job leaves all its nodes."""
        for held in victim.grants:
            self._index.give(held.on(self.at(held.resources.ordinal)))
        self._note_change(victim.nodes)

    def full_for(self, shape: RequestShape) -> int:
        """Nodes that are known to have no room for the shape, whoever leaves."""
        return self._full.get(shape.id, 0)

    def note_full(self, shape: RequestShape, nodes: int) -> None:
        """There is no room for the shape on these nodes."""
        self._full[shape.id] = self.full_for(shape) | nodes

    def rooms_for(self, shape: RequestShape) -> dict[int, Room]:
        """Who must leave for the shape, by ordinal, as far as that is known; others are added."""
        return self._rooms.setdefault(shape.id, {})

    def _note_change(self, nodes: int) -> None:
        """Nothing is known of these nodes any more."""
        for shape_id in self._full:
            self._full[shape_id] &= ~nodes
        for known in self._rooms.values():
            for resources in self._index.nodes_in(nodes):
                known.pop(resources.ordinal, None)


# --- One search for a place and for those who must leave it, member by member.

VictimsFound = tuple[list[Grant], list[Eviction]]
"""A place, and who must leave for it."""
MOST_FINDS = 4_000
"""So many places are looked for at most to see who need not leave for a gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Where a job may go: free places `within` some nodes, cleared ones not on `promised` ones.

    It gets no more than so many `members`. The draft is left as it is.
    """

    places: Placer
    within: int | None
    promised: int
    members: int


class VictimSearch:
    """Places and victims for one job."""

    def __init__(
        self,
        preemptor: Preemptor,
        entry: Entry,
        search: SearchSpace,
        relief: SameTenantVictims | None,
        bounds: int | None = None,
    ) -> None:
        """With `relief` the job is over a limit; with `bounds` all members go to these nodes."""
        self._bounds = ~search.promised if bounds is None else bounds
        self._within = search.within
        if bounds is not None:
            self._within = bounds if search.within is None else bounds & search.within
        self._relief = relief
        self._preemptor = preemptor
        self._entry = entry
        self._transaction = search.places.transaction
        self._find = search.places.find
        self._members = search.members
        self._index = preemptor.state.index
        self._what_if = WhatIfNodes(self._index, preemptor.shadow)
        self._chosen: dict[str, tuple[RunningEntry, str]] = {}
        self._taken = preemptor.taken()

    def run(self, nodes: int) -> VictimsFound | None:
        """Look for victims on `nodes`; nobody is stopped for nothing.

        Members beyond the minimum stop nobody. With the last member of the minimum everybody is
        chosen who must leave for a limit.
        """
        shape = self._entry.shape
        grants: list[Grant] = []
        if self._relief is not None:
            self._relief.reset()
        for member, request in enumerate(shape.members[: self._members]):
            self._is_last = member == shape.min_members - 1
            grant = self._on_free_node(request)
            if grant is None and member < shape.min_members:
                grant = self._where_victims_leave(request, nodes)
            if grant is None:
                if member < shape.min_members:
                    return None
                break
            grant.member = member
            grants.append(grant)
        if not self._relieve() or not self._chosen:
            return None
        if len(grants) > 1:
            grants = self._spare(grants)
        return grants, evictions_for(self._entry, list(self._chosen.values()))

    def _spare(self, grants: list[Grant]) -> list[Grant]:
        """Let stay, the dearest first, without whom all members have places as well.

        Who leaves for one member may have become needless by those who leave for another.
        """
        shape, transaction = self._entry.shape, self._transaction
        cost = self._preemptor.cost
        dearest = sorted(self._chosen.values(), key=lambda item: (-cost(item[0]), item[0].end_key))
        mark = transaction.mark()
        for victim, _ in dearest:
            for held in victim.grants:
                transaction.give(held)
        for victim, _ in dearest[: MOST_FINDS // len(grants)]:
            if len(self._chosen) == 1:
                break
            before = transaction.mark()
            for held in victim.grants:
                transaction.take(held)
            others = placer.try_all(
                shape.members[: self._members],
                shape.min_members,
                transaction,
                self._find,
                self._within,
            )
            if others is not None and (self._relief is None or self._relief.can_stay(victim)):
                grants = others
                del self._chosen[victim.running.allocation.id]
            else:
                transaction.undo(before)
        transaction.undo(mark)
        return grants

    def _relieve(self) -> bool:
        """Let further work leave if those who make room are not enough for the limit."""
        if self._relief is not None and not self._relief.is_enough():
            more = self._relief.cheapest()
            for victim in more or ():
                self._chosen[victim.running.allocation.id] = (victim, self._relief.ground)
            return more is not None
        return True

    def _on_free_node(self, shape: RequestShape) -> Grant | None:
        """A place that needs no victim, off the nodes that are being cleared."""
        allowed = self._within
        touched = self._what_if.touched
        if touched:
            allowed = ~touched if allowed is None else allowed & ~touched
        grant = self._find(shape, allowed)
        if grant is not None:
            self._what_if.take(grant)
        return grant

    def _where_victims_leave(self, shape: RequestShape, nodes: int) -> Grant | None:
        """The node where the least is lost, among a bounded number."""
        touched, fresh = self._candidates(shape, nodes)
        preemptor = self._preemptor
        barren = preemptor.barren_nodes(self._entry, shape) & ~touched
        found_barren = 0
        best: tuple[int, int, Victims] | None = None
        for resources in self._index.nodes_in(touched | fresh & ~barren):
            found = self._cheapest_room(resources.ordinal, shape)
            if found is None:
                found_barren |= resources.bit
            elif best is None or found[0] < best[0]:
                best = (found[0], resources.ordinal, found[1])
        self._what_if.note_full(shape, found_barren)
        preemptor.note_barren(self._entry, shape, found_barren & ~touched)
        if best is None:
            return None
        return self._take(best[1], shape, best[2])

    def _cheapest_room(self, ordinal: int, shape: RequestShape) -> Room | None:
        """Who must leave one node and what that costs, as was found for another member or anew."""
        known = self._what_if.rooms_for(shape)
        is_at_limit = self._relief is not None and self._is_last
        if ordinal in known and not is_at_limit:
            return known[ordinal]
        room = self._room_on(ordinal, shape)
        if room is not None and is_at_limit:
            room = self._room_within_limits(room, ordinal, shape)
        if room is None:
            return None
        found = (sum(self._preemptor.cost(victim) for victim, _ in room), room)
        if all(self._preemptor.is_lasting(victim, ground) for victim, ground in room):
            known[ordinal] = found
        return found

    def _candidates(self, shape: RequestShape, nodes: int) -> tuple[int, int]:
        """The nodes that are being cleared already, and others: of each up to the bound.

        Where another member of the shape had no room there is none, unless more has left since.
        """
        eligible = (
            self._bounds & self._index.of_node_classes(shape) & ~self._what_if.full_for(shape)
        )
        selected = self._index.selected(shape.request)
        if selected is not None:
            eligible &= selected
        most = self._preemptor.state.policy.max_victim_nodes
        touched = self._what_if.touched
        return (
            lowest_bits(eligible & touched, most),
            lowest_bits(eligible & nodes & ~touched, most),
        )

    def _take(self, ordinal: int, shape: RequestShape, room: Victims) -> Grant | None:
        for victim, ground in room:
            self._chosen[victim.running.allocation.id] = (victim, ground)
            _take_back(self._taken, victim)
            if self._relief is not None:
                self._relief.leave(victim)
            self._what_if.leave(victim)
        grant = self._what_if.at(ordinal).choose_any(shape)
        if grant is not None:
            self._what_if.take(grant)
        return grant

    def _room_on(self, ordinal: int, shape: RequestShape) -> Victims | None:
        """The cheapest victims on one node that make room, none of them needless."""
        if self._what_if.copy_of(ordinal).choose_any(shape) is not None:
            return []
        victims = self._preemptor.victims_on(self._entry, ordinal, self._taken)
        room = self._room_without(victims, ordinal, shape)
        if room is None and any(ground == LENT for _, ground in victims):
            # What was lent may have been taken back from who leaves no device whole.
            room = self._room_without(self._whole_first(victims, ordinal), ordinal, shape)
        return room

    def _room_within_limits(
        self, room: Victims, ordinal: int, shape: RequestShape
    ) -> Victims | None:
        """Those who make room on one node, and further work so that the limit is kept."""
        relief, index = self._relief, self._index
        leaving = [victim for victim, _ in room]
        if relief is None or not relief.complete(leaving):
            found = None
        else:
            shadow = self._what_if.copy_of(ordinal)
            for victim in leaving:
                for grant in _on_node(victim, ordinal):
                    index.give(grant.on(shadow))
            relief.spare(leaving, lambda victim: self._is_needed(victim, shadow, shape))
            found = [(victim, relief.ground) for victim in leaving]
        if relief is not None:
            relief.stay_all(leaving)
        return found

    def _is_needed(self, victim: RunningEntry, shadow: NodeResources, shape: RequestShape) -> bool:
        """Tell whether there is no room unless this one leaves; if there is, it stays there."""
        parts = [grant.on(shadow) for grant in _on_node(victim, shadow.ordinal)]
        for part in parts:
            self._index.take(part)
        if shadow.choose_any(shape) is not None:
            return False
        for part in parts:
            self._index.give(part)
        return True

    def _whole_first(self, victims: Victims, ordinal: int) -> Victims:
        """Those first whose devices can be cleared, and of these who takes the least for it."""
        leaving = {victim.running.allocation.id for victim, _ in victims}
        shared: dict[int, int] = {}
        stays: set[int] = set()
        for other in self._preemptor.state.by_node.get(ordinal, {}).values():
            for position, share, _ in _parts_on(other, ordinal):
                shared[position] = shared.get(position, 0) + share
                if other.running.allocation.id not in leaving:
                    stays.add(position)

        def rank(item: tuple[RunningEntry, str]) -> tuple[bool, int, list[int]]:
            positions = sorted(position for position, _, _ in _parts_on(item[0], ordinal))
            is_shared = any(position in stays for position in positions)
            return is_shared, max((shared[p] for p in positions), default=WHOLE_MILLI), positions

        return sorted(victims, key=rank)

    def _room_without(self, victims: Victims, ordinal: int, shape: RequestShape) -> Victims | None:
        """Let one after the other leave until there is room."""
        index = self._index
        shadow = self._what_if.copy_of(ordinal)
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
            for grant in _on_node(victim, ordinal):
                index.give(grant.on(shadow))
            leaving.append((victim, ground))
            if shadow.choose_any(shape) is not None:
                return self._without_needless(leaving, shadow, shape)
        return None

    def _without_needless(
        self, leaving: Victims, shadow: NodeResources, shape: RequestShape
    ) -> Victims:
        """Spare whoever need not leave, the dearest first; the last one made the room."""
        for item in reversed(leaving[:-1]):
            if not self._is_needed(item[0], shadow, shape):
                leaving.remove(item)
        return leaving


def evictions_for(entry: Entry, victims: Victims) -> list[Eviction]:
    """These are to be stopped for that one."""
    return [
        Eviction(victim.running.allocation.id, victim.running.job.id, entry.waiting.job.id, ground)
        for victim, ground in victims
    ]


def _take_back(taken: dict[str | Pool, int], victim: RunningEntry) -> None:
    job = victim.running.job
    for owner in (job.tenant, job.pool):
        taken[owner] = taken.get(owner, 0) + victim.amounts.gpu_milli


def _parts_on(entry: RunningEntry, ordinal: int) -> list[Part]:
    return [part for grant in _on_node(entry, ordinal) for part in grant.parts]


def _on_node(victim: RunningEntry, ordinal: int) -> list[Grant]:
    return [grant for grant in victim.grants if grant.resources.ordinal == ordinal]
