"""Expected arrivals: a forecast lets jobs come as they came in the last day.

The recent submissions come in; entries of the queue go out, at the times at which they are
expected.
A job submitted at 15:10 yesterday is expected at 15:10 today, so that the daily rhythm is kept, and
again a day later. They are in the queue only while a forecast rolls time forward; `remove` takes
all of them out again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from gpu_scheduler.engine.queue import Entry
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.cluster_snapshot import Waiting

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
