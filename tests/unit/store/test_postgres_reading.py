"""PostgreSQL lists use indexes, and its views are readable."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.interface import JobQuery, JobVisibility
from gpu_scheduler.store.postgres.store import POSTGRES, PostgresStore, to_psycopg
from gpu_scheduler.store.rows import EventRow, JobRow, NewJobs, UsageRow
from gpu_scheduler.store.sql_reader import page_statement
from tests.builders import a_job, a_node, a_tenant, on, running
from tests.postgres import address_of, shared_server

JOBS = 20_000
VIEWS = (
    *("account_totals", "allocated_gpus", "attempt_gpus", "events", "gpu_hours", "gpus"),
    *("job_specs", "job_times", "measured_attempts", "queue", "tenant_quotas"),
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = shared_server()
    url = server.make_database()
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
def store(url: str) -> Iterator[PostgresStore]:
    """Many waiting jobs, one that runs, one that has ended."""
    store = PostgresStore(address_of(url))
    jobs = tuple(a_job(number=n, id=f"job-{n}", name=f"n{n}") for n in range(1, JOBS + 1))
    launch = Launch(argv=("x",), workdir="/w")
    store.commit([NewJobs(at_ms=5, jobs=jobs, expected_ms=(1,) * JOBS, launch=launch)])
    held = running(a_job(number=1), on("n0", [0])).allocation
    waiting = JobRow(job=jobs[0], state=JobState.RUNNING, start_ms=6)
    ended = replace(waiting, job=jobs[1], state=JobState.FAILED, end_ms=7, exit_code=3)
    usage = UsageRow(None, "vision", None, (3_600_000_000, 0, 0, 0, 1, 2, 3, 4, 5))
    store.commit([waiting, ended, held, a_node(), a_tenant(), usage])
    store.commit([EventRow(at_ms=8, kind="failed", job_id="job-2", data=(("code", 3),))])
    shared_server().execute("ANALYZE", url)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (JobQuery(), "jobs_live"),
        (JobQuery(descending=True), "jobs_live"),
        (JobQuery(states=(JobState.RUNNING,)), "jobs_by_state"),
        (
            JobQuery(states=(JobState.PENDING,), sort="priority", descending=True),
            "jobs_by_priority",
        ),
        (JobQuery(states=(JobState.FAILED,), sort="end_ms", descending=True), "jobs_by_end"),
        (JobQuery(user="somebody"), "jobs_by_user"),
        (JobQuery(visibility=JobVisibility(user="ada")), "jobs_live"),
    ],
)
def test_list_uses_index(store: PostgresStore, query: JobQuery, index: str) -> None:
    statement, values = page_statement(POSTGRES, query, None)
    explained = b"EXPLAIN " + to_psycopg(statement)
    rows = store.use(lambda connection: connection.execute(explained, values).fetchall())
    plan = "\n".join(line for (line,) in rows)
    assert index in plan
    assert "Seq Scan on jobs" not in plan


def test_every_view_is_readable(store: PostgresStore, url: str) -> None:
    assert store.count_states()[JobState.RUNNING] == 1
    server = shared_server()
    found = {view: server.execute(f"SELECT * FROM {view} LIMIT 3", url) for view in VIEWS}
    empty = {"attempt_gpus", "measured_attempts", "gpu_hours"}
    assert {view for view, rows in found.items() if not rows} == empty
    of_job = server.execute("SELECT kind, data->0->>1 FROM events WHERE job_id = 'job-2'", url)
    assert of_job == [("submitted", None), ("failed", "3")]
    assert server.execute("SELECT gpu_hours, completed FROM account_totals", url) == [(1, 1)]
    listed = server.execute("SELECT viewname FROM pg_views WHERE schemaname = 'public'", url)
    assert sorted(name for (name,) in listed) == sorted(VIEWS)


def test_snapshot_reads_control_characters_as_they_were_written(store: PostgresStore) -> None:
    """PostgreSQL cannot store NUL, so two characters are escaped in every text."""
    name = "a\0b\x01c"
    job = a_job(number=9_001, id="job-9001", name=name)
    store.commit([JobRow(job=job, state=JobState.PENDING)])
    assert store.read_snapshot(lambda snapshot: snapshot.job("job-9001")) == store.job("job-9001")
    row = store.job("job-9001")
    assert row is not None
    assert row.job.name == name
