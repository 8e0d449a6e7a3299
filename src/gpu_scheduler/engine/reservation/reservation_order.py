"""The order in which reservations are booked, and the jobs that backfill rejects.

A rejected job has room now, but would run too long to end before a reservation begins. Shorter jobs
of the same shape may still be backfilled. After enough rejects, the pass considers no more jobs of
the shape.
"""

from __future__ import annotations

from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.plan_builder import PlanBuilder
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.engine.queue import Entry, JobContext, Merge
from gpu_scheduler.engine.reservation.backfill_calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.model.reasons import Reason, ReasonCode

_PORT_TAKEN = Reason(ReasonCode.PORT_TAKEN)


class ReservationOrder:
    """The jobs with a reservation, in the order in which one pass books them.

    Claims come first, then the oldest reservation.
    """

    def __init__(self, state: ClusterState, used_up: set[int]) -> None:
        """Leave out jobs with `used_up` numbers: they have started in an earlier pass."""
        reservations = state.reservations
        entries = state.queue.entries
        self._reservations = reservations
        self.all = self._rest = sorted(
            (entries[number] for number in reservations if number not in used_up),
            key=lambda entry: (
                not reservations[entry.number].claim,
                reservations[entry.number].made_ms,
                entry.key,
                entry.number,
            ),
        )

    def take_before(self, entry: Entry | None, fair_share: FairShare) -> list[Entry]:
        """Take out the jobs whose reservations a job must respect; None for all the rest.

        All jobs must respect a claim.
        """
        if not self._rest:
            return []
        value = 0 if entry is None else fair_share.order_value(entry)
        chosen: list[Entry] = []
        later: list[Entry] = []
        for holder in self._rest:
            comes_before = (
                entry is None
                or holder.static_class >= entry.static_class
                or fair_share.order_value(holder) < value
                or self._reservations[holder.number].claim
            )
            (chosen if comes_before else later).append(holder)
        self._rest = later
        return chosen


class BackfillRejects:
    """The rejects of one pass.

    `shapes` has, by shape id, the shortest run that was too long, and the number of rejects.
    """

    def __init__(self, policy: Policy, calendar: Calendar, merge: Merge, plan: PlanBuilder) -> None:
        """Start without rejects."""
        self._most = policy.max_passed_over
        self._calendar = calendar
        self._merge = merge
        self._plan = plan
        self.shapes: dict[int, tuple[int, int]] = {}
        self._reserved_reasons: dict[str, Reason] = {}

    def rejects(self, entry: Entry, duration_ms: int) -> bool:
        """Reject a job that is no shorter than one of its shape that was too long."""
        known = self.shapes.get(entry.shape.id)
        if known is None or duration_ms < known[0]:
            return False
        reason = self._reserved_for(self._calendar.reserved_for_other(-1))
        self._plan.job_reasons[entry.number] = reason
        self._count(entry.shape.id, reason)
        return True

    def add(self, job: JobContext, *, whole_shape: bool) -> None:
        """Reject a job; with `whole_shape`, also all of its shape that are no shorter."""
        shape_id = job.entry.shape.id
        reason = self._reserved_for(self._calendar.reserved_for_other(job.entry.number))
        self._plan.job_reasons[job.entry.number] = reason
        if whole_shape:
            shortest_ms, count = self.shapes.get(shape_id, (job.duration_ms, 0))
            self.shapes[shape_id] = (min(shortest_ms, job.duration_ms), count)
            self._count(shape_id, reason)

    def _count(self, shape_id: int, reason: Reason) -> None:
        shortest_ms, count = self.shapes[shape_id]
        self.shapes[shape_id] = (shortest_ms, count + 1)
        if count + 1 >= self._most:
            self._merge.drop_shape(shape_id)
            self._plan.shape_reasons.setdefault(shape_id, reason)

    def _reserved_for(self, job_id: str) -> Reason:
        """The reason of jobs that would delay this one."""
        reason = self._reserved_reasons.get(job_id)
        if reason is None:
            reason = Reason(ReasonCode.RESERVED, (("job", job_id),)) if job_id else _PORT_TAKEN
            self._reserved_reasons[job_id] = reason
        return reason
