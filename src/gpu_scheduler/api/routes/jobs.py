"""Look at jobs: lists, one job, its attempts and tasks."""

from __future__ import annotations

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.ha.gate import note_stale
from gpu_scheduler.api.http.operations import (
    V1,
    Operation,
    Parameter,
    boolean_parameter,
    integer_parameter,
)
from gpu_scheduler.api.http.request import Query, Request, Response, json_response
from gpu_scheduler.api.routes.job_views import JobViews, attempt_form, places, states_of, task_form
from gpu_scheduler.model.errors import InvalidRequest, WrongState
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import HOLDING, JobState, display_name
from gpu_scheduler.store.contract import JobQuery, Sight, SweepCount
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.answers import (
    ArrayTaskPage,
    AttemptForm,
    AttemptList,
    JobForm,
    JobPage,
    SweepForm,
    SweepList,
    TaskForm,
    TaskPage,
)
from gpu_scheduler.wire.job_reader import SHELL
from gpu_scheduler.wire.times import read_time, write_time

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
_TIMES = ("since", "ended_since", "ended_before")
_FILTERS = ("state", "tenant_id", "user", "name", "sort", "limit", "offset", "cursor", "archived")


async def list_jobs(context: Context, request: Request) -> Response:
    """A page of jobs that the caller may see."""
    asked = _job_query(context, request, context.parse_query(request, *_FILTERS, *_TIMES, "sweep"))
    store = context.service.store
    rows = store.find_jobs(asked)
    views = JobViews(context.service, request.caller, context.settings.attach)
    more = len(rows) == asked.limit and len(rows) > 0
    page = JobPage(
        jobs=[views.job(row) for row in rows],
        total=store.count_jobs(asked),
        next_cursor=str(rows[-1].job.number) if more else None,
    )
    return json_response(page)


async def get_job(context: Context, request: Request) -> Response:
    """One job, or one task of an array; of others only that it is there, its size and its end."""
    row, task = context.find_known_job(request)
    context.parse_query(request)
    views = JobViews(context.service, request.caller, context.settings.attach)
    return json_response(views.job(row) if task is None else views.task(row, task))


async def list_attempts(context: Context, request: Request) -> Response:
    """The attempts of a job, or of one task, and the one that runs."""
    row, task = context.find_job(request)
    query = context.parse_query(request, "task")
    if task is None:
        task = query.optional("task")
    store = context.service.store
    measured = {m.allocation_id: m for m in store.attempt_measures(row.job.id, task)}
    ended = store.attempts(row.job.id, task)
    found = [attempt_form(attempt, measured.get(attempt.allocation_id)) for attempt in ended]
    found += _held_attempts(context, row, task)
    return json_response(AttemptList(found))


def _held_attempts(context: Context, row: JobRow, task: int | None) -> list[AttemptForm]:
    """What runs now, as far as it is committed."""
    job_id = row.job.id
    numbers: list[tuple[int | None, int, JobState]]
    if row.job.array is None:
        numbers = [(None, row.attempt, row.state)]
    else:
        only = IntervalSet.of([task]) if task is not None else None
        tasks = context.service.store.tasks(job_id, only=only)
        numbers = [(t.task, t.attempt, t.state) for t in tasks]
    running = context.service.core.state.cluster.running
    found = []
    for number, attempt, state in numbers:
        suffix = "" if number is None else f"_{number}"
        entry = running.get(f"{job_id}{suffix}.{attempt}")
        if state not in HOLDING:
            continue
        if entry is None:
            note_stale(f"{job_id}{suffix}.{attempt}")
            continue
        allocation = entry.running.allocation
        found.append(
            AttemptForm(
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
        )
    return found


async def list_array_tasks(context: Context, request: Request) -> Response:
    """The tasks of an array that have started, a page at a time."""
    row, _ = context.find_job(request)
    query = context.parse_query(request, "after", "limit")
    limit = query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page)
    after = query.number("after", -1, least=-1)
    array = row.job.array
    if array is None:
        raise WrongState(f"{display_name(row.job.id)} is not an array, so it has no tasks")
    last = array.tasks.ranges[-1][1]
    only = IntervalSet(((after + 1, last),)) if after < last else IntervalSet()
    tasks = context.service.store.tasks(row.job.id, only=only) if only else []
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
        # To choose or order by what others do not show would show it.
        sight=sight_of(request.caller, others=not (name or sweep) and column not in HIDDEN_COLUMNS),
    )


def sight_of(caller: Caller, *, others: bool) -> Sight | None:
    """What a caller may list; for an admin, everything."""
    if caller.is_admin:
        return None
    return Sight(
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


_LIST_QUERY = (
    Parameter(name="state", description="One or more states, with commas between them."),
    Parameter(name="tenant_id", description="Id or name of a tenant."),
    Parameter(name="user", description="Jobs of this user; @me for your own."),
    Parameter(name="name", description="Jobs with exactly this name."),
    Parameter(
        name="sort",
        description="By what to sort; a - before it puts the largest first. Default: -number.",
        schema={
            "type": "string",
            "enum": [sign + name for name in SORTS for sign in ("", "-")],
        },
    ),
    integer_parameter("limit", "How many jobs at most.", most=1000),
    integer_parameter("offset", "How many jobs to leave out first."),
    integer_parameter("cursor", "`next_cursor` of the page before."),
    boolean_parameter("archived", "Also jobs that were archived."),
    Parameter(name="since", description="Submitted at this time or later."),
    Parameter(name="ended_since", description="Ended at this time or later."),
    Parameter(name="ended_before", description="Ended before this time."),
    Parameter(name="sweep", description="Jobs of this sweep."),
)
OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/jobs",
        handler=list_jobs,
        name="list_jobs",
        summary="List jobs, the newest first; of others only what waits or runs, without details.",
        tag="jobs",
        response=JobPage,
        query=_LIST_QUERY,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}",
        handler=get_job,
        name="get_job",
        summary="One job, or one task of an array (12_4); of others without details.",
        tag="jobs",
        response=JobForm,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/attempts",
        handler=list_attempts,
        name="list_attempts",
        summary="All attempts of a job or task, with where they ran and how they ended.",
        tag="jobs",
        response=AttemptList,
        query=(integer_parameter("task", "Only of this task of an array."),),
        errors=(403, 404),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/tasks",
        handler=list_array_tasks,
        name="list_array_tasks",
        summary="The tasks of an array that have started.",
        tag="jobs",
        response=ArrayTaskPage,
        query=(
            integer_parameter("after", "Behind this task.", least=-1),
            integer_parameter("limit", "How many tasks at most.", least=1, most=1000),
        ),
        errors=(403, 404, 409),
    ),
)


# --- Jobs in the short form, which calls them tasks: a command line, a status and an end.

SHORT_STATES = {
    JobState.PENDING: "pending",
    JobState.SCHEDULED: "pending",
    JobState.PREEMPTED: "pending",
    JobState.RUNNING: "running",
    JobState.COMPLETED: "success",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
}


async def list_tasks(context: Context, request: Request) -> Response:
    """All jobs in the short form."""
    query = context.parse_query(request, "status", "limit", "offset")
    states: tuple[JobState, ...] = ()
    if wanted := query.text("status"):
        states = tuple(state for state, short in SHORT_STATES.items() if short == wanted)
        if not states:
            raise InvalidRequest(
                f"status '{wanted[:80]}' is not known; use pending, running, success or failed"
            )
    asked = JobQuery(
        states=states,
        sight=sight_of(request.caller, others=False),
        descending=True,
        limit=query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page),
        offset=query.number("offset", 0),
    )
    store = context.service.store
    rows = store.find_jobs(asked)
    return json_response(TaskPage([_short(row) for row in rows], store.count_jobs(asked)))


async def get_task(context: Context, request: Request) -> Response:
    """One job in the short form."""
    row, _ = context.find_job(request)
    context.parse_query(request)
    return json_response(_short(row))


def _short(row: JobRow) -> TaskForm:
    job = row.job
    command = job.command
    is_line = command[: len(SHELL)] == SHELL and len(command) == len(SHELL) + 1
    return TaskForm(
        task_id=job.id,
        status=SHORT_STATES[row.state],
        command=command[-1] if is_line else " ".join(command),
        priority=job.priority,
        gpu_count=job.gpu_milli / 1000,
        name=job.name,
        exit_code=row.exit_code,
        created_at=write_time(job.submit_ms),
        started_at=write_time(row.start_ms),
        finished_at=write_time(row.end_ms),
        reason=row.reason,
    )


SHORT_FORM_OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/tasks",
        handler=list_tasks,
        name="list_tasks",
        summary="List jobs in the short form.",
        tag="tasks",
        response=TaskPage,
        query=(
            Parameter(
                name="status",
                description="Only tasks with this status.",
                schema={"type": "string", "enum": ["pending", "running", "success", "failed"]},
            ),
            integer_parameter("limit", "How many tasks at most.", least=1, most=1000),
            integer_parameter("offset", "How many tasks to leave out first."),
        ),
    ),
    Operation(
        method="GET",
        path=f"{V1}/tasks/{{job_id}}",
        handler=get_task,
        name="get_task",
        summary="One job in the short form.",
        tag="tasks",
        response=TaskForm,
        errors=(403, 404),
    ),
)


# --- Sweeps: jobs that were submitted as one, counted by their states.


async def list_sweeps(context: Context, request: Request) -> Response:
    """The caller's own sweeps, the newest first."""
    context.parse_query(request)
    by_name: dict[str, list[SweepCount]] = {}
    caller = request.caller
    within = caller.tenants if caller.confined else None
    for count in context.service.store.sweeps(caller.user, within):
        by_name.setdefault(count.name, []).append(count)
    newest_first = sorted(by_name.values(), key=lambda counts: -max(c.last for c in counts))
    return json_response(SweepList([_form(caller.user, counts) for counts in newest_first]))


def _form(user: str, counts: list[SweepCount]) -> SweepForm:
    return SweepForm(
        name=counts[0].name,
        user=user,
        jobs=sum(count.jobs for count in counts),
        states={count.state.value: count.jobs for count in counts},
        first_job_id=f"job-{min(count.first for count in counts)}",
        last_job_id=f"job-{max(count.last for count in counts)}",
        submitted_at=write_time(min(count.submit_ms for count in counts)),
    )


SWEEPS_OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/sweeps",
        handler=list_sweeps,
        name="list_sweeps",
        summary="Your sweeps, the newest first; their jobs are `/jobs?sweep=NAME`.",
        tag="jobs",
        response=SweepList,
    ),
)
