"""A core restored from the store equals the live one.

Every so many commits a fresh core is restored from the store and compared with the live one. Only
for a single server: with several, the committing server is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.restore import restore
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.job import JobState
from tests.faults.server import new_core

if TYPE_CHECKING:
    from tests.faults.world import World

EVERY = 3


class RestoreCheck:
    """Compares now and then, right after a commit."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._commits = 0

    def look(self) -> None:
        loop = self._world.servers[0].loop
        self._commits += 1
        if len(self._world.servers) > 1 or loop is None or self._commits % EVERY:
            return
        fresh = new_core().state
        restore(fresh, self._world.disk.rows, loop.now_ms())
        known, recalled = _known(loop.core.state), _known(fresh)
        for name, value in known.items():
            if value != recalled[name]:
                self._world.audit.problem(
                    f"{name} would be {_differing(recalled[name], value)} after a restart, and is "
                    f"{_differing(value, recalled[name])}"
                )


def _known(state: ControlState) -> dict[str, Any]:
    """Everything that decides what happens next, except what depends on open connections."""
    cluster = state.cluster
    return {
        "jobs": {job_id: _of_job(record) for job_id, record in state.jobs.items()},
        "counts": (state.queued_tasks, dict(state.queued_of), state.next_number),
        "queue": {n: str(entry.waiting.tasks) for n, entry in cluster.queue.entries.items()},
        "held": {name: entry.running.stopping for name, entry in cluster.running.items()},
        "dependents": {name: set(others) for name, others in state.dependents.items()},
        "promises": set(state.stored_reservations),
        "services": dict(state.services),
        "reservations": set(cluster.advance_reservations),
    }


def _of_job(record: JobRecord) -> tuple[object, ...]:
    tasks = {None: record.only_task, **record.tasks}
    return (
        record.job.hold,
        record.job.priority,
        sorted(map(str, record.waiting_on or ())),
        str(record.pending),
        {state: str(numbers) for state, numbers in record.states.items() if numbers},
        {
            number: (
                *(task.state, task.attempt, task.resume_ms, task.stop_why, task.saved_ms),
                *(task.failures, task.misstarts, task.prolog_failures),
            )
            for number, task in tasks.items()
            # The attempt numbers of a task that only waits need not be the same.
            if task is not None and (task.state is not JobState.PENDING or task.failures)
        },
    )


def _differing(value: Any, other: Any) -> str:
    """The part of a value that differs from the other one."""
    if isinstance(value, dict):
        value = {name: found for name, found in value.items() if other.get(name) != found}
    return str(value)[:300]
