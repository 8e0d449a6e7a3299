"""Submit jobs: one, many as an array or as lines, or a task (one command line); or validate them.

Jobs of one request that differ only in name and command are read once and submitted as a series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.expected_times import expected_times_of_new
from gpu_scheduler.api.http.errors import TooLarge, bad_body
from gpu_scheduler.api.http.openapi import Router
from gpu_scheduler.api.http.request import (
    JSON,
    NDJSON,
    Request,
    Response,
    check_keys,
    check_keys_of_all,
    decode,
    json_response,
)
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.submit import cautions
from gpu_scheduler.control.messages import Submit, SubmitAll, SubmitSeries
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, SchedulerError
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.store.rows import EnvironmentRow
from gpu_scheduler.wire.job_reader import JobReader, Submission
from gpu_scheduler.wire.jobs import JobRequest, TaskRequest
from gpu_scheduler.wire.times import write_time


class Submitted(Struct):
    """One job was accepted and stored."""

    job_id: str
    status: str = "submitted"
    message: str = "Job submitted successfully"
    tasks: int = 1


class SubmittedMany(Struct):
    """All jobs of the request were accepted; ids in the order of the request."""

    job_ids: list[str]
    count: int
    status: str = "submitted"


class Validated(Struct):
    """Jobs would be accepted; nothing was stored. Times are those of the first job.

    `warnings` are reasons for which an accepted job would not start.
    """

    count: int
    tasks: int
    position: int | None = None
    expected_start: str | None = None
    basis: str = ""
    start_unknown: str = ""
    expected_end: str | None = None
    end_unknown: str = ""
    warnings: list[str] = []
    status: str = "valid"
    expected_start_earliest: str | None = None
    expected_start_latest: str | None = None


class TaskAccepted(Struct):
    """A task was accepted."""

    task_id: str
    status: str = "pending"


_JOB = msgspec.json.Decoder(JobRequest)
_OBJECTS = msgspec.json.Decoder(list[dict[str, Any]])
Item = TypeVar("Item")


_ERRORS = (403, 404, 409, 413, 415, 422, 503)
router = Router("jobs")


@router.operation(
    "POST",
    "/jobs",
    body=(JobRequest, list[JobRequest]),
    response=(Submitted, SubmittedMany),
    status=201,
    errors=_ERRORS,
    keyed=True,
    example={
        "name": "Training Job",
        "gpu_count": 4,
        "priority": 1000,
        "command": ["python", "train.py"],
        "args": ["--epochs", "100"],
        "cpu_cores": 16,
        "memory_mb": 64000,
        "max_runtime_minutes": 1440,
    },
)
async def submit_job(context: Context, request: Request) -> Response:
    """Submit a job (an object), or many at once (an array): all of them, or none."""
    request.expect_media(JSON, NDJSON)
    data = await request.body(context.settings.bounds.bulk_bytes)
    if request.media == NDJSON or data.lstrip()[:1] == b"[":
        return await _submit_many(context, request, data)
    if len(data) > context.settings.bounds.body_bytes:
        raise TooLarge(
            f"one job may have {context.settings.bounds.body_bytes} bytes and has {len(data)}"
        )
    command = _single(context, request.caller, decode(JobRequest, data))
    return await context.idempotency.run_once(request, data, command, job_submitted)


@router.operation(
    "POST",
    "/jobs/bulk",
    body=list[JobRequest],
    body_media=("application/json", "application/x-ndjson"),
    response=SubmittedMany,
    status=201,
    errors=_ERRORS,
    keyed=True,
    example=[{"command": ["python", "train.py", "--seed", "1"], "gpu_count": 1}],
)
async def submit_jobs(context: Context, request: Request) -> Response:
    """Submit many jobs, as an array or one per line: all of them, or none."""
    request.expect_media(JSON, NDJSON)
    data = await request.body(context.settings.bounds.bulk_bytes)
    return await _submit_many(context, request, data)


@router.operation(
    "POST",
    "/jobs/validate",
    body=(JobRequest, list[JobRequest]),
    body_media=("application/json", "application/x-ndjson"),
    response=Validated,
    errors=_ERRORS,
    example={"command": ["python", "train.py"], "gpu_count": 4},
)
async def validate_jobs(context: Context, request: Request) -> Response:
    """A dry run: check one job or many like a submission, and store nothing."""
    request.expect_media(JSON, NDJSON)
    data = await request.body(context.settings.bounds.bulk_bytes)
    context.parse_query(request)
    submissions: tuple[Submit | SubmitSeries, ...]
    if request.media == NDJSON or data.lstrip()[:1] == b"[":
        reader = reader_for(context, request.caller)
        most = context.settings.bounds.bulk_jobs
        submissions = _read_many(reader, data, most, lines=request.media == NDJSON)
    else:
        submissions = (
            submit_message(reader_for(context, request.caller).read(decode(JobRequest, data))),
        )
    outcome = await context.service.apply(SubmitAll(submissions, dry_run=True), request.caller)
    count = sum(submission.job_count for submission in submissions)
    return json_response(_validated(context, outcome, submissions, count))


def _validated(
    context: Context, outcome: Outcome, submissions: tuple[Submit | SubmitSeries, ...], count: int
) -> Validated:
    """Return the expected times of the first job, and warnings for all of them."""
    state = context.state
    expected = expected_times_of_new(context.explainer, outcome.jobs[0])
    warnings = dict.fromkeys(
        warning
        for submission, job in zip(submissions, outcome.jobs, strict=True)
        for warning in cautions(state, submission.job, job)
    )
    return Validated(
        count=count,
        tasks=sum(submission.job_count * submission.job.task_count for submission in submissions),
        position=expected.position,
        expected_start=write_time(expected.start.at_ms),
        basis=expected.start.basis,
        start_unknown=expected.start.why_not,
        expected_end=write_time(expected.end.at_ms),
        end_unknown=expected.end.why_not,
        warnings=list(warnings),
        expected_start_earliest=write_time(expected.start.earliest_ms),
        expected_start_latest=write_time(expected.start.latest_ms),
    )


@router.operation(
    "POST",
    "/tasks",
    tag="tasks",
    body=TaskRequest,
    response=TaskAccepted,
    status=201,
    errors=_ERRORS,
    keyed=True,
    example={"priority": "high", "gpu_count": 2, "command": "python train.py"},
)
async def submit_task(context: Context, request: Request) -> Response:
    """Submit a task: a job that is one command line, run by a shell."""
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    submission = reader_for(context, request.caller).read_task(decode(TaskRequest, data))
    command = submit_message(submission)
    return await context.idempotency.run_once(request, data, command, _task_submitted)


def _single(context: Context, caller: Caller, job: JobRequest) -> Submit | SubmitSeries:
    """Return the command for one job; the caller's cached reader reuses what it has in common."""
    tenant_id = job.tenant_id
    if job.begin_at is not None or job.deadline is not None or job.array is not None:
        # These depend on the current time, or are specific to the job.
        return submit_message(reader_for(context, caller).read(job))
    reader = context.readers.get(caller)
    if reader is None:
        reader = context.readers[caller] = reader_for(context, caller)
    alike, name, command = reader.read_similar(job)
    if alike.job.tenant != context.submit_tenant(caller, tenant_id):
        reader.clear_cache()
        job.name, job.command = name, list(command)
        alike, name, command = reader.read_similar(job)
    return SubmitSeries(alike.job, alike.launch, _environment(alike), (name,), (command,))


async def _submit_many(context: Context, request: Request, data: bytes) -> Response:
    reader = reader_for(context, request.caller)
    most = context.settings.bounds.bulk_jobs
    command = SubmitAll(_read_many(reader, data, most, lines=request.media == NDJSON))
    return await context.idempotency.run_once(request, data, command, _many_submitted)


def _read_many(
    reader: JobReader, data: bytes, most: int, *, lines: bool
) -> tuple[SubmitSeries, ...]:
    """Read all jobs of a request, in order."""
    if not lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # Fast, but its errors are not precise enough; the slow path below reports them.
            objects = _OBJECTS.decode(data)
            _check_count(len(objects), most)
            check_keys_of_all(data, objects)
            return _series(reader.read_json_object, objects)
    raws = _split(data, lines=lines)
    _check_count(len(raws), most)
    return _series(reader.read_similar, map(_decoded, count(), raws))


def _check_count(jobs: int, most: int) -> None:
    if not jobs:
        raise InvalidRequest("Invalid request body: the list has no jobs")
    if jobs > most:
        raise TooLarge(f"the request has {jobs} jobs, and at most {most} are accepted at once")


def _split(data: bytes, *, lines: bool) -> list[bytes]:
    if lines:
        return [line for line in data.split(b"\n") if line.strip()]
    # Keys are checked job by job, so that an error names the job.
    raws = decode(list[msgspec.Raw], data, checks_keys=False)
    return list(map(bytes, raws))


def _decoded(index: int, raw: bytes) -> JobRequest:
    try:
        read = _JOB.decode(raw)
        check_keys(raw, index)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise bad_body(problem, JobRequest, raw, index=index) from None
    except RecursionError:
        raise InvalidRequest(f"Invalid request body: job {index} is nested too deeply") from None
    return read


def _series(
    read: Callable[[Item], tuple[Submission, str, tuple[str, ...]]], requests: Iterable[Item]
) -> tuple[SubmitSeries, ...]:
    """Group consecutive jobs that are alike; each captured environment is sent once."""
    groups: list[tuple[Submission, list[str], list[tuple[str, ...]]]] = []
    names: list[str] = []
    commands: list[tuple[str, ...]] = []
    common = None
    for index, request in enumerate(requests):
        try:
            alike, name, command = read(request)
        except SchedulerError as error:
            error.index = index
            raise
        if alike is not common:
            common, names, commands = alike, [], []
            groups.append((common, names, commands))
        names.append(name)
        commands.append(command)
    environments: set[str] = set()
    series = []
    for alike, names, commands in groups:
        environment = _environment(alike) if alike.launch.captured not in environments else None
        environments.add(alike.launch.captured)
        series.append(
            SubmitSeries(alike.job, alike.launch, environment, tuple(names), tuple(commands))
        )
    return tuple(series)


def _environment(submission: Submission) -> EnvironmentRow | None:
    if submission.environment is None:
        return None
    return EnvironmentRow(submission.launch.captured, submission.environment)


def submit_message(submission: Submission) -> Submit:
    """Return the command that submits a job."""
    return Submit(submission.job, submission.launch, _environment(submission))


def reader_for(context: Context, caller: Caller) -> JobReader:
    """Return a job reader for a caller, if this server can run jobs as that user."""
    server_uid = context.settings.server_uid
    if server_uid not in {0, caller.uid}:
        raise Forbidden(
            f"this server does not run as root, so it accepts jobs only from its own user "
            f"(uid {server_uid}), and you are '{caller.user}' (uid {caller.uid}); start your own "
            f"server, or ask an admin for one that runs as root"
        )
    tenant_of = partial(context.submit_tenant, caller)
    return JobReader(caller, tenant_of, context.settings.runner)


def job_submitted(outcome: Outcome) -> Response:
    """Return the answer to the submission of one job."""
    job = outcome.jobs[0]
    return json_response(Submitted(job_id=job.id, tasks=job.task_count), status=201)


def _many_submitted(outcome: Outcome) -> Response:
    job_ids = [job.id for job in outcome.jobs]
    return json_response(SubmittedMany(job_ids=job_ids, count=len(job_ids)), status=201)


def _task_submitted(outcome: Outcome) -> Response:
    return json_response(TaskAccepted(task_id=outcome.jobs[0].id), status=201)
