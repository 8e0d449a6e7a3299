"""A bill is exact, sums up, and does not depend on splitting or order of its intervals."""

import csv
import io
from collections.abc import Iterable
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.cost import CSV_HEADER, Bill, Item, PriceList, Prices, priced_bill
from gpu_scheduler.ledger.units import Period
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.errors import InvalidRequest, UnknownThing
from tests.unit.ledger.builders import HOUR, NOV_15_2025, an_interval, intervals, many_intervals

PRICES = Prices(
    gpu_micro=(("A100", 2_500_000), ("H100", 4_000_000)), cpu_micro=40_000, gib_micro=5_000
)
ANY_PRICES = st.builds(
    Prices,
    gpu_micro=st.dictionaries(st.sampled_from("AB"), st.integers(0, 10**8)).map(
        lambda prices: tuple(prices.items())
    ),
    other_gpu_micro=st.integers(0, 10**8),
    cpu_micro=st.integers(0, 10**6),
    gib_micro=st.integers(0, 10**6),
)


def bill(intervals: Iterable[UsageInterval], prices: Prices) -> Bill:
    return priced_bill(((interval, prices) for interval in intervals), prices.currency)


def cost(interval: UsageInterval, prices: Prices) -> int:
    return bill((interval,), prices).total_micro


def test_one_hour_costs_hourly_price() -> None:
    assert cost(an_interval(), PRICES) == 2_500_000 + 4 * 40_000 + 8 * 5_000
    assert cost(an_interval(end_ms=NOV_15_2025), PRICES) == 0


def test_gpus_cost_what_was_valid_at_each_moment() -> None:
    dearer = Prices(gpu_micro=(("A100", 5_000_000),))
    first = Prices(gpu_micro=(("A100", 2_500_000),))
    prices = PriceList(first=first, changes=((HOUR, dearer),))
    assert prices.of_gpus({"A100": 1000}, 0, HOUR) == 2_500_000
    assert prices.of_gpus({"A100": 500}, 0, 2 * HOUR) == 1_250_000 + 2_500_000
    assert prices.of_gpus({"A100": 1000}, HOUR, HOUR) == 0
    with pytest.raises(UnknownThing, match="B200"):
        prices.of_gpus({"B200": 1000}, 0, HOUR)


def test_half_a_millionth_is_rounded_up() -> None:
    prices = Prices(gpu_micro=(("A100", 1),))
    half = an_interval(gpu_milli=500)
    assert cost(half, prices) == 1
    assert cost(an_interval(gpu_milli=490), prices) == 0


@given(intervals(), ANY_PRICES)
def test_every_line_is_exact_up_to_one_rounding(interval: UsageInterval, prices: Prices) -> None:
    hours = Fraction(interval.duration_ms, HOUR)
    exact = sum(
        (Fraction(milli, 1000) * prices.of_gpu(model) for model, milli in interval.gpu_models),
        Fraction(interval.cpu_milli, 1000) * prices.cpu_micro
        + Fraction(interval.memory_mb, 1024) * prices.gib_micro,
    )
    made = bill([interval], prices)
    assert abs(made.total_micro - exact * hours) <= Fraction(len(made.lines), 2)
    assert cost(interval, prices) == made.total_micro


@given(many_intervals(), ANY_PRICES, st.randoms(use_true_random=False), st.sampled_from(Period))
def test_splitting_and_reordering_never_change_bill(
    some: list[UsageInterval], prices: Prices, chance: Random, period: Period
) -> None:
    pieces = [piece for interval in some for piece in interval.pieces(period)]
    chance.shuffle(pieces)
    assert bill(pieces, prices) == bill(some, prices)


@given(many_intervals(), ANY_PRICES)
def test_bill_sums_up_and_nothing_is_negative(some: list[UsageInterval], prices: Prices) -> None:
    made = bill(some, prices)
    assert sum(total for _, total in made.tenant_totals()) == made.total_micro
    assert all(line.amount > 0 and line.cost_micro >= 0 for line in made.lines)
    gpu = sum(line.amount for line in made.lines if line.item is Item.GPU)
    assert gpu == sum(interval.gpu_milli_ms for interval in some)


def a_bill() -> Bill:
    return bill(
        [
            an_interval(end_ms=NOV_15_2025 + HOUR // 3),
            an_interval(
                allocation_id="a2",
                tenant="speech",
                user="bob, jr.",
                gpu_milli=1500,
                gpu_models=(("A100", 1000), ("H100", 500)),
                cpu_milli=0,
                memory_mb=0,
            ),
        ],
        PRICES,
    )


def test_lines_are_sorted_by_tenant_user_item_and_model() -> None:
    assert [
        (line.tenant, line.item.value, line.model, line.cost_micro) for line in a_bill().lines
    ] == [
        ("speech", "gpu", "A100", 2_500_000),
        ("speech", "gpu", "H100", 2_000_000),
        ("vision", "cpu", "", 53_333),
        ("vision", "gpu", "A100", 833_333),
        ("vision", "memory", "", 13_333),
    ]
    assert a_bill().tenant_totals() == (("speech", 4_500_000), ("vision", 899_999))


def test_rows_are_written_to_csv_unchanged() -> None:
    file = io.StringIO()
    csv.writer(file).writerows(a_bill().csv_rows())
    header, first, *_, last = csv.reader(io.StringIO(file.getvalue()))
    assert tuple(header) == CSV_HEADER
    assert first == ["speech", "bob, jr.", "gpu", "A100", "1", "GPU-hour", "2.5", "2.5", "EUR"]
    assert last == [
        "vision",
        "ada",
        "memory",
        "",
        "2.666667",
        "GiB-hour",
        "0.005",
        "0.013333",
        "EUR",
    ]


def test_model_without_price_is_rejected_unless_default_exists() -> None:
    interval = an_interval(gpu_models=(("L4", 1000),))
    with pytest.raises(UnknownThing, match="'L4' has no price; priced are: A100, H100"):
        cost(interval, PRICES)
    assert cost(interval, Prices(other_gpu_micro=7)) == 7


def test_invalid_prices_are_rejected() -> None:
    with pytest.raises(InvalidRequest, match="price of CPU is -1"):
        Prices(cpu_micro=-1)
    with pytest.raises(InvalidRequest, match="price of A100 is -5"):
        Prices(gpu_micro=(("A100", -5),))
    with pytest.raises(InvalidRequest, match="two prices"):
        Prices(gpu_micro=(("A100", 1), ("A100", 2)))
