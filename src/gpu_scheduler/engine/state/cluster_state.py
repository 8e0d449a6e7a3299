"""The cluster state that decisions are made from; every change updates its indexes.

`control` applies what happened; `decide` only reads it (what it tries, it undoes). A state rebuilt
from its own snapshot gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sortedcontainers import SortedList

from gpu_scheduler.engine.placement.scoring import ScoreMemory, needs_vectors
from gpu_scheduler.engine.policy import Feedback, Policy, Preemption, Ranking
from gpu_scheduler.engine.priority import LEVEL_MS, level_of, order_key, static_class
from gpu_scheduler.engine.queue import Entry, GroupKey, JobShape, Queue
from gpu_scheduler.engine.quota.admission import Amounts, Holdings, job_amounts, pool_guarantees
from gpu_scheduler.engine.quota.tree import TreeLimits
from gpu_scheduler.engine.state.equivalence_classes import RequestShape
from gpu_scheduler.engine.state.node_index import NodeIndex
from gpu_scheduler.engine.state.node_resources import Grant, NodeResources
from gpu_scheduler.engine.state.transaction import Transaction
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota, Running, Snapshot, Waiting
from gpu_scheduler.model.errors import InternalError
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import (
    AdvanceReservation,
    Plan,
    Reservation,
    ResumePoint,
)
from gpu_scheduler.model.quota_tree import ANY_MODEL, QuotaNode
from gpu_scheduler.model.request import WHOLE_MILLI, TypicalShape
from gpu_scheduler.model.service import ENDLESS_MS
from gpu_scheduler.model.tenant import Quota, Tenant

EndKey = tuple[int, int, int, str]
_NO_QUOTA = Quota()
SPARE_SHAPES = 1_000
"""So many shapes may be remembered beside those of the jobs that wait."""


@dataclass(slots=True, eq=False)
class RunningEntry:
    """A running allocation with its grants on the nodes."""

    running: Running
    grants: list[Grant]
    amounts: Amounts
    static_class: int

    @property
    def nodes(self) -> int:
        """Where it runs, as a bitmap."""
        bits = 0
        for grant in self.grants:
            bits |= grant.resources.bit
        return bits

    @property
    def end_key(self) -> EndKey:
        """Expected end first; ends with ids, so that two runs agree."""
        allocation = self.running.allocation
        task = -1 if allocation.task is None else allocation.task
        return (self.running.expected_end_ms, self.running.job.number, task, allocation.id)


@dataclass(slots=True, eq=False)
class WorkNodes:
    """The nodes that run work of one sort, as a bitmap with counts behind it."""

    bits: int = 0
    _counts: dict[int, int] = field(default_factory=dict)

    def add(self, grants: list[Grant]) -> None:
        """Such work runs here from now on."""
        for grant in grants:
            ordinal = grant.resources.ordinal
            count = self._counts.get(ordinal, 0)
            self._counts[ordinal] = count + 1
            if not count:
                self.bits |= grant.resources.bit

    def remove(self, grants: list[Grant]) -> None:
        """It runs here no more."""
        for grant in grants:
            ordinal = grant.resources.ordinal
            self._counts[ordinal] -= 1
            if not self._counts[ordinal]:
                del self._counts[ordinal]
                self.bits ^= grant.resources.bit

    def widen(self, growth: int) -> None:
        """Widen the bitmaps of nodes by this many bits."""
        self.bits <<= growth


class AntiAffinityCounts:
    """How many jobs of each service (by id) and port are on which node, by ordinal."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: dict[str | int, dict[int, int]] = {}

    def add(self, job: Job, grants: Iterable[Grant], sign: int = 1) -> None:
        """A job is on these nodes from now on (or no more)."""
        keys: list[str | int] = [key for key in (job.service, job.port) if key]
        for key in keys:
            counts = self._counts.setdefault(key, {})
            for grant in grants:
                ordinal = grant.resources.ordinal
                counts[ordinal] = counts.get(ordinal, 0) + sign
                if not counts[ordinal]:
                    del counts[ordinal]
            if not counts:
                del self._counts[key]

    def of(self, key: str | int) -> dict[int, int]:
        """How many are where."""
        return self._counts.get(key, {})


CacheKey = tuple[int, int, bool]
"""The id of a request shape, the static class of the job that searches, and whether that job has a
reservation that is due."""


@dataclass(slots=True, eq=False)
class NegativeCache:
    """Nodes where preemption is known not to free enough, until something changes there.

    On a full cluster nearly every cycle searches for victims, mostly without success and mostly on
    the same nodes. The search itself found what is remembered here, so it changes no answer. Only
    for preemption by class: which classes may evict a running job is fixed until that job changes,
    except that no job is evicted shortly before its end. So on a node where nothing changes there
    can only be fewer victims.
    """

    _nodes: dict[CacheKey, int] = field(default_factory=dict)
    _changed: int = 0

    def of(self, key: CacheKey) -> int:
        """The nodes where a search finds nothing, as a bitmap."""
        self._drop_changed()
        return self._nodes.get(key, 0)

    def add(self, key: CacheKey, nodes: int) -> None:
        """Remember nodes where a search found nothing."""
        self._drop_changed()
        self._nodes[key] = self._nodes.get(key, 0) | nodes

    def invalidate(self, nodes: int) -> None:
        """Something has started, ended or changed on these nodes."""
        self._changed |= nodes

    def _drop_changed(self) -> None:
        """Done only before a search, as there are more changes than searches."""
        if not self._changed:
            return
        unchanged = ~self._changed
        self._changed = 0
        for key in self._nodes:
            self._nodes[key] &= unchanged


class ClusterState:
    """Nodes, tenants, waiting and running jobs, reservations and usage, all indexed."""

    def __init__(self, policy: Policy) -> None:
        """Start empty; the policy decides how the queue is keyed."""
        self.policy = policy
        self.index = NodeIndex()
        if needs_vectors(policy.ranking):
            self.index.watch(sizes=policy.ranking is Ranking.CLUSTERING)
        self.score_memory = ScoreMemory()
        self.demand = policy.typical_shapes
        self.feedback = policy.feedback
        self.queue = Queue()
        self.tenants: dict[str, Tenant] = {}
        self.pools: dict[Pool, PoolQuota] = {}
        self.holdings = Holdings()
        self.running: dict[str, RunningEntry] = {}
        self.ends: SortedList[EndKey] = SortedList()
        self.by_node: dict[int, dict[str, RunningEntry]] = {}
        self.by_class: dict[int, dict[str, RunningEntry]] = {}
        self.running_tasks: dict[int, int] = {}
        self.anti_affinity_counts = AntiAffinityCounts()
        self.trials = 0
        """Changes that are only tried, and not undone yet. Between two messages it is 0, unless an
        error kept a trial from being undone: then the state is to be thrown away."""
        self.reservations: dict[int, Reservation] = {}
        self.advance_reservations: dict[str, AdvanceReservation] = {}
        self.tenant_usage: dict[str, AccountUsage] = {}
        self.user_usage: dict[tuple[str, str], AccountUsage] = {}
        self.node_usage: dict[str, AccountUsage] = {}
        self.total_gpu_milli = 0
        self._model_milli: dict[str, int] = {}
        self._out_of_use: dict[int, int] = {}
        self.stopping: dict[str, None] = {}
        self.class_nodes: dict[int, WorkNodes] = {}
        self.account_nodes: dict[tuple[str, Pool], WorkNodes] = {}
        self.preemption_cache = NegativeCache()
        self.resume_after: ResumePoint | None = None
        self.quota_nodes: dict[str, QuotaNode] = {}
        self._has_model_quotas = False
        self.has_quotas = False
        self.set_quota_tree(policy.quota_tree)
        self.gang_verdicts: dict[tuple[int, int], str] = {}
        self.job_shapes: dict[int, JobShape] = {}
        self.shapes_of_base: dict[int, list[JobShape]] = {}
        self._shape_of: dict[tuple[object, ...], JobShape] = {}
        self._bases: dict[tuple[object, ...], int] = {}
        self._next_shape = 0
        self._most_shapes = SPARE_SHAPES

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot, policy: Policy) -> ClusterState:
        """Build every index afresh."""
        state = cls(policy)
        for node in snapshot.nodes:
            state.set_node(node)
        for tenant in snapshot.tenants:
            state.set_tenant(tenant)
        state.set_pools(snapshot.pools)
        state.tenant_usage.update(snapshot.tenant_usage)
        state.user_usage.update(snapshot.user_usage)
        state.node_usage.update(snapshot.node_usage)
        if snapshot.thresholds_ms is not None:
            state.set_thresholds(snapshot.thresholds_ms)
        for running in snapshot.running:
            state.start(running)
        for waiting in snapshot.waiting:
            state.enqueue(waiting)
        state.set_reservations(snapshot.reservations)
        state.advance_reservations = {each.id: each for each in snapshot.advance_reservations}
        state.resume_after = snapshot.resume_after
        if snapshot.demand:
            state.set_demand(snapshot.demand)
        return state

    def snapshot(self, waiting: Iterable[Waiting] | None = None) -> Snapshot:
        """The same cluster state as one frozen value; if asked, with only these waiting jobs."""
        if waiting is None:
            waiting = (entry.waiting for _, entry in sorted(self.queue.entries.items()))
        return Snapshot(
            nodes=tuple(resources.node for resources in self.index.by_ordinal()),
            tenants=tuple(tenant for _, tenant in sorted(self.tenants.items())),
            waiting=tuple(waiting),
            running=tuple(self.running[key[3]].running for key in self.ends),
            reservations=tuple(reservation for _, reservation in sorted(self.reservations.items())),
            tenant_usage=tuple(sorted(self.tenant_usage.items())),
            user_usage=tuple(sorted(self.user_usage.items())),
            node_usage=tuple(sorted(self.node_usage.items())),
            pools=tuple(pool for _, pool in sorted(self.pools.items())),
            advance_reservations=tuple(
                sorted(self.advance_reservations.values(), key=lambda each: each.number)
            ),
            resume_after=self.resume_after,
            demand=self.demand,
            thresholds_ms=self.feedback.thresholds_ms,
        )

    # Nodes and tenants

    def change_hardware(self, node: Node) -> None:
        """A node has other devices, CPUs or memory than before; what runs there must fit them.

        Reservations on the node are dropped; the next cycle makes new ones.
        """
        resources = self.index.resources(node.id)
        runs = [entry.running for entry in self.by_node.get(resources.ordinal, {}).values()]
        for running in runs:
            self.finish(running.allocation.id)
        for number, reservation in list(self.reservations.items()):
            if any(placement.node_id == node.id for placement in reservation.placements):
                del self.reservations[number]
        self.remove_node(node.id)
        self.set_node(node)
        for running in runs:
            self.start(running)

    def set_node(self, node: Node) -> None:
        """A node appeared or changed."""
        is_new = node.id not in self.index.by_id
        width = self.index.width
        resources = self.index.add_node(node)
        if self.index.width > width:
            self._widen(self.index.width - width)
        self.preemption_cache.invalidate(resources.bit)
        if is_new:
            self._count_gpus(node)
        self._note_out_of_use(resources)

    def _widen(self, growth: int) -> None:
        """Bitmaps of nodes have so many more bits: widen those that outlive a cycle."""
        for nodes in (*self.class_nodes.values(), *self.account_nodes.values()):
            nodes.widen(growth)
        self.preemption_cache = NegativeCache()

    def remove_node(self, node_id: str) -> None:
        """Remove a node without allocations for good."""
        resources = self.index.resources(node_id)
        self.index.remove_node(node_id)
        self._out_of_use.pop(resources.ordinal, None)
        self._count_gpus(resources.node, -1)

    def _count_gpus(self, node: Node, sign: int = 1) -> None:
        self.total_gpu_milli += sign * node.gpu_count * WHOLE_MILLI
        for device in node.devices:
            milli = self._model_milli.get(device.model, 0) + sign * WHOLE_MILLI
            self._model_milli[device.model] = milli
        if self.index.watch_vectors:
            self.score_memory = ScoreMemory()

    def tree_limits(self, *, with_all_gpus: bool = False) -> TreeLimits:
        """What the quota tree is built from; also with the GPUs that are out of use, if asked.

        While no GPU is known, neither pools nor nodes limit anything.
        """
        usable = self.total_gpu_milli if with_all_gpus else self.usable_gpu_milli
        if with_all_gpus and not usable:
            return TreeLimits(tenants=self.tenants)
        guarantees = pool_guarantees(
            self.pools, total_milli=self.total_gpu_milli, usable_milli=usable
        )
        return TreeLimits(
            tenants=self.tenants,
            nodes=self.quota_nodes,
            pools=self.pools,
            pool_guarantees=guarantees,
            capacity={**self.model_milli(), ANY_MODEL: usable},
            node_usage=self.node_usage,
        )

    def set_demand(self, demand: tuple[TypicalShape, ...]) -> None:
        """What recent jobs asked for has changed: the worth of what is free follows it."""
        if demand != self.demand:
            self.demand = demand
            self.score_memory = ScoreMemory()

    def set_thresholds(self, thresholds_ms: tuple[int, ...]) -> None:
        """Use these levels of attained service; waiting jobs that have run may change theirs."""
        if thresholds_ms == self.feedback.thresholds_ms:
            return
        before = self.feedback
        self.feedback = replace(before, thresholds_ms=thresholds_ms)
        for number, entry in list(self.queue.entries.items()):
            waiting = entry.waiting
            if self._level(waiting, before) != self._level(waiting, self.feedback):
                reservation = self.reservations.get(number)
                self.enqueue(self.dequeue(number))
                if reservation is not None:
                    self.reservations[number] = reservation

    @staticmethod
    def _level(waiting: Waiting, feedback: Feedback) -> int:
        gpu_milli = waiting.job.gpu_milli
        return level_of(waiting.served_ms, gpu_milli, feedback, protected=waiting.protected)

    def model_milli(self) -> dict[str, int]:
        """The GPUs of all nodes by model."""
        return {model: milli for model, milli in sorted(self._model_milli.items()) if milli}

    def gpu_models(self) -> list[str]:
        """The GPU models of all nodes."""
        return sorted(model for model, milli in self._model_milli.items() if milli)

    @property
    def usable_gpu_milli(self) -> int:
        """The GPUs that are usable or allocated: all but those that are out of use and idle."""
        return self.total_gpu_milli - sum(self._out_of_use.values())

    def pool_guarantees(self) -> dict[Pool, int]:
        """The guaranteed capacity of each pool now."""
        return pool_guarantees(
            self.pools, total_milli=self.total_gpu_milli, usable_milli=self.usable_gpu_milli
        )

    def _note_out_of_use(self, resources: NodeResources) -> None:
        """A node has changed, or its allocations have."""
        devices = resources.out_of_use
        if devices:
            self._out_of_use[resources.ordinal] = resources.idle_milli(devices)
        else:
            self._out_of_use.pop(resources.ordinal, None)

    def set_tenant(self, tenant: Tenant) -> None:
        """A tenant appeared or changed; its waiting jobs get their new place in the order."""
        before = self.tenants.get(tenant.id)
        self.tenants[tenant.id] = tenant
        self._update_has_quotas()
        if before is None or before == tenant:
            return
        for entry in [e for e in self.queue.in_order() if e.waiting.job.tenant == tenant.id]:
            reservation = self.reservations.get(entry.number)
            self.dequeue(entry.number)
            self.enqueue(entry.waiting)
            if reservation is not None:
                self.reservations[entry.number] = reservation
        for running in [
            e.running for e in self.running.values() if e.running.job.tenant == tenant.id
        ]:
            self.finish(running.allocation.id)
            self.start(running)

    def remove_tenant(self, tenant_id: str) -> None:
        """A tenant that has no jobs is gone."""
        self.tenants.pop(tenant_id, None)
        self._update_has_quotas()

    def set_pools(self, pools: Iterable[PoolQuota]) -> None:
        """The percentages of pools changed; with 100 % for each pool, there are no pool quotas."""
        self.pools |= {pool.pool: pool for pool in pools}
        if len(self.pools) == len(Pool) and all(p.percent == 100 for p in self.pools.values()):
            self.pools.clear()
        self._update_has_quotas()

    def set_quota_tree(self, nodes: Iterable[QuotaNode]) -> None:
        """The quota tree changed; the jobs that wait get their new shapes."""
        self.quota_nodes = {node.name: node for node in nodes}
        models = {quota.model for node in self.quota_nodes.values() for quota in node.quotas}
        self._has_model_quotas = bool(models - {ANY_MODEL})
        self._update_has_quotas()
        for entry in list(self.queue.in_order()):
            reservation = self.reservations.get(entry.number)
            self.dequeue(entry.number)
            self.enqueue(entry.waiting)
            if reservation is not None:
                self.reservations[entry.number] = reservation
        for held in self.running.values() if self._has_model_quotas else ():
            amounts = self.placed_amounts(held.running.job, held.grants)
            self.holdings.add(held.running.job, held.amounts, -1)
            self.holdings.add(held.running.job, amounts)
            held.amounts = amounts

    def placed_amounts(self, job: Job, grants: list[Grant]) -> Amounts:
        """What a job holds on these places, by GPU model if there are quotas for models."""
        amounts = job_amounts(job, self.limit_ms(job), len(grants))
        if self._has_model_quotas:
            amounts.models = {}
            for grant in grants:
                models = {device.index: device.model for device in grant.resources.node.devices}
                for share in grant.placement().devices:
                    model = models[share.index]
                    amounts.models[model] = amounts.models.get(model, 0) + share.share_milli
        return amounts

    def _update_has_quotas(self) -> None:
        tenants = self.tenants.values()
        self.has_quotas = (
            bool(self.pools)
            or bool(self.quota_nodes)
            or self.policy.max_running > 0
            or self.policy.user_quota != _NO_QUOTA
            or any(t.quota != _NO_QUOTA or t.user_quota != _NO_QUOTA for t in tenants)
        )

    def waiting_milli(self) -> dict[GroupKey, int]:
        """The GPUs that the jobs of each group wait for; empty without quotas."""
        if not self.has_quotas:
            return {}
        return {key: group.waiting_milli for key, group in self.queue.groups.items()}

    def others_wait(self) -> bool:
        """Tell whether jobs wait that have preemption reasons of their own."""
        if self.pools and any(pool is Pool.ONLINE for _, _, pool in self.queue.groups):
            return True
        if self.quota_nodes and self.queue.groups:
            return True
        if self.has_quotas and any(self.tenant(key[0]).elastic for key in self.queue.groups):
            return True
        return self.policy.interactive_gpu_milli > 0 and any(
            shape.interactive and shape.id in self.queue.of_shape
            for shape in self.job_shapes.values()
        )

    def tenant(self, tenant_id: str) -> Tenant:
        """A tenant; one that was not declared has no limits."""
        tenant = self.tenants.get(tenant_id)
        if tenant is None:
            tenant = self.tenants[tenant_id] = Tenant(id=tenant_id)
        return tenant

    # Jobs

    def job_shape(
        self,
        job: Job,
        rank: object = 0,
        members: int | None = None,
        *,
        interactive: bool = False,
    ) -> JobShape:
        """The shape of all members (or the first few); jobs of another rank have another one."""
        shapes: tuple[RequestShape, ...] = tuple(
            self.index.shape(member) for member in job.members[:members]
        )
        room: tuple[object, ...]
        room = (tuple(shape.id for shape in shapes), job.min_members, job.same_rack)
        if job.service or job.port or job.pool is Pool.ONLINE:
            # Other jobs that need the same room may use other nodes, or have other victims.
            own = (job.pool, job.service, job.port)
            room, rank = (*room, own), (rank, own)
        shape = self._shape_of.get((room, rank))
        if shape is None:
            base = self._bases.setdefault(room, self._next_shape)
            shape = JobShape(
                self._next_shape,
                shapes,
                job.min_members,
                same_rack=job.same_rack,
                base=base,
                rank=rank,
                interactive=interactive,
            )
            self._shape_of[room, rank] = shape
            self.job_shapes[shape.id] = shape
            self._next_shape += 1
            self.shapes_of_base.setdefault(base, []).append(shape)
        return shape

    def forget_old_shapes(self) -> None:
        """Drop the shapes that no waiting job has, and all caches for them.

        Users ask for ever new shapes, also in submissions that are rejected. Done when there are
        twice as many as after the last time, so it costs little; their ids are never used again.
        """
        if len(self.job_shapes) + self.index.shape_count <= self._most_shapes:
            return
        kept = [shape for shape in self.job_shapes.values() if shape.id in self.queue.of_shape]
        self.job_shapes = {shape.id: shape for shape in kept}
        known = self._shape_of.items()
        self._shape_of = {key: shape for key, shape in known if shape.id in self.job_shapes}
        self.shapes_of_base = {}
        for shape in kept:
            self.shapes_of_base.setdefault(shape.base, []).append(shape)
        bases = self._bases.items()
        self._bases = {room: base for room, base in bases if base in self.shapes_of_base}
        members = {member.id for shape in kept for member in shape.members}
        self.index.forget_shapes(members)
        self.score_memory.forget_shapes(members)
        self.gang_verdicts.clear()
        self.preemption_cache = NegativeCache()
        self._most_shapes = SPARE_SHAPES + 2 * (len(kept) + len(members))

    def limit_ms(self, job: Job) -> int:
        """How long a job may run: its own limit or the default; a service has none."""
        if job.service:
            return ENDLESS_MS
        return job.max_runtime_ms or self.policy.default_limit_ms

    def enqueue(self, waiting: Waiting) -> Entry:
        """Add a job that could start from now on."""
        self.forget_old_shapes()
        job = waiting.job
        tenant = self.tenant(job.tenant)
        key = order_key(waiting, tenant, self.policy.order)
        job_class = static_class(job, tenant)
        rank: object = 0
        interactive = False
        if self.policy.preemption is Preemption.FEEDBACK:
            level = self._level(waiting, self.feedback)
            key += LEVEL_MS * level
            rank = level
        elif self.policy.preemption is Preemption.CLASS:
            has_own_victims = tenant.elastic or not tenant.can_preempt_others or self.quota_nodes
            rank = (
                job_class,
                job.tenant if has_own_victims else "",
            )
            if job.interactive and self.policy.interactive_gpu_milli:
                rank = (rank, "interactive", job.tenant, job.user)
                interactive = True
        if self.has_quotas and not job.preemptible:
            rank = (rank, "not preemptible")
        group = self.queue.group((job.tenant, job.user, job.pool))
        entry = Entry(
            waiting, self.job_shape(job, rank, interactive=interactive), group, key, job_class
        )
        self.queue.add(entry)
        return entry

    def enqueue_alike(self, waiting: list[Waiting]) -> None:
        """Add jobs that differ only in number, name and expected run time."""
        first = self.enqueue(waiting[0])
        tenant, order = self.tenant(waiting[0].job.tenant), self.policy.order
        level_ms = first.key - order_key(waiting[0], tenant, order)
        keys = {waiting[0].expected_ms: first.key}
        shape, group, job_class = first.shape, first.group, first.static_class
        entries = []
        for one in waiting[1:]:
            key = keys.get(one.expected_ms)
            if key is None:
                key = keys[one.expected_ms] = order_key(one, tenant, order) + level_ms
            entries.append(Entry(one, shape, group, key, job_class))
        if entries:
            self.queue.add_alike(entries)

    @contextmanager
    def supposed(self, waiting: Waiting) -> Iterator[Entry]:
        """Add a job, and remove it at the end, also after an error."""
        self.trials += 1
        entry = self.enqueue(waiting)
        try:
            yield entry
        finally:
            self.dequeue(entry.number)
            self.trials -= 1

    @contextmanager
    def trial(self) -> Iterator[Transaction]:
        """A transaction that is undone at the end, also after an error."""
        transaction = Transaction(self.index)
        self.trials += 1
        try:
            yield transaction
        finally:
            transaction.undo()
            self.trials -= 1

    def dequeue(self, number: int) -> Waiting:
        """Remove a job that has started or must not start."""
        self.reservations.pop(number, None)
        return self.queue.remove(number).waiting

    def start(self, running: Running) -> None:
        """Add an allocation that runs from now on."""
        job = running.job
        index = self.index
        allocation = running.allocation
        if allocation.id in self.running:
            raise InternalError(f"allocation {allocation.id} exists twice")
        grants = []
        for placement in allocation.placements:
            grant = index.resources(placement.node_id).grant_for(placement)
            index.take(grant)
            grants.append(grant)
            if grant.resources.ordinal in self._out_of_use:
                self._note_out_of_use(grant.resources)
        amounts = self.placed_amounts(job, grants)
        tenant = self.tenant(job.tenant)
        entry = RunningEntry(running, grants, amounts, static_class(job, tenant))
        self.running[allocation.id] = entry
        self.ends.add(entry.end_key)
        for grant in grants:
            self.by_node.setdefault(grant.resources.ordinal, {})[allocation.id] = entry
        self.by_class.setdefault(entry.static_class, {})[allocation.id] = entry
        self.class_nodes.setdefault(entry.static_class, WorkNodes()).add(grants)
        self.account_nodes.setdefault((job.tenant, job.pool), WorkNodes()).add(grants)
        self.preemption_cache.invalidate(entry.nodes)
        if running.stopping:
            self.stopping[allocation.id] = None
        self.holdings.add(job, amounts)
        self.running_tasks[job.number] = self.running_tasks.get(job.number, 0) + 1
        if job.service or job.port:
            self.anti_affinity_counts.add(job, grants)

    def finish(self, allocation_id: str) -> Running:
        """Remove an allocation that has ended."""
        entry = self.running.pop(allocation_id)
        job = entry.running.job
        for grant in entry.grants:
            self.index.give(grant)
            self.by_node[grant.resources.ordinal].pop(allocation_id, None)
            if grant.resources.ordinal in self._out_of_use:
                self._note_out_of_use(grant.resources)
        self.ends.remove(entry.end_key)
        alike = self.by_class[entry.static_class]
        del alike[allocation_id]
        self.class_nodes[entry.static_class].remove(entry.grants)
        if not alike:
            del self.by_class[entry.static_class]
            del self.class_nodes[entry.static_class]
        account = self.account_nodes[job.tenant, job.pool]
        account.remove(entry.grants)
        if not account.bits:
            del self.account_nodes[job.tenant, job.pool]
        self.preemption_cache.invalidate(entry.nodes)
        self.stopping.pop(allocation_id, None)
        self.holdings.add(job, entry.amounts, -1)
        if job.service or job.port:
            self.anti_affinity_counts.add(job, entry.grants, -1)
        left = self.running_tasks[job.number] - 1
        if left:
            self.running_tasks[job.number] = left
        else:
            del self.running_tasks[job.number]
        return entry.running

    def revise(self, running: Running) -> None:
        """Something that matters to the engine changed in a running job, but not its grants."""
        entry = self.running[running.allocation.id]
        self.ends.remove(entry.end_key)
        entry.running = running
        self.ends.add(entry.end_key)
        self.preemption_cache.invalidate(entry.nodes)
        if running.stopping:
            self.stopping[running.allocation.id] = None

    def remember(self, plan: Plan) -> None:
        """Keep what the next cycle needs of a plan."""
        self.set_reservations(plan.reservations)
        self.resume_after = plan.resume_after

    def set_reservations(self, reservations: tuple[Reservation, ...]) -> None:
        """Keep the reservations of a plan until the next one."""
        self.reservations = {
            reservation.job_number: reservation
            for reservation in reservations
            if reservation.job_number in self.queue.entries
        }
