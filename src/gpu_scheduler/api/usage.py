"""What tenants and users have used: totals in all and by month, with what runs, up to now.

The store's totals and running attempts in, one row for each account and period out. A report counts
GPU time in the same way.
"""

from __future__ import annotations

import asyncio

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.operations import V1, Operation, Parameter
from gpu_scheduler.api.reports import running_runs
from gpu_scheduler.ledger.accounts import Accounts, TotalRow, Totals
from gpu_scheduler.ledger.periods import Period
from gpu_scheduler.model.measures import UJ_PER_WH
from gpu_scheduler.store.contract import Store
from gpu_scheduler.wire.answers import UsageForm, UsageList
from gpu_scheduler.wire.tenants import GPU_HOUR

GIB_HOUR = 1024 * 3_600_000


async def usage(context: Context, call: Call) -> Answer:
    """What tenants and users have used; who is not an admin sees only their own part."""
    query = context.query(call, "tenant_id", "user", "period")
    tenant = query.text("tenant_id")
    tenant_id = context.tenant_of(tenant) if tenant else ""
    user = context.user_named(call, query)
    period = query.text("period", "all")
    now_ms = context.service.now_ms()
    kept = context.service.core.book.accounts.period
    if period == "current":
        period = kept.name_of(now_ms)
    forms = []
    for row in await asyncio.to_thread(_rows, context.service.store, kept, now_ms):
        period_ms, owner, person, _ = row
        name = "all" if period_ms is None else kept.name_of(period_ms)
        if not call.caller.may_see(person or "", owner):
            continue
        if (tenant_id and owner != tenant_id) or (user and person != user):
            continue
        if name.startswith(period):
            forms.append(_form(row, name))
    return answer(UsageList(forms))


def _rows(store: Store, kept: Period, now_ms: int) -> list[TotalRow]:
    """All totals. What ends between the two readings is missing once, and never counted twice."""
    totals = [(row.period_ms, row.tenant, row.user, row.totals) for row in store.usage()]
    accounts = Accounts.from_rows(totals, (), period=kept)
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
        answer=UsageList,
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
