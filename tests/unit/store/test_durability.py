"""Acknowledged commits survive any kill."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from gpu_scheduler.model.job import JobState
from gpu_scheduler.store.interface import JobQuery
from gpu_scheduler.store.rows import UsageRow
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.effort import examples
from tests.unit.store.writing_process import BATCH

ROOT = Path(__file__).parents[3]
KILLS = examples(20)


def run_and_kill(path: Path, chance: random.Random) -> int:
    """Let a process write, kill it at a random moment, and return the last acknowledged batch."""
    command = [sys.executable, "-m", "tests.unit.store.writing_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        for _ in range(chance.randint(1, 6)):
            said = process.stdout.readline()
            assert said, "the writing process ended by itself"
        time.sleep(chance.random() * 0.01)  # the moment is what is tested here
        os.kill(process.pid, signal.SIGKILL)
        lines = (said + process.stdout.read()).split(b"\n")
    # A truncated line is no acknowledgement.
    return max(int(line) for line in lines[:-1])


def check_whole(path: Path, promised: int) -> None:
    store = SqliteStore(path)
    jobs = store.find_jobs(JobQuery(limit=10**6, archived=True))
    batches, rest = divmod(len(jobs), BATCH)
    assert rest == 0
    assert batches > promised
    assert [row.job.number for row in jobs] == list(range(1, len(jobs) + 1))
    assert store.next_number() == len(jobs) + 1
    assert store.last_event() == len(jobs)
    assert store.usage() == [UsageRow(None, "batches", None, (batches - 1,))]
    events = store.events(limit=10**6)
    assert [event.job_id for _, event in events] == [row.job.id for row in jobs]
    ended = [row.job.number for row in jobs if row.state is JobState.COMPLETED]
    assert ended == list(range(BATCH, len(jobs), BATCH))
    assert store.count_jobs(JobQuery(archived=True)) == len(jobs)
    assert sum(store.count_states().values()) == len(store.jobs())
    for row in jobs[-BATCH:]:
        launch = store.launch(row.job.id)
        assert launch is not None
        assert launch.argv == ("run", str(row.job.number))
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    missing = """
        SELECT number FROM (SELECT * FROM jobs UNION ALL SELECT * FROM archived_jobs)
        WHERE spec NOT IN (SELECT id FROM specs) OR launch NOT IN (SELECT id FROM launches)
    """
    assert connection.execute(missing).fetchall() == []
    connection.close()


def test_killing_writer_at_any_time_loses_no_acknowledged_commit(tmp_path: Path) -> None:
    chance = random.Random(7)
    path = tmp_path / "scheduler.db"
    SqliteStore(path).close()
    for _ in range(KILLS):
        check_whole(path, run_and_kill(path, chance))
