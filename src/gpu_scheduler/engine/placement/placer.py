"""Where a job goes among the places that it may have: by the policy's ranking, member by member."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_scheduler.engine.placement.anti_affinity import Distance
from gpu_scheduler.engine.placement.scoring import Scorer, needs_vectors
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.engine.queue import JobShape
from gpu_scheduler.engine.state.cluster_state import Picture
from gpu_scheduler.engine.state.node_resources import Hold, Slot
from gpu_scheduler.engine.state.request_shape import Shape
from gpu_scheduler.engine.state.transaction import Draft
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import WHOLE_MILLI, mig_share_milli

# --- Placing all members of a job at once, over one or many nodes: all of the minimum, or nothing.

Finder = Callable[[Shape, int | None], Hold | None]
MANY_RACKS = 3
"""Over so many racks a gang may be wider than it must: one was tried, and two is the next best."""


def place_gang(
    job_shape: JobShape,
    draft: Draft,
    find: Finder,
    *,
    within: int | None = None,
    find_remainder: Finder | None = None,
) -> list[Hold] | None:
    """Take a place for every member in the draft, or leave the draft as it was.

    A gang prefers one rack (tightest first) and insists on it with `same_rack`; one that no rack
    can hold goes over as few as it can. `find_remainder` places the members after the first that
    ask for less (a remainder of whole nodes).
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
        holds = _in_one_rack(job_shape, draft, find, within, find_remainder)
        if holds is not None or job_shape.same_rack:
            return holds
    mark = draft.mark()
    least = job_shape.min_members
    holds = _place_all(members, least, draft, find, within, find_remainder)
    if holds is None or _count_racks(holds) < MANY_RACKS:
        return holds
    draft.undo(mark)
    return _in_few_racks(job_shape, draft, find, within, find_remainder, holds)


def _in_one_rack(
    job_shape: JobShape,
    draft: Draft,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
) -> list[Hold] | None:
    """All members in one rack; with `same_rack` fewer, down to the minimum, are good as well."""
    members, least = job_shape.members, job_shape.min_members
    for bits in _racks_by_room(draft, members, least):
        inside = bits if within is None else bits & within
        holds = _place_all(members, least, draft, find, inside, find_remainder)
        if holds is None:
            continue
        if job_shape.same_rack or len(holds) == len(members):
            return holds
        _give_back(draft, holds)
    return None


def _in_few_racks(
    job_shape: JobShape,
    draft: Draft,
    find: Finder,
    within: int | None,
    find_remainder: Finder | None,
    holds: list[Hold],
) -> list[Hold]:
    """As many members as in a place that is known, over fewer racks; else just that place."""
    members = job_shape.members
    wanted = tuple(members[hold.member] for hold in holds)
    for some in _few_racks(draft, wanted, find, within, _count_racks(holds)):
        fewer = _place_all(members, len(wanted), draft, find, some, find_remainder)
        if fewer is not None:
            return fewer
    for hold in holds:
        draft.take(hold)
    return holds


def try_all(
    members: tuple[Shape, ...], least: int, draft: Draft, find: Finder, within: int | None
) -> list[Hold] | None:
    """A place for every member, or for so many at least; the draft is left as it was."""
    mark = draft.mark()
    holds = _place_all(members, least, draft, find, within, None)
    draft.undo(mark)
    return holds


def most_members(draft: Draft, members: tuple[Shape, ...], find: Finder, within: int | None) -> int:
    """How many members, one after the other, have room; the draft is left as it was."""
    mark = draft.mark()
    count = 0
    for shape in members:
        hold = find(shape, within)
        if hold is None:
            break
        draft.take(hold)
        count += 1
    draft.undo(mark)
    return count


def _count_racks(holds: list[Hold]) -> int:
    return len({hold.slot.node.rack for hold in holds})


def _few_racks(
    draft: Draft, members: tuple[Shape, ...], find: Finder, within: int | None, below: int
) -> Iterator[int]:
    """Some racks together that could hold all, the fewest first, as bitmaps of their nodes.

    The roomiest racks, and as the last of them the tightest that is enough.
    """
    rooms = []
    for name, bits in draft.index.racks().items():
        inside = bits if within is None else bits & within
        rooms.append((most_members(draft, members, find, inside), name, inside))
    rooms.sort(key=lambda room: (-room[0], room[1]))
    for count in range(2, below):
        chosen = rooms[: count - 1]
        missing = len(members) - sum(room[0] for room in chosen)
        enough = [room for room in rooms[count - 1 :] if room[0] >= missing]
        if enough:
            last = min(enough, key=lambda room: (room[0], room[1]))
            yield sum(room[2] for room in (*chosen, last))


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


# --- Where a job goes among the places that it may have: by the policy's ranking, member by member.


class Places:
    """Finds places for one cycle. `started` counts its starts, for rankings that go by chance."""

    def __init__(self, picture: Picture, draft: Draft) -> None:
        """Look at the picture as the draft has it."""
        policy = picture.policy
        self._index = picture.index
        self.draft = draft
        self._scorer = Scorer(picture) if needs_vectors(policy.ranking) else None
        self._spread = policy.ranking is Ranking.SPREAD
        self._remainder = self._find_freest if policy.remainder_on_freest else None
        self.started = 0
        self.distance = Distance(picture.apart, picture.index)

    def place_apart(self, job: Job, shape: JobShape, within: int | None) -> list[Hold] | None:
        """The same as `place`, where the fewest other replicas of the job's service are."""
        for nodes in self.distance.choices(job, within):
            holds = self.place(shape, nodes)
            if holds is not None:
                return holds
        return None

    def place(self, job_shape: JobShape, within: int | None) -> list[Hold] | None:
        """A place for every member, taken in the draft; or None, and the draft is as it was."""
        holds = place_gang(
            job_shape, self.draft, self.find, within=within, find_remainder=self._remainder
        )
        if holds is None and self._scorer is not None and len(job_shape.members) > 1:
            # A high score for one member can be the wrong place for the gang.
            holds = place_gang(job_shape, self.draft, self._index.find, within=within)
        return holds

    def fits(self, job_shape: JobShape) -> bool:
        """Tell whether there is a place, whoever counts on it; the draft is left as it was."""
        if len(job_shape.members) == 1:
            return self.find(job_shape.members[0], None) is not None
        mark = self.draft.mark()
        holds = self.place(job_shape, None)
        self.draft.undo(mark)
        return holds is not None

    def find(self, shape: Shape, within: int | None) -> Hold | None:
        """A place for one member."""
        if self._scorer is not None:
            return self._scorer.find(shape, within, self.started)
        return self._index.find(shape, within, spread=self._spread)

    def _find_freest(self, shape: Shape, within: int | None) -> Hold | None:
        return self._index.find(shape, within, spread=True)
