"""SQLite tables are readable by people, and lists use indexes."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import JobState, Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.interface import JobQuery
from gpu_scheduler.store.rows import AttemptRow, EventRow, JobRow, LaunchRow, UsageRow
from gpu_scheduler.store.sql_queries import SQLITE, migrations, named_queries
from gpu_scheduler.store.sql_reader import page_statement
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_job, a_node, a_tenant, on, running

PENDING, RUNNING = JobState.PENDING, JobState.RUNNING
HOUR_MS = 3_600_000


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A small busy cluster, opened as the sqlite3 program would."""
    store = SqliteStore(tmp_path / "scheduler.db")
    half = a_job(number=2, id="job-2", gpus=0.5, command=("python", "train.py"))
    allocation = running(half, on("n0", {3: 500}), start_ms=HOUR_MS).allocation
    whole = a_job(number=1, id="job-1", gpus=8, name="wide")
    store.commit(
        [
            JobRow(job=whole, state=PENDING, reason="waits for 8 GPUs"),
            JobRow(job=half, state=RUNNING, first_start_ms=HOUR_MS, start_ms=HOUR_MS, attempt=1),
            LaunchRow("job-2", Launch(argv=("python", "train.py"), captured="e1")),
            EventRow(at_ms=0, kind="submitted", job_id="job-1", user="ada"),
            EventRow(at_ms=HOUR_MS, kind="running", job_id="job-2", data=(("gpus", 1),)),
            a_node(gpus=4),
            a_tenant(gpus=16),
            PoolQuota(pool=Pool.ONLINE, percent=30),
            allocation,
            UsageRow(0, "vision", "ada", (7_200_000_000, 0, 0, 0, 1, 2, 0, 0, 0)),
            AttemptRow(
                allocation_id="job-3.1",
                job_id="job-3",
                task=None,
                attempt=1,
                placements=(on("n0", [1, 2]),),
                start_ms=0,
                end_ms=1,
                state=JobState.FAILED,
            ),
        ]
    )
    store.close()
    opened = sqlite3.connect(tmp_path / "scheduler.db")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            "SELECT id, state, gpu_count, command FROM jobs",
            [("job-1", "pending", 8.0, "[]"), ("job-2", "running", 0.5, '["python","train.py"]')],
        ),
        ("SELECT id, name, reason FROM queue", [("job-1", "wide", "waits for 8 GPUs")]),
        (
            "SELECT submitted, started, ended, waited_seconds FROM job_times WHERE number = 2",
            [("1970-01-01 00:00:00", "1970-01-01 01:00:00", None, 3600.0)],
        ),
        ("SELECT launch FROM job_specs WHERE id = 'job-2'", [('{"captured":"e1"}',)]),
        (
            "SELECT sequence, at, kind, job_id, data FROM events",
            [
                (1, "1970-01-01 00:00:00", "submitted", "job-1", "[]"),
                (2, "1970-01-01 01:00:00", "running", "job-2", '[["gpus",1]]'),
            ],
        ),
        (
            "SELECT node, gpu, model, paused FROM gpus WHERE gpu > 1",
            [("n0", 2, "A100", 0), ("n0", 3, "A100", 0)],
        ),
        ("SELECT id, state FROM nodes", [("n0", "online")]),
        ("SELECT id, tier, max_gpus FROM tenants", [("vision", "medium", 16.0)]),
        ("SELECT pool, percent FROM pools", [("online", 30)]),
        (
            "SELECT job_id, member, node, gpu, share FROM allocated_gpus",
            [("job-2", 0, "n0", 3, 0.5)],
        ),
        ("SELECT job_id, gpu FROM attempt_gpus", [("job-3", 1), ("job-3", 2)]),
        (
            "SELECT period, user, gpu_hours, failed FROM account_totals",
            [("1970-01-01", "ada", 2.0, 2)],
        ),
        ("SELECT state, jobs FROM job_counts", [("pending", 1), ("running", 1)]),
        ("SELECT schema_version, next_number, last_event FROM meta", [(migrations()[-1][0], 3, 2)]),
    ],
)
def test_tables_are_human_readable(
    connection: sqlite3.Connection, query: str, rows: list[tuple[object, ...]]
) -> None:
    assert connection.execute(query).fetchall() == rows


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (JobQuery(), "jobs_by_number"),
        (JobQuery(descending=True, after_number=5), "jobs_by_number"),
        (JobQuery(user="ada", states=(PENDING, RUNNING)), "jobs_by_user"),
        (JobQuery(tenant="vision", archived=True), "archived_jobs_by_tenant"),
        (JobQuery(sort="priority", descending=True), "jobs_by_priority"),
        (JobQuery(states=(RUNNING,), sort="start_ms"), "jobs_by_state"),
        (JobQuery(states=(JobState.FAILED,), sort="end_ms", descending=True), "jobs_by_end"),
        (JobQuery(numbers=IntervalSet.parse("3-5,9")), "PRIMARY KEY"),
    ],
)
def test_list_uses_index(connection: sqlite3.Connection, query: JobQuery, index: str) -> None:
    statement, values = page_statement(SQLITE, query, None)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    assert any(index in step for step in plan), plan
    assert not any(step.startswith("SCAN jobs") and "USING" not in step for step in plan), plan


def test_every_query_has_name_and_use() -> None:
    code = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (Path(__file__).parents[3] / "src" / "gpu_scheduler" / "store").rglob("*.py")
    )
    for file in ("read.sql", "write.sql"):
        unused = [name for name in named_queries(file) if f'"{name}"' not in code]
        assert [name for name in unused if f"'{name}'" not in code] == []
