"""The state of the control core: jobs, cluster, usage, reservations, credentials and timers.

Only the modules of this package change it; other packages may read it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from gpu_scheduler.control.clock import Calendar
from gpu_scheduler.control.gpu_metering import NO_RULES, GpuMeter, GpuRules
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.messages import NodeReported
from gpu_scheduler.engine.arrivals import RecentArrivals, RecentRequests
from gpu_scheduler.engine.policy import DAY_MS, HOUR_MS, MINUTE_MS, Policy, Ranking
from gpu_scheduler.engine.priority import service_ms, useful_thresholds
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.ledger.decayed_usage import Account, DecayedUsage, ProjectedUsage
from gpu_scheduler.ledger.usage import UsageTotals, WeeklyUsage
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.identity import Authority, Identity, JoinToken, NodeKey, Token
from gpu_scheduler.model.job import Job, JobState, display_name
from gpu_scheduler.model.plan import AdvanceReservation, Reservation
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant, TenantDirectory
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.predict.preemption_risk import PreemptionRisk
from gpu_scheduler.predict.start_ranges import StartRanges
from gpu_scheduler.store.rows import EstimateRow

FEW_TIMERS = 1_000
"""Below this number of timers, stale ones are not worth removing."""
MANY_MEMBERS = 10_000
"""Below this number of cached requests, unused ones are not worth removing."""


@dataclass(slots=True)
class NodeKeys:
    """Credentials of nodes: the certificate authority, join tokens, and one key per node."""

    authority: Authority | None = None
    tokens: dict[str, JoinToken] = field(default_factory=dict)
    token_ids: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeKey] = field(default_factory=dict)

    def keep(self, *identities: Identity) -> None:
        """Add or replace these credentials."""
        for found in identities:
            match found:
                case Authority():
                    self.authority = found
                case JoinToken():
                    self.tokens[found.id] = found
                    self.token_ids[found.secret_hash] = found.id
                case NodeKey():
                    self.nodes[found.node] = found


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Limits and timeouts of the core. The scheduling policy is separate.

    With `nodes_keep_limits` the nodes stop jobs at their time limits, even without a connection to
    the server; otherwise the core orders the stop.
    """

    max_queued_tasks: int = 1_000_000
    user_max_priority: int = 10_000
    """The highest priority that a user who is no admin may give to a job."""
    user_queue_percent: int = 100
    """A user, unless an admin, may have this percentage of what other users leave in the queue."""
    tenant_queue_percent: int = 100
    """The same for a tenant and other tenants, where there are several."""
    admin_queue_percent: int = 0
    """This percentage of the queue is kept for admins."""
    remembered_ends: int = 100_000
    """How many ended jobs stay in memory, for retries and dependencies."""
    nodes_keep_limits: bool = False
    start_timeout_ms: int = 0
    """An attempt that has not started after this time is stopped and tried again (0: never)."""
    prepare_timeout_ms: int = 0
    """All members of a gang over several nodes must be prepared within this time."""
    gang_start_timeout_ms: int = 0
    """After the commit, all members of such a gang must start within this time."""
    max_misstarts: int = 5
    """A job fails after this many attempts that did not start in time."""
    max_prolog_failures: int = 3
    """A job fails after this many failed prologs in a row."""
    hook_failure_drains: bool = True
    """Drain a node on which a prolog or epilog failed."""
    backoff_ms: int = 10_000
    max_backoff_ms: int = 10 * MINUTE_MS
    hot_above_c: int = 0
    """A device above this temperature gets no new work (0: never) ..."""
    hot_hysteresis_c: int = 5
    """... until it is this much cooler."""
    quarantine_after: int = 5
    """A device is quarantined after this many early deaths of attempts in a row (0: never)."""
    quarantine_within_ms: int = 10_000
    """An attempt that fails within this time counts as an early death."""
    gpu_rules: GpuRules = NO_RULES
    lease_ms: int = 0
    """Lease of jobs that ask for one, on nodes that support leases (0: none)."""
    lease_margin_ms: int = 30_000
    sets_failing_jobs_aside: bool = False
    """A queued job that makes the engine fail is set aside; otherwise the error is raised."""
    requeue_after_death: bool = False
    """Requeue jobs of a dead node, except interactive ones."""
    usage_half_life_ms: int = 7 * DAY_MS
    recent_half_life_ms: int = 6 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Timer:
    """A due timer. `name` is the id of a job, allocation, node, service or reservation."""

    kind: str
    name: str
    task: int | None


RECENT_SERVICES = 1_000
FEWEST_SERVICES = 50
LONGEST_LESSON = 100
"""Feedback levels follow the last 1,000 ends, and are chosen again after 100 more at the latest."""


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job ended; with its record unless it completed, so that it can be retried."""

    state: JobState
    user: str
    tenant: str
    record: JobRecord | None = None


@dataclass(slots=True)
class Sweep:
    """How far the cycles have come with the queue, and the jobs that they leave out.

    `continues`: the last cycle ran out of its budget, so the next one goes on behind it.
    `is_stale`: something changed during this sweep, so another one must follow it. `has_rejects`:
    in this sweep a job was rejected that would delay a reservation; under fair share, a start
    changes the order, so the job may come first in the next sweep. `set_aside`: the jobs that made
    a cycle fail, by id, with the error.
    """

    continues: bool = False
    is_stale: bool = False
    has_rejects: bool = False
    set_aside: dict[str, str] = field(default_factory=dict)


class ControlState:
    """Job records, the engine's cluster state, the ledger and the timers."""

    def __init__(  # noqa: PLR0915 - one attribute after the other
        self, policy: Policy, predictor: Predictor, limits: CoreLimits
    ) -> None:
        """Start empty."""
        self.policy, self.predictor, self.limits = policy, predictor, limits
        self.cluster = ClusterState(policy)
        self.calendar = Calendar()
        self.changed = False
        """Whether something changed since the last cycle that may let a job start."""
        self.sweep = Sweep()
        self.new_nodes = False
        """Whether nodes joined or changed, so that `unplaced` jobs must be checked again."""

        # Jobs.
        self.jobs: dict[str, JobRecord] = {}
        """All jobs that have not ended, by id."""
        self.by_allocation: dict[str, tuple[JobRecord, int | None]] = {}
        """Job and task that hold an allocation."""
        self.dependents: dict[str, dict[str, None]] = {}
        """Jobs that wait for the end of a job."""
        self.ended: OrderedDict[str, EndedJob] = OrderedDict()
        self.protected: dict[str, None] = {}
        """Jobs that have waited so long that they go first; some may have ended."""
        self.unplaced: dict[str, None] = {}
        """Jobs for which no suitable node has been found yet."""
        self.container_phases: dict[str, dict[int, tuple[str, str]]] = {}
        """Node and phase of container engines, by attempt and member, until the containers begin.

        It is not stored: the agents repeat it to the next server.
        """
        self.next_number = 1
        self.queued_tasks = 0
        self.queued_of: dict[tuple[str, str], int] = {}
        """Waiting tasks by tenant and user."""
        # Waiting tasks of ("user", name), in all tenants, and of ("tenant", id).
        self.queued_by_owner: dict[tuple[str, str], int] = {}
        self.estimates: dict[str, EstimateRow] = {}
        """The first start estimate that was shown for each waiting job."""
        self.start_ranges = StartRanges()
        """The ranges of estimates, calibrated with the estimates of the jobs that have started."""
        self.ranges_kept: Counter[str] = Counter()
        """Starts within, before (early) and after (late) their range, since the server started."""
        self.recent_arrivals = RecentArrivals()
        self.recent_requests = RecentRequests()
        self.preemption_risk = PreemptionRisk()
        self.recent_services: deque[int] = deque(maxlen=RECENT_SERVICES)
        """The service that the last ended jobs have attained, as feedback levels count it."""
        self.services_to_learn = FEWEST_SERVICES
        """After so many more ends, the feedback levels are chosen again."""
        self.services: dict[str, Service] = {}
        self.services_to_reconcile: dict[str, None] = {}
        """Services that must be checked, because something of theirs changed."""

        # Nodes.
        self.fenced: dict[str, set[str]] = {}
        """Dead nodes of allocations that still hold other nodes."""
        self.early_deaths: dict[tuple[str, int], deque[tuple[int, str]]] = {}
        """Hash of the command and user of the attempts that failed at once, by device."""
        self.pending_reports: dict[str, NodeReported] = {}
        """Reports of nodes where jobs still hold hardware that is gone."""
        self.gpu_meter = GpuMeter()

        # Usage. `charged` are the accounts that changed since they were last written,
        # `corrected_ends` the ends of attempts that an admin has corrected, by allocation.
        self.decayed_usage = DecayedUsage(
            half_life_ms=limits.usage_half_life_ms, recent_half_life_ms=limits.recent_half_life_ms
        )
        self.projected_usage = ProjectedUsage()
        self.usage_totals, self.weekly_usage = UsageTotals(), WeeklyUsage()
        self.charged: dict[Account, None] = {}
        self.corrected_ends: dict[str, int] = {}
        self.lenders: dict[str, None] = {}
        """Tenants with an elastic quota: their recent usage decides what others may borrow."""
        self.budget_reset_ms = 0
        """When the next budget period begins."""

        # Reservations of the engine: as last written, and those on nodes that have not reconnected
        # since the restart (kept until `unconfirmed_until_ms`).
        self.stored_reservations: dict[int, Reservation] = {}
        self.unconfirmed_reservations: dict[int, Reservation] = {}
        self.unconfirmed_until_ms = 0

        # Advance reservations that have ended (by number), have begun, and lack broken devices
        # (which, and when replacements were last searched).
        self.past_advance_reservations: dict[int, AdvanceReservation] = {}
        self.begun_advance_reservations: dict[str, None] = {}
        self.short_advance_reservations: dict[str, tuple[tuple[tuple[str, int], ...], int]] = {}

        # Credentials.
        self.tokens: dict[str, Token] = {}
        self.token_ids: dict[str, str] = {}
        self.node_keys = NodeKeys()

        # Timers. `wake_ms` is set by each cycle, `tick_ms` is the next feedback tick.
        self.tick_ms = -1
        self.wake_ms: int | None = None
        self._timers: list[tuple[int, str, str, int]] = []
        self._sweep_timers_at = FEW_TIMERS
        self._members: dict[tuple[Request, ...], tuple[Request, ...]] = {}
        self._sweep_members_at = MANY_MEMBERS
        self._tenant_directory: TenantDirectory | None = None

    def job(self, job_id: str) -> JobRecord:
        """The record of a job that has not ended; raise if there is none."""
        record = self.jobs.get(job_id)
        if record is None:
            if job_id in self.ended:
                raise WrongState(f"{display_name(job_id)} is already {self.ended[job_id].state}")
            raise UnknownThing(f"{display_name(job_id)} is not known")
        return record

    def note_request(self, job: Job, count: int = 1) -> None:
        """So many such jobs were submitted: the ranking `balance` learns what is asked for."""
        if self.policy.ranking is Ranking.BALANCE and self.recent_requests.note(job, count):
            self.cluster.set_demand(self.recent_requests.demand)

    def note_service(self, job: Job, run_ms: int | None, now_ms: int) -> None:
        """A job has ended, by itself if it has a run time; at times, choose the feedback levels.

        Jobs that have not ended count with what they have attained; without them, long jobs would
        be missing where most of them still run.
        """
        feedback = self.policy.feedback
        if not feedback.adapts or run_ms is None:
            return
        self.recent_services.append(service_ms(run_ms, job.gpu_milli, feedback))
        self.services_to_learn -= 1
        if self.services_to_learn > 0:
            return
        self.services_to_learn = min(LONGEST_LESSON, len(self.recent_services) // 4)
        services = list(self.recent_services)
        for entry in self.cluster.running.values():
            running = entry.running
            attained_ms = running.served_ms + now_ms - running.allocation.start_ms
            services.append(service_ms(attained_ms, running.job.gpu_milli, feedback))
        for queued in self.cluster.queue.entries.values():
            waiting = queued.waiting
            if waiting.served_ms:
                services.append(service_ms(waiting.served_ms, waiting.job.gpu_milli, feedback))
        self.cluster.set_thresholds(useful_thresholds(services, feedback.thresholds_ms))

    def knows(self, job_id: str) -> bool:
        """Tell whether a job is in memory, ended or not."""
        return job_id in self.jobs or job_id in self.ended

    def running(self, allocation_id: str) -> tuple[JobRecord, int | None, TaskRecord] | None:
        """Job, task number and task record of an allocation; None once it has ended."""
        found = self.by_allocation.get(allocation_id)
        if found is None:
            return None
        record, task = found
        return record, task, record.task(task)

    def shared_members(self, members: tuple[Request, ...]) -> tuple[Request, ...]:
        """Equal requests as one shared object, which saves memory."""
        shared = self._members.get(members)
        if shared is None:
            if len(self._members) >= self._sweep_members_at:
                # Drop requests of jobs that have ended.
                self._members = {
                    record.job.members: record.job.members for record in self.jobs.values()
                }
                self._sweep_members_at = max(MANY_MEMBERS, 2 * len(self._members))
            shared = self._members[members] = members
        return shared

    @property
    def next_reservation_number(self) -> int:
        """The number of the next advance reservation."""
        live = (reservation.number for reservation in self.cluster.advance_reservations.values())
        return 1 + max((*live, *self.past_advance_reservations), default=0)

    def count_queued(self, job: Job, tasks: int) -> None:
        """Add to the number of waiting tasks; negative to subtract."""
        self.queued_tasks += tasks
        _add(self.queued_of, (job.tenant, job.user), tasks)
        _add(self.queued_by_owner, ("user", job.user), tasks)
        _add(self.queued_by_owner, ("tenant", job.tenant), tasks)

    def set_tenant(self, tenant: Tenant) -> None:
        """Add or replace a tenant."""
        self.cluster.set_tenant(tenant)
        self._tenant_directory = None
        if tenant.elastic and tenant.quota.gpu_milli is not None:
            self.lenders[tenant.id] = None
        else:
            self.lenders.pop(tenant.id, None)

    def remove_tenant(self, tenant_id: str) -> None:
        """Remove a tenant."""
        self.cluster.remove_tenant(tenant_id)
        self._tenant_directory = None
        self.lenders.pop(tenant_id, None)

    @property
    def tenant_directory(self) -> TenantDirectory:
        """Tenants by user and group; a new object after each change of a tenant."""
        if self._tenant_directory is None:
            self._tenant_directory = TenantDirectory.of(self.cluster.tenants.values())
        return self._tenant_directory

    def calendar_ms(self, now_ms: int) -> int:
        """The calendar time at this scheduler time; never before 0, which stands for no time."""
        return max(0, now_ms + self.calendar.offset_ms)

    def set_timer(self, at_ms: int, kind: str, name: str, task: int | None = None) -> None:
        """Set a timer; the next cycle at or after `at_ms` handles it."""
        if len(self._timers) >= self._sweep_timers_at:
            self._sweep_timers()
        heappush(self._timers, (at_ms, kind, name, -1 if task is None else task))

    def due_timers(self, now_ms: int) -> list[Timer]:
        """Remove and return the timers that are due."""
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            _, kind, name, task = heappop(self._timers)
            due.append(Timer(kind, name, None if task < 0 else task))
        return due

    def _sweep_timers(self) -> None:
        """Remove timers of jobs, nodes, services and reservations that are gone.

        Time limits lie far ahead and most jobs end long before. Called when the number of timers
        has doubled since the last call, so the cost per timer is constant.
        """
        self._timers = [
            timer
            for timer in self._timers
            if not timer[2]
            or timer[2] in self.by_allocation
            or timer[2] in self.jobs
            or timer[2] in self.cluster.advance_reservations
            or timer[2] in self.services
            or timer[2] in self.cluster.index.by_id
        ]
        heapify(self._timers)
        self._sweep_timers_at = max(FEW_TIMERS, 2 * len(self._timers))

    def next_timer_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        if not self._timers:
            return self.wake_ms
        at_ms = self._timers[0][0]
        return at_ms if self.wake_ms is None else min(at_ms, self.wake_ms)

    def forget(self, record: JobRecord, state: JobState) -> None:
        """Move a job to `ended`, and drop the oldest entry if there are too many."""
        job_id = record.job.id
        del self.jobs[job_id]
        self.unplaced.pop(job_id, None)
        self.sweep.set_aside.pop(job_id, None)
        kept = None if state is JobState.COMPLETED else record
        self.ended[job_id] = EndedJob(state, record.job.user, record.job.tenant, kept)
        if len(self.ended) > self.limits.remembered_ends:
            self.ended.popitem(last=False)


def _add(counts: dict[tuple[str, str], int], key: tuple[str, str], number: int) -> None:
    """Add to a count; counts of zero are left out."""
    count = counts.get(key, 0) + number
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)
