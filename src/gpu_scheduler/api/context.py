"""What all handlers share: the service, its surroundings, and a few common questions."""

from __future__ import annotations

import asyncio
import time

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.explainer import Explainer
from gpu_scheduler.api.http.idempotency import Repeats
from gpu_scheduler.api.http.rate_limit import Slots
from gpu_scheduler.api.http.request import Call, Query
from gpu_scheduler.api.interfaces import ApiSettings, LogSource, Service, TerminalSource
from gpu_scheduler.api.queue_order import Orders
from gpu_scheduler.control.access.permissions import not_a_member
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, SchedulerError, UnknownThing
from gpu_scheduler.model.identity import DEFAULT_TENANT, Caller
from gpu_scheduler.model.job import ENDED, called
from gpu_scheduler.store.rows import JobRow
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import read_job_name

MOST_READERS = 64


class Readers(dict[Caller, JobReader]):
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
        self.log_streams = Slots(settings.bounds.logs_per_user, "logs")
        self.explainer = Explainer(service)
        self.orders = Orders(service)
        self.repeats = Repeats(service)
        self.people = Directory(
            settings.server_uid, settings.admins, lambda: service.core.book.roster
        )
        self.readers = Readers()
        self.choosing_ids = asyncio.Lock()
        self.started = settings.started or time.monotonic()

    def tenant_of(self, named: str) -> str:
        """The id of a tenant that was named by its id or its name."""
        tenants = self.service.core.book.picture.tenants
        if named in tenants or named == DEFAULT_TENANT:
            return named
        found = sorted(tenant.id for tenant in tenants.values() if tenant.name == named)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidRequest(
                f"tenant '{named}' is the name of {' and '.join(found)}; give the id"
            )
        raise self.no_tenant(named)

    def no_tenant(self, named: str) -> UnknownThing:
        """The refusal of a tenant that there is not, or not for the caller."""
        return UnknownThing(
            f"tenant '{named}' is not known; create it first, or use '{DEFAULT_TENANT}'"
        )

    def own_tenant(self, caller: Caller, named: str) -> str:
        """The id of the tenant that a job of the caller goes to; its own one if none is named."""
        if not named:
            return caller.tenant
        if caller.is_admin:
            return self.tenant_of(named)
        try:
            tenant_id = self.tenant_of(named)
        except SchedulerError:
            tenant_id = ""
        # The same answer whether there is such a tenant or not.
        if not caller.may_submit_to(tenant_id):
            raise not_a_member(caller, named)
        return tenant_id

    def job(self, call: Call) -> tuple[JobRow, int | None]:
        """The job that the path names, in full, and the task if it names one."""
        row, task = self.known_job(call)
        if not call.caller.may_see(row.job.user, row.job.tenant):
            raise Forbidden(
                f"{called(row.job.id)} belongs to '{row.job.user}'; only that user, admins of its "
                "tenant and admins may do this"
            )
        return row, task

    def known_job(self, call: Call) -> tuple[JobRow, int | None]:
        """The same for a job that the caller may know of, but not always see in full.

        What others had is not there any more once it has ended.
        """
        job_id, task = read_job_name(call.params["job_id"])
        row = self.service.store.job(job_id)
        if row is None or not (
            row.state not in ENDED or call.caller.may_see(row.job.user, row.job.tenant)
        ):
            raise UnknownThing(f"{called(job_id)} is not known")
        if task is not None and (row.job.array is None or task not in row.job.array.tasks):
            raise UnknownThing(f"{called(job_id)} has no task {task}")
        return row, task

    def user_named(self, call: Call, query: Query) -> str:
        """The user that the query names; @me stands for the caller, who may not know as whom."""
        named = query.text("user")
        return call.caller.user if named == ME else named

    def query(self, call: Call, *known: str) -> Query:
        """The parameters of the query, of which only these are known."""
        return Query(call.scope["query_string"], known, self.settings.bounds.query_bytes)


def expect_admin(caller: Caller, what: str) -> None:
    """Refuse what only admins may do."""
    if not caller.is_admin:
        raise Forbidden(
            f"user '{caller.user}' may not {what}; ask root or the user who runs the scheduler"
        )
