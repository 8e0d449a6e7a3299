"""From settings to prices."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time

from gpu_scheduler.ledger.cost import PriceList, Prices
from gpu_scheduler.settings.costs import CostSettings
from gpu_scheduler.settings.forms import PriceChange

_MICRO = 10**6


def prices_of(costs: CostSettings) -> PriceList:
    """Prices in millionths, in the course of time."""
    prices = first = Prices(
        gpu_micro=_by_model(costs.gpu_hour),
        other_gpu_micro=_micro(costs.other_gpu_hour),
        cpu_micro=_micro(costs.cpu_hour),
        gib_micro=_micro(costs.memory_gb_hour),
        kwh_micro=_micro(costs.kwh),
        currency=costs.currency,
    )
    changes = []
    for change in sorted(costs.changes.values(), key=lambda change: change.since):
        prices = _changed(prices, change)
        midnight = datetime.combine(change.since, time(), UTC)
        changes.append((int(midnight.timestamp()) * 1000, prices))
    return PriceList(first=first, changes=tuple(changes))


def _changed(before: Prices, change: PriceChange) -> Prices:
    models = dict(before.gpu_micro) | dict(_by_model(change.gpu_hour))
    return replace(
        before,
        gpu_micro=tuple(sorted(models.items())),
        other_gpu_micro=_either(change.other_gpu_hour, before.other_gpu_micro or 0),
        cpu_micro=_either(change.cpu_hour, before.cpu_micro),
        gib_micro=_either(change.memory_gb_hour, before.gib_micro),
        kwh_micro=_either(change.kwh, before.kwh_micro),
    )


def _either(price: float | None, before_micro: int) -> int:
    return before_micro if price is None else _micro(price)


def _by_model(prices: dict[str, float]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((model, _micro(price)) for model, price in prices.items()))


def _micro(price: float) -> int:
    return round(price * _MICRO)
