"""The JSON schemas of tenants, limits and pool quotas, and their conversion."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI, BudgetPeriod, Quota, Tenant, Tier
from gpu_scheduler.wire.jobs import MAX_MB

GPU_HOUR = 1000 * 3_600_000

Limit = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Amount = Annotated[float, Meta(ge=0, le=1_000_000_000)]
MemoryLimit = Annotated[int, Meta(ge=0, le=MAX_MB)]
Weight = Annotated[float, Meta(gt=0, le=1_000_000)]
TENANT_ID = "^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_ID = 64
Account = Annotated[str, Meta(max_length=256, pattern="^[^:,\\x00-\\x1f\\x7f]+$")]
Accounts = Annotated[list[Account], Meta(max_length=10_000)]
TenantName = Annotated[str, Meta(min_length=1, max_length=256)]


class TenantPatch(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Changes to a tenant. Omitted fields stay as they are; a limit of null means no limit."""

    name: TenantName | UnsetType = UNSET
    max_gpus: Amount | UnsetType | None = UNSET
    max_gpu_memory_mb: MemoryLimit | UnsetType | None = UNSET
    max_cpu_cores: Amount | UnsetType | None = UNSET
    max_memory_mb: MemoryLimit | UnsetType | None = UNSET
    max_concurrent_jobs: Limit | UnsetType | None = UNSET
    max_gpu_hours: Amount | UnsetType | None = UNSET
    priority_tier: Tier | UnsetType = UNSET
    fair_share_weight: Weight | UnsetType = UNSET
    allow_preemption: bool | UnsetType = UNSET
    can_preempt_others: bool | UnsetType = UNSET
    max_preemptions: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType = UNSET
    elastic: bool | UnsetType = UNSET
    max_pending_jobs: Limit | UnsetType | None = UNSET
    budget_period: BudgetPeriod | UnsetType | None = UNSET
    user_max_gpus: Amount | UnsetType | None = UNSET
    user_max_jobs: Limit | UnsetType | None = UNSET
    user_max_pending_jobs: Limit | UnsetType | None = UNSET
    user_max_gpu_hours: Amount | UnsetType | None = UNSET
    linux_groups: Accounts | UnsetType = UNSET
    users: Accounts | UnsetType = UNSET
    admins: Accounts | UnsetType = UNSET


class TenantRequest(TenantPatch, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A new tenant. An omitted limit means no limit."""

    name: TenantName
    id: Annotated[str, Meta(max_length=MAX_ID, pattern=TENANT_ID)] | UnsetType = UNSET


class TenantForm(Struct):
    """A tenant with its limits (null: none) and its current usage."""

    id: str
    name: str
    max_gpus: float | None
    max_gpu_memory_mb: int | None
    max_cpu_cores: float | None
    max_memory_mb: int | None
    max_concurrent_jobs: int | None
    max_gpu_hours: float | None
    priority_tier: str
    fair_share_weight: float
    allow_preemption: bool
    can_preempt_others: bool
    max_preemptions: int
    elastic: bool
    current_gpus: float = 0
    current_gpu_memory_mb: int = 0
    current_cpu_cores: float = 0
    current_memory_mb: int = 0
    current_jobs: int = 0
    used_gpu_hours: float = 0
    max_pending_jobs: int | None = None
    budget_period: str | None = None
    user_max_gpus: float | None = None
    user_max_jobs: int | None = None
    user_max_pending_jobs: int | None = None
    user_max_gpu_hours: float | None = None
    linux_groups: list[str] = []
    users: list[str] = []
    admins: list[str] = []


class LimitForm(Struct):
    """One limit of a user (without a user: of the tenant), its usage and what is left.

    `turns_at` is the start of the next budget period.
    """

    tenant_id: str
    user: str | None
    resource: str
    limit: float
    used: float
    left: float
    period: str | None = None
    turns_at: str | None = None


class LimitList(Struct):
    """All limits that apply to a user in a tenant."""

    limits: list[LimitForm]


class TenantList(Struct):
    """All tenants, by id."""

    tenants: list[TenantForm]


class QuotaRequest(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The quota of online work in percent; batch work has the rest unless it is given too."""

    online_percent: Annotated[int, Meta(ge=0, le=100)]
    batch_percent: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET
    elastic: bool | UnsetType = UNSET


def read_tenant(request: TenantPatch, known: Tenant) -> Tenant:
    """Return the tenant with the requested changes."""
    quota = _limits(request, _LIMITS)
    user_quota = _limits(request, _USER_LIMITS)
    changes: dict[str, Any] = {
        target: value for name, target in _FIELDS if (value := getattr(request, name)) is not UNSET
    }
    if not changes.get("name", "x").isprintable():
        raise InvalidRequest("the tenant's name contains a control character; remove it")
    if "/" in changes.get("name", ""):
        raise InvalidRequest(
            "the tenant's name contains a slash, which separates names in paths; remove it"
        )
    if request.fair_share_weight is not UNSET:
        changes["weight_milli"] = max(1, round(request.fair_share_weight * WEIGHT_ONE_MILLI))
    for name in ("linux_groups", "users", "admins"):
        named = getattr(request, name)
        if named is not UNSET:
            changes[name] = tuple(dict.fromkeys(named))
    return replace(
        known,
        quota=replace(known.quota, **quota),
        user_quota=replace(known.user_quota, **user_quota),
        **changes,
    )


def _limits(
    request: TenantPatch, fields: tuple[tuple[str, str, int], ...]
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for name, target, unit in fields:
        value = getattr(request, name)
        if value is not UNSET:
            found[target] = None if value is None else round(value * unit)
    return found


_LIMITS = (
    ("max_gpus", "gpu_milli", 1000),
    ("max_gpu_memory_mb", "gpu_memory_mb", 1),
    ("max_cpu_cores", "cpu_milli", 1000),
    ("max_memory_mb", "memory_mb", 1),
    ("max_concurrent_jobs", "concurrent_jobs", 1),
    ("max_gpu_hours", "gpu_milli_ms", GPU_HOUR),
    ("max_pending_jobs", "pending_jobs", 1),
)
_USER_LIMITS = (
    ("user_max_gpus", "gpu_milli", 1000),
    ("user_max_jobs", "concurrent_jobs", 1),
    ("user_max_pending_jobs", "pending_jobs", 1),
    ("user_max_gpu_hours", "gpu_milli_ms", GPU_HOUR),
)
_FIELDS = (
    ("name", "name"),
    ("priority_tier", "tier"),
    ("allow_preemption", "allow_preemption"),
    ("can_preempt_others", "can_preempt_others"),
    ("max_preemptions", "max_preemptions"),
    ("elastic", "elastic"),
    ("budget_period", "budget_period"),
)


def write_tenant(tenant: Tenant) -> TenantForm:
    """Return the JSON form of a tenant and its limits; the caller adds the usage."""
    quota: Quota = tenant.quota
    return TenantForm(
        id=tenant.id,
        name=tenant.name,
        max_gpus=per(quota.gpu_milli, 1000),
        max_gpu_memory_mb=quota.gpu_memory_mb,
        max_cpu_cores=per(quota.cpu_milli, 1000),
        max_memory_mb=quota.memory_mb,
        max_concurrent_jobs=quota.concurrent_jobs,
        max_gpu_hours=per(quota.gpu_milli_ms, GPU_HOUR),
        priority_tier=tenant.tier.value,
        fair_share_weight=tenant.weight_milli / WEIGHT_ONE_MILLI,
        allow_preemption=tenant.allow_preemption,
        can_preempt_others=tenant.can_preempt_others,
        max_preemptions=tenant.max_preemptions,
        elastic=tenant.elastic,
        max_pending_jobs=quota.pending_jobs,
        budget_period=None if tenant.budget_period is None else tenant.budget_period.value,
        user_max_gpus=per(tenant.user_quota.gpu_milli, 1000),
        user_max_jobs=tenant.user_quota.concurrent_jobs,
        user_max_pending_jobs=tenant.user_quota.pending_jobs,
        user_max_gpu_hours=per(tenant.user_quota.gpu_milli_ms, GPU_HOUR),
        linux_groups=list(tenant.linux_groups),
        users=list(tenant.users),
        admins=list(tenant.admins),
    )


def per(amount: int | None, unit: int) -> float | None:
    """Return an amount in larger units; whole numbers stay integers."""
    if amount is None:
        return None
    return amount // unit if amount % unit == 0 else amount / unit
