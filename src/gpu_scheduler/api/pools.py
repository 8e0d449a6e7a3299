"""What the two kinds of work, online and batch, hold of all GPUs, and what each is sure of."""

from __future__ import annotations

from gpu_scheduler.control.book import Book
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.wire.answers import PoolUse


def pool_uses(book: Book) -> list[PoolUse]:
    """Both pools, online first."""
    picture = book.picture
    runs = dict.fromkeys(Pool, 0)
    for entry in picture.running.values():
        runs[entry.running.job.pool] += 1
    waits = dict.fromkeys(Pool, 0)
    for (_, _, pool), group in list(picture.queue.groups.items()):
        waits[pool] += group.size
    found = []
    dues = picture.dues()
    for pool in Pool:
        quota = picture.pools.get(pool)
        held_milli = picture.holdings.pools.get(pool, 0)
        due_milli = dues.get(pool)
        borrowed = 0 if due_milli is None else max(0, held_milli - due_milli)
        found.append(
            PoolUse(
                pool=pool.value,
                percent=None if quota is None else quota.percent,
                elastic=quota is None or quota.elastic,
                held_gpus=held_milli / WHOLE_MILLI,
                sure_of_gpus=None if due_milli is None else due_milli / WHOLE_MILLI,
                borrowed_gpus=borrowed / WHOLE_MILLI,
                running_jobs=runs[pool],
                waiting_jobs=waits[pool],
            )
        )
    return found
