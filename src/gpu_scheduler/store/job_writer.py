"""Writing jobs to SQLite, the one thing that has to be fast: a thousand in a few milliseconds.

Job rows and launches come in, statements go to the connection, inside a transaction of the caller.
New jobs go in by statements of many rows each: a statement for each row costs twice as much.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.store.job_values import (
    Counts,
    JobValues,
    count,
    count_new,
    is_fresh,
    later_values,
    number_in,
    own_values,
)
from gpu_scheduler.store.queries import named_queries
from gpu_scheduler.store.rows import JobRow, LaunchRow, NewJobs

SQL = named_queries("write.sql")
CHUNK = 128
"""How many new jobs one statement inserts."""
_INSERT_ONE = f"{SQL['insert_fresh_job']} {SQL['fresh_job_values']}"
_INSERT_CHUNK = f"{SQL['insert_fresh_job']} {', '.join([SQL['fresh_job_values']] * CHUNK)}"
MOST_ALIKE = 256
"""How many jobs with the same wishes one statement inserts, at the most."""


class JobWriter:
    """Keeps jobs and launches, and counts them. `restart` whenever its numbers may be wrong."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """For one connection, without any knowledge yet."""
        self._connection = connection
        self._values = JobValues()
        self.next_number = 1
        self._last_archived = 0

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Begin with what the database says."""
        self.next_number = next_number
        self._last_archived = archived
        self._values.restart(last_spec, last_launch)

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
            values = self._values.fresh(row, launches.pop(row.job.id, None))
            if number >= self.next_number and is_fresh(row):
                fresh.append(values)
            else:
                others.append((*values, *later_values(row)))
        count(latest.values(), counts)
        late = [
            (self._values.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
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
        common = self._values.common(new)
        self._write_shared()
        values = own_values(new)
        start = 0
        while start < len(values):
            size = min(MOST_ALIKE, 1 << (len(values) - start).bit_length() - 1)
            piece = chain.from_iterable(values[start : start + size])
            self._connection.execute(_insert_alike(size), (*common, *piece))
            start += size
        counts: Counts = Counter()
        count_new(new, counts)
        self.add_counts(counts)
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

    # --- statements

    def _insert(self, fresh: list[tuple[Any, ...]]) -> None:
        whole = len(fresh) - len(fresh) % CHUNK
        for start in range(0, whole, CHUNK):
            values = list(chain.from_iterable(fresh[start : start + CHUNK]))
            self._connection.execute(_INSERT_CHUNK, values)
        self._connection.executemany(_INSERT_ONE, fresh[whole:])

    def _write_shared(self) -> None:
        shared = ((self._values.specs, "insert_spec"), (self._values.launches, "insert_launch"))
        for parts, query in shared:
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
    return SQL["insert_alike_jobs"].format(", ".join(["(?, ?, ?, ?)"] * count))


def _json(numbers: Iterable[int]) -> str:
    return msgspec.json.encode(numbers).decode()
