"""Many jobs that are alike, accepted at once: what they have in common is worked out once.

It does what `submit` does for each of them, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.jobs.lifecycle import protect_later
from gpu_scheduler.control.messages import Command, Fact, SubmitSeries
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.model.snapshot import Waiting
from gpu_scheduler.predict.interface import expect_alike
from gpu_scheduler.store.job_values import Template
from gpu_scheduler.store.rows import NewJobs

OWN = ("id", "number", "name", "command")


def is_plain(state: ControlState, series: SubmitSeries, now_ms: int) -> bool:
    """Tell whether nothing can keep such jobs from the queue, and none of them is an array."""
    job = series.job
    return bool(
        state.cluster.index.by_id
        and series.launch.runner is Runner.PROCESS
        and not job.id
        and not job.hold
        and not job.dependencies
        and job.array is None
        and job.begin_ms <= now_ms
    )


def accept(
    state: ControlState, series: SubmitSeries, job: Job, now_ms: int, outcome: Outcome
) -> None:
    """Queue plain jobs. `job` is what they have in common, checked and stamped."""
    first = state.next_number
    numbers = range(first, first + len(series.names))
    ids = [f"job-{number}" for number in numbers]
    names = map(sys.intern, series.names)
    jobs = list(map(Template(job, OWN).copy, ids, numbers, names, series.commands))
    expected = expect_alike(state.predictor, jobs, now_ms)
    new_record = Template(JobRecord(job), ("job", "expected_ms")).copy
    records = list(map(new_record, jobs, expected))
    state.jobs.update(zip(ids, records, strict=True))
    queue_alike(state, records, now_ms)
    state.next_number += len(jobs)
    state.count_queued(job, len(jobs))
    outcome.jobs += jobs
    if series.environment is not None:
        outcome.writes.append(series.environment)
    outcome.writes.append(
        NewJobs(at_ms=now_ms, jobs=tuple(jobs), expected_ms=tuple(expected), launch=series.launch)
    )


def queue_alike(state: ControlState, records: list[JobRecord], now_ms: int) -> None:
    """Queue plain jobs that nothing keeps from it, and that have waited for equally long."""
    first = records[0]
    waiting = Waiting(job=first.job, expected_ms=1, since_ms=now_ms, waited_ms=first.waited_ms)
    new_waiting = Template(waiting, ("job", "expected_ms")).copy
    state.cluster.enqueue_alike(
        [new_waiting(record.job, max(1, record.expected_ms)) for record in records]
    )
    for record in records:
        record.queued = True
        record.since_ms = now_ms
    for record in records if state.policy.feedback.protect_after_ms else ():
        protect_later(state, record, now_ms)
    state.changed = True


# --- Submissions that came one by one and are alike are accepted together, as if they were one.
#
# Many callers, or one with many connections, submit the same but for names and commands. What such
# jobs have in common is then worked out and written once for all that share a commit.

R = TypeVar("R")
Kind = tuple[Command | Fact, Caller]


def neighbours(requests: Iterable[R], kind_of: Callable[[R], Kind | None]) -> Iterator[list[R]]:
    """Requests in their order: those that can be applied together in one list, others alone.

    `kind_of` says the message of a request and its caller, or None for one that stays alone.
    """
    run: list[R] = []
    before: Kind | None = None
    for request in requests:
        kind = kind_of(request)
        if run and not (before is not None and kind is not None and _alike(before, kind)):
            yield run
            run = []
        run.append(request)
        before = kind
    if run:
        yield run


def joined(all_series: Sequence[SubmitSeries]) -> SubmitSeries:
    """One series of all jobs of several that are alike."""
    first = all_series[0]
    return SubmitSeries(
        first.job,
        first.launch,
        first.environment,
        tuple(name for series in all_series for name in series.names),
        tuple(command for series in all_series for command in series.commands),
    )


def _alike(one: Kind, other: Kind) -> bool:
    first, second = one[0], other[0]
    return (
        isinstance(first, SubmitSeries)
        and isinstance(second, SubmitSeries)
        and first.job is second.job
        and first.launch is second.launch
        and one[1] == other[1]
    )
