"""Prices of the settings and their changes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_scheduler.ledger.report import Run, report
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.server.from_settings import prices_of
from gpu_scheduler.settings.sources import load
from tests.unit.ledger.test_cost import an_interval

CONFIG = """\
costs:
  gpu_hour: {A100: 2.0, H100: 4.5}
  cpu_hour: 0.01
  changes:
    dearer-power: {from: 2027-02-01, kwh: 0.4}
    new-year:
      from: 2027-01-01
      gpu_hour: {A100: 1.5, B200: 9}
"""


def at(*day: int) -> int:
    return int(datetime(*day, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc]


def loaded(tmp_path: Path, text: str = CONFIG):  # type: ignore[no-untyped-def]
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return load(str(file), environ={}).settings.costs


def test_price_change_applies_from_its_day(tmp_path: Path) -> None:
    prices = prices_of(loaded(tmp_path))
    before = prices.at(at(2027, 1, 1) - 1)
    assert before.gpu_micro == (("A100", 2_000_000), ("H100", 4_500_000))
    january = prices.at(at(2027, 1, 1))
    assert january.gpu_micro == (("A100", 1_500_000), ("B200", 9_000_000), ("H100", 4_500_000))
    assert (january.cpu_micro, january.kwh_micro) == (10_000, 0)
    february = prices.at(at(2027, 2, 1))
    assert (february.gpu_micro, february.kwh_micro) == (january.gpu_micro, 400_000)


def test_invoice_of_old_year_is_unchanged_by_new_price(tmp_path: Path) -> None:
    plain = CONFIG[: CONFIG.index("  changes")]
    run = Run(interval=an_interval(start_ms=at(2026, 12, 31, 20), end_ms=at(2027, 1, 1, 4)))
    bills = []
    for text in (plain, CONFIG):
        prices = prices_of(loaded(tmp_path, text))
        december, january = (
            report([run], edges, prices_change=prices.moments).bill(prices)
            for edges in ((at(2026, 12, 1), at(2027, 1, 1)), (at(2026, 12, 1), at(2027, 2, 1)))
        )
        bills.append((december, january))
    (old, old_both), (new, new_both) = bills
    assert old == new
    assert old_both != new_both
    gpu_lines = [line.price_micro for line in new_both.lines if line.model == "A100"]
    assert gpu_lines == [1_500_000, 2_000_000]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("{kwh: 1}", "from"),
        ("{from: someday}", "ISO8601|date"),
        ("{from: 2027-01-01, kwh: -1}", ">= 0"),
        ("{from: 2027-01-01, gpu: 1}", "unknown field"),
    ],
    ids=["no-day", "no-date", "negative", "unknown"],
)
def test_invalid_price_change_is_rejected_by_name(tmp_path: Path, change: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"costs.changes, entry 'x'.*({said})"):
        loaded(tmp_path, f"costs:\n  changes:\n    x: {change}\n")


def test_two_price_changes_on_one_day_are_rejected(tmp_path: Path) -> None:
    text = "costs: {changes: {a: {from: 2027-01-01, kwh: 1}, b: {from: 2027-01-01, kwh: 2}}}"
    with pytest.raises(InvalidRequest, match="make them one"):
        prices_of(loaded(tmp_path, text))
