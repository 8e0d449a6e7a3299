"""The record of a job in memory, from submission to end.

Most jobs wait most of the time, so a job that has never started is kept small: a task record is
created at the first start.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, Dependency, Job, JobState, move
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.store.rows import JobRow, TaskRow

NO_TASKS = IntervalSet()
HELD = "hold"
SET_ASIDE = "internal_error"

Obstacle = str | Dependency
"""What can keep a job out of the queue: a hold, an internal error of the engine, a begin time, a
back-off, or a dependency."""


@dataclass(slots=True, eq=False)
class TaskRecord:
    """One task of an array, or a plain job as a whole.

    `attempt`: number of attempts so far. `clock_ms`: the job's queue time when this task began to
    wait. `resume_ms`: end of the back-off, 0 without one. `members`: number of members at the last
    start; `most_members`: upper limit for the next start (0: all). `prolog_failures`: failed
    prologs in a row. `misstarts`: starts that timed out or lost a member, since the last long run.
    `saved_ms`: the last stored checkpoint of the running attempt.
    """

    state: JobState = JobState.PENDING
    attempt: int = 0
    failures: int = 0
    misstarts: int = 0
    most_members: int = 0
    prolog_failures: int = 0
    saved_ms: int = 0
    members: int = 0
    preemptions: int = 0
    protected: bool = False
    attained_ms: int = 0
    served_ms: int = 0
    waited_ms: int = 0
    clock_ms: int = 0
    resume_ms: int = 0
    start_ms: int | None = None
    first_start_ms: int | None = None
    allocation_id: str = ""
    stop_why: str = ""
    stop_cause: str = ""
    """Text: for which job or reservation, or why, the attempt is being stopped; not stored."""
    exit_code: int | None = None
    signal: int | None = None

    def move_to(self, state: JobState) -> None:
        """Change the state; raise if the transition is not allowed."""
        self.state = move(self.state, state)


STORED_FIELDS = (
    *("state", "attempt", "preemptions", "failures", "exit_code", "signal"),
    *("first_start_ms", "start_ms", "attained_ms", "served_ms", "resume_ms", "saved_ms"),
    *("protected", "stop_why", "prolog_failures", "misstarts"),
)
"""The fields of a task record that the rows of jobs and tasks have under the same name."""
_stored_values = attrgetter(*STORED_FIELDS)


def _stored(task: TaskRecord) -> dict[str, Any]:
    return dict(zip(STORED_FIELDS, _stored_values(task), strict=True))


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job with its tasks.

    `waiting_on`: what keeps it out of the queue, with the reason shown to users. `waited_ms`: total
    time in the queue, without the current wait, which began at `since_ms`; time on hold, before
    the begin time, for dependencies or in a back-off does not count. Only for arrays: `pending`
    tasks may be queued, `tasks` have started and not ended, `states` has the ended ones, and
    `first_start_ms` is the start of the first task. `image_digest` is that of the image in the
    first attempt by a container engine of root; later attempts run the same.
    """

    job: Job
    reason: Reason | None = None
    waiting_on: dict[Obstacle, Reason] | None = None
    queued: bool = False
    end_ms: int | None = None
    expected_ms: int = 0
    waited_ms: int = 0
    since_ms: int = 0
    last_attempt: int = 0
    image_digest: str = ""
    first_start_ms: int | None = None
    tasks: dict[int, TaskRecord] = field(init=False)
    states: dict[JobState, IntervalSet] = field(init=False)
    pending: IntervalSet = field(init=False)
    _only: TaskRecord | None = None
    _retried: tuple[IntervalSet, int, int] | None = None

    def __post_init__(self) -> None:
        """All tasks of an array that was just submitted are pending."""
        if self.job.array is None:
            # Shared empty values, never written to, to save memory.
            self.tasks, self.states, self.pending = _NO_RECORDS, _NO_STATES, NO_TASKS
        else:
            self.tasks, self.states, self.pending = {}, {}, self.job.array.tasks

    # Obstacles.

    def wait_on(self, obstacle: Obstacle, reason: Reason) -> None:
        """Add an obstacle."""
        if self.waiting_on is None:
            self.waiting_on = {}
        self.waiting_on[obstacle] = reason

    def is_waiting_on(self, obstacle: Obstacle) -> bool:
        """Tell whether this obstacle keeps the job out of the queue."""
        return self.waiting_on is not None and obstacle in self.waiting_on

    def clear_wait(self, obstacle: Obstacle) -> None:
        """Remove an obstacle."""
        if self.waiting_on is not None:
            self.waiting_on.pop(obstacle, None)
            if not self.waiting_on:
                self.waiting_on = None

    def why(self) -> Reason | None:
        """Why it ended, or why it is not queued; a hold first, since only a user can end that."""
        if self.reason is not None:
            return self.reason
        if self.has_ended:  # a job that was cancelled while it waited
            return None
        if self.waiting_on:
            return self.waiting_on.get(HELD) or next(iter(self.waiting_on.values()))
        if self.tasks and not self.pending:
            pauses = [task.resume_ms for task in self.tasks.values() if task.resume_ms]
            if len(pauses) == len(self.tasks):
                return paused_until(min(pauses))
        return None

    # Tasks.

    def task(self, number: int | None) -> TaskRecord:
        """The record of a task, created at its first start."""
        if self.job.array is None:
            if self._only is None:
                self._only = TaskRecord()
            return self._only
        if number is None:
            raise InternalError(f"array {self.job.id} has no task without a number")
        record = self.tasks.get(number)
        if record is None:
            record = self.tasks[number] = self._new_task(number)
        return record

    @property
    def only_task(self) -> TaskRecord | None:
        """The task record of a plain job; None if it has never started and is not protected."""
        return self._only

    @property
    def has_started(self) -> bool:
        """Tell whether the job, or a task of it, has ever started."""
        return bool(self.tasks) or (self._only is not None and self._only.attempt > 0)

    @property
    def paused(self) -> IntervalSet:
        """The tasks of an array that are in a back-off."""
        return IntervalSet.of(number for number, task in self.tasks.items() if task.resume_ms)

    @property
    def waits(self) -> bool:
        """Tell whether the job, or a task of the array, is waiting for any reason."""
        if self.job.array is None:
            return self.state is JobState.PENDING
        return bool(self.pending) or any(task.resume_ms for task in self.tasks.values())

    def end_task(self, number: int | None, state: JobState) -> None:
        """End a task; of an array only its number is kept."""
        task = self.task(number)
        task.move_to(state)
        task.allocation_id = ""
        task.resume_ms = 0
        if number is not None:
            self.states[state] = self.states.get(state, NO_TASKS).with_number(number)
            self.last_attempt = max(self.last_attempt, task.attempt)
            del self.tasks[number]

    def cancel_waiting(self, chosen: IntervalSet, now_ms: int) -> tuple[int, list[TaskRow]]:
        """Cancel those of the chosen array tasks that wait or are in a back-off.

        Return their number, and the rows of those that had started before.
        """
        waiting = self.pending.union(self.paused)
        gone = waiting.minus(waiting.minus(chosen))
        self.pending = self.pending.minus(gone)
        if gone:
            self.states[JobState.CANCELLED] = gone.union(
                self.states.get(JobState.CANCELLED, NO_TASKS)
            )
        rows = []
        for number in [number for number in self.tasks if number in gone]:
            task = self.tasks.pop(number)
            self.last_attempt = max(self.last_attempt, task.attempt)
            task.move_to(JobState.CANCELLED)
            task.resume_ms = 0
            if task.attempt:
                rows.append(self.task_row(number, task, end_ms=now_ms))
        return len(gone), rows

    def take_pending(self, number: int, now_ms: int) -> None:
        """Move an array task from pending to started."""
        self.pending = self.pending.without(number)
        if self.first_start_ms is None:
            self.first_start_ms = now_ms

    def tasks_to_retry(self, *, cancelled: bool) -> IntervalSet:
        """The failed tasks of an array; with `cancelled` also the cancelled ones."""
        failed = self.states.get(JobState.FAILED, NO_TASKS)
        return failed.union(self.states.get(JobState.CANCELLED, NO_TASKS)) if cancelled else failed

    def retry_tasks(self, again: IntervalSet, clock_ms: int) -> None:
        """Requeue failed or cancelled tasks of an array.

        Their next attempt numbers are higher than that of any earlier attempt of the array.
        """
        for state in (JobState.FAILED, JobState.CANCELLED):
            left = self.states.pop(state, NO_TASKS).minus(again)
            if left:
                self.states[state] = left
        self.pending = self.pending.union(again)
        before = self._retried[0] if self._retried is not None else NO_TASKS
        self._retried = (again.union(before), self.last_attempt, clock_ms)

    def _new_task(self, number: int) -> TaskRecord:
        if self._retried is not None and number in self._retried[0]:
            return TaskRecord(attempt=self._retried[1], clock_ms=self._retried[2])
        return TaskRecord()

    # States and rows.

    @property
    def has_ended(self) -> bool:
        """Tell whether no part of the job runs or waits."""
        if self.job.array is None:
            return self.state in ENDED
        return not self.pending and not self.tasks

    @property
    def state(self) -> JobState:
        """The state of the job; an array is running if a task runs, and so on."""
        if self.job.array is None:
            return JobState.PENDING if self._only is None else self._only.state
        return self._state_of_array({record.state for record in self.tasks.values()})

    def _state_of_array(self, active: Collection[JobState]) -> JobState:
        """The state of an array whose started tasks are in these states."""
        for state in (JobState.RUNNING, JobState.SCHEDULED):
            if state in active:
                return state
        if self.pending or self.tasks:
            return JobState.PENDING
        for state in (JobState.FAILED, JobState.CANCELLED):
            if self.states.get(state):
                return state
        return JobState.COMPLETED

    def row(self) -> JobRow:
        """The row for the store."""
        why = self.why()
        reason = "" if why is None else str(why)
        met = self._met_dependencies()
        since_ms = self.since_ms if self.queued else 0
        if self.job.array is not None:
            active = self._tasks_active()
            return JobRow(
                job=self.job,
                state=self._state_of_array(active),
                reason=reason,
                first_start_ms=self.first_start_ms,
                start_ms=self.first_start_ms,
                end_ms=self.end_ms,
                waited_ms=self.waited_ms,
                since_ms=since_ms,
                image_digest=self.image_digest,
                met=met,
                tasks=self._tasks_by_state(active),
            )
        stored = {"state": JobState.PENDING} if self._only is None else _stored(self._only)
        return JobRow(
            job=self.job,
            reason=reason,
            end_ms=self.end_ms,
            waited_ms=self.waited_ms,
            expected_ms=self.expected_ms,
            since_ms=since_ms,
            image_digest=self.image_digest,
            most_members=0 if self._only is None else self._only.most_members,
            met=met,
            **stored,
        )

    def task_row(self, number: int, task: TaskRecord, *, end_ms: int | None = None) -> TaskRow:
        """The row of a started task for the store."""
        return TaskRow(
            job_id=self.job.id,
            task=number,
            end_ms=end_ms,
            waited_ms=task.waited_ms,
            **_stored(task),
        )

    def _met_dependencies(self) -> tuple[str, ...]:
        """Ids of the jobs whose dependency is met."""
        if not self.job.dependencies:
            return ()
        return tuple(
            dict.fromkeys(
                dependency.job_id
                for dependency in self.job.dependencies
                if not self.is_waiting_on(dependency)
            )
        )

    def _tasks_active(self) -> dict[JobState, list[int]]:
        active: dict[JobState, list[int]] = {}
        for number, task in self.tasks.items():
            active.setdefault(task.state, []).append(number)
        return active

    def _tasks_by_state(
        self, active: dict[JobState, list[int]]
    ) -> tuple[tuple[JobState, IntervalSet], ...]:
        tasks = dict(self.states)
        if self.pending:
            tasks[JobState.PENDING] = self.pending
        for state, numbers in active.items():
            tasks[state] = tasks.get(state, NO_TASKS).union(IntervalSet.of(numbers))
        return tuple(sorted(tasks.items()))


def paused_until(resume_ms: int) -> Reason:
    """The reason of a job in a back-off."""
    return Reason(ReasonCode.BACKOFF, (("until_ms", resume_ms),))


_NO_RECORDS: dict[int, TaskRecord] = {}
_NO_STATES: dict[JobState, IntervalSet] = {}
