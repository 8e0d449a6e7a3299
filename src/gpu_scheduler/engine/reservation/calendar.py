"""Reservations: a place and a time for blocked jobs, and what later jobs may do around them.

A reservation is kept from cycle to cycle (sticky). Jobs of the same or a lower static class start
on its nodes only if it can still start in time there; a higher class may push it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpu_scheduler.engine.placement.anti_affinity import AntiAffinity
from gpu_scheduler.engine.queue import Entry, JobShape
from gpu_scheduler.engine.reservation.advance import AdvanceReservations, ExclusionRule
from gpu_scheduler.engine.reservation.timeline import Booking, NodeTimeline, Upcoming, least_release
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.request_shape import RequestShape
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.service import BEYOND_MS

PlaceJob = Callable[[JobShape, int | None], list[Grant] | None]
NOBODY_PASSES = 1 << 62
"""The class of a place that was cleared: others have left for it, so it is kept from everybody."""


class Calendar:
    """The reservations of one cycle, and an outlook for every node that they touch."""

    def __init__(
        self,
        state: ClusterState,
        transaction: Transaction,
        now_ms: int,
        *,
        gone: set[str],
        started: list[tuple[int, list[Grant]]],
        windows: AdvanceReservations | None = None,
        anti_affinity: AntiAffinity | None = None,
    ) -> None:
        """`gone` allocations hold nothing in the draft any more, `started` jobs already do.

        `leaving` allocations are being evicted: they hold what they hold, but not for long.
        `unsettled` nodes, as a bitmap, differ from the cluster state: something starts there in
        this cycle, or something is booked. `windows` are what people have reserved, and `rule` is
        what that means for the job that is considered. `anti_affinity` knows where ports are taken.
        """
        self._state = state
        self._transaction = transaction
        self._now_ms = now_ms
        self._gone = gone
        self._started = started
        self._timelines: dict[int, NodeTimeline] = {}
        self._bookings: dict[int, list[Booking]] = {}
        self._booked = 0
        self._windows = windows
        self._anti_affinity = anti_affinity or AntiAffinity(state.anti_affinity_counts, state.index)
        self.rule: ExclusionRule | None = None
        self.within_pool_guarantee: Callable[[Entry], bool] = lambda _: False
        self.leaving: set[str] = set()
        self.unsettled = 0
        self.kept: dict[int, Reservation] = {}

    def note_start(self, grants: list[Grant], duration_ms: int) -> None:
        """A job starts now; what it takes is not there for a booking until it ends."""
        end_ms = self._now_ms + duration_ms
        self._started.append((end_ms, grants))
        for grant in grants:
            self.unsettled |= grant.resources.bit
            timeline = self._timelines.get(grant.resources.ordinal)
            if timeline is not None:
                timeline.occupy(grant, self._now_ms, end_ms)

    def fitted(
        self, entry: Entry, grants: list[Grant], duration_ms: int, value: int
    ) -> list[Grant]:
        """The same place, on devices that no booking counts on."""
        if len(grants) != 1:
            return grants
        ordinal = grants[0].resources.ordinal
        timeline = self._timelines.get(ordinal)
        if timeline is None or not self._respects(
            entry, value, ordinal, within_pool_guarantee=self.within_pool_guarantee(entry)
        ):
            return grants
        end_ms = self._now_ms + duration_ms
        grant = timeline.choose(entry.shape.members[0], self._now_ms, end_ms, self.rule)
        return grants if grant is None else [grant.on(grants[0].resources)]

    def allowed(self, entry: Entry, duration_ms: int, value: int) -> int | None:
        """The nodes on which the job would push nobody back; None for all.

        `value` is the job's place in the order. It may ignore reservations of lower classes, but
        only of jobs that come after it: aging protects from higher classes in the end.

        A gang of several members is kept off every node where a booking begins before its end.
        """
        forbidden = self._anti_affinity.closed(entry.waiting.job)
        if not self._timelines:
            return ~forbidden if forbidden else None
        end_ms = self._now_ms + duration_ms
        members = entry.shape.members
        within_pool_guarantee = self.within_pool_guarantee(entry)
        for ordinal, timeline in self._timelines.items():
            if not self._respects(
                entry, value, ordinal, within_pool_guarantee=within_pool_guarantee
            ):
                continue
            if len(members) > 1:
                is_free = not timeline.drops or timeline.drops[0] >= end_ms
            elif self.rule is None:
                is_free = timeline.fits(members[0], end_ms)
            else:
                found = timeline.choose(members[0], self._now_ms, end_ms, self.rule)
                is_free = found is not None
            if not is_free:
                forbidden |= self._state.index.nodes[ordinal].bit
        return ~forbidden if forbidden else None

    def booked_later(self, entry: Entry, duration_ms: int, value: int) -> int:
        """Nodes that are promised to others before the job would end, as a bitmap.

        A place that is being cleared at this moment counts in `shadow` instead.
        """
        end_ms = self._now_ms + duration_ms
        bits = self._anti_affinity.closed(entry.waiting.job)
        within_pool_guarantee = self.within_pool_guarantee(entry)
        for ordinal, timeline in self._timelines.items():
            if self._respects(
                entry, value, ordinal, within_pool_guarantee=within_pool_guarantee
            ) and any(self._now_ms + 1 < drop < end_ms for drop in timeline.drops):
                bits |= self._state.index.nodes[ordinal].bit
        return bits

    def keep(
        self, entry: Entry, duration_ms: int, old: Reservation, place: PlaceJob, value: int
    ) -> None:
        """Book a reservation just as it was promised; if it slips, the best that there is."""
        promised = self._as_promised(duration_ms, old)
        if promised is not None:
            self._book(entry, duration_ms, promised, old, value, exact=True)
            return
        same = self._same_place(entry, duration_ms, old)
        other = self.earliest(entry, duration_ms, place)
        choices = [choice for choice in (same, other) if choice is not None]
        if choices:
            self._book(entry, duration_ms, min(choices, key=lambda choice: choice[0]), old, value)

    def renew(
        self, entry: Entry, duration_ms: int, old: Reservation, place: PlaceJob, value: int
    ) -> None:
        """Book a reservation on the same nodes, sooner than it was promised if that can be."""
        same = self._same_place(entry, duration_ms, old)
        if same is not None and same[0] <= max(old.at_ms, self._now_ms + 1):
            self._book(entry, duration_ms, same, old, value)
        else:
            self.keep(entry, duration_ms, old, place, value)

    def has_room(self, reservation: Reservation, duration_ms: int) -> bool:
        """Tell whether a reservation that is not booked is in the way of none that is."""
        return not self.kept or self._as_promised(duration_ms, reservation) is not None

    def withdraw(self, number: int) -> Reservation | None:
        """Take a reservation out again, while its job looks for something better."""
        reservation = self.kept.pop(number, None)
        if reservation is not None:
            for ordinal, bookings in list(self._bookings.items()):
                if any(booking.number == number for booking in bookings):
                    self._rebuild(ordinal, without=number)
        return reservation

    def reserve(self, entry: Entry, duration_ms: int, place: PlaceJob, value: int) -> bool:
        """Give a blocked job a place and a time; False if none can be foreseen."""
        found = self.earliest(entry, duration_ms, place)
        if found is not None:
            self._book(entry, duration_ms, found, None, value)
        return entry.number in self.kept

    def claim(
        self,
        entry: Entry,
        duration_ms: int,
        grants: list[Grant],
        victims: list[str],
        old: Reservation | None,
        value: int,
    ) -> None:
        """Keep a place that victims are leaving; it is due as soon as they are gone."""
        self.leaving.update(victims)
        for allocation_id in victims:
            for grant in self._state.running[allocation_id].grants:
                if grant.resources.ordinal in self._timelines:
                    self._rebuild(grant.resources.ordinal)
        self._book(
            entry, duration_ms, (self._now_ms + 1, grants), old, value, exact=True, claim=True
        )

    def place_as_reserved(self, reservation: Reservation, duration_ms: int) -> list[Grant] | None:
        """The very place that was reserved, if it is due and free; the draft has it then.

        Others may count on it by now: a place that is being cleared is not taken in the draft.
        """
        if reservation.at_ms > self._now_ms + 1 or not self.has_room(reservation, duration_ms):
            return None
        mark = self._transaction.mark()
        grants: list[Grant] = []
        entry = self._state.queue.entries[reservation.job_number]
        closed = self._anti_affinity.closed(entry.waiting.job)
        for placement in reservation.placements:
            resources = self._state.index.by_id.get(placement.node_id)
            grant = None if resources is None else resources.grant_for(placement)
            if (
                resources is None
                or grant is None
                or closed & resources.bit
                or not _can_take(resources, grant)
            ):
                self._transaction.undo(mark)
                return None
            self._transaction.take(grant)
            grants.append(grant)
        return grants

    def can_begin(self, grants: list[Grant], duration_ms: int) -> bool:
        """Tell whether a place that is free now stays free of everything that is booked."""
        timelines = [self._timelines.get(grant.resources.ordinal) for grant in grants]
        return all(
            timeline is None
            or not timeline.drops
            or timeline.has_room(grants, self._now_ms, self._now_ms + duration_ms)
            for timeline in timelines
        )

    def shadow(self, resources: NodeResources) -> NodeResources:
        """A copy of a node as it will be when everybody who is being stopped has left."""
        timeline = self._timelines.get(resources.ordinal)
        if timeline is not None:
            soon = timeline.at(self._now_ms + 1)
            return soon if self.rule is None else self.rule.narrowed(soon, self._now_ms)
        twin = resources.copy()
        for allocation_id in (*self.leaving, *self._state.stopping):
            if allocation_id in self._gone:
                continue
            for grant in self._state.running[allocation_id].grants:
                if grant.resources is resources:
                    self._state.index.give(grant.on(twin))
        return twin

    def holder_other_than(self, job_number: int) -> str:
        """A job whose reservation stands in the way of another; empty if it is only a port."""
        for number, reservation in self.kept.items():
            if number != job_number:
                return reservation.job_id
        return ""

    def earliest(
        self, entry: Entry, duration_ms: int, place: PlaceJob
    ) -> tuple[int, list[Grant]] | None:
        """The first time at which the job fits somewhere, and where."""
        if len(entry.shape.members) == 1:
            closed = self._anti_affinity.closed(entry.waiting.job)
            return self._earliest_single(entry.shape.members[0], duration_ms, closed)
        return self._earliest_gang(entry.shape, place)

    # --- inside

    def _respects(
        self, entry: Entry, value: int, ordinal: int, *, within_pool_guarantee: bool
    ) -> bool:
        """A job passes over bookings only if it is of a higher class than all and before them all.

        Online work within its part passes over those of batch work, but for cleared places.
        """
        timeline = self._timelines[ordinal]
        if timeline.top_class < NOBODY_PASSES and within_pool_guarantee:
            entries = self._state.queue.entries
            numbers = (booking.number for booking in self._bookings.get(ordinal, ()))
            if all(entries[number].waiting.job.pool is Pool.BATCH for number in numbers):
                return False
        return entry.static_class <= timeline.top_class or value >= timeline.first_value

    def _earliest_single(
        self, shape: RequestShape, duration_ms: int, closed: int
    ) -> tuple[int, list[Grant]] | None:
        """Walk through the expected ends; only the node that was just freed can newly fit."""
        index = self._state.index
        selected = index.selected(shape.request)
        if closed:
            selected = ~closed if selected is None else selected & ~closed
        self._look_at_windows()
        best = self._earliest_booked(shape, duration_ms, selected)
        shadows: dict[int, NodeResources] = {}
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
                shadow = shadows.get(ordinal)
                if shadow is None:
                    shadow = shadows[ordinal] = resources.copy()
                index.give(grant.on(shadow))
                chosen = shadow.choose_any(shape)
                if chosen is not None:
                    return at_ms, [chosen]
        return best

    def _look_at_windows(self) -> None:
        """Have an outlook for nodes where what is closed to the job changes with time."""
        if self.rule is not None:
            nodes = [self._state.index.nodes[ordinal] for ordinal in self.rule.ordinals]
            for resources in nodes:
                if resources.bucket >= 0:
                    self._timeline(resources)

    def _earliest_booked(
        self, shape: RequestShape, duration_ms: int, selected: int | None
    ) -> tuple[int, list[Grant]] | None:
        """The same among the nodes that have an outlook already."""
        best: tuple[int, list[Grant]] | None = None
        for ordinal, timeline in self._timelines.items():
            if selected is not None and not selected & self._state.index.nodes[ordinal].bit:
                continue
            found = timeline.earliest(shape, duration_ms, self._now_ms + 1, self.rule)
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], [found[1]])
        return best

    def _earliest_gang(
        self, job_shape: JobShape, place: PlaceJob
    ) -> tuple[int, list[Grant]] | None:
        """When enough has ended on nodes without bookings; else after all that is booked."""
        ends = Upcoming(self._ends())
        booked = self._booked
        within = ~booked if booked else None
        self._close(None)  # A place without any such device is good at any time.
        found = least_release(self._transaction, ends, lambda: self._try(job_shape, place, within))
        not_before_ms = self._now_ms + 1
        if found is None and (booked or self.rule is not None):
            after_ms = self._booked_until_ms()
            if self.rule is not None:
                after_ms = max(after_ms, self.rule.last_end_ms)
            self._close(after_ms)
            at_once = None if booked else self._try(job_shape, place, None)
            if at_once is not None:
                found = (after_ms, at_once)  # Nothing has to end but a window.
            else:
                found = least_release(
                    self._transaction, ends, lambda: self._try(job_shape, place, None)
                )
            not_before_ms = max(not_before_ms, after_ms)
        self._close(self._now_ms)
        return None if found is None else (max(found[0], not_before_ms), found[1])

    def _close(self, at_ms: int | None) -> None:
        """Have closed on the index what is closed to the job at a time; None: at any time."""
        if self._windows is not None and self.rule is not None:
            self._windows.close(self.rule.closed(at_ms))

    def _try(self, job_shape: JobShape, place: PlaceJob, within: int | None) -> list[Grant] | None:
        mark = self._transaction.mark()
        grants = place(job_shape, within)
        self._transaction.undo(mark)
        return grants

    def _same_place(
        self, entry: Entry, duration_ms: int, old: Reservation
    ) -> tuple[int, list[Grant]] | None:
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
            return self._same_devices(duration_ms, old)
        grants: list[Grant] = []
        while len(grants) < len(places):
            grants = []
            for resources, member in places:
                shape = entry.shape.members[member]
                found = self._timeline(resources).earliest(shape, duration_ms, at_ms, self.rule)
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

    def _same_devices(self, duration_ms: int, old: Reservation) -> tuple[int, list[Grant]] | None:
        """When the very devices of a reservation are free, for members that share a node."""
        nodes = [self._state.index.resources(placement.node_id) for placement in old.placements]
        grants = [
            resources.grant_for(placement)
            for resources, placement in zip(nodes, old.placements, strict=True)
        ]
        timelines = [self._timeline(resources) for resources in dict.fromkeys(nodes)]
        times = sorted({at_ms for timeline in timelines for at_ms in timeline.times})
        if self.rule is not None:
            times = sorted({*times, *(end for s in nodes for end in self.rule.ends_on(s.ordinal))})
        for at_ms in [self._now_ms + 1, *times]:
            if at_ms > self._now_ms and self._have_room(timelines, grants, at_ms, duration_ms):
                return at_ms, grants
        return None

    def _as_promised(self, duration_ms: int, old: Reservation) -> tuple[int, list[Grant]] | None:
        """The very devices of a reservation at its time, if they are free then."""
        at_ms = max(old.at_ms, self._now_ms)
        grants: list[Grant] = []
        for placement in old.placements:
            resources = self._state.index.by_id.get(placement.node_id)
            if resources is None or resources.bucket < 0:
                return None
            grants.append(resources.grant_for(placement))
        timelines = [
            self._timeline(resources)
            for resources in dict.fromkeys(grant.resources for grant in grants)
        ]
        if self._have_room(timelines, grants, at_ms, duration_ms):
            return at_ms, grants
        return None

    def _have_room(
        self, timelines: list[NodeTimeline], grants: list[Grant], at_ms: int, duration_ms: int
    ) -> bool:
        """Tell whether certain devices are free for a while, and open to the job."""
        rule = self.rule
        if rule is not None and any(rule.bars(grant, at_ms) for grant in grants):
            return False
        return all(timeline.has_room(grants, at_ms, at_ms + duration_ms) for timeline in timelines)

    def _book(
        self,
        entry: Entry,
        duration_ms: int,
        found: tuple[int, list[Grant]],
        old: Reservation | None,
        value: int,
        *,
        exact: bool = False,
        claim: bool = False,
    ) -> None:
        at_ms, grants = found
        if at_ms - self._now_ms >= BEYOND_MS:
            return  # It waits for something that has no end, which is nothing to keep a place for.
        end_ms = at_ms + duration_ms
        index = self._state.index
        if len(grants) == 1 and not exact:
            resources = index.nodes[grants[0].resources.ordinal]
            late = self._timeline(resources).choose_late(
                entry.shape.members[0], at_ms, end_ms, self.rule
            )
            grants = grants if late is None else [late]
        claim = claim or (old is not None and old.claim and at_ms <= self._now_ms + 1)
        static_class = NOBODY_PASSES if claim else entry.static_class
        for grant in grants:
            resources = index.nodes[grant.resources.ordinal]
            booking = Booking(entry.number, grant, at_ms, end_ms, static_class, value)
            self._timeline(resources).book(booking)
            self._bookings.setdefault(resources.ordinal, []).append(booking)
            self._booked |= resources.bit
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
        """Look at a node afresh, with all its bookings but those of one job."""
        resources = self._state.index.nodes[ordinal]
        self._timelines.pop(ordinal, None)
        bookings = [item for item in self._bookings.pop(ordinal, ()) if item.number != without]
        if not bookings:
            self._booked &= ~resources.bit
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
                if allocation_id not in self._gone:
                    end_ms = self._end_ms(allocation_id)
                    ends += [
                        (end_ms, grant) for grant in entry.grants if grant.resources is resources
                    ]
            for end_ms, grants in self._started:
                ends += [(end_ms, grant) for grant in grants if grant.resources is resources]
            timeline = NodeTimeline(self._state.index, resources, self._now_ms, ends)
            if self._windows is not None:
                # All jobs share the outlook, so nothing is closed there.
                for state in timeline.states:
                    state.usable = self._windows.usable_of(resources)
            self._timelines[resources.ordinal] = timeline
            self.unsettled |= resources.bit
        return timeline

    def _end_ms(self, allocation_id: str) -> int:
        """When a running allocation is expected to end; at once if it is being stopped."""
        running = self._state.running[allocation_id].running
        if running.stopping or allocation_id in self.leaving:
            return self._now_ms
        return running.expected_end_ms

    def _ends(self) -> Iterator[tuple[int, list[Grant]]]:
        """What runs or has just been started, by expected end."""
        stopping = [*self.leaving, *self._state.stopping]
        for allocation_id in sorted(set(stopping) - self._gone):
            yield self._now_ms, self._state.running[allocation_id].grants
        started = sorted(self._started, key=lambda item: item[0])
        place = 0
        skipped = {*self._gone, *stopping}
        for end_key in self._state.ends:
            while place < len(started) and started[place][0] < end_key[0]:
                yield started[place]
                place += 1
            if end_key[3] not in skipped:
                yield end_key[0], self._state.running[end_key[3]].grants
        yield from started[place:]


def _can_take(resources: NodeResources, grant: Grant) -> bool:
    return resources.bucket >= 0 and resources.can_take(grant)
