"""The resources /jobs, /tasks and /sweeps: list, show, change, hold, retry and cancel jobs.

/tasks is a smaller view of the same jobs: a command line, a status and an exit code. Submission is
in `submit`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.leadership_gate import note_stale
from gpu_scheduler.api.http.openapi import (
    Parameter,
    Router,
    boolean_parameter,
    integer_parameter,
)
from gpu_scheduler.api.http.request import Query, Request, Response, form_of, json_response
from gpu_scheduler.api.routes.job_views import (
    ArrayTask,
    AttemptForm,
    JobForm,
    attempt_form,
    attempt_id,
    fill_in_starts,
    job_views,
    last_attempt,
    places,
    states_of,
    task_form,
    task_state,
)
from gpu_scheduler.api.routes.submit import Submitted, job_submitted
from gpu_scheduler.control.messages import (
    Cancel,
    Command,
    CorrectUsage,
    Hold,
    Release,
    Reprioritise,
    Retry,
    Submit,
    Update,
)
from gpu_scheduler.ledger.units import HOUR_MS
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, UnknownThing, WrongState
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import (
    ENDED,
    HOLDING,
    JobState,
    check_tasks_exist,
    display_name,
    parse_priority,
)
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.store.interface import MAX_INT, JobQuery, JobVisibility, Store, SweepCount
from gpu_scheduler.store.rows import AttemptRow, EnvironmentRow, JobRow, TaskRow
from gpu_scheduler.wire.job_reader import SHELL, read_patch
from gpu_scheduler.wire.jobs import JobPatch, PriorityRequest, read_tasks
from gpu_scheduler.wire.times import read_time, write_time


class JobPage(Struct):
    """One page of the requested jobs; `total` counts all of them."""

    jobs: list[JobForm]
    total: int
    next_cursor: str | None = None


class AttemptList(Struct, omit_defaults=True):
    """The attempts, the first one first; of an array by task.

    Of an array with very many, `next_task` is the parameter `after` of the next page.
    """

    attempts: list[AttemptForm]
    next_task: int | None = None
    currency: str = ""


class ArrayTaskPage(Struct):
    """Tasks that have started, by number; `states` has all tasks."""

    job_id: str
    states: dict[str, str]
    tasks: list[ArrayTask]
    next_task: int | None = None


class Changed(Struct):
    """The result of a change to a job."""

    job_id: str
    status: str
    message: str


class Retried(Struct):
    """The result of a retry. `tasks` are the requeued tasks of an array, such as 0-3,7.

    `left` is the number of cancelled tasks that were not requeued.
    """

    job_id: str
    status: str
    message: str
    tasks: str | None = None
    left: int = 0


class TaskForm(Struct):
    """A job in the short form: pending, running, success or failed.

    A cancelled job is `failed` as well, and `cancelled`.
    """

    task_id: str
    status: str
    command: str
    priority: int
    gpu_count: float
    name: str = ""
    exit_code: int | None = None
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    reason: str = ""
    cancelled: bool = False


class TaskPage(Struct):
    """One page of the tasks."""

    tasks: list[TaskForm]
    total: int


class TaskChanged(Struct):
    """The result of a change to a task; `job_id` equals `task_id`, because a task is a job."""

    task_id: str
    job_id: str
    status: str
    message: str


class SweepForm(Struct):
    """Jobs that were submitted as one sweep; `states` counts them."""

    name: str
    user: str
    jobs: int
    states: dict[str, int]
    first_job_id: str
    last_job_id: str
    submitted_at: str | None


class SweepList(Struct):
    """The caller's own sweeps, the newest first."""

    sweeps: list[SweepForm]


SORTS = {
    "number": "number",
    "id": "number",
    "priority": "priority",
    "submitted_at": "submit_ms",
    "started_at": "start_ms",
    "ended_at": "end_ms",
    "name": "name",
    "user": "user",
    "tenant_id": "tenant",
    "state": "state",
}
HIDDEN_COLUMNS = frozenset({"name", "priority"})
DEFAULT_PAGE = 100
MOST_ATTEMPTS = 5_000
"""The attempts of an array in one answer."""


_LIST_QUERY = (
    Parameter(name="state", description="One or more states, with commas between them."),
    Parameter(name="tenant_id", description="Id or name of a tenant."),
    Parameter(name="user", description="Jobs of this user; @me for your own."),
    Parameter(name="name", description="Jobs with exactly this name."),
    Parameter(
        name="sort",
        description="Sort key; a leading - sorts in descending order. Default: -number.",
        schema={
            "type": "string",
            "enum": [sign + name for name in SORTS for sign in ("", "-")],
        },
    ),
    integer_parameter("limit", "How many jobs at most.", most=1000),
    integer_parameter("offset", "How many jobs to skip."),
    integer_parameter("cursor", "`next_cursor` of the page before."),
    boolean_parameter("archived", "Also jobs that were archived."),
    Parameter(name="since", description="Submitted at this time or later."),
    Parameter(name="ended_since", description="Ended at this time or later."),
    Parameter(name="ended_before", description="Ended before this time."),
    Parameter(name="sweep", description="Jobs of this sweep."),
)
_ERRORS = (403, 404, 409, 503)
MAX_RUN_SECONDS = 10 * 366 * 86_400
MAX_REASON = 500
router = Router("jobs")


@router.operation("GET", "/jobs", response=JobPage, query=_LIST_QUERY, errors=(404,))
async def list_jobs(context: Context, request: Request) -> Response:
    """List jobs, newest first; of other users only unfinished ones, without details."""
    query = context.parse_query(request, *(parameter.name for parameter in _LIST_QUERY))
    job_query = _job_query(context, request, query)
    rows, total = await asyncio.to_thread(_page, context.service.store, job_query)
    views = await job_views(context.service, request.caller, rows, context.settings.attach)
    more = len(rows) == job_query.limit and len(rows) > 0
    jobs = [views.job(row) for row in rows]
    fill_in_starts(context.explainer, rows, jobs)
    return json_response(
        JobPage(
            jobs=jobs,
            total=total,
            next_cursor=str(rows[-1].job.number) if more else None,
        )
    )


def _page(store: Store, query: JobQuery) -> tuple[list[JobRow], int]:
    """Read one page of jobs, and how many jobs there are on all pages."""
    return store.find_jobs(query), store.count_jobs(query)


@router.operation("GET", "/jobs/{job_id}", response=JobForm, errors=(404,))
async def get_job(context: Context, request: Request) -> Response:
    """One job, or one array task (12_4); of other users without details."""
    row, task = await context.find_known_job(request)
    context.parse_query(request)
    views = await job_views(context.service, request.caller, [row], context.settings.attach, task)
    form = views.job(row) if task is None else views.task(row, task)
    form.script = views.script(row)
    return json_response(form)


@router.operation(
    "GET",
    "/jobs/{job_id}/attempts",
    response=AttemptList,
    query=(
        integer_parameter("task", "Only of this task of an array."),
        integer_parameter("after", "Of an array: only of tasks after this one.", least=-1),
    ),
    errors=(403, 404),
)
async def list_attempts(context: Context, request: Request) -> Response:
    """All attempts of a job or task: where they ran and how they ended."""
    row, task = await context.find_job(request)
    query = context.parse_query(request, "task", "after")
    if task is None:
        task = query.optional("task")
    after = query.number("after", -1, least=-1)
    ended, rows, tasks, next_task = await asyncio.to_thread(
        _read_attempts, context.service.store, row, task, after
    )
    measured = {one.allocation_id: one for one in rows}
    attempts = []
    for one in ended:
        form = attempt_form(one, measured.get(one.allocation_id))
        _fill_in_cost(context, form, dict(one.gpu_models), one.start_ms, one.end_ms)
        attempts.append(form)
    attempts += _running_attempts(context, row, tasks)
    currency = context.settings.prices.first.currency
    return json_response(AttemptList(attempts, next_task, currency))


def _fill_in_cost(
    context: Context, form: AttemptForm, gpu_milli: dict[str, int], start_ms: int, end_ms: int
) -> None:
    """Add the GPU-hours of an attempt and their cost; a model without a price has none."""
    held_ms = max(0, end_ms - start_ms)
    form.gpu_hours = round(sum(gpu_milli.values()) * held_ms / (WHOLE_MILLI * HOUR_MS), 6)
    with suppress(UnknownThing):
        form.cost = context.settings.prices.of_gpus(gpu_milli, start_ms, start_ms + held_ms) / 10**6


class GpuReadings(Struct):
    """The readings of one GPU, one for each step; null where nothing was measured."""

    node: str
    index: int
    utilisation_percent: list[float | None]
    memory_used_mb: list[float | None]
    power_watts: list[float | None]
    temperature_c: list[float | None]


class ReadingsForm(Struct):
    """The readings of an attempt's GPUs; `step_seconds` grows with its run time."""

    attempt: int
    start: str | None
    step_seconds: float
    gpus: list[GpuReadings]


@router.operation(
    "GET",
    "/jobs/{job_id}/readings",
    response=ReadingsForm,
    query=(integer_parameter("attempt", "Of this attempt; default: the last one.", least=1),),
    errors=(403, 404),
)
async def get_readings(context: Context, request: Request) -> Response:
    """Load, memory, power and temperature of the GPUs of an attempt, from its start to its end.

    The server keeps them while it runs, of running attempts and of the last 500 that ended (of
    fewer if these held more than 2,000 GPUs).
    """
    row, task = await context.find_job(request)
    attempt = context.parse_query(request, "attempt").optional("attempt")
    if attempt is None:
        attempt = await asyncio.to_thread(last_attempt, context.service.store, row, task)
    name = attempt_id(row.job.id, task, attempt)
    curves = sorted(context.state.gpu_meter.curves.of(name).items())
    form = ReadingsForm(
        attempt=attempt,
        start=write_time(curves[0][1].start_ms) if curves else None,
        step_seconds=max((curve.step_ms for _, curve in curves), default=0) / 1000,
        gpus=[
            GpuReadings(
                node=node,
                index=index,
                utilisation_percent=curve.utilisation_percent.shown(),
                memory_used_mb=curve.memory_used_mb.shown(),
                power_watts=curve.power_watts.shown(),
                temperature_c=curve.temperature_c.shown(),
            )
            for (node, index), curve in curves
        ],
    )
    return json_response(form)


def _read_attempts(
    store: Store, row: JobRow, task: int | None, after: int
) -> tuple[list[AttemptRow], list[AttemptMeasure], list[TaskRow], int | None]:
    """Read a page of the ended attempts of a job or task, their measurements, and running tasks.

    An array can have a million tasks. The last value is the last task of the page, if there are
    more.
    """
    within = (after + 1, MAX_INT)
    ended = store.attempts(row.job.id, task, within=within, limit=MOST_ATTEMPTS + 1)
    next_task = None
    if row.job.array is not None and task is None and len(ended) > MOST_ATTEMPTS:
        # A page ends with a whole task.
        ended = [one for one in ended if one.task != ended[-1].task] or ended
        next_task = ended[-1].task
        within = (after + 1, MAX_INT if next_task is None else next_task)
    held = IntervalSet()
    for state, numbers in row.tasks:
        held = held.union(numbers) if state in HOLDING else held
    wanted = IntervalSet((within,) if task is None else ((task, task),))
    held = held.minus(held.minus(wanted))
    tasks = store.tasks(row.job.id, only=held) if held else []
    return ended, store.attempt_measures(row.job.id, task, within=within), tasks, next_task


def _running_attempts(context: Context, row: JobRow, tasks: list[TaskRow]) -> list[AttemptForm]:
    """Return the running attempts that are committed; `tasks` are those of an array."""
    job_id = row.job.id
    numbers: list[tuple[int | None, int, JobState]]
    if row.job.array is None:
        numbers = [(None, row.attempt, row.state)]
    else:
        numbers = [(t.task, t.attempt, t.state) for t in tasks]
    running = context.state.cluster.running
    attempts = []
    for number, attempt, state in numbers:
        if state not in HOLDING:
            continue
        name = attempt_id(job_id, number, attempt)
        entry = running.get(name)
        if entry is None:
            note_stale(name)
            continue
        allocation = entry.running.allocation
        form = AttemptForm(
            id=allocation.id,
            job_id=job_id,
            task=number,
            attempt=attempt,
            state=state.value,
            started_at=write_time(allocation.start_ms),
            ended_at=None,
            exit_code=None,
            signal=None,
            detail="",
            allocation=places(allocation.placements, number),
        )
        gpu_milli: dict[str, int] = {}
        for placement in allocation.placements:
            devices = context.state.cluster.index.resources(placement.node_id).node.devices
            models = {device.index: device.model for device in devices}
            for share in placement.devices:
                model = models.get(share.index, "")
                gpu_milli[model] = gpu_milli.get(model, 0) + share.share_milli
        now_ms = context.service.now_ms()
        _fill_in_cost(context, form, gpu_milli, allocation.start_ms, now_ms)
        attempts.append(form)
    return attempts


@router.operation(
    "GET",
    "/jobs/{job_id}/tasks",
    response=ArrayTaskPage,
    query=(
        integer_parameter("after", "After this task.", least=-1),
        integer_parameter("limit", "How many tasks at most.", least=1, most=1000),
    ),
    errors=(403, 404, 409),
)
async def list_array_tasks(context: Context, request: Request) -> Response:
    """The tasks of an array that have started."""
    row, _ = await context.find_job(request)
    query = context.parse_query(request, "after", "limit")
    limit = query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page)
    after = query.number("after", -1, least=-1)
    array = row.job.array
    if array is None:
        raise WrongState(f"{display_name(row.job.id)} is not an array, so it has no tasks")
    last = array.tasks.ranges[-1][1]
    only = IntervalSet(((after + 1, last),)) if after < last else IntervalSet()
    read = partial(context.service.store.tasks, row.job.id, only=only, limit=limit + 1)
    tasks = await asyncio.to_thread(read) if only else []
    page = tasks[:limit]
    return json_response(
        ArrayTaskPage(
            job_id=row.job.id,
            states=states_of(row),
            tasks=[task_form(task) for task in page],
            next_task=page[-1].task if len(tasks) > limit else None,
        )
    )


def _moment(query: Query, name: str) -> int | None:
    text = query.text(name)
    return read_time(text, name) if text else None


def _job_query(context: Context, request: Request, query: Query) -> JobQuery:
    sort = query.text("sort", "-number")
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise InvalidRequest(
            f"sort '{sort[:80]}' is not known; use one of {', '.join(sorted(SORTS))}, "
            "with - before it for the largest first"
        )
    name, sweep = query.text("name"), query.text("sweep")
    tenant = query.text("tenant_id")
    return JobQuery(
        states=_states(query.text("state")),
        tenant=context.resolve_tenant(tenant) if tenant else "",
        user=context.user_filter(request, query),
        name=name,
        since_ms=_moment(query, "since"),
        ended_since_ms=_moment(query, "ended_since"),
        ended_before_ms=_moment(query, "ended_before"),
        sort=column,
        descending=sort.startswith("-"),
        limit=query.number("limit", DEFAULT_PAGE, most=context.settings.bounds.page),
        offset=query.number("offset", 0),
        after_number=query.optional("cursor"),
        archived=query.flag("archived"),
        sweep=sweep,
        # Filtering or sorting by a hidden field would reveal it.
        visibility=job_visibility(
            request.caller, others=not (name or sweep) and column not in HIDDEN_COLUMNS
        ),
    )


def job_visibility(caller: Caller, *, others: bool) -> JobVisibility | None:
    """Return the jobs that a caller may list; None for an admin, who may list all."""
    if caller.is_admin:
        return None
    return JobVisibility(
        user=caller.user,
        within=caller.tenants if caller.confined else None,
        tenants=caller.administers,
        others=others,
    )


def _states(text: str) -> tuple[JobState, ...]:
    if not text:
        return ()
    known = {state.value: state for state in JobState}
    wanted = [part.strip() for part in text.split(",")]
    for name in wanted:
        if name not in known:
            raise InvalidRequest(
                f"state '{name[:80]}' is not known; use one or more of {', '.join(known)}"
            )
    return tuple(known[name] for name in dict.fromkeys(wanted))


# The resource /tasks

TASK_STATES = {
    JobState.PENDING: "pending",
    JobState.SCHEDULED: "pending",
    JobState.PREEMPTED: "pending",
    JobState.RUNNING: "running",
    JobState.COMPLETED: "success",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
}


@router.operation(
    "GET",
    "/tasks",
    tag="tasks",
    response=TaskPage,
    query=(
        Parameter(
            name="status",
            description="Only tasks with this status.",
            schema={"type": "string", "enum": ["pending", "running", "success", "failed"]},
        ),
        integer_parameter("limit", "How many tasks at most.", least=1, most=1000),
        integer_parameter("offset", "How many tasks to skip."),
    ),
)
async def list_tasks(context: Context, request: Request) -> Response:
    """List jobs as tasks."""
    query = context.parse_query(request, "status", "limit", "offset")
    states: tuple[JobState, ...] = ()
    if wanted := query.text("status"):
        states = tuple(state for state, status in TASK_STATES.items() if status == wanted)
        if not states:
            raise InvalidRequest(
                f"status '{wanted[:80]}' is not known; use pending, running, success or failed"
            )
    job_query = JobQuery(
        states=states,
        visibility=job_visibility(request.caller, others=False),
        descending=True,
        limit=query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page),
        offset=query.number("offset", 0),
    )
    rows, total = await asyncio.to_thread(_page, context.service.store, job_query)
    return json_response(TaskPage([_task_form(row) for row in rows], total))


@router.operation("GET", "/tasks/{job_id}", tag="tasks", response=TaskForm, errors=(403, 404))
async def get_task(context: Context, request: Request) -> Response:
    """One job as a task."""
    row, _ = await context.find_job(request)
    context.parse_query(request)
    return json_response(_task_form(row))


def _task_form(row: JobRow) -> TaskForm:
    job = row.job
    command = job.command
    is_line = command[: len(SHELL)] == SHELL and len(command) == len(SHELL) + 1
    return TaskForm(
        task_id=job.id,
        status=TASK_STATES[row.state],
        command=command[-1] if is_line else " ".join(command),
        priority=job.priority,
        gpu_count=job.gpu_milli / 1000,
        name=job.name,
        exit_code=row.exit_code,
        created_at=write_time(job.submit_ms),
        started_at=write_time(row.start_ms),
        finished_at=write_time(row.end_ms),
        reason=row.reason,
        cancelled=row.state is JobState.CANCELLED,
    )


# The resource /sweeps: jobs that were submitted together, counted by state


@router.operation("GET", "/sweeps", response=SweepList)
async def list_sweeps(context: Context, request: Request) -> Response:
    """Your sweeps, the newest first; their jobs are `/jobs?sweep=NAME`."""
    context.parse_query(request)
    by_name: dict[str, list[SweepCount]] = {}
    caller = request.caller
    within = caller.tenants if caller.confined else None
    for count in await asyncio.to_thread(context.service.store.sweeps, caller.user, within):
        by_name.setdefault(count.name, []).append(count)
    newest_first = sorted(by_name.values(), key=lambda counts: -max(c.last for c in counts))
    return json_response(SweepList([_sweep_form(caller.user, counts) for counts in newest_first]))


def _sweep_form(user: str, counts: list[SweepCount]) -> SweepForm:
    return SweepForm(
        name=counts[0].name,
        user=user,
        jobs=sum(count.jobs for count in counts),
        states={count.state.value: count.jobs for count in counts},
        first_job_id=f"job-{min(count.first for count in counts)}",
        last_job_id=f"job-{max(count.last for count in counts)}",
        submitted_at=write_time(min(count.submit_ms for count in counts)),
    )


# Actions


@router.operation(
    "PATCH",
    "/jobs/{job_id}",
    body=JobPatch,
    response=JobForm,
    errors=(*_ERRORS, 413, 415, 422),
    example={"priority": 2000, "max_runtime_minutes": 60},
)
async def update_job(context: Context, request: Request) -> Response:
    """Change a job while it waits."""
    row = await _whole(context, request)
    patch = await request.read_json(JobPatch, context.settings.bounds.body_bytes)
    changes = dict(read_patch(patch, row.job))
    if row.state in ENDED:
        raise WrongState(
            f"{display_name(row.job.id)} is {row.state}; only a pending job can be changed"
        )
    if changes:
        command: Command = Update(row.job.id, tuple(changes.items()))
        if changes.keys() == {"hold"}:  # also possible for a job that has started
            command = Hold(row.job.id) if changes["hold"] else Release(row.job.id)
        await context.service.apply(command, request.caller)
    row, _ = await context.find_job(request)
    views = await job_views(context.service, request.caller, [row])
    return json_response(views.job(row))


@router.operation("POST", "/jobs/{job_id}/hold", response=Changed, errors=_ERRORS)
async def hold_job(context: Context, request: Request) -> Response:
    """Hold a waiting job, so that it does not start."""
    row = await _whole(context, request)
    return await _changed(context, request, Hold(row.job.id), "held", "the job will not start")


@router.operation("POST", "/jobs/{job_id}/release", response=Changed, errors=_ERRORS)
async def release_job(context: Context, request: Request) -> Response:
    """Release a held job."""
    row = await _whole(context, request)
    _expect_not_ended(row, "released")
    return await _changed(
        context, request, Release(row.job.id), "pending", "the job is queued again"
    )


@router.operation(
    "POST",
    "/jobs/{job_id}/retry",
    response=Retried,
    query=(boolean_parameter("cancelled", "Of an array, also its cancelled tasks."),),
    errors=_ERRORS,
)
async def retry_job(context: Context, request: Request) -> Response:
    """Queue a failed or cancelled job again; of an array, its failed tasks."""
    query = context.parse_query(request, "cancelled")
    row = await _whole_job(context, request)
    await asyncio.to_thread(_launch_to_repeat, context.service.store, row, "retried")
    message = Retry(row.job.id, cancelled=query.flag("cancelled"))
    outcome = await context.service.apply(message, request.caller)
    return json_response(_retried((await context.find_job(request))[0], outcome.retried))


@router.operation(
    "POST",
    "/jobs/{job_id}/resubmit",
    response=Submitted,
    status=201,
    errors=(*_ERRORS, 422),
    keyed=True,
)
async def resubmit_job(context: Context, request: Request) -> Response:
    """Submit a job that has ended again, as a new job of the same owner.

    The new one has no dependencies, begin time and deadline.
    """
    row = await _whole(context, request)
    job, caller = row.job, request.caller
    store = context.service.store
    launch, captured = await asyncio.to_thread(_launch_to_repeat, store, row, "resubmitted")
    if row.state not in ENDED:
        raise WrongState(f"{display_name(job.id)} is {row.state}; only an ended job is resubmitted")
    if job.service:
        raise WrongState(f"{display_name(job.id)} is a replica of a service; change the service")
    if launch is None or (caller.user, caller.uid) != (job.user, launch.uid):
        raise Forbidden(
            f"{display_name(job.id)} belongs to {job.user}, and only its owner may resubmit it"
        )
    context.submit_tenant(caller, job.tenant)
    again = replace(
        job,
        id="",
        number=0,
        submit_ms=0,
        begin_ms=0,
        deadline_ms=0,
        dependencies=(),
        hold=False,
    )
    # The rules of the site check the captured environment again: they may have changed.
    command = Submit(again, replace(launch, gid=caller.gid or 0), captured)
    data = request.params["job_id"].encode()
    return await context.idempotency.run_once(request, data, command, job_submitted)


def _launch_to_repeat(
    store: Store, row: JobRow, done: str
) -> tuple[Launch | None, EnvironmentRow | None]:
    """Return how a job is run, and its captured environment; raise if that no longer exists."""
    launch = store.launch(row.job.id)
    if launch is None or not launch.captured:
        return launch, None
    variables = store.environment(launch.captured)
    if variables is None:
        raise WrongState(
            f"{display_name(row.job.id)} cannot be {done}: its captured environment was deleted "
            "(retention.environments_days); submit it from your own environment"
        )
    return launch, EnvironmentRow(launch.captured, tuple(variables.items()))


def _retried(row: JobRow, tasks: IntervalSet | None) -> Retried:
    """Return what was queued again; of an array, which tasks, and how many cancelled are left.

    For a repeated request the tasks are unknown.
    """
    left = 0
    if row.job.array is None:
        text = "the job is queued again"
    else:
        left = len(dict(row.tasks).get(JobState.CANCELLED, ()))
        text = "array tasks are queued again"
        if tasks is not None:
            text = f"array tasks that are queued again: {len(tasks)}"
        if left:
            text += f"; cancelled tasks that are not: {left}"
    return Retried(
        job_id=row.job.id,
        status=JobState.PENDING,
        message=text,
        tasks=None if tasks is None else str(tasks),
        left=left,
    )


@router.operation(
    "POST",
    "/jobs/{job_id}/priority",
    body=PriorityRequest,
    response=Changed,
    errors=(*_ERRORS, 413, 415),
    example={"priority": 1500},
)
async def reprioritise_job(context: Context, request: Request) -> Response:
    """Change the priority of a waiting job."""
    row = await _whole(context, request)
    body = await request.read_json(PriorityRequest, context.settings.bounds.body_bytes)
    priority = parse_priority(body.priority)
    _expect_not_ended(row, "reprioritised")
    message = Reprioritise(row.job.id, priority)
    return await _changed(context, request, message, row.state.value, f"priority is now {priority}")


class UsageCorrection(Struct, forbid_unknown_fields=True):
    """The run time for which an ended attempt is charged, and why it is changed."""

    attempt: int
    run_seconds: float
    reason: str


class CorrectedUsage(Struct):
    """The run time of an attempt before and after a correction."""

    job_id: str
    task: int | None
    attempt: int
    run_seconds_before: float
    run_seconds: float


@router.operation(
    "POST",
    "/jobs/{job_id}/correct-usage",
    body=UsageCorrection,
    response=CorrectedUsage,
    errors=(*_ERRORS, 413, 415, 422),
    example={"attempt": 1, "run_seconds": 60, "reason": "the clock of the server was wrong"},
)
async def correct_usage(context: Context, request: Request) -> Response:
    """Charge an ended attempt of a job or task for another run time (for admins)."""
    row, task = await context.find_job(request)
    body = await request.read_json(UsageCorrection, context.settings.bounds.body_bytes)
    job_id = row.job.id
    if not 0 <= body.run_seconds <= MAX_RUN_SECONDS:
        raise InvalidRequest(
            f"run_seconds is {body.run_seconds:g}; it must be from 0 to {MAX_RUN_SECONDS}"
        )
    if not body.reason.strip() or len(body.reason) > MAX_REASON:
        raise InvalidRequest(f"reason is missing or longer than {MAX_REASON} characters")
    attempts = await asyncio.to_thread(context.service.store.attempts, job_id, task)
    found = [one for one in attempts if (one.attempt, one.task) == (body.attempt, task)]
    if not found:
        raise UnknownThing(
            f"{display_name(job_id)} has no ended attempt {body.attempt}; its attempts are in "
            f"/jobs/{job_id}/attempts, and a task of an array is named {job_id}_TASK"
        )
    message = CorrectUsage(job_id, row.job, found[0], round(body.run_seconds * 1000), body.reason)
    await context.service.apply(message, request.caller)
    return json_response(
        CorrectedUsage(
            job_id=job_id,
            task=task,
            attempt=body.attempt,
            run_seconds_before=(found[0].end_ms - found[0].start_ms) / 1000,
            run_seconds=body.run_seconds,
        )
    )


@router.operation(
    "DELETE",
    "/jobs/{job_id}",
    response=Changed,
    query=(Parameter(name="tasks", description="Only these tasks, as in 1-3,7."),),
    errors=_ERRORS,
)
async def cancel_job(context: Context, request: Request) -> Response:
    """Cancel a job, a task (12_4), or some tasks of an array."""
    return json_response(await _cancel(context, request))


@router.operation(
    "DELETE",
    "/tasks/{job_id}",
    tag="tasks",
    response=TaskChanged,
    query=(Parameter(name="tasks", description="Only these tasks of an array."),),
    errors=_ERRORS,
)
async def cancel_task(context: Context, request: Request) -> Response:
    """Cancel a task."""
    done = await _cancel(context, request)
    return json_response(form_of(TaskChanged, done, task_id=done.job_id))


async def _cancel(context: Context, request: Request) -> Changed:
    row, task = await context.find_job(request)
    query = context.parse_query(request, "tasks")
    tasks = None if task is None else IntervalSet.of([task])
    if chosen := query.text("tasks"):
        if task is not None:
            raise InvalidRequest("give a task in the path or tasks in the query, not both")
        tasks = read_tasks(chosen)
        check_tasks_exist(row.job, tasks)
    if row.state in ENDED or (task is not None and task_state(row, task) in ENDED):
        ended = row.state if task is None else task_state(row, task)
        if ended is not JobState.CANCELLED:
            raise WrongState(f"{display_name(request.params['job_id'])} is already {ended}")
    else:
        await context.service.apply(Cancel(row.job.id, tasks), request.caller)
    row, _ = await context.find_job(request)
    state = row.state if task is None else task_state(row, task)
    is_over = state in ENDED
    name = row.job.id if task is None else f"{row.job.id}_{task}"
    return Changed(
        job_id=name,
        status="cancelled" if is_over else "cancelling",
        message="Job cancelled" if is_over else "Job is being stopped",
    )


async def _whole(context: Context, request: Request) -> JobRow:
    context.parse_query(request)
    return await _whole_job(context, request)


async def _whole_job(context: Context, request: Request) -> JobRow:
    row, task = await context.find_job(request)
    if task is not None:
        raise InvalidRequest(
            f"this can be done only with the whole of {display_name(row.job.id)}, not with one task"
        )
    return row


def _expect_not_ended(row: JobRow, done: str) -> None:
    if row.state in ENDED:
        raise WrongState(f"{display_name(row.job.id)} is already {row.state} and cannot be {done}")


async def _changed(
    context: Context, request: Request, message: Command, status: str, text: str
) -> Response:
    await context.service.apply(message, request.caller)
    row, _ = await context.find_job(request)
    return json_response(Changed(job_id=row.job.id, status=status, message=text))
