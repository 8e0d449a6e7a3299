"""Rebuild the control state from the store, after a start or a failed commit.

Nothing is written or ordered here. Which jobs really run is reconciled later, when the agents
connect and report.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import groupby
from operator import attrgetter

from gpu_scheduler.control.gang_commit import is_elastic
from gpu_scheduler.control.job_record import (
    HELD,
    STORED_FIELDS,
    JobRecord,
    TaskRecord,
    paused_until,
)
from gpu_scheduler.control.jobs.dependencies import wait_for_job, waits_for
from gpu_scheduler.control.jobs.queueing import (
    BACKOFF,
    begin_estimate,
    queue_if_ready,
    wait_for_begin,
)
from gpu_scheduler.control.jobs.submit import NO_NODE, OWN, queue_alike, why_never
from gpu_scheduler.control.nodes.admin import set_drain_timer
from gpu_scheduler.control.scheduling.cycle import (
    project_usage,
    restore_reservations,
    set_attempt_timers,
)
from gpu_scheduler.control.scheduling.reservation_commands import keep
from gpu_scheduler.control.state import ControlState, EndedJob
from gpu_scheduler.engine.arrivals import MOST_RECENT, MOST_REQUESTS
from gpu_scheduler.engine.policy import Ranking
from gpu_scheduler.ledger.decayed_usage import DecayedUsage
from gpu_scheduler.ledger.usage import UsageTotals, WeeklyUsage
from gpu_scheduler.model.cluster_snapshot import Running, Waiting
from gpu_scheduler.model.job import ENDED, Job, JobState
from gpu_scheduler.model.measurements import HOUR_MS
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.job_columns import copy_factory
from gpu_scheduler.store.rows import JobRow, TaskRow

Verdicts = dict[tuple[tuple[Request, ...], int, bool], Reason | None]
"""Why no node could ever run jobs with these members, minimum and rack rule."""
LEARNT_FROM = 5_000
"""How many of the last ended jobs the predictor learns from."""
CALIBRATED_FROM = 3_000
"""How many of the last estimates whose jobs have started calibrate the ranges of new ones."""


def restore(state: ControlState, store: Store, now_ms: int) -> None:
    """Fill an empty state, of which only the calendar is set."""
    calendar_ms = state.calendar_ms(now_ms)
    state.next_number = store.next_number()
    for tenant in store.tenants():
        state.set_tenant(tenant)
    for token in store.tokens():
        state.tokens[token.id] = token
        state.token_ids[token.secret_hash] = token.id
    state.node_keys.keep(*store.identities())
    state.cluster.set_pools(store.pools())
    for node in store.nodes():
        # An online node gets no work until its agent has reconnected.
        is_online = node.state is NodeState.ONLINE
        state.cluster.set_node(replace(node, state=NodeState.SUSPECT) if is_online else node)
        set_drain_timer(state, node)
    for reservation in store.advance_reservations():
        keep(state, reservation)
        if reservation.start_ms <= calendar_ms and reservation.over_ms is None:
            state.begun_advance_reservations[reservation.id] = None
    for service in store.services():
        state.services[service.id] = service
        state.services_to_reconcile[service.id] = None
        state.next_number = max(state.next_number, service.number + 1)
    state.estimates = {row.job_id: row for row in store.estimates()}
    for estimate in reversed(store.last_estimates(CALIBRATED_FROM)):
        begin_estimate(state, estimate)
        state.start_ranges.end(estimate.job_id, estimate.start_ms or 0)
    for estimate in state.estimates.values():
        begin_estimate(state, estimate)
    _restore_ledger(state, store)
    _restore_gpu_meter(state, store, now_ms)
    ended = store.recently_ended(LEARNT_FROM)
    _learn(state, ended)
    with _no_collector():
        live = store.live_jobs()
        _restore_arrivals(state, ended, live)
        runs = [_Run(rows) for rows in similar_rows(live, calendar_ms)]
        for run in runs:
            _restore_run(state, run, store, now_ms)
        for allocation in store.allocations():
            _restore_running(state, allocation, now_ms)
        verdicts: Verdicts = {}
        for run in runs:
            _restore_queued(state, run, verdicts, now_ms)
    restore_reservations(state, store, now_ms)
    state.changed = True


@contextmanager
def _no_collector() -> Iterator[None]:
    """Pause the garbage collector, which would scan all new objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True, slots=True)
class StoredJob:
    """An ended job as it is stored, with what its record needs besides its own row."""

    row: JobRow
    tasks: list[TaskRow]
    last_members: dict[int | None, int]


def read_ended(store: Store, job_ids: Iterable[str]) -> list[StoredJob]:
    """Read the ended jobs with these ids, and their dependencies that were not met.

    Only reads, so that it may run in another thread than the one that owns the state.
    """
    found: dict[str, StoredJob] = {}
    for job_id in job_ids:
        if (row := _read_job(store, job_id, found)) is not None:
            for dependency in row.job.dependencies:
                if dependency.job_id not in row.met:
                    _read_job(store, dependency.job_id, found)
    return list(found.values())


def _read_job(store: Store, job_id: str, found: dict[str, StoredJob]) -> JobRow | None:
    """Add one ended job to those that were found."""
    row = store.job(job_id)
    if row is None or row.state not in ENDED:
        return None
    if job_id not in found:
        found[job_id] = _stored_job(store, row)
    return row


def recall(state: ControlState, stored: StoredJob) -> None:
    """Add an ended job to the state, so that it can be retried or depended on."""
    row, job = stored.row, stored.row.job
    if state.knows(job.id):
        return
    record = _record_of(state, stored)
    record.end_ms = row.end_ms
    if job.hold:
        record.wait_on(HELD, Reason(ReasonCode.HELD))
    for dependency in job.dependencies:
        if dependency.job_id not in row.met:
            record.wait_on(dependency, waits_for(dependency))
    kept = None if row.state is JobState.COMPLETED else record
    state.ended[job.id] = EndedJob(row.state, job.user, job.tenant, kept)
    if len(state.ended) > state.limits.remembered_ends:
        state.ended.popitem(last=False)


def _restore_ledger(state: ControlState, store: Store) -> None:
    limits = state.limits
    state.decayed_usage = DecayedUsage.from_rows(
        (
            (row.tenant, row.user, row.usage, row.recent, row.rate, row.as_of_ms)
            for row in store.shares()
        ),
        half_life_ms=limits.usage_half_life_ms,
        recent_half_life_ms=limits.recent_half_life_ms,
    )
    state.weekly_usage = WeeklyUsage.from_rows(
        (row.tenant, row.user, row.week_ms, row.gpu_milli_ms) for row in store.week_usage()
    )
    state.usage_totals = UsageTotals.from_rows(
        ((row.period_ms, row.tenant, row.user, row.totals) for row in store.usage()),
        ((allocation.id, allocation.start_ms) for allocation in store.allocations()),
        period=state.usage_totals.period,
    )


def _restore_gpu_meter(state: ControlState, store: Store, now_ms: int) -> None:
    """Restore the sums; idle and memory checks start again."""
    held = {allocation.id: allocation.job_id for allocation in store.allocations()}
    rows = [
        row
        for job_id in dict.fromkeys(held.values())
        for row in store.attempt_measures(job_id)
        if row.allocation_id in held
    ]
    state.gpu_meter.recall(rows, store.device_hours(now_ms - now_ms % HOUR_MS, now_ms + 1))


def _restore_arrivals(state: ControlState, ended: list[JobRow], live: list[JobRow]) -> None:
    """Note the last submissions that were queued again."""
    rows = [row for row in (*ended, *live) if row.since_ms or row.first_start_ms is not None]
    if state.policy.ranking is Ranking.BALANCE:
        for row in sorted(nlargest(MOST_REQUESTS, rows, key=_submission), key=_submission):
            state.note_request(row.job)
    for row in sorted(nlargest(MOST_RECENT, rows, key=_submission), key=_submission):
        job = row.job
        tasks = None if job.array is None else job.array.tasks
        expected_ms = row.expected_ms or state.predictor.expect(job, job.submit_ms)
        state.recent_arrivals.note(
            Waiting(job=job, expected_ms=expected_ms, tasks=tasks, since_ms=job.submit_ms)
        )


def _submission(row: JobRow) -> tuple[int, int]:
    return row.job.submit_ms, row.job.number


def _learn(state: ControlState, ended: list[JobRow]) -> None:
    """Teach the predictor the last ended jobs, in the order of their ends."""
    for row in reversed(ended):
        if row.start_ms is None or row.end_ms is None or row.stop_why:
            continue
        if row.job.array is not None or row.job.service:
            # The row of an array spans all its tasks; a service has no typical run time.
            continue
        if row.state in {JobState.COMPLETED, JobState.FAILED}:
            run_ms = row.attained_ms + max(0, row.end_ms - row.start_ms)
            state.predictor.begin(row.job, row.start_ms)
            state.predictor.end(row.job, run_ms, row.end_ms)
            state.note_service(row.job, run_ms, row.end_ms)


class _Run:
    """Rows that are restored together: a single one, or similar plain jobs."""

    __slots__ = ("records", "rows")

    def __init__(self, rows: list[JobRow]) -> None:
        self.rows = rows
        self.records: list[JobRecord] = []


def _restore_run(state: ControlState, run: _Run, store: Store, now_ms: int) -> None:
    if len(run.rows) == 1:
        _restore_record(state, run.rows[0], store, now_ms)
        return
    first = run.rows[0]
    jobs: Iterable[Job] = (row.job for row in run.rows)
    members = state.shared_members(first.job.members)
    if members is not first.job.members:
        own = copy_factory(replace(first.job, members=members), OWN)
        jobs = (own(job.id, job.number, job.name, job.command) for job in jobs)
    record = JobRecord(first.job)
    record.waited_ms = first.waited_ms
    record.since_ms = first.since_ms
    new_record = copy_factory(record, ("job", "expected_ms"))
    records = state.jobs
    for job, row in zip(jobs, run.rows, strict=True):
        records[job.id] = found = new_record(job, row.expected_ms)
        run.records.append(found)
    state.count_queued(first.job, len(run.rows))


def _restore_queued(state: ControlState, run: _Run, verdicts: Verdicts, now_ms: int) -> None:
    """Queue the jobs that were queued."""
    records = run.records or [state.jobs[run.rows[0].job.id]]
    by_id = state.cluster.index.by_id
    if len(records) == 1 or not by_id or _why_never(state, records[0].job, verdicts) is not None:
        for record, row in zip(records, run.rows, strict=True):
            _restore_waiting(state, record, row, verdicts, now_ms)
        return
    waited_ms = records[0].waited_ms + max(0, now_ms - records[0].since_ms)
    for record in records:
        record.waited_ms = waited_ms
    queue_alike(state, records, now_ms)


def similar_rows(rows: list[JobRow], calendar_ms: int) -> Iterator[list[JobRow]]:
    """Rows in their order: similar plain jobs in one list, all others alone."""
    for is_plain, same in groupby(rows, key=lambda row: _is_plain(row, calendar_ms)):
        if is_plain:
            for _, alike in groupby(same, key=_queued_together):
                yield list(alike)
        else:
            for row in same:
                yield [row]


def _is_plain(row: JobRow, calendar_ms: int) -> bool:
    """Tell whether the job is queued, has never started, and has no obstacles."""
    job = row.job
    return bool(
        row.state is JobState.PENDING
        and row.since_ms
        and row.expected_ms
        and not row.attempt
        and not row.protected
        and not row.resume_ms
        and job.array is None
        and not job.hold
        and not job.dependencies
        and job.begin_ms <= calendar_ms
    )


_in_common = attrgetter(*(name for name in Job.__slots__ if name not in {*OWN, "members"}))


def _queued_together(row: JobRow) -> tuple[object, ...]:
    """What must be equal for jobs to be queued together."""
    return row.job.members, row.waited_ms, row.since_ms, _in_common(row.job)


def _restore_record(state: ControlState, row: JobRow, store: Store, now_ms: int) -> None:
    record = _record_of(state, _stored_job(store, row))
    job = record.job
    state.jobs[job.id] = record
    if job.hold:
        record.wait_on(HELD, Reason(ReasonCode.HELD))
    wait_for_begin(state, record, now_ms)
    for dependency in job.dependencies:
        if dependency.job_id not in row.met:
            wait_for_job(state, record, dependency)
    waiting = int(record.state is JobState.PENDING)
    if job.array is not None:
        waiting = len(record.pending.union(record.paused))
    state.count_queued(job, waiting)
    if row.protected:
        state.protected[job.id] = None
    only = record.only_task
    if only is not None and only.resume_ms:
        record.wait_on(BACKOFF, paused_until(only.resume_ms))
        state.set_timer(only.resume_ms, BACKOFF, job.id)
    for number, task in record.tasks.items():
        if task.resume_ms:
            state.set_timer(task.resume_ms, BACKOFF, job.id, number)


def _stored_job(store: Store, row: JobRow) -> StoredJob:
    """Read what the record of a job needs besides its row."""
    job = row.job
    tasks = store.tasks(job.id) if job.array is not None else []
    last_members: dict[int | None, int] = {}
    if is_elastic(job):
        # By task, how many members the last ended attempt had.
        last_members = {one.task: len(one.placements) for one in store.attempts(job.id)}
    return StoredJob(row, tasks, last_members)


def _record_of(state: ControlState, stored: StoredJob) -> JobRecord:
    """The record of a stored job."""
    job = stored.row.job
    members = state.shared_members(job.members)
    if members is not job.members:
        job = replace(job, members=members)
    record = JobRecord(job)
    _fill(record, stored.row, stored.tasks)
    # The number of members at the last start; a retried task that had ended has none.
    only = record.only_task
    for number, task in record.tasks.items() if only is None else [(None, only)]:
        if task.start_ms is not None and number in stored.last_members:
            task.members = stored.last_members[number]
    return record


def _fill(record: JobRecord, row: JobRow, tasks: list[TaskRow]) -> None:
    """Fill a record from its row and the rows of its tasks."""
    record.waited_ms = row.waited_ms
    record.since_ms = row.since_ms
    record.expected_ms = row.expected_ms
    record.image_digest = row.image_digest
    if record.job.array is None:
        if row.attempt or row.protected or row.state is not JobState.PENDING:
            _fill_task(record.task(None), row)
        return
    record.first_start_ms = row.first_start_ms
    states = dict(row.tasks)
    record.pending = states.pop(JobState.PENDING, record.pending.minus(record.pending))
    record.states = {state: numbers for state, numbers in states.items() if state in ENDED}
    for task_row in tasks:
        record.last_attempt = max(record.last_attempt, task_row.attempt)
        number = task_row.task
        if any(number in numbers for numbers in record.states.values()):
            continue  # the task was cancelled while it waited; only the row of the array says so
        if task_row.state not in ENDED:
            _fill_task(record.task(number), task_row)
            if task_row.resume_ms:
                record.pending = record.pending.without(number)
        elif number in record.pending:
            # It had ended and was retried: attempt numbers continue.
            record.task(number).attempt = task_row.attempt


def _fill_task(task: TaskRecord, row: JobRow | TaskRow) -> None:
    for name in STORED_FIELDS:
        setattr(task, name, getattr(row, name))
    task.waited_ms = task.clock_ms = row.waited_ms
    task.most_members = row.most_members if isinstance(row, JobRow) else 0


def _restore_running(state: ControlState, allocation: Allocation, now_ms: int) -> None:
    record = state.jobs[allocation.job_id]
    task = record.task(allocation.task)
    task.allocation_id = allocation.id
    state.by_allocation[allocation.id] = (record, allocation.task)
    job = record.job
    expected_ms = ENDLESS_MS if job.service else record.expected_ms
    expected_ms = expected_ms or state.predictor.expect(job, allocation.start_ms)
    limit_ms = state.cluster.limit_ms(job)
    state.cluster.start(
        Running(
            job=job,
            allocation=allocation,
            expected_end_ms=max(
                now_ms + 1, allocation.start_ms + max(1, expected_ms - task.attained_ms)
            ),
            limit_end_ms=allocation.start_ms + limit_ms,
            checkpoint_ms=task.saved_ms,
            attained_ms=task.attained_ms,
            served_ms=task.served_ms,
            waited_ms=task.waited_ms,
            preemptions=task.preemptions,
            stopping=bool(task.stop_why),
            protected=task.protected,
        )
    )
    set_attempt_timers(state, allocation, limit_ms, now_ms)
    project_usage(state, allocation)
    task.members = len(allocation.placements)
    state.predictor.begin(job, allocation.start_ms)


def _why_never(state: ControlState, job: Job, verdicts: Verdicts) -> Reason | None:
    """Like `why_never`, computed once for equal requests."""
    key = (job.members, job.min_members, job.same_rack)
    if key not in verdicts:
        verdicts[key] = why_never(state, job)
    return verdicts[key]


def _restore_waiting(
    state: ControlState, record: JobRecord, row: JobRow, verdicts: Verdicts, now_ms: int
) -> None:
    """Queue a job that was queued, with its waiting time."""
    if record.job.array is None and record.state is not JobState.PENDING:
        return
    if row.since_ms:
        record.waited_ms += max(0, now_ms - row.since_ms)
    missing = _why_never(state, record.job, verdicts) if state.cluster.index.by_id else None
    if missing is not None or not state.cluster.index.by_id:
        state.unplaced[record.job.id] = None
    if missing is not None:
        record.wait_on(NO_NODE, missing)
    queue_if_ready(state, record, now_ms)
