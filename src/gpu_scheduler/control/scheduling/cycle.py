"""One scheduling cycle: handle due timers, ask the engine for a plan, and apply the whole plan.

Reservations of the engine are stored, and restored after a restart.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from gpu_scheduler.control import services
from gpu_scheduler.control.effects import Outcome, StartOrder
from gpu_scheduler.control.gang_commit import BEGUN, PREPARED, note_members, set_start_timers
from gpu_scheduler.control.jobs.queueing import (
    BACKOFF,
    BEGIN,
    NOT_BEGUN,
    PREEMPTED,
    PROTECT,
    TIMEOUT,
    end_estimate,
    enqueue_if_ready,
    protect,
    resume,
    set_aside,
    stop,
    wait_for_begin,
    with_tasks,
)
from gpu_scheduler.control.jobs.submit import node_spent, place_again, spent
from gpu_scheduler.control.messages import RunCycle
from gpu_scheduler.control.nodes import admin
from gpu_scheduler.control.nodes.lost_nodes import with_leases
from gpu_scheduler.control.scheduling import reservation_commands
from gpu_scheduler.control.scheduling.culprits import decide_without_culprits, owner_of
from gpu_scheduler.control.state import ControlState, Timer
from gpu_scheduler.engine.decide import DecisionFailed, decide
from gpu_scheduler.engine.fair_share import PROJECTED_MS
from gpu_scheduler.engine.policy import MINUTE_MS, Preemption, Queueing
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.ledger.decayed_usage import Account, account_of
from gpu_scheduler.model.cluster_snapshot import AccountUsage, Running
from gpu_scheduler.model.job import JobState, display_name
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Allocation, Eviction, Plan, Reservation, Start
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import Removed, ReservationRow

log = structlog.get_logger("control")

LIMIT = "limit"
TICK = "tick"
RETURN_MS = 10 * MINUTE_MS
"""After a restart, reservations on a node that does not reconnect within this time are dropped."""
LEAST_STEP_MS = 1_000
LEAST_STEP_PERCENT = 1
"""An exceeded expectation grows by at least this much, so that it is not exceeded again at once."""


def store_reservations(state: ControlState, outcome: Outcome) -> None:
    """Write the reservations that changed since the last call."""
    held = state.cluster.reservations
    for number, reservation in held.items():
        if state.stored_reservations.get(number) != reservation:
            outcome.writes.append(ReservationRow(reservation.job_id, reservation))
    for number, reservation in state.stored_reservations.items():
        if number not in held:
            outcome.writes.append(Removed(ReservationRow, reservation.job_id))
    state.stored_reservations = dict(held)


def restore_reservations(state: ControlState, store: Store, now_ms: int) -> None:
    """Load the stored reservations after a restart.

    Nodes reconnect one by one, and the engine cannot plan on a node before. Until then the
    reservations are kept as `unconfirmed_reservations`.
    """
    rows = store.reservations()
    state.stored_reservations = {reservation.job_number: reservation for reservation in rows}
    state.cluster.set_reservations(tuple(row for row in rows if _is_possible(state, row)))
    state.unconfirmed_reservations = dict(state.cluster.reservations)
    state.unconfirmed_until_ms = now_ms + RETURN_MS


def keep_unconfirmed_reservations(state: ControlState, now_ms: int) -> None:
    """After a cycle: keep restored reservations whose nodes have not reconnected yet."""
    for number, reservation in list(state.unconfirmed_reservations.items()):
        if (
            number not in state.cluster.queue.entries
            or now_ms >= state.unconfirmed_until_ms
            or not _is_missing_nodes(state, reservation)
        ):
            del state.unconfirmed_reservations[number]
        else:
            state.cluster.reservations[number] = reservation


def _is_possible(state: ControlState, reservation: Reservation) -> bool:
    """Tell whether the nodes and devices of a reservation still exist."""
    by_id = state.cluster.index.by_id
    for placement in reservation.placements:
        resources = by_id.get(placement.node_id)
        if resources is None:
            return False
        known = {device.index for device in resources.node.devices}
        if any(share.index not in known for share in placement.devices):
            return False
    return True


def _is_missing_nodes(state: ControlState, reservation: Reservation) -> bool:
    nodes = [state.cluster.index.by_id.get(p.node_id) for p in reservation.placements]
    return any(
        resources is not None and resources.node.state is not NodeState.ONLINE
        for resources in nodes
    )


def run_cycle(state: ControlState, _message: RunCycle, now_ms: int, outcome: Outcome) -> None:
    """Handle due timers; ask the engine for a plan and apply it if anything has changed."""
    _handle_timers(state, now_ms, outcome)
    if state.new_nodes:
        place_again(state, now_ms, outcome)
    if state.changed and state.cluster.advance_reservations:
        reservation_commands.replace_broken_devices(state, now_ms, outcome)
    if correct_expectations(state, now_ms):
        state.changed = True
    is_due = (state.changed or state.sweep.continues) and len(state.cluster.queue) > 0
    if state.changed and state.cluster.resume_after is not None:
        state.sweep.is_stale = True
    state.changed = False
    if is_due:
        refresh_account_usage(state, now_ms)
        plan = _decide(state, now_ms, outcome)
        commit(state, plan, now_ms, outcome)
        outcome.plan = plan
        _set_tick(state, now_ms)
    _set_wake(state)


def _decide(state: ControlState, now_ms: int, outcome: Outcome) -> Plan:
    """Ask the engine for a plan; on the server, without the jobs that make it fail."""
    try:
        return decide(state.cluster, state.policy, now_ms)
    except DecisionFailed as error:
        if not state.limits.sets_failing_jobs_aside:
            raise
        log.exception("the engine failed; searching the queued job that causes it")
        failure = error
    snapshot = state.cluster.snapshot()
    known = {owner_of(state.job(job_id).job) for job_id in state.sweep.set_aside}
    plan, culprits = decide_without_culprits(snapshot, state.policy, now_ms, failure, known)
    state.cluster = ClusterState.from_snapshot(snapshot, state.policy)
    for job_id, why in culprits.items():
        set_aside(state, state.job(job_id), why, now_ms, outcome)
        log.error("job set aside after an internal error", job=job_id, error=why)
    if plan is None:
        # Jobs of more accounts fail than one cycle may leave out: the next one goes on.
        return Plan(complete=False, reservations=snapshot.reservations)
    return plan


def commit(state: ControlState, plan: Plan, now_ms: int, outcome: Outcome) -> None:
    """Apply a plan to the cluster state; add its writes and orders to the outcome."""
    for start in plan.starts:
        _commit_start(state, start, now_ms, outcome)
    for eviction in plan.evictions:
        _commit_eviction(state, eviction, now_ms, outcome)
    state.cluster.remember(plan)
    keep_unconfirmed_reservations(state, now_ms)
    store_reservations(state, outcome)
    sweep = state.sweep
    if state.policy.order.is_fair:
        sweep.has_rejects = sweep.has_rejects or _has_backfill_rejects(plan)
        if plan.starts and sweep.has_rejects:
            sweep.is_stale = True
    sweep.continues = not plan.complete or sweep.is_stale
    if plan.complete:
        sweep.is_stale = sweep.has_rejects = False


def _has_backfill_rejects(plan: Plan) -> bool:
    """Tell whether a job has room, but would delay a reservation."""
    reasons = (*plan.job_reasons, *plan.shape_reasons)
    return any(reason.code is ReasonCode.RESERVED for _, reason in reasons)


def refresh_account_usage(state: ControlState, now_ms: int) -> None:
    """Give the engine the current usage of accounts with waiting jobs, and of lending tenants.

    Other accounts are left out, so that the cost of a cycle does not grow with their number.
    """
    if not (state.policy.order.is_fair or state.cluster.has_quotas):
        return
    cluster = state.cluster
    # A node of the quota tree counts all tenants below it, whether they wait or not.
    in_tree = [name for name in cluster.quota_nodes if "/" not in name]
    tenants = dict.fromkeys((*state.lenders, *in_tree))
    users = {}
    for tenant, user, _ in cluster.queue.groups:
        tenants[tenant] = None
        users[tenant, user] = usage_of_user(state, tenant, user, now_ms)
    cluster.user_usage = users
    if not cluster.has_quotas:
        # Only quotas need spent budgets and lent capacity.
        cluster.tenant_usage = {
            tenant: AccountUsage(usage=_usage_at(state, tenant, now_ms)) for tenant in tenants
        }
        return
    cluster.tenant_usage = {tenant: usage_of_tenant(state, tenant, now_ms) for tenant in tenants}
    cluster.node_usage = {
        node.name: node_spent(state, node, now_ms)
        for node in cluster.quota_nodes.values()
        if node.budget_gpu_milli_ms is not None
    }
    _set_budget_timer(state, now_ms)


def usage_of_user(state: ControlState, tenant: str, user: str, now_ms: int) -> AccountUsage:
    """The usage of a user in a tenant, as the engine compares it."""
    account = account_of(tenant, user)
    used, turns_ms = spent(state, account, now_ms) if state.cluster.has_quotas else (0, 0)
    return AccountUsage(
        usage=_usage_at(state, account, now_ms), spent_gpu_milli_ms=used, turns_ms=turns_ms
    )


def usage_of_tenant(state: ControlState, tenant: str, now_ms: int) -> AccountUsage:
    """The usage of a tenant, as the engine compares it."""
    used, turns_ms = spent(state, tenant, now_ms)
    return AccountUsage(
        usage=_usage_at(state, tenant, now_ms),
        recent_gpu_milli=state.decayed_usage.recent_at(tenant, now_ms),
        spent_gpu_milli_ms=used,
        turns_ms=turns_ms,
    )


def _usage_at(state: ControlState, account: Account, now_ms: int) -> int:
    usage = state.decayed_usage.usage_at(account, now_ms)
    return usage + state.projected_usage.at(account, now_ms)


def _set_budget_timer(state: ControlState, now_ms: int) -> None:
    """Set a timer for the start of the next budget period of a waiting account."""
    cluster = state.cluster
    accounts = (
        *cluster.tenant_usage.values(),
        *cluster.user_usage.values(),
        *cluster.node_usage.values(),
    )
    turn_ms = min((s.turns_ms for s in accounts if s.turns_ms), default=0)
    if turn_ms and not now_ms < state.budget_reset_ms <= turn_ms:
        state.budget_reset_ms = turn_ms
        state.set_timer(turn_ms, TICK, "")


def _commit_start(state: ControlState, start: Start, now_ms: int, outcome: Outcome) -> None:
    record = state.job(start.job_id)
    job = record.job
    waiting = state.cluster.queue.entries[job.number].waiting
    state.cluster.dequeue(job.number)
    if start.task is not None:
        record.take_pending(start.task, now_ms)
    record.queued = bool(record.pending)
    clock_ms = waiting.waited_at(now_ms)
    if record.pending:
        state.cluster.enqueue(with_tasks(waiting, record))
    else:
        record.waited_ms = clock_ms
    task = record.task(start.task)
    task.attempt += 1
    task.move_to(JobState.SCHEDULED)
    task.waited_ms += clock_ms - task.clock_ms
    task.clock_ms = clock_ms
    task.start_ms, task.saved_ms = now_ms, 0
    task.stop_why = task.stop_cause = ""
    task.exit_code = task.signal = None
    if task.first_start_ms is None:
        task.first_start_ms = now_ms
        estimate = state.estimates.pop(job.id, None)
        if estimate is not None:
            outcome.writes.append(replace(estimate, start_ms=now_ms))
            try:
                end_estimate(state, estimate, now_ms)
            except Exception:
                # The statistics of forecasts must not keep a job from starting.
                log.exception("cannot learn from the start of a job", job=job.id)
    suffix = "" if start.task is None else f"_{start.task}"
    allocation = Allocation(
        id=f"{job.id}{suffix}.{task.attempt}",
        job_id=job.id,
        task=start.task,
        attempt=task.attempt,
        placements=with_leases(state, job, start.placements),
        start_ms=now_ms,
    )
    task.allocation_id = allocation.id
    state.by_allocation[allocation.id] = (record, start.task)
    limit_ms = state.cluster.limit_ms(job)
    state.cluster.start(
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
    set_attempt_timers(state, allocation, limit_ms, now_ms)
    project_usage(state, allocation)
    state.count_queued(job, -1)
    for account in (account_of(job.tenant, None), account_of(job.tenant, job.user)):
        state.decayed_usage.hold(account, allocation.gpu_milli, now_ms)
    state.charged[job.tenant] = state.charged[job.tenant, job.user] = None
    state.usage_totals.begin(allocation.id, now_ms)
    state.predictor.begin(job, now_ms)
    if start.task is not None:
        outcome.writes.append(record.task_row(start.task, task))
    outcome.keep(record)
    outcome.writes.append(allocation)
    outcome.job_event(job, "scheduled", now_ms, task=start.task)
    note_members(job, task, len(allocation.placements), now_ms, outcome)
    outcome.effects.append(StartOrder(allocation, job))


def set_attempt_timers(
    state: ControlState, allocation: Allocation, limit_ms: int, listening_ms: int
) -> None:
    """Set the timers of an attempt: its time limit, and the start timeout."""
    if not state.limits.nodes_keep_limits:
        state.set_timer(allocation.start_ms + limit_ms, LIMIT, allocation.id)
    set_start_timers(state, allocation, listening_ms)


def project_usage(state: ControlState, allocation: Allocation) -> None:
    """Count a running attempt in the fair shares as if it had run for up to an hour."""
    if not state.policy.order.is_fair:
        return
    running = state.cluster.running[allocation.id].running
    job = running.job
    end_ms = min(running.expected_end_ms, running.limit_end_ms, allocation.start_ms + PROJECTED_MS)
    accounts = (account_of(job.tenant, None), account_of(job.tenant, job.user))
    state.projected_usage.add(allocation.id, accounts, allocation.gpu_milli, end_ms)


def _commit_eviction(
    state: ControlState, eviction: Eviction, now_ms: int, outcome: Outcome
) -> None:
    cause = f"preempted for {display_name(eviction.for_job_id)}" if eviction.for_job_id else ""
    stop(state, eviction.allocation_id, PREEMPTED, outcome, cause=cause)
    data = (("for", eviction.for_job_id), ("ground", eviction.ground.value))
    outcome.job_event(state.job(eviction.job_id).job, "evicting", now_ms, data=data)


def _set_tick(state: ControlState, now_ms: int) -> None:
    """Feedback levels change with time alone, so run a cycle after the next tick."""
    if state.policy.preemption is Preemption.FEEDBACK and len(state.cluster.queue):
        tick_ms = now_ms + state.policy.feedback.tick_ms
        if state.tick_ms <= now_ms:
            state.tick_ms = tick_ms
            state.set_timer(tick_ms, TICK, "")


def _set_wake(state: ControlState) -> None:
    """Run a cycle when a reservation is due and a job has run longer than expected.

    Each cycle corrects the expected ends that have passed, so this time advances.
    """
    cluster = state.cluster
    state.wake_ms = None
    if cluster.reservations and cluster.ends:
        due_ms = min(reservation.at_ms for reservation in cluster.reservations.values())
        state.wake_ms = max(due_ms, cluster.ends[0][0] + 1)


def _handle_timers(state: ControlState, now_ms: int, outcome: Outcome) -> None:
    for timer in state.due_timers(now_ms):
        if timer.kind == TICK:
            state.changed = True
        elif timer.kind == LIMIT:
            stop(state, timer.name, TIMEOUT, outcome)
        elif timer.kind == reservation_commands.ADVANCE_RESERVATION:
            reservation_commands.on_timer(state, timer.name, now_ms, outcome)
        elif timer.kind == services.SERVICE:
            services.mark(state, timer.name)
        elif timer.kind == admin.DRAIN:
            admin.on_timer(state, timer.name, now_ms, outcome)
        elif timer.kind in {BEGUN, PREPARED}:
            _give_up_start(state, timer, now_ms, outcome)
        elif timer.name in state.jobs:
            _handle_timer(state, timer, now_ms, outcome)


def _give_up_start(state: ControlState, timer: Timer, now_ms: int, outcome: Outcome) -> None:
    """Stop an attempt that did not start in time, unless its node is disconnected."""
    allocation_id = timer.name
    found = state.running(allocation_id)
    if found is None or found[2].state is not JobState.SCHEDULED:
        return
    allocation = state.cluster.running[allocation_id].running.allocation
    if allocation.spans_nodes:
        # A gang is stopped even if some of its nodes are disconnected.
        if (timer.kind == PREPARED) == allocation.is_held_back:
            stop(state, allocation_id, NOT_BEGUN, outcome)
        return
    placements = allocation.placements
    nodes = [state.cluster.index.resources(placement.node_id).node for placement in placements]
    if all(node.state is NodeState.ONLINE for node in nodes):
        stop(state, allocation_id, NOT_BEGUN, outcome)
    else:
        state.set_timer(now_ms + state.limits.start_timeout_ms, BEGUN, allocation_id)


def _handle_timer(state: ControlState, timer: Timer, now_ms: int, outcome: Outcome) -> None:
    """Handle a due timer of a job; a stale timer has no effect."""
    record = state.jobs[timer.name]
    if timer.kind == PROTECT:
        protect(state, record, now_ms, outcome)
    elif timer.kind == BACKOFF:
        resume(state, record, timer.task, now_ms, outcome)
    elif record.is_waiting_on(BEGIN) and record.job.begin_ms <= state.calendar_ms(now_ms):
        wait_for_begin(state, record, now_ms)
        enqueue_if_ready(state, record, now_ms, outcome)


def correct_expectations(state: ControlState, now_ms: int) -> bool:
    """Correct the expected end of jobs that run longer than expected.

    Return whether that can matter: expected ends only affect reservations and preemption.
    """
    cluster = state.cluster
    is_revised = False
    while cluster.ends and cluster.ends[0][0] < now_ms:
        running = cluster.running[cluster.ends[0][3]].running
        end_ms = corrected_end_ms(state.predictor, running, now_ms)
        cluster.revise(replace(running, expected_end_ms=end_ms, overrun=True))
        is_revised = True
    policy = state.policy
    return is_revised and (
        policy.queueing is Queueing.RESERVE or policy.preemption is not Preemption.NONE
    )


def expected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """When a running job should end; corrected now if that time has passed since the last cycle."""
    if running.expected_end_ms >= now_ms or running.stopping:
        return running.expected_end_ms
    return corrected_end_ms(predictor, running, now_ms)


def corrected_end_ms(predictor: Predictor, running: Running, now_ms: int) -> int:
    """The new expected end of a job that runs longer than expected."""
    elapsed_ms = max(0, now_ms - running.allocation.start_ms)
    if elapsed_ms < LEAST_STEP_MS:
        # Saves calls of the predictor for very short jobs.
        return now_ms + LEAST_STEP_MS
    total_ms = running.attained_ms + elapsed_ms
    expected_ms = predictor.exceed(running.job, total_ms, now_ms)
    least_ms = max(LEAST_STEP_MS, elapsed_ms * LEAST_STEP_PERCENT // 100)
    return now_ms + max(least_ms, expected_ms - total_ms)
