"""Job state transitions, allowed and rejected."""

import itertools

import pytest

from gpu_scheduler.model.errors import WrongState
from gpu_scheduler.model.job import ENDED, HOLDING, JobState, move

P, S, R, C, F, X, E = (
    JobState.PENDING,
    JobState.SCHEDULED,
    JobState.RUNNING,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
    JobState.PREEMPTED,
)
ALLOWED = {
    *((P, to) for to in (S, X, F)),
    *((S, to) for to in (R, P, X, F, E, C)),
    *((R, to) for to in (C, F, X, E)),
    *((E, to) for to in (P, X, F)),
    (F, P),
    (X, P),
}


@pytest.mark.parametrize(("current", "wanted"), sorted(itertools.product(JobState, JobState)))
def test_transition_is_allowed_exactly_if_in_table(current, wanted) -> None:
    if (current, wanted) in ALLOWED:
        assert move(current, wanted) is wanted
    else:
        with pytest.raises(WrongState, match=f"a {current} job cannot become {wanted}; allowed: "):
            move(current, wanted)


def test_rejection_lists_allowed_transitions() -> None:
    with pytest.raises(WrongState, match="allowed: cancelled, failed, scheduled"):
        move(P, R)
    with pytest.raises(WrongState, match="allowed: nothing: it has ended"):
        move(C, P)


def test_no_state_both_holds_devices_and_has_ended() -> None:
    assert not ENDED & HOLDING
    assert {C, F, X} == ENDED
    assert {S, R} == HOLDING
