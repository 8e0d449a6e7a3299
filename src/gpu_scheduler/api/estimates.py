"""How well expected starts were kept."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.operations import V1, Operation, a_number
from gpu_scheduler.ledger.estimates import Judgement, judge
from gpu_scheduler.wire.times import write_time

DAY_MS = 86_400_000
DEFAULT_DAYS = 30


class JudgementForm(Struct):
    """Promises of one basis: `all`, reserved, forecast, rough or known.

    A promise is kept if the job starts within 10 % of the promised wait or within 10 minutes.
    """

    basis: str
    judged: int
    kept: int
    kept_percent: float | None
    late: int
    early: int
    median_error_seconds: float
    p90_error_seconds: float


class EstimatesForm(Struct):
    """Promises to jobs that started since then, and how many are still to be judged."""

    since: str | None
    open: int
    estimates: list[JudgementForm]


async def get_estimates(context: Context, call: Call) -> Answer:
    """Judge the promises of the last days."""
    query = context.query(call, "days")
    days = query.number("days", DEFAULT_DAYS, least=1, most=3650)
    since_ms = max(0, context.service.now_ms() - days * DAY_MS)
    store = context.service.store
    rows = await asyncio.to_thread(store.estimates, started_since_ms=since_ms)
    found = judge(
        (row.basis, row.made_ms, row.promised_ms, row.start_ms)
        for row in rows
        if row.start_ms is not None
    )
    waiting = len(context.service.core.book.estimates)
    forms = [_form(one) for one in found]
    return answer(EstimatesForm(write_time(since_ms), waiting, forms))


def _form(one: Judgement) -> JudgementForm:
    return JudgementForm(
        basis=one.basis,
        judged=one.judged,
        kept=one.kept,
        kept_percent=one.kept_percent,
        late=one.late,
        early=one.early,
        median_error_seconds=one.median_error_ms / 1000,
        p90_error_seconds=one.p90_error_ms / 1000,
    )


OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/report/estimates",
        handler=get_estimates,
        name="get_estimates",
        summary="How well expected starts were kept, over the last days.",
        tag="cluster",
        answer=EstimatesForm,
        query=(a_number("days", "How far to look back; default 30.", least=1, most=3650),),
    ),
)
