"""Ask the engine and commit its plan: all of it, and only against the picture it was made from."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control import services
from gpu_scheduler.control.effects import Outcome, StartOrder
from gpu_scheduler.control.gangs import BEGUN, PREPARED, give_up, resized, set_start_timers
from gpu_scheduler.control.jobs.lifecycle import (
    BACKOFF,
    BEGIN,
    PROTECT,
    enqueue_if_ready,
    protect,
    resume,
    wait_for_begin,
    with_tasks,
)
from gpu_scheduler.control.jobs.stop import NOT_BEGUN, PREEMPTED, TIMEOUT, stop
from gpu_scheduler.control.jobs.submit import place_again, spent
from gpu_scheduler.control.nodes import admin
from gpu_scheduler.control.nodes.lost_nodes import with_leases
from gpu_scheduler.control.scheduling import advance_reservations
from gpu_scheduler.control.scheduling.forecast_audit import corrected_end_ms, fulfil
from gpu_scheduler.control.state import Book, Timer
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import MINUTE_MS, Preemption, Queueing
from gpu_scheduler.ledger.decayed_usage import account_of
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Allocation, Eviction, Plan, Reservation, Start
from gpu_scheduler.model.snapshot import Running, Standing
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import EventRow, PromiseRow, RemovedPromise

# --- What blocked jobs were promised outlives the process: it is written, and taken up again.
#
# Nodes come back one by one after a restart, and until then nothing can be planned on them. So a
# promise from before stays as it was until all of its nodes have been heard of, for a while.

RETURN_MS = 10 * MINUTE_MS
"""A node that has not come back by then is not waited for."""


def write_promises(book: Book, outcome: Outcome) -> None:
    """Write what has changed since the last time."""
    held = book.picture.reservations
    for number, reservation in held.items():
        if book.promises.get(number) != reservation:
            outcome.writes.append(PromiseRow(reservation.job_id, reservation))
    for number, reservation in book.promises.items():
        if number not in held:
            outcome.writes.append(RemovedPromise(reservation.job_id))
    book.promises = dict(held)


def take_up_promises(book: Book, store: Store, now_ms: int) -> None:
    """Give waiting jobs what they were promised by a former process."""
    rows = store.promises()
    book.promises = {reservation.job_number: reservation for reservation in rows}
    book.picture.set_reservations(tuple(row for row in rows if _is_possible(book, row)))
    book.unheard = dict(book.picture.reservations)
    book.unheard_until_ms = now_ms + RETURN_MS


def hold_unheard(book: Book, now_ms: int) -> None:
    """After a cycle: what could not be planned, as nodes are still missing, stays as it was."""
    for number, reservation in list(book.unheard.items()):
        if (
            number not in book.picture.queue.entries
            or now_ms >= book.unheard_until_ms
            or not _is_missing_nodes(book, reservation)
        ):
            del book.unheard[number]
        else:
            book.picture.reservations[number] = reservation


def _is_possible(book: Book, reservation: Reservation) -> bool:
    """Tell whether the nodes and devices are known."""
    by_id = book.picture.index.by_id
    for placement in reservation.placements:
        slot = by_id.get(placement.node_id)
        known = () if slot is None else tuple(device.index for device in slot.node.devices)
        if slot is None or any(share.index not in known for share in placement.devices):
            return False
    return True


def _is_missing_nodes(book: Book, reservation: Reservation) -> bool:
    slots = [book.picture.index.by_id.get(p.node_id) for p in reservation.placements]
    return any(slot is not None and slot.node.state is not NodeState.ONLINE for slot in slots)


# --- Ask the engine and commit its plan: all of it, and only against the picture it was made from.

LIMIT = "limit"
TICK = "tick"


def run_cycle(book: Book, now_ms: int, outcome: Outcome) -> None:
    """Handle what is due; decide and commit if anything has changed."""
    _handle_timers(book, now_ms, outcome)
    if book.new_nodes:
        place_again(book, now_ms, outcome)
    if book.changed and book.picture.windows:
        advance_reservations.mend(book, now_ms, outcome)
    if correct_expectations(book, now_ms):
        book.changed = True
    is_due = book.changed and len(book.picture.queue) > 0
    book.changed = False
    if is_due:
        refresh_standings(book, now_ms)
        plan = decide(book.picture, book.policy, now_ms)
        commit(book, plan, now_ms, outcome)
        outcome.plan = plan
        _set_tick(book, now_ms)
    _set_wake(book)


def commit(book: Book, plan: Plan, now_ms: int, outcome: Outcome) -> None:
    """Apply a plan to the picture, and write and order what follows from it."""
    for start in plan.starts:
        _commit_start(book, start, now_ms, outcome)
    for eviction in plan.evictions:
        _commit_eviction(book, eviction, now_ms, outcome)
    book.picture.remember(plan)
    hold_unheard(book, now_ms)
    write_promises(book, outcome)
    if not plan.complete:
        book.changed = True


def refresh_standings(book: Book, now_ms: int) -> None:
    """Tell the engine what the accounts that wait, and those that lend, have had as of now.

    All others are left out, so that a cycle does not pay for everybody who was ever seen.
    """
    order = book.policy.order
    if not (order.fair_ms or order.user_fair_ms or book.picture.has_limits):
        return
    picture = book.picture
    shares = book.shares
    tenants = dict.fromkeys(book.lenders)
    users = {}
    for tenant, user, _ in picture.queue.groups:
        tenants[tenant] = None
        account = account_of(tenant, user)
        used, turns_ms = spent(book, account, now_ms) if picture.has_limits else (0, 0)
        users[tenant, user] = Standing(
            usage=shares.usage_at(account, now_ms), spent_gpu_milli_ms=used, turns_ms=turns_ms
        )
    picture.user_standings = users
    if not picture.has_limits:
        # What was spent and what is lent matters to limits alone.
        picture.tenant_standings = {
            tenant: Standing(usage=shares.usage_at(tenant, now_ms)) for tenant in tenants
        }
        return
    picture.tenant_standings = {}
    for tenant in tenants:
        used, turns_ms = spent(book, tenant, now_ms)
        picture.tenant_standings[tenant] = Standing(
            usage=shares.usage_at(tenant, now_ms),
            recent_gpu_milli=shares.recent_at(tenant, now_ms),
            spent_gpu_milli_ms=used,
            turns_ms=turns_ms,
        )
    _wait_for_turn(book, now_ms)


def _wait_for_turn(book: Book, now_ms: int) -> None:
    """Look again when the next budget of somebody who waits begins."""
    standings = (*book.picture.tenant_standings.values(), *book.picture.user_standings.values())
    turn_ms = min((s.turns_ms for s in standings if s.turns_ms), default=0)
    if turn_ms and not now_ms < book.turn_ms <= turn_ms:
        book.turn_ms = turn_ms
        book.set_timer(turn_ms, TICK, "")


def _commit_start(book: Book, start: Start, now_ms: int, outcome: Outcome) -> None:
    life = book.life(start.job_id)
    job = life.job
    waiting = book.picture.queue.entries[job.number].waiting
    book.picture.dequeue(job.number)
    if start.task is not None:
        life.take_pending(start.task, now_ms)
    life.queued = bool(life.pending)
    clock_ms = waiting.waited_at(now_ms)
    if life.pending:
        book.picture.enqueue(with_tasks(waiting, life))
    else:
        life.waited_ms = clock_ms
    task = life.task(start.task)
    task.attempt += 1
    task.move_to(JobState.SCHEDULED)
    task.waited_ms += clock_ms - task.clock_ms
    task.clock_ms = clock_ms
    task.start_ms, task.saved_ms = now_ms, 0
    task.stop_why = ""
    if task.first_start_ms is None:
        task.first_start_ms = now_ms
        fulfil(book, job.id, now_ms, outcome)
    suffix = "" if start.task is None else f"_{start.task}"
    allocation = Allocation(
        id=f"{job.id}{suffix}.{task.attempt}",
        job_id=job.id,
        task=start.task,
        attempt=task.attempt,
        placements=with_leases(book, job, start.placements),
        start_ms=now_ms,
    )
    task.allocation_id = allocation.id
    book.by_allocation[allocation.id] = (life, start.task)
    limit_ms = book.picture.limit_ms(job)
    book.picture.start(
        Running(
            job=job,
            allocation=allocation,
            expected_end_ms=now_ms + max(1, waiting.expected_ms - task.attained_ms),
            limit_end_ms=now_ms + limit_ms,
            attained_ms=task.attained_ms,
            served_ms=task.served_ms,
            waited_ms=task.waited_ms,
            preemptions=task.preemptions,
            backfilled=start.backfilled,
            protected=task.protected,
        )
    )
    set_attempt_timers(book, allocation, limit_ms, now_ms)
    book.count_queued(job, -1)
    for account in (account_of(job.tenant, None), account_of(job.tenant, job.user)):
        book.shares.hold(account, allocation.gpu_milli, now_ms)
    book.charged[job.tenant] = book.charged[job.tenant, job.user] = None
    book.accounts.begin(allocation.id, now_ms)
    book.predictor.begin(job, now_ms)
    if start.task is not None:
        outcome.writes.append(life.task_row(start.task, task))
    outcome.keep(life)
    outcome.writes += [
        allocation,
        EventRow(at_ms=now_ms, kind="scheduled", job_id=job.id, task=start.task, user=job.user),
        *resized(job, task, len(allocation.placements), now_ms),
    ]
    outcome.effects.append(StartOrder(allocation, job))


def set_attempt_timers(
    book: Book, allocation: Allocation, limit_ms: int, listening_ms: int
) -> None:
    """What is due in the life of an attempt: its limit, and by when it must have begun."""
    if not book.limits.nodes_keep_limits:
        book.set_timer(allocation.start_ms + limit_ms, LIMIT, allocation.id)
    set_start_timers(book, allocation, listening_ms)


def _commit_eviction(book: Book, eviction: Eviction, now_ms: int, outcome: Outcome) -> None:
    stop(book, eviction.allocation_id, PREEMPTED, outcome)
    data = (("for", eviction.for_job_id), ("ground", eviction.ground))
    user = book.life(eviction.job_id).job.user
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind="evicting", job_id=eviction.job_id, user=user, data=data)
    )


def _set_tick(book: Book, now_ms: int) -> None:
    """Levels of attained service change while nothing happens, so look again in a while."""
    if book.policy.preemption is Preemption.FEEDBACK and len(book.picture.queue):
        tick_ms = now_ms + book.policy.feedback.tick_ms
        if book.tick_ms <= now_ms:
            book.tick_ms = tick_ms
            book.set_timer(tick_ms, TICK, "")


def _set_wake(book: Book) -> None:
    """Look again when a reservation is due and something has run longer than expected.

    There is one such time, and every look moves the ends that have passed, so it moves on.
    """
    picture = book.picture
    book.wake_ms = None
    if picture.reservations and picture.ends:
        due_ms = min(reservation.at_ms for reservation in picture.reservations.values())
        book.wake_ms = max(due_ms, picture.ends[0][0] + 1)


def _handle_timers(book: Book, now_ms: int, outcome: Outcome) -> None:
    for timer in book.due_timers(now_ms):
        if timer.kind == TICK:
            book.changed = True
        elif timer.kind == LIMIT:
            stop(book, timer.name, TIMEOUT, outcome)
        elif timer.kind == advance_reservations.WINDOW:
            advance_reservations.on_timer(book, timer.name, now_ms, outcome)
        elif timer.kind == services.SERVICE:
            services.look_again(book, timer.name)
        elif timer.kind == admin.DRAIN:
            admin.on_timer(book, timer.name, now_ms, outcome)
        elif timer.kind in {BEGUN, PREPARED}:
            _give_up_start(book, timer, now_ms, outcome)
        elif timer.name in book.lives:
            _handle_timer(book, timer, now_ms, outcome)


def _give_up_start(book: Book, timer: Timer, now_ms: int, outcome: Outcome) -> None:
    """An attempt that should have begun long ago is stopped, unless its node is out of reach."""
    allocation_id = timer.name
    found = book.running(allocation_id)
    if found is None or found[2].state is not JobState.SCHEDULED:
        return
    allocation = book.picture.running[allocation_id].running.allocation
    if allocation.spans_nodes:
        give_up(book, allocation_id, timer.kind, outcome)
        return
    placements = allocation.placements
    nodes = [book.picture.index.slot(placement.node_id).node for placement in placements]
    if all(node.state is NodeState.ONLINE for node in nodes):
        stop(book, allocation_id, NOT_BEGUN, outcome)
    else:
        book.set_timer(now_ms + book.limits.start_timeout_ms, BEGUN, allocation_id)


def _handle_timer(book: Book, timer: Timer, now_ms: int, outcome: Outcome) -> None:
    """Something is due for a job. What is out of date by now does no harm."""
    life = book.lives[timer.name]
    if timer.kind == PROTECT:
        protect(book, life, now_ms, outcome)
    elif timer.kind == BACKOFF:
        resume(book, life, timer.task, now_ms, outcome)
    elif life.is_waiting_on(BEGIN) and life.job.begin_ms <= now_ms:
        wait_for_begin(book, life, now_ms)
        enqueue_if_ready(book, life, now_ms, outcome)


def correct_expectations(book: Book, now_ms: int) -> bool:
    """Jobs that run longer than expected are expected to run longer.

    Says whether that can matter to a job that waits: where nothing is reserved and nobody is
    stopped, expectations decide nothing.
    """
    picture = book.picture
    is_revised = False
    while picture.ends and picture.ends[0][0] < now_ms:
        running = picture.running[picture.ends[0][3]].running
        end_ms = corrected_end_ms(book.predictor, running, now_ms)
        picture.revise(replace(running, expected_end_ms=end_ms, overrun=True))
        is_revised = True
    policy = book.policy
    return is_revised and (
        policy.queueing is Queueing.RESERVE or policy.preemption is not Preemption.NONE
    )
