"""The context of all handlers: the service, the settings, caches, and common look-ups."""

from __future__ import annotations

import asyncio
import time

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.auth.sessions import Sessions
from gpu_scheduler.api.expected_times import Explainer
from gpu_scheduler.api.http.idempotency import IdempotencyStore
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit, RateLimit
from gpu_scheduler.api.http.request import Query, Request
from gpu_scheduler.api.interfaces import ApiSettings, LogSource, Service
from gpu_scheduler.api.nodes.streams import TerminalStreams
from gpu_scheduler.api.planning.planner import Planner
from gpu_scheduler.api.queue_order import SortedJobsCache
from gpu_scheduler.control.access.permissions import not_a_member
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.identity import DEFAULT_TENANT, Caller
from gpu_scheduler.model.job import ENDED, display_name
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import read_job_name

MOST_READERS = 64
MOST_MEMBER_LOGS = 1024
"""So many logs of members are followed at the same time for one user."""
TESTS_PER_MINUTE = 5
MOST_WHAT_IFS = 2
"""So many what-if questions of one user are answered at the same time."""
ME = "@me"
"""Stands for the caller in the query parameter `user`."""


class JobReaderCache(dict[Caller, JobReader]):
    """The job readers of the last callers, a bounded number."""

    def __setitem__(self, caller: Caller, reader: JobReader) -> None:
        """Add a reader; clear the cache if it is full."""
        if len(self) >= MOST_READERS:
            self.clear()
        super().__setitem__(caller, reader)


class Context:
    """What a handler needs besides its request."""

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        *,
        logs: LogSource | None = None,
        terminals: TerminalStreams | None = None,
    ) -> None:
        """Without `logs` or `terminals`, the operations that need them answer with an error."""
        self.service = service
        self.settings = settings
        self.logs = logs
        self.terminals = terminals
        self.log_streams = ConcurrencyLimit(settings.bounds.logs_per_user, "logs")
        self.target_tests = RateLimit(
            TESTS_PER_MINUTE / 60,
            TESTS_PER_MINUTE,
            excess=f"sends more than {TESTS_PER_MINUTE} test notifications a minute",
        )
        self.member_logs = ConcurrencyLimit(MOST_MEMBER_LOGS, "logs of members of gangs")
        self.what_ifs = ConcurrencyLimit(MOST_WHAT_IFS, "what-if questions")
        self.explainer = Explainer(service)
        self.planner = Planner(service)
        self.sorted_jobs = SortedJobsCache(service)
        self.idempotency = IdempotencyStore(service)
        self.sessions = Sessions()
        self.directory = Directory(
            settings.server_uid, settings.admins, lambda: service.core.state.tenant_directory
        )
        self.readers = JobReaderCache()
        self.choosing_ids = asyncio.Lock()
        self.started = settings.started or time.monotonic()

    @property
    def state(self) -> ControlState:
        """The state after the last accepted message."""
        return self.service.core.state

    def resolve_tenant(self, named: str) -> str:
        """Return the id of a tenant that is given by its id or name."""
        tenants = self.service.core.state.cluster.tenants
        if named in tenants or named == DEFAULT_TENANT:
            return named
        matches = sorted(tenant.id for tenant in tenants.values() if tenant.name == named)
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise InvalidRequest(
                f"tenant '{named}' is the name of {' and '.join(matches)}; give the id"
            )
        raise self.unknown_tenant(named)

    def unknown_tenant(self, named: str) -> UnknownThing:
        """Return the error for a tenant that does not exist, or that the caller may not see."""
        return UnknownThing(f"tenant '{named}' is not known; 'tgpu tenants' lists the tenants")

    def submit_tenant(self, caller: Caller, named: str) -> str:
        """Return the tenant for a job of the caller; the caller's own if none is given."""
        if not named:
            return caller.tenant
        if caller.is_admin:
            return self.resolve_tenant(named)
        try:
            tenant_id = self.resolve_tenant(named)
        except SchedulerError:
            tenant_id = ""
        # The same error whether such a tenant exists or not.
        if not caller.may_submit_to(tenant_id):
            raise not_a_member(caller, named)
        return tenant_id

    async def find_job(self, request: Request) -> tuple[JobRow, int | None]:
        """Return the job in the path, and the task if there is one; the caller must own it."""
        row, task = await self.find_known_job(request)
        if not request.caller.may_see(row.job.user, row.job.tenant):
            raise Forbidden(
                f"{display_name(row.job.id)} belongs to '{row.job.user}'; only that user, "
                "admins of its tenant and admins may do this"
            )
        return row, task

    async def find_known_job(self, request: Request) -> tuple[JobRow, int | None]:
        """Return the job in the path, which the caller may perhaps not see in full.

        Jobs of other users are visible until they end.
        """
        job_id, task = read_job_name(request.params["job_id"])
        row = await asyncio.to_thread(self.service.store.job, job_id)
        if row is None or not (
            row.state not in ENDED or request.caller.may_see(row.job.user, row.job.tenant)
        ):
            raise UnknownThing(f"{display_name(job_id)} is not known")
        if task is not None and (row.job.array is None or task not in row.job.array.tasks):
            raise UnknownThing(f"{display_name(job_id)} has no task {task}")
        return row, task

    def user_filter(self, request: Request, query: Query) -> str:
        """Return the user in the query; @me is the caller."""
        named = query.text("user")
        return request.caller.user if named == ME else named

    def parse_query(self, request: Request, *known: str) -> Query:
        """Parse the query; only the `known` parameters are allowed."""
        return Query(request.scope["query_string"], known, self.settings.bounds.query_bytes)


def expect_admin(caller: Caller, action: str) -> None:
    """Reject callers who are not admins."""
    if not caller.is_admin:
        raise Forbidden(
            f"user '{caller.user}' may not {action}; ask root or the user who runs the scheduler"
        )
