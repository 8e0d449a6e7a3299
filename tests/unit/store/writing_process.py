"""A process that commits batches until it is killed, and prints each batch once it is durable.

Run with the path of a store. Batch `n` has the jobs 10n+1 to 10n+10, a launch and an event for
each, and a row that counts batches.
"""

import os
import sys

from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.store.rows import EventRow, JobRow, LaunchRow, UsageRow, Write
from gpu_scheduler.store.sqlite.store import SqliteStore
from tests.builders import a_job

BATCH = 10


def a_batch(batch: int) -> list[Write]:
    writes: list[Write] = [UsageRow(None, "batches", None, (batch,))]
    for number in range(BATCH * batch + 1, BATCH * batch + BATCH + 1):
        job = a_job(number=number, id=f"job-{number}", name=f"batch {batch}")
        writes.append(JobRow(job=job, state=JobState.PENDING))
        writes.append(LaunchRow(job.id, Launch(argv=("run", str(number)))))
        writes.append(EventRow(at_ms=batch, kind="submitted", job_id=job.id))
    # A job of the previous batch ends, so that rows are changed as well.
    if batch:
        ended = a_job(number=BATCH * batch, id=f"job-{BATCH * batch}", name=f"batch {batch - 1}")
        writes.append(JobRow(job=ended, state=JobState.COMPLETED, end_ms=batch))
    return writes


def main() -> None:
    store = SqliteStore(sys.argv[1])
    batch = (store.next_number() - 1) // BATCH
    while True:
        store.commit(a_batch(batch))
        os.write(1, f"{batch}\n".encode())
        batch += 1
        if batch % 7 == 0:
            store.archive(ended_before_ms=batch - 3, limit=5)


if __name__ == "__main__":
    main()
