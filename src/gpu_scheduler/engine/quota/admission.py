"""Admission by quotas: whether a user, a tenant and a pool may hold more right now.

A strict quota is a ceiling. An elastic quota is a guarantee in the quota tree (`tree`), above which
jobs that can be preempted borrow what others leave idle. `Admission` answers with a `Reason`, or
None if the job may start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from gpu_scheduler.engine.policy import DAY_MS, Policy
from gpu_scheduler.engine.quota.resource_limits import ROOT, Key, Node
from gpu_scheduler.engine.quota.tree import HOURS, POOLS, QuotaTree, TreeLimits
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.quota_tree import ANY_MODEL, WHOLE_CLUSTER
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI, Request, mig_memory_mb
from gpu_scheduler.model.tenant import BudgetPeriod, Quota, Tenant

if TYPE_CHECKING:
    from gpu_scheduler.engine.queue import GroupKey
    from gpu_scheduler.engine.state.cluster_state import ClusterState, RunningEntry

WHOLE_PERCENT = 100


def pool_guarantees(
    pools: Mapping[Pool, PoolQuota], *, total_milli: int, usable_milli: int
) -> dict[Pool, int]:
    """The guaranteed capacity of each pool; `usable_milli` is what can be used or is held.

    Online work is guaranteed its percentage of all GPUs, even while some are out of use: services
    are needed as much when nodes are drained. So the missing GPUs are missing to batch work. If
    batch work cannot borrow, that would leave GPUs idle; then it is guaranteed its percentage of
    the usable GPUs.
    """
    parts = {pool: total_milli * quota.percent // WHOLE_PERCENT for pool, quota in pools.items()}
    found = {pool: min(part, usable_milli) for pool, part in parts.items()}
    batch = pools.get(Pool.BATCH)
    if batch is not None and not batch.elastic:
        found[Pool.BATCH] = usable_milli * batch.percent // WHOLE_PERCENT
    elif batch is not None:
        # GPUs that are guaranteed to neither pool are the first to be missing.
        spare = max(0, total_milli - sum(parts.values()))
        missing = max(0, total_milli - usable_milli - spare)
        found[Pool.BATCH] = max(0, parts[Pool.BATCH] - missing)
    return found


CPU_WHOLE_MILLI = 1000
GPU_HOUR = WHOLE_MILLI * 3_600_000
GPUS = "GPUs"
MAY_HOLD = "may hold"
SERVICE_AHEAD_MS = 7 * DAY_MS
"""A service has no limit; so much of its time ahead counts against a budget."""
_NO_QUOTA = Quota()
Check = tuple[str, int | None, int, int, int]
"""A resource, its limit, what is held of it, what is wanted, and the unit in which it is shown."""
Numbers = tuple[int, int, int]
"""What is wanted, the limit, and what is held."""


@dataclass(slots=True, eq=False)
class Amounts:
    """What a tenant or pool holds, or a job would add.

    `gpu_milli_ms` is GPU time that running jobs may still use up to their limits. `models` is
    `gpu_milli` by GPU model, where quotas need it.
    """

    gpu_milli: int = 0
    gpu_memory_mb: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    jobs: int = 0
    gpu_milli_ms: int = 0
    models: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Amounts:
        """Another one with the same amounts."""
        return Amounts(
            self.gpu_milli,
            self.gpu_memory_mb,
            self.cpu_milli,
            self.memory_mb,
            self.jobs,
            self.gpu_milli_ms,
            dict(self.models),
        )

    def of(self, resource: str) -> int:
        """The amount that the quota tree counts for a resource: GPU time, or GPUs of a model."""
        if resource == HOURS:
            return self.gpu_milli_ms
        return self.gpu_milli if resource in {ANY_MODEL, POOLS} else self.models.get(resource, 0)

    def add(self, other: Amounts, sign: int = 1) -> None:
        """Add (or take away) what a job holds."""
        self.gpu_milli += sign * other.gpu_milli
        self.gpu_memory_mb += sign * other.gpu_memory_mb
        self.cpu_milli += sign * other.cpu_milli
        self.memory_mb += sign * other.memory_mb
        self.jobs += sign * other.jobs
        self.gpu_milli_ms += sign * other.gpu_milli_ms
        for model, milli in other.models.items():
            left = self.models.pop(model, 0) + sign * milli
            if left:
                self.models[model] = left


@dataclass(slots=True, eq=False)
class Holdings:
    """What every tenant and pool holds. A cycle works on its own copy."""

    tenants: dict[str, Amounts] = field(default_factory=dict)
    users: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    pools: dict[Pool, int] = field(default_factory=dict)

    def copy(self) -> Holdings:
        """A copy that can be changed without changing this."""
        return Holdings(
            {tenant: amounts.copy() for tenant, amounts in self.tenants.items()},
            {user: amounts.copy() for user, amounts in self.users.items()},
            dict(self.pools),
        )

    def of(self, tenant: str) -> Amounts:
        """What one tenant holds."""
        return self.tenants.get(tenant, _NOTHING_HELD)

    def of_user(self, tenant: str, user: str) -> Amounts:
        """What one user holds in a tenant."""
        return self.users.get((tenant, user), _NOTHING_HELD)

    def add(self, job: Job, amounts: Amounts, sign: int = 1) -> None:
        """A job of this tenant, user and pool starts (or ends)."""
        self.tenants.setdefault(job.tenant, Amounts()).add(amounts, sign)
        user = (job.tenant, job.user)
        held = self.users.get(user)
        if held is None:
            held = self.users[user] = Amounts()
        held.add(amounts, sign)
        if not held.jobs:
            del self.users[user]
        self.pools[job.pool] = self.pools.get(job.pool, 0) + sign * amounts.gpu_milli


Sums = list[tuple[Job, Amounts]]
"""What accounts hold together, each with any job of the account."""


def summed(entries: Iterable[RunningEntry]) -> Sums:
    """What running jobs hold together, by tenant, user and pool."""
    sums: dict[tuple[str, str, Pool], tuple[Job, Amounts]] = {}
    for entry in entries:
        job = entry.running.job
        account = (job.tenant, job.user, job.pool)
        if account not in sums:
            sums[account] = (job, Amounts())
        sums[account][1].add(entry.amounts)
    return list(sums.values())


def job_amounts(job: Job, limit_ms: int, members: int | None = None) -> Amounts:
    """What one task of a job holds, with all or the first few members.

    GPU memory counts as far as it was stated; that of a MIG slice is stated by its profile. GPUs
    count for a model if the job names only that one.
    """
    requests = job.members if members is None else job.members[:members]
    if job.service:
        limit_ms = min(limit_ms, SERVICE_AHEAD_MS)
    gpu_milli = sum(request.gpu_milli for request in requests)
    models: dict[str, int] = {}
    for request in requests:
        if len(request.gpu_models) == 1:
            model = request.gpu_models[0]
            models[model] = models.get(model, 0) + request.gpu_milli
    return Amounts(
        gpu_milli,
        sum(map(_gpu_memory_mb, requests)),
        sum(request.cpu_milli for request in requests),
        sum(request.memory_mb for request in requests),
        1,
        gpu_milli * limit_ms,
        models,
    )


_NOTHING_SPENT = AccountUsage()


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a tenant, or of one `user` in it, with what it holds and has spent."""

    tenant: str
    user: str
    quota: Quota
    held: Amounts
    usage: AccountUsage
    period: BudgetPeriod
    is_elastic: bool = False

    def borrows(self, resource: str) -> bool:
        """Tell whether more than the limit may be held as long as others leave it idle."""
        return self.is_elastic and resource == GPUS

    def checks(self, wanted: Amounts) -> tuple[Check, ...]:
        """Every resource with its limit and what the account would hold."""
        quota, held = self.quota, self.held
        hours = held.gpu_milli_ms + self.usage.spent_gpu_milli_ms
        return (
            ("GPU memory MiB", quota.gpu_memory_mb, held.gpu_memory_mb, wanted.gpu_memory_mb, 1),
            ("CPU cores", quota.cpu_milli, held.cpu_milli, wanted.cpu_milli, CPU_WHOLE_MILLI),
            ("memory MiB", quota.memory_mb, held.memory_mb, wanted.memory_mb, 1),
            ("concurrent jobs", quota.concurrent_jobs, held.jobs, wanted.jobs, 1),
            (HOURS, quota.gpu_milli_ms, hours, wanted.gpu_milli_ms, GPU_HOUR),
            (GPUS, quota.gpu_milli, held.gpu_milli, wanted.gpu_milli, WHOLE_MILLI),
        )

    def reason(self, resource: str, numbers: Numbers, unit: int, *, never: bool = False) -> Reason:
        """Why a job waits that would be above this limit, or can `never` start."""
        if resource == HOURS and self.usage.turns_ms and not never:
            owner = f"user {self.user}" if self.user else f"tenant {self.tenant}"
            return _budget_reason(owner, self.period, numbers, self.usage.turns_ms)
        requested, limit, held = (_shown(number, unit) for number in numbers)
        data: dict[str, str | int] = {
            "held": held,
            "limit": limit,
            "requested": requested,
            "resource": resource,
            "tenant": self.tenant,
        }
        if not self.user:
            return Reason(ReasonCode.QUOTA, tuple(data.items()))
        data |= {"left": _shown(max(0, numbers[1] - numbers[2]), unit), "user": self.user}
        return Reason(ReasonCode.USER_LIMIT, tuple(sorted(data.items())))


def never_admitted(
    state: ClusterState, job: Job, usage: AccountUsage = _NOTHING_SPENT
) -> Reason | None:
    """Why a quota or pool can never let the job start, whatever ends; None if one day it may.

    `usage` is that of its tenant; the cluster state has only those of tenants that wait.
    """
    if not state.has_quotas:
        return None
    admission = Admission(
        limits=state.tree_limits(with_all_gpus=True),
        holdings=state.holdings,
        tenant_usage={job.tenant: usage},
        user_usage=state.user_usage,
        policy=state.policy,
    )
    return admission.never_admitted(job, job_amounts(job, state.limit_ms(job), job.min_members))


class Admission:
    """Checks quotas in one cycle, against holdings that change as the cycle starts jobs."""

    def __init__(
        self,
        *,
        limits: TreeLimits,
        holdings: Holdings,
        tenant_usage: dict[str, AccountUsage],
        waiting: Mapping[GroupKey, int] | None = None,
        user_usage: dict[tuple[str, str], AccountUsage] | None = None,
        policy: Policy | None = None,
    ) -> None:
        """`waiting` are the GPUs that the jobs of each group wait for: these are not lent."""
        self._user_usage = user_usage or {}
        self._policy = policy or Policy()
        self._user_quotas: dict[str, Quota] = {}
        self._tenants = limits.tenants
        self._pools = limits.pools
        self._tenant_usage = tenant_usage
        self._limits = limits
        self.holdings = holdings
        self._closed: dict[Hashable, Mapping[str, Reason]] = {}
        self.tree = self._tree_in_use(waiting or {})

    def _tree_in_use(self, waiting: Mapping[GroupKey, int]) -> QuotaTree:
        """The quota tree with what is held.

        An elastic tenant keeps what it used recently, and all of its quota while its jobs wait.
        """
        waiting_tenants = {tenant for tenant, _, _ in waiting}
        kept = {
            tenant.id: (tenant.quota.gpu_milli or 0)
            if tenant.id in waiting_tenants
            else self._tenant_usage.get(tenant.id, _NOTHING_SPENT).recent_gpu_milli
            for tenant in self._tenants.values()
            if tenant.elastic
        }
        tree = QuotaTree(self._limits, kept)
        tree.load(self.holdings, waiting)
        return tree

    def add(self, job: Job, amounts: Amounts, sign: int = 1) -> None:
        """Count what a job holds from now on (or holds no more)."""
        self._closed.clear()
        self.holdings.add(job, amounts, sign)
        self.tree.add(job, amounts, sign)

    @contextmanager
    def without(self, sums: Sums) -> Iterator[None]:
        """Take these sums out of the holdings for a while."""
        for job, amounts in sums:
            self.add(job, amounts, -1)
        try:
            yield
        finally:
            for job, amounts in sums:
                self.add(job, amounts)

    def refusal(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job may not start now, or None."""
        most = self._policy.max_running
        if most:
            running = sum(amounts.jobs for amounts in self.holdings.tenants.values())
            if running >= most:
                return Reason(ReasonCode.MOST_JOBS, (("limit", most),))
        return (
            self._over_limit(job, wanted)
            or self._held_back(self.tree, job, wanted)
            or self._over_pool(self.tree, job, wanted)
        )

    def over_budget(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job may not start for want of GPU-hours, or None."""
        hours = Amounts(gpu_milli_ms=wanted.gpu_milli_ms)
        return self._over_limit(job, hours) or self._held_back(self.tree, job, hours)

    def is_over_user_limit(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the job's user would hold more than a user may."""
        return self._over_limit(job, wanted, of_user=True) is not None

    def most_members(self, job: Job, limit_ms: int) -> int:
        """With how many members an elastic gang may start now; 0 if not with its minimum."""

        def may_hold(members: int) -> bool:
            return self.refusal(job, job_amounts(job, limit_ms, members)) is None

        most = len(job.members)
        if may_hold(most):
            return most
        low = job.min_members
        if low == most or not may_hold(low):
            return 0
        # More members never hold less, so halving finds the last number that is admitted.
        while most - low > 1:
            middle = (low + most) // 2
            if may_hold(middle):
                low = middle
            else:
                most = middle
        return low

    def never_admitted(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job could not start even if nothing were held, or None.

        A budget that is used up may get its next period.
        """
        idle = QuotaTree(replace(self._limits, node_usage={}))
        for limits in self._limits_of(job):
            for resource, limit, current, request, unit in limits.checks(wanted):
                if limit is None or request <= limit:
                    continue
                if not (limits.borrows(resource) and self._borrows(idle, job, request)):
                    return limits.reason(resource, (request, limit, current), unit, never=True)
        refused = self._held_back(idle, job, wanted)
        if refused is not None:
            return self._never_reason(idle, job, refused)
        return self._over_pool(idle, job, wanted)

    def _never_reason(self, idle: QuotaTree, job: Job, refused: Reason) -> Reason:
        """The reason with the most that the job could ask for, and the nodes that lend no more."""
        resource = str(refused.get("model") or ANY_MODEL)
        if refused.get("resource") == HOURS or resource not in idle.accounts:
            return refused
        leaf = idle.leaf(job.tenant, job.user)
        column, borrows = idle.accounts[resource], self._can_be_reclaimed(job)
        room = column.room(leaf, borrow=borrows)
        found = str(refused.get("found"))
        if leaf == ROOT:
            found = f"has {_gpus(column.root.limits.guaranteed, resource)}"
        if not found.startswith(MAY_HOLD) and not borrows:
            found += ", and a job that cannot be preempted gets nothing that others are guaranteed"
        elif not found.startswith(MAY_HOLD):
            keep = sorted(
                f"node {_name(node)} lends all but {_shown(node.withheld, WHOLE_MILLI)} of its "
                f"{_gpus(node.limits.guaranteed, resource)}"
                for node in column.withholding(leaf)
            )
            found = ", and ".join([found, *keep])
        left = _shown(room, WHOLE_MILLI)
        data = {**dict(refused.data), "found": found, "left": left}
        return Reason(refused.code, tuple(sorted(data.items())))

    def members_within_guarantee(self, job: Job) -> int:
        """How many members of a job the guarantee of the online pool covers."""
        if job.pool is not Pool.ONLINE or job.pool not in self._pools:
            return 0
        node = self.tree.pools.at(job.pool)
        left = node.limits.guaranteed - node.used
        for count, request in enumerate(job.members):
            left -= request.gpu_milli
            if left < 0:
                return count
        return len(job.members)

    def _limits_of(self, job: Job) -> list[Limits]:
        """The limits of the job's tenant and user, as far as there are any."""
        found = []
        tenant = self._tenants.get(job.tenant)
        own = None if tenant is None else tenant.budget_period
        period = own or self._policy.budget_period
        if tenant is not None and tenant.quota != _NO_QUOTA:
            usage = self._tenant_usage.get(job.tenant, _NOTHING_SPENT)
            held = self.holdings.of(job.tenant)
            found.append(Limits(job.tenant, "", tenant.quota, held, usage, period, tenant.elastic))
        quota = self._user_quotas.get(job.tenant)
        if quota is None:
            quota = self._user_quotas[job.tenant] = user_quota_of(tenant, self._policy.user_quota)
        if quota is not _NO_QUOTA:
            usage = self._user_usage.get((job.tenant, job.user), _NOTHING_SPENT)
            held = self.holdings.of_user(job.tenant, job.user)
            found.append(Limits(job.tenant, job.user, quota, held, usage, period))
        return found

    def _over_limit(self, job: Job, wanted: Amounts, *, of_user: bool = False) -> Reason | None:
        """The limit of its tenant or user above which the job would be, or None."""
        for limits in self._limits_of(job):
            for resource, limit, current, request, unit in limits.checks(wanted):
                if limit is None or not request or current + request <= limit:
                    continue
                if of_user and not limits.user:
                    continue
                if not (limits.borrows(resource) and self._borrows(self.tree, job, request)):
                    return limits.reason(resource, (request, limit, current), unit)
        return None

    def _borrows(self, tree: QuotaTree, job: Job, milli: int) -> bool:
        """Tell whether an elastic tenant may hold so much more than it is guaranteed."""
        leaf = tree.leaf(job.tenant, job.user)
        if leaf is None or not self._can_be_reclaimed(job):
            return False
        return tree.accounts[ANY_MODEL].covers(leaf, milli, borrow=True)

    def _can_be_reclaimed(self, job: Job) -> bool:
        """Tell whether what the job holds can be reclaimed: only such jobs may borrow."""
        tenant = self._tenants.get(job.tenant)
        return job.preemptible and (tenant is None or tenant.allow_preemption)

    # The configured tree

    def _held_back(self, tree: QuotaTree, job: Job, wanted: Amounts) -> Reason | None:
        """The node of the configured tree that holds the job back, or None."""
        if not self._limits.nodes:
            return None
        leaf = tree.leaf(job.tenant, job.user)
        for resource in (ANY_MODEL, HOURS):
            if resource in tree.accounts and wanted.of(resource):
                refused = self._node_reason(tree, resource, leaf, job, wanted.of(resource))
                if refused is not None:
                    return refused
        if tree is self.tree:
            closed = self.closed_models(job, wanted)
        else:
            closed = self._closed_models(tree, job, wanted)
        for request in job.members if closed else ():
            models = request.gpu_models or tuple(self.known_models)
            if request.gpu_milli and models and all(model in closed for model in models):
                return closed[models[0]]
        return None

    @property
    def known_models(self) -> list[str]:
        """The GPU models of the cluster."""
        return [model for model in self._limits.capacity if model != ANY_MODEL]

    def closed_models(self, job: Job, wanted: Amounts) -> Mapping[str, Reason]:
        """The GPU models that the job may not use now, each with the node that holds it back.

        The answers are kept until something starts or ends.
        """
        if not self.tree.models:
            return {}
        models = tuple(wanted.models.items())
        key = (job.tenant, job.user, job.preemptible, wanted.gpu_milli, models)
        found = self._closed.get(key)
        if found is None:
            found = self._closed[key] = self._closed_models(self.tree, job, wanted)
        return found

    def _closed_models(self, tree: QuotaTree, job: Job, wanted: Amounts) -> dict[str, Reason]:
        """A model must have room for all GPUs that name no single model."""
        open_milli = wanted.gpu_milli - sum(wanted.models.values())
        leaf = tree.leaf(job.tenant, job.user)
        found = {}
        for model in tree.models:
            milli = wanted.of(model) + open_milli
            refused = self._node_reason(tree, model, leaf, job, milli) if milli else None
            if refused is not None:
                found[model] = refused
        return found

    def _node_reason(
        self, tree: QuotaTree, resource: str, leaf: Key | None, job: Job, milli: int
    ) -> Reason | None:
        """Why the tree does not let the job have so much of a resource, or None."""
        column = tree.accounts[resource]
        may_borrow = self._can_be_reclaimed(job)
        if resource != HOURS and column.covers(leaf, milli, borrow=may_borrow):
            return None
        user = job.user if tree.has_users(job.tenant) else ""
        node = column.over_maximum(leaf, milli)
        if node is not None and resource == HOURS:
            return self._node_budget_reason(node, milli, user)
        if node is not None:
            most = node.limits.maximum or 0
            found = f"{MAY_HOLD} {_gpus(most, resource)}"
            return _tree_reason(node, resource, (milli, most, node.used), found, "end", user)
        if resource == HOURS:
            return None
        node = column.at(leaf)
        guaranteed = node.limits.guaranteed
        found = f"is guaranteed {_gpus(guaranteed, resource)}"
        remedy = "end, or other nodes have idle GPUs to lend"
        if not may_borrow:
            remedy = "end: a job that cannot be preempted does not borrow"
        numbers = (milli, guaranteed, node.used)
        refused = _tree_reason(node, resource, numbers, found, remedy, user)
        idle = guaranteed - node.used - node.children_idle
        if node.parent is None or idle <= 0:
            return refused
        return refused.besides(f"{_gpus(idle, resource)} or fewer would be within the guarantee")

    def _node_budget_reason(self, node: Node, milli: int, user: str) -> Reason:
        declared = self._limits.nodes[str(node.key)]
        usage = self._limits.node_usage.get(declared.name, _NOTHING_SPENT)
        limit = declared.budget_gpu_milli_ms or 0
        held = node.used + usage.spent_gpu_milli_ms
        numbers = (milli, limit, held)
        if usage.turns_ms:
            owner = f"node {declared.name} of the quota tree"
            return _budget_reason(owner, declared.budget_period, numbers, usage.turns_ms)
        found = f"has a budget of {_shown(limit, GPU_HOUR)} GPU-hours"
        remedy = "end early, or the budget is raised"
        return _tree_reason(node, HOURS, numbers, found, remedy, user)

    def _over_pool(self, tree: QuotaTree, job: Job, wanted: Amounts) -> Reason | None:
        quota = self._pools.get(job.pool)
        if quota is None or not wanted.gpu_milli:
            return None
        may_borrow = quota.elastic and self._can_be_reclaimed(job)
        pools = tree.pools
        if pools.over_maximum(job.pool, wanted.gpu_milli) is None and pools.covers(
            job.pool, wanted.gpu_milli, borrow=may_borrow
        ):
            return None
        limits = pools.at(job.pool).limits
        is_never = tree is not self.tree
        if limits.maximum is not None:
            found = MAY_HOLD
            is_never = is_never or wanted.gpu_milli > limits.maximum
        else:
            found = "is guaranteed"
        remedy = "do not fit" if is_never else f"wait until jobs of the {job.pool.value} pool end"
        if quota.elastic and not may_borrow:
            remedy += ": a job that cannot be preempted does not borrow"
        elif may_borrow and not is_never:
            remedy += ", or the other pool has idle GPUs to lend"
        data = (
            ("found", f"{found} {_gpus(limits.guaranteed, ANY_MODEL)}"),
            ("held", _shown(self.holdings.pools.get(job.pool, 0), WHOLE_MILLI)),
            ("limit", _shown(limits.guaranteed, WHOLE_MILLI)),
            ("pool", job.pool.value),
            ("remedy", remedy),
            ("requested", _shown(wanted.gpu_milli, WHOLE_MILLI)),
        )
        return Reason(ReasonCode.POOL, data)


def _budget_reason(
    owner: str, period: BudgetPeriod, numbers: tuple[int, int, int], turns_ms: int
) -> Reason:
    requested, limit, held = numbers
    data: tuple[tuple[str, str | int], ...] = (
        ("held", _shown(held, GPU_HOUR)),
        ("left", _shown(max(0, limit - held), GPU_HOUR)),
        ("limit", _shown(limit, GPU_HOUR)),
        ("owner", owner),
        ("period", period.value),
        ("requested", _shown(requested, GPU_HOUR)),
        ("resource", HOURS),
        ("turns_ms", turns_ms),
    )
    return Reason(ReasonCode.BUDGET, data)


def _tree_reason(
    node: Node,
    resource: str,
    numbers: tuple[int, int, int],
    found: str,
    remedy: str,
    user: str,
) -> Reason:
    """`remedy` says what must become of jobs of the node for the job to start.

    It holds for one `user` only, if users of the tenant have nodes of their own.
    """
    unit = GPU_HOUR if resource == HOURS else WHOLE_MILLI
    wanted, limit, held = numbers
    data: tuple[tuple[str, str | int], ...] = (
        ("found", found),
        ("held", _shown(held, unit)),
        ("limit", _shown(limit, unit)),
        ("model", "" if resource in {ANY_MODEL, HOURS} else resource),
        ("node", _name(node)),
        ("owner", WHOLE_CLUSTER if node.key == ROOT else f"node {node.key} of the quota tree"),
        ("remedy", remedy),
        ("requested", _shown(wanted, unit)),
        ("resource", HOURS if resource == HOURS else GPUS),
    )
    return Reason(ReasonCode.QUOTA_NODE, (*data, ("user", user)) if user else data)


def _name(node: Node) -> str:
    return WHOLE_CLUSTER if node.key == ROOT else str(node.key)


def _gpus(milli: int, resource: str) -> str:
    of = "" if resource == ANY_MODEL else f" of {resource}"
    return f"{_shown(milli, WHOLE_MILLI)} GPU{'' if milli == WHOLE_MILLI else 's'}{of}"


def user_quota_of(tenant: Tenant | None, otherwise: Quota) -> Quota:
    """The quota of each user of a tenant: that of the tenant, else that of the policy."""
    if tenant is None or tenant.user_quota == _NO_QUOTA:
        return _NO_QUOTA if otherwise == _NO_QUOTA else otherwise
    own = tenant.user_quota
    limits = {
        item.name: getattr(otherwise, item.name) if limit is None else limit
        for item in fields(Quota)
        for limit in (getattr(own, item.name),)
    }
    return Quota(**limits)


_NOTHING_HELD = Amounts()


def _gpu_memory_mb(request: Request) -> int:
    if request.mig_profile and not request.gpu_memory_total_mb:
        return request.gpu_count * mig_memory_mb(request.mig_profile)
    return request.gpu_memory_total_mb


def is_for_gpus(refused: Reason) -> bool:
    """Tell whether a limit of GPUs of all models is the reason: it refuses larger jobs as well."""
    if refused.code is ReasonCode.POOL:
        return True
    return refused.get("resource") == GPUS and not refused.get("model")


def for_gpus(refused: Reason, gpu_milli: int) -> Reason:
    """The same reason for a job that needs so many GPUs."""
    own = ("requested", _shown(gpu_milli, WHOLE_MILLI))
    return Reason(refused.code, tuple(own if item[0] == own[0] else item for item in refused.data))


def _shown(amount: int, unit: int) -> str | int:
    """In the unit that users know, exact to a hundredth."""
    whole, rest = divmod(amount, unit)
    return whole if not rest else f"{whole}.{rest * 100 // unit:02d}"
