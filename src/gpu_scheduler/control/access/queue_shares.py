"""Shares of the queue: one user or tenant cannot fill it, and some room is kept for admins.

A user may have at most a percentage of the places that other users leave free, and a tenant at most
a percentage of those that other tenants leave free. So several users who take all they may still
leave room for the next one. A limit of waiting jobs that was set for a user or tenant replaces its
share (see `control.jobs.submit`). Admins are limited by the size of the queue only.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpu_scheduler.control.jobs.submit import user_quota
from gpu_scheduler.control.messages import (
    Command,
    CreateService,
    Fact,
    Retry,
    ScaleService,
    Submit,
    SubmitAll,
    SubmitSeries,
    UpdateService,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import QueueFull, TooManyJobs
from gpu_scheduler.model.identity import Caller

NewTasks = tuple[str, str, int]
"""Tenant, user, and the number of tasks that they add to the queue."""


def check(state: ControlState, caller: Caller, message: Command | Fact) -> None:
    """Raise if the message adds more waiting tasks than the caller, who is no admin, may have."""
    if caller.is_admin:
        return
    new = list(_new_tasks(state, message))
    if _room(state) > 0:
        _check_shares(state, new)
    _check_kept_for_admins(state, sum(tasks for _, _, tasks in new))


def _check_shares(state: ControlState, new: Iterable[NewTasks]) -> None:
    sums: dict[tuple[str, str], int] = {}
    for tenant, user, tasks in new:
        if user_quota(state, tenant).pending_jobs is None:
            sums["user", user] = sums.get(("user", user), 0) + tasks
        own = state.cluster.tenants.get(tenant)
        has_others = len(state.cluster.tenants) > (own is not None)
        if has_others and (own is None or own.quota.pending_jobs is None):
            sums["tenant", tenant] = sums.get(("tenant", tenant), 0) + tasks
    limits = state.limits
    percents = {"user": limits.user_queue_percent, "tenant": limits.tenant_queue_percent}
    for owner, tasks in sums.items():
        _check_share(state, owner, tasks, percents[owner[0]])


def _check_share(state: ControlState, owner: tuple[str, str], tasks: int, percent: int) -> None:
    waiting = state.queued_by_owner.get(owner, 0)
    free = _room(state) + waiting
    most = -(-free * percent // 100)
    if percent < 100 and waiting + tasks > most:
        kind, name = owner
        raise TooManyJobs(
            f"{kind} '{name}' may have {most} jobs waiting ({percent} % of the {free} places that "
            f"other {kind}s leave in the queue) and has {waiting}, so {tasks} more do not fit; "
            f"submit {max(0, most - waiting)} or fewer, wait until some have started, or ask an "
            f"admin to raise limits.{kind}_queue_percent"
        )


def _check_kept_for_admins(state: ControlState, tasks: int) -> None:
    room, limits = max(0, _room(state)), state.limits
    if tasks > room and limits.admin_queue_percent:
        raise QueueFull(
            f"{tasks} task{'s were' if tasks > 1 else ' was'} submitted and the queue has room for "
            f"{room} of {limits.max_queued_tasks} ({limits.admin_queue_percent} % are kept for "
            "admins); try again later or submit fewer"
        )


def _room(state: ControlState) -> int:
    """The free places of the queue that users who are no admins may fill."""
    limits = state.limits
    usable = limits.max_queued_tasks * (100 - limits.admin_queue_percent) // 100
    return usable - state.queued_tasks


def _new_tasks(state: ControlState, message: Command | Fact) -> Iterable[NewTasks]:
    match message:
        case Submit(job) | SubmitSeries(job):
            yield job.tenant, job.user, message.job_count * job.task_count
        case SubmitAll(submissions):
            for one in submissions:
                yield one.job.tenant, one.job.user, one.job_count * one.job.task_count
        case Retry(job_id, cancelled):
            end = state.ended.get(job_id)
            record = state.jobs.get(job_id) if end is None else end.record
            if record is not None:
                job = record.job
                again = record.tasks_to_retry(cancelled=cancelled or end is not None)
                yield job.tenant, job.user, 1 if job.array is None else len(again)
        case CreateService(service):
            yield service.tenant, service.user, service.replicas
        case ScaleService(service_id, replicas):
            yield from _more_replicas(state, service_id, replicas)
        case UpdateService(service_id, wanted):
            yield from _more_replicas(state, service_id, wanted.replicas)


def _more_replicas(state: ControlState, service_id: str, replicas: int) -> Iterable[NewTasks]:
    service = state.services.get(service_id)
    if service is not None and replicas > service.replicas:
        yield service.tenant, service.user, replicas - service.replicas
