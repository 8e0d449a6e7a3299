"""Reservations: a place and a start time for blocked jobs, and what other jobs may do around them.

In: a job as the pass considers it. Out: its reservation, or the nodes that it may use without
delaying a reservation. A reservation is kept from cycle to cycle. Jobs of the same or a lower
static class start on its nodes only if it can still start in time; a higher class may delay it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpu_scheduler.engine.placement.placer import Placer
from gpu_scheduler.engine.queue import JobContext, JobShape
from gpu_scheduler.engine.quota.admission import Amounts
from gpu_scheduler.engine.reservation.advance_reservations import AdvanceReservations, ExclusionRule
from gpu_scheduler.engine.reservation.node_timeline import (
    Booking,
    NodeTimeline,
    Upcoming,
    least_release,
)
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.service import BEYOND_MS

CLAIM_CLASS = 1 << 62
"""The class of a claim: victims were evicted for it, so no other job may use the place."""
TimedPlace = tuple[int, list[Grant]]
"""A start time, and the place that is free then."""


@dataclass(slots=True, eq=False)
class StartedJob:
    """A job that the cycle has started, with what counts against quotas until it ends."""

    end_ms: int
    grants: list[Grant]
    job: Job
    amounts: Amounts


class Calendar:
    """The reservations of one pass, and a timeline for every node that they touch.

    `kept` are the reservations that hold, by job number. `evicting` are the allocations that this
    pass evicts: they still hold their devices, but not for long. `changed_nodes`, as a bitmap,
    differ from the cluster state: something starts there in this pass, or something is booked.
    """

    def __init__(
        self,
        state: ClusterState,
        placer: Placer,
        now_ms: int,
        *,
        ended: set[str],
        started: list[StartedJob],
        advance: AdvanceReservations | None = None,
    ) -> None:
        """`ended` allocations hold nothing in the transaction any more, `started` jobs already do.

        `advance` are the advance reservations, if there are any.
        """
        self._state = state
        self._placer = placer
        self._transaction = placer.transaction
        self._anti_affinity = placer.anti_affinity
        self._now_ms = now_ms
        self._ended = ended
        self._started = started
        self._advance = advance
        self._timelines: dict[int, NodeTimeline] = {}
        self._bookings: dict[int, list[Booking]] = {}
        self._booked_nodes = 0
        self.evicting: set[str] = set()
        self.changed_nodes = 0
        self.kept: dict[int, Reservation] = {}

    # Where a job may start now

    def allowed(self, job: JobContext, duration_ms: int | None = None) -> int | None:
        """The nodes on which the job would delay no reservation; None for all.

        The job may ignore reservations of lower classes, but only of jobs that come after it in the
        order: so aging protects a job from higher classes in the end. A gang of several members is
        kept off every node where a booking begins before its end.
        """
        forbidden = self._anti_affinity.forbidden_nodes(job.entry.waiting.job)
        if not self._timelines:
            return ~forbidden if forbidden else None
        end_ms = self._now_ms + (job.duration_ms if duration_ms is None else duration_ms)
        members = job.entry.shape.members
        for ordinal, timeline in self._timelines.items():
            if not self._must_respect(job, ordinal):
                continue
            if len(members) > 1:
                is_free = not timeline.drops or timeline.drops[0] >= end_ms
            elif job.exclusion is None:
                is_free = timeline.fits(members[0], end_ms)
            else:
                found = timeline.choose(members[0], self._now_ms, end_ms, job.exclusion)
                is_free = found is not None
            if not is_free:
                forbidden |= self._state.index.nodes[ordinal].bit
        return ~forbidden if forbidden else None

    def booked_later(self, job: JobContext) -> int:
        """Nodes that are booked for other jobs before the job would end, as a bitmap.

        A place that is being freed at this moment counts in `after_evictions` instead.
        """
        end_ms = self._now_ms + job.duration_ms
        bits = self._anti_affinity.forbidden_nodes(job.entry.waiting.job)
        for ordinal, timeline in self._timelines.items():
            if self._must_respect(job, ordinal) and any(
                self._now_ms + 1 < drop < end_ms for drop in timeline.drops
            ):
                bits |= self._state.index.nodes[ordinal].bit
        return bits

    def fitted(self, job: JobContext, grants: list[Grant]) -> list[Grant]:
        """The same place, on devices that no booking needs."""
        if len(grants) != 1:
            return grants
        ordinal = grants[0].resources.ordinal
        timeline = self._timelines.get(ordinal)
        if timeline is None or not self._must_respect(job, ordinal):
            return grants
        end_ms = self._now_ms + job.duration_ms
        shape = job.entry.shape.members[0]
        grant = timeline.choose(shape, self._now_ms, end_ms, job.exclusion)
        return grants if grant is None else [grant.on(grants[0].resources)]

    def can_begin(self, grants: list[Grant], duration_ms: int) -> bool:
        """Tell whether a place that is free now stays clear of everything that is booked."""
        end_ms = self._now_ms + duration_ms
        timelines = [self._timelines.get(grant.resources.ordinal) for grant in grants]
        return all(
            timeline is None
            or not timeline.drops
            or timeline.has_room(grants, self._now_ms, end_ms)
            for timeline in timelines
        )

    def place_as_reserved(self, job: JobContext, reservation: Reservation) -> list[Grant] | None:
        """Take exactly the reserved place in the transaction, if it is due and free.

        A place that is being freed for another job is not taken in the transaction, so the bookings
        are checked as well.
        """
        if reservation.at_ms > self._now_ms + 1:
            return None
        if self.kept and self._as_reserved(job, reservation) is None:
            return None
        mark = self._transaction.mark()
        grants: list[Grant] = []
        forbidden = self._anti_affinity.forbidden_nodes(job.entry.waiting.job)
        for placement in reservation.placements:
            resources = self._state.index.by_id.get(placement.node_id)
            grant = None if resources is None else resources.grant_for(placement)
            if (
                resources is None
                or grant is None
                or forbidden & resources.bit
                or resources.bucket < 0
                or not resources.can_take(grant)
            ):
                self._transaction.undo(mark)
                return None
            self._transaction.take(grant)
            grants.append(grant)
        return grants

    def add_start(self, started: StartedJob) -> None:
        """A job starts now; what it takes is not free for a booking until it ends."""
        self._started.append(started)
        for grant in started.grants:
            self.changed_nodes |= grant.resources.bit
            timeline = self._timelines.get(grant.resources.ordinal)
            if timeline is not None:
                timeline.occupy(grant, self._now_ms, started.end_ms)

    def after_evictions(
        self, resources: NodeResources, exclusion: ExclusionRule | None
    ) -> NodeResources:
        """A copy of a node as it will be when everything that is being evicted has ended."""
        timeline = self._timelines.get(resources.ordinal)
        if timeline is not None:
            soon = timeline.at(self._now_ms + 1)
            return soon if exclusion is None else exclusion.narrowed(soon, self._now_ms)
        twin = resources.copy()
        for allocation_id in (*self.evicting, *self._state.stopping):
            if allocation_id in self._ended:
                continue
            for grant in self._state.running[allocation_id].grants:
                if grant.resources is resources:
                    self._state.index.give(grant.on(twin))
        return twin

    # Reservations

    def reserve(self, job: JobContext) -> bool:
        """Reserve the earliest place for a blocked job; False if none can be foreseen."""
        found = self.earliest(job)
        if found is not None:
            self._book(job, found, None)
        return job.entry.number in self.kept

    def keep(self, job: JobContext, old: Reservation) -> None:
        """Book a reservation exactly as before; if that is impossible, the earliest place."""
        exact = self._as_reserved(job, old)
        if exact is not None:
            self._book(job, exact, old, exact=True)
            return
        same = self._same_nodes(job, old)
        other = self.earliest(job)
        choices = [choice for choice in (same, other) if choice is not None]
        if choices:
            self._book(job, min(choices, key=lambda choice: choice[0]), old)

    def renew(self, job: JobContext, old: Reservation) -> None:
        """Book a reservation on the same nodes, earlier than before if possible."""
        same = self._same_nodes(job, old)
        if same is not None and same[0] <= max(old.at_ms, self._now_ms + 1):
            self._book(job, same, old)
        else:
            self.keep(job, old)

    def claim(
        self, job: JobContext, grants: list[Grant], victims: list[str], old: Reservation | None
    ) -> None:
        """Book a place that victims are leaving; it is due as soon as they have ended."""
        self.evicting.update(victims)
        for allocation_id in victims:
            for grant in self._state.running[allocation_id].grants:
                if grant.resources.ordinal in self._timelines:
                    self._rebuild(grant.resources.ordinal)
        self._book(job, (self._now_ms + 1, grants), old, exact=True, claim=True)

    def withdraw(self, number: int) -> Reservation | None:
        """Remove the bookings of a job, while it looks for a better place."""
        reservation = self.kept.pop(number, None)
        if reservation is not None:
            for ordinal, bookings in list(self._bookings.items()):
                if any(booking.number == number for booking in bookings):
                    self._rebuild(ordinal, without=number)
        return reservation

    def reserved_for_other(self, job_number: int) -> str:
        """The id of another job that has a reservation; empty if there is none."""
        for number, reservation in self.kept.items():
            if number != job_number:
                return reservation.job_id
        return ""

    def earliest(self, job: JobContext) -> TimedPlace | None:
        """The first time at which the job fits somewhere, and where."""
        if len(job.entry.shape.members) == 1:
            return self._earliest_single(job)
        return self._earliest_gang(job)

    def _must_respect(self, job: JobContext, ordinal: int) -> bool:
        """Tell whether the job must not delay the bookings of a node.

        It may if it is of a higher class than all bookings there and comes before all of them.
        Online work within its guarantee may delay bookings of batch work, except claims.
        """
        timeline = self._timelines[ordinal]
        if job.within_pool_guarantee and timeline.top_class < CLAIM_CLASS:
            entries = self._state.queue.entries
            numbers = (booking.number for booking in self._bookings.get(ordinal, ()))
            if all(entries[number].waiting.job.pool is Pool.BATCH for number in numbers):
                return False
        return (
            job.entry.static_class <= timeline.top_class or job.order_value >= timeline.first_value
        )

    # The earliest place

    def _earliest_single(self, job: JobContext) -> TimedPlace | None:
        """Walk through the expected ends; only the node that was just freed can newly fit."""
        shape = job.entry.shape.members[0]
        index = self._state.index
        selected = index.selected(shape.request)
        forbidden = self._anti_affinity.forbidden_nodes(job.entry.waiting.job)
        if forbidden:
            selected = ~forbidden if selected is None else selected & ~forbidden
        if job.exclusion is not None:
            # What is closed to the job changes with time there, so these nodes need timelines.
            for ordinal in job.exclusion.ordinals:
                if index.nodes[ordinal].bucket >= 0:
                    self._timeline(index.nodes[ordinal])
        best = self._earliest_on_timelines(job, shape, selected)
        copies: dict[int, NodeResources] = {}
        for end_ms, grants in self._ends():
            at_ms = max(end_ms, self._now_ms + 1)
            if best is not None and at_ms >= best[0]:
                break
            for grant in grants:
                resources = grant.resources
                ordinal = resources.ordinal
                if ordinal in self._timelines or resources.bucket < 0:
                    continue
                if selected is not None and not selected & resources.bit:
                    continue
                copy = copies.get(ordinal)
                if copy is None:
                    copy = copies[ordinal] = resources.copy()
                index.give(grant.on(copy))
                chosen = copy.choose_any(shape)
                if chosen is not None:
                    return at_ms, [chosen]
        return best

    def _earliest_on_timelines(
        self, job: JobContext, shape: RequestShape, selected: int | None
    ) -> TimedPlace | None:
        """The same among the nodes that have a timeline already."""
        best: TimedPlace | None = None
        for ordinal, timeline in self._timelines.items():
            if selected is not None and not selected & self._state.index.nodes[ordinal].bit:
                continue
            found = timeline.earliest(shape, job.duration_ms, self._now_ms + 1, job.exclusion)
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], [found[1]])
        return best

    def _earliest_gang(self, job: JobContext) -> TimedPlace | None:
        """When enough has ended on nodes without bookings; else after all that is booked."""
        shape, exclusion = job.entry.shape, job.exclusion
        ends = Upcoming(self._ends())
        booked = self._booked_nodes
        within = ~booked if booked else None
        self._close(exclusion, None)  # A place without any closed device is good at any time.
        found = least_release(self._transaction, ends, lambda: self._try(shape, within))
        not_before_ms = self._now_ms + 1
        if found is None and (booked or exclusion is not None):
            after_ms = self._booked_until_ms()
            if exclusion is not None:
                after_ms = max(after_ms, exclusion.last_end_ms)
            self._close(exclusion, after_ms)
            at_once = None if booked else self._try(shape, None)
            if at_once is not None:
                found = (after_ms, at_once)  # Nothing has to end but an advance reservation.
            else:
                found = least_release(self._transaction, ends, lambda: self._try(shape, None))
            not_before_ms = max(not_before_ms, after_ms)
        self._close(exclusion, self._now_ms)
        return None if found is None else (max(found[0], not_before_ms), found[1])

    def _close(self, exclusion: ExclusionRule | None, at_ms: int | None) -> None:
        """Exclude the devices that are closed to the job at a time (None: at any time)."""
        if self._advance is not None and exclusion is not None:
            self._advance.close(exclusion.closed(at_ms))

    def _try(self, job_shape: JobShape, within: int | None) -> list[Grant] | None:
        mark = self._transaction.mark()
        grants = self._placer.place(job_shape, within)
        self._transaction.undo(mark)
        return grants

    # The place of a reservation that was made before

    def _same_nodes(self, job: JobContext, old: Reservation) -> TimedPlace | None:
        """When the job could start on the nodes that it has reserved."""
        at_ms = self._now_ms + 1
        index = self._state.index
        places: list[tuple[NodeResources, int]] = []
        for placement in old.placements:
            resources = index.by_id.get(placement.node_id)
            if resources is None or resources.bucket < 0:
                return None
            places.append((resources, placement.member))
        if len({resources.ordinal for resources, _ in places}) < len(places):
            return self._same_devices(job, old)
        grants: list[Grant] = []
        while len(grants) < len(places):
            grants = []
            for resources, member in places:
                shape = job.entry.shape.members[member]
                timeline = self._timeline(resources)
                found = timeline.earliest(shape, job.duration_ms, at_ms, job.exclusion)
                if found is None:
                    return None
                if found[0] > at_ms and grants:
                    at_ms = found[0]
                    break
                at_ms = found[0]
                grant = found[1].on(resources)
                grant.member = member
                grants.append(grant)
        return at_ms, grants

    def _same_devices(self, job: JobContext, old: Reservation) -> TimedPlace | None:
        """When exactly the reserved devices are free, for members that share a node."""
        nodes = [self._state.index.resources(placement.node_id) for placement in old.placements]
        grants = [
            resources.grant_for(placement)
            for resources, placement in zip(nodes, old.placements, strict=True)
        ]
        timelines = [self._timeline(resources) for resources in dict.fromkeys(nodes)]
        times = sorted({at_ms for timeline in timelines for at_ms in timeline.times})
        exclusion = job.exclusion
        if exclusion is not None:
            times = sorted({*times, *(end for n in nodes for end in exclusion.ends_on(n.ordinal))})
        for at_ms in [self._now_ms + 1, *times]:
            if at_ms > self._now_ms and self._have_room(job, timelines, grants, at_ms):
                return at_ms, grants
        return None

    def _as_reserved(self, job: JobContext, old: Reservation) -> TimedPlace | None:
        """Exactly the reserved devices at the reserved time, if they are free then."""
        at_ms = max(old.at_ms, self._now_ms)
        grants: list[Grant] = []
        for placement in old.placements:
            resources = self._state.index.by_id.get(placement.node_id)
            if resources is None or resources.bucket < 0:
                return None
            grants.append(resources.grant_for(placement))
        nodes = dict.fromkeys(grant.resources for grant in grants)
        timelines = [self._timeline(resources) for resources in nodes]
        return (at_ms, grants) if self._have_room(job, timelines, grants, at_ms) else None

    def _have_room(
        self, job: JobContext, timelines: list[NodeTimeline], grants: list[Grant], at_ms: int
    ) -> bool:
        """Tell whether certain devices are free for the job's duration, and open to it."""
        exclusion = job.exclusion
        if exclusion is not None and any(exclusion.bars(grant, at_ms) for grant in grants):
            return False
        end_ms = at_ms + job.duration_ms
        return all(timeline.has_room(grants, at_ms, end_ms) for timeline in timelines)

    # Bookings and timelines

    def _book(
        self,
        job: JobContext,
        found: TimedPlace,
        old: Reservation | None,
        *,
        exact: bool = False,
        claim: bool = False,
    ) -> None:
        entry = job.entry
        at_ms, grants = found
        if at_ms - self._now_ms >= BEYOND_MS:
            return  # The place becomes free only when something endless ends.
        end_ms = at_ms + job.duration_ms
        index = self._state.index
        if len(grants) == 1 and not exact:
            timeline = self._timeline(index.nodes[grants[0].resources.ordinal])
            late = timeline.choose_late(entry.shape.members[0], at_ms, end_ms, job.exclusion)
            grants = grants if late is None else [late]
        claim = claim or (old is not None and old.claim and at_ms <= self._now_ms + 1)
        static_class = CLAIM_CLASS if claim else entry.static_class
        for grant in grants:
            resources = index.nodes[grant.resources.ordinal]
            booking = Booking(entry.number, grant, at_ms, end_ms, static_class, job.order_value)
            self._timeline(resources).book(booking)
            self._bookings.setdefault(resources.ordinal, []).append(booking)
            self._booked_nodes |= resources.bit
        slipped = old is not None and at_ms > max(old.at_ms, self._now_ms + 1)
        self.kept[entry.number] = Reservation(
            job_id=entry.waiting.job.id,
            job_number=entry.number,
            at_ms=at_ms,
            until_ms=end_ms,
            placements=tuple(grant.placement() for grant in grants),
            made_ms=self._now_ms if old is None else old.made_ms,
            claim=claim,
            slips=(0 if old is None else old.slips) + slipped,
            promised_ms=at_ms if old is None else old.due_ms,
        )

    def _rebuild(self, ordinal: int, *, without: int = -1) -> None:
        """Build the timeline of a node again, with all its bookings but those of one job."""
        resources = self._state.index.nodes[ordinal]
        self._timelines.pop(ordinal, None)
        bookings = [item for item in self._bookings.pop(ordinal, ()) if item.number != without]
        if not bookings:
            self._booked_nodes &= ~resources.bit
            return
        self._bookings[ordinal] = bookings
        timeline = self._timeline(resources)
        for booking in bookings:
            timeline.book(booking)

    def _booked_until_ms(self) -> int:
        """When the last booking ends."""
        ends = (booking.end_ms for bookings in self._bookings.values() for booking in bookings)
        return max(ends, default=self._now_ms)

    def _timeline(self, resources: NodeResources) -> NodeTimeline:
        timeline = self._timelines.get(resources.ordinal)
        if timeline is None:
            ends: list[tuple[int, Grant]] = []
            for allocation_id, entry in self._state.by_node.get(resources.ordinal, {}).items():
                if allocation_id not in self._ended:
                    end_ms = self._end_ms(allocation_id)
                    ends += [(end_ms, g) for g in entry.grants if g.resources is resources]
            for started in self._started:
                ends += [(started.end_ms, g) for g in started.grants if g.resources is resources]
            timeline = NodeTimeline(self._state.index, resources, self._now_ms, ends)
            if self._advance is not None:
                # All jobs share the timeline, so no device is closed on it.
                for step in timeline.states:
                    step.usable = self._advance.usable_of(resources)
            self._timelines[resources.ordinal] = timeline
            self.changed_nodes |= resources.bit
        return timeline

    def _end_ms(self, allocation_id: str) -> int:
        """When a running allocation is expected to end; at once if it is being stopped."""
        running = self._state.running[allocation_id].running
        if running.stopping or allocation_id in self.evicting:
            return self._now_ms
        return running.expected_end_ms

    def _ends(self) -> Iterator[tuple[int, list[Grant]]]:
        """What runs or has just been started, by expected end."""
        stopping = [*self.evicting, *self._state.stopping]
        for allocation_id in sorted(set(stopping) - self._ended):
            yield self._now_ms, self._state.running[allocation_id].grants
        started = sorted(self._started, key=lambda item: item.end_ms)
        place = 0
        skipped = {*self._ended, *stopping}
        for end_key in self._state.ends:
            while place < len(started) and started[place].end_ms < end_key[0]:
                yield started[place].end_ms, started[place].grants
                place += 1
            if end_key[3] not in skipped:
                yield end_key[0], self._state.running[end_key[3]].grants
        for item in started[place:]:
            yield item.end_ms, item.grants
