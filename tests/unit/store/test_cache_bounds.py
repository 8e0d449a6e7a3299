"""The caches of a store stay small, however many jobs end and however long their scripts are."""

from contextlib import ExitStack
from pathlib import Path

from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store import job_columns
from gpu_scheduler.store.codec import LAUNCH
from gpu_scheduler.store.interface import JobQuery
from gpu_scheduler.store.job_columns import MAX_CACHED_CHARS, MAX_CACHED_LIVES, SharedTexts
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.store.sqlite.store import MOST_IDLE, SqliteStore
from tests.builders import a_job


def test_ended_jobs_do_not_fill_the_cache(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "scheduler.db")
    jobs = [a_job(number=number, id=f"job-{number}") for number in range(1, 2_001)]
    rows = [JobRow(job=job, state=JobState.COMPLETED, served_ms=job.number) for job in jobs]
    store.commit([*rows])
    read = store.find_jobs(JobQuery(limit=len(rows)))
    assert {row.job.id: row.served_ms for row in read} == {job.id: job.number for job in jobs}
    assert job_columns._row_factory.cache_info().currsize <= MAX_CACHED_LIVES
    store.close()


def test_long_scripts_do_not_fill_the_cache() -> None:
    texts = SharedTexts(LAUNCH.encode)
    lengths = []
    for number in range(100):
        script = f"#!/bin/sh\necho {number}\n" + "#" * 100_000
        texts.number(LAUNCH.values(Launch(script=script)))
        texts.new.clear()
        texts.trim()
        lengths.append(sum(map(len, texts._by_text)))
    assert 0 < max(lengths) <= MAX_CACHED_CHARS
    assert texts.number(LAUNCH.values(Launch(argv=("true",)))) == 101


def test_readers_close_after_a_burst(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "scheduler.db")
    with ExitStack() as burst:
        readers = [burst.enter_context(store._reader()) for _ in range(4 * MOST_IDLE)]
        assert len(set(map(id, readers))) == len(readers)
    assert len(store._idle) == MOST_IDLE
    assert store.find_jobs(JobQuery(limit=1)) == []
    store.close()
