"""From the columns of a job to its row, for 100,000 of them within a second or two at a start.

What jobs share is decoded and checked once and then set, field by field, past the constructors of
the frozen values: these check every field again and take more than half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import intern
from typing import Any

from gpu_scheduler.model.job import Job
from gpu_scheduler.store.codec import JOB_LIFE, SPEC, STATES, words
from gpu_scheduler.store.rows import JobRow

Setter = Callable[[Any, Any], None]
_MOST = 8192


def _setters(kind: type, names: tuple[str, ...]) -> tuple[Setter, ...]:
    return tuple(kind.__dict__[name].__set__ for name in names)


_OF_JOB = ("id", "number", "submit_ms", "tenant", "user", "name", "command", "priority")
_OF_ROW = (
    "job",
    "state",
    "reason",
    "attempt",
    "preemptions",
    "failures",
    "exit_code",
    "signal",
    "first_start_ms",
    "start_ms",
    "end_ms",
)
_set_job = _setters(Job, _OF_JOB)
_set_wishes = _setters(Job, SPEC.names)
_set_row = _setters(JobRow, _OF_ROW)
_set_life = _setters(JobRow, JOB_LIFE.names)


@lru_cache(maxsize=_MOST)
def _wishes(spec: str) -> tuple[tuple[Setter, Any], ...]:
    """What the jobs of one spec have in common, once it has made a job that is sound."""
    sound = Job(id="job-0", number=0, submit_ms=0, **SPEC.decode(spec))
    return tuple(zip(_set_wishes, SPEC.values(sound), strict=True))


@lru_cache(maxsize=_MOST)
def _life(text: str) -> tuple[tuple[Setter, Any], ...]:
    values = JOB_LIFE.decode(text)
    return tuple(zip(_set_life, (values[name] for name in JOB_LIFE.names), strict=True))


def job_row(row: tuple[Any, ...]) -> JobRow:
    """A job from its columns, in the order of `job_columns`, and the text of its spec."""
    number, other_id, name, tenant, user, state, reason, priority, command, submit_ms = row[:10]
    first_start_ms, start_ms, end_ms, attempt, preemptions, failures = row[10:16]
    exit_code, signal, life, _, spec = row[16:]
    job = object.__new__(Job)
    own = (
        other_id or f"job-{number}",
        number,
        submit_ms,
        intern(tenant),
        intern(user),
        intern(name),
        words(command),
        priority,
    )
    for set_field, value in zip(_set_job, own, strict=True):
        set_field(job, value)
    for set_field, value in _wishes(spec):
        set_field(job, value)
    made = object.__new__(JobRow)
    lived = (
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
    for set_field, value in zip(_set_row, lived, strict=True):
        set_field(made, value)
    for set_field, value in _life(life):
        set_field(made, value)
    return made
