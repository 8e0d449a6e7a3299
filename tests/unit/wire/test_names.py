"""Names of jobs and tasks, and formatted times."""

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.wire.jobs import read_job_name, read_tasks
from gpu_scheduler.wire.times import read_time, write_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", ("job-12", None)),
        ("job-12", ("job-12", None)),
        (" 12 ", ("job-12", None)),
        ("0012", ("job-12", None)),
        ("12_4", ("job-12", 4)),
        ("job-12_0", ("job-12", 0)),
    ],
)
def test_job_is_named_by_number(text: str, expected: tuple[str, int | None]) -> None:
    assert read_job_name(text) == expected


@pytest.mark.parametrize("text", ["", "job-", "x", "12_", "_4", "-1", "1.5", "9" * 30, "\u0663"])
def test_invalid_job_name_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a job id"):
        read_job_name(text)


def test_tasks_are_ranges() -> None:
    assert str(read_tasks("1-3,7,9-11:2")) == "1-3,7,9,11"


def test_formatted_time_can_be_parsed() -> None:
    for at_ms in (0, 999, 1_700_000_000_123):
        text = write_time(at_ms)
        assert text is not None
        assert read_time(text, "x") == at_ms
    assert write_time(None) is None
    assert write_time(1_500) == "1970-01-01T00:00:01.500Z"
