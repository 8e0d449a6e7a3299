"""The JSON forms of reports and invoices."""

from __future__ import annotations

from msgspec import Struct


class SpreadForm(Struct):
    """How durations are spread."""

    count: int
    mean_seconds: float
    median_seconds: float
    p90_seconds: float
    max_seconds: float


class SumsForm(Struct):
    """What was used and how it ended. Energy and utilisation are null where nobody measured."""

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
    """One GPU: how much of the time it was given out, and how busy it was."""

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
    """A run that used little of what it held."""

    job_id: str
    task: int | None
    name: str
    user: str
    tenant_id: str
    gpu_hours: float
    mean_utilisation_percent: float
    peak_utilisation_percent: int


class ReportForm(Struct):
    """What happened in a period, as far as the caller may see it."""

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
    """What a period costs. Amounts of money are text, so that nothing is lost."""

    period: str
    start: str
    end: str
    until: str
    is_final: bool
    currency: str
    lines: list[InvoiceLine]
    tenants: dict[str, str]
    total: str
