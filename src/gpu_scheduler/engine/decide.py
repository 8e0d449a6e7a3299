"""`decide(state, policy, now) -> Plan`: one cycle.

Goes through the waiting jobs in order. A job starts if its tenant may hold more and it fits
without pushing back a reservation. If it does not fit, it may clear a place (preempt), it may get
a reservation, and its whole shape is skipped for the rest of the cycle. The state is left
unchanged: everything that was tried is undone, and the caller applies the plan.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.placement.placer import Placer
from gpu_scheduler.engine.plan_builder import PlanBuilder
from gpu_scheduler.engine.policy import Policy, Preemption, Queueing
from gpu_scheduler.engine.preemption.cache import AttemptBudget, AttemptClass
from gpu_scheduler.engine.preemption.preemptor import Preemptor
from gpu_scheduler.engine.preemption.same_tenant import SameTenantPreemption, claimed, stopping
from gpu_scheduler.engine.preemption.victims import SearchSpace, VictimsFound
from gpu_scheduler.engine.queue import Entry, JobShape, Merge
from gpu_scheduler.engine.quota.rules import HOURS, Amounts, job_amounts
from gpu_scheduler.engine.quota.usage import QuotaUsage
from gpu_scheduler.engine.reservation.advance import AdvanceReservations
from gpu_scheduler.engine.reservation.backfill import BackfillRejects, ReservationOrder
from gpu_scheduler.engine.reservation.calendar import Calendar
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.plan import Plan, Reservation, Start
from gpu_scheduler.model.reasons import Reason, ReasonCode


def decide(state: ClusterState, policy: Policy, now_ms: int) -> Plan:
    """Propose what to start, stop and reserve now."""
    if policy != state.policy:
        raise InternalError(
            f"the cluster state was built for policy '{state.policy.name}', not '{policy.name}'; "
            "rebuild it from its snapshot"
        )
    transaction = Transaction(state.index)
    cycle = Cycle(state, transaction)
    try:
        cycle.run(now_ms)
    finally:
        transaction.undo()
    return cycle.plan()


class Cycle:
    """One pass over the queue (or several, when a forecast rolls time forward)."""

    def __init__(
        self, state: ClusterState, transaction: Transaction, *, looking_ahead: bool = False
    ) -> None:
        """`looking_ahead` leaves out evictions, which a forecast does not count on."""
        self._state = state
        self._policy = state.policy
        self._transaction = transaction
        self._places = Placer(state, transaction)
        self._limits = QuotaUsage(state)
        self._preempts = self._policy.preemption is not Preemption.NONE and not looking_ahead
        self.gone: set[str] = set()
        self.started: list[tuple[int, list[Grant]]] = []
        self.found = PlanBuilder()
        self._left: dict[int, IntervalSet] = {}
        self._used_up: set[int] = set()
        self.job_of: dict[int, tuple[Job, Amounts]] = {}
        self._resume_after = 0
        self.complete = True

    def run(self, now_ms: int) -> None:
        """Go through the queue once.

        Before a job is looked at, everything is booked that was promised to jobs of its own or a
        higher class, or before it in the order. So whoever starts takes nobody else's place.
        """
        self._begin(now_ms)
        try:
            self._go_through()
        finally:
            if self._windows is not None:
                self._windows.close({})

    def _go_through(self) -> None:
        merge = self._merge
        budget = self._policy.max_examined
        done = 0
        skip_to = self._state.resume_after
        if skip_to not in self._state.queue.entries:
            skip_to = 0
        entry = merge.next()
        while entry is not None:
            self._serve_holders(entry)
            if done >= budget:
                self.complete = False
                break
            if skip_to and done >= budget // 2:
                if entry.number == skip_to:
                    skip_to = 0
                merge.leave()
            else:
                done += 1
                self.found.examined += 1
                self._resume_after = entry.number
                if not self._consider(entry):
                    merge.leave()
            entry = merge.next()
        if self.complete:
            self._resume_after = 0
        self._serve_holders(None)
        for holder in self._holders.everyone:
            if holder.number not in self._used_up:
                self._consider(holder)

    def plan(self) -> Plan:
        """What this cycle found, in a fixed order."""
        return self.found.plan(
            self._state,
            self._calendar.kept,
            complete=self.complete,
            resume_after=self._resume_after,
        )

    def end(self, allocation_id: str, grants: list[Grant]) -> None:
        """Looking ahead: something that runs (or was started here) ends."""
        for grant in grants:
            self._transaction.give(grant)
        if allocation_id:
            self.gone.add(allocation_id)
            entry = self._state.running[allocation_id]
            job, amounts = entry.running.job, entry.amounts
        else:
            self.started[:] = [item for item in self.started if item[1] is not grants]
            job, amounts = self.job_of.pop(id(grants))
        self._limits.note_task(job, -1)
        self._limits.let_go(job, amounts)

    # --- one pass

    def _begin(self, now_ms: int) -> None:
        state = self._state
        self._now_ms = now_ms
        self._blocked = 0
        self._attempts = AttemptBudget(self._policy.max_preempt_tries)
        self._others_wait = state.others_wait()
        self._served: set[int] = set()
        self._holders = ReservationOrder(state, self._used_up)
        self._windows = AdvanceReservations(state, now_ms) if state.advance_reservations else None
        self._closure = 0
        self._window_reasons: dict[tuple[int, int], Reason] = {}
        self._fair_share = FairShare(state)
        self._merge = Merge(state.queue, self._fair_share.penalty_ms)
        self._calendar = Calendar(
            state,
            self._transaction,
            now_ms,
            gone=self.gone,
            started=self.started,
            windows=self._windows,
            anti_affinity=self._places.anti_affinity,
        )
        self._passed_over = BackfillRejects(self._policy, self._calendar, self._merge, self.found)
        limits = self._limits
        limits.begin(leaving=self._calendar.leaving, gone=self.gone)
        self._comes_first = self._calendar.within_pool_guarantee = limits.within_pool_guarantee
        self._preemptor = Preemptor(state, self._calendar, limits, now_ms)
        self._own_work = SameTenantPreemption(state, limits, self._preemptor)
        self._no_room: set[tuple[int, int]] = set()
        self._gave_up_gpus = False

    def _serve_holders(self, before: Entry | None) -> None:
        """ControlState what was promised to jobs that come before this one, and start what is due.

        The oldest first, which matters only when something runs longer than expected: then it is
        the younger one that has to move.
        """
        chosen = self._holders.before(before, self._value)
        if chosen == [before]:
            return  # It is looked at now, and nobody else's place is at stake.
        for entry in chosen:
            self._keep_promise(entry, self._state.reservations[entry.number])
        for entry in chosen:
            self._start_as_promised(entry)

    def _keep_promise(self, entry: Entry, reservation: Reservation) -> None:
        """ControlState a reservation as it was promised, or else where it can be now.

        A place that is being cleared is kept for a job whose own work has to leave for it first.
        """
        self._limits.turn_to(entry)
        refused = self._refusal(entry, reservation)
        if refused is not None and reservation.claim:
            refused = self._limits.refusal_soon(entry)
        if refused is None:
            self._turn_to(entry)
            self._calendar.keep(
                entry, self._duration_ms(entry), reservation, self._places.place, self._value(entry)
            )
            self._note_kept(entry)
            if entry.number in self._calendar.kept:
                self._blocked += self._may_reserve(entry)

    def _note_kept(self, entry: Entry) -> None:
        """What a place is being cleared for is nobody else's, in quotas as well."""
        kept = self._calendar.kept.get(entry.number)
        if kept is not None and kept.claim:
            self._limits.promise(entry, len(kept.placements))

    def _start_as_promised(self, entry: Entry) -> None:
        """Start a job whose time has come, on its place. Where else is a matter of its turn."""
        kept = self._calendar.kept.get(entry.number)
        if kept is None or kept.at_ms > self._now_ms + 1:
            return
        self._reservation(entry)
        self._turn_to(entry)
        grants, duration_ms = None, self._duration_ms(entry)
        if self._refusal(entry, kept) is None:
            grants = self._calendar.place_as_reserved(self._admitted(entry, kept), duration_ms)
        if grants is None:
            self._keep_promise(entry, kept)
        else:
            self._start(entry, grants, duration_ms)

    def _admitted(self, entry: Entry, reservation: Reservation) -> Reservation:
        """The reservation for no more members of a gang than quotas let it start with now."""
        members = len(self._limits.admitted(entry).members)
        if len(reservation.placements) <= members:
            return reservation
        return replace(reservation, placements=reservation.placements[:members])

    def _reservation(self, entry: Entry) -> Reservation | None:
        """What the job was promised, if that is not used up; its booking is taken back."""
        if entry.number in self._used_up:
            return None
        self._limits.turn_to(entry)
        kept = self._calendar.withdraw(entry.number)
        if kept is None:
            return self._state.reservations.get(entry.number)
        self._blocked -= self._may_reserve(entry)
        return kept

    def _turn_to(self, entry: Entry) -> None:
        """From here on places are those that this job may have: others have reserved some."""
        if self._windows is not None:
            rule = self._windows.rule_for(entry, self._duration_ms(entry))
            self._calendar.rule = rule
            closed = {} if rule is None else rule.closed(self._now_ms)
            self._closure = self._windows.close(closed)

    def _value(self, entry: Entry) -> int:
        """The place in the order now: the static key and what use adds to it."""
        return entry.key + self._fair_share.penalty_ms(entry.group.key)

    def _consider(self, entry: Entry) -> bool:
        """Start, clear a place, reserve or pass over one job; True if it may come up again."""
        if self._is_too_long(entry):
            return False
        if entry.number in self._served or self._tasks_left(entry.waiting.job) == 0:
            return False
        reservation = self._reservation(entry)
        if reservation is not None:
            self._served.add(entry.number)
        if self._windows is not None:
            self._turn_to(entry)
        duration_ms = self._duration_ms(entry)
        refused = self._refusal(entry, reservation)
        if refused is not None:
            self._over_limit(entry, refused, reservation, duration_ms)
            return False
        if reservation is not None:
            admitted = self._admitted(entry, reservation)
            kept = self._calendar.place_as_reserved(admitted, duration_ms)
            if kept is not None:
                return self._start(entry, kept, duration_ms)
        return self._start_or_wait(entry, reservation, duration_ms)

    def _start_or_wait(self, entry: Entry, old: Reservation | None, duration_ms: int) -> bool:
        """Start where it is free, else wait. Online gangs are tried within their part, too."""
        allowed = None
        if (entry.shape.base, self._closure) not in self._no_room:
            allowed = self._calendar.allowed(entry, duration_ms, self._value(entry))
            grants = self._free_place(entry, duration_ms, allowed)
            if grants is not None:
                return self._start(entry, grants, duration_ms)
        if self._limits.borrows_in_vain(entry):
            with self._limits.within_part():
                return self._start_or_wait(entry, old, duration_ms)
        self._no_place(entry, duration_ms, allowed, old)
        return False

    def _free_place(
        self, entry: Entry, duration_ms: int, allowed: int | None
    ) -> list[Grant] | None:
        """Devices that are free and that nobody counts on; the draft has them then."""
        if self._windows is not None:
            own = self._place_in_own(entry, duration_ms)
            if own is not None:
                return own
        mark = self._transaction.mark()
        grants = self._places.place_with_anti_affinity(
            entry.waiting.job, self._limits.admitted(entry), allowed
        )
        if grants is None:
            return None
        fitted = self._calendar.fitted(entry, grants, duration_ms, self._value(entry))
        if self._limits.is_sure_of_more(entry, len(grants)):
            return self._larger_place(entry, duration_ms, fitted, mark)
        if fitted is not grants:
            self._transaction.take_instead(mark, fitted)
        return fitted

    def _larger_place(
        self, entry: Entry, duration_ms: int, grants: list[Grant], mark: int
    ) -> list[Grant]:
        """A place for more members: within its part it passes over what batch work reserved."""
        with self._limits.within_part():
            self._transaction.undo(mark)
            allowed = self._calendar.allowed(entry, duration_ms, self._value(entry))
            larger = self._free_place(entry, duration_ms, allowed) or grants
        best = max(grants, larger, key=len)
        self._transaction.take_instead(mark, best)
        return best

    def _place_in_own(self, entry: Entry, duration_ms: int) -> list[Grant] | None:
        """A place on devices that are reserved for the job itself: it goes there first.

        What others count on after the window is no obstacle there.
        """
        windows = self._windows
        if windows is None or (own := windows.own_of(entry, self._calendar.rule)) is None:
            return None
        outside, within, until_ms = own
        inside_ms = min(duration_ms, until_ms - self._now_ms)
        allowed = self._calendar.allowed(entry, inside_ms, self._value(entry))
        windows.close(outside)
        mark = self._transaction.mark()
        grants = self._places.place(
            self._limits.admitted(entry), within if allowed is None else within & allowed
        )
        self._turn_to(entry)
        if grants is None or self._calendar.can_begin(grants, inside_ms):
            return grants
        self._transaction.undo(mark)
        return None

    def _is_too_long(self, entry: Entry) -> bool:
        """Tell whether a shorter job of the shape could not pass a reservation in this cycle.

        Asked first, as most jobs that a cycle looks at on a full cluster are of this sort.
        """
        passed_over = self._passed_over
        if entry.shape.id not in passed_over.shapes or entry.number in self._state.reservations:
            return False
        return passed_over.is_too_long(entry, self._duration_ms(entry))

    def _refusal(self, entry: Entry, reservation: Reservation | None = None) -> Reason | None:
        """Limits of the array, the tenant and the pool."""
        if reservation is not None and reservation.claim:
            refused = self._limits.refusal_of_holder(entry)
        else:
            refused = self._limits.refusal(entry)
        if refused is not None and not self._may_stop_own(entry, refused):
            self._pass_by(entry, refused)
        return refused

    def _pass_by(self, entry: Entry, refused: Reason) -> None:
        """Look at no other job of the shape in this cycle: of one user, or of all."""
        if refused.code is not ReasonCode.ARRAY_LIMIT and refused.get("resource") != HOURS:
            job = entry.waiting.job
            user = str(refused.get("user") or "")
            here = (job.tenant, job.user, job.pool) if user else (job.tenant, "", job.pool)
            self._merge.dead_here.add((here, entry.shape.id))
            self.found.of_tenants[job.tenant, user, entry.shape.id] = refused

    def _may_stop_own(self, entry: Entry, refused: Reason) -> bool:
        """Tell whether batch work of its own tenant may leave so that it is within a limit."""
        if not self._preempts or refused.code is ReasonCode.ARRAY_LIMIT:
            return False
        if entry.shape.interactive:
            return True
        by_class = self._policy.preemption is Preemption.CLASS
        return by_class and self._limits.lent_milli(entry) > 0

    def _over_limit(
        self, entry: Entry, refused: Reason, old: Reservation | None, duration_ms: int
    ) -> None:
        """Wait, unless batch work of its own tenant leaves for the job, or does so already."""
        reason: Reason | None = refused
        if old is not None and old.claim and self._limits.refusal_soon(entry) is None:
            self._keep_promise(entry, old)
            names = self._limits.names_of_leaving(entry.waiting.job.tenant)
            reason = stopping(names) if names else refused
        elif self._may_stop_own(entry, refused):
            reason = self._stop_own(entry, refused, duration_ms)
            if reason is not None:
                self._pass_by(entry, reason)
        if reason is not None:
            self.found.of_jobs[entry.number] = reason

    def _stop_own(self, entry: Entry, refused: Reason, duration_ms: int) -> Reason | None:
        """Choose batch work of the tenant that leaves; if there is none, why the job waits."""
        relief = self._own_work.relief(entry, refused)
        if isinstance(relief, Reason):
            return relief
        lane = AttemptClass.OWN_LENT if relief.lent_milli else AttemptClass.OWN_WORK
        if not self._attempts.are_left(lane):
            return refused
        self._attempts.count(lane)
        allowed = self._calendar.allowed(entry, duration_ms, self._value(entry))
        place = None
        if (entry.shape.base, self._closure) not in self._no_room:
            mark = self._transaction.mark()
            place = self._free_place(entry, duration_ms, allowed)
            self._transaction.undo(mark)
        search = self._search(entry, duration_ms, allowed, entry.shape.min_members)
        found = self._own_work.find(entry, relief, place, search)
        if found is None:
            return self._own_work.no_room(refused, relief)
        self._claim(entry, duration_ms, found, None)
        return None

    def _start(self, entry: Entry, grants: list[Grant], duration_ms: int) -> bool:
        job = entry.waiting.job
        task: int | None = None
        again = False
        if job.array is not None:
            left = self._left.get(job.number)
            tasks = entry.waiting.tasks if left is None else left
            if tasks is None:
                raise InternalError(f"array {job.id} waits without tasks")
            task = tasks.first
            self._left[job.number] = tasks.without(task)
            again = bool(self._left[job.number])
        else:
            self._left[job.number] = _NONE_LEFT
        placements = tuple(grant.placement() for grant in grants)
        self._places.started += 1
        self.found.starts.append(Start(job.id, task, placements, self._blocked > 0))
        self.found.of_jobs.pop(entry.number, None)
        self._used_up.add(entry.number)
        self._served.discard(entry.number)
        self._limits.note_task(job, 1)
        self._count(job, grants, duration_ms)
        self._calendar.note_start(grants, duration_ms)
        return again

    def _no_place(
        self, entry: Entry, duration_ms: int, allowed: int | None, old: Reservation | None
    ) -> None:
        """Clear a place, reserve one, and remember that the shape does not fit."""
        policy = self._policy
        if self._clear_place(entry, duration_ms, old):
            return
        may_reserve = self._may_reserve(entry)
        self._blocked += may_reserve
        if policy.queueing is Queueing.BLOCKING:
            self._block_lane(entry)
            return
        reserves = policy.queueing is Queueing.RESERVE and may_reserve
        if old is not None:
            self._calendar.renew(entry, duration_ms, old, self._places.place, self._value(entry))
            self._note_kept(entry)
        elif reserves and self._blocked <= policy.reservations:
            self._calendar.reserve(entry, duration_ms, self._places.place, self._value(entry))
        if allowed is not None and self._fits_unreserved(entry.shape):
            # With windows others of the shape may have more devices.
            self._passed_over.note(entry, duration_ms, alike=self._windows is None)
        elif self._closure:
            self._no_room.add((entry.shape.base, self._closure))
            self.found.of_jobs[entry.number] = self._closed_to(entry)
        else:
            self.found.of_shapes.setdefault(entry.shape.id, _NO_ROOM)
            self._no_room.add((entry.shape.base, 0))
            if not reserves or self._blocked >= policy.reservations:
                self._drop(entry.shape)

    def _closed_to(self, entry: Entry) -> Reason:
        """Why a job waits that may not have all devices: for those, if they would be enough."""
        windows, rule = self._windows, self._calendar.rule
        key = (entry.shape.base, self._closure)
        if windows is not None and rule is not None and key not in self._window_reasons:
            windows.close({})
            self._closure = 0
            fits = self._fits_unreserved(entry.shape)
            self._turn_to(entry)
            self._window_reasons[key] = rule.reason_at(self._now_ms) if fits else _NO_ROOM
        return self._window_reasons[key]

    def _drop(self, job_shape: JobShape) -> None:
        """Look at no more jobs that need this room; at no more GPU jobs if nothing is left."""
        self._merge.drop_shape(job_shape.id)
        if self._preempts and (self._attempts.are_left() or self._others_wait):
            return
        for alike in self._state.shapes_of_base[job_shape.base]:
            self._merge.drop_shape(alike.id)
            self.found.of_shapes.setdefault(alike.id, _NO_ROOM)
        if not self._gave_up_gpus and self._state.index.is_full:
            self._gave_up_gpus = True
            for other in self._state.job_shapes.values():
                if all(member.share for member in other.members) and other.needs_gpus:
                    self._merge.drop_shape(other.id)
                    self.found.of_shapes.setdefault(other.id, _NO_ROOM)

    def _fits_unreserved(self, job_shape: JobShape) -> bool:
        if (job_shape.base, self._closure) in self._no_room:
            return False
        return self._places.fits(job_shape)

    def _clear_place(self, entry: Entry, duration_ms: int, old: Reservation | None) -> bool:
        """Choose victims, if the policy has a ground for that."""
        lane = self._lane(entry)
        if not self._preempts or not self._attempts.are_left(lane):
            return False
        if old is not None and old.claim and old.at_ms + self._policy.eviction_ms > self._now_ms:
            return False
        alone = self._clears_alone(entry)
        sort = (alone, entry.shape.id if alone else entry.shape.base, self._closure)
        if self._attempts.is_in_vain(sort, entry.static_class):
            return False
        self._attempts.count(lane)
        value = self._value(entry)
        allowed = self._calendar.allowed(entry, duration_ms, value)
        members = len(self._limits.admitted(entry).members)
        search = self._search(entry, duration_ms, allowed, members)
        is_due = old is not None and old.due_ms <= self._now_ms
        found = self._preemptor.clear_place(entry, search, is_due=is_due)
        if found is None:
            if self._policy.preemption is Preemption.CLASS and old is None:
                self._attempts.note_in_vain(sort, entry.static_class)
            return False
        self._claim(entry, duration_ms, found, old)
        return True

    def _lane(self, entry: Entry) -> AttemptClass:
        """Whatever waits before it, online work is looked at: it is sure of its part."""
        if self._comes_first(entry):
            return AttemptClass.ONLINE
        if entry.shape.interactive:
            return AttemptClass.INTERACTIVE
        return AttemptClass.SURE if self._limits.is_guaranteed(entry) else AttemptClass.BATCH

    def _clears_alone(self, entry: Entry) -> bool:
        """Tell whether others that need the same room may stop other work than this job may."""
        tenant = self._state.tenant(entry.waiting.job.tenant)
        own_grounds = entry.shape.interactive or not tenant.can_preempt_others
        return own_grounds or self._limits.is_guaranteed(entry)

    def _search(
        self, entry: Entry, duration_ms: int, allowed: int | None, members: int
    ) -> SearchSpace:
        """Where a place may be cleared: not where others count on it before the job would end."""
        promised = self._calendar.booked_later(entry, duration_ms, self._value(entry))
        return SearchSpace(places=self._places, within=allowed, promised=promised, members=members)

    def _claim(
        self, entry: Entry, duration_ms: int, found: VictimsFound, old: Reservation | None
    ) -> None:
        """Let the victims leave, and keep the place for the job."""
        grants, evictions = found
        self.found.evictions += evictions
        victims = [eviction.allocation_id for eviction in evictions]
        self._calendar.claim(entry, duration_ms, grants, victims, old, self._value(entry))
        self.found.of_jobs[entry.number] = claimed(evictions)
        self._count(entry.waiting.job, grants, duration_ms)

    def _block_lane(self, entry: Entry) -> None:
        """Nobody of the same kind passes: GPU jobs wait for GPU jobs, CPU-only for CPU-only."""
        behind = Reason(ReasonCode.BEHIND, (("job", entry.waiting.job.id),))
        self.found.of_jobs[entry.number] = _NO_ROOM
        for shape in self._state.job_shapes.values():
            if shape.uses_gpus == entry.shape.uses_gpus:
                self._merge.drop_shape(shape.id)
                self.found.of_shapes[shape.id] = behind

    # --- small questions

    def _duration_ms(self, entry: Entry) -> int:
        """The expected rest of the run, within the limit."""
        waiting = entry.waiting
        left_ms = waiting.expected_ms - waiting.attained_ms
        return max(1, min(left_ms, self._state.limit_ms(waiting.job)))

    def _may_reserve(self, entry: Entry) -> bool:
        """Tell whether the job has waited long enough to get a reservation."""
        return entry.waiting.waited_at(self._now_ms) >= self._policy.reserve_after_ms

    def _tasks_left(self, job: Job) -> int | None:
        """How many tasks have not been started here; None if none has been touched."""
        left = self._left.get(job.number)
        return None if left is None else len(left)

    def _count(self, job: Job, grants: list[Grant], duration_ms: int) -> None:
        """What starts now counts at once against quotas and shares."""
        amounts = job_amounts(job, self._state.limit_ms(job), len(grants))
        self.job_of[id(grants)] = (job, amounts)
        self._limits.grant(job, amounts)
        self._fair_share.note_start(job, amounts.gpu_milli, duration_ms)
        self._places.anti_affinity.note(job, grants)
        if job.interactive:
            self._preemptor.note_start(job, amounts.gpu_milli)


_NONE_LEFT = IntervalSet()
_NO_ROOM = Reason(ReasonCode.RESOURCES)
