"""Whether a tenant's budget of GPU time can bear one more job.

What was spent, what running jobs may still spend, and a new job's worst case come in; yes or no,
what is left, and the reason come out. A job's worst case is its limit on all its GPUs, so a budget
is never exceeded by a job that keeps its limit. Nothing is charged here: see `accounts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.ledger.units import HOUR_MS, decimal_text, gpu_hours
from gpu_scheduler.model.errors import InternalError, QuotaTooSmall
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.reasons import Reason, ReasonCode
from gpu_scheduler.model.request import WHOLE_MILLI

RESOURCE = "gpu_hours"
"""What the reason calls a budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A tenant's quota of GPU time and its use, in milli-GPU-ms. No limit is None."""

    tenant: str
    limit: int | None
    spent: int = 0
    committed: int = 0

    @property
    def used(self) -> int:
        """Spent for certain, or possibly still to be spent by what runs."""
        return self.spent + self.committed

    @property
    def left(self) -> int | None:
        """What a new job may be given; 0 also when jobs overran. None without a limit."""
        return None if self.limit is None else max(0, self.limit - self.used)

    def fits(self, gpu_milli_ms: int) -> bool:
        """Tell whether that much more can be borne. What needs no GPU time always can."""
        left = self.left
        return left is None or not gpu_milli_ms or gpu_milli_ms <= left

    def longest_ms(self, gpu_milli: int) -> int | None:
        """The largest limit of a job with so many GPUs that fits now; None if any does."""
        left = self.left
        return None if left is None or not gpu_milli else left // gpu_milli


def worst_case(job: Job, limit_ms: int) -> int:
    """GPU time of one attempt of a job, or of one task of an array, that runs up to its limit.

    `limit_ms` is the default for a job that states no limit of its own.
    """
    return job.gpu_milli * (job.max_runtime_ms or limit_ms)


def reason_to_wait(budget: Budget, gpu_milli_ms: int) -> Reason | None:
    """Why a job with this worst case cannot start now, or None if it can.

    It may later: what running jobs do not use returns, and an admin can raise the quota.
    """
    limit, left = budget.limit, budget.left
    if limit is None or left is None or budget.fits(gpu_milli_ms):
        return None
    return Reason(
        ReasonCode.QUOTA,
        (
            ("tenant", budget.tenant),
            ("resource", RESOURCE),
            ("requested", gpu_hours(gpu_milli_ms, up=True)),
            ("limit", gpu_hours(limit)),
            ("held", gpu_hours(budget.used, up=True)),
            ("spent", gpu_hours(budget.spent, up=True)),
            ("committed", gpu_hours(budget.committed, up=True)),
            ("left", gpu_hours(left)),
        ),
    )


def refuse_beyond_quota(job: Job, limit_ms: int, quota_gpu_milli_ms: int | None) -> None:
    """Raise QuotaTooSmall for a job whose worst case is more than the whole quota.

    An array is judged by one of its tasks: they start one by one, and each may end early.
    """
    wanted = worst_case(job, limit_ms)
    if quota_gpu_milli_ms is None or wanted <= quota_gpu_milli_ms:
        return
    longest_ms = quota_gpu_milli_ms // job.gpu_milli
    raise QuotaTooSmall(
        f"job {job.id} may use {gpu_hours(wanted, up=True)} GPU-hours "
        f"({decimal_text(job.gpu_milli * 1000 // WHOLE_MILLI, 3)} GPUs for up to "
        f"{_hours(wanted // job.gpu_milli)} h) and the whole quota of tenant '{job.tenant}' is "
        f"{gpu_hours(quota_gpu_milli_ms)}; set a limit of {_hours(longest_ms)} h or less, "
        "ask for fewer GPUs, or raise gpu_hours"
    )


class Commitments:
    """What running jobs may still spend, per tenant, in constant work per change."""

    def __init__(self) -> None:
        self._of_allocation: dict[str, tuple[str, int]] = {}
        self._of_tenant: dict[str, int] = {}

    def commit(self, allocation_id: str, tenant: str, gpu_milli_ms: int) -> None:
        """Set a job's worst case aside when it starts. Told again, the new amount replaces it."""
        if gpu_milli_ms < 0:
            raise InternalError(f"allocation {allocation_id} was to commit {gpu_milli_ms}")
        self.settle(allocation_id)
        self._of_allocation[allocation_id] = (tenant, gpu_milli_ms)
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + gpu_milli_ms

    def draw(self, allocation_id: str, gpu_milli_ms: int) -> None:
        """Turn a part that was charged from committed into spent; never below nothing."""
        tenant, set_aside = self._of_allocation.get(allocation_id, ("", 0))
        drawn = min(set_aside, gpu_milli_ms)
        if drawn > 0:
            self._of_allocation[allocation_id] = (tenant, set_aside - drawn)
            self._of_tenant[tenant] -= drawn

    def settle(self, allocation_id: str) -> None:
        """Return what an ended job did not use. Told again, nothing changes."""
        tenant, set_aside = self._of_allocation.pop(allocation_id, ("", 0))
        if set_aside:
            self._of_tenant[tenant] -= set_aside

    def committed(self, tenant: str) -> int:
        """What the tenant's running jobs may still spend, in milli-GPU-ms."""
        return self._of_tenant.get(tenant, 0)


def _hours(span_ms: int) -> str:
    """A time in hours, cut off to three places."""
    return decimal_text(span_ms * 1000 // HOUR_MS, 3)
