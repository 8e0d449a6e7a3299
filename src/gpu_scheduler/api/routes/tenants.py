"""Tenants: create, list, show, change, remove; and the limits of tenants and users."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.openapi import Parameter, Removed, Router
from gpu_scheduler.api.http.request import (
    JSON,
    Request,
    Response,
    decode,
    form_of,
    in_units,
    json_response,
)
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.jobs.submit import period_of, spent, user_quota, waiting_of
from gpu_scheduler.control.messages import RemoveTenant, SetTenant
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.quota.admission import Amounts
from gpu_scheduler.ledger.decayed_usage import Account, account_of
from gpu_scheduler.model.errors import AlreadyExists, UnknownThing, WrongState
from gpu_scheduler.model.identity import DEFAULT_TENANT, Caller
from gpu_scheduler.model.names import check_name
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI, Quota, Tenant
from gpu_scheduler.wire.tenants import (
    GPU_HOUR,
    LIMITS,
    MAX_ID,
    TENANT_ID,
    USER_LIMITS,
    TenantPatch,
    TenantRequest,
    read_tenant,
)
from gpu_scheduler.wire.times import write_time


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
    warnings: list[str] = []


class TenantList(Struct):
    """All tenants, by id."""

    tenants: list[TenantForm]


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


PREFIX = "tenant-"


_EXAMPLE = {
    "name": "ML Research Team",
    "max_gpus": 16,
    "max_gpu_memory_mb": 200000,
    "max_cpu_cores": 64,
    "max_memory_mb": 500000,
    "max_concurrent_jobs": 20,
}
_UPDATE: dict[str, Any] = {
    "body": TenantPatch,
    "response": TenantForm,
    "errors": (403, 404, 409, 413, 415, 503),
    "example": {"max_gpus": 8},
}
router = Router("tenants")


@router.operation(
    "POST",
    "/tenants",
    body=TenantRequest,
    response=TenantForm,
    status=201,
    errors=(403, 409, 413, 415, 422, 503),
    keyed=True,
    example=_EXAMPLE,
)
async def create_tenant(context: Context, request: Request) -> Response:
    """Create a tenant (for admins)."""
    expect_admin(request.caller, "create a tenant")
    request.expect_media(JSON)
    data = await request.body(context.settings.bounds.body_bytes)
    body = decode(TenantRequest, data)
    # A new id depends on the existing ones, so only one request may choose at a time.
    async with context.choosing_ids:
        tenant_id = await _new_id(context, body.name) if body.id is msgspec.UNSET else body.id
        check_name(tenant_id, "the id of a tenant")
        tenant = read_tenant(body, Tenant(id=tenant_id))

        def render(_: Outcome) -> Response:
            return json_response(_form(context, tenant), status=201)

        return await context.idempotency.run_once(
            request, data, SetTenant(tenant), render, check=partial(_check_free, context, tenant)
        )


@router.operation("GET", "/tenants", response=TenantList)
async def list_tenants(context: Context, request: Request) -> Response:
    """List your tenants (admins: all) with their current allocations."""
    context.parse_query(request)
    seen = [tenant for tenant in await _all(context) if _may_see(request.caller, tenant)]
    return json_response(TenantList([_form(context, tenant) for tenant in seen]))


@router.operation("GET", "/tenants/{tenant_id}", response=TenantForm, errors=(404,))
async def get_tenant(context: Context, request: Request) -> Response:
    """One tenant, by id or name."""
    context.parse_query(request)
    return json_response(_form(context, await _named(context, request)))


@router.operation("PUT", "/tenants/{tenant_id}", name="put_tenant", **_UPDATE)
@router.operation("PATCH", "/tenants/{tenant_id}", **_UPDATE)
async def update_tenant(context: Context, request: Request) -> Response:
    """Change a tenant (for admins); omitted fields stay as they are."""
    expect_admin(request.caller, "change a tenant")
    patch = await request.read_json(TenantPatch, context.settings.bounds.body_bytes)
    async with context.choosing_ids:
        tenant = read_tenant(patch, await _named(context, request))
        await _check_name(context, tenant)
        await context.service.apply(SetTenant(tenant), request.caller)
    form = _form(context, tenant)
    form.warnings = list(_undone_by_restart(context, tenant.id, patch))
    return json_response(form)


@router.operation("DELETE", "/tenants/{tenant_id}", response=Removed, errors=(403, 404, 409, 503))
async def delete_tenant(context: Context, request: Request) -> Response:
    """Remove a tenant that has no jobs and no reservations (for admins)."""
    expect_admin(request.caller, "remove a tenant")
    context.parse_query(request)
    tenant = await _named(context, request)
    if tenant.id == DEFAULT_TENANT:
        raise WrongState(f"tenant '{DEFAULT_TENANT}' always exists; it can be changed only")
    await context.service.apply(RemoveTenant(tenant.id), request.caller)
    message = "Tenant deleted"
    for entry in context.settings.file_tenants:
        if entry.id == tenant.id:
            message += f"; {entry.origin} names it, so the next start creates it again"
    return json_response(Removed(id=tenant.id, message=message))


def _undone_by_restart(context: Context, tenant_id: str, patch: TenantPatch) -> Iterator[str]:
    """Warn of changes that the settings file undoes at the next start."""
    for entry in context.settings.file_tenants:
        for name in TenantPatch.__struct_fields__ if entry.id == tenant_id else ():
            given, in_file = getattr(patch, name), getattr(entry.patch, name)
            if msgspec.UNSET not in (given, in_file) and given != in_file:
                value = "no limit" if in_file is None else in_file
                if isinstance(in_file, float):
                    value = f"{in_file:g}"
                yield (
                    f"{name} of tenant {tenant_id} is set by {entry.origin}; the next start of "
                    f"the server sets it to {value} again, so "
                    "change it there as well"
                )


async def _all(context: Context) -> list[Tenant]:
    tenants = await asyncio.to_thread(context.service.store.tenants)
    if all(tenant.id != DEFAULT_TENANT for tenant in tenants):
        tenants = [Tenant(id=DEFAULT_TENANT, name=DEFAULT_TENANT), *tenants]
    return tenants


async def _named(context: Context, request: Request) -> Tenant:
    tenant_id = context.resolve_tenant(request.params["tenant_id"])
    for tenant in await _all(context):
        if tenant.id == tenant_id and _may_see(request.caller, tenant):
            return tenant
    raise context.unknown_tenant(request.params["tenant_id"])


def _may_see(caller: Caller, tenant: Tenant) -> bool:
    return caller.is_admin or tenant.id in caller.tenants


async def _new_id(context: Context, name: str) -> str:
    """Return the name if it is a valid id, so that a tenant has one name; else a numbered id.

    Never an id with recorded usage: the old tenant's bills are not this one's.
    """
    store = context.service.store
    tenants, usage = await asyncio.to_thread(lambda: (store.tenants(), store.usage()))
    names = {tenant.id for tenant in tenants} | {row.tenant for row in usage}
    if re.fullmatch(TENANT_ID, name) and len(name) <= MAX_ID and name not in names:
        return name
    numbers = [
        int(name.removeprefix(PREFIX))
        for name in names
        if name.startswith(PREFIX) and name.removeprefix(PREFIX).isdecimal() and len(name) < 20
    ]
    return f"{PREFIX}{max(numbers, default=0) + 1}"


async def _check_free(context: Context, tenant: Tenant) -> None:
    if any(other.id == tenant.id for other in await _all(context)):
        raise AlreadyExists(
            f"tenant id '{tenant.id}' is taken; choose another, or change that tenant"
        )
    await _check_name(context, tenant)


async def _check_name(context: Context, tenant: Tenant) -> None:
    """Reject a name that another tenant has: requests may use names instead of ids."""
    for other in await _all(context):
        if other.id != tenant.id and tenant.name in {other.name, other.id}:
            raise AlreadyExists(
                f"tenant name '{tenant.name}' is taken by {other.id}; choose another name"
            )


def _form(context: Context, tenant: Tenant) -> TenantForm:
    state = context.state
    held = state.cluster.holdings.tenants.get(tenant.id) or Amounts()
    used_milli_ms, _ = spent(state, tenant.id, context.service.now_ms())
    return tenant_form(tenant, held, used_milli_ms)


def tenant_form(tenant: Tenant, held: Amounts, used_milli_ms: int) -> TenantForm:
    """Return the JSON form of a tenant with its limits, what it holds, and its GPU time."""
    limits = {name: in_units(getattr(tenant.quota, field), unit) for name, field, unit in LIMITS}
    limits |= {
        name: in_units(getattr(tenant.user_quota, field), unit) for name, field, unit in USER_LIMITS
    }
    return form_of(
        TenantForm,
        tenant,
        **limits,
        priority_tier=tenant.tier.value,
        fair_share_weight=tenant.weight_milli / WEIGHT_ONE_MILLI,
        current_gpus=in_units(held.gpu_milli, 1000),
        current_gpu_memory_mb=held.gpu_memory_mb,
        current_cpu_cores=in_units(held.cpu_milli, 1000),
        current_memory_mb=held.memory_mb,
        current_jobs=held.jobs,
        used_gpu_hours=round(used_milli_ms / GPU_HOUR, 6),
    )


# Limits


@router.operation(
    "GET",
    "/limits",
    response=LimitList,
    query=(
        Parameter(name="tenant_id", description="In this tenant; default: your own."),
        Parameter(name="user", description="Of this user; default: you."),
    ),
    errors=(404,),
)
async def list_limits(context: Context, request: Request) -> Response:
    """Your limits: what is used and what is left; of other users for admins."""
    query = context.parse_query(request, "tenant_id", "user")
    caller = request.caller
    user = query.text("user") or caller.user
    tenant = context.resolve_tenant(
        query.text("tenant_id") or await _tenant_of_user(context, caller, user)
    )
    if not caller.is_admin and tenant not in caller.tenants:
        raise context.unknown_tenant(query.text("tenant_id"))
    if user != caller.user and tenant not in caller.administers:
        expect_admin(caller, "see the limits of others")
    state = context.state
    now_ms = context.service.now_ms()
    own = state.cluster.tenants.get(tenant)
    limits = [
        *_limits(state, (tenant, user), user_quota(state, tenant), now_ms),
        *_limits(state, (tenant, None), Quota() if own is None else own.quota, now_ms),
    ]
    return json_response(LimitList(limits))


async def _tenant_of_user(context: Context, caller: Caller, user: str) -> str:
    """The tenant in which the jobs of a user run."""
    if user == caller.user or not caller.is_admin:
        return caller.tenant
    directory = context.directory
    account = await directory.accounts.wait_for(lambda: directory.accounts.named(user))
    if account is None:
        raise UnknownThing(
            f"user '{user}' has no account on the server's machine, so the tenant is unknown; "
            "name it with tenant_id (--tenant)"
        )
    return (await directory.accounts.wait_for(lambda: directory.caller(account.uid))).tenant


def _limits(
    state: ControlState, owner: tuple[str, str | None], quota: Quota, now_ms: int
) -> Iterator[LimitForm]:
    tenant, user = owner
    account: Account = account_of(tenant, user)
    holdings = state.cluster.holdings
    held = holdings.tenants.get(tenant) if user is None else holdings.users.get((tenant, user))
    held = held or Amounts()
    used, turns_ms = spent(state, account, now_ms)
    for resource, limit, current, unit in (
        ("GPUs", quota.gpu_milli, held.gpu_milli, 1000),
        ("GPU memory MiB", quota.gpu_memory_mb, held.gpu_memory_mb, 1),
        ("CPU cores", quota.cpu_milli, held.cpu_milli, 1000),
        ("memory MiB", quota.memory_mb, held.memory_mb, 1),
        ("running jobs", quota.concurrent_jobs, held.jobs, 1),
        ("waiting jobs", quota.pending_jobs, waiting_of(state, account), 1),
        ("GPU-hours", quota.gpu_milli_ms, used + held.gpu_milli_ms, GPU_HOUR),
    ):
        if limit is None:
            continue
        form = LimitForm(
            tenant_id=tenant,
            user=user,
            resource=resource,
            limit=in_units(limit, unit) or 0,
            used=round(current / unit, 6),
            left=round(max(0, limit - current) / unit, 6),
        )
        if resource == "GPU-hours":
            form.period = period_of(state, tenant).value
            form.turns_at = write_time(turns_ms or None)
        yield form
