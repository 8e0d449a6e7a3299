"""Places all members of a gang, over one or many nodes: at least its minimum, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.shapes import RequestShape
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.request import WHOLE_MILLI, mig_share_milli

Finder = Callable[[RequestShape, int | None], Grant | None]
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
    racks = transaction.index.racks()
    if len(racks) > 1:
        grants = _in_one_rack(job_shape, transaction, find, within, find_remainder)
        if grants is not None or job_shape.same_rack:
            return grants
    mark = transaction.mark()
    least = job_shape.min_members
    grants = _place_all(members, least, transaction, find, within, find_remainder)
    if grants is None or _count_racks(grants) < MANY_RACKS:
        return grants
    transaction.undo(mark)
    return _in_few_racks(job_shape, transaction, find, within, find_remainder, grants)


def _in_one_rack(
    job_shape: JobShape,
    transaction: Transaction,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
) -> list[Grant] | None:
    """All members in one rack; with `same_rack` fewer, down to the minimum, are good as well."""
    members, least = job_shape.members, job_shape.min_members
    for bits in _racks_by_room(transaction, members, least):
        inside = bits if within is None else bits & within
        grants = _place_all(members, least, transaction, find, inside, find_remainder)
        if grants is None:
            continue
        if job_shape.same_rack or len(grants) == len(members):
            return grants
        _give_back(transaction, grants)
    return None


def _in_few_racks(
    job_shape: JobShape,
    transaction: Transaction,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
    grants: list[Grant],
) -> list[Grant]:
    """As many members as in a place that is known, over fewer racks; else just that place."""
    members = job_shape.members
    wanted = tuple(members[grant.member] for grant in grants)
    for some in _few_racks(transaction, wanted, find, within, _count_racks(grants)):
        fewer = _place_all(members, len(wanted), transaction, find, some, find_remainder)
        if fewer is not None:
            return fewer
    for grant in grants:
        transaction.take(grant)
    return grants


def try_all(
    members: tuple[RequestShape, ...],
    least: int,
    transaction: Transaction,
    find: Finder,
    within: int | None,
) -> list[Grant] | None:
    """A place for every member, or at least for `least`; the transaction is left unchanged."""
    mark = transaction.mark()
    grants = _place_all(members, least, transaction, find, within, None)
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


def _count_racks(grants: list[Grant]) -> int:
    return len({grant.resources.node.rack for grant in grants})


def _few_racks(
    transaction: Transaction,
    members: tuple[RequestShape, ...],
    find: Finder,
    within: int | None,
    below: int,
) -> Iterator[int]:
    """Some racks together that could hold all, the fewest first, as bitmaps of their nodes.

    The roomiest racks, and as the last of them the tightest that is enough.
    """
    rooms = []
    for name, bits in transaction.index.racks().items():
        inside = bits if within is None else bits & within
        rooms.append((most_members(transaction, members, find, inside), name, inside))
    rooms.sort(key=lambda room: (-room[0], room[1]))
    for count in range(2, below):
        chosen = rooms[: count - 1]
        missing = len(members) - sum(room[0] for room in chosen)
        enough = [room for room in rooms[count - 1 :] if room[0] >= missing]
        if enough:
            last = min(enough, key=lambda room: (room[0], room[1]))
            yield sum(room[2] for room in (*chosen, last))


def _place_all(
    members: tuple[RequestShape, ...],
    least: int,
    transaction: Transaction,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
) -> list[Grant] | None:
    """Member by member in their own order; if that fails, those that are hardest to place first."""
    for order in _orders(members, least):
        mark = transaction.mark()
        grants: list[Grant] = []
        for member in order:
            shape = members[member]
            search = find
            if find_remainder is not None and shape.count < members[0].count:
                search = find_remainder
            grant = search(shape, within)
            if grant is None:
                break
            grant.member = member
            transaction.take(grant)
            grants.append(grant)
        if len(grants) >= least:
            return sorted(grants, key=lambda grant: grant.member)
        transaction.undo(mark)
    return None


def _orders(members: tuple[RequestShape, ...], least: int) -> list[list[int]]:
    """Members beyond the minimum always come last."""
    given = list(range(len(members)))
    if members.count(members[0]) == len(members):
        return [given]
    hardest = sorted(given[:least], key=lambda member: members[member].hardness) + given[least:]
    return [given] if hardest == given else [given, hardest]


def _racks_by_room(
    transaction: Transaction, members: tuple[RequestShape, ...], least: int
) -> list[int]:
    """Racks that could have room for the minimum, the tightest first."""
    index = transaction.index
    wanted = members[:least]
    choices = []
    for name, bits in index.racks().items():
        nodes = [resources for resources in index.nodes_in(bits) if resources.bucket >= 0]
        room = _room(nodes, wanted)
        if room is not None:
            choices.append((room, name, bits))
    return [bits for _, _, bits in sorted(choices)]


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


def _give_back(transaction: Transaction, grants: list[Grant]) -> None:
    for grant in reversed(grants):
        transaction.give(grant)
