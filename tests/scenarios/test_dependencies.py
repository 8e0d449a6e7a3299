"""Jobs that depend on other jobs, also when those fail."""

import pytest

from gpu_scheduler.control.messages import Submit
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import JobState
from tests.builders import a_job, a_node, after, an_array
from tests.scenarios.lab import Lab


def test_job_waits_for_its_dependency() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    assert lab.row("j2").reason == "waiting for job j1 (afterok)"
    lab.ends("j1")
    assert lab.running() == ["j2"]


def test_unsatisfiable_dependency_ends_job_with_reason() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1", exit_code=1)
    assert lab.state("j2") is JobState.CANCELLED
    assert lab.row("j2").reason == "job j1 ended as failed, so afterok can never be met"


@pytest.mark.parametrize(
    ("kind", "exit_code", "runs"),
    [
        ("afterok", 0, True),
        ("afterok", 1, False),
        ("afterany", 0, True),
        ("afterany", 1, True),
        ("afternotok", 0, False),
        ("afternotok", 1, True),
    ],
)
@pytest.mark.parametrize("submitted_late", [False, True])
def test_every_dependency_kind_is_honoured(kind, exit_code, runs, submitted_late) -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(a_job(number=1))
    dependent = a_job(number=2, dependencies=after("j1", kind))
    if not submitted_late:
        lab.submit(dependent)
    lab.ends("j1", exit_code=exit_code)
    if submitted_late:
        lab.submit(dependent)
    assert lab.running() == (["j2"] if runs else [])
    assert lab.state("j2") is (JobState.RUNNING if runs else JobState.CANCELLED)


def test_dependency_on_unknown_job_is_rejected() -> None:
    lab = Lab(nodes=[a_node()])
    with pytest.raises(InvalidRequest, match="depends on job j9, which is not known"):
        lab.submit(a_job(number=1, dependencies=after("j9")))


def test_job_with_two_dependencies_waits_for_both() -> None:
    lab = Lab(nodes=[a_node()])
    both = after("j1") + after("j2", "afterany")
    lab.submit(a_job(number=1), a_job(number=2), a_job(number=3, dependencies=both))
    lab.ends("j1")
    assert "j3" not in lab.running()
    lab.ends("j2", exit_code=1)
    assert lab.running() == ["j3"]


def test_job_can_depend_on_whole_array() -> None:
    lab = Lab(nodes=[a_node()])
    lab.submit(an_array(number=1, tasks="0-1"), a_job(number=2, dependencies=after("j1")))
    lab.ends("j1_0")
    assert "j2" not in lab.running()
    lab.ends("j1_1")
    assert lab.running() == ["j2"]


def test_long_dependency_chain_ends_when_first_job_fails() -> None:
    lab = Lab(nodes=[a_node()])
    length = 2_000
    lab.tell(Submit(a_job(number=1)))
    for number in range(2, length + 1):
        lab.tell(Submit(a_job(number=number, dependencies=after(f"j{number - 1}"))))
    lab.cycle()
    lab.ends("j1", exit_code=1)
    assert lab.state(f"j{length}") is JobState.CANCELLED
    assert lab.core.state.queued_tasks == 0
