"""Reports, invoices, usage totals and forecast accuracy, computed in a thread from the store.

A user sees their own jobs, an admin of a tenant all of that tenant, an admin everything. Running
attempts count up to now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Parameter, Router, integer_parameter
from gpu_scheduler.api.http.request import Request, Response, form_of, json_response
from gpu_scheduler.engine.fair_share import deserved_ppm
from gpu_scheduler.ledger.cost import CSV_HEADER, UJ_PER_KWH, Bill, PriceList
from gpu_scheduler.ledger.report import (
    ForecastAccuracy,
    Percentiles,
    Report,
    Run,
    UsageSums,
    forecast_accuracy,
    kept_ranges,
    report,
)
from gpu_scheduler.ledger.units import GPU_HOUR_MILLI_MS, HOUR_MS, Period, decimal_text
from gpu_scheduler.ledger.usage import TotalRow, Totals, UsageInterval, UsageTotals
from gpu_scheduler.model.identity import SYSTEM, Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Job, JobState
from gpu_scheduler.model.measurements import DeviceHour, Measure
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.plan import Allocation, Placement
from gpu_scheduler.model.tenant import WEIGHT_ONE_MILLI
from gpu_scheduler.predict import training
from gpu_scheduler.predict.selection import LEAST_ROWS, Score, SelectedPredictor
from gpu_scheduler.store.interface import JobQuery, Store
from gpu_scheduler.store.rows import AttemptRow, JobRow, TaskRow
from gpu_scheduler.wire.times import FORMS, Span, read_span, read_zone, write_time


class SpreadForm(Struct):
    """The distribution of durations."""

    count: int
    mean_seconds: float
    median_seconds: float
    p90_seconds: float
    max_seconds: float


class SumsForm(Struct):
    """Usage and results of jobs. Energy and utilisation are null without measurements."""

    gpu_hours: float
    gpu_memory_gb_hours: float
    cpu_hours: float
    memory_gb_hours: float
    energy_kwh: float
    mean_utilisation_percent: float | None
    started: int
    completed: int
    failed: int
    cancelled: int
    preempted: int
    cost: float


class AccountForm(Struct):
    """One tenant, or one user of it."""

    tenant_id: str
    user: str | None
    sums: SumsForm
    waits: SpreadForm
    run_times: SpreadForm


class SliceForm(Struct):
    """One hour or day of the period."""

    start: str
    gpu_hours: float
    energy_kwh: float
    started: int
    completed: int
    failed: int
    preempted: int


class DeviceForm(Struct):
    """One GPU: how much of the time it was allocated, and its utilisation."""

    node: str
    index: int
    model: str
    allocated_percent: float
    gpu_hours: float
    mean_utilisation_percent: float | None
    peak_utilisation_percent: int | None
    energy_kwh: float | None
    peak_temperature_c: int | None


class IdlerForm(Struct):
    """An attempt that used little of its GPUs."""

    job_id: str
    task: int | None
    name: str
    user: str
    tenant_id: str
    gpu_hours: float
    mean_utilisation_percent: float
    peak_utilisation_percent: int


class ReportForm(Struct):
    """The report of a period, as far as the caller may see it."""

    period: str
    start: str
    end: str
    time_zone: str
    until: str
    currency: str
    total: SumsForm
    waits: SpreadForm
    run_times: SpreadForm
    tenants: list[AccountForm]
    users: list[AccountForm]
    gpus: list[DeviceForm]
    slices: list[SliceForm]
    low_utilisation: list[IdlerForm]


class InvoiceLine(Struct):
    """One item of one user."""

    tenant: str
    user: str
    item: str
    model: str
    amount: str
    unit: str
    price: str
    cost: str
    currency: str


class Invoice(Struct):
    """The cost of a period. Amounts of money are strings, so that no digit is lost."""

    period: str
    start: str
    end: str
    until: str
    is_final: bool
    currency: str
    lines: list[InvoiceLine]
    tenants: dict[str, str]
    total: str


class UsageForm(Struct):
    """The usage of an account. Without a user: all users of the tenant together."""

    tenant_id: str
    user: str | None
    period: str
    gpu_hours: float
    gpu_memory_gb_hours: float
    cpu_hours: float
    memory_gb_hours: float
    completed: int
    failed: int
    cancelled: int
    preemptions: int
    lost_gpu_hours: float
    energy_kwh: float = 0


class UsageList(Struct):
    """Accounts by tenant, user and period."""

    usage: list[UsageForm]


GB_HOUR_MB_MS = 1024 * HOUR_MS
_MICRO = 10**6


class Devices:
    """The GPUs of the cluster, and their measurements in the period."""

    def __init__(self, nodes: Iterable[Node], hours: Iterable[DeviceHour]) -> None:
        """Group the hourly measurements by device."""
        self.models = _models(nodes)
        self.hours: dict[tuple[str, int], list[DeviceHour]] = {}
        for hour in hours:
            self.hours.setdefault((hour.node_id, hour.index), []).append(hour)


def report_form(
    report: Report, span: Span, zone: str, now_ms: int, prices: PriceList, devices: Devices
) -> ReportForm:
    """Render the whole report."""
    costs = _costs(report.bill(prices))
    until_ms = min(max(now_ms, span.from_ms), span.before_ms)
    return ReportForm(
        period=span.name,
        start=write_time(span.from_ms) or "",
        end=write_time(span.before_ms) or "",
        time_zone=zone,
        until=write_time(until_ms) or "",
        currency=prices.first.currency,
        total=_sums(report.total, sum(costs.values())),
        waits=_spread(report.all_waits_ms()),
        run_times=_spread(report.all_run_times_ms()),
        tenants=[_tenant(report, tenant, costs) for tenant in sorted(report.tenants)],
        users=[
            AccountForm(
                tenant_id=account[0],
                user=account[1],
                sums=_sums(report.users[account], costs.get(account, 0)),
                waits=_spread(report.waits_ms.get(account, ())),
                run_times=_spread(report.run_times_ms.get(account, ())),
            )
            for account in sorted(report.users)
        ],
        gpus=[
            _device(place, report, devices, until_ms - span.from_ms)
            for place in sorted({*devices.models, *report.devices})
        ],
        slices=[
            _slice(start_ms, sums)
            for start_ms, sums in zip(report.edges, report.slices, strict=False)
            if start_ms < until_ms
        ],
        low_utilisation=[_idler(run) for run in report.idlers],
    )


def invoice_form(report: Report, span: Span, now_ms: int, prices: PriceList) -> Invoice:
    """Render the invoice. It is final once the period is over."""
    bill = report.bill(prices)
    rows = list(bill.csv_rows())[1:]
    return Invoice(
        period=span.name,
        start=write_time(span.from_ms) or "",
        end=write_time(span.before_ms) or "",
        until=write_time(min(now_ms, span.before_ms)) or "",
        is_final=now_ms >= span.before_ms,
        currency=bill.currency,
        lines=[InvoiceLine(**dict(zip(CSV_HEADER, row, strict=True))) for row in rows],
        tenants={name: decimal_text(micro, 6) for name, micro in bill.tenant_totals()},
        total=decimal_text(bill.total_micro, 6),
    )


def _costs(bill: Bill) -> dict[tuple[str, str], int]:
    costs: dict[tuple[str, str], int] = {}
    for line in bill.lines:
        account = (line.tenant, line.user)
        costs[account] = costs.get(account, 0) + line.cost_micro
    return costs


def _tenant(report: Report, tenant: str, costs: dict[tuple[str, str], int]) -> AccountForm:
    def of_tenant(lists: dict[tuple[str, str], list[int]]) -> list[int]:
        mine = (values for account, values in lists.items() if account[0] == tenant)
        return [value for values in mine for value in values]

    cost = sum(micro for account, micro in costs.items() if account[0] == tenant)
    return AccountForm(
        tenant_id=tenant,
        user=None,
        sums=_sums(report.tenants[tenant], cost),
        waits=_spread(of_tenant(report.waits_ms)),
        run_times=_spread(of_tenant(report.run_times_ms)),
    )


def _sums(sums: UsageSums, cost_micro: int) -> SumsForm:
    mean = sums.busy_percent_ms / sums.measured_ms if sums.measured_ms else None
    return form_of(
        SumsForm,
        sums,
        **_amounts(sums),
        mean_utilisation_percent=None if mean is None else round(mean, 1),
        cost=cost_micro / _MICRO,
    )


def _amounts(sums: UsageSums | Totals) -> dict[str, float]:
    """Return what was used, in hours and kWh."""
    return {
        "gpu_hours": round(sums.gpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        "gpu_memory_gb_hours": round(sums.gpu_memory_mb_ms / GB_HOUR_MB_MS, 6),
        "cpu_hours": round(sums.cpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        "memory_gb_hours": round(sums.memory_mb_ms / GB_HOUR_MB_MS, 6),
        "energy_kwh": round(sums.energy_uj / UJ_PER_KWH, 6),
    }


def _spread(values: Iterable[int]) -> SpreadForm:
    spread = Percentiles.of(values)
    return SpreadForm(
        count=spread.count,
        mean_seconds=round(spread.mean_ms / 1000, 3),
        median_seconds=spread.median_ms / 1000,
        p90_seconds=spread.p90_ms / 1000,
        max_seconds=spread.max_ms / 1000,
    )


def _slice(start_ms: int, sums: UsageSums) -> SliceForm:
    return form_of(
        SliceForm,
        sums,
        start=write_time(start_ms) or "",
        gpu_hours=round(sums.gpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        energy_kwh=round(sums.energy_uj / UJ_PER_KWH, 6),
    )


def _device(place: tuple[str, int], report: Report, devices: Devices, span_ms: int) -> DeviceForm:
    hours: Sequence[DeviceHour] = devices.hours.get(place, ())
    measured_ms = sum(hour.gpu_ms for hour in hours)
    busy = sum(hour.busy_percent_ms for hour in hours)
    has_power = any(hour.power_ms for hour in hours)
    held = report.devices.get(place, 0)
    return DeviceForm(
        node=place[0],
        index=place[1],
        model=devices.models.get(place, ""),
        allocated_percent=round(held / 10 / span_ms, 2) if span_ms else 0.0,
        gpu_hours=round(held / GPU_HOUR_MILLI_MS, 6),
        mean_utilisation_percent=round(busy / measured_ms, 1) if measured_ms else None,
        peak_utilisation_percent=max(hour.peak_percent for hour in hours) if measured_ms else None,
        energy_kwh=round(sum(hour.energy_uj for hour in hours) / UJ_PER_KWH, 6)
        if has_power
        else None,
        # A temperature of 0 means that the device has no sensor.
        peak_temperature_c=max((hour.peak_temperature_c for hour in hours), default=0) or None,
    )


def _idler(run: Run) -> IdlerForm:
    interval = run.interval
    return form_of(
        IdlerForm,
        interval,
        name=run.name,
        tenant_id=interval.tenant,
        gpu_hours=round(interval.gpu_milli_ms / GPU_HOUR_MILLI_MS, 3),
        mean_utilisation_percent=round(run.mean_percent or 0.0, 1),
        peak_utilisation_percent=run.peak_percent,
    )


# Computing reports

PAGE = 1000
BELOW_PERCENT = 20
LEAST_MEASURED_MS = 600_000
UNKNOWN_MODEL = "unknown"
_JOB = "job-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportQuery:
    """The period and filters of a report, and its caller."""

    span: Span
    now_ms: int
    tenant_id: str
    user: str
    caller: Caller
    below_percent: int = BELOW_PERCENT

    def shows(self, job: Job) -> bool:
        """Whether a job belongs to the report."""
        if self.tenant_id and job.tenant != self.tenant_id:
            return False
        if self.user and job.user != self.user:
            return False
        return self.caller.may_see(job.user, job.tenant)

    def is_idler(self, run: Run) -> bool:
        """Whether a run held GPUs for a while and used little of them."""
        mean = run.mean_percent
        is_known = mean is not None and run.measured_ms >= LEAST_MEASURED_MS
        return is_known and mean is not None and mean < self.below_percent


_QUERY = (
    Parameter(name="period", description=f"The period, default month: {FORMS}."),
    Parameter(name="tenant_id", description="Only of this tenant."),
    Parameter(name="user", description="Only of this user."),
    Parameter(name="time_zone", description="Time zone of days, as Europe/Berlin; default UTC."),
)
router = Router("reports")


@router.operation(
    "GET",
    "/report",
    name="report",
    response=ReportForm,
    query=(
        *_QUERY,
        integer_parameter("below_percent", "List runs with a lower mean utilisation.", most=100),
    ),
    errors=(404,),
)
async def get_report(context: Context, request: Request) -> Response:
    """Usage, waits, run times, outcomes, cost and utilisation of a period."""
    query, zone = _parse_query(context, request, "below_percent")
    found, devices = await asyncio.to_thread(_compute, context, query)
    prices = context.settings.prices
    return json_response(report_form(found, query.span, zone, query.now_ms, prices, devices))


@router.operation("GET", "/invoice", name="invoice", response=Invoice, query=_QUERY, errors=(404,))
async def get_invoice(context: Context, request: Request) -> Response:
    """The cost of a period, by tenant, user and item."""
    query, _ = _parse_query(context, request)
    found, _ = await asyncio.to_thread(_compute, context, query)
    return json_response(invoice_form(found, query.span, query.now_ms, context.settings.prices))


def _parse_query(context: Context, request: Request, *further: str) -> tuple[ReportQuery, str]:
    parameters = context.parse_query(request, "period", "tenant_id", "user", "time_zone", *further)
    zone = parameters.text("time_zone", "UTC")
    now_ms = context.service.now_ms()
    tenant = parameters.text("tenant_id")
    below = (
        parameters.number("below_percent", BELOW_PERCENT, most=100) if further else BELOW_PERCENT
    )
    query = ReportQuery(
        span=read_span(parameters.text("period", "month"), now_ms, read_zone(zone)),
        now_ms=now_ms,
        tenant_id=context.resolve_tenant(tenant) if tenant else "",
        user=parameters.text("user"),
        caller=request.caller,
        below_percent=below,
    )
    return query, zone


def _compute(context: Context, query: ReportQuery) -> tuple[Report, Devices]:
    store = context.service.store
    found = report(
        _runs(store, query),
        query.span.edges,
        prices_change=context.settings.prices.moments,
        is_idler=query.is_idler,
    )
    hours = store.device_hours(query.span.from_ms, query.span.before_ms)
    return found, Devices(store.nodes(), hours)


def _runs(store: Store, query: ReportQuery) -> Iterator[Run]:
    """Yield all runs that overlap the period, page by page; running ones up to now."""
    models = _models(store.nodes())
    span = query.span
    after = (0, "")
    seen: set[str] = set()
    # Read running attempts first: those that end meanwhile are found among the ended ones.
    held = [one for one in store.allocations() if one.start_ms < min(span.before_ms, query.now_ms)]
    while page := store.attempts_between(span.from_ms, span.before_ms, after=after, limit=PAGE):
        after = (page[-1].end_ms, page[-1].allocation_id)
        seen.update(row.allocation_id for row in page)
        yield from _page(store, query.shows, page, models)
    running = [one for one in held if one.id not in seen]
    yield from running_runs(store, query.shows, running, query.now_ms)


def running_runs(
    store: Store, shows: Callable[[Job], bool], held: list[Allocation], now_ms: int
) -> Iterator[Run]:
    """Yield the running attempts, up to now."""
    models = _models(store.nodes())
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
    jobs = job_rows(store, {row.job_id for row in page})
    shown = [row for row in page if row.job_id in jobs and shows(jobs[row.job_id].job)]
    measures = store.measures_by_allocation([row.allocation_id for row in shown])
    tasks = _tasks(store, shown)
    for row in shown:
        job = jobs[row.job_id]
        measure = measures.get(row.allocation_id, Measure())
        life = job if row.task is None else tasks.get((row.job_id, row.task))
        # The wait before the first start is known only for jobs that have run once.
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
    """Return the wait of a job that ran again: from submission to its first start, if known."""
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


def job_rows(store: Store, job_ids: Iterable[str]) -> dict[str, JobRow]:
    """Read the rows of these jobs, archived or not, in few queries."""
    numbers = IntervalSet.of(
        int(job_id.removeprefix(_JOB))
        for job_id in job_ids
        if job_id.startswith(_JOB) and job_id.removeprefix(_JOB).isdecimal()
    )
    query = JobQuery(numbers=numbers, archived=True, limit=2 * PAGE)
    rows = {row.job.id: row for row in store.find_jobs(query)} if numbers else {}
    for job_id in job_ids:
        if job_id not in rows and (row := store.job(job_id)) is not None:
            rows[job_id] = row
    return rows


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


def _models(nodes: Iterable[Node]) -> dict[tuple[str, int], str]:
    return {(node.id, device.index): device.model for node in nodes for device in node.devices}


def _held_models(
    placements: tuple[Placement, ...], models: dict[tuple[str, int], str]
) -> tuple[tuple[str, int], ...]:
    """Return the GPU models of running attempts, and of rows of older versions."""
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


# Fair share over time


class SharedSlice(Struct):
    """GPU-hours of one slice by tenant: used, and deserved by weight."""

    start: str
    used: dict[str, float]
    deserved: dict[str, float]


class SharerForm(Struct):
    """A tenant: its part of what all tenants used, by weight, and what it has used."""

    tenant_id: str
    weight: float
    deserved_percent: float
    deserved_gpu_hours: float
    used_gpu_hours: float


class FairShareForm(Struct):
    """Fair share of a period. Only tenants that used GPUs then, or wait for some now, take part."""

    period: str
    start: str
    end: str
    until: str
    tenants: list[SharerForm]
    slices: list[SharedSlice]


_PPM = 1_000_000


@router.operation(
    "GET",
    "/report/fair-share",
    tag="cluster",
    response=FairShareForm,
    query=(_QUERY[0], _QUERY[3]),
)
async def get_fair_share(context: Context, request: Request) -> Response:
    """Used and deserved GPU-hours over time, of your tenants; what is deserved depends on all."""
    parameters = context.parse_query(request, "period", "time_zone")
    now_ms, state = context.service.now_ms(), context.state
    zone = read_zone(parameters.text("time_zone", "UTC"))
    span = read_span(parameters.text("period", "month"), now_ms, zone)
    everything = ReportQuery(span=span, now_ms=now_ms, tenant_id="", user="", caller=SYSTEM)
    runs = _runs(context.service.store, everything)
    found = await asyncio.to_thread(report, runs, span.edges)
    waiting = {tenant for tenant, user in state.queued_of if state.queued_of[tenant, user]}
    weights = {tenant.id: tenant.weight_milli for tenant in state.cluster.tenants.values()}
    names = {*found.tenants, *waiting}
    parts = deserved_ppm(state.cluster.quota_nodes, weights, sorted(names))
    caller = request.caller
    shown = [name for name in sorted(names) if caller.is_admin or name in caller.tenants]
    form = FairShareForm(
        period=span.name,
        start=write_time(span.from_ms) or "",
        end=write_time(span.before_ms) or "",
        until=write_time(min(max(now_ms, span.from_ms), span.before_ms)) or "",
        tenants=[
            SharerForm(
                tenant_id=name,
                weight=weights.get(name, WEIGHT_ONE_MILLI) / WEIGHT_ONE_MILLI,
                deserved_percent=round(parts[name] / (_PPM / 100), 2),
                deserved_gpu_hours=_hours(found.total.gpu_milli_ms * parts[name] // _PPM),
                used_gpu_hours=_hours(found.tenants.get(name, UsageSums()).gpu_milli_ms),
            )
            for name in shown
        ],
        slices=[
            SharedSlice(
                start=write_time(start_ms) or "",
                used={name: _hours(used.get(name, 0)) for name in shown},
                deserved={name: _hours(sum(used.values()) * parts[name] // _PPM) for name in shown},
            )
            for start_ms, used in zip(span.edges, found.tenant_slices, strict=False)
            if start_ms < now_ms
        ],
    )
    return json_response(form)


def _hours(gpu_milli_ms: int) -> float:
    return round(gpu_milli_ms / GPU_HOUR_MILLI_MS, 6)


# Usage totals


@router.operation(
    "GET",
    "/usage",
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
)
async def usage(context: Context, request: Request) -> Response:
    """What tenants and users have used; running jobs count up to now."""
    query = context.parse_query(request, "tenant_id", "user", "period")
    tenant = query.text("tenant_id")
    tenant_id = context.resolve_tenant(tenant) if tenant else ""
    user = context.user_filter(request, query)
    period = query.text("period", "all")
    now_ms = context.service.now_ms()
    kept = context.state.usage_totals.period
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
            forms.append(_usage_form(row, name))
    return json_response(UsageList(forms))


def _rows(store: Store, kept: Period, now_ms: int) -> list[TotalRow]:
    """Return all totals. An attempt that ends between both reads is left out, not counted twice."""
    totals = [(row.period_ms, row.tenant, row.user, row.totals) for row in store.usage()]
    accounts = UsageTotals.from_rows(totals, (), period=kept)
    for run in running_runs(store, lambda _: True, store.allocations(), now_ms):
        accounts.count_running(run.interval)
    return accounts.to_rows()[0]


def _usage_form(row: TotalRow, period: str) -> UsageForm:
    totals = Totals(*row[3])
    return form_of(
        UsageForm,
        totals,
        tenant_id=row[1],
        user=row[2],
        period=period,
        **_amounts(totals),
        lost_gpu_hours=round(totals.lost_gpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
    )


# Accuracy of expected starts

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


class RangesForm(Struct):
    """Ranges in which four in five starts should fall, of jobs that then waited over a minute."""

    judged: int
    within: int
    within_percent: float | None
    early: int
    late: int


class EstimatesForm(Struct):
    """Promises to jobs that started since then, and how many are still to be judged."""

    since: str | None
    open: int
    estimates: list[JudgementForm]
    ranges: RangesForm


@router.operation(
    "GET",
    "/report/estimates",
    tag="cluster",
    response=EstimatesForm,
    query=(integer_parameter("days", "How far to look back; default 30.", least=1, most=3650),),
)
async def get_estimates(context: Context, request: Request) -> Response:
    """How accurate the expected starts of the last days were."""
    query = context.parse_query(request, "days")
    days = query.number("days", DEFAULT_DAYS, least=1, most=3650)
    since_ms = max(0, context.service.now_ms() - days * DAY_MS)
    store = context.service.store
    rows = await asyncio.to_thread(store.estimates, started_since_ms=since_ms)
    accuracy = forecast_accuracy(
        (row.basis, row.made_ms, row.promised_ms, row.start_ms)
        for row in rows
        if row.start_ms is not None
    )
    waiting = len(context.state.estimates)
    forms = [_accuracy_form(one) for one in accuracy]
    kept = kept_ranges(
        (row.made_ms, row.earliest_ms, row.latest_ms, row.start_ms)
        for row in rows
        if row.start_ms is not None and row.earliest_ms is not None and row.latest_ms is not None
    )
    ranges = form_of(RangesForm, kept, within_percent=kept.within_percent)
    return json_response(EstimatesForm(write_time(since_ms), waiting, forms, ranges))


def _accuracy_form(one: ForecastAccuracy) -> JudgementForm:
    return form_of(
        JudgementForm,
        one,
        median_error_seconds=one.median_error_ms / 1000,
        p90_error_seconds=one.p90_error_ms / 1000,
    )


class ModelForm(Struct):
    """The model of run times: `off`, `not_installed`, `untrained` or `trained`.

    `jobs_learnt` ended jobs are remembered, and `jobs_needed` are before the first training.
    """

    state: str
    jobs_learnt: int
    jobs_needed: int
    trained_jobs: int | None
    trained_until: str | None
    trainings: int
    error: str


class PredictorScoreForm(Struct):
    """Both predictors on the same jobs, of a tenant or of the site (null).

    A loss is the mean pinball loss of the 10th, 50th and 90th percentile in logarithms of the run
    time: smaller is better. `used` is history or model.
    """

    tenant_id: str | None
    jobs: int
    history_loss: float | None
    model_loss: float | None
    gain_percent: float | None
    used: str
    why: str


class PredictorsForm(Struct):
    """Which predictor of run times is used, and why."""

    model: ModelForm
    scores: list[PredictorScoreForm]


@router.operation("GET", "/report/predictors", tag="cluster", response=PredictorsForm)
async def get_predictors(context: Context, request: Request) -> Response:
    """How well each predictor of run times did, and which one is used.

    The site's score and those of the tenants that the caller may see.
    """
    caller = request.caller
    predictor = context.state.predictor
    if not isinstance(predictor, SelectedPredictor):
        state = "off" if training.is_available() else "not_installed"
        why = "the model is off" if state == "off" else "the extra 'learned' is not installed"
        only = PredictorScoreForm(None, 0, None, None, None, "history", why)
        model = ModelForm(state, 0, LEAST_ROWS, None, None, 0, "")
        return json_response(PredictorsForm(model, [only]))
    trained = None if predictor.model is None else predictor.model.stored
    model = ModelForm(
        state="untrained" if trained is None else "trained",
        jobs_learnt=predictor.jobs_learnt,
        jobs_needed=LEAST_ROWS,
        trained_jobs=None if trained is None else trained.jobs,
        trained_until=None if trained is None else write_time(trained.trained_until_ms),
        trainings=predictor.trainings,
        error=predictor.training_error,
    )
    scores = [
        _score_form(score, predictor)
        for score in predictor.scores()
        if score.tenant is None or caller.is_admin or score.tenant in caller.tenants
    ]
    return json_response(PredictorsForm(model, scores))


def _score_form(score: Score, predictor: SelectedPredictor) -> PredictorScoreForm:
    is_used = score.is_used if score.tenant is None else predictor.uses_model_for(score.tenant)
    return PredictorScoreForm(
        tenant_id=score.tenant,
        jobs=score.jobs,
        history_loss=round(score.history_loss, 4) if score.jobs else None,
        model_loss=round(score.model_loss, 4) if score.jobs else None,
        gain_percent=round(100 * score.gain, 1) if score.jobs else None,
        used="model" if is_used else "history",
        why=predictor.why(score),
    )
