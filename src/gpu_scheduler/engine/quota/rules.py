"""Quota rules: whether a user, a tenant and a pool may hold more right now.

A strict quota is a ceiling. An elastic quota is a guarantee: above it a tenant may borrow what
other tenants leave idle, judged by their recent usage, with jobs that can be preempted. `Admission`
answers with a `Reason`, or None if the job may start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from gpu_scheduler.engine.policy import DAY_MS, Policy
from gpu_scheduler.model.cluster_snapshot import AccountUsage, PoolQuota
from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI, Request, mig_memory_mb
from gpu_scheduler.model.tenant import Quota, Tenant

if TYPE_CHECKING:
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
HOURS = "GPU-hours"
SERVICE_AHEAD_MS = 7 * DAY_MS
"""A service has no limit; so much of its time ahead counts against a budget."""
_NO_QUOTA = Quota()
Check = tuple[str, int | None, int, int, int]
"""A resource, its limit, what is held of it, what is wanted, and the unit in which it is shown."""


@dataclass(slots=True, eq=False)
class Amounts:
    """What a tenant or pool holds, or a job would add.

    `gpu_milli_ms` is GPU time that running jobs may still use up to their limits.
    """

    gpu_milli: int = 0
    gpu_memory_mb: int = 0
    cpu_milli: int = 0
    memory_mb: int = 0
    jobs: int = 0
    gpu_milli_ms: int = 0

    def copy(self) -> Amounts:
        """Another one with the same amounts."""
        return Amounts(
            self.gpu_milli,
            self.gpu_memory_mb,
            self.cpu_milli,
            self.memory_mb,
            self.jobs,
            self.gpu_milli_ms,
        )

    def add(self, other: Amounts, sign: int = 1) -> None:
        """Add (or take away) what a job holds."""
        self.gpu_milli += sign * other.gpu_milli
        self.gpu_memory_mb += sign * other.gpu_memory_mb
        self.cpu_milli += sign * other.cpu_milli
        self.memory_mb += sign * other.memory_mb
        self.jobs += sign * other.jobs
        self.gpu_milli_ms += sign * other.gpu_milli_ms


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
        amounts = self.tenants.get(tenant)
        if amounts is None:
            amounts = self.tenants[tenant] = Amounts()
        return amounts

    def of_user(self, tenant: str, user: str) -> Amounts:
        """What one user holds in a tenant."""
        return self.users.get((tenant, user), _NOTHING_HELD)

    def add(self, job: Job, amounts: Amounts, sign: int = 1) -> None:
        """A job of this tenant, user and pool starts (or ends)."""
        self.of(job.tenant).add(amounts, sign)
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


@contextmanager
def without(holdings: Holdings, sums: Sums) -> Iterator[None]:
    """Take these sums out of the holdings for a while."""
    for job, amounts in sums:
        holdings.add(job, amounts, -1)
    try:
        yield
    finally:
        for job, amounts in sums:
            holdings.add(job, amounts)


def job_amounts(job: Job, limit_ms: int, members: int | None = None) -> Amounts:
    """What one task of a job holds, with all or the first few members.

    GPU memory counts as far as it was stated; that of a MIG slice is stated by its profile.
    """
    requests = job.members if members is None else job.members[:members]
    if job.service:
        limit_ms = min(limit_ms, SERVICE_AHEAD_MS)
    gpu_milli = sum(request.gpu_milli for request in requests)
    return Amounts(
        gpu_milli,
        sum(map(_gpu_memory_mb, requests)),
        sum(request.cpu_milli for request in requests),
        sum(request.memory_mb for request in requests),
        1,
        gpu_milli * limit_ms,
    )


_NOTHING_SPENT = AccountUsage()


def never_admitted(
    state: ClusterState, job: Job, usage: AccountUsage = _NOTHING_SPENT
) -> Reason | None:
    """Why a quota or pool can never let the job start, whatever ends; None if one day it may.

    `usage` is that of its tenant; the cluster state has only those of tenants that wait.
    """
    if not state.has_quotas:
        return None
    total_milli = state.total_gpu_milli
    pools = state.pools if total_milli else {}
    admission = Admission(
        tenants=state.tenants,
        pools=pools,
        holdings=state.holdings,
        tenant_usage={job.tenant: usage},
        guarantees=pool_guarantees(pools, total_milli=total_milli, usable_milli=total_milli),
        user_usage=state.user_usage,
        policy=state.policy,
    )
    return admission.never_admitted(job, job_amounts(job, state.limit_ms(job), job.min_members))


class Admission:
    """Checks quotas in one cycle, against holdings that change as the cycle starts jobs."""

    def __init__(
        self,
        *,
        tenants: dict[str, Tenant],
        pools: dict[Pool, PoolQuota],
        holdings: Holdings,
        tenant_usage: dict[str, AccountUsage],
        guarantees: dict[Pool, int],
        waiting_tenants: frozenset[str] = frozenset(),
        user_usage: dict[tuple[str, str], AccountUsage] | None = None,
        policy: Policy | None = None,
    ) -> None:
        """`waiting_tenants` need their own quota, so they lend nothing of it.

        `guarantees` is the guaranteed capacity of each pool.
        """
        self._user_usage = user_usage or {}
        self._policy = policy or Policy()
        self._user_quotas: dict[str, Quota] = {}
        self._tenants = tenants
        self._pools = pools
        self._tenant_usage = tenant_usage
        self._guarantees = guarantees
        self._waiting = waiting_tenants
        self.holdings = holdings
        self.online_waits_milli = 0

    def refusal(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job may not start now, or None."""
        most = self._policy.max_running
        if most:
            running = sum(amounts.jobs for amounts in self.holdings.tenants.values())
            if running >= most:
                return Reason(ReasonCode.MOST_JOBS, (("limit", most),))
        tenant = self._tenants.get(job.tenant)
        if tenant is not None:
            refused = self._over_quota(tenant, job, wanted)
            if refused is not None:
                return refused
        return self._over_user_quota(job, wanted) or self._over_pool(job, wanted)

    def over_budget(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job may not start for want of GPU-hours, or None."""
        hours = Amounts(gpu_milli_ms=wanted.gpu_milli_ms)
        tenant = self._tenants.get(job.tenant)
        refused = None if tenant is None else self._over_quota(tenant, job, hours)
        return refused or self._over_user_quota(job, hours)

    def is_over_user_limit(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the job's user would hold more than a user may."""
        return self._over_user_quota(job, wanted) is not None

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
        """Why the job could not start even if nothing were held, or None."""
        tenant = self._tenants.get(job.tenant)
        if tenant is not None:
            for resource, limit, current, request, unit in self._checks(tenant, wanted):
                may_borrow = resource == GPUS and tenant.elastic and job.preemptible
                more = self._lent_at_most(tenant) if may_borrow else 0
                if limit is not None and request > limit + more:
                    return _quota_reason(tenant.id, resource, (request, limit, current), unit)
        for resource, limit, current, request, unit in self._user_checks(job, wanted):
            if limit is not None and request > limit:
                return self._user_reason(job, resource, (request, limit, current), unit)
        quota = self._pools.get(job.pool)
        if quota is None:
            return None
        limit = self._guarantee(quota)
        if quota.elastic and self._can_be_reclaimed(job):
            limit += sum(self._guarantee(other) for other in self._lending_pools(job.pool))
        return self._pool_reason(job.pool, wanted, limit) if wanted.gpu_milli > limit else None

    def borrows(self, tenant_id: str) -> bool:
        """Tell whether a tenant holds more GPUs than its guarantee."""
        return self.borrowed_milli(tenant_id) > 0

    def borrowed_milli(self, tenant_id: str) -> int:
        """How much a tenant holds beyond its guarantee: so much can be reclaimed."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None or not tenant.elastic or tenant.quota.gpu_milli is None:
            return 0
        return max(0, self.holdings.of(tenant_id).gpu_milli - tenant.quota.gpu_milli)

    def pool_borrows(self, pool: Pool) -> bool:
        """Tell whether a pool holds more than its guarantee."""
        return self.pool_borrowed_milli(pool) > 0

    def pool_borrowed_milli(self, pool: Pool) -> int:
        """How much a pool holds beyond its guarantee: so much can be reclaimed."""
        quota = self._pools.get(pool)
        if quota is None or not quota.elastic:
            return 0
        return max(0, self.holdings.pools.get(pool, 0) - self._guarantee(quota))

    def is_within_pool(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the pool would stay within its guarantee (of which it may have lent)."""
        quota = self._pools.get(job.pool)
        if quota is None or not quota.elastic:
            return False
        held = self.holdings.pools.get(job.pool, 0)
        return held + wanted.gpu_milli <= self._guarantee(quota)

    def online_within_guarantee(self, job: Job, members: int) -> bool:
        """Tell whether the job is online work that stays within the guarantee of its pool.

        An elastic gang with so many members.
        """
        quota = self._pools.get(job.pool) if job.pool is Pool.ONLINE else None
        if quota is None:
            return False
        gpu_milli = sum(request.gpu_milli for request in job.members[:members])
        return self.holdings.pools.get(job.pool, 0) + gpu_milli <= self._guarantee(quota)

    def members_within_guarantee(self, job: Job) -> int:
        """How many members of an elastic gang the guarantee of the online pool covers."""
        quota = self._pools.get(job.pool) if job.pool is Pool.ONLINE else None
        if quota is None:
            return 0
        left = self._guarantee(quota) - self.holdings.pools.get(job.pool, 0)
        for count, request in enumerate(job.members):
            left -= request.gpu_milli
            if left < 0:
                return count
        return len(job.members)

    def is_guaranteed(self, job: Job, gpu_milli: int, taken_milli: int) -> bool:
        """Tell whether a running job is covered by the guarantee of its pool."""
        if job.pool not in self._pools:
            return False
        left = self.pool_borrowed_milli(job.pool) - taken_milli
        return left <= 0 or gpu_milli > left

    def would_borrow(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the job would have to borrow from the other pool."""
        quota = self._pools.get(job.pool)
        return quota is not None and quota.elastic and not self.is_within_pool(job, wanted)

    def is_within_guarantee(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the tenant would hold no more than its guarantee."""
        tenant = self._tenants.get(job.tenant)
        if tenant is None or not tenant.elastic or tenant.quota.gpu_milli is None:
            return False
        held = self.holdings.of(job.tenant).gpu_milli
        return held + wanted.gpu_milli <= tenant.quota.gpu_milli

    def _over_quota(self, tenant: Tenant, job: Job, wanted: Amounts) -> Reason | None:
        for resource, limit, current, request, unit in self._checks(tenant, wanted):
            if limit is None or not request or current + request <= limit:
                continue
            may_borrow = resource == GPUS and tenant.elastic and job.preemptible
            if not (may_borrow and self._can_borrow(tenant, request)):
                numbers = (request, limit, current)
                turns_ms = self._tenant_usage.get(tenant.id, _NOTHING_SPENT).turns_ms
                if resource == HOURS and turns_ms:
                    return self._budget_reason(f"tenant {tenant.id}", tenant, numbers, turns_ms)
                return _quota_reason(tenant.id, resource, numbers, unit)
        return None

    def _over_user_quota(self, job: Job, wanted: Amounts) -> Reason | None:
        for resource, limit, current, request, unit in self._user_checks(job, wanted):
            if limit is not None and request and current + request > limit:
                return self._user_reason(job, resource, (request, limit, current), unit)
        return None

    def _user_checks(self, job: Job, wanted: Amounts) -> tuple[Check, ...]:
        quota = self._user_quotas.get(job.tenant)
        if quota is None:
            tenant = self._tenants.get(job.tenant)
            quota = self._user_quotas[job.tenant] = user_quota_of(tenant, self._policy.user_quota)
        if quota is _NO_QUOTA:
            return ()
        usage = self._user_usage.get((job.tenant, job.user), _NOTHING_SPENT)
        held = self.holdings.of_user(job.tenant, job.user)
        return _checks_of(quota, held, usage.spent_gpu_milli_ms, wanted)

    def _user_reason(
        self, job: Job, resource: str, numbers: tuple[int, int, int], unit: int
    ) -> Reason:
        turns_ms = self._user_usage.get((job.tenant, job.user), _NOTHING_SPENT).turns_ms
        if resource == HOURS and turns_ms:
            tenant = self._tenants.get(job.tenant)
            return self._budget_reason(f"user {job.user}", tenant, numbers, turns_ms)
        requested, limit, held = numbers
        data: tuple[tuple[str, str | int], ...] = (
            ("held", _shown(held, unit)),
            ("left", _shown(max(0, limit - held), unit)),
            ("limit", _shown(limit, unit)),
            ("requested", _shown(requested, unit)),
            ("resource", resource),
            ("tenant", job.tenant),
            ("user", job.user),
        )
        return Reason(ReasonCode.USER_LIMIT, data)

    def _budget_reason(
        self, owner: str, tenant: Tenant | None, numbers: tuple[int, int, int], turns_ms: int
    ) -> Reason:
        requested, limit, held = numbers
        period = (None if tenant is None else tenant.budget_period) or self._policy.budget_period
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

    def _checks(self, tenant: Tenant, wanted: Amounts) -> tuple[Check, ...]:
        spent = self._tenant_usage.get(tenant.id, _NOTHING_SPENT).spent_gpu_milli_ms
        return _checks_of(tenant.quota, self.holdings.of(tenant.id), spent, wanted)

    def _can_borrow(self, tenant: Tenant, wanted_milli: int) -> bool:
        """Other tenants lend what they neither hold nor used recently; what is lent counts."""
        lendable = borrowed = 0
        for other in self._tenants.values():
            if other.quota.gpu_milli is None or not other.elastic:
                continue
            held = self.holdings.of(other.id).gpu_milli
            borrowed += max(0, held - other.quota.gpu_milli)
            if other.id == tenant.id:
                continue
            if other.id in self._waiting:
                continue
            recent = self._tenant_usage.get(other.id, _NOTHING_SPENT).recent_gpu_milli
            lendable += max(0, other.quota.gpu_milli - max(held, recent))
        held = self.holdings.of(tenant.id).gpu_milli
        more = held + wanted_milli - max(held, tenant.quota.gpu_milli or 0)
        return borrowed + more <= lendable

    def _lent_at_most(self, tenant: Tenant) -> int:
        """What all other tenants could lend if they held nothing."""
        return sum(
            other.quota.gpu_milli
            for other in self._tenants.values()
            if other.id != tenant.id and other.elastic and other.quota.gpu_milli is not None
        )

    def _over_pool(self, job: Job, wanted: Amounts) -> Reason | None:
        quota = self._pools.get(job.pool)
        if quota is None or not wanted.gpu_milli:
            return None
        held = self.holdings.pools.get(job.pool, 0)
        limit = self._guarantee(quota)
        if held + wanted.gpu_milli <= limit:
            return None
        if quota.elastic and self._can_be_reclaimed(job):
            idle = sum(
                max(
                    0,
                    self._guarantee(other)
                    - self.holdings.pools.get(other.pool, 0)
                    - self._wanted(other),
                )
                for other in self._lending_pools(job.pool)
            )
            if held + wanted.gpu_milli <= limit + idle:
                return None
        return self._pool_reason(job.pool, wanted, limit)

    def _can_be_reclaimed(self, job: Job) -> bool:
        """Tell whether what the job holds can be reclaimed: only such jobs may borrow."""
        tenant = self._tenants.get(job.tenant)
        return job.preemptible and (tenant is None or tenant.allow_preemption)

    def _wanted(self, quota: PoolQuota) -> int:
        """What online jobs wait for is not lent."""
        return max(0, self.online_waits_milli) if quota.pool is Pool.ONLINE else 0

    def _guarantee(self, quota: PoolQuota) -> int:
        return self._guarantees[quota.pool]

    def _lending_pools(self, pool: Pool) -> list[PoolQuota]:
        return [other for other in self._pools.values() if other.pool is not pool and other.elastic]

    def _pool_reason(self, pool: Pool, wanted: Amounts, limit: int) -> Reason:
        data = (
            ("held", _shown(self.holdings.pools.get(pool, 0), WHOLE_MILLI)),
            ("limit", _shown(limit, WHOLE_MILLI)),
            ("pool", pool.value),
            ("requested", _shown(wanted.gpu_milli, WHOLE_MILLI)),
        )
        return Reason(ReasonCode.POOL, data)


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


def _checks_of(quota: Quota, held: Amounts, spent: int, wanted: Amounts) -> tuple[Check, ...]:
    hours = held.gpu_milli_ms + spent
    return (
        ("GPU memory MiB", quota.gpu_memory_mb, held.gpu_memory_mb, wanted.gpu_memory_mb, 1),
        ("CPU cores", quota.cpu_milli, held.cpu_milli, wanted.cpu_milli, CPU_WHOLE_MILLI),
        ("memory MiB", quota.memory_mb, held.memory_mb, wanted.memory_mb, 1),
        ("concurrent jobs", quota.concurrent_jobs, held.jobs, wanted.jobs, 1),
        (HOURS, quota.gpu_milli_ms, hours, wanted.gpu_milli_ms, GPU_HOUR),
        (GPUS, quota.gpu_milli, held.gpu_milli, wanted.gpu_milli, WHOLE_MILLI),
    )


_NOTHING_HELD = Amounts()


def _gpu_memory_mb(request: Request) -> int:
    if request.mig_profile and not request.gpu_memory_total_mb:
        return request.gpu_count * mig_memory_mb(request.mig_profile)
    return request.gpu_memory_total_mb


def _quota_reason(tenant: str, resource: str, numbers: tuple[int, int, int], unit: int) -> Reason:
    requested, limit, held = (_shown(number, unit) for number in numbers)
    data: tuple[tuple[str, str | int], ...] = (
        ("held", held),
        ("limit", limit),
        ("requested", requested),
        ("resource", resource),
        ("tenant", tenant),
    )
    return Reason(ReasonCode.QUOTA, data)


def _shown(amount: int, unit: int) -> str | int:
    """In the unit that users know, exact to a hundredth."""
    whole, rest = divmod(amount, unit)
    return whole if not rest else f"{whole}.{rest * 100 // unit:02d}"
