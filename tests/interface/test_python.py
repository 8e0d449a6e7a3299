"""The Python API: exported names with their signatures, and the values that programs compare."""

from importlib import import_module
from typing import Any

import pytest

import gpu_scheduler
import gpu_scheduler.testing
from gpu_scheduler.client.fields import JobFields
from gpu_scheduler.model.job import ENDED, HOLDING, TRANSITIONS, JobState
from gpu_scheduler.model.reasons import NEVER, ReasonCode
from tests.interface.stored import check_snapshot, public_shape

PUBLIC_ERRORS = {
    "gpu_scheduler": ("JobFailed", "NoServer", "TimedOut"),
    "gpu_scheduler.client.errors": ("JobFailed", "NoServer", "TimedOut", "Unreadable"),
    "gpu_scheduler.model.errors": (
        *("SchedulerError", "CallerError", "InvalidRequest", "InvalidInput", "NeverFits"),
        *("QuotaTooSmall", "Forbidden", "UnknownThing", "AlreadyExists", "WrongState"),
        *("ClusterError", "NotLeader", "QueueFull", "TooManyJobs", "StoreError"),
        *("StoreUnavailable", "OutcomeUnknown", "StoreDamaged", "StoreTooNew", "InternalError"),
    ),
}
"""Public modules by name: programs import them, so they must not move."""


def test_names_of_the_package() -> None:
    check_snapshot("python.json", exported(gpu_scheduler))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("gpu_scheduler.client.client", ("Client", "JobHandle")),
        ("gpu_scheduler.client.async_client", ("AsyncClient", "AsyncJobHandle")),
        ("gpu_scheduler.client.fields", ("JobFields",)),
    ],
)
def test_client_names_can_be_imported_from_their_modules(
    module: str, names: tuple[str, ...]
) -> None:
    found = import_module(module)
    for name in names:
        assert getattr(found, name) is getattr(gpu_scheduler, name, JobFields)


def test_names_of_testing_module() -> None:
    check_snapshot("python_testing.json", exported(gpu_scheduler.testing))


def test_fields_of_a_submission() -> None:
    found = {name: kind.__forward_arg__ for name, kind in JobFields.__annotations__.items()}
    check_snapshot("python_job_fields.json", found)


@pytest.mark.parametrize("module", PUBLIC_ERRORS)
def test_errors_can_be_imported_as_documented(module: str) -> None:
    missing = [name for name in PUBLIC_ERRORS[module] if not hasattr(import_module(module), name)]
    assert missing == []


def test_states_and_their_transitions() -> None:
    found = {
        "states": {state.name: state.value for state in JobState},
        "moves": {state.value: sorted(after) for state, after in TRANSITIONS.items()},
        "ended": sorted(ENDED),
        "holding": sorted(HOLDING),
    }
    check_snapshot("states.json", found)


def test_reason_codes() -> None:
    found = {
        "codes": {code.name: code.value for code in ReasonCode},
        "never": sorted(NEVER),
    }
    check_snapshot("reasons.json", found)


def exported(module: Any) -> dict[str, Any]:
    return {name: public_shape(getattr(module, name)) for name in module.__all__}
