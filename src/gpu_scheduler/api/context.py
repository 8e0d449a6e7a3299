"""What all handlers share: the service, its surroundings, and a few common questions."""

from __future__ import annotations

import asyncio
import time

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.forecast import Explainer
from gpu_scheduler.api.http.idempotency import IdempotencyStore
from gpu_scheduler.api.http.rate_limit import ConcurrencyLimit
from gpu_scheduler.api.http.request import Query, Request
from gpu_scheduler.api.interfaces import ApiSettings, LogSource, Service, TerminalSource
from gpu_scheduler.api.queue_order import SortedJobsCache
from gpu_scheduler.control.access.permissions import not_a_member
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.identity import DEFAULT_TENANT, Caller
from gpu_scheduler.model.job import ENDED, display_name
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import read_job_name

MOST_READERS = 64


class JobReaderCache(dict[Caller, JobReader]):
    """What is known of the jobs of callers who come again and again; of a few at a time."""

    def __setitem__(self, caller: Caller, reader: JobReader) -> None:
        """Remember a reader."""
        if len(self) >= MOST_READERS:
            self.clear()
        super().__setitem__(caller, reader)


ME = "@me"


class Context:
    """The API's parts, joined."""

    def __init__(
        self,
        service: Service,
        settings: ApiSettings,
        *,
        logs: LogSource | None = None,
        terminals: TerminalSource | None = None,
    ) -> None:
        """Without `logs` the output of jobs cannot be read, without `terminals` none is joined."""
        self.service = service
        self.settings = settings
        self.logs = logs
        self.terminals = terminals
        self.log_streams = ConcurrencyLimit(settings.bounds.logs_per_user, "logs")
        self.explainer = Explainer(service)
        self.sorted_jobs = SortedJobsCache(service)
        self.idempotency = IdempotencyStore(service)
        self.directory = Directory(
            settings.server_uid, settings.admins, lambda: service.core.state.tenant_directory
        )
        self.readers = JobReaderCache()
        self.choosing_ids = asyncio.Lock()
        self.started = settings.started or time.monotonic()

    def resolve_tenant(self, named: str) -> str:
        """The id of a tenant that was named by its id or its name."""
        tenants = self.service.core.state.cluster.tenants
        if named in tenants or named == DEFAULT_TENANT:
            return named
        found = sorted(tenant.id for tenant in tenants.values() if tenant.name == named)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidRequest(
                f"tenant '{named}' is the name of {' and '.join(found)}; give the id"
            )
        raise self.unknown_tenant(named)

    def unknown_tenant(self, named: str) -> UnknownThing:
        """The refusal of a tenant that there is not, or not for the caller."""
        return UnknownThing(
            f"tenant '{named}' is not known; create it first, or use '{DEFAULT_TENANT}'"
        )

    def submit_tenant(self, caller: Caller, named: str) -> str:
        """The id of the tenant that a job of the caller goes to; its own one if none is named."""
        if not named:
            return caller.tenant
        if caller.is_admin:
            return self.resolve_tenant(named)
        try:
            tenant_id = self.resolve_tenant(named)
        except SchedulerError:
            tenant_id = ""
        # The same answer whether there is such a tenant or not.
        if not caller.may_submit_to(tenant_id):
            raise not_a_member(caller, named)
        return tenant_id

    def find_job(self, request: Request) -> tuple[JobRow, int | None]:
        """The job that the path names, in full, and the task if it names one."""
        row, task = self.find_known_job(request)
        if not request.caller.may_see(row.job.user, row.job.tenant):
            raise Forbidden(
                f"{display_name(row.job.id)} belongs to '{row.job.user}'; only that user, "
                "admins of its tenant and admins may do this"
            )
        return row, task

    def find_known_job(self, request: Request) -> tuple[JobRow, int | None]:
        """The same for a job that the caller may know of, but not always see in full.

        What others had is not there any more once it has ended.
        """
        job_id, task = read_job_name(request.params["job_id"])
        row = self.service.store.job(job_id)
        if row is None or not (
            row.state not in ENDED or request.caller.may_see(row.job.user, row.job.tenant)
        ):
            raise UnknownThing(f"{display_name(job_id)} is not known")
        if task is not None and (row.job.array is None or task not in row.job.array.tasks):
            raise UnknownThing(f"{display_name(job_id)} has no task {task}")
        return row, task

    def user_filter(self, request: Request, query: Query) -> str:
        """The user that the query names; @me stands for the caller, who may not know as whom."""
        named = query.text("user")
        return request.caller.user if named == ME else named

    def parse_query(self, request: Request, *known: str) -> Query:
        """The parameters of the query, of which only these are known."""
        return Query(request.scope["query_string"], known, self.settings.bounds.query_bytes)


def expect_admin(caller: Caller, what: str) -> None:
    """Refuse what only admins may do."""
    if not caller.is_admin:
        raise Forbidden(
            f"user '{caller.user}' may not {what}; ask root or the user who runs the scheduler"
        )
