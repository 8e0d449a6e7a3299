"""Expected arrivals: a forecast lets jobs come as they came in the last day.

The recent submissions come in; entries of the queue go out, at the times at which they are
expected.
A job submitted at 15:10 yesterday is expected at 15:10 today, so that the daily rhythm is kept, and
again a day later. They are in the queue only while a forecast rolls time forward; `remove` takes
all of them out again.

`RecentRequests` learns what the last submissions asked for, for the ranking `balance`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Waiting
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.request import Request, TypicalShape

MOST_RECENT = 300
"""More submissions in a day are represented by the last ones, at the rate at which they came."""
MOST_EXPECTED = 1_000
LONGEST_PERIOD_MS = 86_400_000
SHORTEST_PERIOD_MS = 3_600_000
"""A burst of submissions is not expected again within an hour."""
FIRST_NUMBER = 1 << 50
"""Above the number of any job."""


class RecentArrivals:
    """The last submissions that could start at once, as they were queued."""

    def __init__(self) -> None:
        """Start without submissions."""
        self._recent: deque[Waiting] = deque(maxlen=MOST_RECENT)

    def note(self, waiting: Waiting) -> None:
        """A job was submitted and queued."""
        if not waiting.job.service:
            self._recent.append(waiting)

    def expected(self, now_ms: int) -> tuple[list[Waiting], int]:
        """The first repetition of each recent submission, and the time between repetitions."""
        recent = [one for one in self._recent if one.job.submit_ms > now_ms - LONGEST_PERIOD_MS]
        period_ms = LONGEST_PERIOD_MS
        if len(recent) == MOST_RECENT:
            period_ms = max(SHORTEST_PERIOD_MS, now_ms - recent[0].job.submit_ms)
        return [_later(one, period_ms) for one in recent], period_ms


def _later(waiting: Waiting, by_ms: int) -> Waiting:
    """The same submission at a later time."""
    at_ms = waiting.job.submit_ms + by_ms
    return replace(waiting, job=replace(waiting.job, submit_ms=at_ms), since_ms=at_ms)


NO_ARRIVALS = RecentArrivals()

MOST_REQUESTS = 4_096
"""Demand is that of so many submissions."""
FIRST_LESSON = 64


class RecentRequests:
    """What the last submissions asked for, and how often. The summary changes seldom.

    It is made again when as many submissions have come as in all before, at least 64 and at most
    4,096: what is computed from it is kept in between.
    """

    def __init__(self) -> None:
        """Start without submissions."""
        self._recent: deque[tuple[list[tuple[TypicalShape, int]], int]] = deque()
        self._counts: Counter[TypicalShape] = Counter()
        self._noted = 0
        self._next_lesson = FIRST_LESSON
        self.demand: tuple[TypicalShape, ...] = ()

    def note(self, job: Job, count: int = 1) -> bool:
        """So many such jobs were submitted; tells whether `demand` was made again."""
        if len(self._recent) == MOST_REQUESTS:
            shapes, times = self._recent.popleft()
            self._count(shapes, -times)
        shapes, times = _shapes_of(job), count * job.task_count
        self._recent.append((shapes, times))
        self._count(shapes, times)
        self._noted += 1
        if self._noted < self._next_lesson:
            return False
        self._next_lesson = min(2 * self._noted, self._noted + MOST_REQUESTS)
        self.demand = tuple(
            replace(shape, count=times)
            for shape, times in sorted(self._counts.items(), key=_most_frequent)
        )
        return True

    def _count(self, shapes: Iterable[tuple[TypicalShape, int]], times: int) -> None:
        for shape, count in shapes:
            left = self._counts[shape] + times * count
            if left:
                self._counts[shape] = left
            else:
                del self._counts[shape]


def _shapes_of(job: Job) -> list[tuple[TypicalShape, int]]:
    """The distinct requests of the members, and how many members have each."""
    return [(_typical(request), count) for request, count in Counter(job.members).items()]


def _typical(request: Request) -> TypicalShape:
    return TypicalShape(
        cpu_milli=request.cpu_milli,
        memory_mb=0,
        gpu_count=request.gpu_count,
        gpu_share_milli=request.gpu_share_milli if request.gpu_count else 0,
        gpu_models=request.gpu_models,
        count=1,
    )


def _most_frequent(item: tuple[TypicalShape, int]) -> tuple[object, ...]:
    shape, count = item
    return (-count, shape.cpu_milli, shape.gpu_share_milli, shape.gpu_count, shape.gpu_models)


class ExpectedArrivals:
    """The arrivals of one forecast: they join the queue when their time has come."""

    def __init__(self, state: ClusterState, first: Iterable[Waiting], period_ms: int) -> None:
        """Enter all once and take them out again: then the state knows all their shapes.

        It may forget the shapes that no job in the queue has whenever one enters.
        """
        self._state = state
        self._period_ms = period_ms
        self._next: list[tuple[int, int, Entry]] = []
        for order, waiting in enumerate(first):
            number = FIRST_NUMBER + order
            job = replace(waiting.job, id=f"expected-{number}", number=number)
            entry = state.enqueue(replace(waiting, job=job))
            self._next.append((job.submit_ms, order, entry))
        for _, _, entry in self._next:
            state.dequeue(entry.number)
        heapify(self._next)
        self._most_left = MOST_EXPECTED
        self._entered: list[int] = []

    def enter_until(self, at_ms: int) -> None:
        """Let all join the queue that are expected by then."""
        while self._next and self._next[0][0] <= at_ms and self._most_left:
            due_ms, order, entry = self._next[0]
            self._most_left -= 1
            entry.group = self._state.queue.group(entry.group.key)
            self._entered.append(entry.number)
            self._state.queue.add(entry)
            again_ms = due_ms + self._period_ms
            if not self._most_left:
                heappop(self._next)
                continue
            heapreplace(self._next, (again_ms, order, self._repeated(entry)))

    def remove(self) -> None:
        """Take all of them out of the queue."""
        for number in self._entered:
            self._state.queue.remove(number)

    def _repeated(self, entry: Entry) -> Entry:
        """The same arrival one period later. Aging is linear, so its key moves by the period."""
        number = entry.number + MOST_RECENT
        aged_ms = self._period_ms if self._state.policy.order.age else 0
        waiting = _later(entry.waiting, self._period_ms)
        job = replace(waiting.job, id=f"expected-{number}", number=number)
        again = replace(waiting, job=job)
        return Entry(again, entry.shape, entry.group, entry.key + aged_ms, entry.static_class)
