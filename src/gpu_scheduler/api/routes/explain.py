"""Answer why a job waits, where it stands, and when it should start and end; or how it ended."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.expected_start import (
    NOTHING,
    ExpectedTime,
    end_of_queued,
    end_of_running,
    forecast_start,
)
from gpu_scheduler.api.explainer import sentence
from gpu_scheduler.api.ha.gate import note_stale
from gpu_scheduler.api.http.operations import V1, Operation, integer_parameter
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.routes.cluster import troubles
from gpu_scheduler.api.routes.job_views import task_state
from gpu_scheduler.ledger.report import Judgement, judge
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, HOLDING, JobState
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.store.rows import JobRow, TaskRow
from gpu_scheduler.wire.answers import Explanation
from gpu_scheduler.wire.times import write_time


async def explain_job(context: Context, request: Request) -> Response:
    """Why a job waits (or how it ended), and when it should start; of others only when."""
    row, task = context.find_known_job(request)
    context.parse_query(request)
    state = row.state if task is None else task_state(row, task)
    job = row.job
    explainer = context.explainer
    form = Explanation(
        job_id=job.id if task is None else f"{job.id}_{task}",
        state=state.value,
        reason=row.reason,
        code=state.value,
        position=None,
        expected_start=None,
        expected_end=None,
    )
    _note_gap(context, row)
    if state in {JobState.PENDING, JobState.PREEMPTED}:
        reason = explainer.reason(job.id)
        code, told = sentence(reason)
        form.code = code or "pending"
        form.reason = told or row.reason or "waiting for its turn"
        form.details = {} if reason is None else dict(reason.data)
        if reason is not None and reason.code is ReasonCode.RESOURCES:
            form.details["gpus"] = troubles(context)
        form.position = explainer.position(job.number)
        start = forecast_start(context.service, explainer, job.id)
        form.expected_start, form.basis = write_time(start.at_ms), start.basis
        form.start_unknown = start.why_not
        _note_end(form, _end_if_started(context, row, start))
    elif state in HOLDING:
        start_ms = row.start_ms
        code, told = sentence(None if job.array else explainer.reason(job.id))
        form.code, form.reason = code or form.code, told or row.reason
        if job.array is not None:
            start_ms, form.reason = _of_tasks(context, row, task)
        form.reason = form.reason or f"{state.value} since {format_utc(start_ms or 0)}"
        _note_lost_node(form, explainer.lost_node(job.id, task))
        form.expected_start = write_time(start_ms)
        entry = context.service.core.state.cluster.running.get(f"{job.id}.{row.attempt}")
        if entry is not None:
            _note_end(form, end_of_running(context.service, entry.running))
            form.reason += _warned(context, entry.running.allocation.id)
    else:
        form.reason = row.reason or _how_it_ended(context, row, task)
    if not request.caller.may_see(job.user, job.tenant):
        form.reason, form.code, form.details = state.value, state.value, {}
        form.start_unknown = form.end_unknown = ""
    return json_response(form)


def _note_gap(context: Context, row: JobRow) -> None:
    """The cluster state must know the job, and where it is if it runs."""
    state = context.service.core.state
    is_placed = row.state not in HOLDING or row.job.array is not None
    is_placed = is_placed or f"{row.job.id}.{row.attempt}" in state.cluster.running
    if row.state not in ENDED and not (is_placed and row.job.id in state.jobs):
        note_stale(row.job.id)


def _note_lost_node(form: Explanation, reason: Reason | None) -> None:
    """Where a job is counts more than since when."""
    if reason is not None:
        form.code, form.reason = sentence(reason)
        form.details = dict(reason.data)


def _of_tasks(context: Context, row: JobRow, task: int | None) -> tuple[int | None, str]:
    """When an array, or one task of it, started; and how it stands with its tasks."""
    only = None if task is None else IntervalSet.of([task])
    rows = context.service.store.tasks(row.job.id, only=only)
    starts = [one.first_start_ms for one in rows if one.first_start_ms is not None]
    if task is not None or not starts:
        return (min(starts) if starts else None), ""
    counts = ", ".join(f"{len(numbers)} {state.value}" for state, numbers in row.tasks if numbers)
    told = f"running since {format_utc(min(starts))}; tasks: {counts}"
    if row.job.id in context.service.core.state.jobs and any(
        state is JobState.PENDING for state, numbers in row.tasks if numbers
    ):
        _, why = sentence(context.explainer.reason(row.job.id))
        told += f"; the next one: {why}" if why else ""
    return min(starts), told


def _warned(context: Context, allocation_id: str) -> str:
    """What a job was told that may end it, as long as that holds."""
    gauge = context.service.core.state.gpu_meter.attempts.get(allocation_id)
    text = "" if gauge is None else gauge.standing_warning
    return f"; warned: {text}" if text else ""


def _end_if_started(context: Context, row: JobRow, start: ExpectedTime) -> ExpectedTime:
    entry = context.service.core.state.cluster.queue.entries.get(row.job.number)
    if entry is None:
        return NOTHING
    return end_of_queued(context.explainer, entry, start)


def _note_end(form: Explanation, end: ExpectedTime) -> None:
    form.expected_end, form.end_unknown = write_time(end.at_ms), end.why_not


def _how_it_ended(context: Context, row: JobRow, task: int | None) -> str:
    if row.job.array is not None:
        return _how_tasks_ended(context, row, task)
    return _ending(row)


def _how_tasks_ended(context: Context, row: JobRow, task: int | None) -> str:
    """One task like a job; of all of them how many ended how, and the first that failed."""
    if task is not None:
        found = context.service.store.tasks(row.job.id, only=IntervalSet.of([task]))
        return _ending(found[0]) if found else task_state(row, task).value
    told = ", ".join(f"{len(numbers):,} {state.value}" for state, numbers in row.tasks if numbers)
    failed = dict(row.tasks).get(JobState.FAILED)
    if not failed:
        return f"tasks: {told}"
    first = context.service.store.tasks(row.job.id, only=IntervalSet.of([min(failed)]))
    return f"tasks: {told}; task {min(failed)} {_ending(first[0]) if first else 'failed'}"


def _ending(row: JobRow | TaskRow) -> str:
    if row.signal is not None:
        return f"{row.state.value} by signal {row.signal}"
    if row.exit_code is not None:
        return f"{row.state.value} with exit code {row.exit_code}"
    return row.state.value


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/explain",
        handler=explain_job,
        name="explain_job",
        summary="Why a job waits, where it stands, and when it should start and end.",
        tag="jobs",
        response=Explanation,
        errors=(404,),
    ),
)


# --- How well expected starts were kept.

DAY_MS = 86_400_000
DEFAULT_DAYS = 30


class JudgementForm(Struct):
    """Promises of one basis: `all`, reserved, forecast, rough or known.

    A promise is kept if the job starts within 10 % of the promised wait or within 10 minutes.
    """

    basis: str
    judged: int
    kept: int
    kept_percent: float | None
    late: int
    early: int
    median_error_seconds: float
    p90_error_seconds: float


class EstimatesForm(Struct):
    """Promises to jobs that started since then, and how many are still to be judged."""

    since: str | None
    open: int
    estimates: list[JudgementForm]


async def get_estimates(context: Context, request: Request) -> Response:
    """Judge the promises of the last days."""
    query = context.parse_query(request, "days")
    days = query.number("days", DEFAULT_DAYS, least=1, most=3650)
    since_ms = max(0, context.service.now_ms() - days * DAY_MS)
    store = context.service.store
    rows = await asyncio.to_thread(store.estimates, started_since_ms=since_ms)
    found = judge(
        (row.basis, row.made_ms, row.promised_ms, row.start_ms)
        for row in rows
        if row.start_ms is not None
    )
    waiting = len(context.service.core.state.estimates)
    forms = [_form(one) for one in found]
    return json_response(EstimatesForm(write_time(since_ms), waiting, forms))


def _form(one: Judgement) -> JudgementForm:
    return JudgementForm(
        basis=one.basis,
        judged=one.judged,
        kept=one.kept,
        kept_percent=one.kept_percent,
        late=one.late,
        early=one.early,
        median_error_seconds=one.median_error_ms / 1000,
        p90_error_seconds=one.p90_error_ms / 1000,
    )


ESTIMATES_OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/report/estimates",
        handler=get_estimates,
        name="get_estimates",
        summary="How well expected starts were kept, over the last days.",
        tag="cluster",
        response=EstimatesForm,
        query=(integer_parameter("days", "How far to look back; default 30.", least=1, most=3650),),
    ),
)
