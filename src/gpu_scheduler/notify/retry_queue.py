"""Notifications that wait for delivery, one lane per target; the same rows are in the store.

Rows come in after their commit. `due` returns what may be tried now. After a failure the row comes
back with a later time. A target that is down makes its whole lane wait.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.rows import NoticeRow

HOUR_MS = 3_600_000
ADDRESSES = "addresses of jobs"
"""The lane of all URLs that jobs named."""
_LONGEST_ERROR = 300


class DeliveryFailed(Exception):
    """A failed attempt. With `target_down` the receiver itself fails: the whole lane waits."""

    def __init__(self, why: str, *, target_down: bool = False) -> None:
        super().__init__(why)
        self.target_down = target_down


@dataclass(slots=True)
class Lane:
    """The notifications for one target. `busy` are the ids that are being sent."""

    waiting: dict[str, NoticeRow] = field(default_factory=dict)
    heap: list[tuple[int, int, str]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    paused_until_ms: int = 0
    pauses: int = 0
    delivered: int = 0
    failures: int = 0
    given_up: int = 0
    last_error: str = ""

    @property
    def oldest_ms(self) -> int | None:
        """Time of the oldest waiting notification."""
        return min((row.at_ms for row in self.waiting.values()), default=None)


class Outbox:
    """All lanes."""

    def __init__(self, settings: NotificationSettings, chance: random.Random) -> None:
        """Empty at first; `chance` spreads the retries."""
        self._settings = settings
        self._chance = chance
        self.lanes: dict[str, Lane] = {name: Lane() for name in settings.targets}

    def lane_of(self, target: str) -> str:
        """The lane of a target: its name, or the one lane for all URLs of jobs."""
        return ADDRESSES if target.startswith("https://") else target

    def lane(self, target: str) -> Lane:
        """The lane of a target; created on first use."""
        return self.lanes.setdefault(self.lane_of(target), Lane())

    def room(self, target: str) -> int:
        """How many more may wait for this target."""
        return max(0, self._settings.max_waiting - len(self.lane(target).waiting))

    def add(self, row: NoticeRow) -> None:
        """Add a row that has been committed."""
        lane = self.lane(row.target)
        lane.waiting[row.id] = row
        heappush(lane.heap, (row.next_ms, row.at_ms, row.id))

    def due(self, name: str, now_ms: int) -> NoticeRow | None:
        """The next row of a lane that may be sent now; it is marked as busy."""
        lane = self.lanes[name]
        width = 4 if name == ADDRESSES else 1
        if now_ms < lane.paused_until_ms or len(lane.busy) >= width:
            return None
        while lane.heap and lane.heap[0][0] <= now_ms:
            next_ms, _, row_id = heappop(lane.heap)
            row = lane.waiting.get(row_id)
            if row is not None and row.next_ms == next_ms and row_id not in lane.busy:
                lane.busy.add(row_id)
                return row
        return None

    def next_ms(self, name: str) -> int | None:
        """When the lane should be checked again."""
        lane = self.lanes[name]
        return max(lane.heap[0][0], lane.paused_until_ms) if lane.heap else None

    def delivered(self, row: NoticeRow) -> None:
        """Remove a delivered row."""
        lane = self.lane(row.target)
        self._drop(lane, row)
        lane.delivered += 1
        lane.pauses = lane.paused_until_ms = 0
        lane.last_error = ""

    def failed(
        self, row: NoticeRow, why: str, now_ms: int, *, target_down: bool
    ) -> NoticeRow | None:
        """The row with the time of its next attempt, or None if it has expired."""
        lane = self.lane(row.target)
        lane.failures += 1
        lane.last_error = why[:_LONGEST_ERROR]
        lane.busy.discard(row.id)
        if target_down and row.target in self._settings.targets:
            lane.pauses += 1
            lane.paused_until_ms = now_ms + self._pause_ms(lane.pauses)
        if now_ms - row.at_ms >= self._settings.give_up_hours * HOUR_MS:
            self._drop(lane, row)
            lane.given_up += 1
            return None
        again = replace(
            row,
            tries=row.tries + 1,
            next_ms=now_ms + self._pause_ms(row.tries + 1),
            error=why[:_LONGEST_ERROR],
        )
        lane.waiting[row.id] = again
        heappush(lane.heap, (again.next_ms, again.at_ms, again.id))
        return again

    def _pause_ms(self, failures: int) -> int:
        """Exponential back-off with jitter."""
        settings = self._settings
        seconds: float = min(
            settings.retry_most_s, settings.retry_first_s * 2 ** min(failures - 1, 30)
        )
        return round(1000 * seconds * self._chance.uniform(0.8, 1.0))

    def _drop(self, lane: Lane, row: NoticeRow) -> None:
        lane.busy.discard(row.id)
        lane.waiting.pop(row.id, None)
        if len(lane.heap) > 2 * len(lane.waiting) + 100:
            lane.heap = [(r.next_ms, r.at_ms, r.id) for r in lane.waiting.values()]
            heapify(lane.heap)
