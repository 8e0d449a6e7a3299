"""Writing jobs to PostgreSQL: many new ones by COPY, all others by one statement for a batch.

Job rows and launches come in, statements go to the connection, inside a transaction of the caller.
Nothing is asked in between, so that a batch costs few round trips however large it is.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from psycopg import Cursor

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.store.codec import LAUNCH
from gpu_scheduler.store.job_values import (
    Counts,
    JobValues,
    count,
    count_new,
    later_values,
    number_in,
    own_values,
)
from gpu_scheduler.store.postgres.adapting import copied
from gpu_scheduler.store.postgres.connection import Connection
from gpu_scheduler.store.postgres.statements import JOBS, Statements, arrays
from gpu_scheduler.store.queries import named_queries
from gpu_scheduler.store.rows import JobRow, LaunchRow, NewJobs

SQL = {name: text.encode() for name, text in named_queries("postgres/write.sql").items()}
LEAST_COPIED = 100
"""So many new jobs are worth a COPY, which has to be waited for."""
COPIED_AT_ONCE = 5_000
NULL = "\\N"


class JobWriter:
    """Keeps jobs and launches, and counts them. `restart` whenever its numbers may be wrong."""

    def __init__(self) -> None:
        """Without any knowledge yet."""
        self._values = JobValues()
        self.next_number = 1
        self._last_archived = 0
        self._set_launches: list[tuple[str, Cursor[Any]]] = []

    def restart(self, next_number: int, last_spec: int, last_launch: int, archived: int) -> None:
        """Begin with what the database says."""
        self.next_number = next_number
        self._last_archived = archived
        self._values.restart(last_spec, last_launch)
        self._set_launches.clear()

    def copy_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert many jobs that nobody has written before; not within a pipeline."""
        common = self._values.common(new)
        self._write_shared(connection)
        tenant, user, priority, gpu_milli, submit_ms, spec, launch = common
        same = f"{copied(tenant)}\t{copied(user)}\t{priority}\t{gpu_milli}\t{submit_ms}\t{spec}\t"
        same += f"{launch or NULL}\n"
        lines = [
            f"{number}\t{copied(name)}\t{copied(command)}\t{copied(life)}\t{same}"
            for number, name, command, life in own_values(new)
        ]
        with connection.cursor() as cursor, cursor.copy(SQL["copy_new_jobs"]) as copy:
            for start in range(0, len(lines), COPIED_AT_ONCE):
                copy.write("".join(lines[start : start + COPIED_AT_ONCE]))
        self._have_new(connection, new)

    def keep_new(self, connection: Connection, new: NewJobs) -> None:
        """Insert a few jobs that nobody has written before."""
        common = self._values.common(new)
        self._write_shared(connection)
        names = ("tenant", "user", "priority", "gpu_milli", "submit_ms", "spec", "launch")
        values: dict[str, Any] = dict(zip(names, common, strict=True))
        own = ("numbers", "names", "commands", "lives")
        values |= dict(zip(own, arrays(own_values(new)), strict=True))
        connection.execute(SQL["insert_new_jobs"], values)
        self._have_new(connection, new)

    def keep(
        self,
        connection: Connection,
        statements: Statements,
        rows: list[JobRow],
        launch_rows: list[LaunchRow],
    ) -> None:
        """Insert or replace; of rows with one number, the last counts."""
        latest = {row.job.number: row for row in rows}
        launches = {row.job_id: row.launch for row in launch_rows}
        known = [number for number in latest if number < self.next_number]
        back = [number for number in known if number <= self._last_archived]
        if back:
            self.move(connection, back, "archived_jobs", "jobs")
        counts: Counts = Counter()
        count(latest.values(), counts)
        self.add_counts(connection, counts, known)
        values = []
        for row in latest.values():
            fresh = self._values.fresh(row, launches.pop(row.job.id, None))
            values.append((*fresh[:-1], fresh[-1] or None, *later_values(row)))
        late = [
            (self._values.launch_number(launch, None), job_id)
            for job_id, launch in launches.items()
        ]
        self._write_shared(connection)
        if values:
            connection.execute(statements.insertion(JOBS), arrays(values))
            self.next_number = max(self.next_number, max(latest) + 1)
        for number, job_id in late:
            given = {"launch": number, "number": number_in(job_id), "job_id": job_id}
            self._set_launches.append((job_id, connection.execute(SQL["set_launch"], given)))

    def check(self) -> None:
        """After the statements were done: every launch has found its job."""
        found, self._set_launches = self._set_launches, []
        for job_id, cursor in found:
            row = cursor.fetchone()
            if row is None or not row[0]:
                raise InternalError(f"the launch of job {job_id} came before the job itself")

    def move(self, connection: Connection, numbers: list[int], table: str, into: str) -> None:
        """Move jobs between the kept and the archived ones, and count them there."""
        archived = int(into == "archived_jobs")
        shift = SQL["shift_counts"].replace(b"{table}", table.encode())
        connection.execute(shift, {"into": archived, "numbers": numbers})
        move = (
            SQL["move_jobs"].replace(b"{table}", table.encode()).replace(b"{into}", into.encode())
        )
        connection.execute(move, (numbers,))
        if archived:
            self._last_archived = max(self._last_archived, *numbers)

    def add_counts(self, connection: Connection, counts: Counts, known: list[int]) -> None:
        """Change the kept numbers of jobs: some more, and those that are known go out."""
        changes = [(*key, change) for key, change in counts.items() if change]
        if not changes and not known:
            return
        names = ("archived", "tenants", "users", "states", "jobs")
        columns = arrays(changes) if changes else [[] for _ in names]
        values = dict(zip(names, columns, strict=True)) | {"known": known}
        connection.execute(SQL["add_counts"], values)

    def _have_new(self, connection: Connection, new: NewJobs) -> None:
        counts: Counts = Counter()
        count_new(new, counts)
        self.add_counts(connection, counts, [])
        self.next_number = max(self.next_number, new.jobs[-1].number + 1)

    def _write_shared(self, connection: Connection) -> None:
        specs, launches = self._values.specs, self._values.launches
        if specs.new:
            connection.execute(SQL["insert_specs"], arrays(specs.new))
            specs.new.clear()
        if launches.new:
            rows = [(number, text, *_named_in(text)) for number, text in launches.new]
            connection.execute(SQL["insert_launches"], arrays(rows))
            launches.new.clear()
        specs.trim()
        launches.trim()


def _named_in(launch: str) -> tuple[str | None, str | None]:
    """The environment and the sweep that a launch names, by which it is looked for."""
    found = LAUNCH.decode(launch)
    return found["captured"] or None, found["sweep"] or None
