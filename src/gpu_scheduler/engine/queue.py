"""Jobs that could start: one queue for each (tenant, user, pool), grouped by shape.

The heads are merged lazily, so a cycle considers the jobs it starts and one job per shape that does
not fit, not all that wait.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import lt
from typing import TYPE_CHECKING

from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.model.cluster_snapshot import Waiting
from gpu_scheduler.model.job import Pool

if TYPE_CHECKING:
    from gpu_scheduler.engine.reservation.advance_reservations import ExclusionRule

GroupKey = tuple[str, str, Pool]


class JobShape:
    """What all members of a job ask for; jobs with the same job shape share an answer."""

    __slots__ = (
        "base",
        "ends_with_gpus",
        "id",
        "interactive",
        "least_gpu_milli",
        "members",
        "min_members",
        "name",
        "needs_gpus",
        "same_rack",
        "uses_gpus",
    )

    def __init__(
        self,
        shape_id: int,
        members: tuple[RequestShape, ...],
        min_members: int,
        *,
        same_rack: bool,
        base: int = -1,
        rank: object = 0,
        interactive: bool = False,
    ) -> None:
        """Job shapes with the same `base` need the same room, whatever their rank.

        `interactive` ones may stop batch jobs. The id depends on what came before; the name says
        the same in every process. Those that `ends_with_gpus` have no place when no GPU is free.
        """
        self.id = shape_id
        requests = [member.request for member in members]
        self.name = f"{requests} {min_members} {same_rack} {rank}"
        self.base = shape_id if base < 0 else base
        self.interactive = interactive
        self.members = members
        self.min_members = min_members
        self.same_rack = same_rack
        self.uses_gpus = any(member.uses_gpus for member in members)
        self.needs_gpus = any(
            member.uses_gpus and not member.request.mig_profile for member in members[:min_members]
        )
        self.ends_with_gpus = self.needs_gpus and all(member.share for member in members)
        self.least_gpu_milli = sum(request.gpu_milli for request in requests[:min_members])


class Entry:
    """A waiting job in its queue, with everything about it that does not change while it waits."""

    __slots__ = ("group", "key", "number", "shape", "static_class", "waiting")

    def __init__(
        self, waiting: Waiting, shape: JobShape, group: Group, key: int, static_class: int
    ) -> None:
        """Bind a waiting job to its shape and its place in the order."""
        self.waiting = waiting
        self.shape = shape
        self.group = group
        self.key = key
        self.number = waiting.job.number
        self.static_class = static_class


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """A waiting job as one pass considers it: all that applies to it until it starts or waits.

    `duration_ms` is the expected rest of its run, and `order_value` its place in the order with the
    fair share of its account (smaller comes first). `within_pool_guarantee` marks online work that
    stays within the guarantee of its pool: it may ignore reservations of batch work. With
    `guaranteed_only` an elastic gang gets no more members than that guarantee covers.
    `exclusion` are the advance reservations that the job has no right to, and `closure` identifies
    the devices that are closed to it for that reason (0: none).
    """

    entry: Entry
    duration_ms: int
    order_value: int
    within_pool_guarantee: bool = False
    guaranteed_only: bool = False
    exclusion: ExclusionRule | None = None
    closure: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The queue of one (tenant, user, pool). `heads` has the first job of every shape.

    `sizes` counts the jobs by the least GPUs that they can start with.
    """

    key: GroupKey
    by_shape: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    heads: list[tuple[int, int, int]] = field(default_factory=list)
    size: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    interactive: int = 0

    @property
    def waiting_milli(self) -> int:
        """The GPUs that its jobs wait for, each with as few members as it needs."""
        return sum(milli * count for milli, count in self.sizes.items())

    def count(self, shape: JobShape, change: int) -> None:
        """Add to the number of jobs of a shape, or subtract from it."""
        self.size += change
        self.interactive += change * shape.interactive
        milli = shape.least_gpu_milli
        left = self.sizes.get(milli, 0) + change
        if left:
            self.sizes[milli] = left
        else:
            del self.sizes[milli]

    def add(self, entry: Entry) -> None:
        """Insert by key and number."""
        shape_id = entry.shape.id
        item = (entry.key, entry.number)
        line = self.by_shape.get(shape_id)
        self.count(entry.shape, 1)
        if line is None:
            self.by_shape[shape_id] = [item]
            insort(self.heads, (*item, shape_id))
            return
        if item < line[0]:
            self._drop_head(line[0], shape_id)
            insort(self.heads, (*item, shape_id))
        insort(line, item)

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever it stands."""
        shape_id = entry.shape.id
        item = (entry.key, entry.number)
        line = self.by_shape[shape_id]
        place = bisect_left(line, item)
        del line[place]
        self.count(entry.shape, -1)
        if place == 0:
            self._drop_head(item, shape_id)
            if line:
                insort(self.heads, (*line[0], shape_id))
            else:
                del self.by_shape[shape_id]

    def _drop_head(self, item: tuple[int, int], shape_id: int) -> None:
        del self.heads[bisect_left(self.heads, (*item, shape_id))]


class Queue:
    """All groups, and every entry by its job's number.

    `of_shape` counts the jobs of every shape. `batch_shapes` are the ids of shapes that need the
    same room, by their base, without those of interactive jobs.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.groups: dict[GroupKey, Group] = {}
        self.entries: dict[int, Entry] = {}
        self.of_shape: dict[int, int] = {}
        self.batch_shapes: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self.entries)

    def group(self, key: GroupKey) -> Group:
        """The queue of an account, made when it is first needed."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(key)
        return group

    def add(self, entry: Entry) -> None:
        """Let a job wait."""
        self.entries[entry.number] = entry
        entry.group.add(entry)
        shape = entry.shape
        known = self.of_shape.get(shape.id, 0)
        self.of_shape[shape.id] = known + 1
        if not known and not shape.interactive:
            self.batch_shapes.setdefault(shape.base, set()).add(shape.id)

    def add_alike(self, entries: list[Entry]) -> None:
        """Let jobs of one group and one shape wait, of which another one waits already."""
        group, shape_id = entries[0].group, entries[0].shape.id
        line = group.by_shape[shape_id]
        items = [(entry.key, entry.number) for entry in entries]
        if items[0] > line[-1] and all(map(lt, items, items[1:])):
            line += items
            group.count(entries[0].shape, len(items))
        else:
            for entry in entries:
                group.add(entry)
        self.entries.update(zip([number for _, number in items], entries, strict=True))
        self.of_shape[shape_id] += len(entries)

    def remove(self, number: int) -> Entry:
        """Let a job wait no more."""
        entry = self.entries.pop(number)
        group = entry.group
        group.remove(entry)
        if not group.size:
            del self.groups[group.key]
        shape = entry.shape
        left = self.of_shape[shape.id] - 1
        if left:
            self.of_shape[shape.id] = left
            return entry
        del self.of_shape[shape.id]
        alike = self.batch_shapes.get(shape.base, set())
        alike.discard(shape.id)
        if not alike:
            self.batch_shapes.pop(shape.base, None)
        return entry

    def peek(self) -> Entry | None:
        """The entry with the smallest key."""
        heads = [group.heads[0] for group in self.groups.values()]
        return self.entries[min(heads)[1]] if heads else None

    def in_order(self) -> Iterator[Entry]:
        """All entries by static key, for views and tests."""
        return iter(sorted(self.entries.values(), key=lambda entry: (entry.key, entry.number)))


_NONE: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Cursor:
    """A walk through one group in order, past shapes that are known not to fit."""

    group: Group
    place: int = 0
    later: list[tuple[int, int, int, int]] = field(default_factory=list)

    def peek(
        self,
        dead: set[int],
        dropped_for: Mapping[GroupKey, set[int]],
        is_closed: Callable[[int], bool] | None,
    ) -> tuple[int, int, int] | None:
        """The next (key, number, shape) that is worth a look."""
        heads = self.group.heads
        later = self.later
        here: Set[int] = _NONE
        of_tenant: Set[int] = _NONE
        if dropped_for:
            tenant, _, pool = self.group.key
            here = dropped_for.get(self.group.key, _NONE)
            of_tenant = dropped_for.get((tenant, "", pool), _NONE)
        while True:
            if self.place < len(heads):
                head = heads[self.place]
                if later and later[0] < head:
                    head = later[0][:3]
            elif later:
                head = later[0][:3]
            else:
                return None
            shape = head[2]
            if (
                shape not in dead
                and shape not in here
                and shape not in of_tenant
                and not (is_closed is not None and is_closed(head[1]))
            ):
                return head
            self._drop(head)

    def advance(self, head: tuple[int, int, int]) -> None:
        """Step behind the head, to the next job of the same shape."""
        position = self._drop(head) + 1
        line = self.group.by_shape[head[2]]
        if position < len(line):
            heappush(self.later, (*line[position], head[2], position))

    def _drop(self, head: tuple[int, int, int]) -> int:
        """Leave one head and return its position in the line of its shape."""
        if self.later and self.later[0][:3] == head:
            return heappop(self.later)[3]
        self.place += 1
        return 0


class Merge:
    """The queues as one, by static key plus what each account's use adds to it.

    Left out are jobs of shapes that were dropped, everywhere or for one account; those of shapes
    that were given up, unless their group may evict others; and those of closed accounts that need
    as many GPUs, except interactive ones. What an account's use adds only grows during a cycle, so
    an old value in the heap is a lower bound, and the heap is put right when the entry comes up.
    """

    def __init__(self, queue: Queue, penalty_ms: Callable[[GroupKey], int]) -> None:
        """Start with the first job of every group."""
        self._dropped_for: dict[GroupKey, set[int]] = {}
        self._dead: set[int] = set()
        self._given_up: set[int] = set()
        self._given_up_bases: set[int] = set()
        self._may_evict: Callable[[Group], bool] = lambda _group: False
        self._not_exempt: set[Group] = set()
        self._closed_from: dict[GroupKey, int] = {}
        self._of_shape = queue.of_shape
        self._batch_shapes = queue.batch_shapes
        self._entries = queue.entries
        self._penalty_ms = penalty_ms
        self._heap = [
            (group.heads[0][0] + penalty_ms(group.key), group.heads[0][1], _Cursor(group))
            for group in queue.groups.values()
        ]
        heapify(self._heap)

    def next(self) -> Entry | None:
        """The next entry; it comes up again unless `leave` is called."""
        heap = self._heap
        if len(self._dead) == len(self._of_shape):
            return None
        while heap:
            stored, number, cursor = heap[0]
            group = cursor.group
            dead = self._dead
            if len(self._given_up) > len(dead) and not self._is_exempt(group):
                dead = self._given_up
            is_closed = None
            if self._closed_from:
                closed_from = self._closed(group.key)
                if closed_from is not None:
                    if closed_from <= min(group.sizes) and not group.interactive:
                        heappop(heap)
                        continue
                    is_closed = self._closed_test(closed_from)
            if len(dead) == len(self._of_shape):
                heappop(heap)
                continue
            head = cursor.peek(dead, self._dropped_for, is_closed)
            if head is None:
                heappop(heap)
                continue
            value = head[0] + self._penalty_ms(cursor.group.key)
            if (value, head[1]) != (stored, number):
                heapreplace(heap, (value, head[1], cursor))
                continue
            return self._entries[number]
        return None

    def drop_shape(self, shape_id: int) -> None:
        """Return no more jobs of a shape."""
        if shape_id in self._of_shape:
            self._dead.add(shape_id)
            self._given_up.add(shape_id)

    def drop_shape_for(self, account: GroupKey, shape_id: int) -> None:
        """Return no more jobs of a shape of one account; without a user, of a tenant and pool."""
        self._dropped_for.setdefault(account, set()).add(shape_id)

    def close(self, account: GroupKey, gpu_milli: int) -> None:
        """Return no more jobs of an account that need so many GPUs; without a user, of a tenant."""
        self._closed_from[account] = min(gpu_milli, self._closed_from.get(account, gpu_milli))

    def give_up(self, bases: Set[int], may_evict: Callable[[Group], bool]) -> None:
        """Return no more jobs that need the same room, except interactive ones and some groups.

        `may_evict` tells which groups are exempt; one that is not exempt is not later.
        """
        self._may_evict = may_evict
        for base in self._batch_shapes.keys() & bases - self._given_up_bases:
            self._given_up_bases.add(base)
            self._given_up.update(self._batch_shapes[base])

    def _is_exempt(self, group: Group) -> bool:
        """Tell whether jobs of the group are returned although their shape was given up."""
        if group in self._not_exempt:
            return False
        is_exempt = self._may_evict(group)
        if not is_exempt:
            self._not_exempt.add(group)
        return is_exempt

    def _closed(self, key: GroupKey) -> int | None:
        """From how many GPUs on jobs of a group are left out."""
        if not self._closed_from:
            return None
        found = (self._closed_from.get(key), self._closed_from.get((key[0], "", key[2])))
        return min((milli for milli in found if milli is not None), default=None)

    def _closed_test(self, closed_from: int) -> Callable[[int], bool]:
        """A test whether a job needs at least this many GPUs."""

        def is_closed(number: int) -> bool:
            shape = self._entries[number].shape
            return shape.least_gpu_milli >= closed_from and not shape.interactive

        return is_closed

    def leave(self) -> None:
        """Go on behind the entry that `next` has just returned."""
        _, number, cursor = self._heap[0]
        entry = self._entries[number]
        cursor.advance((entry.key, number, entry.shape.id))
