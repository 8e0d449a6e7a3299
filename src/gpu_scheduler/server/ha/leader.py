"""The leader's work: decide, send orders, notify, record forecasts, clean up.

It starts when a server becomes the leader and stops when it loses the lease, while the process
goes on; the only server of a database leads from start to stop. No part of it may outlive the
leader: after `stop` another `Leader` can start on the same store.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gpu_scheduler.api.auth.tokens import Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.clock import SchedulerClock
from gpu_scheduler.control.jobs.submit import period_of, spent, user_quota
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Record
from gpu_scheduler.control.self_monitoring import SelfMonitor
from gpu_scheduler.ledger.decayed_usage import Account, tenant_and_user
from gpu_scheduler.ledger.units import GPU_HOUR_MILLI_MS, Period
from gpu_scheduler.logging_setup.structured import lost_lines
from gpu_scheduler.model.tenant import BudgetPeriod
from gpu_scheduler.notify.event_rules import BudgetUse
from gpu_scheduler.notify.service import Notifications
from gpu_scheduler.predict import training
from gpu_scheduler.server.background import supervise
from gpu_scheduler.server.background.clock_watch import ClockWatch, resume_clock
from gpu_scheduler.server.background.fencing import Fencing
from gpu_scheduler.server.background.forecast_recorder import ForecastRecorder
from gpu_scheduler.server.background.housekeeping import GcTuner, run_housekeeping
from gpu_scheduler.server.background.job_logs import JobLog, JobLogs
from gpu_scheduler.server.background.jobs_file import JobsFile
from gpu_scheduler.server.background.model_training import ModelTraining, selected_predictor
from gpu_scheduler.server.from_settings import (
    new_core,
    node_timeouts_of,
    set_up_pools,
    set_up_tenants,
    warn_about_quota_tree,
)
from gpu_scheduler.server.grpc import ensure_authority
from gpu_scheduler.server.submission_rules import SiteRules
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.interface import Store
from gpu_scheduler.store.rows import EventRow, Write


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The parts of a server in every role.

    `signed` verifies tokens of an outside issuer. `node` is this machine, if the server runs jobs
    here. `started` is the start of the process by the monotonic clock, for the uptime.
    """

    settings: Settings
    paths: Paths
    store: Store
    clock: SchedulerClock
    signed: Callable[[Context], Verifier] | None = None
    warnings: tuple[str, ...] = ()
    node: str = ""
    started: float = field(default_factory=time.monotonic)


class Leader:
    """The control loop, the agents and the background tasks of a leader."""

    def __init__(
        self,
        components: Components,
        *,
        term: int = 0,
        may_order: Callable[[], bool] = lambda: True,
    ) -> None:
        """Read all state from the store, which can take a while.

        `may_order` is checked before each message to an agent.
        """
        settings, store, clock = components.settings, components.store, components.clock
        resume_clock(clock, store)
        self._settings = settings
        self._paths = components.paths
        self.loop = Loop(
            store,
            new_core(settings, partial(selected_predictor, components.paths.state))
            if settings.policy.learned_run_times and training.is_available()
            else new_core(settings),
            clock.now_ms,
            sweep_ms=settings.scheduler.scheduling_interval_ms,
            rules=SiteRules(settings).check,
            calendar=lambda: clock.calendar,
        )
        self.vitals = SelfMonitor(
            components.paths.state,
            self.loop.loop_metrics.commit_seconds,
            clock,
            lost_lines=lost_lines,
            commit_age_s=self.loop.commit_age_s,
        )
        self.loop.on_committed(JobLog(self.loop).on_commit)
        self._gc_tuner = GcTuner(lambda: len(self.loop.core.state.jobs))
        self.loop.on_committed(self._gc_tuner.on_commit)
        self.agents = Agents(
            self.loop,
            timeouts=node_timeouts_of(settings.nodes),
            term=term,
            may_order=may_order,
        )
        self.notifications = Notifications(settings.notifications, NotificationSource(self.loop))
        self.logs = JobLogs(self.loop, self.agents)
        self._clock_watch = ClockWatch(self.loop, clock, self.vitals.note_step)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create the default tenant, apply the settings of tenants and pools, start all tasks."""
        self.loop.start()
        await set_up_tenants(self.loop, self._settings.tenants)
        await set_up_pools(self.loop, self._settings.policy)
        await warn_about_quota_tree(self.loop)
        await ensure_authority(self.loop)
        self.agents.watch_known_nodes()
        settings, loop = self._settings, self.loop
        tasks: dict[str, Callable[[], Awaitable[None]]] = {
            "notifications": self.notifications.run,
            "vitals": self.vitals.watch,
            "clock": self._clock_watch.run,
            "forecasts": ForecastRecorder(loop).run,
            "fencing": Fencing(loop, settings.nodes).run,
            "housekeeping": partial(
                run_housekeeping, loop, settings.retention, Path(self._paths.logs)
            ),
            "gc": self._gc_tuner.run,
            "run times": ModelTraining(loop, self._paths.state).run,
        }
        if settings.files.jobs_file:
            security = settings.security
            # Where rules restrict variables, the server's own must not get its jobs rejected.
            has_rules = security.allowed_script_paths or security.forbidden_environment
            tasks["jobs file"] = JobsFile(
                loop,
                settings.files,
                security.admins,
                runner=settings.jobs.runner,
                environment=None if has_rules else os.environ,
            ).watch
        for name, work in tasks.items():
            self._tasks.append(asyncio.create_task(supervise(name, work)))

    async def stop(self) -> None:
        """Finish accepted commands and stop. Agents are disconnected; their jobs keep running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.agents.close()
        await self.loop.close()
        self._gc_tuner.close()


class NotificationSource:
    """The control loop as the notification service needs it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._users: set[tuple[str, str]] = set()

    @property
    def store(self) -> Store:
        """The committed state."""
        return self._loop.store

    def now_ms(self) -> int:
        """The time of the control loop."""
        return self._loop.now_ms()

    def subscribe(self, after: int | None) -> AsyncIterator[tuple[int, EventRow]]:
        """Events after a sequence number."""
        return self._loop.subscribe(after)

    async def keep(self, rows: Sequence[Write], events: Sequence[EventRow] = ()) -> None:
        """Commit rows and events together."""
        await self._loop.apply(Record(tuple(events)), extra_writes=lambda _: rows)

    def free_gpus(self) -> int | None:
        """Number of idle GPUs on nodes that take work; None without such a node."""
        slots = self._loop.core.state.cluster.index.by_id.values()
        free = [resources.free_mask.bit_count() for resources in slots if resources.node.takes_work]
        return sum(free) if free else None

    def budgets(self) -> Iterator[BudgetUse]:
        """Use of budgets by tenants and users, including the jobs that run now."""
        state = self._loop.core.state
        if not state.cluster.has_quotas:
            return
        now_ms = self._loop.now_ms()
        running = self._running_use(now_ms)
        for tenant in list(state.cluster.tenants.values()):
            yield from self._budget(tenant.id, tenant.quota.gpu_milli_ms, running, now_ms)
        # A user who has run no job since the server started uses no budget.
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
            used_hours = (used + running.get(account, 0)) / GPU_HOUR_MILLI_MS
            yield BudgetUse(tenant, user or "", used_hours, limit / GPU_HOUR_MILLI_MS)

    def _running_use(self, now_ms: int) -> dict[Account, int]:
        """GPU time of running jobs in the current period, by account."""
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
