"""Placing all members of a job at once, over one or many nodes: all of the minimum, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.engine.draft import Draft
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.shape import Shape
from gpu_scheduler.engine.slot import Hold, Slot
from gpu_scheduler.model.request import WHOLE_MILLI, mig_share_milli

Finder = Callable[[Shape, int | None], Hold | None]


def place(
    job_shape: JobShape,
    draft: Draft,
    find: Finder,
    *,
    within: int | None = None,
    find_remainder: Finder | None = None,
) -> list[Hold] | None:
    """Take a place for every member in the draft, or leave the draft as it was.

    A gang prefers one rack (tightest first) and insists on it with `same_rack`. `find_remainder`
    places the members after the first that ask for less (a remainder of whole nodes).
    """
    members = job_shape.members
    if len(members) == 1:
        hold = find(members[0], within)
        if hold is None:
            return None
        draft.take(hold)
        return [hold]
    racks = draft.index.racks()
    if len(racks) > 1:
        for bits in _racks_by_room(draft, members, job_shape.min_members):
            inside = bits if within is None else bits & within
            holds = _place_all(members, job_shape.min_members, draft, find, inside, find_remainder)
            if holds is not None and len(holds) == len(members):
                return holds
            if holds is not None:
                if job_shape.same_rack:
                    return holds
                _give_back(draft, holds)
    if job_shape.same_rack and len(racks) > 1:
        return None
    return _place_all(members, job_shape.min_members, draft, find, within, find_remainder)


def _place_all(
    members: tuple[Shape, ...],
    least: int,
    draft: Draft,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
) -> list[Hold] | None:
    """Member by member in their own order; if that fails, those that are hardest to place first."""
    for order in _orders(members, least):
        mark = draft.mark()
        holds: list[Hold] = []
        for member in order:
            shape = members[member]
            search = find
            if find_remainder is not None and shape.count < members[0].count:
                search = find_remainder
            hold = search(shape, within)
            if hold is None:
                break
            hold.member = member
            draft.take(hold)
            holds.append(hold)
        if len(holds) >= least:
            return sorted(holds, key=lambda hold: hold.member)
        draft.undo(mark)
    return None


def _orders(members: tuple[Shape, ...], least: int) -> list[list[int]]:
    """Members beyond the minimum always come last."""
    given = list(range(len(members)))
    if members.count(members[0]) == len(members):
        return [given]
    hardest = sorted(given[:least], key=lambda member: members[member].hardness) + given[least:]
    return [given] if hardest == given else [given, hardest]


def _racks_by_room(draft: Draft, members: tuple[Shape, ...], least: int) -> list[int]:
    """Racks that could have room for the minimum, the tightest first."""
    index = draft.index
    wanted = members[:least]
    choices = []
    for name, bits in index.racks().items():
        slots = [slot for slot in index.slots_in(bits) if slot.bucket >= 0]
        room = _room(slots, wanted)
        if room is not None:
            choices.append((room, name, bits))
    return [bits for _, _, bits in sorted(choices)]


def _room(slots: list[Slot], wanted: tuple[Shape, ...]) -> int | None:
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
    free_devices = sum(slot.free_mask.bit_count() for slot in slots)
    room = free_devices * WHOLE_MILLI
    if milli > devices * WHOLE_MILLI:
        room = sum(slot.free_gpu_milli() for slot in slots)
    if free_devices < devices or room < milli:
        return None
    for profile, count in slices.items():
        free_slices = sum(slot.free_slices(profile) for slot in slots)
        if free_slices < count:
            return None
        room += free_slices * mig_share_milli(profile)
    return room


def _give_back(draft: Draft, holds: list[Hold]) -> None:
    for hold in reversed(holds):
        draft.give(hold)
