"""What tenants and users have used: totals in all and by month, with what runs, up to now.

The store's totals and running attempts in, one row for each account and period out. A report counts
GPU time in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.http.operations import V1, Operation, Parameter
from gpu_scheduler.api.http.request import Request, Response, json_response
from gpu_scheduler.api.routes.reports import running_runs
from gpu_scheduler.control.jobs.submit import period_of, spent, user_quota, waiting_of
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.engine.quota.rules import Amounts
from gpu_scheduler.ledger.decayed_usage import Account, account_of
from gpu_scheduler.ledger.units import Period
from gpu_scheduler.ledger.usage import TotalRow, Totals, UsageTotals
from gpu_scheduler.model.measurements import UJ_PER_WH
from gpu_scheduler.model.tenant import Quota
from gpu_scheduler.store.contract import Store
from gpu_scheduler.wire.answers import UsageForm, UsageList
from gpu_scheduler.wire.tenants import GPU_HOUR, LimitForm, LimitList, per
from gpu_scheduler.wire.times import write_time

GIB_HOUR = 1024 * 3_600_000


async def usage(context: Context, request: Request) -> Response:
    """What tenants and users have used; who is not an admin sees only their own part."""
    query = context.parse_query(request, "tenant_id", "user", "period")
    tenant = query.text("tenant_id")
    tenant_id = context.resolve_tenant(tenant) if tenant else ""
    user = context.user_filter(request, query)
    period = query.text("period", "all")
    now_ms = context.service.now_ms()
    kept = context.service.core.state.usage_totals.period
    if period == "current":
        period = kept.name_of(now_ms)
    forms = []
    for row in await asyncio.to_thread(_rows, context.service.store, kept, now_ms):
        period_ms, owner, person, _ = row
        name = "all" if period_ms is None else kept.name_of(period_ms)
        if not request.caller.may_see(person or "", owner):
            continue
        if (tenant_id and owner != tenant_id) or (user and person != user):
            continue
        if name.startswith(period):
            forms.append(_form(row, name))
    return json_response(UsageList(forms))


def _rows(store: Store, kept: Period, now_ms: int) -> list[TotalRow]:
    """All totals. What ends between the two readings is missing once, and never counted twice."""
    totals = [(row.period_ms, row.tenant, row.user, row.totals) for row in store.usage()]
    accounts = UsageTotals.from_rows(totals, (), period=kept)
    for run in running_runs(store, lambda _: True, store.allocations(), now_ms):
        accounts.count_running(run.interval)
    return accounts.to_rows()[0]


def _form(row: TotalRow, period: str) -> UsageForm:
    totals = Totals(*row[3])
    return UsageForm(
        tenant_id=row[1],
        user=row[2],
        period=period,
        gpu_hours=round(totals.gpu_milli_ms / GPU_HOUR, 6),
        gpu_memory_gb_hours=round(totals.gpu_memory_mb_ms / GIB_HOUR, 6),
        cpu_hours=round(totals.cpu_milli_ms / GPU_HOUR, 6),
        memory_gb_hours=round(totals.memory_mb_ms / GIB_HOUR, 6),
        completed=totals.completed,
        failed=totals.failed,
        cancelled=totals.cancelled,
        preemptions=totals.preemptions,
        lost_gpu_hours=round(totals.lost_gpu_milli_ms / GPU_HOUR, 6),
        energy_kwh=round(totals.energy_uj / UJ_PER_WH / 1000, 6),
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/usage",
        handler=usage,
        name="usage",
        summary="What tenants and users have used; what runs counts up to now.",
        tag="cluster",
        response=UsageList,
        query=(
            Parameter(name="tenant_id", description="Only of this tenant."),
            Parameter(name="user", description="Only of this user."),
            Parameter(
                name="period", description="all (the default), current, or a period as in 2026-11."
            ),
        ),
        errors=(404,),
    ),
)


# --- What a user may have, what of it is used and what is left.


async def list_limits(context: Context, request: Request) -> Response:
    """The limits of the caller, or for admins of anybody."""
    query = context.parse_query(request, "tenant_id", "user")
    caller = request.caller
    user = query.text("user") or caller.user
    tenant = context.resolve_tenant(query.text("tenant_id") or caller.tenant)
    if not caller.is_admin and tenant not in caller.tenants:
        raise context.unknown_tenant(query.text("tenant_id"))
    if user != caller.user and tenant not in caller.administers:
        expect_admin(caller, "see the limits of others")
    state = context.service.core.state
    now_ms = context.service.now_ms()
    own = state.cluster.tenants.get(tenant)
    found = [
        *_limits(state, (tenant, user), user_quota(state, tenant), now_ms),
        *_limits(state, (tenant, None), Quota() if own is None else own.quota, now_ms),
    ]
    return json_response(LimitList(found))


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
            limit=per(limit, unit) or 0,
            used=round(current / unit, 6),
            left=round(max(0, limit - current) / unit, 6),
        )
        if resource == "GPU-hours":
            form.period = period_of(state, tenant).value
            form.turns_at = write_time(turns_ms or None)
        yield form


LIMITS_OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/limits",
        handler=list_limits,
        name="list_limits",
        summary="What you may have, what of it is used and what is left; of others for admins.",
        tag="tenants",
        response=LimitList,
        query=(
            Parameter(name="tenant_id", description="In this tenant; default: your own."),
            Parameter(name="user", description="Of this user; default: you."),
        ),
        errors=(404,),
    ),
)
