"""Reports and invoices over a period, made in a thread from what the store has.

A caller sees what is its own; the admin of a tenant all of that tenant, an admin everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.exchange import Answer, Call, answer
from gpu_scheduler.api.operations import V1, Operation, Parameter, a_number
from gpu_scheduler.api.report_forms import Devices, invoice_form, report_form
from gpu_scheduler.ledger.interval import UsageInterval
from gpu_scheduler.ledger.report import Report, Run, report
from gpu_scheduler.model.allocation import Allocation, Placement
from gpu_scheduler.model.caller import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.measures import Measure
from gpu_scheduler.model.states import JobState
from gpu_scheduler.store.contract import Store
from gpu_scheduler.store.questions import JobQuery
from gpu_scheduler.store.rows import AttemptRow, JobRow, TaskRow
from gpu_scheduler.wire.periods import FORMS, Span, read_span, read_zone
from gpu_scheduler.wire.reports import Invoice, ReportForm

PAGE = 1000
BELOW_PERCENT = 20
LEAST_MEASURED_MS = 600_000
UNKNOWN_MODEL = "unknown"
_JOB = "job-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which period, of whom, and for whom."""

    span: Span
    now_ms: int
    tenant_id: str
    user: str
    caller: Caller
    below_percent: int = BELOW_PERCENT

    def shows(self, job: Job) -> bool:
        """Tell whether a job belongs into the report."""
        if self.tenant_id and job.tenant != self.tenant_id:
            return False
        if self.user and job.user != self.user:
            return False
        return self.caller.may_see(job.user, job.tenant)

    def is_idler(self, run: Run) -> bool:
        """Tell whether a run held GPUs for a while and used little of them."""
        mean = run.mean_percent
        is_known = mean is not None and run.measured_ms >= LEAST_MEASURED_MS
        return is_known and mean is not None and mean < self.below_percent


async def get_report(context: Context, call: Call) -> Answer:
    """What happened in a period."""
    asked, zone = _asked(context, call, "below_percent")
    found, devices = await asyncio.to_thread(_reported, context, asked)
    prices = context.settings.prices
    return answer(report_form(found, asked.span, zone, asked.now_ms, prices, devices))


async def get_invoice(context: Context, call: Call) -> Answer:
    """What it costs."""
    asked, _ = _asked(context, call)
    found, _ = await asyncio.to_thread(_reported, context, asked)
    return answer(invoice_form(found, asked.span, asked.now_ms, context.settings.prices))


def _asked(context: Context, call: Call, *further: str) -> tuple[Asked, str]:
    query = context.query(call, "period", "tenant_id", "user", "time_zone", *further)
    zone = query.text("time_zone", "UTC")
    now_ms = context.service.now_ms()
    tenant = query.text("tenant_id")
    below = query.number("below_percent", BELOW_PERCENT, most=100) if further else BELOW_PERCENT
    asked = Asked(
        span=read_span(query.text("period", "month"), now_ms, read_zone(zone)),
        now_ms=now_ms,
        tenant_id=context.tenant_of(tenant) if tenant else "",
        user=query.text("user"),
        caller=call.caller,
        below_percent=below,
    )
    return asked, zone


def _reported(context: Context, asked: Asked) -> tuple[Report, Devices]:
    store = context.service.store
    found = report(
        _runs(store, asked),
        asked.span.edges,
        prices_change=context.settings.prices.moments,
        is_idler=asked.is_idler,
    )
    hours = store.device_hours(asked.span.from_ms, asked.span.before_ms)
    return found, Devices(store.nodes(), hours)


def _runs(store: Store, asked: Asked) -> Iterator[Run]:
    """All runs that touch the period, page by page; those that still run, up to now."""
    models = _models(store)
    span = asked.span
    after = (0, "")
    seen: set[str] = set()
    # What runs is read first: what ends meanwhile is then found again among the ends.
    held = [one for one in store.allocations() if one.start_ms < min(span.before_ms, asked.now_ms)]
    while page := store.attempts_between(span.from_ms, span.before_ms, after=after, limit=PAGE):
        after = (page[-1].end_ms, page[-1].allocation_id)
        seen.update(row.allocation_id for row in page)
        yield from _page(store, asked.shows, page, models)
    running = [one for one in held if one.id not in seen]
    yield from running_runs(store, asked.shows, running, asked.now_ms)


def running_runs(
    store: Store, shows: Callable[[Job], bool], held: list[Allocation], now_ms: int
) -> Iterator[Run]:
    """What runs, up to now."""
    models = _models(store)
    running = [_as_attempt(one, now_ms) for one in held]
    for start in range(0, len(running), PAGE):
        for run in _page(store, shows, running[start : start + PAGE], models):
            yield replace(run, interval=replace(run.interval, outcome=None))


def _page(
    store: Store,
    shows: Callable[[Job], bool],
    page: list[AttemptRow],
    models: dict[tuple[str, int], str],
) -> Iterator[Run]:
    jobs = _jobs(store, {row.job_id for row in page})
    shown = [row for row in page if row.job_id in jobs and shows(jobs[row.job_id].job)]
    measures = store.measures_of([row.allocation_id for row in shown])
    tasks = _tasks(store, shown)
    for row in shown:
        job = jobs[row.job_id]
        measure = measures.get(row.allocation_id, Measure())
        life = job if row.task is None else tasks.get((row.job_id, row.task))
        # Only of one that has run once is it known how long it had waited before that.
        first = life is not None and row.attempt == 1 and life.attempt == 1
        yield Run(
            interval=_interval(row, job.job, measure, models),
            name=job.job.name,
            waited_ms=life.waited_ms if life is not None and first else _since(row, job),
            devices=_shares(row.placements),
            measured_ms=measure.gpu_ms,
            busy_percent_ms=measure.busy_percent_ms,
            peak_percent=measure.peak_percent,
        )


def _since(row: AttemptRow, job: JobRow) -> int | None:
    """Of a job that ran again: from its submission to its first start, as far as that is known."""
    return max(0, row.start_ms - job.job.submit_ms) if row.attempt == 1 else None


def _interval(
    row: AttemptRow, job: Job, measure: Measure, models: dict[tuple[str, int], str]
) -> UsageInterval:
    held = row.gpu_models or _held_models(row.placements, models)
    return UsageInterval(
        allocation_id=row.allocation_id,
        job_id=row.job_id,
        task=row.task,
        tenant=job.tenant,
        user=job.user,
        attempt=row.attempt,
        start_ms=row.start_ms,
        end_ms=max(row.start_ms, row.end_ms),
        gpu_milli=sum(milli for _, milli in held),
        gpu_memory_mb=sum(placement.gpu_memory_mb for placement in row.placements),
        cpu_milli=sum(placement.cpu_milli for placement in row.placements),
        memory_mb=sum(placement.memory_mb for placement in row.placements),
        gpu_models=held,
        outcome=row.state if row.state is not JobState.RUNNING else None,
        energy_uj=measure.energy_uj,
    )


def _as_attempt(allocation: Allocation, now_ms: int) -> AttemptRow:
    return AttemptRow(
        allocation_id=allocation.id,
        job_id=allocation.job_id,
        task=allocation.task,
        attempt=allocation.attempt,
        placements=allocation.placements,
        start_ms=allocation.start_ms,
        end_ms=max(now_ms, allocation.start_ms),
        state=JobState.RUNNING,
    )


def _jobs(store: Store, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """The rows of these jobs, archived or not, few reads for many."""
    numbers = IntervalSet.of(
        int(job_id.removeprefix(_JOB))
        for job_id in job_ids
        if job_id.startswith(_JOB) and job_id.removeprefix(_JOB).isdecimal()
    )
    query = JobQuery(numbers=numbers, archived=True, limit=2 * PAGE)
    found = {row.job.id: row for row in store.find_jobs(query)} if numbers else {}
    for job_id in job_ids:
        if job_id not in found and (row := store.job(job_id)) is not None:
            found[job_id] = row
    return found


def _tasks(store: Store, rows: list[AttemptRow]) -> dict[tuple[str, int], TaskRow]:
    wanted: dict[str, list[int]] = {}
    for row in rows:
        if row.task is not None:
            wanted.setdefault(row.job_id, []).append(row.task)
    return {
        (job_id, task.task): task
        for job_id, numbers in wanted.items()
        for task in store.tasks(job_id, only=IntervalSet.of(numbers))
    }


def _models(store: Store) -> dict[tuple[str, int], str]:
    return {
        (node.id, device.index): device.model for node in store.nodes() for device in node.devices
    }


def _held_models(
    placements: tuple[Placement, ...], models: dict[tuple[str, int], str]
) -> tuple[tuple[str, int], ...]:
    """For what runs now, and for rows that were written before models were."""
    held: dict[str, int] = {}
    for node_id, index, share_milli in _shares(placements):
        model = models.get((node_id, index)) or UNKNOWN_MODEL
        held[model] = held.get(model, 0) + share_milli
    return tuple(sorted(held.items()))


def _shares(placements: tuple[Placement, ...]) -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (placement.node_id, share.index, share.share_milli)
        for placement in placements
        for share in placement.devices
    )


_QUERY = (
    Parameter(name="period", description=f"The period, default month: {FORMS}."),
    Parameter(name="tenant_id", description="Only of this tenant."),
    Parameter(name="user", description="Only of this user."),
    Parameter(name="time_zone", description="Where days begin, as Europe/Berlin; default UTC."),
)
OPERATIONS = (
    Operation(
        method="GET",
        path=f"{V1}/report",
        handler=get_report,
        name="report",
        summary="Use, waits, run times, ends, cost and utilisation over a period.",
        tag="reports",
        answer=ReportForm,
        query=(
            *_QUERY,
            a_number("below_percent", "Runs busier than this are not low.", most=100),
        ),
        errors=(404,),
    ),
    Operation(
        method="GET",
        path=f"{V1}/invoice",
        handler=get_invoice,
        name="invoice",
        summary="What a period costs, by tenant, user and item.",
        tag="reports",
        answer=Invoice,
        query=_QUERY,
        errors=(404,),
    ),
)
