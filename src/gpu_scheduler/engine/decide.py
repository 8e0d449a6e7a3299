"""`decide(state, policy, now) -> Plan`: one scheduling cycle.

A pass goes through the waiting jobs in order. A job starts if its quotas allow it and if it fits
without delaying a reservation. If it does not fit, it may evict running jobs, it may get a
reservation, and the pass considers no more jobs of its shape. The state is left unchanged:
everything that was tried is undone, and the caller applies the plan.

From top to bottom: `decide` runs a `Cycle` of one pass. `_Pass.run` gives the order of the jobs,
`_Pass._consider` decides about one of them, `_FreePlaces` finds places, and `_BlockedJobs` reserves
and preempts for the jobs that do not fit. They share a `_PassContext`; what applies to the
considered job is in its `JobContext`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gpu_scheduler.engine.fair_share import FairShare
from gpu_scheduler.engine.placement.placer import Placer
from gpu_scheduler.engine.plan_builder import PlanBuilder
from gpu_scheduler.engine.policy import Policy, Preemption, Queueing
from gpu_scheduler.engine.preemption.preemptor import (
    AttemptBudget,
    AttemptClass,
    Preemptor,
    claim_reason,
    no_room_reason,
    same_tenant_reason,
)
from gpu_scheduler.engine.preemption.victims import FreedPlace, SearchSpace
from gpu_scheduler.engine.queue import Entry, Group, JobContext, JobShape, Merge
from gpu_scheduler.engine.quota.admission import Amounts, is_for_gpus
from gpu_scheduler.engine.quota.tree import HOURS
from gpu_scheduler.engine.quota.usage import CycleHoldings, QuotaUsage
from gpu_scheduler.engine.reservation.advance_reservations import AdvanceReservations
from gpu_scheduler.engine.reservation.backfill_calendar import Calendar, StartedJob
from gpu_scheduler.engine.reservation.reservation_order import BackfillRejects, ReservationOrder
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.engine.state.node_resources import Grant
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.plan import Plan, Reservation, ResumePoint, Start
from gpu_scheduler.model.reasons import Reason, ReasonCode

_NO_TASKS = IntervalSet()
_NO_ROOM = Reason(ReasonCode.RESOURCES)


def decide(state: ClusterState, policy: Policy, now_ms: int) -> Plan:
    """Propose what to start, stop and reserve now."""
    if policy != state.policy:
        raise InternalError(
            f"the cluster state was built for policy '{state.policy.name}', not '{policy.name}'; "
            "rebuild it from its snapshot"
        )
    transaction = Transaction(state.index)
    cycle: Cycle | None = None
    try:
        cycle = Cycle(state, transaction)
        cycle.run(now_ms)
        return cycle.plan()
    except Exception as error:
        raise DecisionFailed(error, 0 if cycle is None else cycle.considered) from error
    finally:
        transaction.undo()


class DecisionFailed(InternalError):
    """The engine has a bug. `number` is the job that was considered when it failed (0: none)."""

    def __init__(self, error: Exception, number: int) -> None:
        """Name the error that is the cause."""
        super().__init__(f"the engine failed at job number {number}: {error!r}")
        self.number = number


class Cycle:
    """One pass over the queue; or several, when a forecast rolls time forward.

    `started` are the jobs that the cycle has started and that have not ended, `ended` the
    allocations that have ended in a forecast. `used_up` are the numbers of jobs that have started,
    so their reservations are used up. `tasks_left` are the tasks of arrays that wait still.
    """

    def __init__(
        self, state: ClusterState, transaction: Transaction, *, with_evictions: bool = True
    ) -> None:
        """A forecast does not count on evictions."""
        self.state = state
        self.transaction = transaction
        self.preempts = with_evictions and state.policy.preemption is not Preemption.NONE
        self.placer = Placer(state, transaction)
        self.held = CycleHoldings(state)
        self.decided = PlanBuilder()
        self.started: list[StartedJob] = []
        self.ended: set[str] = set()
        self.used_up: set[int] = set()
        self.tasks_left: dict[int, IntervalSet] = {}
        self.complete = True
        self.considered = 0
        self._resume_after: ResumePoint | None = None
        self._kept: dict[int, Reservation] = {}

    def run(self, now_ms: int) -> None:
        """Go through the queue once."""
        one_pass = _Pass(self, now_ms)
        self._kept = one_pass.kept
        self.state.trials += 1
        try:
            is_complete, self._resume_after = one_pass.run()
        finally:
            one_pass.open_devices()
            self.state.trials -= 1
        self.complete = self.complete and is_complete

    def plan(self) -> Plan:
        """The plan of this cycle, in a fixed order."""
        return self.decided.plan(
            self.state, self._kept, complete=self.complete, resume_after=self._resume_after
        )

    def end_running(self, allocation_id: str) -> None:
        """Let a running allocation end; for a forecast."""
        entry = self.state.running[allocation_id]
        self.ended.add(allocation_id)
        self._release(entry.grants, entry.running.job, entry.amounts)

    def end_started(self, started: StartedJob) -> None:
        """Let a job end that this cycle has started; for a forecast."""
        self.started.remove(started)
        self._release(started.grants, started.job, started.amounts)

    def _release(self, grants: list[Grant], job: Job, amounts: Amounts) -> None:
        for grant in grants:
            self.transaction.give(grant)
        self.held.add_task(job, -1)
        self.held.remove(job, amounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassContext:
    """What the parts of one pass share."""

    state: ClusterState
    policy: Policy
    now_ms: int
    transaction: Transaction
    placer: Placer
    quota: QuotaUsage
    calendar: Calendar
    advance: AdvanceReservations | None
    preemptor: Preemptor
    fair_share: FairShare
    merge: Merge
    plan: PlanBuilder

    def duration_ms(self, entry: Entry) -> int:
        """The expected rest of the run, within the limit."""
        waiting = entry.waiting
        left_ms = waiting.expected_ms - waiting.attained_ms
        return max(1, min(left_ms, self.state.limit_ms(waiting.job)))

    def begin_job(self, entry: Entry) -> JobContext:
        """Begin to consider a job: close the devices on the index that are reserved for others.

        GPU models that the quota tree closes to it are taken out of its request.
        """
        entry = self.quota.narrowed(entry)
        duration_ms = self.duration_ms(entry)
        exclusion, closure = None, 0
        if self.advance is not None:
            exclusion = self.advance.rule_for(entry, duration_ms)
            closure = self.advance.close_for(exclusion)
        return JobContext(
            entry=entry,
            duration_ms=duration_ms,
            order_value=self.fair_share.order_value(entry),
            within_pool_guarantee=self.quota.within_pool_guarantee(entry),
            exclusion=exclusion,
            closure=closure,
        )

    def guaranteed_only(self, job: JobContext) -> JobContext:
        """The same job with no more members than the guarantee of its pool covers."""
        within = self.quota.within_pool_guarantee(job.entry, guaranteed_only=True)
        return replace(job, guaranteed_only=True, within_pool_guarantee=within)

    def count(self, job: JobContext, grants: list[Grant]) -> Amounts:
        """Count a job that starts, or will when its place is free, in quotas and fair shares."""
        spec = job.entry.waiting.job
        amounts = self.state.placed_amounts(spec, grants)
        self.quota.add(spec, amounts)
        self.fair_share.add_start(spec, amounts.gpu_milli, job.duration_ms)
        self.placer.anti_affinity.add_start(spec, grants)
        self.preemptor.add_start(spec, amounts.gpu_milli)
        return amounts


class _Pass:
    """The order of one pass: which job is considered next, and what becomes of it.

    Before a job is considered, all reservations are booked of jobs of its own or a higher class, or
    before it in the order. So a job that starts takes no place that is reserved for another.
    """

    def __init__(self, cycle: Cycle, now_ms: int) -> None:
        state = cycle.state
        self._cycle = cycle
        self._state = state
        self._now_ms = now_ms
        self._reservations = ReservationOrder(state, cycle.used_up)
        self._served: set[int] = set()
        advance = AdvanceReservations(state, now_ms) if state.advance_reservations else None
        fair_share = FairShare(state)
        calendar = Calendar(
            state,
            cycle.placer,
            now_ms,
            ended=cycle.ended,
            started=cycle.started,
            advance=advance,
        )
        quota = QuotaUsage(state, cycle.held, evicting=calendar.evicting, ended=cycle.ended)
        self._context = context = _PassContext(
            state=state,
            policy=state.policy,
            now_ms=now_ms,
            transaction=cycle.transaction,
            placer=cycle.placer,
            quota=quota,
            calendar=calendar,
            advance=advance,
            preemptor=Preemptor(state, calendar, quota, now_ms),
            fair_share=fair_share,
            merge=Merge(state.queue, fair_share.penalty_ms),
            plan=cycle.decided,
        )
        self._places = _FreePlaces(context)
        self._blocked = _BlockedJobs(context, self._places, preempts=cycle.preempts)

    @property
    def kept(self) -> dict[int, Reservation]:
        """The reservations that hold, by job number."""
        return self._context.calendar.kept

    def run(self) -> tuple[bool, ResumePoint | None]:
        """Consider the jobs in order, within the policy's bound.

        Tells whether it came to the end of the queue, and otherwise where it stopped: the next
        cycle spends half of its bound behind that place.
        """
        merge = self._context.merge
        fair_share = self._context.fair_share
        bound = self._context.policy.max_examined
        examined = 0
        is_complete = True
        resume_after = self._state.resume_after
        is_seen = _seen_before(resume_after)
        last: tuple[int, int] | None = None
        entry = merge.next()
        while entry is not None:
            if examined >= bound:
                is_complete = False
                break
            is_skipped = examined >= bound // 2 and is_seen(entry)
            self._serve_reservations(entry, considers_it=not is_skipped)
            if is_skipped:
                merge.leave()
            else:
                examined += 1
                self._cycle.decided.examined += 1
                place = (fair_share.order_value(entry), entry.number)
                if not self._consider(entry):
                    merge.leave()
                    last = place
            entry = merge.next()
        if is_complete:
            resume_after = None
        elif last is not None:
            resume_after = ResumePoint(
                order_value=last[0], number=last[1], penalties_ms=fair_share.penalties_ms()
            )
        self._serve_reservations(None)
        for holder in self._reservations.all:
            if holder.number not in self._cycle.used_up:
                self._consider(holder)
        return is_complete, resume_after

    def open_devices(self) -> None:
        """Open all devices on the index again."""
        if self._context.advance is not None:
            self._context.advance.close({})

    def _serve_reservations(self, before: Entry | None, *, considers_it: bool = False) -> None:
        """Book the reservations of jobs that come before this one, and start those that are due.

        The oldest first. That matters only when something runs longer than expected: then the
        younger reservation has to move. Its own reservation is booked as well, unless the pass
        considers the job next and no other reservation is affected.
        """
        chosen = self._reservations.take_before(before, self._context.fair_share)
        if considers_it and chosen == [before]:
            return
        for entry in chosen:
            self._cycle.considered = entry.number
            self._blocked.keep_reservation(entry, self._state.reservations[entry.number])
        for entry in chosen:
            self._start_as_reserved(entry)

    def _start_as_reserved(self, entry: Entry) -> None:
        """Start a job on its reserved place if that is due; elsewhere it starts in its turn."""
        self._cycle.considered = entry.number
        kept = self.kept.get(entry.number)
        if kept is None or kept.at_ms > self._now_ms + 1:
            return
        self._take_reservation(entry)
        job = self._context.begin_job(entry)
        grants = None
        if self._blocked.refusal(entry, kept) is None:
            grants = self._reserved_place(job, kept)
        if grants is None:
            self._blocked.keep_reservation(entry, kept)
        else:
            self._start(job, grants)

    def _take_reservation(self, entry: Entry) -> Reservation | None:
        """The reservation of the considered job, unless used up; its booking is removed."""
        if entry.number in self._cycle.used_up:
            return None
        self._context.quota.remove_claim(entry)
        kept = self._context.calendar.withdraw(entry.number)
        if kept is None:
            return self._state.reservations.get(entry.number)
        self._blocked.count -= self._blocked.may_reserve(entry)
        return kept

    def _consider(self, entry: Entry) -> bool:
        """Start one job, or preempt or reserve for it; True if a further task of it may start."""
        self._cycle.considered = entry.number
        if self._blocked.is_rejected(entry):
            return False
        left = self._cycle.tasks_left.get(entry.number)
        if entry.number in self._served or (left is not None and not left):
            return False
        reservation = self._take_reservation(entry)
        if reservation is not None:
            self._served.add(entry.number)
        job = self._context.begin_job(entry)
        refused = self._blocked.refusal(entry, reservation)
        if refused is not None:
            self._blocked.add_over_quota(job, refused, reservation)
            return False
        if reservation is not None:
            grants = self._reserved_place(job, reservation)
            if grants is not None:
                return self._start(job, grants)
        job, allowed, grants = self._free_place(job)
        if grants is not None:
            return self._start(job, grants)
        self._blocked.add(job, allowed, reservation)
        if job.entry is not entry:
            self._blocked.skip_narrowed(entry)
        return False

    def _free_place(self, job: JobContext) -> tuple[JobContext, int | None, list[Grant] | None]:
        """The job as it was tried last, the nodes that it may use, and a free place or None.

        An elastic gang that would borrow is tried again with its guaranteed members.
        """
        allowed = grants = None
        if not self._places.is_known_full(job):
            allowed = self._context.calendar.allowed(job)
            grants = self._places.find(job, allowed)
        if grants is None and self._context.quota.guaranteed_with_fewer_members(job):
            return self._free_place(self._context.guaranteed_only(job))
        return job, allowed, grants

    def _reserved_place(self, job: JobContext, reservation: Reservation) -> list[Grant] | None:
        """The reserved place, for no more members of a gang than quotas allow now."""
        if not self._context.quota.is_open_to(job.entry, reservation.placements):
            return None
        members = len(self._context.quota.admitted_shape(job).members)
        if len(reservation.placements) > members:
            reservation = replace(reservation, placements=reservation.placements[:members])
        return self._context.calendar.place_as_reserved(job, reservation)

    def _start(self, job: JobContext, grants: list[Grant]) -> bool:
        """Start the job, or the next task of an array; True if further tasks wait."""
        spec, cycle = job.entry.waiting.job, self._cycle
        task: int | None = None
        left = _NO_TASKS
        if spec.array is not None:
            tasks = cycle.tasks_left.get(spec.number, job.entry.waiting.tasks)
            if tasks is None:
                raise InternalError(f"array {spec.id} waits without tasks")
            task = tasks.first
            left = tasks.without(task)
        cycle.tasks_left[spec.number] = left
        placements = tuple(grant.placement() for grant in grants)
        cycle.placer.started += 1
        cycle.decided.starts.append(Start(spec.id, task, placements, self._blocked.count > 0))
        cycle.decided.job_reasons.pop(job.entry.number, None)
        cycle.used_up.add(job.entry.number)
        self._served.discard(job.entry.number)
        cycle.held.add_task(spec)
        amounts = self._context.count(job, grants)
        end_ms = self._now_ms + job.duration_ms
        self._context.calendar.add_start(StartedJob(end_ms, grants, spec, amounts))
        return bool(left)


def _seen_before(point: ResumePoint | None) -> Callable[[Entry], bool]:
    """Tell of a job whether earlier cycles of the sweep went past its place in the order."""
    if point is None:
        return lambda _entry: False
    reached = (point.order_value, point.number)
    penalties_ms = dict(point.penalties_ms)

    def is_seen(entry: Entry) -> bool:
        tenant, user, _ = entry.group.key
        return (entry.key + penalties_ms.get((tenant, user), 0), entry.number) <= reached

    return is_seen


class _FreePlaces:
    """Finds places that are free and that no reservation needs; they are taken in the transaction.

    It remembers, for the pass, for which jobs no place is left.
    """

    def __init__(self, context: _PassContext) -> None:
        self._context = context
        self._full: set[tuple[int, int]] = set()

    def is_known_full(self, job: JobContext) -> bool:
        """Tell whether jobs with these requirements are known not to fit."""
        return (job.entry.shape.base, job.closure) in self._full

    def add_full(self, job: JobContext) -> None:
        """Remember that jobs with these requirements do not fit."""
        self._full.add((job.entry.shape.base, job.closure))

    def fits(self, shape: JobShape, closure: int) -> bool:
        """Tell whether there is a place now, whether or not it is reserved."""
        return (shape.base, closure) not in self._full and self._context.placer.fits(shape)

    def find(self, job: JobContext, allowed: int | None) -> list[Grant] | None:
        """A free place on `allowed` nodes (None: all), or None."""
        context = self._context
        own = self._in_own_advance_reservation(job)
        if own is not None:
            return own
        mark = context.transaction.mark()
        shape = context.quota.admitted_shape(job)
        grants = context.placer.place_with_anti_affinity(job.entry.waiting.job, shape, allowed)
        if grants is None:
            return None
        fitted = context.calendar.fitted(job, grants)
        if context.quota.has_more_guaranteed_members(job, len(grants)):
            return self._larger_place(job, fitted, mark)
        if fitted is not grants:
            context.transaction.take_instead(mark, fitted)
        return fitted

    def _larger_place(self, job: JobContext, grants: list[Grant], mark: int) -> list[Grant]:
        """A place for more members: within its guarantee the job may delay batch reservations."""
        context = self._context
        context.transaction.undo(mark)
        guaranteed = context.guaranteed_only(job)
        larger = self.find(guaranteed, context.calendar.allowed(guaranteed)) or grants
        best = max(grants, larger, key=len)
        context.transaction.take_instead(mark, best)
        return best

    def _in_own_advance_reservation(self, job: JobContext) -> list[Grant] | None:
        """A place on devices that are reserved for the job itself: it goes there first.

        Bookings after the end of the advance reservation are no obstacle there.
        """
        context = self._context
        advance = context.advance
        if advance is None or (own := advance.own_of(job.entry, job.exclusion)) is None:
            return None
        outside, within, until_ms = own
        inside_ms = min(job.duration_ms, until_ms - context.now_ms)
        allowed = context.calendar.allowed(job, inside_ms)
        advance.close(outside)
        mark = context.transaction.mark()
        shape = context.quota.admitted_shape(job)
        grants = context.placer.place(shape, within if allowed is None else within & allowed)
        advance.close_for(job.exclusion)
        if grants is None or context.calendar.can_begin(grants, inside_ms):
            return grants
        context.transaction.undo(mark)
        return None


class _BlockedJobs:
    """Preempts, reserves or rejects for jobs that cannot start now, and notes why they wait.

    `count` is the number of blocked jobs that may have a reservation.
    """

    def __init__(self, context: _PassContext, places: _FreePlaces, *, preempts: bool) -> None:
        state = context.state
        self._context = context
        self._places = places
        self._preempts = preempts
        self._plan = context.plan
        self._merge = context.merge
        self._attempts = AttemptBudget(context.policy.max_preempt_tries)
        self._others_may_preempt = state.others_wait()
        self._rejects = BackfillRejects(
            context.policy, context.calendar, context.merge, context.plan
        )
        self._exclusion_reasons: dict[tuple[int, int], Reason] = {}
        self._gave_up_gpus = False
        self.count = 0

    def may_reserve(self, entry: Entry) -> bool:
        """Tell whether the job has waited long enough to get a reservation."""
        waited_ms = entry.waiting.waited_at(self._context.now_ms)
        return waited_ms >= self._context.policy.reserve_after_ms

    def is_rejected(self, entry: Entry) -> bool:
        """Reject a job at once if a shorter one of its shape was too long for backfill.

        Asked first: on a full cluster most jobs that a pass considers are rejected here.
        """
        if entry.shape.id not in self._rejects.shapes:
            return False
        if entry.number in self._context.state.reservations:
            return False
        return self._rejects.rejects(entry, self._context.duration_ms(entry))

    # Jobs that do not fit

    def add(self, job: JobContext, allowed: int | None, old: Reservation | None) -> None:
        """Preempt for a job, or reserve a place, and remember that its shape does not fit.

        `allowed` are the nodes where it would delay no reservation (None: all, or not searched).
        """
        entry, policy = job.entry, self._context.policy
        if self._preempt_for_room(job, old):
            return
        may_reserve = self.may_reserve(entry)
        self.count += may_reserve
        if policy.queueing is Queueing.BLOCKING:
            self._block_queue(entry)
            return
        reserves = policy.queueing is Queueing.RESERVE and may_reserve
        if old is not None:
            self._context.calendar.renew(job, old)
            self._count_claim(entry)
        elif reserves and self.count <= policy.reservations:
            self._context.calendar.reserve(job)
        if allowed is not None and self._places.fits(entry.shape, job.closure):
            # With advance reservations, other jobs of the shape may use more devices.
            self._rejects.add(job, whole_shape=self._context.advance is None)
        elif job.closure:
            self._places.add_full(job)
            self._plan.job_reasons[entry.number] = self._exclusion_reason(job)
        else:
            self._plan.shape_reasons.setdefault(entry.shape.id, _NO_ROOM)
            self._places.add_full(job)
            if not reserves or self.count >= policy.reservations:
                self._drop(entry.shape)

    def keep_reservation(self, entry: Entry, reservation: Reservation) -> None:
        """Book a reservation as it was made, or else the earliest place.

        A claim is kept for a job even if it is over a quota until its victims have left.
        """
        quota, calendar = self._context.quota, self._context.calendar
        quota.remove_claim(entry)
        refused = self.refusal(entry, reservation)
        if refused is not None and reservation.claim:
            refused = quota.refusal_after_evictions(entry)
        if refused is None:
            calendar.keep(self._context.begin_job(entry), reservation)
            self._count_claim(entry)
            if entry.number in calendar.kept:
                self.count += self.may_reserve(entry)

    def _count_claim(self, entry: Entry) -> None:
        """Count a kept claim in the quotas."""
        kept = self._context.calendar.kept.get(entry.number)
        if kept is not None and kept.claim:
            self._context.quota.add_claim(entry, kept.placements)

    def _block_queue(self, entry: Entry) -> None:
        """Consider no more jobs of the same sort: GPU jobs behind a GPU job, CPU-only likewise."""
        behind = Reason(ReasonCode.BEHIND, (("job", entry.waiting.job.id),))
        self._plan.job_reasons[entry.number] = _NO_ROOM
        for shape in self._context.state.job_shapes.values():
            if shape.uses_gpus == entry.shape.uses_gpus:
                self._merge.drop_shape(shape.id)
                self._plan.shape_reasons[shape.id] = behind

    def _drop(self, shape: JobShape) -> None:
        """Consider no more jobs that need this room; no more GPU jobs if no GPU is left."""
        state = self._context.state
        self._merge.drop_shape(shape.id)
        if self._preempts and self._others_may_preempt:
            self._give_up(shape)
            return
        if self._preempts and self._attempts.is_left():
            return
        for alike in state.shapes_of_base[shape.base]:
            self._merge.drop_shape(alike.id)
            self._plan.shape_reasons.setdefault(alike.id, _NO_ROOM)
        if not self._gave_up_gpus and state.index.is_full:
            self._gave_up_gpus = True
            for other in state.job_shapes.values():
                if other.ends_with_gpus:
                    self._merge.drop_shape(other.id)
                    self._plan.shape_reasons.setdefault(other.id, _NO_ROOM)

    def _give_up(self, shape: JobShape) -> None:
        """Consider no more jobs that need this room, unless they may evict for what is guaranteed.

        No reasons are kept for their shapes, as each tenant has shapes of its own.
        """
        state, waiting = self._context.state, self._context.state.queue.batch_shapes
        self._merge.give_up({shape.base}, self._may_evict)
        if not self._gave_up_gpus and state.index.is_full:
            self._gave_up_gpus = True
            ends = {base for base in waiting if state.shapes_of_base[base][0].ends_with_gpus}
            self._merge.give_up(ends, self._may_evict)

    def _may_evict(self, group: Group) -> bool:
        """Tell whether victims may still be searched for a job of the group."""
        is_left = self._attempts.is_left
        tenant, user, pool = group.key
        tree = self._context.quota.admission.tree
        if pool is Pool.ONLINE and self._context.state.pools:
            return True
        if is_left(AttemptClass.TENANT_GUARANTEED) and tree.may_reclaim(tenant, user):
            return True
        largest = max(group.sizes)
        if is_left() and not tree.may_reclaim(tenant, user, largest):
            return True
        return (
            is_left(AttemptClass.GUARANTEED_AT_QUOTA)
            and tree.is_at_maximum(tenant, user, largest)
            and tree.may_reclaim(tenant, user)
        )

    def _exclusion_reason(self, job: JobContext) -> Reason:
        """The advance reservation that a job waits for, if it would fit without; else no room."""
        advance, exclusion = self._context.advance, job.exclusion
        key = (job.entry.shape.base, job.closure)
        if advance is not None and exclusion is not None and key not in self._exclusion_reasons:
            advance.close({})
            fits = self._places.fits(job.entry.shape, 0)
            advance.close_for(exclusion)
            reason = exclusion.reason_at(self._context.now_ms) if fits else _NO_ROOM
            self._exclusion_reasons[key] = reason
        return self._exclusion_reasons[key]

    # Preemption for want of room

    def _preempt_for_room(self, job: JobContext, old: Reservation | None) -> bool:
        """Evict running jobs so that the job fits, if the policy has a reason for that."""
        if not self._preempts:
            return False
        entry, policy, now_ms = job.entry, self._context.policy, self._context.now_ms
        is_left = self._attempts.is_left
        attempt = AttemptClass.BATCH
        if job.within_pool_guarantee:
            attempt = AttemptClass.ONLINE_GUARANTEED
        elif entry.shape.interactive:
            attempt = AttemptClass.INTERACTIVE
        elif not is_left() and not is_left(AttemptClass.TENANT_GUARANTEED):
            return False
        elif self._context.quota.has_right(entry):
            attempt = AttemptClass.TENANT_GUARANTEED
        if not is_left(attempt):
            return False
        if old is not None and old.claim and old.at_ms + policy.eviction_ms > now_ms:
            return False
        # Other jobs that need the same room may have other victims than this one.
        tenant = self._context.state.tenant(entry.waiting.job.tenant)
        tree = self._context.quota.admission.tree
        alone = (
            entry.shape.interactive
            or not tenant.can_preempt_others
            or tree.leaf(entry.group.key[0], entry.group.key[1]) is not None
        )
        key = (alone, entry.shape.id if alone else entry.shape.base, job.closure)
        if self._attempts.has_failed(key, entry.static_class):
            return False
        self._attempts.spend(attempt)
        allowed = self._context.calendar.allowed(job)
        members = len(self._context.quota.admitted_shape(job).members)
        found = self._context.preemptor.preempt_for_room(
            job,
            self._search_space(job, allowed, members),
            reservation_due=old is not None and old.due_ms <= now_ms,
        )
        if found is None:
            if policy.preemption is Preemption.CLASS and old is None:
                self._attempts.add_failure(key, entry.static_class)
            return False
        self._claim(job, found, old)
        return True

    def _search_space(self, job: JobContext, allowed: int | None, members: int) -> SearchSpace:
        """Where a place may be freed: not where bookings begin before the job would end."""
        return SearchSpace(
            placer=self._context.placer,
            within=allowed,
            reserved=self._context.calendar.booked_later(job),
            members=members,
        )

    def _claim(self, job: JobContext, found: FreedPlace, old: Reservation | None) -> None:
        """Evict the victims, and keep the place for the job."""
        grants, evictions = found
        self._plan.evictions += evictions
        victims = [eviction.allocation_id for eviction in evictions]
        self._context.calendar.claim(job, grants, victims, old)
        self._plan.job_reasons[job.entry.number] = claim_reason(evictions)
        self._context.count(job, grants)

    # Jobs over a quota

    def refusal(self, entry: Entry, reservation: Reservation | None) -> Reason | None:
        """Why a quota of the array, user, tenant or pool forbids to start the job, or None."""
        if reservation is not None and reservation.claim:
            refused = self._context.quota.refusal_of_claim(entry)
        else:
            refused = self._context.quota.refusal(entry)
        if refused is not None and not self._may_preempt_same_tenant(entry, refused):
            self._skip_account(entry, refused)
        return refused

    def add_over_quota(self, job: JobContext, refused: Reason, old: Reservation | None) -> None:
        """Let a job wait, unless batch jobs of its own tenant leave for it, or do so already."""
        entry, quota = job.entry, self._context.quota
        reason: Reason | None = refused
        if old is not None and old.claim and quota.refusal_after_evictions(entry) is None:
            self.keep_reservation(entry, old)
            names = quota.evicting_names(entry.waiting.job.tenant)
            reason = same_tenant_reason(names) if names else refused
        elif self._may_preempt_same_tenant(entry, refused):
            reason = self._preempt_same_tenant(job, refused)
            if reason is not None:
                self._skip_account(entry, reason)
        if reason is not None:
            self._plan.job_reasons[entry.number] = reason

    def _may_preempt_same_tenant(self, entry: Entry, refused: Reason) -> bool:
        """Tell whether batch jobs of its own tenant may leave so that it is within a quota."""
        if not self._preempts or refused.code is ReasonCode.ARRAY_LIMIT:
            return False
        if entry.shape.interactive:
            return True
        by_class = self._context.policy.preemption is Preemption.CLASS
        quota = self._context.quota
        return by_class and bool(quota.pool_right(entry) or quota.rights_at_maximum(entry, refused))

    def _skip_account(self, entry: Entry, refused: Reason) -> None:
        """Consider no more jobs of the shape in this pass: of one user, or of the tenant.

        Nor any that need as many GPUs, if these are more than the account may have.
        """
        if refused.code is ReasonCode.ARRAY_LIMIT or refused.get("resource") == HOURS:
            return
        job = entry.waiting.job
        user = job.user if refused.get("user") else ""
        account = (job.tenant, user, job.pool)
        self._merge.drop_shape_for(account, entry.shape.id)
        self._plan.tenant_reasons[job.tenant, user, entry.shape.id] = refused
        tree = self._context.quota.admission.tree
        if (
            is_for_gpus(refused)
            and job.preemptible
            and entry.shape.least_gpu_milli
            and not entry.shape.interactive
            and not tree.may_reclaim(job.tenant, job.user)
        ):
            self._merge.close(account, entry.shape.least_gpu_milli)
            self._plan.account_reasons[account] = (entry.shape.least_gpu_milli, refused)

    def skip_narrowed(self, entry: Entry) -> None:
        """Consider no more such jobs: only GPUs of models that their quota closes may be free."""
        job = entry.waiting.job
        reason = self._context.quota.closing_reason(entry)
        self._merge.drop_shape_for(entry.group.key, entry.shape.id)
        self._plan.tenant_reasons.setdefault((job.tenant, job.user, entry.shape.id), reason)

    def _preempt_same_tenant(self, job: JobContext, refused: Reason) -> Reason | None:
        """Evict batch jobs of the tenant; if there are none, return why the job waits."""
        context = self._context
        victims = context.preemptor.same_tenant_victims(job, refused)
        if isinstance(victims, Reason):
            return victims
        attempt = AttemptClass.INTERACTIVE_AT_QUOTA
        if victims.is_lent is not None:
            attempt = AttemptClass.GUARANTEED_AT_QUOTA
        if not self._attempts.is_left(attempt):
            return refused
        self._attempts.spend(attempt)
        job = context.preemptor.narrowed_for(job, victims)
        allowed = context.calendar.allowed(job)
        place = None
        if not self._places.is_known_full(job):
            mark = context.transaction.mark()
            place = self._places.find(job, allowed)
            context.transaction.undo(mark)
        space = self._search_space(job, allowed, job.entry.shape.min_members)
        found = context.preemptor.preempt_same_tenant(job, victims, place, space)
        if found is None:
            return no_room_reason(refused, victims)
        self._claim(job, found, None)
        return None
