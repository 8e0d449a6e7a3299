"""Joins the control loop and the notifications: what those need of it, and which jobs may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Record
from gpu_scheduler.ledger.amounts import GPU_HOUR_MILLI_MS
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import NodeState
from gpu_scheduler.notify.readers import why_not
from gpu_scheduler.notify.service import BudgetUse
from gpu_scheduler.settings.groups import NotificationSettings
from gpu_scheduler.store.rows import EventRow, Store, Write


class LoopForNotices:
    """What notifications see of the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def store(self) -> Store:
        """What has been committed."""
        return self._loop.store

    def now_ms(self) -> int:
        """The loop's time."""
        return self._loop.now_ms()

    def subscribe(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """History from there on."""
        return self._loop.subscribe(after)

    async def keep(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """Commit rows and events together, in the order of everything else."""
        await self._loop.apply(Record(tuple(events)), also=lambda _: rows)

    def free_gpus(self) -> int:
        """GPUs that are wholly free and take work."""
        slots = self._loop.core.book.picture.index.by_id.values()
        return sum(
            slot.free_mask.bit_count() for slot in slots if slot.node.state is NodeState.ONLINE
        )

    def budgets(self) -> Iterator[BudgetUse]:
        """Tenants with a budget: what was charged, and what running jobs have used since."""
        book = self._loop.core.book
        running: dict[str, int] = {}
        for entry in book.picture.running.values():
            allocation, job = entry.running.allocation, entry.running.job
            elapsed_ms = max(0, self._loop.now_ms() - allocation.start_ms)
            used = running.get(job.tenant, 0) + elapsed_ms * allocation.gpu_milli
            running[job.tenant] = used
        for tenant in list(book.picture.tenants.values()):
            limit = tenant.quota.gpu_milli_ms
            if limit:
                used = book.accounts.total(tenant.id).gpu_milli_ms + running.get(tenant.id, 0)
                yield BudgetUse(tenant.id, used / GPU_HOUR_MILLI_MS, limit / GPU_HOUR_MILLI_MS)


def check_notify(job: Job, settings: NotificationSettings) -> None:
    """Refuse a job that asks to tell somebody whom it must not."""
    for rule in job.notify:
        why = why_not(rule, job, settings)
        if why:
            raise InvalidRequest(f"notify '{str(rule)[:80]}': {why}")
