"""The life of a job as the core keeps it in memory, from submission to end."""

from __future__ import annotations

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.reasons import Reason
from gpu_scheduler.model.states import ENDED, JobState, move
from gpu_scheduler.store.rows import JobRow

NO_TASKS = IntervalSet()


class TaskLife:
    """One task of an array, or the whole of a plain job."""

    __slots__ = (
        "allocation_id",
        "attained_ms",
        "attempt",
        "exit_code",
        "expected_ms",
        "failures",
        "first_start_ms",
        "preemptions",
        "protected",
        "signal",
        "since_ms",
        "start_ms",
        "state",
        "stop_why",
        "waited_ms",
    )

    def __init__(self, since_ms: int) -> None:
        """A task that has not run yet."""
        self.state = JobState.PENDING
        self.attempt = 0
        self.failures = 0
        self.preemptions = 0
        self.protected = False
        self.attained_ms = 0
        self.waited_ms = 0
        self.since_ms = since_ms
        self.start_ms: int | None = None
        self.first_start_ms: int | None = None
        self.allocation_id = ""
        self.stop_why = ""
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.expected_ms = 0

    def move_to(self, state: JobState) -> None:
        """Change the state by an allowed move."""
        self.state = move(self.state, state)


class JobLife:
    """A job with its tasks. `waiting_on` names what it waits for before it may be queued."""

    __slots__ = ("end_ms", "job", "pending", "queued", "reason", "states", "tasks", "waiting_on")

    def __init__(self, job: Job) -> None:
        """A job as it was submitted."""
        self.job = job
        self.reason: Reason | None = None
        self.waiting_on: dict[str, None] = {}
        self.queued = False
        self.end_ms: int | None = None
        self.tasks: dict[int | None, TaskLife] = {}
        self.states: dict[JobState, IntervalSet] = {}
        self.pending = NO_TASKS
        if job.array is None:
            self.tasks[None] = TaskLife(job.submit_ms)
        else:
            self.pending = job.array.tasks

    def task(self, task: int | None) -> TaskLife:
        """The life of a task; of an array's task, from its first start on."""
        life = self.tasks.get(task)
        if life is None:
            if task is None:
                raise InternalError(f"array {self.job.id} has no task without a number")
            life = self.tasks[task] = TaskLife(self.job.submit_ms)
        return life

    def end_task(self, task: int | None, state: JobState) -> None:
        """A task has ended; of an array, only the number is kept."""
        self.task(task).move_to(state)
        if task is not None:
            self.states[state] = self.states.get(state, NO_TASKS).with_number(task)
            del self.tasks[task]

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing of the job runs or waits."""
        if self.job.array is None:
            return self.tasks[None].state in ENDED
        return not self.pending and not self.tasks

    @property
    def state(self) -> JobState:
        """The state of the job; of an array, of its most lively task."""
        if self.job.array is None:
            return self.tasks[None].state
        for state in (JobState.RUNNING, JobState.SCHEDULED):
            if any(life.state is state for life in self.tasks.values()):
                return state
        if self.pending or self.tasks:
            return JobState.PENDING
        for state in (JobState.FAILED, JobState.CANCELLED):
            if self.states.get(state):
                return state
        return JobState.COMPLETED

    def row(self) -> JobRow:
        """What the store should remember."""
        reason = "" if self.reason is None else str(self.reason)
        if self.job.array is not None:
            tasks = dict(self.states)
            if self.pending:
                tasks[JobState.PENDING] = self.pending
            for number, life in self.tasks.items():
                if number is not None:
                    tasks[life.state] = tasks.get(life.state, NO_TASKS).with_number(number)
            return JobRow(
                job=self.job,
                state=self.state,
                reason=reason,
                end_ms=self.end_ms,
                tasks=tuple(sorted(tasks.items())),
            )
        life = self.tasks[None]
        return JobRow(
            job=self.job,
            state=life.state,
            reason=reason,
            attempt=life.attempt,
            preemptions=life.preemptions,
            exit_code=life.exit_code,
            signal=life.signal,
            first_start_ms=life.first_start_ms,
            start_ms=life.start_ms,
            end_ms=self.end_ms,
            waited_ms=life.waited_ms,
            attained_ms=life.attained_ms,
        )
