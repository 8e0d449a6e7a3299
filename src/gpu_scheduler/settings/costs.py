"""Settings of prices, for reports and invoices."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import setting, table
from gpu_scheduler.settings.forms import Price, PriceChange


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Prices, for reports and invoices."""

    currency: str = setting("EUR", "What prices are in.")
    gpu_hour: dict[str, float] = table(  # noqa: RUF009
        Price, "Price of a GPU for an hour, by model, as `tgpu gpus` names it."
    )
    other_gpu_hour: float = setting(
        0.0, "Price of a GPU of any other model for an hour.", least=0, most=1_000_000
    )
    cpu_hour: float = setting(0.0, "Price of a CPU core for an hour.", least=0, most=1_000_000)
    memory_gb_hour: float = setting(
        0.0, "Price of a GiB of memory for an hour.", least=0, most=1_000_000
    )
    kwh: float = setting(
        0.0, "Price of a kWh that GPUs have drawn; 0: not charged.", least=0, most=1_000_000
    )
    changes: dict[str, PriceChange] = table(  # noqa: RUF009
        PriceChange,
        "New prices from a day on, by any name; the prices above hold until the first of them.",
        note="Add a change rather than edit a price: what was used before then costs what it did.",
    )
