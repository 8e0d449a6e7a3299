"""What only the server does that leads: decide, order, notify, estimate, keep house.

It begins when a server takes the lead and ends when it loses it, without the process in between;
a server that is alone leads from its start to its stop. Nothing of it may outlive the lead: whoever
ends it must be able to begin another one on the same store.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from gpu_scheduler.api.nodes.protocol import Agents
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetTenant
from gpu_scheduler.control.self_monitoring import SelfMonitor
from gpu_scheduler.control.writer import SteadyClock
from gpu_scheduler.logging_setup.structured import lost_lines
from gpu_scheduler.model.identity import DEFAULT_TENANT
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.notify.service import Notifications
from gpu_scheduler.predict.history import History
from gpu_scheduler.server.background.fencing import Fencing
from gpu_scheduler.server.background.forecast_recorder import Estimator
from gpu_scheduler.server.background.housekeeping import keep_house
from gpu_scheduler.server.background.job_logs import JobLines, JobLogs
from gpu_scheduler.server.background.jobs_file import JobsFile
from gpu_scheduler.server.background.notifications import LoopForNotices
from gpu_scheduler.server.from_settings import (
    limits_of,
    patience_of,
    policy_of,
    set_up_pools,
    set_up_tenants,
)
from gpu_scheduler.server.grpc import ensure_authority
from gpu_scheduler.server.runtime import Collector, lasting
from gpu_scheduler.server.site_rules import SiteRules
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.contract import Store


class Leading:
    """The parts of a leader, from `begin` to `end`."""

    def __init__(
        self,
        settings: Settings,
        paths: Paths,
        store: Store,
        clock: SteadyClock,
        *,
        term: int = 0,
        may_order: Callable[[], bool] = lambda: True,
    ) -> None:
        """Read everything from the store, which takes a while if there is much.

        `may_order` is asked before anything is told to an agent.
        """
        clock.not_before(last_time(store))
        self._settings = settings
        self._paths = paths
        self.loop = Loop(
            store,
            new_core(settings),
            clock.now_ms,
            sweep_ms=settings.scheduler.scheduling_interval_ms,
            rules=SiteRules(settings).check,
        )
        self.vitals = SelfMonitor(
            paths.state,
            self.loop.tallies.commit_seconds,
            clock.now_ms,
            lost_lines=lost_lines,
            commit_age_s=self.loop.commit_age_s,
        )
        self.loop.on_committed(JobLines(self.loop).note)
        self._collector = Collector(lambda: len(self.loop.core.state.jobs))
        self.loop.on_committed(self._collector.note)
        self.agents = Agents(
            self.loop,
            patience=patience_of(settings.nodes),
            term=term,
            may_order=may_order,
        )
        self.notifications = Notifications(settings.notifications, LoopForNotices(self.loop))
        self.logs = JobLogs(self.loop, self.agents)
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Work: what every server has comes first, the default tenant and the pools as set."""
        self.loop.start()
        tenants = {tenant.id for tenant in self.loop.store.tenants()}
        if DEFAULT_TENANT not in tenants:
            await self.loop.apply(SetTenant(Tenant(id=DEFAULT_TENANT, name=DEFAULT_TENANT)))
        await set_up_tenants(self.loop, self._settings.tenants)
        await set_up_pools(self.loop, self._settings.policy)
        await ensure_authority(self.loop)
        self.agents.expect_nodes()
        for part, work in self._works().items():
            self._tasks.append(asyncio.create_task(lasting(part, work)))

    def _works(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What goes on beside the loop for as long as it does."""
        settings, loop = self._settings, self.loop
        works: dict[str, Callable[[], Awaitable[None]]] = {
            "notifications": self.notifications.run,
            "vitals": self.vitals.watch,
            "estimates": Estimator(loop).run,
            "fencing": Fencing(loop, settings.nodes).run,
            "housekeeping": partial(keep_house, loop, settings.retention, Path(self._paths.logs)),
            "collector": self._collector.run,
        }
        if settings.files.jobs_file:
            works["jobs file"] = self._jobs_file().watch
        return works

    def _jobs_file(self) -> JobsFile:
        security = self._settings.security
        # Where rules judge variables, those of the server are not the fault of the file.
        is_judged = security.allowed_script_paths or security.forbidden_environment
        return JobsFile(
            self.loop,
            self._settings.files,
            security.admins,
            runner=self._settings.jobs.runner,
            environment=None if is_judged else os.environ,
        )

    async def end(self) -> None:
        """Finish what has come, and stop. Agents are sent away; what they run goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.agents.close()
        await self.loop.close()
        self._collector.end()


def new_core(settings: Settings) -> Callable[[], Core]:
    """Makes empty cores with the policy and the limits of this site."""
    return lambda: Core(policy_of(settings), History(), limits_of(settings))


def last_time(store: Store) -> int:
    """The newest time that was written; a clock that is behind must not go behind it."""
    events = store.events(max(0, store.last_event() - 1))
    return events[-1][1].at_ms if events else 0
