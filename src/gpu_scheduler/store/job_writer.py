"""Writing jobs, the one thing that has to be fast: a thousand in a few milliseconds.

Job rows and launches come in, statements go to the connection, inside a transaction of the caller.
What a new job has in common with the one before it is not encoded again, jobs with the same wishes
share one text, and new jobs go in by statements of many rows each: a statement for each row costs
twice as much.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import msgspec

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.states import ENDED, JobState
from gpu_scheduler.store.codec import JOB_LIFE, LAUNCH, SPEC, WORDS
from gpu_scheduler.store.queries import named_queries
from gpu_scheduler.store.rows import JobRow, LaunchRow, NewJobs
from gpu_scheduler.store.shared import SharedParts

SQL = named_queries("write.sql")
CHUNK = 128
"""How many new jobs one statement inserts."""
_INSERT_ONE = f"{SQL['insert_fresh_job']} {SQL['fresh_job_values']}"
_INSERT_CHUNK = f"{SQL['insert_fresh_job']} {', '.join([SQL['fresh_job_values']] * CHUNK)}"
MOST_ALIKE = 256
"""How many jobs with the same wishes one statement inserts, at the most."""
_lived = attrgetter(
    "state",
    "attempt",
    "preemptions",
    "failures",
    "exit_code",
    "signal",
    "first_start_ms",
    "start_ms",
    "end_ms",
)
_wishes = attrgetter(*(name for name in SPEC.names if name != "members"))
_without_argv = attrgetter(*LAUNCH.names[1:])
_FRESH = (JobState.PENDING, 0, 0, 0, None, None, None, None, None)

Counts = Counter[tuple[int, str, str, str]]
"""Changes of the number of jobs by archived, tenant, user and state."""


class JobWriter:
    """Keeps jobs and launches, and counts them. `restart` whenever its numbers may be wrong."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """For one connection, without any knowledge yet."""
        self._connection = connection
        self._specs = SharedParts(lambda job: SPEC.encode(SPEC.values(job)))
        self._launches = SharedParts(LAUNCH.encode)
        self.next_number = 1
        self._last_archived = 0
        # What the job before had, and its texts.
        self._command: tuple[str, ...] | None = None
        self._command_text = ""
        self._members: tuple[Request, ...] | None = None
        self._gpu_milli = 0
        self._life: tuple[Any, ...] | None = None
        self._life_text = ""

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Begin with what the database says."""
        self.next_number = next_number
        self._last_archived = archived
        self._specs.forget(last_spec)
        self._launches.forget(last_launch)

    def keep(self, rows: list[JobRow], launch_rows: list[LaunchRow]) -> None:
        """Insert or replace; of rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        counts: Counts = Counter()
        known = [number for number in latest if number < self.next_number]
        if known:
            self._take_out(known, counts)
        fresh, others = [], []
        for number, row in latest.items():
            job_id = row.job.id
            values = self._values(row, launches.pop(job_id, None))
            other_id = "" if job_id == f"job-{number}" else job_id
            if number >= self.next_number and not other_id and _lived(row) == _FRESH:
                fresh.append(values)
            else:
                others.append((*values, other_id, *_later_values(row)))
        _count(latest.values(), counts)
        late = [(self._launch_number(launch, None), job_id) for job_id, launch in launches.items()]
        self._write_shared()
        self._insert(fresh)
        self._connection.executemany(SQL["upsert_job"], others)
        for launch_number, job_id in late:
            self._set_launch(job_id, launch_number)
        self.add_counts(counts)
        if latest:
            self.next_number = max(self.next_number, max(latest) + 1)

    def keep_new(self, new: NewJobs) -> None:
        """Insert jobs that nobody has written before; what they have in common is bound once."""
        first = new.jobs[0]
        common = (
            first.tenant,
            first.user,
            first.priority,
            first.gpu_milli,
            first.submit_ms,
            self._specs.number((id(first.members), _wishes(first)), first),
            self._launch_number(new.launch, new.launch.argv),
        )
        self._write_shared()
        lives = {expected_ms: _fresh_life(new, expected_ms) for expected_ms in {*new.expected_ms}}
        encode = WORDS.encode
        values = [
            (job.number, job.name, encode(job.command), lives[expected_ms])
            for job, expected_ms in zip(new.jobs, new.expected_ms, strict=True)
        ]
        start = 0
        while start < len(values):
            size = min(MOST_ALIKE, 1 << (len(values) - start).bit_length() - 1)
            piece = chain.from_iterable(values[start : start + size])
            self._connection.execute(_insert_alike(size), (*common, *piece))
            start += size
        self.add_counts(
            Counter({(0, first.tenant, first.user, JobState.PENDING.value): len(values)})
        )
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def move(self, numbers: list[int], table: str, into: str) -> None:
        """Move jobs between the kept and the archived ones, and count them there."""
        listed = _json(numbers)
        archived = int(into == "archived_jobs")
        counts: Counts = Counter()
        for key in self._connection.execute(SQL["states_of"].format(table=table), (listed,)):
            counts[(archived, *key)] += 1
            counts[(1 - archived, *key)] -= 1
        self._connection.execute(SQL["copy_jobs"].format(table=table, into=into), (listed,))
        self._connection.execute(SQL["delete_jobs"].format(table=table), (listed,))
        self.add_counts(counts)
        if archived:
            self._last_archived = max(self._last_archived, *numbers)

    def add_counts(self, counts: Counts) -> None:
        """Change the kept numbers of jobs."""
        changes = [(*key, change) for key, change in counts.items() if change]
        self._connection.executemany(SQL["add_count"], changes)

    # --- what a job becomes

    def _values(self, row: JobRow, launch: Launch | None) -> tuple[Any, ...]:
        """The columns that every job has, in the order of the statements."""
        job = row.job
        if job.command != self._command:
            self._command, self._command_text = job.command, WORDS.encode(job.command)
        if job.members is not self._members:
            self._members, self._gpu_milli = job.members, job.gpu_milli
        life = JOB_LIFE.values(row)
        if life != self._life:
            self._life, self._life_text = life, JOB_LIFE.encode(life)
        return (
            job.number,
            job.name,
            job.tenant,
            job.user,
            row.reason,
            job.priority,
            self._gpu_milli,
            self._command_text,
            job.submit_ms,
            self._life_text,
            # Members are compared by identity, as control keeps equal ones as one object.
            self._specs.number((id(job.members), _wishes(job)), job),
            0 if launch is None else self._launch_number(launch, job.command),
        )

    def _launch_number(self, launch: Launch, command: tuple[str, ...] | None) -> int:
        """A launch of the job's own command is kept without it, and so shared with others."""
        own = launch.argv == command
        key = (None, *_without_argv(launch)) if own else LAUNCH.values(launch)
        return self._launches.number(key, key)

    # --- statements

    def _insert(self, fresh: list[tuple[Any, ...]]) -> None:
        whole = len(fresh) - len(fresh) % CHUNK
        for start in range(0, whole, CHUNK):
            values = list(chain.from_iterable(fresh[start : start + CHUNK]))
            self._connection.execute(_INSERT_CHUNK, values)
        self._connection.executemany(_INSERT_ONE, fresh[whole:])

    def _write_shared(self) -> None:
        for parts, query in ((self._specs, "insert_spec"), (self._launches, "insert_launch")):
            if parts.new:
                self._connection.executemany(SQL[query], parts.new)
                parts.new.clear()
            parts.trim()

    def _take_out(self, numbers: list[int], counts: Counts) -> None:
        """Before jobs are written again: back from the archive, and out of the counts."""
        listed = _json(numbers)
        if any(number <= self._last_archived for number in numbers):
            query = SQL["states_of"].format(table="archived_jobs")
            if self._connection.execute(query, (listed,)).fetchone():
                self.move(numbers, "archived_jobs", "jobs")
        for key in self._connection.execute(SQL["states_of"].format(table="jobs"), (listed,)):
            counts[(0, *key)] -= 1

    def _set_launch(self, job_id: str, launch_number: int) -> None:
        """The launch of a job that is not in this batch."""
        values = (launch_number, number_in(job_id), job_id)
        for table in ("jobs", "archived_jobs"):
            if self._connection.execute(SQL["set_launch"].format(table=table), values).rowcount:
                return
        raise InternalError(f"the launch of job {job_id} came before the job itself")


@cache
def _insert_alike(count: int) -> str:
    """Insert so many jobs: seven values for all of them, then four for each."""
    rows = (SQL["alike_job_values"].format(*range(at, at + 4)) for at in range(8, 8 + 4 * count, 4))
    return f"{SQL['insert_fresh_job']} {', '.join(rows)}"


def _fresh_life(new: NewJobs, expected_ms: int) -> str:
    row = JobRow(
        job=new.jobs[0], state=JobState.PENDING, expected_ms=expected_ms, since_ms=new.at_ms
    )
    return JOB_LIFE.encode(JOB_LIFE.values(row))


def _count(rows: Iterable[JobRow], counts: Counts) -> None:
    """Count rows; neighbours of one kind are counted together, as jobs come in runs."""
    for (tenant, user, state), alike in groupby(rows, key=_kind):
        counts[(0, tenant, user, state.value)] += sum(1 for _ in alike)


_kind = attrgetter("job.tenant", "job.user", "state")


def _later_values(row: JobRow) -> tuple[Any, ...]:
    """The columns that a job which has never started does not need."""
    return (
        row.state.value,
        int(row.state in ENDED),
        row.first_start_ms,
        row.start_ms,
        row.end_ms,
        row.attempt,
        row.preemptions,
        row.failures,
        row.exit_code,
        row.signal,
    )


def number_in(job_id: str) -> int | None:
    """The number in an id of the common form `job-<number>`; None in any other."""
    digits = job_id.removeprefix("job-")
    if digits != job_id and digits.isdecimal() and job_id == f"job-{int(digits)}":
        return int(digits)
    return None


def _json(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(numbers).decode()
