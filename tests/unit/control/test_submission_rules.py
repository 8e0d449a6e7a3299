"""Site rules are applied to a message before it is executed."""

from dataclasses import replace

import pytest

from gpu_scheduler.control.access.permissions import apply_rules
from gpu_scheduler.control.messages import (
    Command,
    CreateService,
    Submit,
    SubmitAll,
    SubmitSeries,
    UpdateService,
)
from gpu_scheduler.control.state import ControlState
from gpu_scheduler.model.errors import Forbidden
from gpu_scheduler.model.launch import Launch
from tests.builders import a_job
from tests.scenarios.test_services import a_service
from tests.unit.control.test_loop import a_core

ASKED, SETTLED = Launch(argv=("x",), conda="ml"), Launch(argv=("x",), conda="/opt/conda/envs/ml")
SERVICE = replace(a_service(), launch=ASKED)
SERIES = SubmitSeries(a_job(), ASKED, None, ("a", "b"), (("x",), ("x",)))


def settle(submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
    return replace(submission, launch=SETTLED)


def state() -> ControlState:
    return a_core(nodes=[]).state


def launches(message: Command) -> list[Launch | None]:
    if isinstance(message, CreateService):
        return [message.service.launch]
    if isinstance(message, UpdateService):
        return [message.wanted.launch]
    assert isinstance(message, Submit | SubmitSeries | SubmitAll)
    all_ = message.submissions if isinstance(message, SubmitAll) else (message,)
    return [one.launch for one in all_]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Submit(a_job(), ASKED), id="single"),
        pytest.param(SERIES, id="series"),
        pytest.param(SubmitAll((Submit(a_job(), ASKED), SERIES)), id="bulk"),
        pytest.param(CreateService(SERVICE), id="service"),
        pytest.param(UpdateService("svc-1", SERVICE), id="updated service"),
    ],
)
def test_rules_rewrite_launch_of_every_command(message: Command) -> None:
    allowed = apply_rules(state(), message, settle)
    assert set(launches(allowed)) == {SETTLED}
    assert apply_rules(state(), message, lambda same: same) is message


def test_first_rejected_submission_is_named() -> None:
    def refuse_plain(submission: Submit | SubmitSeries) -> Submit | SubmitSeries:
        if isinstance(submission, Submit):
            raise Forbidden("no")
        return submission

    with pytest.raises(Forbidden) as refusal:
        apply_rules(state(), SubmitAll((SERIES, Submit(a_job(), ASKED))), refuse_plain)
    assert refusal.value.index == 2
