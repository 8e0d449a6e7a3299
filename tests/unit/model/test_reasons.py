"""Every reason has a sentence."""

import re

import pytest

from gpu_scheduler.model.reasons import NEVER, SENTENCES, Reason, ReasonCode


@pytest.mark.parametrize("code", ReasonCode)
def test_every_reason_code_has_sentence_with_all_its_data(code: ReasonCode) -> None:
    names = re.findall(r"{(\w+)}", SENTENCES[code])
    said = str(Reason(code, tuple((name, f"<{name}>") for name in names)))
    assert said
    assert all(f"<{name}>" in said for name in names)
    assert "?" not in said


def test_unknown_value_is_shown_as_question_mark() -> None:
    assert str(Reason(ReasonCode.BEHIND)) == "waiting behind job ?, which is first in line"


def test_quota_reason_names_tenant_request_quota_and_usage() -> None:
    data = (("held", 2), ("limit", 4), ("requested", 8), ("resource", "GPUs"), ("tenant", "X"))
    assert str(Reason(ReasonCode.QUOTA, data)) == (
        "quota exceeded for tenant X: GPUs requested=8, quota=4, current=2"
    )


@pytest.mark.parametrize(("victims", "said"), [(1, "1 job"), (3, "3 jobs")])
def test_job_counts_are_pluralised(victims: int, said: str) -> None:
    reason = Reason(ReasonCode.CLAIMED, (("victims", victims), ("whose", "of a lower class")))
    assert str(reason) == f"its place is being cleared of {said} of a lower class"
    assert reason.get("victims") == victims


def test_never_differs_from_not_now() -> None:
    final = {code for code in ReasonCode if Reason(code).is_final}
    assert final == NEVER == {ReasonCode.DEPENDENCY_FAILED, ReasonCode.NEVER_FITS}


def test_reason_data_is_accessible_by_name() -> None:
    reason = Reason(ReasonCode.BEHIND, (("job", "j7"),))
    assert reason.get("job") == "j7"
    assert reason.get("user") is None


def test_reason_can_carry_additional_text() -> None:
    reason = Reason(ReasonCode.MOST_JOBS, (("limit", 4),)).besides("no job may be stopped for it")
    assert reason.data == (("besides", "no job may be stopped for it"), ("limit", 4))
    assert str(reason) == (
        "4 jobs run, which is the most that may run at once; no job may be stopped for it"
    )
