"""Usage decays by the closed form, in constant work, the same everywhere."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.decayed_usage import Account, DecayedUsage
from gpu_scheduler.model.errors import InternalError, InvalidRequest

DAY = 86_400_000
WEEK = 7 * DAY
ADA = ("vision", "ada")


def some_shares(half_life_ms: int = WEEK, recent_half_life_ms: int = 600_000) -> DecayedUsage:
    return DecayedUsage(half_life_ms=half_life_ms, recent_half_life_ms=recent_half_life_ms)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Times and changes of holdings; the amount held is never negative."""
    history: list[tuple[int, int]] = []
    now_ms, held = draw(st.integers(0, 10**6)), 0
    for _ in range(draw(st.integers(1, 12))):
        now_ms += draw(st.integers(0, 400))
        change = draw(st.integers(-held, 16_000))
        held += change
        history.append((now_ms, change))
    return history


def apply(shares: DecayedUsage, history: list[tuple[int, int]], account: Account = ADA) -> None:
    for now_ms, change in history:
        if change >= 0:
            shares.hold(account, change, now_ms)
        else:
            shares.release(account, -change, now_ms)


def integrated(history: list[tuple[int, int]], until_ms: int, half_life_ms: int) -> float:
    """The decayed integral of what was held, summed millisecond by millisecond."""
    changes: dict[int, int] = {}
    for now_ms, change in history:
        changes[now_ms] = changes.get(now_ms, 0) + change
    held, total = 0, 0.0
    for moment_ms in range(history[0][0], until_ms):
        held += changes.get(moment_ms, 0)
        total += held * 2.0 ** (-(until_ms - moment_ms - 0.5) / half_life_ms)
    return total


@given(histories(), st.integers(0, 2_000), st.integers(200, 20_000))
def test_closed_form_equals_integral(
    history: list[tuple[int, int]], wait_ms: int, half_life_ms: int
) -> None:
    shares = some_shares(half_life_ms=half_life_ms, recent_half_life_ms=half_life_ms)
    apply(shares, history)
    until_ms = history[-1][0] + wait_ms
    expected = integrated(history, until_ms, half_life_ms)
    assert shares.usage_at(ADA, until_ms) == pytest.approx(expected, rel=1e-5, abs=0.51)
    average = expected * math.log(2) / half_life_ms
    assert shares.recent_at(ADA, until_ms) == pytest.approx(average, rel=1e-5, abs=0.51)


@given(st.integers(0, 10 * WEEK), st.integers(1, 10 * WEEK), st.integers(0, 10**7))
def test_one_step_agrees_with_formula(passed_ms: int, half_life_ms: int, rate: int) -> None:
    shares = some_shares(half_life_ms=half_life_ms)
    shares.hold(ADA, rate, 0)
    expected = -rate * math.expm1(-passed_ms / half_life_ms * math.log(2)) * half_life_ms
    assert shares.usage_at(ADA, passed_ms) == pytest.approx(
        expected / math.log(2), rel=1e-12, abs=0.51
    )


@given(histories(), st.lists(st.integers(0, 2_000), max_size=20))
def test_zero_change_has_no_effect(history: list[tuple[int, int]], pauses: list[int]) -> None:
    often, seldom = some_shares(5_000), some_shares(5_000)
    apply(often, history)
    apply(seldom, history)
    now_ms = history[-1][0]
    for pause_ms in pauses:
        now_ms += pause_ms
        often.hold(ADA, 0, now_ms)
    assert often.usage_at(ADA, now_ms) == pytest.approx(seldom.usage_at(ADA, now_ms), abs=1)


@given(histories(), st.integers(-(10**7), 10**7), st.randoms(use_true_random=False))
def test_usage_is_never_negative_even_when_time_steps_back(
    history: list[tuple[int, int]], now_ms: int, chance: Random
) -> None:
    shares = some_shares(half_life_ms=1_000, recent_half_life_ms=10)
    times = [moment_ms for moment_ms, _ in history]
    chance.shuffle(times)
    apply(shares, [(at_ms, change) for at_ms, (_, change) in zip(times, history, strict=True)])
    assert shares.usage_at(ADA, now_ms) >= 0
    assert shares.recent_at(ADA, now_ms) >= 0
    assert shares.held(ADA) == sum(change for _, change in history)


@pytest.mark.parametrize("others", [0, 3_000])
def test_late_reported_end_counts_as_if_known_in_time(others: int) -> None:
    known, late = some_shares(), some_shares()
    for shares in (known, late):
        shares.hold(ADA, 8_000 + others, 0)
    known.release(ADA, 8_000, DAY)
    late.hold(ADA, 0, 2 * DAY)
    late.release(ADA, 8_000, 3 * DAY, held_until_ms=DAY)
    for now_ms in (3 * DAY, WEEK):
        assert late.usage_at(ADA, now_ms) == pytest.approx(known.usage_at(ADA, now_ms), rel=1e-9)
        assert late.recent_at(ADA, now_ms) == pytest.approx(known.recent_at(ADA, now_ms), abs=1)
    assert late.held(ADA) == others


def test_usage_halves_after_one_half_life() -> None:
    shares = some_shares()
    shares.hold("vision", 8_000, 0)
    shares.release("vision", 8_000, DAY)
    at_end = shares.usage_at("vision", DAY)
    assert shares.usage_at("vision", DAY + WEEK) == pytest.approx(at_end / 2, abs=1)
    assert shares.usage_at("vision", DAY + 3 * WEEK) == pytest.approx(at_end / 8, abs=1)
    assert shares.usage_at("vision", DAY + 5_000 * WEEK) == 0


def test_recent_average_converges_to_holdings() -> None:
    shares = some_shares(recent_half_life_ms=600_000)
    shares.hold("vision", 8_000, 0)
    assert shares.recent_at("vision", 600_000) == 4_000
    assert shares.recent_at("vision", DAY) == 8_000


def test_many_small_changes_do_not_erode_usage() -> None:
    busy, calm = some_shares(), some_shares()
    calm.hold(ADA, 1_000, 0)
    busy.hold(ADA, 1_000, 0)
    for now_ms in range(1, 20_001):
        busy.hold(ADA, 10, now_ms)
        busy.release(ADA, 10, now_ms)
    assert busy.usage_at(ADA, 20_000) == calm.usage_at(ADA, 20_000)


def test_time_stepping_back_counts_as_no_time() -> None:
    shares = some_shares()
    shares.hold(ADA, 1_000, DAY)
    shares.hold(ADA, 1_000, 0)
    assert shares.usage_at(ADA, 0) == 0
    assert shares.usage_at(ADA, DAY) == 0
    assert shares.usage_at(ADA, DAY + 1_000) == 2_000_000 - 1


def test_reading_changes_nothing() -> None:
    shares = some_shares()
    shares.hold(ADA, 1_500, 17)
    before = shares.to_rows()
    shares.usage_at(ADA, DAY)
    shares.recent_at(ADA, DAY)
    assert shares.to_rows() == before


def test_tenant_and_users_are_separate_accounts() -> None:
    shares = some_shares()
    shares.hold("vision", 2_000, 0)
    shares.hold(ADA, 1_000, 0)
    assert shares.held("vision") == 2_000
    assert shares.held(ADA) == 1_000
    assert shares.held("speech") == 0
    assert shares.usage_at("speech", DAY) == shares.recent_at("speech", DAY) == 0


def test_releasing_more_than_held_is_internal_error() -> None:
    shares = some_shares()
    with pytest.raises(InternalError, match="holds 0 milli-GPU and was to release 1"):
        shares.release(ADA, 1, 0)
    shares.hold(ADA, 500, 0)
    before = shares.to_rows()
    for amount in (501, -1):
        with pytest.raises(InternalError):
            shares.release(ADA, amount, DAY)
    with pytest.raises(InternalError):
        shares.hold(ADA, -1, DAY)
    assert shares.to_rows() == before


@given(histories(), histories())
def test_restored_usage_continues_exactly(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    shares = some_shares()
    apply(shares, first, "vision")
    apply(shares, first, ADA)
    restored = DecayedUsage.from_rows(
        shares.to_rows(), half_life_ms=WEEK, recent_half_life_ms=600_000
    )
    for each in (shares, restored):
        apply(each, second, ("vision", ""))
        apply(each, [(at_ms + DAY, max(0, change)) for at_ms, change in second], ADA)
    assert restored.to_rows() == shares.to_rows()
    assert [row[1] for row in restored.to_rows()] == [None, "", "ada"]


def test_numbers_are_same_on_every_machine() -> None:
    shares = some_shares()
    shares.hold(ADA, 1_230, 5)
    shares.release(ADA, 230, 777_777)
    assert [number.hex() for number in shares.row_of(ADA)[2:4]] == [
        "0x1.c7f7b2f029b31p+29",
        "0x1.6c96b429d9a40p+9",
    ]
    shares.release(ADA, 230, 777_777_777)
    assert [number.hex() for number in shares.row_of(ADA)[2:4]] == [
        "0x1.df71d341e7bdcp+38",
        "0x1.f400000000000p+9",
    ]


def test_invalid_rows_are_rejected() -> None:
    with pytest.raises(InternalError):
        DecayedUsage.from_rows(
            [("vision", None, 0.0, 0.0, -1, 0)], half_life_ms=1, recent_half_life_ms=1
        )


def test_zero_half_life_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="half-life of usage is 0 ms"):
        some_shares(half_life_ms=0)
