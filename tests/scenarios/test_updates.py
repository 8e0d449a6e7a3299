"""Updates of waiting jobs."""

import pytest

from gpu_scheduler.control.messages import Cancel, Retry, Update
from gpu_scheduler.model.errors import InvalidRequest, NeverFits, QuotaTooSmall, WrongState
from gpu_scheduler.model.job import Job
from tests.builders import DAY, HOUR, a_job, a_node, a_policy, a_request, a_tenant, after
from tests.scenarios.lab import Lab


def full_lab(*waiting: Job, **changes: object) -> Lab:
    """One busy node, and jobs that wait for it."""
    lab = Lab(nodes=[a_node(gpus=8)], **changes)
    lab.submit(a_job(number=1, gpus=8))
    lab.submit(*waiting)
    return lab


def test_reduced_request_lets_job_start() -> None:
    lab = Lab(nodes=[a_node(gpus=8)])
    lab.submit(a_job(number=1, gpus=6), a_job(number=2, gpus=4))
    lab.do(Update("j2", (("members", (a_request(gpus=2),)),)))
    assert lab.running() == ["j1", "j2"]


def test_several_fields_are_updated_together_and_stored() -> None:
    lab = full_lab(a_job(number=2))
    lab.do(Update("j2", (("name", "better"), ("max_runtime_ms", HOUR))))
    job = lab.row("j2").job
    assert (job.name, job.max_runtime_ms, job.submit_ms) == ("better", HOUR, 0)
    assert lab.events("j2")[-1] == "updated"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ((("members", (a_request(gpus=99),)),), NeverFits),
        ((("members", (a_request(gpus=7),)),), QuotaTooSmall),
        ((("priority", 99_999),), InvalidRequest),
        ((("dependencies", after("j99")),), InvalidRequest),
    ],
)
def test_rejected_update_changes_nothing(changes, error) -> None:
    lab = full_lab(a_job(number=2, tenant="small"), tenants=[a_tenant(id="small", gpus=4)])
    before = lab.row("j2")
    with pytest.raises(error):
        lab.tell(Update("j2", changes))
    assert lab.core.state.jobs["j2"].row() == before


def test_started_job_cannot_be_updated() -> None:
    lab = full_lab()
    with pytest.raises(WrongState, match="has started"):
        lab.tell(Update("j1", (("name", "late"),)))


def test_added_dependency_is_awaited() -> None:
    lab = full_lab(a_job(number=2))
    lab.do(Update("j2", (("dependencies", after("j1")),)))
    lab.ends("j1")
    assert lab.running() == ["j2"]
    lab = full_lab(a_job(number=2))
    lab.do(Update("j2", (("dependencies", after("j1")),)))
    lab.ends("j1", exit_code=1)
    assert lab.state("j2") == "cancelled"


def test_dependency_can_be_removed() -> None:
    lab = Lab(nodes=[a_node(gpus=8)])
    lab.submit(a_job(number=1), a_job(number=2, dependencies=after("j1")))
    assert lab.running() == ["j1"]
    lab.do(Update("j2", (("dependencies", ()),)))
    assert lab.running() == ["j1", "j2"]


def test_unsatisfiable_or_circular_dependency_is_rejected() -> None:
    lab = Lab(nodes=[a_node(gpus=8)])
    lab.submit(a_job(number=1))
    lab.ends("j1", exit_code=1)
    lab.submit(a_job(number=2, hold=True), a_job(number=3, dependencies=after("j2")))
    with pytest.raises(InvalidRequest, match="can never be met"):
        lab.tell(Update("j2", (("dependencies", after("j1")),)))
    with pytest.raises(InvalidRequest, match="depends on job j2; the dependency would be circular"):
        lab.tell(Update("j2", (("dependencies", after("j3")),)))


def test_protected_waiting_job_can_be_updated() -> None:
    lab = Lab(nodes=[a_node(gpus=1)], policy=a_policy(name="feedback"))
    long = {"preemptible": False, "estimate_ms": 100 * DAY, "max_runtime_ms": 100 * DAY}
    lab.submit(a_job(number=1, **long), a_job(number=2))
    lab.at(lab.core.state.policy.feedback.protect_after_ms + HOUR)
    assert lab.row("j2").protected
    lab.do(Update("j2", (("name", "x"),)))
    assert lab.row("j2").job.name == "x"


def test_retried_job_cancelled_before_start_can_be_updated() -> None:
    lab = Lab(nodes=[a_node(gpus=1)])
    lab.submit(a_job(number=1), a_job(number=2))
    lab.do(Cancel("j2"))
    lab.do(Retry("j2"))
    lab.do(Update("j2", (("name", "x"),)))
    assert lab.row("j2").job.name == "x"
