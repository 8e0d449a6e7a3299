"""Tenants with quotas, budgets and weights; and which users belong to which tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import DEFAULT_TENANT

WEIGHT_ONE_MILLI = 1000
"""A fair-share weight of 1.0."""


class Tier(Enum):
    """The tier of a tenant; its points are added to the priority of each of its jobs."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"

    @property
    def points(self) -> int:
        """The points that the tier adds to the priority of a job."""
        return _TIER_POINTS[self]


_TIER_POINTS = {Tier.LOW: 0, Tier.MEDIUM: 1000, Tier.HIGH: 2000, Tier.CRITICAL: 3000}


class BudgetPeriod(StrEnum):
    """The period of a GPU-hours budget; weeks begin on Monday, days at midnight UTC."""

    TOTAL = "total"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a tenant or a user. `None` means no limit.

    `gpu_milli_ms` is a budget per period; `pending_jobs` limits waiting jobs (an array counts as
    its tasks).
    """

    gpu_milli: int | None = None
    gpu_memory_mb: int | None = None
    cpu_milli: int | None = None
    memory_mb: int | None = None
    concurrent_jobs: int | None = None
    gpu_milli_ms: int | None = None
    pending_jobs: int | None = None

    def __post_init__(self) -> None:
        """Reject negative limits."""
        for item in fields(self):
            limit = getattr(self, item.name)
            if limit is not None and limit < 0:
                raise InvalidRequest(f"quota {item.name} is {limit}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A group of users with a quota, a tier and a weight.

    With `elastic`, the quota is guaranteed: the tenant may borrow idle capacity of others, which
    they reclaim by preemption. Members of its Linux groups and its users may submit to it; its
    admins may also change all its jobs. `user_quota` is for each of its users; the policy sets what
    it leaves open, and the budget period.
    """

    id: str
    name: str = ""
    quota: Quota = field(default_factory=Quota)
    tier: Tier = Tier.MEDIUM
    weight_milli: int = WEIGHT_ONE_MILLI
    elastic: bool = False
    allow_preemption: bool = True
    can_preempt_others: bool = True
    max_preemptions: int = 3
    linux_groups: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    user_quota: Quota = field(default_factory=Quota)
    budget_period: BudgetPeriod | None = None

    def __post_init__(self) -> None:
        """Reject a weight below the smallest one."""
        if self.weight_milli < 1:
            raise InvalidRequest(
                f"tenant {self.id} has fair-share weight {self.weight_milli / WEIGHT_ONE_MILLI:g}; "
                "it must be more than 0"
            )
        if self.max_preemptions < 0:
            raise InvalidRequest(f"tenant {self.id}: max_preemptions must be 0 or more")


_Ids = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TenantMembership:
    """The tenants of one user: the default one, all, and those the user administers."""

    tenant: str
    tenants: frozenset[str]
    administers: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class TenantDirectory:
    """Tenants by Linux group, user and admin; rebuilt after each change of a tenant."""

    by_group: Mapping[str, _Ids]
    by_user: Mapping[str, _Ids]
    by_admin: Mapping[str, _Ids]

    @classmethod
    def of(cls, tenants: Iterable[Tenant]) -> TenantDirectory:
        """The directory of these tenants."""
        by_group: dict[str, _Ids] = {}
        by_user: dict[str, _Ids] = {}
        by_admin: dict[str, _Ids] = {}
        for tenant in sorted(tenants, key=lambda one: one.id):
            for names, found in (
                (tenant.linux_groups, by_group),
                (tenant.users, by_user),
                (tenant.admins, by_admin),
            ):
                for name in names:
                    found[name] = (*found.get(name, ()), tenant.id)
        return cls(by_group, by_user, by_admin)

    def membership(self, user: str, groups: Sequence[str]) -> TenantMembership:
        """The tenants of a user with these groups, the primary group first.

        The default tenant of the user is that of the primary group, then one that lists the user,
        then that of another group; otherwise the tenant `default`.
        """
        found: list[str] = []
        if groups:
            found += self.by_group.get(groups[0], ())
        found += self.by_user.get(user, ())
        for group in groups[1:]:
            found += self.by_group.get(group, ())
        administers = self.by_admin.get(user, ())
        found += administers
        first = found[0] if found else DEFAULT_TENANT
        return TenantMembership(
            first, frozenset(found or (DEFAULT_TENANT,)), frozenset(administers)
        )
