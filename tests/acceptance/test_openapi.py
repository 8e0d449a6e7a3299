"""The server answers every request as its OpenAPI document says.

Schemathesis draws valid and invalid cases from the document, the same ones on every run. No answer
may be a server error, and each must have a documented status, media type and schema; what the
document forbids must be rejected.
"""

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gpu_scheduler.api.http.app import DOCUMENTED_OPERATIONS
from gpu_scheduler.api.http.openapi import openapi_document
from tests.unit.api.lab import ApiLab

pytestmark = pytest.mark.slow

SCHEMA = schemathesis.openapi.from_dict(openapi_document(DOCUMENTED_OPERATIONS, "0"))
OPERATIONS = {
    operation.label: operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
}
EXAMPLES = {GenerationMode.POSITIVE: 12, GenerationMode.NEGATIVE: 8}
CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
)


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        lab.start(lab.submit(name="running", gpu_count=1))
        lab.submit(name="held", hold=True)
        lab.submit(name="array", array="0-9%2")
        yield lab


@pytest.mark.parametrize("mode", EXAMPLES, ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("label", OPERATIONS)
def test_server_answers_only_as_its_openapi_description_says(
    lab: ApiLab, label: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[label]
    broken = mode is GenerationMode.NEGATIVE
    if broken and not _can_be_broken(operation):
        pytest.skip("takes nothing that could be wrong here")
    checks = (*CHECKS, negative_data_rejection) if broken else CHECKS

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES[mode],
        derandomize=True,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def answers(case: Any) -> None:
        if case.query:
            # Following a log ends only with the job, and no job ends here.
            case.query.pop("follow", None)
        response = case.call(base_url=f"http://127.0.0.1:{lab.port}")
        # An oversized body is rejected unread, whatever else is wrong with it.
        is_unread = response.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        case.validate_response(response, checks=CHECKS if is_unread else checks)

    answers()


def _can_be_broken(operation: Any) -> bool:
    """Whether an operation has parameters that could be invalid; `follow` is not tested here."""
    return bool(operation.body or operation.query) and not operation.label.endswith("/logs")
