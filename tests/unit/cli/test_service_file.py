"""Service files and their errors."""

from pathlib import Path

import pytest

from gpu_scheduler.cli.cluster.services import read_service_file
from gpu_scheduler.model.errors import InvalidInput


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("time: 2h", "'time' is for jobs; a replica has no time limit, leave it out"),
        ("max_runtime_minutes: 5", "'max_runtime_minutes' is for jobs; a replica has no time"),
        ("retries: 3", "'retries' is for jobs; use 'restart' for a service"),
        ("begin: 18:00", "'begin' is for jobs, not for services; leave it out"),
        ("tmie: 2h", "unknown field 'tmie'; docs/reference/cli.md lists them"),
        ("replica: 2", "unknown field 'replica'; did you mean 'replicas'?"),
        ("gpu: 2", "unknown field 'gpu'; did you mean 'gpus'?"),
    ],
)
def test_unknown_field_of_service_is_named_with_line(
    tmp_path: Path, line: str, message: str
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(f"name: web\ncommand: x\n{line}\n")
    with pytest.raises(InvalidInput) as refusal:
        read_service_file(str(file))
    assert f"{file}, line 3: {message}" in str(refusal.value)
