"""Look at jobs: lists, one job, its attempts and tasks, and why it waits."""

from __future__ import annotations

from gpu_scheduler.api.cluster import troubles
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, Query, answer
from gpu_scheduler.api.explain import sentence
from gpu_scheduler.api.foresight import (
    NOTHING,
    Foreseen,
    end_of_queued,
    end_of_running,
    foreseen,
)
from gpu_scheduler.api.operations import V1, Operation, Parameter, a_flag, a_number
from gpu_scheduler.api.views import (
    JobViews,
    attempt_form,
    places,
    states_of,
    task_form,
    task_state,
)
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.errors import InvalidRequest, WrongState
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import called
from gpu_scheduler.model.moments import moment_text
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.states import HOLDING, JobState
from gpu_scheduler.store.questions import JobQuery, Sight
from gpu_scheduler.store.rows import JobRow, TaskRow
from gpu_scheduler.wire.answers import (
    ArrayTaskPage,
    AttemptForm,
    AttemptList,
    Explanation,
    JobForm,
    JobPage,
    TaskForm,
    TaskPage,
)
from gpu_scheduler.wire.reading import SHELL
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
SHORT_STATES = {
    JobState.PENDING: "pending",
    JobState.SCHEDULED: "pending",
    JobState.PREEMPTED: "pending",
    JobState.RUNNING: "running",
    JobState.COMPLETED: "success",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
}
_TIMES = ("since", "ended_since", "ended_before")
_FILTERS = ("state", "tenant_id", "user", "name", "sort", "limit", "offset", "cursor", "archived")


async def list_jobs(context: Context, call: Call) -> Answer:
    """A page of jobs that the caller may see."""
    asked = _job_query(context, call, context.query(call, *_FILTERS, *_TIMES, "sweep"))
    store = context.service.store
    rows = store.find_jobs(asked)
    views = JobViews(context.service, call.caller, context.settings.attach)
    more = len(rows) == asked.limit and len(rows) > 0
    page = JobPage(
        jobs=[views.job(row) for row in rows],
        total=store.count_jobs(asked),
        next_cursor=str(rows[-1].job.number) if more else None,
    )
    return answer(page)


async def get_job(context: Context, call: Call) -> Answer:
    """One job, or one task of an array; of others only that it is there, its size and its end."""
    row, task = context.known_job(call)
    context.query(call)
    views = JobViews(context.service, call.caller, context.settings.attach)
    return answer(views.job(row) if task is None else views.task(row, task))


async def list_attempts(context: Context, call: Call) -> Answer:
    """The attempts of a job, or of one task, and the one that runs."""
    row, task = context.job(call)
    query = context.query(call, "task")
    if task is None:
        task = query.optional("task")
    store = context.service.store
    measured = {m.allocation_id: m for m in store.attempt_measures(row.job.id, task)}
    ended = store.attempts(row.job.id, task)
    found = [attempt_form(attempt, measured.get(attempt.allocation_id)) for attempt in ended]
    found += _held_attempts(context, row, task)
    return answer(AttemptList(found))


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
    running = context.service.core.book.picture.running
    found = []
    for number, attempt, state in numbers:
        suffix = "" if number is None else f"_{number}"
        entry = running.get(f"{job_id}{suffix}.{attempt}")
        if state not in HOLDING or entry is None:
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


async def list_array_tasks(context: Context, call: Call) -> Answer:
    """The tasks of an array that have started, a page at a time."""
    row, _ = context.job(call)
    query = context.query(call, "after", "limit")
    limit = query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page)
    after = query.number("after", -1, least=-1)
    array = row.job.array
    if array is None:
        raise WrongState(f"{called(row.job.id)} is not an array, so it has no tasks")
    last = array.tasks.ranges[-1][1]
    only = IntervalSet(((after + 1, last),)) if after < last else IntervalSet()
    tasks = context.service.store.tasks(row.job.id, only=only) if only else []
    page = tasks[:limit]
    return answer(
        ArrayTaskPage(
            job_id=row.job.id,
            states=states_of(row),
            tasks=[task_form(task) for task in page],
            next_task=page[-1].task if len(tasks) > limit else None,
        )
    )


async def explain_job(context: Context, call: Call) -> Answer:
    """Why a job waits (or how it ended), and when it should start; of others only when."""
    row, task = context.known_job(call)
    context.query(call)
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
    if state in {JobState.PENDING, JobState.PREEMPTED}:
        reason = explainer.reason(job.id)
        code, told = sentence(reason)
        form.code = code or "pending"
        form.reason = told or row.reason or "waiting for its turn"
        form.details = {} if reason is None else dict(reason.data)
        if reason is not None and reason.code is ReasonCode.RESOURCES:
            form.details["gpus"] = troubles(context)
        form.position = explainer.position(job.number)
        start = foreseen(context.service, explainer, job.id)
        form.expected_start, form.basis = write_time(start.at_ms), start.basis
        form.start_unknown = start.why_not
        _note_end(form, _end_if_started(context, row, start))
    elif state in HOLDING:
        start_ms = row.start_ms
        code, told = sentence(None if job.array else explainer.reason(job.id))
        form.code, form.reason = code or form.code, told or row.reason
        if job.array is not None:
            start_ms, form.reason = _of_tasks(context, row, task)
        form.reason = form.reason or f"{state.value} since {moment_text(start_ms or 0)}"
        _note_lost_node(form, explainer.lost_node(job.id, task))
        form.expected_start = write_time(start_ms)
        entry = context.service.core.book.picture.running.get(f"{job.id}.{row.attempt}")
        if entry is not None:
            _note_end(form, end_of_running(context.service, entry.running))
            form.reason += _warned(context, entry.running.allocation.id)
    else:
        form.reason = row.reason or _how_it_ended(context, row, task)
    if not call.caller.may_see(job.user, job.tenant):
        form.reason, form.code, form.details = state.value, state.value, {}
        form.start_unknown = form.end_unknown = ""
    return answer(form)


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
    told = f"running since {moment_text(min(starts))}; tasks: {counts}"
    if row.job.id in context.service.core.book.lives and any(
        state is JobState.PENDING for state, numbers in row.tasks if numbers
    ):
        _, why = sentence(context.explainer.reason(row.job.id))
        told += f"; the next one: {why}" if why else ""
    return min(starts), told


def _warned(context: Context, allocation_id: str) -> str:
    """What a job was told that may end it, as long as that holds."""
    gauge = context.service.core.book.gauges.attempts.get(allocation_id)
    text = "" if gauge is None else gauge.standing_warning
    return f"; warned: {text}" if text else ""


def _end_if_started(context: Context, row: JobRow, start: Foreseen) -> Foreseen:
    entry = context.service.core.book.picture.queue.entries.get(row.job.number)
    if entry is None:
        return NOTHING
    return end_of_queued(context.explainer, entry, start)


def _note_end(form: Explanation, end: Foreseen) -> None:
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


# --- the short form


async def list_tasks(context: Context, call: Call) -> Answer:
    """All jobs in the short form."""
    query = context.query(call, "status", "limit", "offset")
    states: tuple[JobState, ...] = ()
    if wanted := query.text("status"):
        states = tuple(state for state, short in SHORT_STATES.items() if short == wanted)
        if not states:
            raise InvalidRequest(
                f"status '{wanted[:80]}' is not known; use pending, running, success or failed"
            )
    asked = JobQuery(
        states=states,
        sight=sight_of(call.caller, others=False),
        descending=True,
        limit=query.number("limit", DEFAULT_PAGE, least=1, most=context.settings.bounds.page),
        offset=query.number("offset", 0),
    )
    store = context.service.store
    rows = store.find_jobs(asked)
    return answer(TaskPage([_short(row) for row in rows], store.count_jobs(asked)))


async def get_task(context: Context, call: Call) -> Answer:
    """One job in the short form."""
    row, _ = context.job(call)
    context.query(call)
    return answer(_short(row))


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


def _moment(query: Query, name: str) -> int | None:
    text = query.text(name)
    return read_time(text, name) if text else None


def _job_query(context: Context, call: Call, query: Query) -> JobQuery:
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
        tenant=context.tenant_of(tenant) if tenant else "",
        user=context.user_named(call, query),
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
        sight=sight_of(call.caller, others=not (name or sweep) and column not in HIDDEN_COLUMNS),
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
    a_number("limit", "How many jobs at most.", most=1000),
    a_number("offset", "How many jobs to leave out first."),
    a_number("cursor", "`next_cursor` of the page before."),
    a_flag("archived", "Also jobs that were archived."),
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
        answer=JobPage,
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
        answer=JobForm,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/explain",
        handler=explain_job,
        name="explain_job",
        summary="Why a job waits, where it stands, and when it should start and end.",
        tag="jobs",
        answer=Explanation,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/attempts",
        handler=list_attempts,
        name="list_attempts",
        summary="All attempts of a job or task, with where they ran and how they ended.",
        tag="jobs",
        answer=AttemptList,
        query=(a_number("task", "Only of this task of an array."),),
        errors=(403, 404),
    ),
    Operation(
        method="GET",
        path=f"{V1}/jobs/{{job_id}}/tasks",
        handler=list_array_tasks,
        name="list_array_tasks",
        summary="The tasks of an array that have started.",
        tag="jobs",
        answer=ArrayTaskPage,
        query=(
            a_number("after", "Behind this task.", least=-1),
            a_number("limit", "How many tasks at most.", least=1, most=1000),
        ),
        errors=(403, 404, 409),
    ),
    Operation(
        method="GET",
        path=f"{V1}/tasks",
        handler=list_tasks,
        name="list_tasks",
        summary="List jobs in the short form.",
        tag="tasks",
        answer=TaskPage,
        query=(
            Parameter(
                name="status",
                description="Only tasks with this status.",
                schema={"type": "string", "enum": ["pending", "running", "success", "failed"]},
            ),
            a_number("limit", "How many tasks at most.", least=1, most=1000),
            a_number("offset", "How many tasks to leave out first."),
        ),
    ),
    Operation(
        method="GET",
        path=f"{V1}/tasks/{{job_id}}",
        handler=get_task,
        name="get_task",
        summary="One job in the short form.",
        tag="tasks",
        answer=TaskForm,
        errors=(403, 404),
    ),
)
