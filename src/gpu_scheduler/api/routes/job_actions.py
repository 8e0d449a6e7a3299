"""Do something with a job that exists: change, hold, release, reprioritise, retry, cancel."""

from __future__ import annotations

from typing import Any

import msgspec

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.operations import V1, Operation, Parameter, boolean_parameter
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.routes.job_views import JobViews, task_state
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    Hold,
    Release,
    Reprioritise,
    Retry,
    Update,
)
from gpu_scheduler.model.errors import InvalidRequest, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState, check_tasks_exist, display_name, parse_priority
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.answers import Changed, JobForm, Retried, TaskChanged
from gpu_scheduler.wire.job_reader import read_patch
from gpu_scheduler.wire.jobs import JobPatch, PriorityRequest, read_tasks

_PATCH = msgspec.json.Decoder(JobPatch)
_PRIORITY = msgspec.json.Decoder(PriorityRequest)


async def update(context: Context, request: Request) -> Response:
    """Change a job that has not started."""
    row = _whole(context, request)
    asked = await request.read(_PATCH, context.settings.bounds.body_bytes)
    changes = dict(read_patch(asked, row.job))
    if row.state in ENDED:
        raise WrongState(
            f"{display_name(row.job.id)} is {row.state}; only a pending job can be changed"
        )
    if changes:
        await context.service.apply(_change(row.job.id, changes), request.caller)
    row, _ = context.find_job(request)
    return json_response(JobViews(context.service, request.caller).job(row))


def _change(job_id: str, changes: dict[str, Any]) -> Command:
    """One message, so that all is done or nothing; what was started can still be held."""
    if changes.keys() == {"hold"}:
        return Hold(job_id) if changes["hold"] else Release(job_id)
    return Update(job_id, tuple(changes.items()))


async def hold_job(context: Context, request: Request) -> Response:
    """Keep a job from starting."""
    row = _whole(context, request)
    return await _changed(context, request, Hold(row.job.id), "held", "the job will not start")


async def release_job(context: Context, request: Request) -> Response:
    """Let a held job start."""
    row = _whole(context, request)
    _expect_living(row, "released")
    return await _changed(context, request, Release(row.job.id), "pending", "the job waits again")


async def retry_job(context: Context, request: Request) -> Response:
    """Let a failed or cancelled job wait again; of an array, the tasks that failed."""
    query = context.parse_query(request, "cancelled")
    row = _whole_job(context, request)
    store = context.service.store
    launch = store.launch(row.job.id)
    if launch is not None and launch.captured and store.environment(launch.captured) is None:
        raise WrongState(
            f"{display_name(row.job.id)} cannot be retried: its captured environment was deleted "
            "(retention.environments_days); submit the job again"
        )
    message = Retry(row.job.id, cancelled=query.flag("cancelled"))
    outcome = await context.service.apply(message, request.caller)
    return json_response(_retried(context.find_job(request)[0], outcome.retried))


def _retried(row: JobRow, tasks: IntervalSet | None) -> Retried:
    """What waits again; of an array which tasks, and how many cancelled ones do not.

    Which tasks is not known any more when the request is a repetition.
    """
    left = 0
    if row.job.array is None:
        told = "the job waits again"
    else:
        left = len(dict(row.tasks).get(JobState.CANCELLED, ()))
        told = "tasks of the array wait again"
        if tasks is not None:
            told = f"tasks of the array that wait again: {len(tasks)}"
        if left:
            told += f"; cancelled ones that do not: {left}"
    return Retried(
        job_id=row.job.id,
        status=JobState.PENDING,
        message=told,
        tasks=None if tasks is None else str(tasks),
        left=left,
    )


async def reprioritise(context: Context, request: Request) -> Response:
    """Give a job another place in the order."""
    row = _whole(context, request)
    asked = await request.read(_PRIORITY, context.settings.bounds.body_bytes)
    priority = parse_priority(asked.priority)
    _expect_living(row, "reprioritised")
    message = Reprioritise(row.job.id, priority)
    return await _changed(context, request, message, row.state.value, f"priority is now {priority}")


async def cancel(context: Context, request: Request) -> Response:
    """End a job, a task, or some tasks of an array."""
    return json_response(await _cancelled(context, request))


async def cancel_task(context: Context, request: Request) -> Response:
    """The same, for who calls jobs tasks."""
    done = await _cancelled(context, request)
    return json_response(
        TaskChanged(
            task_id=done.job_id, job_id=done.job_id, status=done.status, message=done.message
        )
    )


async def _cancelled(context: Context, request: Request) -> Changed:
    row, task = context.find_job(request)
    query = context.parse_query(request, "tasks")
    tasks = None if task is None else IntervalSet.of([task])
    if chosen := query.text("tasks"):
        if task is not None:
            raise InvalidRequest("the path names a task, and the query names tasks; name one")
        tasks = read_tasks(chosen)
        check_tasks_exist(row.job, tasks)
    if row.state in ENDED or (task is not None and task_state(row, task) in ENDED):
        ended = row.state if task is None else task_state(row, task)
        if ended is not JobState.CANCELLED:
            raise WrongState(f"{display_name(request.params['job_id'])} is already {ended}")
    else:
        await context.service.apply(Cancel(row.job.id, tasks), request.caller)
    row, _ = context.find_job(request)
    state = row.state if task is None else task_state(row, task)
    is_over = state in ENDED
    name = row.job.id if task is None else f"{row.job.id}_{task}"
    return Changed(
        job_id=name,
        status="cancelled" if is_over else "cancelling",
        message="Job cancelled" if is_over else "Job is being stopped",
    )


def _whole(context: Context, request: Request) -> JobRow:
    context.parse_query(request)
    return _whole_job(context, request)


def _whole_job(context: Context, request: Request) -> JobRow:
    row, task = context.find_job(request)
    if task is not None:
        raise InvalidRequest(
            f"this can be done only with the whole of {display_name(row.job.id)}, not with one task"
        )
    return row


def _expect_living(row: JobRow, done: str) -> None:
    if row.state in ENDED:
        raise WrongState(f"{display_name(row.job.id)} is already {row.state} and cannot be {done}")


async def _changed(
    context: Context, request: Request, message: Command, status: str, told: str
) -> Response:
    await context.service.apply(message, request.caller)
    row, _ = context.find_job(request)
    return json_response(Changed(job_id=row.job.id, status=status, message=told))


_JOB = f"{V1}/jobs/{{job_id}}"
_ERRORS = (403, 404, 409, 503)
OPERATIONS = (
    Operation(
        method="PATCH",
        path=_JOB,
        handler=update,
        name="update_job",
        summary="Change a job while it waits.",
        tag="jobs",
        body=JobPatch,
        response=JobForm,
        errors=(*_ERRORS, 413, 415, 422),
        example={"priority": 2000, "max_runtime_minutes": 60},
    ),
    Operation(
        method="DELETE",
        path=_JOB,
        handler=cancel,
        name="cancel_job",
        summary="Cancel a job, a task (12_4), or some tasks of an array.",
        tag="jobs",
        response=Changed,
        query=(Parameter(name="tasks", description="Only these tasks, as in 1-3,7."),),
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_JOB}/hold",
        handler=hold_job,
        name="hold_job",
        summary="Keep a waiting job from starting.",
        tag="jobs",
        response=Changed,
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_JOB}/release",
        handler=release_job,
        name="release_job",
        summary="Let a held job start.",
        tag="jobs",
        response=Changed,
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_JOB}/retry",
        handler=retry_job,
        name="retry_job",
        summary="Let a failed or cancelled job wait again; of an array, the tasks that failed.",
        tag="jobs",
        response=Retried,
        query=(boolean_parameter("cancelled", "Of an array also the tasks that were cancelled."),),
        errors=_ERRORS,
    ),
    Operation(
        method="POST",
        path=f"{_JOB}/priority",
        handler=reprioritise,
        name="reprioritise_job",
        summary="Give a waiting job another priority.",
        tag="jobs",
        body=PriorityRequest,
        response=Changed,
        errors=(*_ERRORS, 413, 415),
        example={"priority": 1500},
    ),
    Operation(
        method="DELETE",
        path=f"{V1}/tasks/{{job_id}}",
        handler=cancel_task,
        name="cancel_task",
        summary="Cancel a job in the short form.",
        tag="tasks",
        response=TaskChanged,
        query=(Parameter(name="tasks", description="Only these tasks of an array."),),
        errors=_ERRORS,
    ),
)
