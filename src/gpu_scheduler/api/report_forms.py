"""A report in the forms that go out: hours instead of milliseconds, money with its currency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_scheduler.ledger.amounts import GPU_HOUR_MILLI_MS, HOUR_MS, decimal_text
from gpu_scheduler.ledger.cost import CSV_HEADER, UJ_PER_KWH, Bill, PriceList
from gpu_scheduler.ledger.report import Report, Run, Spread, Sums
from gpu_scheduler.model.measures import DeviceHour
from gpu_scheduler.model.node import Node
from gpu_scheduler.wire.periods import Span
from gpu_scheduler.wire.reports import (
    AccountForm,
    DeviceForm,
    IdlerForm,
    Invoice,
    InvoiceLine,
    ReportForm,
    SliceForm,
    SpreadForm,
    SumsForm,
)
from gpu_scheduler.wire.times import write_time

_GB_HOUR = 1024 * HOUR_MS
_MICRO = 10**6


class Devices:
    """The GPUs there are, and what was measured on them in the period."""

    def __init__(self, nodes: Iterable[Node], hours: Iterable[DeviceHour]) -> None:
        """Hours are summed up by device."""
        self.models = {
            (node.id, device.index): device.model for node in nodes for device in node.devices
        }
        self.hours: dict[tuple[str, int], list[DeviceHour]] = {}
        for hour in hours:
            self.hours.setdefault((hour.node_id, hour.index), []).append(hour)


def report_form(
    found: Report, span: Span, zone: str, now_ms: int, prices: PriceList, devices: Devices
) -> ReportForm:
    """The whole report."""
    costs = _costs(found.bill(prices))
    until_ms = min(max(now_ms, span.from_ms), span.before_ms)
    return ReportForm(
        period=span.name,
        start=write_time(span.from_ms) or "",
        end=write_time(span.before_ms) or "",
        time_zone=zone,
        until=write_time(until_ms) or "",
        currency=prices.first.currency,
        total=_sums(found.total, sum(costs.values())),
        waits=_spread(found.all_waits_ms()),
        run_times=_spread(found.all_run_times_ms()),
        tenants=[_tenant(found, tenant, costs) for tenant in sorted(found.tenants)],
        users=[
            AccountForm(
                tenant_id=account[0],
                user=account[1],
                sums=_sums(found.users[account], costs.get(account, 0)),
                waits=_spread(found.waits_ms.get(account, ())),
                run_times=_spread(found.run_times_ms.get(account, ())),
            )
            for account in sorted(found.users)
        ],
        gpus=[
            _device(place, found, devices, until_ms - span.from_ms)
            for place in sorted({*devices.models, *found.devices})
        ],
        slices=[
            _slice(start_ms, sums)
            for start_ms, sums in zip(found.edges, found.slices, strict=False)
            if start_ms < until_ms
        ],
        low_utilisation=[_idler(run) for run in found.idlers],
    )


def invoice_form(found: Report, span: Span, now_ms: int, prices: PriceList) -> Invoice:
    """The bill. It is final once the period is over and nothing of it runs any more."""
    bill = found.bill(prices)
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


def _tenant(found: Report, tenant: str, costs: dict[tuple[str, str], int]) -> AccountForm:
    def of_tenant(lists: dict[tuple[str, str], list[int]]) -> list[int]:
        mine = (values for account, values in lists.items() if account[0] == tenant)
        return [value for values in mine for value in values]

    cost = sum(micro for account, micro in costs.items() if account[0] == tenant)
    return AccountForm(
        tenant_id=tenant,
        user=None,
        sums=_sums(found.tenants[tenant], cost),
        waits=_spread(of_tenant(found.waits_ms)),
        run_times=_spread(of_tenant(found.run_times_ms)),
    )


def _sums(sums: Sums, cost_micro: int) -> SumsForm:
    mean = sums.busy_percent_ms / sums.measured_ms if sums.measured_ms else None
    return SumsForm(
        gpu_hours=round(sums.gpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        gpu_memory_gb_hours=round(sums.gpu_memory_mb_ms / _GB_HOUR, 6),
        cpu_hours=round(sums.cpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        memory_gb_hours=round(sums.memory_mb_ms / _GB_HOUR, 6),
        energy_kwh=round(sums.energy_uj / UJ_PER_KWH, 6),
        mean_utilisation_percent=None if mean is None else round(mean, 1),
        started=sums.started,
        completed=sums.completed,
        failed=sums.failed,
        cancelled=sums.cancelled,
        preempted=sums.preempted,
        cost=cost_micro / _MICRO,
    )


def _spread(values: Iterable[int]) -> SpreadForm:
    spread = Spread.of(values)
    return SpreadForm(
        count=spread.count,
        mean_seconds=round(spread.mean_ms / 1000, 3),
        median_seconds=spread.median_ms / 1000,
        p90_seconds=spread.p90_ms / 1000,
        max_seconds=spread.max_ms / 1000,
    )


def _slice(start_ms: int, sums: Sums) -> SliceForm:
    return SliceForm(
        start=write_time(start_ms) or "",
        gpu_hours=round(sums.gpu_milli_ms / GPU_HOUR_MILLI_MS, 6),
        energy_kwh=round(sums.energy_uj / UJ_PER_KWH, 6),
        started=sums.started,
        completed=sums.completed,
        failed=sums.failed,
        preempted=sums.preempted,
    )


def _device(place: tuple[str, int], found: Report, devices: Devices, span_ms: int) -> DeviceForm:
    hours: Sequence[DeviceHour] = devices.hours.get(place, ())
    told_ms = sum(hour.gpu_ms for hour in hours)
    busy = sum(hour.busy_percent_ms for hour in hours)
    has_power = any(hour.power_ms for hour in hours)
    held = found.devices.get(place, 0)
    return DeviceForm(
        node=place[0],
        index=place[1],
        model=devices.models.get(place, ""),
        allocated_percent=round(held / 10 / span_ms, 2) if span_ms else 0.0,
        gpu_hours=round(held / GPU_HOUR_MILLI_MS, 6),
        mean_utilisation_percent=round(busy / told_ms, 1) if told_ms else None,
        peak_utilisation_percent=max(hour.peak_percent for hour in hours) if told_ms else None,
        energy_kwh=round(sum(hour.energy_uj for hour in hours) / UJ_PER_KWH, 6)
        if has_power
        else None,
        # No sensor says 0; such a device has none.
        peak_temperature_c=max((hour.peak_temperature_c for hour in hours), default=0) or None,
    )


def _idler(run: Run) -> IdlerForm:
    interval = run.interval
    return IdlerForm(
        job_id=interval.job_id,
        task=interval.task,
        name=run.name,
        user=interval.user,
        tenant_id=interval.tenant,
        gpu_hours=round(interval.gpu_milli_ms / GPU_HOUR_MILLI_MS, 3),
        mean_utilisation_percent=round(run.mean_percent or 0.0, 1),
        peak_utilisation_percent=run.peak_percent,
    )
