"""The resource /jobs/ID/explain: why a job waits, its position and expected times, how it ended."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.expected_times import (
    Explainer,
    describe_reason,
    describe_run_time,
    expected_queued_end,
    expected_running_end,
    expected_start,
    within_limits,
)
from gpu_scheduler.api.ha.leadership_gate import note_stale
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.routes.cluster import device_problems
from gpu_scheduler.api.routes.job_views import (
    exit_text,
    first_failure_text,
    task_end_text,
    task_state,
)
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, HOLDING, Job, JobState
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import JobRow, TaskRow
from gpu_scheduler.wire.times import write_time


class Explanation(Struct):
    """Why a job waits, and its expected start.

    `basis` is the source of the start: reserved (it has a reservation), forecast, rough (by the
    work ahead of it), dependency (the expected end of other jobs) or known (a begin time, a retry
    pause, a new budget). A time is given only if it can be justified; otherwise `start_unknown` and
    `end_unknown` say why not. Four in five starts fall between `expected_start_earliest` and
    `expected_start_latest`. `expected_start_limit` is the start if all jobs before it use their
    full limits, `expected_start_after` the job whose end lets it start, and `expected_start_basis`
    what the run time of that job is based on. `preemption_risk` says how often such jobs were
    preempted lately, if that is often.
    """

    job_id: str
    state: str
    reason: str
    code: str
    position: int | None
    expected_start: str | None
    expected_end: str | None
    details: dict[str, Any] = {}
    basis: str = ""
    start_unknown: str = ""
    end_unknown: str = ""
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None
    expected_start_limit: str | None = None
    expected_start_after: str | None = None
    expected_start_basis: str = ""
    preemption_risk: str = ""


MINUTE_MS = 60_000
router = Router("jobs")


@router.operation("GET", "/jobs/{job_id}/explain", response=Explanation, errors=(404,))
async def explain_job(context: Context, request: Request) -> Response:
    """Why a job waits, its queue position, and its expected start and end."""
    row, task = await context.find_known_job(request)
    context.parse_query(request)
    state = row.state if task is None else task_state(row, task)
    job = row.job
    tasks = await _read_tasks(context, row, task, state)
    explainer = context.explainer
    form = Explanation(
        job_id=job.id if task is None else f"{job.id}_{task}",
        state=state.value,
        reason=row.reason,
        code=state.value,
        position=None,
        expected_start=None,
        expected_end=None,
        preemption_risk="" if state in ENDED else _risk_text(context, job),
    )
    _note_stale(context, row)
    if state in {JobState.PENDING, JobState.PREEMPTED}:
        reason = explainer.reason(job.id)
        code, text = describe_reason(reason)
        form.code = code or "pending"
        form.reason = text or row.reason or "waiting for its turn"
        form.reason += await _earlier_preemption(context, row, task)
        form.details = {} if reason is None else dict(reason.data)
        if reason is not None and reason.code is ReasonCode.RESOURCES:
            form.details["gpus"] = device_problems(context)
        _add_expected_times(explainer, job, form)
    elif state in HOLDING:
        start_ms = row.start_ms
        code, text = describe_reason(None if job.array else explainer.reason(job.id))
        form.code, form.reason = code or form.code, text or row.reason
        if job.array is not None:
            start_ms, form.reason = _task_progress(context, row, task, tasks)
            if task is None and form.reason:
                store = context.service.store
                failure = await asyncio.to_thread(first_failure_text, row, store)
                form.reason += f"; {failure}" if failure else ""
        form.reason = form.reason or f"{state.value} since {format_utc(start_ms or 0)}"
        now = explainer.running_reason(job.id, task)
        if now is not None:  # matters more than since when it runs
            (form.code, form.reason), form.details = describe_reason(now), dict(now.data)
        silent = explainer.suspect_node(job.id, task)
        if silent is not None:
            form.reason += (
                f"; node {silent.id} sends no heartbeats since {format_utc(silent.silent_ms)}: "
                "whether the job still runs is known once the node answers"
            )
        form.expected_start = write_time(start_ms)
        running = context.state.cluster.running.get(f"{job.id}.{row.attempt}")
        if running is not None:
            end = expected_running_end(context.service, running.running)
            form.expected_end, form.end_unknown = write_time(end.at_ms), end.why_not
            gauge = context.state.gpu_meter.attempts.get(running.running.allocation.id)
            if gauge is not None and gauge.active_warning:
                form.reason += f"; warned: {gauge.active_warning}"
    elif job.array is not None:
        describe = partial(_describe_task_ends, context, row, task)
        form.reason = row.reason or await asyncio.to_thread(describe)
    else:
        form.reason = row.reason or exit_text(row.state, row.exit_code, row.signal)
    if not request.caller.may_see(job.user, job.tenant):
        form.reason, form.code, form.details = state.value, state.value, {}
        form.start_unknown = form.end_unknown = form.expected_start_basis = ""
        form.expected_start_after, form.preemption_risk = None, ""
    return json_response(form)


def _risk_text(context: Context, job: Job) -> str:
    """How often jobs like this one were preempted lately; empty if seldom or unknown."""
    risk = context.state.preemption_risk.of(job)
    if risk is None:
        return ""
    return (
        f"{risk.preempted} of the last {risk.attempts} attempts of tenant {job.tenant} with this "
        f"priority were preempted, half of them within {-(-risk.half_within_ms // MINUTE_MS):,} min"
    )


async def _earlier_preemption(context: Context, row: JobRow, task: int | None) -> str:
    """Say who preempted the last attempt of a waiting job, and that it goes on by itself."""
    if not row.attempt or row.job.array is not None:
        return ""
    attempts = await asyncio.to_thread(context.service.store.attempts, row.job.id, task)
    if not attempts or attempts[-1].state is not JobState.PREEMPTED:
        return ""
    last = attempts[-1]
    return (
        f"; attempt {last.attempt} was {last.detail or 'preempted'} at {format_utc(last.end_ms)}, "
        "and the job resumes by itself"
    )


def _add_expected_times(explainer: Explainer, job: Job, form: Explanation) -> None:
    """Add the position and the expected start and end of a job that waits."""
    form.position = explainer.position(job.number)
    start = expected_start(explainer, job.id)
    form.expected_start, form.basis = write_time(start.at_ms), start.basis
    form.start_unknown = start.why_not
    form.expected_start_earliest = write_time(start.earliest_ms)
    entry = explainer.service.core.state.cluster.queue.entries.get(job.number)
    if entry is not None:
        limit_ms = explainer.limit_start_ms(job.number)
        form.expected_start_limit = write_time(limit_ms)
        start = within_limits(start, limit_ms)
        if start.after is not None:
            form.expected_start_after = start.after.id
            form.expected_start_basis = describe_run_time(explainer, start.after)
        end = expected_queued_end(explainer, entry, start)
        form.expected_end, form.end_unknown = write_time(end.at_ms), end.why_not
    form.expected_start_latest = write_time(start.latest_ms)


def _note_stale(context: Context, row: JobRow) -> None:
    """Note if the cluster state lacks the job, or the placement of a running one."""
    state = context.state
    is_placed = row.state not in HOLDING or row.job.array is not None
    is_placed = is_placed or f"{row.job.id}.{row.attempt}" in state.cluster.running
    if row.state not in ENDED and not (is_placed and row.job.id in state.jobs):
        note_stale(row.job.id)


async def _read_tasks(
    context: Context, row: JobRow, task: int | None, state: JobState
) -> list[TaskRow]:
    """Read the task of an array that is explained, in a thread."""
    if task is None or row.job.array is None or state not in HOLDING:
        return []
    only = IntervalSet.of([task])
    return await asyncio.to_thread(context.service.store.tasks, row.job.id, only=only)


def _task_progress(
    context: Context, row: JobRow, task: int | None, rows: list[TaskRow]
) -> tuple[int | None, str]:
    """Return when an array, or one task of it, started, and the progress of its tasks."""
    if task is not None:
        return (rows[0].first_start_ms if rows else None), ""
    if row.first_start_ms is None:
        return None, ""
    counts = ", ".join(f"{len(numbers)} {state.value}" for state, numbers in row.tasks if numbers)
    text = f"running since {format_utc(row.first_start_ms)}; tasks: {counts}"
    if row.job.id in context.state.jobs and any(
        state is JobState.PENDING for state, numbers in row.tasks if numbers
    ):
        _, why = describe_reason(context.explainer.reason(row.job.id))
        text += f"; the next one: {why}" if why else ""
    return row.first_start_ms, text


def _describe_task_ends(context: Context, row: JobRow, task: int | None) -> str:
    """Describe the end of one task; of an array, count the ends and name the first failure."""
    store = context.service.store
    if task is not None:
        return task_end_text(row, task, store)
    text = ", ".join(f"{len(numbers):,} {state.value}" for state, numbers in row.tasks if numbers)
    failure = first_failure_text(row, store)
    return f"tasks: {text}; {failure}" if failure else f"tasks: {text}"
