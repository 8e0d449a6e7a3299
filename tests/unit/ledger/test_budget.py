"""A budget of GPU time is never exceeded, and a refusal says what would fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_scheduler.ledger.budget import (
    Budget,
    Commitments,
    reason_to_wait,
    refuse_beyond_quota,
    worst_case,
)
from gpu_scheduler.ledger.units import GPU_HOUR_MILLI_MS as GPU_HOUR
from gpu_scheduler.ledger.units import decimal_text, gpu_hours, half_up
from gpu_scheduler.model.errors import InternalError, QuotaTooSmall
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.reasons import ReasonCode
from gpu_scheduler.model.request import Request
from tests.unit.ledger.builders import HOUR

AMOUNTS = st.integers(0, 10**16)


def a_budget(
    limit: int | None = 100 * GPU_HOUR, spent: int = 60 * GPU_HOUR, committed: int = 30 * GPU_HOUR
) -> Budget:
    return Budget(tenant="vision", limit=limit, spent=spent, committed=committed)


def a_job(gpus: int = 2, limit_ms: int = 0) -> Job:
    return Job(
        id="j1",
        number=1,
        submit_ms=0,
        tenant="vision",
        members=(Request(gpu_count=gpus),),
        max_runtime_ms=limit_ms,
    )


def test_a_jobs_worst_case_is_its_limit_on_all_its_gpus() -> None:
    assert worst_case(a_job(gpus=2, limit_ms=3 * HOUR), 24 * HOUR) == 6 * GPU_HOUR
    assert worst_case(a_job(gpus=2), 24 * HOUR) == 48 * GPU_HOUR
    assert worst_case(a_job(gpus=0), 24 * HOUR) == 0


def test_what_runs_counts_with_what_it_may_still_spend() -> None:
    assert a_budget().left == 10 * GPU_HOUR
    assert a_budget().fits(10 * GPU_HOUR)
    assert not a_budget().fits(10 * GPU_HOUR + 1)
    assert a_budget().longest_ms(2000) == 5 * HOUR


def test_without_a_limit_everything_fits() -> None:
    budget = a_budget(limit=None)
    assert (budget.left, budget.longest_ms(1000)) == (None, None)
    assert budget.fits(10**30)
    assert reason_to_wait(budget, 10**30) is None


def test_a_job_without_gpus_fits_into_a_budget_that_was_overrun() -> None:
    budget = a_budget(spent=200 * GPU_HOUR)
    assert budget.left == 0
    assert budget.fits(0)
    assert not budget.fits(1)
    assert budget.longest_ms(0) is None


def test_the_reason_names_quota_request_use_and_what_is_left() -> None:
    reason = reason_to_wait(a_budget(), 12 * GPU_HOUR + 1)
    assert reason is not None
    assert reason.code is ReasonCode.QUOTA
    assert not reason.is_final
    assert str(reason) == (
        "quota exceeded for tenant vision: gpu_hours requested=12.001, quota=100, current=90"
    )
    assert reason.get("left") == "10"
    assert (reason.get("spent"), reason.get("committed")) == ("60", "30")
    assert reason_to_wait(a_budget(), 10 * GPU_HOUR) is None


@given(AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_there_is_a_reason_exactly_when_it_does_not_fit(
    limit: int, spent: int, committed: int, wanted: int
) -> None:
    budget = Budget(tenant="vision", limit=limit, spent=spent, committed=committed)
    reason = reason_to_wait(budget, wanted)
    assert (reason is None) == budget.fits(wanted)
    assert budget.fits(wanted) == (wanted == 0 or spent + committed + wanted <= limit)
    if reason is not None:
        asked, held = float(reason.get("requested")), float(reason.get("held"))
        assert asked + held > float(reason.get("limit")) * (1 - 1e-12)


@given(AMOUNTS, AMOUNTS, st.integers(1, 10**6))
def test_the_longest_time_is_the_longest_that_fits(limit: int, spent: int, gpu_milli: int) -> None:
    budget = Budget(tenant="vision", limit=limit, spent=spent)
    longest_ms = budget.longest_ms(gpu_milli)
    assert longest_ms is not None
    assert budget.fits(longest_ms * gpu_milli)
    assert not budget.fits((longest_ms + 1) * gpu_milli)


def test_a_job_beyond_the_whole_quota_is_refused_with_what_would_fit() -> None:
    with pytest.raises(QuotaTooSmall) as caught:
        refuse_beyond_quota(a_job(gpus=4), 24 * HOUR, 50 * GPU_HOUR)
    assert str(caught.value) == (
        "job j1 may use 96 GPU-hours (4 GPUs for up to 24 h) and the whole quota of tenant "
        "'vision' is 50; set a limit of 12.5 h or less, ask for fewer GPUs, or raise gpu_hours"
    )
    assert caught.value.code == "quota_exceeded"


def test_a_job_within_the_whole_quota_is_let_in() -> None:
    refuse_beyond_quota(a_job(gpus=4), 24 * HOUR, 96 * GPU_HOUR)
    refuse_beyond_quota(a_job(gpus=4), 24 * HOUR, None)
    refuse_beyond_quota(a_job(gpus=0), 24 * HOUR, 0)


def test_what_is_charged_moves_from_committed_to_spent() -> None:
    commitments = Commitments()
    commitments.commit("a1", "vision", 100)
    commitments.commit("a2", "vision", 50)
    commitments.draw("a1", 30)
    assert commitments.committed("vision") == 120
    commitments.draw("a1", 1_000)
    assert commitments.committed("vision") == 50
    commitments.settle("a2")
    commitments.settle("a2")
    assert commitments.committed("vision") == commitments.committed("speech") == 0


def test_committing_again_replaces_the_amount() -> None:
    commitments = Commitments()
    commitments.commit("a1", "vision", 100)
    commitments.commit("a1", "vision", 40)
    assert commitments.committed("vision") == 40
    with pytest.raises(InternalError):
        commitments.commit("a1", "vision", -1)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["commit", "draw", "settle"]),
            st.sampled_from(["a1", "a2", "a3"]),
            st.integers(0, 1_000),
        )
    )
)
def test_commitments_are_never_negative_and_end_at_nothing(
    steps: list[tuple[str, str, int]],
) -> None:
    commitments = Commitments()
    for step, allocation_id, amount in steps:
        if step == "commit":
            commitments.commit(allocation_id, "vision", amount)
        elif step == "draw":
            commitments.draw(allocation_id, amount)
        else:
            commitments.settle(allocation_id)
        assert commitments.committed("vision") >= 0
    for allocation_id in ("a1", "a2", "a3"):
        commitments.settle(allocation_id)
    assert commitments.committed("vision") == 0


def test_amounts_are_written_as_people_read_them() -> None:
    assert decimal_text(12_500, 3) == "12.5"
    assert decimal_text(-7, 3) == "-0.007"
    assert decimal_text(4_000, 3) == "4"
    assert gpu_hours(GPU_HOUR + 1) == "1"
    assert gpu_hours(GPU_HOUR + 1, up=True) == "1.001"
    assert [half_up(number, 4) for number in (0, 1, 2, 3, 4, 6)] == [0, 0, 1, 1, 1, 2]
