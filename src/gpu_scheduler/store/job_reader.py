"""From the columns of a job to its row, for 100,000 of them within a second at a start.

What jobs share is decoded and checked once; each is then a copy of the first with fields of its
own, as constructors check every field again and take more than half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Any

from gpu_scheduler.model.job import Job
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.codec import JOB_LIFE, LIFE_COLUMNS, SPEC, STATES, words
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.store.template import Template

_MOST = 8192
_OF_JOB = ("id", "number", "submit_ms", "tenant", "user", "name", "command", "priority")
_OF_ROW = ("job", "state", "reason", *LIFE_COLUMNS[1:])


@lru_cache(maxsize=_MOST)
def _job_of(spec: str) -> Callable[..., Job]:
    """Makes the jobs of one spec, once it has made a job that is sound."""
    return Template(Job(id="job-0", number=0, submit_ms=0, **SPEC.decode(spec)), _OF_JOB).copy


@lru_cache(maxsize=_MOST)
def _row_of(life: str) -> Callable[..., JobRow]:
    """Makes the rows of jobs with one life."""
    nobody = Job(id="job-0", number=0, submit_ms=0)
    return Template(
        JobRow(job=nobody, state=JobState.PENDING, **JOB_LIFE.decode(life)), _OF_ROW
    ).copy


def job_row(row: tuple[Any, ...]) -> JobRow:
    """A job from its columns, in the order of `job_columns`, and the text of its spec."""
    number, other_id, name, tenant, user, state, reason, priority, command, submit_ms = row[:10]
    first_start_ms, start_ms, end_ms, attempt, preemptions, failures = row[10:16]
    exit_code, signal, life, _, spec = row[16:]
    job = _job_of(spec)(
        other_id or f"job-{number}",
        number,
        submit_ms,
        intern(tenant),
        intern(user),
        intern(name),
        words(command),
        priority,
    )
    return _row_of(life)(
        job,
        STATES[state],
        reason,
        attempt,
        preemptions,
        failures,
        exit_code,
        signal,
        first_start_ms,
        start_ms,
        end_ms,
    )
