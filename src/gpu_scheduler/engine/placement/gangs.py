"""Places all members of a gang, over one or many nodes: at least its minimum, or nothing.

A gang prefers one rack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.request import WHOLE_MILLI, mig_share_milli

Finder = Callable[[RequestShape, int | None], Grant | None]
"""Finds a place for one member on some nodes (None: all)."""
MANY_RACKS = 3
"""Over so many racks a gang may be wider than it must: one was tried, and two is the next best."""


def place_gang(
    job_shape: JobShape,
    transaction: Transaction,
    find: Finder,
    *,
    within: int | None = None,
    find_remainder: Finder | None = None,
) -> list[Grant] | None:
    """Take a place for every member in the transaction, or leave the transaction unchanged.

    A gang prefers one rack (tightest first) and insists on it with `same_rack`; one that no rack
    can hold goes over as few as it can. `find_remainder` places the members after the first that
    ask for less (a remainder of whole nodes).
    """
    members = job_shape.members
    if len(members) == 1:
        grant = find(members[0], within)
        if grant is None:
            return None
        transaction.take(grant)
        return [grant]
    search = _GangSearch(members, job_shape.min_members, transaction, find, find_remainder)
    if len(transaction.index.racks()) > 1:
        grants = search.in_one_rack(within, allow_fewer=job_shape.same_rack)
        if grants is not None or job_shape.same_rack:
            return grants
    mark = transaction.mark()
    grants = search.place_all(within)
    if grants is None or _count_racks(grants) < MANY_RACKS:
        return grants
    transaction.undo(mark)
    return search.in_fewer_racks(within, grants)


def try_all(
    members: tuple[RequestShape, ...],
    least: int,
    transaction: Transaction,
    find: Finder,
    within: int | None,
) -> list[Grant] | None:
    """A place for every member, or at least for `least`; the transaction is left unchanged."""
    mark = transaction.mark()
    grants = _GangSearch(members, least, transaction, find).place_all(within)
    transaction.undo(mark)
    return grants


def most_members(
    transaction: Transaction, members: tuple[RequestShape, ...], find: Finder, within: int | None
) -> int:
    """How many members, one after the other, have room; the transaction is left unchanged."""
    mark = transaction.mark()
    count = 0
    for shape in members:
        grant = find(shape, within)
        if grant is None:
            break
        transaction.take(grant)
        count += 1
    transaction.undo(mark)
    return count


@dataclass(frozen=True, slots=True)
class _GangSearch:
    """One search for places of all members of a gang, or at least of the first `least`.

    Every method takes the place that it returns in the transaction, and nothing else.
    """

    members: tuple[RequestShape, ...]
    least: int
    transaction: Transaction
    find: Finder
    find_remainder: Finder | None = None

    def place_all(self, within: int | None) -> list[Grant] | None:
        """Place the members in their own order; if that fails, the hardest to place first."""
        members, find_remainder = self.members, self.find_remainder
        for order in self._orders():
            mark = self.transaction.mark()
            grants: list[Grant] = []
            for member in order:
                shape = members[member]
                search = self.find
                if find_remainder is not None and shape.count < members[0].count:
                    search = find_remainder
                grant = search(shape, within)
                if grant is None:
                    break
                grant.member = member
                self.transaction.take(grant)
                grants.append(grant)
            if len(grants) >= self.least:
                return sorted(grants, key=lambda grant: grant.member)
            self.transaction.undo(mark)
        return None

    def in_one_rack(self, within: int | None, *, allow_fewer: bool) -> list[Grant] | None:
        """All members in one rack, or with `allow_fewer` at least the minimum; tightest first."""
        index = self.transaction.index
        racks = []
        for name, bits in index.racks().items():
            nodes = [resources for resources in index.nodes_in(bits) if resources.bucket >= 0]
            room = _room(nodes, self.members[: self.least])
            if room is not None:
                racks.append((room, name, bits))
        for _, _, bits in sorted(racks):
            grants = self.place_all(bits if within is None else bits & within)
            if grants is None:
                continue
            if allow_fewer or len(grants) == len(self.members):
                return grants
            for grant in reversed(grants):
                self.transaction.give(grant)
        return None

    def in_fewer_racks(self, within: int | None, grants: list[Grant]) -> list[Grant]:
        """As many members as in a place that is known, over fewer racks; else just that place."""
        wanted = tuple(self.members[grant.member] for grant in grants)
        for some in self._few_racks(wanted, within, _count_racks(grants)):
            fewer = replace(self, least=len(wanted)).place_all(some)
            if fewer is not None:
                return fewer
        for grant in grants:
            self.transaction.take(grant)
        return grants

    def _few_racks(
        self, wanted: tuple[RequestShape, ...], within: int | None, below: int
    ) -> Iterator[int]:
        """Some racks together that could hold all, the fewest first, as bitmaps of their nodes.

        The roomiest racks, and as the last of them the tightest that is enough.
        """
        rooms = []
        for name, bits in self.transaction.index.racks().items():
            inside = bits if within is None else bits & within
            rooms.append((most_members(self.transaction, wanted, self.find, inside), name, inside))
        rooms.sort(key=lambda room: (-room[0], room[1]))
        for count in range(2, below):
            chosen = rooms[: count - 1]
            missing = len(wanted) - sum(room[0] for room in chosen)
            enough = [room for room in rooms[count - 1 :] if room[0] >= missing]
            if enough:
                last = min(enough, key=lambda room: (room[0], room[1]))
                yield sum(room[2] for room in (*chosen, last))

    def _orders(self) -> list[list[int]]:
        """Members beyond the minimum always come last."""
        members, least = self.members, self.least
        given = list(range(len(members)))
        if members.count(members[0]) == len(members):
            return [given]
        hardest = sorted(given[:least], key=lambda member: members[member].hardness)
        hardest += given[least:]
        return [given] if hardest == given else [given, hardest]


def _count_racks(grants: list[Grant]) -> int:
    return len({grant.resources.node.rack for grant in grants})


def _room(nodes: list[NodeResources], wanted: tuple[RequestShape, ...]) -> int | None:
    """Free milli-GPU of the sort that is wanted; None if it is surely too little.

    Whole devices are counted as such, shares by what is left of all devices, slices by profile.
    """
    devices = milli = 0
    slices: dict[str, int] = {}
    for shape in wanted:
        profile = shape.request.mig_profile
        if profile:
            slices[profile] = slices.get(profile, 0) + shape.count
        else:
            devices += shape.least
            milli += shape.request.gpu_milli
    free_devices = sum(resources.free_mask.bit_count() for resources in nodes)
    room = free_devices * WHOLE_MILLI
    if milli > devices * WHOLE_MILLI:
        room = sum(resources.free_gpu_milli() for resources in nodes)
    if free_devices < devices or room < milli:
        return None
    for profile, count in slices.items():
        free_slices = sum(resources.free_slices(profile) for resources in nodes)
        if free_slices < count:
            return None
        room += free_slices * mig_share_milli(profile)
    return room
