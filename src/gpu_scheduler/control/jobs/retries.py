"""Whether a job is retried after an attempt has ended, and how long it backs off before."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.control.gang_commit import can_shrink, is_elastic
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.jobs.queueing import (
    CANCELLED,
    GPU_IDLE,
    GPU_MEMORY,
    NODE_LOST,
    NOT_BEGUN,
    PREEMPTED,
    TIMEOUT,
)
from gpu_scheduler.control.messages import Ended
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.cluster_snapshot import Running
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import PROLOG
from gpu_scheduler.model.service import Restart, Service

SIGNALS = range(1, 32)
STATE_AFTER_STOP = {
    PREEMPTED: JobState.PREEMPTED,
    CANCELLED: JobState.CANCELLED,
    TIMEOUT: JobState.FAILED,
    NODE_LOST: JobState.FAILED,
    GPU_MEMORY: JobState.FAILED,
    GPU_IDLE: JobState.FAILED,
}
"""The state of a task after the scheduler stopped it for this reason."""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt of one task (number None: of a plain job), as its node reports it."""

    record: JobRecord
    number: int | None
    task: TaskRecord
    fact: Ended
    running: Running
    ended_ms: int

    @property
    def job(self) -> Job:
        return self.record.job

    @property
    def elapsed_ms(self) -> int:
        """How long the attempt had its resources."""
        return self.ended_ms - self.running.allocation.start_ms

    @property
    def succeeded(self) -> bool:
        return self.fact.exit_code == 0 and self.fact.signal is None

    @property
    def is_unknown(self) -> bool:
        return self.fact.exit_code is None and self.fact.signal is None

    @property
    def was_killed(self) -> bool:
        """Tell whether a signal ended it; a shell reports that as exit code 128 + signal."""
        return self.fact.signal is not None or (self.fact.exit_code or 0) - 128 in SIGNALS

    @property
    def lost_a_member(self) -> bool:
        """Tell whether an elastic gang lost a member and can continue with the others.

        The member was killed, though not by the scheduler, or its end is unknown.
        """
        if not is_elastic(self.job) or not self.fact.ran or self.task.stop_why:
            return False
        return self.is_unknown or (self.was_killed and can_shrink(self.job, self.task))


def failed_in_prolog(task: TaskRecord, fact: Ended) -> bool:
    """Tell whether a failed prolog is the reason why the attempt never ran."""
    has_begun = fact.ran or task.state is not JobState.SCHEDULED
    return not has_begun and not task.stop_why and any(one.hook == PROLOG for one in fact.hooks)


def state_after(state: ControlState, end: AttemptEnd) -> JobState:
    """The next state of the task; for a replica its service decides."""
    task, fact, service = end.task, end.fact, state.services.get(end.job.service)
    if failed_in_prolog(task, fact):
        task.prolog_failures += 1
        is_retried = task.prolog_failures < state.limits.max_prolog_failures
        if service is not None and service.restart.policy is not Restart.NEVER:
            is_retried = True
        return JobState.PENDING if is_retried else JobState.FAILED
    if fact.ran:
        task.prolog_failures = 0
    if fact.ran and end.elapsed_ms >= state.limits.max_backoff_ms:
        # After a run longer than the longest back-off, failures are counted from zero.
        task.misstarts = task.most_members = 0
    if service is not None and task.stop_why != CANCELLED:
        return _next_replica_state(service, end)
    return _next_state(state, end)


def _next_state(state: ControlState, end: AttemptEnd) -> JobState:
    """The next state, from how the attempt ended and why it was stopped."""
    task, fact, job = end.task, end.fact, end.job
    if task.stop_why in STATE_AFTER_STOP:
        return STATE_AFTER_STOP[task.stop_why]
    if task.stop_why == NOT_BEGUN and not fact.ran:
        if _is_node_set_aside(state, end):
            return JobState.PENDING
        task.misstarts += 1
        is_retried = task.misstarts < state.limits.max_misstarts
        return JobState.PENDING if is_retried else JobState.FAILED
    if fact.lost and task.state is JobState.SCHEDULED:
        return JobState.PENDING
    if end.succeeded:
        return JobState.COMPLETED
    if end.lost_a_member:
        task.misstarts += 1
        if task.misstarts < state.limits.max_misstarts:
            if end.was_killed:
                task.most_members = task.members - 1
            return JobState.PENDING
    is_retryable = not job.retry_exit_codes or fact.exit_code in job.retry_exit_codes
    if task.failures < job.retries and fact.ran and is_retryable:
        task.failures += 1
        return JobState.PENDING
    return JobState.FAILED


def _is_node_set_aside(state: ControlState, end: AttemptEnd) -> bool:
    """Tell whether a node of the attempt reports that no job can start there (a full disk).

    Such a start does not count: the node takes no more work until it is well, and then the job
    should not wait for a back-off that has grown meanwhile, or have failed.
    """
    placements = end.running.allocation.placements
    nodes = [state.cluster.index.by_id.get(placement.node_id) for placement in placements]
    closures = [resources.node.closed for resources in nodes if resources is not None]
    return any(closure is not None and closure.heals for closure in closures)


def _next_replica_state(service: Service, end: AttemptEnd) -> JobState:
    """The next state of a replica: its restart policy decides after an end of its own.

    A replica that was preempted or lost its node is started elsewhere in any case.
    """
    task, fact = end.task, end.fact
    if task.stop_why in {PREEMPTED, NODE_LOST}:
        task.stop_why = PREEMPTED
        return JobState.PREEMPTED
    if fact.lost and task.state is JobState.SCHEDULED:
        return JobState.PENDING
    succeeded = end.succeeded and not task.stop_why
    policy = service.restart.policy
    if policy is Restart.NEVER or (policy is Restart.ON_FAILURE and succeeded):
        return JobState.COMPLETED if succeeded else JobState.FAILED
    was_stable = fact.ran and end.elapsed_ms >= service.restart.reset_after_ms
    task.failures = 1 if was_stable else task.failures + 1
    return JobState.PENDING


def backoff_ms(state: ControlState, record: JobRecord, task: TaskRecord) -> int:
    """The back-off after a failure: doubled each time, up to a limit."""
    service = state.services.get(record.job.service)
    if service is not None:
        return service.restart.pause_ms(task.failures + task.prolog_failures)
    ends = task.failures + task.misstarts + task.prolog_failures
    delay_ms = state.limits.backoff_ms << max(0, ends - 1)
    return min(delay_ms, state.limits.max_backoff_ms)
