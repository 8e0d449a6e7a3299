"""Whether a tenant and a pool may hold more right now.

Strict quotas are a ceiling. An elastic quota is what its owner is sure of: above it the owner may
hold what others leave idle, sized by what they used lately, with jobs that can be preempted.
"""

from __future__ import annotations

from gpu_scheduler.model.job import Job, Pool
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.snapshot import PoolQuota, Standing
from gpu_scheduler.model.tenant import Tenant

CPU_WHOLE_MILLI = 1000
GPU_HOUR = WHOLE_MILLI * 3_600_000


class Amounts:
    """What a tenant or pool holds, or a job would add."""

    __slots__ = ("cpu_milli", "gpu_memory_mb", "gpu_milli", "gpu_milli_ms", "jobs", "memory_mb")

    def __init__(
        self,
        gpu_milli: int = 0,
        gpu_memory_mb: int = 0,
        cpu_milli: int = 0,
        memory_mb: int = 0,
        jobs: int = 0,
        gpu_milli_ms: int = 0,
    ) -> None:
        """`gpu_milli_ms` is GPU time that running jobs may still use up to their limits."""
        self.gpu_milli = gpu_milli
        self.gpu_memory_mb = gpu_memory_mb
        self.cpu_milli = cpu_milli
        self.memory_mb = memory_mb
        self.jobs = jobs
        self.gpu_milli_ms = gpu_milli_ms

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


class Holdings:
    """What every tenant and pool holds. A cycle works on its own copy."""

    __slots__ = ("pools", "tenants")

    def __init__(self) -> None:
        """Start with nothing held."""
        self.tenants: dict[str, Amounts] = {}
        self.pools: dict[Pool, int] = {}

    def copy(self) -> Holdings:
        """A copy that can be changed without changing this."""
        twin = Holdings()
        twin.tenants = {tenant: amounts.copy() for tenant, amounts in self.tenants.items()}
        twin.pools = dict(self.pools)
        return twin

    def of(self, tenant: str) -> Amounts:
        """What one tenant holds."""
        amounts = self.tenants.get(tenant)
        if amounts is None:
            amounts = self.tenants[tenant] = Amounts()
        return amounts

    def add(self, job: Job, amounts: Amounts, sign: int = 1) -> None:
        """A job of this tenant and pool starts (or ends)."""
        self.of(job.tenant).add(amounts, sign)
        self.pools[job.pool] = self.pools.get(job.pool, 0) + sign * amounts.gpu_milli


def job_amounts(job: Job, limit_ms: int, members: int | None = None) -> Amounts:
    """What one task of a job holds while it runs, with all or the first few members."""
    requests = job.members if members is None else job.members[:members]
    gpu_milli = sum(request.gpu_milli for request in requests)
    return Amounts(
        gpu_milli,
        sum(request.gpu_memory_total_mb for request in requests),
        sum(request.cpu_milli for request in requests),
        sum(request.memory_mb for request in requests),
        1,
        gpu_milli * limit_ms,
    )


class Admission:
    """Answers for one cycle, against holdings that change as the cycle starts jobs."""

    def __init__(
        self,
        *,
        tenants: dict[str, Tenant],
        pools: dict[Pool, PoolQuota],
        holdings: Holdings,
        standings: dict[str, Standing],
        total_gpu_milli: int,
        waiting_tenants: frozenset[str] = frozenset(),
    ) -> None:
        """`waiting_tenants` want what is theirs, so they lend nothing of it."""
        self._tenants = tenants
        self._pools = pools
        self._standings = standings
        self._total = total_gpu_milli
        self._waiting = waiting_tenants
        self.holdings = holdings

    def refusal(self, job: Job, wanted: Amounts) -> Reason | None:
        """Why the job may not start now, or None."""
        tenant = self._tenants.get(job.tenant)
        if tenant is not None:
            refused = self._over_quota(tenant, job, wanted)
            if refused is not None:
                return refused
        return self._over_pool(job, wanted)

    def borrows(self, tenant_id: str) -> bool:
        """Tell whether a tenant holds more GPUs than it is sure of."""
        tenant = self._tenants.get(tenant_id)
        if tenant is None or not tenant.elastic or tenant.quota.gpu_milli is None:
            return False
        return self.holdings.of(tenant_id).gpu_milli > tenant.quota.gpu_milli

    def is_within_guarantee(self, job: Job, wanted: Amounts) -> bool:
        """Tell whether the tenant would hold no more than it is sure of."""
        tenant = self._tenants.get(job.tenant)
        if tenant is None or not tenant.elastic or tenant.quota.gpu_milli is None:
            return False
        held = self.holdings.of(job.tenant).gpu_milli
        return held + wanted.gpu_milli <= tenant.quota.gpu_milli

    def _over_quota(self, tenant: Tenant, job: Job, wanted: Amounts) -> Reason | None:
        held = self.holdings.of(tenant.id)
        quota = tenant.quota
        spent = self._standings.get(tenant.id, _NOTHING_SPENT).spent_gpu_milli_ms
        checks = (
            ("GPU memory MiB", quota.gpu_memory_mb, held.gpu_memory_mb, wanted.gpu_memory_mb, 1),
            ("CPU cores", quota.cpu_milli, held.cpu_milli, wanted.cpu_milli, CPU_WHOLE_MILLI),
            ("memory MiB", quota.memory_mb, held.memory_mb, wanted.memory_mb, 1),
            ("concurrent jobs", quota.concurrent_jobs, held.jobs, wanted.jobs, 1),
            (
                "GPU-hours",
                quota.gpu_milli_ms,
                held.gpu_milli_ms + spent,
                wanted.gpu_milli_ms,
                GPU_HOUR,
            ),
        )
        for resource, limit, current, request, unit in checks:
            if limit is not None and request and current + request > limit:
                return _quota_reason(tenant.id, resource, (request, limit, current), unit)
        limit = quota.gpu_milli
        if limit is None or not wanted.gpu_milli or held.gpu_milli + wanted.gpu_milli <= limit:
            return None
        if tenant.elastic and job.preemptible and self._can_borrow(tenant, wanted.gpu_milli):
            return None
        return _quota_reason(
            tenant.id, "GPUs", (wanted.gpu_milli, limit, held.gpu_milli), WHOLE_MILLI
        )

    def _can_borrow(self, tenant: Tenant, wanted_milli: int) -> bool:
        """What the others neither hold nor used lately is lent; what is lent already counts."""
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
            recent = self._standings.get(other.id, _NOTHING_SPENT).recent_gpu_milli
            lendable += max(0, other.quota.gpu_milli - max(held, recent))
        held = self.holdings.of(tenant.id).gpu_milli
        more = held + wanted_milli - max(held, tenant.quota.gpu_milli or 0)
        return borrowed + more <= lendable

    def _over_pool(self, job: Job, wanted: Amounts) -> Reason | None:
        quota = self._pools.get(job.pool)
        if quota is None or not wanted.gpu_milli:
            return None
        held = self.holdings.pools.get(job.pool, 0)
        limit = self._total * quota.percent // 100
        if held + wanted.gpu_milli <= limit:
            return None
        if quota.elastic and job.preemptible:
            idle = 0
            for other in self._pools.values():
                if other.pool is not job.pool:
                    due = self._total * other.percent // 100
                    idle += max(0, due - self.holdings.pools.get(other.pool, 0))
            if held + wanted.gpu_milli <= limit + idle:
                return None
        data = (
            ("held", held // WHOLE_MILLI),
            ("limit", limit // WHOLE_MILLI),
            ("pool", job.pool.value),
            ("requested", _shown(wanted.gpu_milli, WHOLE_MILLI)),
        )
        return Reason(ReasonCode.POOL, data)


_NOTHING_SPENT = Standing()


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
    """In the unit that people use, exact to a hundredth."""
    whole, rest = divmod(amount, unit)
    return whole if not rest else f"{whole}.{rest * 100 // unit:02d}"
