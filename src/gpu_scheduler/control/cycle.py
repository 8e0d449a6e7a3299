"""Ask the engine and commit its plan: all of it, and only against the picture it was made from."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Book
from gpu_scheduler.control.eligible import PROTECT, clear, protect
from gpu_scheduler.control.messages import Outcome, StartOrder, StopOrder
from gpu_scheduler.engine.decide import decide
from gpu_scheduler.engine.policy import Preemption
from gpu_scheduler.ledger.shares import account_of
from gpu_scheduler.model.allocation import Allocation
from gpu_scheduler.model.plan import Eviction, Plan, Start
from gpu_scheduler.model.snapshot import Running, Standing
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.rows import EventRow

LIMIT = "limit"
TICK = "tick"
PREEMPTED = "preempted"
CANCELLED = "cancelled"
TIMEOUT = "timeout"


def run_cycle(book: Book, now_ms: int, outcome: Outcome) -> None:
    """Handle what is due; decide and commit if anything has changed."""
    _handle_timers(book, now_ms, outcome)
    _correct_expectations(book, now_ms)
    if not book.changed or not len(book.picture.queue):
        book.changed = False
        return
    book.changed = False
    refresh_standings(book, now_ms)
    plan = decide(book.picture, book.policy, now_ms)
    commit(book, plan, now_ms, outcome)
    outcome.plan = plan
    _set_tick(book, now_ms)


def commit(book: Book, plan: Plan, now_ms: int, outcome: Outcome) -> None:
    """Apply a plan to the picture, and write and order what follows from it."""
    for start in plan.starts:
        _commit_start(book, start, now_ms, outcome)
    for eviction in plan.evictions:
        _commit_eviction(book, eviction, now_ms, outcome)
    book.picture.remember(plan)
    if not plan.complete:
        book.changed = True


def stop(book: Book, allocation_id: str, why: str, outcome: Outcome) -> None:
    """Order an attempt to stop, once."""
    found = book.running(allocation_id)
    if found is None:
        return
    _, _, task = found
    if not task.stop_why:
        running = book.picture.running[allocation_id].running
        book.picture.revise(replace(running, stopping=True))
        outcome.effects.append(StopOrder(allocation_id, why))
    task.stop_why = why


def refresh_standings(book: Book, now_ms: int) -> None:
    """Tell the engine what the accounts that wait have had, as of now."""
    order = book.policy.order
    if not (order.fair_ms or order.user_fair_ms or book.picture.has_limits):
        return
    picture = book.picture
    for tenant, user, _ in picture.queue.groups:
        account = account_of(tenant, user)
        picture.user_standings[tenant, user] = Standing(usage=book.shares.usage_at(account, now_ms))
    for tenant in dict.fromkeys([*picture.tenants, *(key[0] for key in picture.queue.groups)]):
        account = account_of(tenant, None)
        picture.tenant_standings[tenant] = Standing(
            usage=book.shares.usage_at(account, now_ms),
            recent_gpu_milli=book.shares.recent_at(account, now_ms),
            spent_gpu_milli_ms=book.accounts.total(account).gpu_milli_ms,
        )


def _commit_start(book: Book, start: Start, now_ms: int, outcome: Outcome) -> None:
    life = book.life(start.job_id)
    job = life.job
    waiting = book.picture.queue.entries[job.number].waiting
    book.picture.dequeue(job.number)
    if start.task is None:
        life.queued = False
    else:
        life.pending = life.pending.without(start.task)
        life.queued = bool(life.pending)
        if life.pending:
            book.picture.enqueue(replace(waiting, tasks=life.pending))
    task = life.task(start.task)
    task.attempt += 1
    task.move_to(JobState.SCHEDULED)
    task.waited_ms += now_ms - task.since_ms
    task.start_ms = now_ms
    task.stop_why = ""
    if task.first_start_ms is None:
        task.first_start_ms = now_ms
    task.expected_ms = waiting.expected_ms
    suffix = "" if start.task is None else f"_{start.task}"
    allocation = Allocation(
        id=f"{job.id}{suffix}.{task.attempt}",
        job_id=job.id,
        task=start.task,
        attempt=task.attempt,
        placements=start.placements,
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
            waited_ms=task.waited_ms,
            preemptions=task.preemptions,
            backfilled=start.backfilled,
            protected=task.protected,
        )
    )
    book.set_timer(now_ms + limit_ms, LIMIT, allocation.id)
    book.queued_tasks -= 1
    gpu_milli = allocation.gpu_milli
    book.shares.hold(account_of(job.tenant, None), gpu_milli, now_ms)
    book.shares.hold(account_of(job.tenant, job.user), gpu_milli, now_ms)
    book.accounts.begin(allocation.id, now_ms)
    book.predictor.begin(job, now_ms)
    life.reason = None
    outcome.writes += [
        allocation,
        life.row(),
        EventRow(at_ms=now_ms, kind="scheduled", job_id=job.id, task=start.task),
    ]
    outcome.effects.append(StartOrder(allocation, job))


def _commit_eviction(book: Book, eviction: Eviction, now_ms: int, outcome: Outcome) -> None:
    stop(book, eviction.allocation_id, PREEMPTED, outcome)
    data = (("for", eviction.for_job_id), ("ground", eviction.ground))
    outcome.writes.append(
        EventRow(at_ms=now_ms, kind="evicting", job_id=eviction.job_id, data=data)
    )


def _set_tick(book: Book, now_ms: int) -> None:
    """Levels of attained service change while nothing happens, so look again in a while."""
    if book.policy.preemption is Preemption.FEEDBACK and len(book.picture.queue):
        tick_ms = now_ms + book.policy.feedback.tick_ms
        if book.tick_ms <= now_ms:
            book.tick_ms = tick_ms
            book.set_timer(tick_ms, TICK, "")


def _handle_timers(book: Book, now_ms: int, outcome: Outcome) -> None:
    for kind, name in book.due_timers(now_ms):
        if kind == TICK:
            book.changed = True
        elif kind == LIMIT:
            stop(book, name, TIMEOUT, outcome)
        elif name not in book.lives:
            continue
        elif kind == PROTECT:
            protect(book, book.lives[name], now_ms, outcome)
        else:
            clear(book, book.lives[name], kind, now_ms, outcome)


def _correct_expectations(book: Book, now_ms: int) -> None:
    """Jobs that run longer than expected are expected to run longer."""
    picture = book.picture
    while picture.ends and picture.ends[0][0] <= now_ms:
        running = picture.running[picture.ends[0][3]].running
        elapsed_ms = now_ms - running.allocation.start_ms
        total_ms = running.attained_ms + elapsed_ms
        expected_ms = book.predictor.exceed(running.job, total_ms, now_ms)
        end_ms = now_ms + max(1, expected_ms - total_ms)
        picture.revise(replace(running, expected_end_ms=end_ms, overrun=True))
