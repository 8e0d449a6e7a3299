"""Durable submissions: 1,000 new jobs in one commit, each with its launch and its event.

The value is jobs per second of wall time, `cpu_value` of CPU time. The floor is the same number of
narrow rows by bare `executemany` in one transaction, with the same log and the same fsync. Beside
them: commits of one job, a bare fsync, pages of a list with 100,000 pending jobs, the counts, a
second start, and the archive.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.progress import show
from benchmarks.result import Result, result, rounded
from benchmarks.stopwatch import Stopwatch, timed
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.request import Request
from gpu_scheduler.store.interface import JobQuery
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, Write
from gpu_scheduler.store.sqlite.store import SqliteStore

BATCH = 1_000
PENDING = 100_000
SINGLES = 300
SYNCS = 100
TARGET = 100_000
NOW_MS = 1_760_000_000_000
MEMBERS = (Request.for_gpus(1000, cpu_milli=4000, memory_mb=16_384),)


def measure(repeats: int) -> Result:
    """Fill a store with 100,000 pending jobs, then read it, open it again and archive."""
    folder = tempfile.mkdtemp(prefix="tgpu-store-")
    path = Path(folder) / "scheduler.db"
    try:
        return _measure(path, repeats)
    finally:
        for file in Path(folder).iterdir():
            file.unlink()
        Path(folder).rmdir()


def _measure(path: Path, repeats: int) -> Result:
    store = SqliteStore(path)
    show("store: pages of an empty queue")
    empty = _pages(store, repeats)
    batches = _fill(store)
    show("store: commits of one job")
    singles = _singles(store)
    pages = _pages(store, repeats)
    counts = timed(lambda: store.count_states(user="user-3"), repeats)
    store.close()
    restart, live = _restart(path, repeats)
    archive = _archive(path)
    return result(
        "store",
        BATCH / median(batches.walls),
        "durable jobs/s in batches of 1,000",
        floor=BATCH / median(bare_rows(path).walls),
        repeats=repeats,
        target=TARGET,
        cpu_value=BATCH / median(batches.cpus),
        best_jobs_per_second=rounded(BATCH / batches.wall),
        slowest_batch_ms=_ms(max(batches.walls)),
        singles_per_second=rounded(1 / median(singles.walls)),
        single_cpu_us=rounded(1e6 * median(singles.cpus)),
        bare_fsyncs_per_second=rounded(1 / median(_bare_syncs(path).walls)),
        bytes_per_job=round(path.stat().st_size / PENDING),
        empty_page_ms={name: _ms(watch.wall) for name, watch in empty.items()},
        page_ms={name: _ms(watch.wall) for name, watch in pages.items()},
        counts_ms=_ms(counts.wall),
        open_ms=_ms(restart.wall),
        live_jobs_seconds=rounded(live.wall),
        live_jobs_cpu_seconds=rounded(live.cpu),
        archived_per_second=rounded(BATCH / median(archive.walls)),
    )


def _job(number: int) -> Job:
    return Job(
        id=f"job-{number}",
        number=number,
        submit_ms=NOW_MS + number // BATCH,
        tenant=f"tenant-{number // BATCH % 3}",
        user=f"user-{number // BATCH % 10}",
        name="train",
        command=("python", "train.py", "--seed", str(number)),
        members=MEMBERS,
    )


def _writes(first: int, count: int) -> list[Write]:
    """New jobs as the control loop writes them; the commands differ, the rest is alike."""
    writes: list[Write] = []
    for number in range(first, first + count):
        job = _job(number)
        since_ms = job.submit_ms
        launch = Launch(argv=job.command, workdir="/home/ada/run", captured="e1", uid=1000)
        writes.append(
            JobRow(job=job, state=JobState.PENDING, expected_ms=3_600_000, since_ms=since_ms)
        )
        writes.append(LaunchRow(job.id, launch))
        writes.append(EventRow(at_ms=since_ms, kind="submitted", job_id=job.id, user=job.user))
    return writes


def _fill(store: SqliteStore) -> Stopwatch:
    watch = Stopwatch()
    for first in range(1, PENDING, BATCH):
        show(f"store: {first + BATCH - 1} of {PENDING} jobs")
        writes = _writes(first, BATCH)
        with watch.lap():
            store.commit(writes)
    return watch


def _singles(store: SqliteStore) -> Stopwatch:
    watch = Stopwatch()
    for number in range(PENDING + 1, PENDING + SINGLES + 1):
        writes = _writes(number, 1)
        with watch.lap():
            store.commit(writes)
    return watch


def _pages(store: SqliteStore, repeats: int) -> dict[str, Stopwatch]:
    queries = {
        "first": JobQuery(),
        "newest": JobQuery(descending=True),
        "most_urgent": JobQuery(sort="priority", descending=True),
        "mine": JobQuery(user="user-3", states=(JobState.PENDING, JobState.RUNNING)),
        "running": JobQuery(states=(JobState.RUNNING,)),
        "by_name": JobQuery(sort="name"),
    }

    def page(query: JobQuery) -> Callable[[], object]:
        return lambda: (store.find_jobs(query), store.count_jobs(query))

    return {name: timed(page(query), repeats) for name, query in queries.items()}


def _restart(path: Path, repeats: int) -> tuple[Stopwatch, Stopwatch]:
    opening, reading = Stopwatch(), Stopwatch()
    for lap in range(repeats):
        show(f"store: start {lap + 1} of {repeats}")
        with opening.lap():
            store = SqliteStore(path)
        with reading.lap():
            found = store.live_jobs()
        if len(found) != PENDING + SINGLES:
            raise AssertionError(f"{len(found)} jobs came back of {PENDING + SINGLES}")
        store.close()
    return opening, reading


def _archive(path: Path) -> Stopwatch:
    """Ten thousand jobs end and are archived in steps of a thousand."""
    store = SqliteStore(path)
    ended = [
        JobRow(job=_job(number), state=JobState.COMPLETED, end_ms=number)
        for number in range(1, 10 * BATCH + 1)
    ]
    store.commit([*(replace(row, exit_code=0) for row in ended)])
    watch = Stopwatch()
    for _ in range(10):
        with watch.lap():
            store.archive(ended_before_ms=NOW_MS, limit=BATCH)
    store.close()
    return watch


def bare_rows(path: Path) -> Stopwatch:
    """What SQLite alone takes for as many rows of three columns."""
    connection = sqlite3.connect(path.with_name("bare.db"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
    watch = Stopwatch()
    for first in range(0, 50 * BATCH, BATCH):
        rows = [(number, "python train.py", number) for number in range(first, first + BATCH)]
        with watch.lap():
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO bare VALUES (?, ?, ?)", rows)
            connection.execute("COMMIT")
    connection.close()
    return watch


def _bare_syncs(path: Path) -> Stopwatch:
    descriptor = os.open(path.with_name("bare.log"), os.O_CREAT | os.O_WRONLY)
    watch = Stopwatch()
    for _ in range(SYNCS):
        with watch.lap():
            os.write(descriptor, bytes(4096))
            os.fdatasync(descriptor)
    os.close(descriptor)
    return watch


def _ms(seconds: float) -> float:
    return rounded(1000 * seconds)
