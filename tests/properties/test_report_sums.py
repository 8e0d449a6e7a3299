"""The sums of a report equal a naive sum over every second, for any period boundaries."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.ledger.cost import PriceList, Prices
from gpu_scheduler.ledger.report import Percentiles, Run, report
from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.job import JobState

SECOND = 1000
HOUR = 3_600_000 * 10**6
FIRST = Prices(gpu_micro=(("A", 3_000_000), ("B", 1)), cpu_micro=7, gib_micro=11, kwh_micro=13)
PRICES = PriceList(first=FIRST)
STATES = [JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.PREEMPTED, None]


@st.composite
def runs(draw: st.DrawFn, name: str) -> Run:
    start, length = draw(st.integers(0, 60)), draw(st.integers(0, 60))
    models = draw(st.dictionaries(st.sampled_from("AB"), st.integers(1, 2000)))
    interval = UsageInterval(
        allocation_id=name,
        job_id=name,
        tenant=draw(st.sampled_from(["vision", "speech"])),
        user=draw(st.sampled_from(["ada", "bob"])),
        attempt=1,
        start_ms=start * SECOND,
        end_ms=(start + length) * SECOND,
        gpu_milli=sum(models.values()),
        cpu_milli=draw(st.integers(0, 5)),
        memory_mb=draw(st.integers(0, 5)),
        gpu_models=tuple(sorted(models.items())),
        outcome=draw(st.sampled_from(STATES)),
        energy_uj=draw(st.integers(0, 10**6)) if length else 0,
    )
    return Run(interval=interval, waited_ms=draw(st.none() | st.integers(0, 9)))


RUNS = st.integers(0, 6).flatmap(
    lambda count: st.tuples(*(runs(name=f"a{number}") for number in range(count)))
)
EDGES = st.sets(st.integers(0, 130), min_size=2, max_size=8).map(
    lambda found: tuple(second * SECOND for second in sorted(found))
)


def by_hand(found: tuple[Run, ...], start_ms: int, end_ms: int, tenant: str) -> int:
    """GPU time, second by second."""
    total = 0
    for second in range(start_ms // SECOND, end_ms // SECOND):
        for run in found:
            held = run.interval
            if held.tenant == tenant and held.start_ms <= second * SECOND < held.end_ms:
                total += held.gpu_milli * SECOND
    return total


@settings(deadline=None)
@given(found=RUNS, edges=EDGES)
def test_gpu_time_matches_per_second_sum_for_each_slice_and_tenant(
    found: tuple[Run, ...], edges: tuple[int, ...]
) -> None:
    made = report(found, edges)
    for tenant in ("vision", "speech"):
        mine = made.tenants[tenant].gpu_milli_ms if tenant in made.tenants else 0
        assert mine == by_hand(found, edges[0], edges[-1], tenant)
    for place, sums in enumerate(made.slices):
        assert sums.gpu_milli_ms == sum(
            by_hand(found, edges[place], edges[place + 1], tenant)
            for tenant in ("vision", "speech")
        )


@settings(deadline=None)
@given(found=RUNS, edges=EDGES)
def test_slices_and_adjacent_periods_sum_to_whole_including_cost(
    found: tuple[Run, ...], edges: tuple[int, ...]
) -> None:
    names = (
        *("gpu_milli_ms", "cpu_milli_ms", "memory_mb_ms", "energy_uj"),
        *("started", "completed", "failed", "cancelled", "preempted"),
    )
    whole = report(found, edges)
    parts = [report(found, edges[place : place + 2]) for place in range(len(edges) - 1)]
    for name in names:
        total = getattr(whole.total, name)
        assert sum(getattr(sums, name) for sums in whole.slices) == total
        assert sum(getattr(part.total, name) for part in parts) == total
        assert sum(getattr(sums, name) for sums in whole.users.values()) == total
    amounts: dict[tuple[str, str, str, str], int] = {}
    for part in parts:
        for line in part.bill(PRICES).lines:
            key = (line.tenant, line.user, line.item.value, line.model)
            amounts[key] = amounts.get(key, 0) + line.amount
    assert amounts == {
        (line.tenant, line.user, line.item.value, line.model): line.amount
        for line in whole.bill(PRICES).lines
    }


@settings(deadline=None)
@given(found=RUNS)
def test_period_that_covers_everything_has_every_run_with_all_energy(
    found: tuple[Run, ...],
) -> None:
    made = report(found, (0, 1000 * SECOND))
    assert made.total.energy_uj == sum(run.interval.energy_uj for run in found)
    assert made.total.started == len(found)
    assert sorted(made.all_waits_ms()) == sorted(
        run.waited_ms for run in found if run.waited_ms is not None
    )


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_percentiles_are_observed_values_in_order(values: list[int]) -> None:
    spread = Percentiles.of(values)
    assert {spread.median_ms, spread.p90_ms, spread.max_ms} <= set(values)
    assert min(values) <= spread.median_ms <= spread.p90_ms <= spread.max_ms == max(values)
    assert sum(value <= spread.p90_ms for value in values) >= 0.9 * len(values)


@settings(deadline=None)
@given(found=RUNS, edges=EDGES, moments=st.sets(st.integers(0, 130), max_size=4))
def test_usage_before_price_change_keeps_old_price(
    found: tuple[Run, ...], edges: tuple[int, ...], moments: set[int]
) -> None:
    changes = tuple(
        (second * SECOND, Prices(gpu_micro=(("A", 5 * place), ("B", 2)), cpu_micro=7 + place))
        for place, second in enumerate(sorted(moments), start=1)
    )
    prices = PriceList(first=FIRST, changes=changes)
    made = report(found, edges, prices_change=prices.moments).bill(prices)
    borders = sorted({edges[0], edges[-1], *(m for m in prices.moments if m > edges[0])})
    exact = 0
    for start_ms, end_ms in pairwise(b for b in borders if b <= edges[-1]):
        alone = report(found, (start_ms, end_ms)).bill(PriceList(first=prices.at(start_ms)))
        exact += sum(
            line.amount * line.price_micro * HOUR // line.item.hour for line in alone.lines
        )
    whole = sum(line.amount * line.price_micro * HOUR // line.item.hour for line in made.lines)
    assert abs(whole - exact) <= len(made.lines) * (len(moments) + 1)
    earlier = report(found, edges).bill(prices) if not moments else None
    assert earlier is None or earlier == made
