"""The store that forgets everything when the process ends: for simulations and tests.

Writes come in, rows go out, in dictionaries by key. It must never keep a part of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.identity import Authority, Identity, JoinToken, NodeKey, Token
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import ENDED, JobState, Pool
from gpu_scheduler.model.launch import Launch
from gpu_scheduler.model.measurements import AttemptMeasure, DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import AdvanceReservation, Allocation, Reservation
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.snapshot import PoolQuota
from gpu_scheduler.model.tenant import Tenant
from gpu_scheduler.store.codec import identity_key
from gpu_scheduler.store.contract import AuditQuery, Cutoffs, JobQuery, Sight, SweepCount
from gpu_scheduler.store.rows import (
    AnswerRow,
    AttemptRow,
    AuditRow,
    CursorRow,
    EnvironmentRow,
    EstimateRow,
    EventRow,
    JobRow,
    LaunchRow,
    NewJobs,
    NoticeRow,
    PromiseRow,
    RemovedAllocation,
    RemovedEstimate,
    RemovedNode,
    RemovedNotice,
    RemovedPromise,
    RemovedService,
    RemovedTenant,
    RemovedWindow,
    ShareRow,
    TaskRow,
    UsageRow,
    WeekUsageRow,
    Write,
)

# --- Which rows a query picks and in what order, over rows in memory.
#
# Job rows and a query come in, rows come out. What a database does for the same query must agree
# with this, row for row.


def chosen(rows: Iterable[JobRow], query: JobQuery) -> list[JobRow]:
    """All rows that the query asks for, on whatever page, by number."""
    found = [row for row in rows if _matches(row, query)]
    found.sort(key=_number)
    return found


_number = attrgetter("job.number")


def page(rows: Iterable[JobRow], query: JobQuery, mark: JobRow | None) -> list[JobRow]:
    """The page that the query asks for; `mark` is the job that it begins behind."""
    found = chosen(rows, query)
    if query.after_number is not None:
        found = [row for row in found if _follows(row, mark, query)]
    # A stable sort keeps rows with the same key in the order of numbers, also when reversed.
    found.sort(key=_KEYS[query.sort], reverse=query.descending)
    return found[query.offset : query.offset + query.limit]


def _matches(row: JobRow, query: JobQuery) -> bool:
    job = row.job
    return (
        (not query.states or row.state in query.states)
        and (not query.tenant or job.tenant == query.tenant)
        and (not query.user or job.user == query.user)
        and (not query.name or job.name == query.name)
        and (query.since_ms is None or job.submit_ms >= query.since_ms)
        and _ended_within(row, query)
        and (query.numbers is None or job.number in query.numbers)
        and (query.sight is None or _seen(row, query.sight))
    )


def _ended_within(row: JobRow, query: JobQuery) -> bool:
    since_ms, before_ms = query.ended_since_ms, query.ended_before_ms
    if since_ms is None and before_ms is None:
        return True
    end_ms = row.end_ms
    if end_ms is None:
        return False
    return (since_ms is None or end_ms >= since_ms) and (before_ms is None or end_ms < before_ms)


def _seen(row: JobRow, sight: Sight) -> bool:
    is_others = sight.others and row.state not in ENDED
    return is_others or sight.covers(row.job.user, row.job.tenant)


def _follows(row: JobRow, mark: JobRow | None, query: JobQuery) -> bool:
    key: Any = row.job.number
    marked: Any = query.after_number
    if query.sort != "number":
        if mark is None:
            return False
        key, marked = _KEYS[query.sort](row), _KEYS[query.sort](mark)
        if key == marked:
            return row.job.number > mark.job.number
    return bool(key < marked if query.descending else key > marked)


def _time(name: str) -> Callable[[JobRow], tuple[bool, int]]:
    """What has no time yet comes first."""

    def key(row: JobRow) -> tuple[bool, int]:
        value = getattr(row, name)
        return (value is not None, value or 0)

    return key


_KEYS: dict[str, Callable[[JobRow], Any]] = {
    "number": _number,
    "priority": attrgetter("job.priority"),
    "submit_ms": attrgetter("job.submit_ms"),
    "start_ms": _time("start_ms"),
    "end_ms": _time("end_ms"),
    "name": attrgetter("job.name"),
    "user": attrgetter("job.user"),
    "tenant": attrgetter("job.tenant"),
    "state": lambda row: row.state.value,
}


# --- The store that forgets everything when the process ends: for simulations and tests.


class MemoryStore:
    """Rows in dictionaries. With `keep_ended` off, ended jobs and history are dropped."""

    def __init__(self, *, keep_ended: bool = True) -> None:
        """Start empty."""
        self._keep_ended = keep_ended
        self._jobs: dict[str, JobRow] = {}
        self._archived: dict[str, JobRow] = {}
        self._tasks: dict[str, dict[int, TaskRow]] = {}
        self._launches: dict[str, Launch] = {}
        self._attempts: dict[str, dict[str, AttemptRow]] = {}
        self._measures: dict[str, dict[str, AttemptMeasure]] = {}
        self._hours: dict[tuple[int, str, int], DeviceHour] = {}
        self._environments: dict[str, EnvironmentRow] = {}
        self._usage: dict[tuple[int | None, str, str | None], UsageRow] = {}
        self._shares: dict[tuple[str, str | None], ShareRow] = {}
        self._answers: dict[tuple[str, str], AnswerRow] = {}
        self._tenants: dict[str, Tenant] = {}
        self._tokens: dict[str, Token] = {}
        self._identities: dict[tuple[str, str], Identity] = {}
        self._audit: list[tuple[int, AuditRow]] = []
        self._last_audit = 0
        self._pools: dict[Pool, PoolQuota] = {}
        self._windows: dict[str, AdvanceReservation] = {}
        self._services: dict[str, Service] = {}
        self._weeks: dict[tuple[str, str | None], WeekUsageRow] = {}
        self._estimates: dict[str, EstimateRow] = {}
        self._nodes: dict[str, Node] = {}
        self._allocations: dict[str, Allocation] = {}
        self._notices: dict[str, NoticeRow] = {}
        self._cursors: dict[str, CursorRow] = {}
        self._promises: dict[str, Reservation] = {}
        self._events: list[EventRow] = []
        self._last_event = 0
        self._next_number = 1
        self._keepers: dict[type, Callable[[Any], object]] = {
            JobRow: self._keep_job,
            TaskRow: self._keep_task,
            LaunchRow: self._keep_launch,
            NewJobs: self._keep_new,
            EnvironmentRow: self._keep_environment,
            AttemptRow: self._keep_attempt,
            AttemptMeasure: self._keep_measure,
            DeviceHour: self._keep_hour,
            UsageRow: self._keep_usage,
            ShareRow: self._keep_share,
            AnswerRow: self._keep_answer,
            Token: self._keep_token,
            Authority: self._keep_identity,
            JoinToken: self._keep_identity,
            NodeKey: self._keep_identity,
            AuditRow: self._keep_audit,
            EventRow: self._keep_event,
            NoticeRow: self._keep_notice,
            RemovedNotice: lambda gone: self._notices.pop(gone.id, None),
            CursorRow: self._keep_cursor,
            Allocation: self._keep_allocation,
            RemovedAllocation: lambda gone: self._allocations.pop(gone.id, None),
            PromiseRow: self._keep_promise,
            RemovedPromise: lambda gone: self._promises.pop(gone.id, None),
            Node: self._keep_node,
            RemovedNode: lambda gone: self._nodes.pop(gone.id, None),
            Tenant: self._keep_tenant,
            RemovedTenant: lambda gone: self._tenants.pop(gone.id, None),
            PoolQuota: self._keep_pool,
            AdvanceReservation: self._keep_window,
            Service: self._keep_service,
            WeekUsageRow: self._keep_week,
            EstimateRow: self._keep_estimate,
            RemovedEstimate: lambda gone: self._estimates.pop(gone.id, None),
            RemovedService: lambda gone: self._services.pop(gone.id, None),
            RemovedWindow: lambda gone: self._windows.pop(gone.id, None),
        }

    # --- writing

    def commit(self, writes: list[Write]) -> int:
        """Keep a batch; a row that cannot be kept is refused before anything is."""
        keepers = self._keepers
        launched = []
        for write in writes:
            if type(write) not in keepers:
                raise InternalError(f"the store does not know rows of type {type(write).__name__}")
            if isinstance(write, LaunchRow):
                launched.append(write.job_id)
        if launched:
            self._check_jobs_known(launched, writes)
        for write in writes:
            keepers[type(write)](write)
        return self._last_event

    def _check_jobs_known(self, launched: list[str], writes: list[Write]) -> None:
        new = {write.job.id for write in writes if isinstance(write, JobRow)}
        new.update(job.id for write in writes if isinstance(write, NewJobs) for job in write.jobs)
        for job_id in launched:
            if job_id not in new and self.job(job_id) is None:
                raise InternalError(f"the launch of job {job_id} came before the job itself")

    def _keep_job(self, row: JobRow) -> None:
        job = row.job
        if job.number >= self._next_number:
            self._next_number = job.number + 1
        if self._keep_ended:
            self._archived.pop(job.id, None)
            self._jobs[job.id] = row
        elif row.state in ENDED:
            for kept in (self._jobs, self._tasks, self._launches):
                kept.pop(job.id, None)
        else:
            self._jobs[job.id] = row

    def _keep_task(self, row: TaskRow) -> None:
        self._tasks.setdefault(row.job_id, {})[row.task] = row

    def _keep_launch(self, row: LaunchRow) -> None:
        self._launches[row.job_id] = row.launch

    def _keep_promise(self, row: PromiseRow) -> None:
        self._promises[row.id] = row.reservation

    def _keep_new(self, new: NewJobs) -> None:
        for row in new.rows():
            self._keepers[type(row)](row)
        for event in new.events():
            self._keep_event(event)

    def _keep_environment(self, row: EnvironmentRow) -> None:
        self._environments[row.name] = row

    def _keep_attempt(self, row: AttemptRow) -> None:
        if self._keep_ended:
            self._attempts.setdefault(row.job_id, {})[row.allocation_id] = row

    def _keep_measure(self, row: AttemptMeasure) -> None:
        if self._keep_ended:
            self._measures.setdefault(row.job_id, {})[row.allocation_id] = row

    def _keep_hour(self, row: DeviceHour) -> None:
        self._hours[(row.hour_ms, row.node_id, row.index)] = row

    def _keep_usage(self, row: UsageRow) -> None:
        self._usage[(row.period_ms, row.tenant, row.user)] = row

    def _keep_share(self, row: ShareRow) -> None:
        self._shares[(row.tenant, row.user)] = row

    def _keep_answer(self, row: AnswerRow) -> None:
        self._answers[(row.user, row.key)] = row

    def _keep_token(self, token: Token) -> None:
        self._tokens[token.id] = token

    def _keep_identity(self, identity: Identity) -> None:
        self._identities[identity_key(identity)] = identity

    def _keep_audit(self, row: AuditRow) -> None:
        self._last_audit += 1
        if self._keep_ended:
            self._audit.append((self._last_audit, row))

    def _keep_event(self, row: EventRow) -> None:
        self._last_event += 1
        if self._keep_ended:
            self._events.append(row)

    def _keep_notice(self, row: NoticeRow) -> None:
        self._notices[row.id] = row

    def _keep_cursor(self, row: CursorRow) -> None:
        self._cursors[row.name] = row

    def _keep_allocation(self, allocation: Allocation) -> None:
        self._allocations[allocation.id] = allocation

    def _keep_node(self, node: Node) -> None:
        self._nodes[node.id] = node

    def _keep_tenant(self, tenant: Tenant) -> None:
        self._tenants[tenant.id] = tenant

    def _keep_pool(self, quota: PoolQuota) -> None:
        self._pools[quota.pool] = quota

    def _keep_week(self, row: WeekUsageRow) -> None:
        self._weeks[row.tenant, row.user] = row

    def _keep_estimate(self, row: EstimateRow) -> None:
        self._estimates[row.job_id] = row

    def _keep_window(self, window: AdvanceReservation) -> None:
        self._windows[window.id] = window

    def _keep_service(self, service: Service) -> None:
        self._services[service.id] = service

    # --- jobs

    def job(self, job_id: str) -> JobRow | None:
        """One job, archived or not."""
        return self._jobs.get(job_id) or self._archived.get(job_id)

    def jobs(self) -> list[JobRow]:
        """All jobs that have not been archived, by number."""
        return sorted(self._jobs.values(), key=_number)

    def live_jobs(self) -> list[JobRow]:
        """All jobs that have not ended, by number."""
        return [row for row in self.jobs() if row.state not in ENDED]

    def recent_ends(self, limit: int) -> list[JobRow]:
        """The jobs that ended last, the latest first, archived ones left out."""
        ended = [row for row in self._jobs.values() if _ended_at(row) is not None]
        ended.sort(key=lambda row: (row.end_ms, row.job.number), reverse=True)
        return ended[:limit]

    def find_jobs(self, query: JobQuery) -> list[JobRow]:
        """A page of jobs."""
        marks = (row for row in self._all(archived=True) if row.job.number == query.after_number)
        return page(self._in_sweep(query), query, next(marks, None))

    def count_jobs(self, query: JobQuery) -> int:
        """How many jobs there are on all pages."""
        return len(chosen(self._in_sweep(query), query))

    def sweeps(self, user: str, within: frozenset[str] | None = None) -> list[SweepCount]:
        """The sweeps of a user: how many of their jobs are in each state."""
        found: dict[tuple[str, JobState], list[JobRow]] = {}
        for row in self._jobs.values():
            launch = self._launches.get(row.job.id)
            if within is not None and row.job.tenant not in within:
                continue
            if launch is not None and launch.sweep and row.job.user == user:
                found.setdefault((launch.sweep, row.state), []).append(row)
        return [
            SweepCount(
                name=name,
                state=state,
                jobs=len(rows),
                first=min(row.job.number for row in rows),
                last=max(row.job.number for row in rows),
                submit_ms=min(row.job.submit_ms for row in rows),
            )
            for (name, state), rows in sorted(found.items())
        ]

    def count_states(self, *, user: str = "", tenant: str = "") -> dict[JobState, int]:
        """How many jobs (an array counts once) are in each state, archived ones left out."""
        query = JobQuery(user=user, tenant=tenant)
        return dict(Counter(row.state for row in chosen(self._jobs.values(), query)))

    def _in_sweep(self, query: JobQuery) -> list[JobRow]:
        """The rows to choose from; which sweep a job is of stands in its launch."""
        rows = self._all(archived=query.archived)
        if not query.sweep:
            return rows
        return [
            row
            for row in rows
            if (launch := self._launches.get(row.job.id)) and launch.sweep == query.sweep
        ]

    def _all(self, *, archived: bool) -> list[JobRow]:
        return [*self._jobs.values(), *(self._archived.values() if archived else ())]

    # --- what belongs to a job

    def tasks(self, job_id: str, *, only: IntervalSet | None = None) -> list[TaskRow]:
        """The tasks of an array that have started, by number."""
        rows = sorted(self._tasks.get(job_id, {}).values(), key=attrgetter("task"))
        return rows if only is None else [row for row in rows if row.task in only]

    def launch(self, job_id: str) -> Launch | None:
        """How a job is run."""
        return self._launches.get(job_id)

    def launches(self, job_ids: Sequence[str]) -> dict[str, Launch]:
        """How these jobs are run, as far as that is known."""
        return {name: self._launches[name] for name in job_ids if name in self._launches}

    def environment(self, name: str) -> dict[str, str] | None:
        """A captured environment."""
        row = self._environments.get(name)
        return None if row is None else dict(row.variables)

    def attempts(self, job_id: str, task: int | None = None) -> list[AttemptRow]:
        """The attempts of a job, or of one task, that have ended, by task and attempt."""
        rows = self._attempts.get(job_id, {}).values()
        return sorted(
            (row for row in rows if task is None or row.task == task),
            key=lambda row: (row.task is not None, row.task or 0, row.attempt),
        )

    def attempt_measures(self, job_id: str, task: int | None = None) -> list[AttemptMeasure]:
        """What was measured on the attempts of a job, or of one task, by task and attempt."""
        rows = self._measures.get(job_id, {}).values()
        return sorted(
            (row for row in rows if task is None or row.task == task),
            key=lambda row: (row.task is not None, row.task or 0, row.attempt),
        )

    def job_measures(self, job_ids: Sequence[str]) -> dict[str, Measure]:
        """The measures of these jobs over all their attempts."""
        found: dict[str, Measure] = {}
        for job_id in job_ids:
            for row in self._measures.get(job_id, {}).values():
                found[job_id] = found.get(job_id, Measure()).plus(row.measure)
        return found

    def device_hours(self, from_ms: int, before_ms: int) -> list[DeviceHour]:
        """The hours of all devices that begin in this time, by hour, node and device."""
        return [row for key, row in sorted(self._hours.items()) if from_ms <= key[0] < before_ms]

    def attempts_between(
        self, from_ms: int, before_ms: int, *, after: tuple[int, str] = (0, ""), limit: int = 1000
    ) -> list[AttemptRow]:
        """Attempts that ended after the first moment and began before the second."""
        rows = [
            row
            for of_job in self._attempts.values()
            for row in of_job.values()
            if row.end_ms > from_ms
            and row.start_ms < before_ms
            and (row.end_ms, row.allocation_id) > after
        ]
        return sorted(rows, key=attrgetter("end_ms", "allocation_id"))[:limit]

    def measures_of(self, allocation_ids: Sequence[str]) -> dict[str, Measure]:
        """What was measured on these attempts; where nothing was, there is none."""
        wanted = set(allocation_ids)
        return {
            row.allocation_id: row.measure
            for of_job in self._measures.values()
            for row in of_job.values()
            if row.allocation_id in wanted
        }

    def answer(self, user: str, key: str) -> AnswerRow | None:
        """What was answered to a request before."""
        return self._answers.get((user, key))

    # --- the cluster

    def tenants(self) -> list[Tenant]:
        """All tenants, by id."""
        return sorted(self._tenants.values(), key=attrgetter("id"))

    def tokens(self) -> list[Token]:
        """All tokens, by id."""
        return sorted(self._tokens.values(), key=attrgetter("id"))

    def identities(self) -> list[Identity]:
        """How nodes are known, by kind and id."""
        return [identity for _, identity in sorted(self._identities.items(), key=itemgetter(0))]

    def audit(self, query: AuditQuery) -> list[tuple[int, AuditRow]]:
        """Records with their numbers, the newest first."""
        found = (
            (number, row)
            for number, row in reversed(self._audit)
            if (query.before is None or number < query.before)
            and row.at_ms >= query.since_ms
            and query.user in {"", row.user}
            and query.action in {"", row.action}
            and query.outcome in {"", row.outcome}
        )
        return list(islice(found, query.limit))

    def pools(self) -> list[PoolQuota]:
        """All pools with a part of their own, by name."""
        return sorted(self._pools.values(), key=attrgetter("pool"))

    def windows(self) -> list[AdvanceReservation]:
        """All reservations that people made, by number; those that are over as well."""
        return sorted(self._windows.values(), key=attrgetter("number"))

    def services(self) -> list[Service]:
        """All services with their replicas, by number."""
        return sorted(self._services.values(), key=attrgetter("number"))

    def nodes(self) -> list[Node]:
        """All nodes, by ordinal."""
        return sorted(self._nodes.values(), key=attrgetter("ordinal", "id"))

    def allocations(self) -> list[Allocation]:
        """All that is held, by id."""
        return sorted(self._allocations.values(), key=attrgetter("id"))

    def promises(self) -> list[Reservation]:
        """The places and times that waiting jobs were promised, by the job's number."""
        return sorted(self._promises.values(), key=attrgetter("job_number"))

    def usage(self) -> list[UsageRow]:
        """All totals, by period, tenant and user, None before all others."""
        return sorted(
            self._usage.values(),
            key=lambda row: (*_none_first(row.period_ms, 0), row.tenant, *_none_first(row.user)),
        )

    def week_usage(self) -> list[WeekUsageRow]:
        """GPU time by week, by tenant and user, None before all others."""
        return sorted(self._weeks.values(), key=lambda row: (row.tenant, *_none_first(row.user)))

    def estimates(self, *, started_since_ms: int | None = None) -> list[EstimateRow]:
        """Estimates of jobs that started since then, by start; without a time, of those to come."""
        return sorted(
            (
                row
                for row in self._estimates.values()
                if (row.start_ms is None) == (started_since_ms is None)
                and (row.start_ms or 0) >= (started_since_ms or 0)
            ),
            key=lambda row: (row.start_ms or 0, row.job_id),
        )

    def shares(self) -> list[ShareRow]:
        """All decayed usage, by tenant and user, None before all others."""
        return sorted(self._shares.values(), key=lambda row: (row.tenant, *_none_first(row.user)))

    # --- history

    def notices(self) -> list[NoticeRow]:
        """All notifications that wait, the oldest first."""
        return sorted(self._notices.values(), key=attrgetter("at_ms", "id"))

    def cursor(self, name: str) -> CursorRow | None:
        """How far somebody has read the history."""
        return self._cursors.get(name)

    def events(self, after: int = 0, limit: int = 1000) -> list[tuple[int, EventRow]]:
        """History with sequence numbers larger than `after`."""
        forgotten = self._last_event - len(self._events)
        start = max(0, after - forgotten)
        return list(
            enumerate(islice(self._events, start, start + limit), start=forgotten + start + 1)
        )

    def last_event(self) -> int:
        """The largest sequence number so far; 0 if there is no history."""
        return self._last_event

    def next_number(self) -> int:
        """The number of the next job; no number is ever given twice."""
        return self._next_number

    # --- old things

    def archive(self, *, ended_before_ms: int, limit: int = 1000) -> int:
        """Move jobs that ended before then out of the way, the oldest end first; says how many."""
        ends = sorted(
            (end_ms, row.job.number, row.job.id)
            for row in self._jobs.values()
            if (end_ms := _ended_at(row)) is not None and end_ms < ended_before_ms
        )[:limit]
        for _, _, job_id in ends:
            self._archived[job_id] = self._jobs.pop(job_id)
        return len(ends)

    def forget(self, before: Cutoffs, *, limit: int = 10_000) -> int:
        """Drop what is old: answers, events, hours, records, environments. Says how many."""
        old = [key for key, row in self._answers.items() if row.at_ms < before.answers_ms][:limit]
        for key in old:
            del self._answers[key]
        named = {
            launch.captured
            for job_id, launch in self._launches.items()
            if job_id in self._jobs and _needs(self._jobs[job_id], before.environments_ms)
        }
        unnamed = [name for name in self._environments if name not in named][:limit]
        for name in unnamed:
            del self._environments[name]
        hours = [key for key in sorted(self._hours) if key[0] < before.hours_ms][:limit]
        for hour in hours:
            del self._hours[hour]
        past = 0
        for event in self._events[:limit]:
            if event.at_ms >= before.events_ms:
                break
            past += 1
        del self._events[:past]
        outdated = [one for one in self._audit[:limit] if one[1].at_ms < before.audit_ms]
        gone = {number for number, _ in outdated}
        self._audit = [one for one in self._audit if one[0] not in gone]
        judged = [
            row.job_id
            for row in self.estimates(started_since_ms=0)
            if (row.start_ms or 0) < before.events_ms
        ][:limit]
        for job_id in judged:
            del self._estimates[job_id]
        return len(old) + len(unnamed) + len(hours) + past + len(outdated) + len(judged)

    def trouble(self) -> str:
        """There is none."""
        return ""

    def close(self) -> None:
        """There is nothing to let go of."""


def _needs(row: JobRow, environments_before_ms: int) -> bool:
    """Tell whether a job may still be run in its environment."""
    return row.state not in ENDED or (row.end_ms or 0) >= environments_before_ms


def _ended_at(row: JobRow) -> int | None:
    return row.end_ms if row.state in ENDED else None


def _none_first(value: Any, nothing: Any = "") -> tuple[bool, Any]:
    return (value is not None, nothing if value is None else value)
