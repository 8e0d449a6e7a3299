"""Everything the core knows, in one place. Only the modules of this package change it."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from gpu_scheduler.control.gpu_metering import NO_RULES, GpuMeter, GpuRules
from gpu_scheduler.control.job_record import JobRecord, TaskRecord
from gpu_scheduler.control.messages import NodeReported
from gpu_scheduler.engine.policy import DAY_MS, HOUR_MS, MINUTE_MS, Policy
from gpu_scheduler.engine.state.cluster_state import ClusterState
from gpu_scheduler.ledger.decayed_usage import Account, DecayedUsage
from gpu_scheduler.ledger.usage_totals import UsageTotals, WeeklyUsage
from gpu_scheduler.model.advance_reservation import AdvanceReservation
from gpu_scheduler.model.errors import UnknownThing, WrongState
from gpu_scheduler.model.identity import Authority, Identity, JoinToken, NodeKey, Token
from gpu_scheduler.model.job import Job, JobState, display_name
from gpu_scheduler.model.plan import Reservation
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.service import Service
from gpu_scheduler.model.tenant import Tenant, TenantDirectory
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.store.rows import EstimateRow

# --- The keys of nodes as the core knows them.


@dataclass(slots=True)
class NodeKeys:
    """All that is known of the keys of nodes."""

    authority: Authority | None = None
    tokens: dict[str, JoinToken] = field(default_factory=dict)
    token_ids: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, NodeKey] = field(default_factory=dict)

    def keep(self, *identities: Identity) -> None:
        """Take in what is kept, or is about to be."""
        for found in identities:
            match found:
                case Authority():
                    self.authority = found
                case JoinToken():
                    self.tokens[found.id] = found
                    self.token_ids[found.secret_hash] = found.id
                case NodeKey():
                    self.nodes[found.node] = found


# --- Everything the core knows, in one place. Only the modules of this package change it.

FEW_TIMERS = 1_000
MANY_MEMBERS = 10_000
"""Up to so many timers are not worth looking through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreLimits:
    """Numbers that bound the core, not the policy.

    With `nodes_keep_limits` the nodes themselves stop jobs at their time limits, also while nobody
    reaches them; else the core orders it. An attempt that has not begun after `start_timeout_ms`
    (0: any time) is given up and tried again, `max_misstarts` times; one whose prolog failed
    `max_prolog_failures` times in a row, and with `hook_failure_drains` its node is drained. A gang
    over several nodes has `prepare_timeout_ms` until all its members are prepared, then
    `gang_start_timeout_ms` to begin. A device above `hot_above_c` (0: never) gets no new work until
    it is `hot_hysteresis_c` below. One on which `quarantine_after` (0: never) attempts in a row
    died within `quarantine_within_ms` is set aside. Jobs that ask for it get leases of `lease_ms`
    (0: none) on nodes that keep them; what ran on a node that is dead waits again, interactive jobs
    apart, if `requeue_after_death`.
    """

    max_queued_tasks: int = 1_000_000
    remembered_ends: int = 100_000
    nodes_keep_limits: bool = False
    start_timeout_ms: int = 0
    prepare_timeout_ms: int = 0
    gang_start_timeout_ms: int = 0
    max_misstarts: int = 5
    max_prolog_failures: int = 3
    hook_failure_drains: bool = True
    backoff_ms: int = 10_000
    max_backoff_ms: int = 10 * MINUTE_MS
    hot_above_c: int = 0
    hot_hysteresis_c: int = 5
    quarantine_after: int = 5
    quarantine_within_ms: int = 10_000
    gpu_rules: GpuRules = NO_RULES
    lease_ms: int = 0
    lease_margin_ms: int = 30_000
    requeue_after_death: bool = False
    usage_half_life_ms: int = 7 * DAY_MS
    recent_half_life_ms: int = 6 * HOUR_MS


@dataclass(frozen=True, slots=True)
class Timer:
    """What is due: `name` is a job or an allocation, `task` a task of an array."""

    kind: str
    name: str
    task: int | None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How a job ended; with its record unless it completed, so that it can be retried."""

    state: JobState
    user: str
    tenant: str
    record: JobRecord | None = None


class ControlState:
    """Lives of jobs, the engine's cluster state, the ledger and the timers.

    `unplaced` jobs have not been found to fit the known nodes, and are looked at again when
    `new_nodes` came. `fenced` has the dead nodes of allocations that still hold others. `lenders`
    are the tenants whose recent use decides what others may borrow. `charged` are the accounts that
    changed since they were last written, `early_deaths` the commands that died on a device at once,
    `unsettled` what was found on nodes where jobs still hold hardware that is gone. `promises` are
    the reservations as they were last written, `unheard` those on nodes that have not come back.
    `queued_of` is how much waits of each tenant and user, `weeks` what they used since Monday, and
    `turn_ms` when the next budget begins. Of what people reserved, `past_windows` are over, by
    number, and `begun_windows` have begun, `short_windows` lack devices that broke: which, and when
    others were looked for. `estimates` are what waiting jobs were told first.
    `unsettled_services` are to be looked at, as something of theirs has changed.
    """

    unheard_until_ms = 0

    def __init__(self, policy: Policy, predictor: Predictor, limits: CoreLimits) -> None:
        """Start empty."""
        self.policy = policy
        self.predictor = predictor
        self.limits = limits
        self.cluster = ClusterState(policy)
        self.shares = DecayedUsage(
            half_life_ms=limits.usage_half_life_ms, recent_half_life_ms=limits.recent_half_life_ms
        )
        self.accounts = UsageTotals()
        self.gauges = GpuMeter()
        self.jobs: dict[str, JobRecord] = {}
        self.by_allocation: dict[str, tuple[JobRecord, int | None]] = {}
        self.dependents: dict[str, dict[str, None]] = {}
        self.ended: OrderedDict[str, EndedJob] = OrderedDict()
        self.unplaced: dict[str, None] = {}
        self.fenced: dict[str, set[str]] = {}
        self.lenders: dict[str, None] = {}
        self.early_deaths: dict[tuple[str, int], deque[int]] = {}
        self.unsettled: dict[str, NodeReported] = {}
        self.charged: dict[Account, None] = {}
        self.promises: dict[int, Reservation] = {}
        self.unheard: dict[int, Reservation] = {}
        self.tokens: dict[str, Token] = {}
        self.token_ids: dict[str, str] = {}
        self.node_keys = NodeKeys()
        self.past_windows: dict[int, AdvanceReservation] = {}
        self.begun_windows: dict[str, None] = {}
        self.short_windows: dict[str, tuple[tuple[tuple[str, int], ...], int]] = {}
        self.estimates: dict[str, EstimateRow] = {}
        self.services: dict[str, Service] = {}
        self.unsettled_services: dict[str, None] = {}
        self.next_number, self.queued_tasks = 1, 0
        self.queued_of: dict[tuple[str, str], int] = {}
        self.weeks = WeeklyUsage()
        self.turn_ms, self.tick_ms = 0, -1
        self.changed = self.new_nodes = False
        self.wake_ms: int | None = None
        self._timers: list[tuple[int, str, str, int]] = []
        self._sweep_timers_at = FEW_TIMERS
        self._members: dict[tuple[Request, ...], tuple[Request, ...]] = {}
        self._sweep_members_at = MANY_MEMBERS
        self._tenant_directory: TenantDirectory | None = None

    def job(self, job_id: str) -> JobRecord:
        """A job that has not ended."""
        record = self.jobs.get(job_id)
        if record is None:
            if job_id in self.ended:
                raise WrongState(f"{display_name(job_id)} is already {self.ended[job_id].state}")
            raise UnknownThing(f"{display_name(job_id)} is not known")
        return record

    def running(self, allocation_id: str) -> tuple[JobRecord, int | None, TaskRecord] | None:
        """Whose allocation this is, if it is still held."""
        found = self.by_allocation.get(allocation_id)
        if found is None:
            return None
        record, task = found
        return record, task, record.task(task)

    def shared_members(self, members: tuple[Request, ...]) -> tuple[Request, ...]:
        """The same requests as one object for all jobs that ask for them."""
        shared = self._members.get(members)
        if shared is None:
            if len(self._members) >= self._sweep_members_at:
                # What no living job asks for any more is forgotten.
                self._members = {
                    record.job.members: record.job.members for record in self.jobs.values()
                }
                self._sweep_members_at = max(MANY_MEMBERS, 2 * len(self._members))
            shared = self._members[members] = members
        return shared

    @property
    def next_window(self) -> int:
        """The number of the next reservation; the last one is always remembered."""
        live = (window.number for window in self.cluster.advance_reservations.values())
        return 1 + max((*live, *self.past_windows), default=0)

    def count_queued(self, job: Job, tasks: int) -> None:
        """So many more tasks of a job wait, or fewer."""
        self.queued_tasks += tasks
        owner = (job.tenant, job.user)
        count = self.queued_of.get(owner, 0) + tasks
        if count:
            self.queued_of[owner] = count
        else:
            self.queued_of.pop(owner, None)

    def set_tenant(self, tenant: Tenant) -> None:
        """A tenant appeared or changed."""
        self.cluster.set_tenant(tenant)
        self._tenant_directory = None
        if tenant.elastic and tenant.quota.gpu_milli is not None:
            self.lenders[tenant.id] = None
        else:
            self.lenders.pop(tenant.id, None)

    def remove_tenant(self, tenant_id: str) -> None:
        """A tenant is gone."""
        self.cluster.remove_tenant(tenant_id)
        self._tenant_directory = None
        self.lenders.pop(tenant_id, None)

    @property
    def tenant_directory(self) -> TenantDirectory:
        """Who belongs to which tenants; another object whenever that may have changed."""
        if self._tenant_directory is None:
            self._tenant_directory = TenantDirectory.of(self.cluster.tenants.values())
        return self._tenant_directory

    def set_timer(self, at_ms: int, kind: str, name: str, task: int | None = None) -> None:
        """Look at something at a later time."""
        if len(self._timers) >= self._sweep_timers_at:
            self._sweep_timers()
        heappush(self._timers, (at_ms, kind, name, -1 if task is None else task))

    def due_timers(self, now_ms: int) -> list[Timer]:
        """What should be looked at now."""
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            _, kind, name, task = heappop(self._timers)
            due.append(Timer(kind, name, None if task < 0 else task))
        return due

    def _sweep_timers(self) -> None:
        """Drop the timers of what is gone: limits lie far ahead, and most jobs end long before.

        Done when there are twice as many as were left the last time, so that it costs little.
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
        """When something is due, if anything is."""
        if not self._timers:
            return self.wake_ms
        at_ms = self._timers[0][0]
        return at_ms if self.wake_ms is None else min(at_ms, self.wake_ms)

    def forget(self, record: JobRecord, state: JobState) -> None:
        """A job has ended; only how it ended is remembered, and not for ever."""
        job_id = record.job.id
        del self.jobs[job_id]
        self.unplaced.pop(job_id, None)
        kept = None if state is JobState.COMPLETED else record
        self.ended[job_id] = EndedJob(state, record.job.user, record.job.tenant, kept)
        if len(self.ended) > self.limits.remembered_ends:
            self.ended.popitem(last=False)
