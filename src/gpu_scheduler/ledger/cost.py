"""The cost of usage intervals.

Intervals and prices come in, a bill comes out, in millionths of a currency and in integers only.
The amounts of a line (one tenant, user, item and price) are summed exactly and rounded once, half
up; totals are sums of lines, so every bill adds up. Splitting or reordering intervals never changes
a bill. A price change applies only to later usage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from gpu_scheduler.ledger.units import HOUR_MS, decimal_text, half_up
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing

CSV_HEADER = (
    *("tenant", "user", "item", "model", "amount", "unit", "price", "cost"),
    "currency",
)
UJ_PER_KWH = 3_600_000 * 10**6
_PLACES = 6


class Item(StrEnum):
    """A priced item: GPUs, CPU cores and GiB of memory by the hour; energy by the kWh."""

    GPU = "gpu"
    CPU = "cpu"
    MEMORY = "memory"
    ENERGY = "energy"

    @property
    def unit(self) -> str:
        """The unit of the item."""
        return _UNITS[self][0]

    @property
    def hour(self) -> int:
        """One unit-hour in the unit of intervals (thousandths, or MiB, times ms); or one kWh."""
        return _UNITS[self][1]


_UNITS = {
    Item.GPU: ("GPU-hour", 1000 * HOUR_MS),
    Item.CPU: ("core-hour", 1000 * HOUR_MS),
    Item.MEMORY: ("GiB-hour", 1024 * HOUR_MS),
    Item.ENERGY: ("kWh", UJ_PER_KWH),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices by the hour (of energy: by the kWh), in millionths of the currency.

    A model without its own price costs `other_gpu_micro`; if that is None, it is an error.
    """

    gpu_micro: tuple[tuple[str, int], ...] = ()
    other_gpu_micro: int | None = None
    cpu_micro: int = 0
    gib_micro: int = 0
    kwh_micro: int = 0
    currency: str = "EUR"

    def __post_init__(self) -> None:
        """Reject negative prices, and two prices for one model."""
        named = (*self.gpu_micro, ("other", self.other_gpu_micro or 0))
        others = (("CPU", self.cpu_micro), ("memory", self.gib_micro), ("energy", self.kwh_micro))
        for name, price in (*named, *others):
            if price < 0:
                raise InvalidRequest(f"the price of {name} is {price}; it must be 0 or more")
        if len(dict(self.gpu_micro)) != len(self.gpu_micro):
            raise InvalidRequest("a GPU model has two prices; keep one of them")

    def of_gpu(self, model: str) -> int:
        """The price of one GPU of a model for one hour."""
        price = dict(self.gpu_micro).get(model, self.other_gpu_micro)
        if price is None:
            known = ", ".join(sorted(name for name, _ in self.gpu_micro)) or "none"
            raise UnknownThing(
                f"GPU model '{model}' has no price; priced are: {known}. "
                "Give it a price, or set one for all other models"
            )
        return price


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceList:
    """Prices over time: the first ones, and changes with their times."""

    first: Prices
    changes: tuple[tuple[int, Prices], ...] = ()

    def __post_init__(self) -> None:
        """Reject two changes at the same time, and a second currency."""
        if list(self.moments) != sorted(set(self.moments)):
            raise InvalidRequest("two changes of prices begin at the same time; make them one")
        if any(prices.currency != self.first.currency for _, prices in self.changes):
            raise InvalidRequest("prices are in two currencies; keep one")

    @property
    def moments(self) -> tuple[int, ...]:
        """When prices change."""
        return tuple(from_ms for from_ms, _ in self.changes)

    def at(self, moment_ms: int) -> Prices:
        """The prices at this time."""
        place = bisect_right(self.moments, moment_ms)
        return self.changes[place - 1][1] if place else self.first

    def of_gpus(self, gpu_milli: Mapping[str, int], start_ms: int, end_ms: int) -> int:
        """The cost of GPUs by model over a time, in millionths of the currency."""
        turns = [start_ms, *(turn for turn in self.moments if start_ms < turn < end_ms), end_ms]
        cost = sum(
            milli * (until_ms - from_ms) * self.at(from_ms).of_gpu(model)
            for from_ms, until_ms in pairwise(turns)
            for model, milli in gpu_milli.items()
        )
        return half_up(cost, Item.GPU.hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One item of one user. `amount` is in milli-GPU, milli-core or MiB, times ms; or in uJ."""

    tenant: str
    user: str
    item: Item
    model: str
    amount: int
    price_micro: int

    @property
    def cost_micro(self) -> int:
        """The line's cost, rounded once."""
        return half_up(self.amount * self.price_micro, self.item.hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Lines in the order of tenant, user, item, model and price."""

    currency: str
    lines: tuple[BillLine, ...]

    @property
    def total_micro(self) -> int:
        return sum(line.cost_micro for line in self.lines)

    def tenant_totals(self) -> tuple[tuple[str, int], ...]:
        """The total of each tenant, by name."""
        totals: dict[str, int] = {}
        for line in self.lines:
            totals[line.tenant] = totals.get(line.tenant, 0) + line.cost_micro
        return tuple(totals.items())

    def csv_rows(self) -> Iterator[tuple[str, ...]]:
        """The header, then one row per line; amounts are rounded, costs are exact."""
        yield CSV_HEADER
        for line in self.lines:
            yield (
                line.tenant,
                line.user,
                line.item.value,
                line.model,
                decimal_text(half_up(line.amount * 10**_PLACES, line.item.hour), _PLACES),
                line.item.unit,
                decimal_text(line.price_micro, _PLACES),
                decimal_text(line.cost_micro, _PLACES),
                self.currency,
            )


def priced_bill(priced: Iterable[tuple[UsageInterval, Prices]], currency: str) -> Bill:
    """Sum intervals, each with its own prices. Those of an allocation must not overlap."""
    amounts: dict[tuple[str, str, str, str, int], int] = {}
    for interval, prices in priced:
        for item, model, amount, price in _items(interval, prices):
            if amount:
                key = (interval.tenant, interval.user, item.value, model, price)
                amounts[key] = amounts.get(key, 0) + amount
    # Sorted, so that the bill does not depend on the order of intervals.
    lines = tuple(
        BillLine(
            tenant=tenant,
            user=user,
            item=Item(item),
            model=model,
            amount=amount,
            price_micro=price,
        )
        for (tenant, user, item, model, price), amount in sorted(amounts.items())
    )
    return Bill(currency=currency, lines=lines)


def _items(interval: UsageInterval, prices: Prices) -> Iterator[tuple[Item, str, int, int]]:
    """Item, GPU model, amount and price. Only a model that was used must have a price."""
    span_ms = interval.duration_ms
    for model, gpu_milli in interval.gpu_models:
        if gpu_milli * span_ms:
            yield Item.GPU, model, gpu_milli * span_ms, prices.of_gpu(model)
    yield Item.CPU, "", interval.cpu_milli * span_ms, prices.cpu_micro
    yield Item.MEMORY, "", interval.memory_mb * span_ms, prices.gib_micro
    yield Item.ENERGY, "", interval.energy_uj, prices.kwh_micro
