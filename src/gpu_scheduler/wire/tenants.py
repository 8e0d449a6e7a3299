"""The JSON schema of changes to a tenant, and their conversion."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from gpu_scheduler.model.names import check_name
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI, BudgetPeriod, Tenant, Tier
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


def read_tenant(request: TenantPatch, known: Tenant) -> Tenant:
    """Return the tenant with the requested changes."""
    quota = _limits(request, LIMITS)
    user_quota = _limits(request, USER_LIMITS)
    changes: dict[str, Any] = {
        target: value for name, target in _FIELDS if (value := getattr(request, name)) is not UNSET
    }
    if known.name != changes.get("name", known.name):
        check_name(changes["name"], "the name of a tenant")
    if request.fair_share_weight is not UNSET:
        changes["weight_milli"] = max(1, round(request.fair_share_weight * WEIGHT_ONE_MILLI))
    for name in ("linux_groups", "users", "admins"):
        named = getattr(request, name)
        if named is not UNSET:
            for account in set(named) - set(getattr(known, name)):
                check_name(account, f"an account in {name}")
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
    limits: dict[str, int | None] = {}
    for name, target, unit in fields:
        value = getattr(request, name)
        if value is not UNSET:
            limits[target] = None if value is None else round(value * unit)
    return limits


LIMITS = (
    ("max_gpus", "gpu_milli", 1000),
    ("max_gpu_memory_mb", "gpu_memory_mb", 1),
    ("max_cpu_cores", "cpu_milli", 1000),
    ("max_memory_mb", "memory_mb", 1),
    ("max_concurrent_jobs", "concurrent_jobs", 1),
    ("max_gpu_hours", "gpu_milli_ms", GPU_HOUR),
    ("max_pending_jobs", "pending_jobs", 1),
)
USER_LIMITS = (
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
