"""A request becomes a job that waits, or a clear refusal that leaves nothing behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.job_record import JobRecord
from gpu_scheduler.control.jobs.dependencies import is_met
from gpu_scheduler.control.jobs.queueing import (
    enqueue_if_ready,
    leave_queue,
    make_eligible,
    set_protect_timer,
)
from gpu_scheduler.control.messages import Command, Fact, Submit, SubmitAll, SubmitSeries
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.arrivals import MOST_RECENT
from gpu_scheduler.engine.placement.capacity import ever_fits, largest_node_gpus
from gpu_scheduler.engine.quota.admission import never_admitted, user_quota_of
from gpu_scheduler.engine.quota.tree import HOURS
from gpu_scheduler.ledger.decayed_usage import Account, account_of, tenant_and_user
from gpu_scheduler.ledger.units import Period
from gpu_scheduler.model.cluster_snapshot import AccountUsage, Waiting
from gpu_scheduler.model.errors import (
    AlreadyExists,
    InvalidRequest,
    NeverFits,
    QueueFull,
    QuotaTooSmall,
    SchedulerError,
    TooManyJobs,
)
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import Job, display_name, split_over_nodes
from gpu_scheduler.model.launch import EVERYWHERE, Runner
from gpu_scheduler.model.node import RUNNER_LABEL, runner_label
from gpu_scheduler.model.quota_tree import QuotaNode, ancestors
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import BudgetPeriod, Quota
from gpu_scheduler.model.utc import format_utc
from gpu_scheduler.predict.interface import expect_alike
from gpu_scheduler.store.job_columns import copy_factory
from gpu_scheduler.store.rows import SUBMITTED, LaunchRow, NewJobs

# Quotas and budgets. The engine lets a job wait that is over a limit at the moment. A job that is
# larger than a whole limit, or one waiting job too many, is rejected at once.


def period_of(state: ControlState, tenant_id: str) -> BudgetPeriod:
    """The budget period of a tenant."""
    tenant = state.cluster.tenants.get(tenant_id)
    return (None if tenant is None else tenant.budget_period) or state.policy.budget_period


def spent(state: ControlState, account: Account, now_ms: int) -> tuple[int, int]:
    """GPU time used in the current budget period, and when the next period begins (0: never)."""
    return _spent_in(state, account, period_of(state, tenant_and_user(account)[0]), now_ms)


def node_spent(state: ControlState, node: QuotaNode, now_ms: int) -> AccountUsage:
    """GPU time that a node of the quota tree used in its budget period, with all below it."""
    tenant, _, user = node.name.partition("/")
    nodes = state.cluster.quota_nodes
    below = [name for name in nodes if "/" not in name and node.name in ancestors(nodes, name)]
    used, turns_ms = 0, 0
    for account in (account_of(tenant, user or None), *below):
        more, turns_ms = _spent_in(state, account, node.budget_period, now_ms)
        used += more
    return AccountUsage(spent_gpu_milli_ms=used, turns_ms=turns_ms)


def _spent_in(
    state: ControlState, account: Account, period: BudgetPeriod, now_ms: int
) -> tuple[int, int]:
    if period is BudgetPeriod.WEEK:
        return state.weekly_usage.spent(account, now_ms), Period.WEEK.next_after(now_ms)
    if period is BudgetPeriod.MONTH:
        used = state.usage_totals.total_in(account, now_ms)
        return used.gpu_milli_ms, Period.MONTH.next_after(now_ms)
    return state.usage_totals.total(account).gpu_milli_ms, 0


def user_quota(state: ControlState, tenant_id: str) -> Quota:
    """The quota of each user of a tenant."""
    return user_quota_of(state.cluster.tenants.get(tenant_id), state.policy.user_quota)


def check_pending(state: ControlState, jobs: Iterable[tuple[Job, int]]) -> None:
    """Reject more waiting jobs (tasks of arrays) than a user or a tenant may have."""
    if not state.cluster.has_quotas:
        return
    new: dict[Account, int] = {}
    for job, tasks in jobs:
        for account in ((job.tenant, job.user), job.tenant):
            new[account] = new.get(account, 0) + tasks
    for account, tasks in new.items():
        tenant_id, user = tenant_and_user(account)
        tenant = state.cluster.tenants.get(tenant_id)
        own = Quota() if tenant is None else tenant.quota
        most = (own if user is None else user_quota(state, tenant_id)).pending_jobs
        waiting = waiting_of(state, account)
        if most is not None and waiting + tasks > most:
            owner = f"tenant '{tenant_id}'" if user is None else f"user '{user}'"
            raise TooManyJobs(
                f"{owner} may have {most} jobs waiting and has {waiting}, so {tasks} more do not "
                f"fit; submit {max(0, most - waiting)} or fewer, or wait until some have started"
            )


def waiting_of(state: ControlState, account: Account) -> int:
    """The number of waiting jobs (tasks of arrays) of an account."""
    tenant, user = tenant_and_user(account)
    if user is not None:
        return state.queued_of.get((tenant, user), 0)
    return state.queued_by_owner.get(("tenant", tenant), 0)


def check_limits(state: ControlState, job: Job, now_ms: int) -> None:
    """Reject a job that is larger than a whole quota, budget or pool."""
    if not state.cluster.has_quotas:
        return
    used, turns_ms = spent(state, job.tenant, now_ms)
    usage = AccountUsage(spent_gpu_milli_ms=used, turns_ms=turns_ms)
    refused = never_admitted(state.cluster, job, usage)
    if refused is not None:
        error = QuotaTooSmall(_never(job, refused))
        error.data = refused.data
        raise error


def _never(job: Job, refused: Reason) -> str:
    wanted, limit = refused.get("requested"), refused.get("limit")
    if refused.code is ReasonCode.QUOTA_NODE and refused.get("left") is not None:
        model, most = refused.get("model"), refused.get("left")
        return (
            f"{display_name(job.id)} asks for {wanted} GPUs{f' of {model}' if model else ''}, and "
            f"{refused.get('owner')} {refused.get('found')}; at most {most} fit: ask for fewer, or "
            "have a limit of the quota tree raised"
        )
    if refused.code is ReasonCode.QUOTA and refused.get("resource") == HOURS:
        return (
            f"{refused}; the job counts with its GPUs for its whole time limit: give a shorter "
            "--time, or ask for fewer GPUs"
        )
    if refused.code not in {ReasonCode.USER_LIMIT, ReasonCode.BUDGET}:
        return str(refused)
    if refused.get("resource") == HOURS:
        return (
            f"{display_name(job.id)} may use {wanted} GPU-hours (its GPUs for its whole time "
            f"limit), and the whole budget of user '{job.user}' in tenant '{job.tenant}' is "
            f"{limit}; ask for fewer GPUs or a shorter --time, or have user_max_gpu_hours raised"
        )
    return (
        f"{display_name(job.id)} asks for {wanted} {refused.get('resource')}, and user "
        f"'{job.user}' may hold {limit} at once in tenant '{job.tenant}'; ask for "
        f"{limit} or fewer, or have the limit raised"
    )


NO_NODE = "node"
RUNNER_NAMES = {"container": "container engine (docker or podman)"}


def submit(
    state: ControlState, message: Submit | SubmitSeries, now_ms: int, outcome: Outcome
) -> None:
    """Accept a job, or a series of similar jobs; or raise and change nothing."""
    tasks = message.job_count * message.job.task_count
    check_room(state, tasks)
    check_pending(state, [(message.job, tasks)])
    _accept(state, message, _checked(state, message, now_ms), now_ms, outcome)


def submit_all(state: ControlState, message: SubmitAll, now_ms: int, outcome: Outcome) -> None:
    """Accept many jobs, or raise (with the `index` of the first bad one) and change nothing.

    A dry run only checks; the outcome has the jobs as they would be accepted, without numbers.
    """
    submissions = message.submissions
    check_room(state, sum(s.job_count * s.job.task_count for s in submissions))
    check_pending(state, [(s.job, s.job_count * s.job.task_count) for s in submissions])
    checked = []
    index = 0
    for submission in submissions:
        try:
            checked.append(_checked(state, submission, now_ms))
        except SchedulerError as error:
            error.index = index
            raise
        index += submission.job_count
    if message.dry_run:
        outcome.jobs += checked
        return
    for submission, job in zip(submissions, checked, strict=True):
        _accept(state, submission, job, now_ms, outcome)


def would_accept(state: ControlState, message: Submit, now_ms: int) -> None:
    """Raise if the job would be rejected, apart from queue limits."""
    _checked(state, message, now_ms)


def _checked(state: ControlState, message: Submit | SubmitSeries, now_ms: int) -> Job:
    """The job as it will be accepted, split over nodes if it is larger than one; or raise."""
    job = message.job
    _check_new(state, job)
    if 0 < job.deadline_ms <= now_ms:
        raise InvalidRequest(
            f"the deadline {format_utc(job.deadline_ms)} has passed; give a later one"
        )
    job = _over_nodes(state, job)
    if state.cluster.index.by_id:
        _check_fits(state, job)
    check_limits(state, job, now_ms)
    launch = message.launch
    if launch is not None and launch.runner not in EVERYWHERE:
        # Only nodes that have the runner may run it.
        label = (runner_label(launch.runner), "yes")
        members = tuple(
            replace(member, node_labels=tuple(sorted({*member.node_labels, label})))
            for member in job.members
        )
        job = replace(job, members=members)
    return job


def _accept(
    state: ControlState, message: Submit | SubmitSeries, job: Job, now_ms: int, outcome: Outcome
) -> None:
    """Accept a submission. `job` is its job, or the template of the series, after the checks."""
    if isinstance(message, Submit):
        _accept_job(state, message, job, now_ms, outcome)
    elif _is_plain(state, message, now_ms):
        _accept_plain_series(state, message, _stamped(state, job, now_ms), now_ms, outcome)
    else:
        for one in message.each():
            own = replace(job, name=one.job.name, command=one.job.command)
            _accept_job(state, one, own, now_ms, outcome)


def _accept_job(
    state: ControlState, message: Submit, job: Job, now_ms: int, outcome: Outcome
) -> None:
    job = _stamped(state, job, now_ms)
    state.next_number += 1
    state.count_queued(job, job.task_count)
    record = JobRecord(job)
    state.jobs[job.id] = record
    if not state.cluster.index.by_id:
        state.unplaced[job.id] = None
    elif message.launch is not None and message.launch.runner not in EVERYWHERE:
        # A job that lacks only its runner waits, since that can be installed.
        missing = why_never(state, job)
        if missing is not None:
            state.unplaced[job.id] = None
            record.wait_on(NO_NODE, missing)
    outcome.jobs.append(job)
    if message.environment is not None:
        outcome.writes.append(message.environment)
    if message.launch is not None:
        outcome.writes.append(LaunchRow(job.id, message.launch))
    outcome.job_event(job, SUBMITTED, now_ms)
    make_eligible(state, record, now_ms, outcome)
    if record.queued:
        state.recent_arrivals.note(state.cluster.queue.entries[job.number].waiting)
        state.note_request(job)


def check_changed(state: ControlState, job: Job, now_ms: int) -> Job:
    """A changed job, checked like a new one."""
    if not job.is_gang:
        job = _over_nodes(state, job)
    if state.cluster.index.by_id:
        _check_fits(state, job)
    check_limits(state, job, now_ms)
    return replace(job, members=state.shared_members(job.members))


def place_again(state: ControlState, now_ms: int, outcome: Outcome) -> None:
    """Nodes joined: check the accepted jobs for which no suitable node was known.

    A job that could not run on any known node keeps waiting, with that reason.
    """
    state.new_nodes = False
    for job_id in list(state.unplaced):
        record = state.jobs[job_id]
        job = _over_nodes(state, record.job)
        missing = why_never(state, job)
        if missing is not None:
            leave_queue(state, record, now_ms)
            record.wait_on(NO_NODE, missing)
        else:
            del state.unplaced[job_id]
            record.clear_wait(NO_NODE)
            if job is not record.job:
                leave_queue(state, record, now_ms)
                record.job = replace(job, members=state.shared_members(job.members))
        enqueue_if_ready(state, record, now_ms, outcome)


def why_never(state: ControlState, job: Job) -> Reason | None:
    """Why no known node could ever run the job; None if one could."""
    state.cluster.forget_old_shapes()
    missing = ever_fits(state.cluster, state.cluster.job_shape(job))
    if not missing:
        return None
    labels = {label for member in job.members for label, _ in member.node_labels}
    offered = {
        label
        for resources in state.cluster.index.by_id.values()
        for label, _ in resources.node.labels
    }
    for label in sorted(labels - offered):
        if label.startswith(RUNNER_LABEL):
            runner = label.removeprefix(RUNNER_LABEL)
            return Reason(ReasonCode.NO_RUNNER, (("runner", RUNNER_NAMES.get(runner, runner)),))
    return Reason(ReasonCode.NEVER_FITS, (("found", missing),))


def cautions(state: ControlState, asked: Job, job: Job) -> Iterator[str]:
    """Warnings about a job that would be accepted: `asked` as submitted, `job` as accepted."""
    if not state.cluster.index.by_id:
        yield "no node is known yet, so it is unknown whether the job fits"
        return
    if (reason := why_never(state, job)) is not None:
        yield str(reason)
    if len(job.members) > len(asked.members):
        count = len(job.members)
        yield f"no node is large enough, so it becomes {count} members that start together"
    for dependency in job.dependencies:
        end = state.ended.get(dependency.job_id)
        if end is not None and not is_met(dependency.kind, end.state):
            yield (
                f"{display_name(dependency.job_id)} ended as {end.state.value}, so "
                f"{dependency.kind.value} can never be met and the job would end at once"
            )


def check_room(state: ControlState, tasks: int) -> None:
    """Reject more tasks than the queue has room for."""
    room = state.limits.max_queued_tasks - state.queued_tasks
    if tasks > room:
        raise QueueFull(
            f"{tasks} task{'s were' if tasks > 1 else ' was'} submitted and the queue has room for "
            f"{room} of "
            f"{state.limits.max_queued_tasks}; try again later or submit fewer"
        )


def _check_new(state: ControlState, job: Job) -> None:
    if job.id and (job.id in state.jobs or job.id in state.ended):
        raise AlreadyExists(f"job id '{job.id}' is taken; choose another")
    for dependency in job.dependencies:
        if dependency.job_id not in state.jobs and dependency.job_id not in state.ended:
            raise InvalidRequest(
                f"{display_name(job.id)} depends on {display_name(dependency.job_id)}, which is "
                "not known; submit that one first"
            )


def _check_fits(state: ControlState, job: Job) -> None:
    state.cluster.forget_old_shapes()
    missing = ever_fits(state.cluster, state.cluster.job_shape(job))
    if missing:
        raise NeverFits(f"{display_name(job.id)} can never run: {missing}" if job.id else missing)


def _over_nodes(state: ControlState, job: Job) -> Job:
    """Split a request that is larger than any node into whole nodes and a remainder.

    All members use one GPU model if the nodes of one model suffice. A replica of a service stays on
    one node, since it has one port.
    """
    if job.is_gang or job.service:
        return job
    request = job.members[0]
    split = _split(state, job, request)
    if len(split.members) == 1:
        return job
    known = {model for kind in state.cluster.index.node_classes for model in kind.models}
    models = sorted(known & set(request.gpu_models) if request.gpu_models else known)
    if len(models) > 1:
        for model in models:
            of_model = _split(state, job, replace(request, gpu_models=(model,)))
            if not ever_fits(state.cluster, state.cluster.job_shape(of_model)):
                return of_model
    return split


def _split(state: ControlState, job: Job, request: Request) -> Job:
    members = split_over_nodes(request, largest_node_gpus(state.cluster.index, request))
    if members == job.members:
        return job
    return replace(job, members=members, min_members=len(members))


def _stamped(state: ControlState, job: Job, now_ms: int) -> Job:
    """The job with number and time; equal strings and requests are shared to save memory."""
    return replace(
        job,
        id=job.id or f"job-{state.next_number}",
        number=state.next_number,
        submit_ms=now_ms,
        tenant=sys.intern(job.tenant),
        user=sys.intern(job.user),
        name=sys.intern(job.name),
        members=state.shared_members(job.members),
    )


OWN = ("id", "number", "name", "command")


def _is_plain(state: ControlState, series: SubmitSeries, now_ms: int) -> bool:
    """Tell whether nothing can keep these jobs out of the queue, and none is an array."""
    job = series.job
    return bool(
        state.cluster.index.by_id
        and series.launch.runner is Runner.PROCESS
        and not job.id
        and not job.hold
        and not job.dependencies
        and job.array is None
        and job.begin_ms <= state.calendar_ms(now_ms)
    )


def _accept_plain_series(
    state: ControlState, series: SubmitSeries, job: Job, now_ms: int, outcome: Outcome
) -> None:
    """Queue plain jobs at once. `job` is their checked and numbered template."""
    first = state.next_number
    numbers = range(first, first + len(series.names))
    ids = [f"job-{number}" for number in numbers]
    names = map(sys.intern, series.names)
    jobs = list(map(copy_factory(job, OWN), ids, numbers, names, series.commands))
    expected = expect_alike(state.predictor, jobs, now_ms)
    new_record = copy_factory(JobRecord(job), ("job", "expected_ms"))
    records = list(map(new_record, jobs, expected))
    state.jobs.update(zip(ids, records, strict=True))
    queue_alike(state, records, now_ms)
    for one in jobs[-MOST_RECENT:]:
        state.recent_arrivals.note(state.cluster.queue.entries[one.number].waiting)
    state.note_request(jobs[0], len(jobs))
    state.next_number += len(jobs)
    state.count_queued(job, len(jobs))
    outcome.jobs += jobs
    if series.environment is not None:
        outcome.writes.append(series.environment)
    outcome.writes.append(
        NewJobs(at_ms=now_ms, jobs=tuple(jobs), expected_ms=tuple(expected), launch=series.launch)
    )


def queue_alike(state: ControlState, records: list[JobRecord], now_ms: int) -> None:
    """Queue plain jobs that have no obstacles and the same waiting time."""
    first = records[0]
    waiting = Waiting(job=first.job, expected_ms=1, since_ms=now_ms, waited_ms=first.waited_ms)
    new_waiting = copy_factory(waiting, ("job", "expected_ms"))
    state.cluster.enqueue_alike(
        [new_waiting(record.job, max(1, record.expected_ms)) for record in records]
    )
    for record in records:
        record.queued = True
        record.since_ms = now_ms
    for record in records if state.policy.feedback.protect_after_ms else ():
        set_protect_timer(state, record, now_ms)
    state.changed = True


# Similar submissions of one commit, often from many connections, are joined into one series, so
# that their common part is checked and written once.

R = TypeVar("R")
JoinKey = tuple[Command | Fact, Caller]
"""Message and caller of a submission that may be joined with its neighbours."""


def group_similar(
    requests: Iterable[R], key_of: Callable[[R], JoinKey | None]
) -> Iterator[list[R]]:
    """Requests in their order: neighbours that can be joined in one list, others alone.

    `key_of` returns None for a request that stays alone.
    """
    run: list[R] = []
    before: JoinKey | None = None
    for request in requests:
        key = key_of(request)
        if run and not (before is not None and key is not None and _is_similar(before, key)):
            yield run
            run = []
        run.append(request)
        before = key
    if run:
        yield run


def join_series(all_series: Sequence[SubmitSeries]) -> SubmitSeries:
    """One series with the jobs of several similar ones."""
    first = all_series[0]
    return SubmitSeries(
        first.job,
        first.launch,
        first.environment,
        tuple(name for series in all_series for name in series.names),
        tuple(command for series in all_series for command in series.commands),
    )


def _is_similar(one: JoinKey, other: JoinKey) -> bool:
    first, second = one[0], other[0]
    return (
        isinstance(first, SubmitSeries)
        and isinstance(second, SubmitSeries)
        and first.job is second.job
        and first.launch is second.launch
        and one[1] == other[1]
    )
