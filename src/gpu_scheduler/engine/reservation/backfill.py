"""Jobs for which there is room, but which are too long to end before a reservation begins.

Shorter ones of the same shape may still pass. After enough that were too long, no more of the
shape are looked at in the cycle.
"""

from __future__ import annotations

from collections.abc import Callable

from gpu_scheduler.engine.plan_builder import PlanBuilder
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.queue import Entry, Merge
from gpu_scheduler.engine.reservation.calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.reasons import Reason, ReasonCode

_PORT_TAKEN = Reason(ReasonCode.PORT_TAKEN)


class BackfillRejects:
    """What one pass over the queue knows of them.

    `shapes` has, by id, the shortest run that was too long, and how many jobs were.
    """

    def __init__(
        self, policy: Policy, calendar: Calendar, merge: Merge, found: PlanBuilder
    ) -> None:
        """Nobody was too long yet."""
        self._most = policy.max_passed_over
        self._calendar = calendar
        self._merge = merge
        self._found = found
        self.shapes: dict[int, tuple[int, int]] = {}
        self._behind: dict[str, Reason] = {}

    def is_too_long(self, entry: Entry, duration_ms: int) -> bool:
        """Tell whether a job that is no longer could not pass, of a shape in `shapes`."""
        if duration_ms < self.shapes[entry.shape.id][0]:
            return False
        reason = self._reserved_for(self._calendar.holder_other_than(-1))
        self._found.of_jobs[entry.number] = reason
        self._count(entry.shape.id, reason)
        return True

    def note(self, entry: Entry, duration_ms: int, *, alike: bool) -> None:
        """The job is too long; with `alike`, so are all of its shape that are no shorter."""
        shape_id = entry.shape.id
        reason = self._reserved_for(self._calendar.holder_other_than(entry.number))
        self._found.of_jobs[entry.number] = reason
        if alike:
            failed_ms, count = self.shapes.get(shape_id, (duration_ms, 0))
            self.shapes[shape_id] = (min(failed_ms, duration_ms), count)
            self._count(shape_id, reason)

    def _count(self, shape_id: int, reason: Reason) -> None:
        """After enough jobs of one shape were too long, the rest is not looked at."""
        failed_ms, count = self.shapes[shape_id]
        self.shapes[shape_id] = (failed_ms, count + 1)
        if count + 1 >= self._most:
            self._merge.drop_shape(shape_id)
            self._found.of_shapes.setdefault(shape_id, reason)

    def _reserved_for(self, job_id: str) -> Reason:
        """The reason of jobs that would push this one back."""
        reason = self._behind.get(job_id)
        if reason is None:
            reason = Reason(ReasonCode.RESERVED, (("job", job_id),)) if job_id else _PORT_TAKEN
            self._behind[job_id] = reason
        return reason


# --- The jobs that hold a reservation, in the order in which their promises are booked.


class ReservationOrder:
    """Places that are being cleared first, then the oldest promise first. For one pass."""

    def __init__(self, state: ClusterState, used_up: set[int]) -> None:
        """Reservations of jobs with `used_up` numbers are of no matter."""
        reservations = state.reservations
        entries = state.queue.entries
        self._reservations = reservations
        self.everyone = self._rest = sorted(
            (entries[number] for number in reservations if number not in used_up),
            key=lambda holder: (
                not reservations[holder.number].claim,
                reservations[holder.number].made_ms,
                holder.key,
                holder.number,
            ),
        )

    def before(self, entry: Entry | None, value_of: Callable[[Entry], int]) -> list[Entry]:
        """Those whom a job must respect and who were not told before; None for all.

        `value_of` is the place in the order. A place that was cleared is respected by everybody.
        """
        if not self._rest:
            return []
        value = 0 if entry is None else value_of(entry)
        chosen: list[Entry] = []
        later: list[Entry] = []
        for holder in self._rest:
            comes_before = (
                entry is None
                or holder.static_class >= entry.static_class
                or value_of(holder) < value
                or self._reservations[holder.number].claim
            )
            (chosen if comes_before else later).append(holder)
        self._rest = later
        return chosen
