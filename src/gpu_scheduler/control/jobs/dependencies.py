"""Dependencies between jobs: what a job waits for, and what the end of another one means for it."""

from __future__ import annotations

from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import ENDED, Dependency, DependencyKind, JobState
from gpu_scheduler.model.reasons import Reason, ReasonCode


def wait_for_job(state: ControlState, record: JobRecord, dependency: Dependency) -> None:
    """Keep a job out of the queue until another one has ended."""
    record.wait_on(dependency, waits_for(dependency))
    state.dependents.setdefault(dependency.job_id, {})[record.job.id] = None


def is_met(kind: DependencyKind, state: JobState) -> bool:
    """Tell whether an ended job satisfies a dependency on it."""
    if state not in ENDED:
        return False
    if kind is DependencyKind.AFTER_ANY:
        return True
    return (state is JobState.COMPLETED) == (kind is DependencyKind.AFTER_OK)


def resolve_dependencies(dependent: JobRecord, job_id: str, job_state: JobState) -> bool:
    """Another job has ended: clear the dependencies that it meets.

    Return False, and set the reason, if one can never be met.
    """
    for dependency in dependent.job.dependencies:
        if dependency.job_id == job_id and dependent.is_waiting_on(dependency):
            if not is_met(dependency.kind, job_state):
                dependent.reason = never_met(dependency, job_state)
                return False
            dependent.clear_wait(dependency)
    return True


def never_met(dependency: Dependency, job_state: JobState) -> Reason:
    """The reason of a job that can never start, because another one ended in this state."""
    data = (
        ("job", dependency.job_id),
        ("kind", dependency.kind.value),
        ("state", job_state.value),
    )
    return Reason(ReasonCode.DEPENDENCY_FAILED, data)


def waits_for(dependency: Dependency) -> Reason:
    """The reason of a job that waits for the end of another one."""
    data = (("job", dependency.job_id), ("kind", dependency.kind.value))
    return Reason(ReasonCode.DEPENDENCY, data)
