"""The states of a job and the moves between them that are allowed."""

from __future__ import annotations

from enum import StrEnum

from gpu_scheduler.model.errors import WrongState


class JobState(StrEnum):
    """Where a job (or one task of an array) is in its life."""

    PENDING = "pending"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"


MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.SCHEDULED, JobState.CANCELLED, JobState.FAILED}),
    JobState.SCHEDULED: frozenset(
        {
            JobState.RUNNING,
            JobState.PENDING,
            JobState.CANCELLED,
            JobState.FAILED,
            JobState.PREEMPTED,
            JobState.COMPLETED,
        }
    ),
    JobState.RUNNING: frozenset(
        {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PREEMPTED}
    ),
    JobState.PREEMPTED: frozenset({JobState.PENDING, JobState.CANCELLED, JobState.FAILED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.PENDING}),
    JobState.CANCELLED: frozenset({JobState.PENDING}),
}
"""From a state to the states that may follow. A failed or cancelled job returns only by a retry."""

ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})
"""States in which a job holds nothing and waits for nothing."""
HOLDING = frozenset({JobState.SCHEDULED, JobState.RUNNING})
"""States in which a job holds devices."""


def move(current: JobState, wanted: JobState) -> JobState:
    """Return the wanted state if the move is allowed."""
    if wanted not in MOVES[current]:
        allowed = ", ".join(sorted(MOVES[current])) or "nothing: it has ended"
        raise WrongState(f"a {current} job cannot become {wanted}; allowed: {allowed}")
    return wanted
