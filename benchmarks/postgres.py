"""Durable submissions on PostgreSQL: 1,000 and 10,000 new jobs in one commit, each with its event.

The value is jobs per second of wall time in commits of 10,000, `cpu_value` of CPU time, that of the
database included. The floor is a bare COPY of the same
bytes into a table with the same columns and indexes, with the same fsync, alternating with ours.
Beside them: commits of 1,000, of one job, a job's move from pending to running (1,000 at a time),
and reading 100,000 jobs. The server is the one of TGPU_TEST_POSTGRES_URL, else a new one with the
defaults of PostgreSQL, fsync included.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import psycopg

from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.store import MEMBERS, NOW_MS
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.plan import Allocation, DeviceShare, Placement
from gpu_scheduler.store.postgres.store import PostgresStore
from gpu_scheduler.store.rows import EventRow, JobRow, NewJobs, Write
from tests.postgres import URL_VARIABLE, OwnPostgres, Postgres, a_server, address_of

TARGET = 25_000
LARGE, SMALL = 10_000, 1_000
SINGLES = 200
MOVES = 10
DURABLE = {"fsync": "on", "full_page_writes": "on"}
_FLOOR = "CREATE TABLE floor (LIKE jobs INCLUDING ALL)"
_COPY_OUT = """COPY (
    SELECT number, name, command, life, tenant, "user", priority, gpu_milli, submit_ms, spec, launch
    FROM jobs WHERE number >= %s ORDER BY number
) TO STDOUT"""
_COPY_IN = """COPY floor (
    number, name, command, life, tenant, "user", priority, gpu_milli, submit_ms, spec, launch
) FROM STDIN"""


def measure(repeats: int) -> Result:
    """One server and one database for all."""
    with _server() as server:
        url = server.make_database()
        try:
            return _measure(server, url, repeats)
        finally:
            server.drop_database(url)


@contextmanager
def _server() -> Iterator[Postgres]:
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield Postgres(url)
    else:
        with a_server(**DURABLE) as server:
            yield server


def _measure(server: Postgres, url: str, repeats: int) -> Result:
    store = PostgresStore(address_of(url))
    with psycopg.connect(url, autocommit=True) as bare:
        bare.execute(_FLOOR)
        large: list[float] = []
        by_cpu: list[float] = []
        floor: list[float] = []
        store.commit([_new(store, SMALL)])
        for lap in range(repeats):
            show(f"postgres: {lap + 1} of {repeats}")
            new = _new(store, LARGE)
            before = _cpu_seconds(server)
            large.append(LARGE / _seconds(lambda new=new: store.commit([new])))  # type: ignore[misc]
            by_cpu.append(LARGE / (_cpu_seconds(server) - before))
            floor.append(LARGE / _bare_copy(bare, new.jobs[0].number))
    small = [SMALL / _seconds(lambda: store.commit([_new(store, SMALL)])) for _ in range(repeats)]
    show("postgres: commits of one job")
    singles = [1 / _seconds(lambda: store.commit([_new(store, 1)])) for _ in range(SINGLES)]
    show("postgres: from pending to running")
    moves = _moves(store)
    jobs = store.next_number() - 1
    read_s = _seconds(store.live_jobs)
    store.close()
    return result(
        "postgres",
        median(large),
        "durable jobs/s, 10,000 in a commit",
        floor=median(floor),
        repeats=repeats,
        target=TARGET,
        cpu_value=median(by_cpu) if isinstance(server, OwnPostgres) else None,
        runs=[rounded(rate) for rate in large],
        floor_runs=[rounded(rate) for rate in floor],
        by_thousand=rounded(median(small)),
        one_by_one=rounded(median(singles)),
        started_per_s=rounded(median(moves)),
        jobs_read_per_s=rounded(jobs / read_s),
    )


def _new(store: PostgresStore, count: int) -> NewJobs:
    first = store.next_number()
    jobs = tuple(
        Job(
            id=f"job-{number}",
            number=number,
            submit_ms=NOW_MS,
            tenant="vision",
            user=f"user-{first % 7}",
            name=f"train-{number}",
            command=("python", "train.py", "--seed", str(number)),
            members=MEMBERS,
        )
        for number in range(first, first + count)
    )
    launch = Launch(argv=("python",), workdir="/home/user/project", uid=1000)
    return NewJobs(at_ms=NOW_MS, jobs=jobs, expected_ms=(3_600_000,) * count, launch=launch)


def _bare_copy(bare: psycopg.Connection[tuple[object, ...]], first: int) -> float:
    """The same rows again, from bytes that are ready."""
    with bare.cursor() as cursor:
        with cursor.copy(_COPY_OUT, (first,)) as copy:
            rows = b"".join(bytes(piece) for piece in copy)

        def put() -> None:
            with cursor.copy(_COPY_IN) as target:
                target.write(rows)

        return _seconds(put)


def _moves(store: PostgresStore) -> list[float]:
    """What a start of a job writes: the job, its allocation and an event; 1,000 at a time."""
    rates = []
    for lap in range(MOVES):
        numbers = range(lap * SMALL + 1, (lap + 1) * SMALL + 1)
        waiting = {row.job.number: row for row in store.live_jobs()}
        writes: list[Write] = []
        for number in numbers:
            row = replace(waiting[number], state=JobState.RUNNING, attempt=1, start_ms=NOW_MS)
            writes += _start(row)
        rates.append(SMALL / _seconds(lambda writes=writes: store.commit(writes)))  # type: ignore[misc]
    return rates


def _start(row: JobRow) -> list[Write]:
    job = row.job
    share = DeviceShare(index=job.number % 8, share_milli=1000, memory_mb=0)
    placement = Placement(
        member=0, node_id=f"node-{job.number % 200}", devices=(share,), cpu_milli=0, memory_mb=0
    )
    return [
        row,
        Allocation(
            id=f"{job.id}.1",
            job_id=job.id,
            task=None,
            attempt=1,
            placements=(placement,),
            start_ms=NOW_MS,
        ),
        EventRow(at_ms=NOW_MS, kind="started", job_id=job.id, user=job.user),
    ]


def _cpu_seconds(server: Postgres) -> float:
    """What this process and, if it is our own, the server have used."""
    used = time.process_time()
    if isinstance(server, OwnPostgres):
        for pid in server.processes():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
