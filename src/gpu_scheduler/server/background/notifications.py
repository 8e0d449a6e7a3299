"""Joins the control loop and the notifications: what those need of it, and which jobs may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from gpu_scheduler.control.jobs.submit import period_of, spent, user_quota
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Record
from gpu_scheduler.ledger.decayed_usage import Account, tenant_and_user
from gpu_scheduler.ledger.units import GPU_HOUR_MILLI_MS, Period
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.tenant import BudgetPeriod
from gpu_scheduler.notify.event_rules import why_not
from gpu_scheduler.notify.service import BudgetUse
from gpu_scheduler.settings.groups.operations import NotificationSettings
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.rows import EventRow, Write


class LoopForNotices:
    """What notifications see of the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._users: set[tuple[str, str]] = set()

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
        await self._loop.apply(Record(tuple(events)), extra_writes=lambda _: rows)

    def free_gpus(self) -> int | None:
        """GPUs that are wholly free and take work; None while there is no node that does."""
        nodes = self._loop.core.state.cluster.index.by_id.values()
        free = [resources.free_mask.bit_count() for resources in nodes if resources.node.takes_work]
        return sum(free) if free else None

    def budgets(self) -> Iterator[BudgetUse]:
        """Tenants and users with a budget: what was charged, and what runs has used since."""
        state = self._loop.core.state
        if not state.cluster.has_limits:
            return
        now_ms = self._loop.now_ms()
        running = self._running(now_ms)
        for tenant in list(state.cluster.tenants.values()):
            yield from self._budget(tenant.id, tenant.quota.gpu_milli_ms, running, now_ms)
        # Whoever neither runs nor has run since the start of the server uses up nothing.
        self._users.update(account for account in running if isinstance(account, tuple))
        for account in sorted(self._users):
            limit = user_quota(state, account[0]).gpu_milli_ms
            yield from self._budget(account, limit, running, now_ms)

    def _budget(
        self, account: Account, limit: int | None, running: dict[Account, int], now_ms: int
    ) -> Iterator[BudgetUse]:
        if limit:
            used, _ = spent(self._loop.core.state, account, now_ms)
            tenant, user = tenant_and_user(account)
            hours = (used + running.get(account, 0)) / GPU_HOUR_MILLI_MS
            yield BudgetUse(tenant, user or "", hours, limit / GPU_HOUR_MILLI_MS)

    def _running(self, now_ms: int) -> dict[Account, int]:
        """GPU time of what runs and is charged only at its end, by account, in the period."""
        state = self._loop.core.state
        found: dict[Account, int] = {}
        for entry in list(state.cluster.running.values()):
            allocation, job = entry.running.allocation, entry.running.job
            period = _PERIODS.get(period_of(state, job.tenant))
            since_ms = max(allocation.start_ms, period.start_of(now_ms) if period else 0)
            used = max(0, now_ms - since_ms) * allocation.gpu_milli
            for account in (job.tenant, (job.tenant, job.user)):
                found[account] = found.get(account, 0) + used
        return found


_PERIODS = {BudgetPeriod.WEEK: Period.WEEK, BudgetPeriod.MONTH: Period.MONTH}


def check_notify(job: Job, settings: NotificationSettings) -> None:
    """Refuse a job that asks to tell somebody whom it must not."""
    for rule in job.notify:
        why = why_not(rule, job, settings)
        if why:
            raise InvalidRequest(f"notify '{str(rule)[:80]}': {why}")
