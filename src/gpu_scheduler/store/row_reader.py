"""From the columns of a row to what it means, for every kind of row but jobs.

The order of the columns is that of `read.sql`, whatever the database.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache
from sys import intern
from typing import Any

from gpu_scheduler.model.identity import Role, Token
from gpu_scheduler.model.job import Job, JobState, Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.plan import Allocation
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.store.codec import (
    JOB_LIFE,
    LAUNCH,
    LIFE_COLUMNS,
    MEETING,
    MODELS,
    PLACEMENTS,
    SPEC,
    STATES,
    TASK_LIFE,
    TOTALS,
    VARIABLES,
    words,
)
from gpu_scheduler.store.contract import SweepCount
from gpu_scheduler.store.job_values import Template
from gpu_scheduler.store.rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    EstimateRow,
    JobRow,
    NoticeRow,
    TaskRow,
    UsageRow,
)

_HOUR_FIELDS = tuple(field.name for field in fields(DeviceHour))
_ESTIMATE_FIELDS = ("job_id", "tenant", "user", "made_ms", "promised_ms", "basis", "start_ms")


def task_row(row: tuple[Any, ...]) -> TaskRow:
    """A task of an array."""
    return TaskRow(
        job_id=row[0],
        task=row[1],
        state=STATES[row[2]],
        attempt=row[3],
        preemptions=row[4],
        failures=row[5],
        exit_code=row[6],
        signal=row[7],
        first_start_ms=row[8],
        start_ms=row[9],
        end_ms=row[10],
        **TASK_LIFE.decode(row[11]),
    )


def launch(row: tuple[str, str]) -> Launch:
    """How a job is run: its own command, unless the launch has another."""
    found = dict(LAUNCH.decode(row[1]))
    if found["argv"] is None:
        found["argv"] = words(row[0])
    return Launch(**found)


def variables(row: tuple[str]) -> dict[str, str]:
    """A captured environment."""
    return dict(VARIABLES.decode(row[0]))


def state_count(row: tuple[str, int]) -> tuple[JobState, int]:
    """How many jobs are in a state."""
    return STATES[row[0]], row[1]


def sweep_count(row: tuple[str, str, int, int, int, int]) -> SweepCount:
    """How many jobs of a sweep are in a state."""
    name, state, jobs, first, last, submit_ms = row
    return SweepCount(
        name=name, state=STATES[state], jobs=jobs, first=first, last=last, submit_ms=submit_ms
    )


def attempt_row(row: tuple[Any, ...]) -> AttemptRow:
    """An attempt that has ended."""
    return AttemptRow(
        allocation_id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        placements=PLACEMENTS.decode(row[4]),
        start_ms=row[5],
        end_ms=row[6],
        state=STATES[row[7]],
        exit_code=row[8],
        signal=row[9],
        detail=row[10],
        gpu_models=MODELS.decode(row[11]),
    )


def _measure(values: tuple[Any, ...]) -> Measure:
    gpu_ms, busy_percent_ms, peak_percent, power_ms, energy_uj, peak_memory_mb = values
    return Measure(
        gpu_ms=gpu_ms,
        busy_percent_ms=busy_percent_ms,
        peak_percent=peak_percent,
        power_ms=power_ms,
        energy_uj=energy_uj,
        peak_memory_mb=peak_memory_mb,
    )


def attempt_measure(row: tuple[Any, ...]) -> AttemptMeasure:
    """What was measured on an attempt."""
    return AttemptMeasure(
        allocation_id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        warning=row[4],
        measure=_measure(row[5:]),
    )


def job_measure(row: tuple[Any, ...]) -> tuple[str, Measure]:
    """What was measured, and on what."""
    return row[0], _measure(row[1:])


def device_hour(row: tuple[Any, ...]) -> DeviceHour:
    """An hour of a device."""
    return DeviceHour(**dict(zip(_HOUR_FIELDS, row, strict=True)))


def answer_row(row: tuple[Any, ...]) -> AnswerRow:
    """What was answered."""
    user, key, request_hash, status, body, at_ms = row
    return AnswerRow(
        user=user, key=key, request_hash=request_hash, status=status, body=body, at_ms=at_ms
    )


def notice_row(row: tuple[Any, ...]) -> NoticeRow:
    """A notification that waits."""
    notice_id, target, at_ms, document, next_ms, tries, error = row
    return NoticeRow(
        id=notice_id,
        target=target,
        at_ms=at_ms,
        document=document,
        next_ms=next_ms,
        tries=tries,
        error=error,
    )


def allocation(row: tuple[Any, ...]) -> Allocation:
    """What is held."""
    return Allocation(
        id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        placements=PLACEMENTS.decode(row[4]),
        start_ms=row[5],
        rendezvous=MEETING.decode(row[6]) if row[6] else None,
    )


def token(row: tuple[Any, ...]) -> Token:
    """A token, by the hash of its secret."""
    return Token(
        id=row[0],
        secret_hash=row[1],
        name=row[2],
        user=row[3],
        uid=row[4],
        tenant=row[5],
        role=Role(row[6]),
        created_by=row[7],
        created_ms=row[8],
        expires_ms=row[9],
        last_used_ms=row[10],
        revoked_ms=row[11],
    )


def audit_row(row: tuple[Any, ...]) -> tuple[int, AuditRow]:
    """A record with its number."""
    return row[0], AuditRow(*row[1:])


def estimate(row: tuple[Any, ...]) -> EstimateRow:
    """What a job was told."""
    return EstimateRow(**dict(zip(_ESTIMATE_FIELDS, row, strict=True)))


def pool(row: tuple[Any, ...]) -> PoolQuota:
    """The part of a pool."""
    return PoolQuota(pool=Pool(row[0]), percent=row[1], elastic=bool(row[2]))


def usage_row(row: tuple[Any, ...]) -> UsageRow:
    """The totals of an account."""
    return UsageRow(row[0], row[1], row[2], TOTALS.decode(row[3]))


# --- From the columns of a job to its row, for 100,000 of them within a second at a start.
#
# What jobs share is decoded and checked once; each is then a copy of the first with fields of its
# own, as constructors check every field again and take more than half of the time.

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
