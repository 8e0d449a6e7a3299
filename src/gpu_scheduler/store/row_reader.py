"""From the columns of a row to a value of the model or a row type, for all databases.

The order of the columns is that of the queries in `read.sql`. Jobs are decoded fast: a start of the
server reads 100,000 of them within a second. What jobs share (spec, life) is decoded and validated
once; each job is then a copy with its own fields, because constructors validate every field again.
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
    decode_command,
)
from gpu_scheduler.store.contract import SweepCount
from gpu_scheduler.store.job_columns import copy_factory
from gpu_scheduler.store.rows import (
    AttemptRow,
    AuditRow,
    EstimateRow,
    JobRow,
    NoticeRow,
    ResponseRow,
    TaskRow,
    UsageRow,
)

_HOUR_FIELDS = tuple(field.name for field in fields(DeviceHour))
_ESTIMATE_FIELDS = ("job_id", "tenant", "user", "made_ms", "promised_ms", "basis", "start_ms")


def task_row(row: tuple[Any, ...]) -> TaskRow:
    """Return a task of an array."""
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
    """Return the launch of a job, which runs the job's command unless it has its own."""
    found = dict(LAUNCH.decode(row[1]))
    if found["argv"] is None:
        found["argv"] = decode_command(row[0])
    return Launch(**found)


def variables(row: tuple[str]) -> dict[str, str]:
    """Return a captured environment."""
    return dict(VARIABLES.decode(row[0]))


def state_count(row: tuple[str, int]) -> tuple[JobState, int]:
    """Return a state and the number of its jobs."""
    return STATES[row[0]], row[1]


def sweep_count(row: tuple[str, str, int, int, int, int]) -> SweepCount:
    """Return the number of jobs of a sweep in one state."""
    name, state, jobs, first, last, submit_ms = row
    return SweepCount(
        name=name, state=STATES[state], jobs=jobs, first=first, last=last, submit_ms=submit_ms
    )


def attempt_row(row: tuple[Any, ...]) -> AttemptRow:
    """Return an attempt that has ended."""
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
    """Return the measurements of an attempt."""
    return AttemptMeasure(
        allocation_id=row[0],
        job_id=row[1],
        task=row[2],
        attempt=row[3],
        warning=row[4],
        measure=_measure(row[5:]),
    )


def job_measure(row: tuple[Any, ...]) -> tuple[str, Measure]:
    """Return an id and its measurements."""
    return row[0], _measure(row[1:])


def device_hour(row: tuple[Any, ...]) -> DeviceHour:
    """Return the readings of a device in one hour."""
    return DeviceHour(**dict(zip(_HOUR_FIELDS, row, strict=True)))


def response_row(row: tuple[Any, ...]) -> ResponseRow:
    """Return the stored response to a request."""
    user, key, request_hash, status, body, at_ms = row
    return ResponseRow(
        user=user, key=key, request_hash=request_hash, status=status, body=body, at_ms=at_ms
    )


def notice_row(row: tuple[Any, ...]) -> NoticeRow:
    """Return a notification that waits to be delivered."""
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
    """Return an allocation."""
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
    """Return a token; it holds the hash of its secret."""
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
    """Return an entry of the audit log with its number."""
    return row[0], AuditRow(*row[1:])


def estimate(row: tuple[Any, ...]) -> EstimateRow:
    """Return the estimated start of a job."""
    return EstimateRow(**dict(zip(_ESTIMATE_FIELDS, row, strict=True)))


def pool(row: tuple[Any, ...]) -> PoolQuota:
    """Return the quota of a pool."""
    return PoolQuota(pool=Pool(row[0]), percent=row[1], elastic=bool(row[2]))


def usage_row(row: tuple[Any, ...]) -> UsageRow:
    """Return the totals of an account."""
    return UsageRow(row[0], row[1], row[2], TOTALS.decode(row[3]))


_MAX_CACHED = 8192
_JOB_FIELDS = ("id", "number", "submit_ms", "tenant", "user", "name", "command", "priority")
_ROW_FIELDS = ("job", "state", "reason", *LIFE_COLUMNS[1:])


@lru_cache(maxsize=_MAX_CACHED)
def _job_factory(spec: str) -> Callable[..., Job]:
    """Return a function that makes the jobs of one spec, which is validated here."""
    return copy_factory(Job(id="job-0", number=0, submit_ms=0, **SPEC.decode(spec)), _JOB_FIELDS)


@lru_cache(maxsize=_MAX_CACHED)
def _row_factory(life: str) -> Callable[..., JobRow]:
    """Return a function that makes the rows of jobs with the same `life`."""
    placeholder = Job(id="job-0", number=0, submit_ms=0)
    row = JobRow(job=placeholder, state=JobState.PENDING, **JOB_LIFE.decode(life))
    return copy_factory(row, _ROW_FIELDS)


def job_row(row: tuple[Any, ...]) -> JobRow:
    """Return a job; the columns are those of `job_columns`, and then the text of its spec."""
    number, other_id, name, tenant, user, state, reason, priority, command, submit_ms = row[:10]
    first_start_ms, start_ms, end_ms, attempt, preemptions, failures = row[10:16]
    exit_code, signal, life, _, spec = row[16:]
    job = _job_factory(spec)(
        other_id or f"job-{number}",
        number,
        submit_ms,
        intern(tenant),
        intern(user),
        intern(name),
        decode_command(command),
        priority,
    )
    return _row_factory(life)(
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
