"""What a user may have, what of it is used and what is left."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_scheduler.api.context import Context, expect_admin
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.operations import V1, Operation, Parameter
from gpu_scheduler.control.book import Book
from gpu_scheduler.control.limits import period_of, spent, user_quota, waiting_of
from gpu_scheduler.engine.admit import Amounts
from gpu_scheduler.ledger.shares import Account, account_of
from gpu_scheduler.model.tenant import Quota
from gpu_scheduler.wire.tenants import GPU_HOUR, LimitForm, LimitList, per
from gpu_scheduler.wire.times import write_time


async def list_limits(context: Context, call: Call) -> Answer:
    """The limits of the caller, or for admins of anybody."""
    query = context.query(call, "tenant_id", "user")
    caller = call.caller
    user = query.text("user") or caller.user
    tenant = context.tenant_of(query.text("tenant_id") or caller.tenant)
    if not caller.is_admin and tenant not in caller.tenants:
        raise context.no_tenant(query.text("tenant_id"))
    if user != caller.user and tenant not in caller.administers:
        expect_admin(caller, "see the limits of others")
    book = context.service.core.book
    now_ms = context.service.now_ms()
    own = book.picture.tenants.get(tenant)
    found = [
        *_limits(book, (tenant, user), user_quota(book, tenant), now_ms),
        *_limits(book, (tenant, None), Quota() if own is None else own.quota, now_ms),
    ]
    return answer(LimitList(found))


def _limits(
    book: Book, owner: tuple[str, str | None], quota: Quota, now_ms: int
) -> Iterator[LimitForm]:
    tenant, user = owner
    account: Account = account_of(tenant, user)
    holdings = book.picture.holdings
    held = holdings.tenants.get(tenant) if user is None else holdings.users.get((tenant, user))
    held = held or Amounts()
    used, turns_ms = spent(book, account, now_ms)
    for resource, limit, current, unit in (
        ("GPUs", quota.gpu_milli, held.gpu_milli, 1000),
        ("GPU memory MiB", quota.gpu_memory_mb, held.gpu_memory_mb, 1),
        ("CPU cores", quota.cpu_milli, held.cpu_milli, 1000),
        ("memory MiB", quota.memory_mb, held.memory_mb, 1),
        ("running jobs", quota.concurrent_jobs, held.jobs, 1),
        ("waiting jobs", quota.pending_jobs, waiting_of(book, account), 1),
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
            form.period = period_of(book, tenant).value
            form.turns_at = write_time(turns_ms or None)
        yield form


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/limits",
        handler=list_limits,
        name="list_limits",
        summary="What you may have, what of it is used and what is left; of others for admins.",
        tag="tenants",
        answer=LimitList,
        query=(
            Parameter(name="tenant_id", description="In this tenant; default: your own."),
            Parameter(name="user", description="Of this user; default: you."),
        ),
        errors=(404,),
    ),
)
