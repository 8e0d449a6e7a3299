"""Jobs in the short form, which calls them tasks: a command line, a status and an end."""

from __future__ import annotations

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.jobs import DEFAULT_PAGE, sight_of
from gpu_scheduler.api.operations import V1, Operation, Parameter, a_number
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.questions import JobQuery
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.answers import TaskForm, TaskPage
from gpu_scheduler.wire.reading import SHELL
from gpu_scheduler.wire.times import write_time

SHORT_STATES = {
    JobState.PENDING: "pending",
    JobState.SCHEDULED: "pending",
    JobState.PREEMPTED: "pending",
    JobState.RUNNING: "running",
    JobState.COMPLETED: "success",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "failed",
}


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


OPERATIONS = (
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
