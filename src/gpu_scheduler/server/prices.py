"""From settings to prices."""

from __future__ import annotations

from gpu_scheduler.ledger.cost import Prices
from gpu_scheduler.settings.groups import CostSettings

_MICRO = 10**6


def prices_of(costs: CostSettings) -> Prices:
    """Prices in millionths."""
    return Prices(
        gpu_micro=tuple(sorted((model, _micro(price)) for model, price in costs.gpu_hour.items())),
        other_gpu_micro=_micro(costs.other_gpu_hour),
        cpu_micro=_micro(costs.cpu_hour),
        gib_micro=_micro(costs.memory_gb_hour),
        kwh_micro=_micro(costs.kwh),
        currency=costs.currency,
    )


def _micro(price: float) -> int:
    return round(price * _MICRO)
