"""An admin corrects the run time for which an attempt was charged."""

import pytest

from gpu_scheduler.control.access.permissions import check
from gpu_scheduler.control.messages import CorrectUsage
from gpu_scheduler.model.errors import Forbidden, InvalidRequest
from gpu_scheduler.model.identity import Caller
from tests.builders import DAY, HOUR, MINUTE, a_job, a_node
from tests.scenarios.lab import Lab

ACCOUNTS = ("vision", ("vision", "ada"))


def a_lab(run_ms: int) -> Lab:
    """Job j1, charged for this run time; a day has passed."""
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1, cpus=2))
    lab.at(run_ms)
    lab.ends("j1")
    lab.at(run_ms + DAY)
    return lab


def correction(lab: Lab, run_ms: int) -> CorrectUsage:
    (attempt,) = lab.store.attempts("j1", None)
    return CorrectUsage("j1", lab.row("j1").job, attempt, run_ms, "wrong clock")


def figures(lab: Lab) -> list[object]:
    state = lab.core.state
    return [
        (
            state.usage_totals.total(account),
            [state.usage_totals.total_in(account, at_ms) for at_ms in (0, 40 * DAY)],
            state.weekly_usage.spent(account, lab.now_ms),
        )
        for account in ACCOUNTS
    ]


def fair_share(lab: Lab) -> list[int]:
    usage = lab.core.state.decayed_usage
    return [usage.usage_at(account, lab.now_ms) for account in ACCOUNTS]


@pytest.mark.parametrize(("wrong_ms", "right_ms"), [(10 * HOUR, MINUTE), (HOUR, 20 * HOUR)])
def test_correction_gives_same_accounts_as_right_run_time(wrong_ms: int, right_ms: int) -> None:
    lab, right = a_lab(wrong_ms), a_lab(right_ms)
    later_ms = max(lab.now_ms, right.now_ms)
    for one in (lab, right):
        one.at(later_ms)
    lab.do(correction(lab, right_ms))
    assert figures(lab) == figures(right)
    assert fair_share(lab) == pytest.approx(fair_share(right), rel=1e-6)
    (attempt,) = lab.store.attempts("j1", None)
    assert attempt.end_ms - attempt.start_ms == right_ms
    lab.store.commit(lab.core.ledger_writes())
    stored = {(row.period_ms, row.tenant, row.user): row.totals[0] for row in lab.store.usage()}
    assert stored[None, "vision", "ada"] == 1000 * right_ms
    event = [row for _, row in lab.store.events()][-1]
    assert (event.kind, event.job_id) == ("usage_corrected", "j1")
    assert dict(event.data)["from_ms"] == wrong_ms


def test_two_corrections_of_one_batch_count_once() -> None:
    lab, right = a_lab(10 * HOUR), a_lab(MINUTE)
    right.at(lab.now_ms)
    stale = correction(lab, MINUTE)
    lab.do(stale, stale)
    assert figures(lab) == figures(right)


def test_correction_cannot_charge_the_future_or_less_than_nothing() -> None:
    lab = a_lab(HOUR)
    for run_ms in (-1, 30 * DAY):
        with pytest.raises(InvalidRequest, match="cannot have run for"):
            lab.tell(correction(lab, run_ms))


def test_only_admins_correct_usage() -> None:
    lab = a_lab(HOUR)
    with pytest.raises(Forbidden, match="only an admin"):
        check(lab.core.state, Caller(user="ada", tenants=frozenset({"vision"})), correction(lab, 0))
