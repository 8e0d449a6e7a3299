"""SchedulerService messages and REST objects have the same fields."""

import msgspec
import pytest

from gpu_scheduler.api.grpc.scheduler_service import (
    REMOVABLE_LIMITS,
    event_of,
    job_form,
    list_query,
    message_of,
    quota_form,
)
from gpu_scheduler.api.routes.cluster import ClusterStatus, PoolUse
from gpu_scheduler.api.routes.events import EventForm
from gpu_scheduler.api.routes.job_views import JobForm
from gpu_scheduler.api.routes.jobs import JobPage
from gpu_scheduler.api.routes.submit import Submitted, Validated
from gpu_scheduler.api.routes.tenants import TenantForm
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.jobs import JobRequest, MemberRequest
from gpu_scheduler.wire.tenants import TenantPatch

OWN = {"priority_name", "member_specs"}
"""Fields that REST expresses by another type of the same field."""
PAIRS = [
    (JobForm, pb.Job, set()),
    (JobPage, pb.ListJobsAnswer, set()),
    (TenantForm, pb.Tenant, set()),
    (ClusterStatus, pb.ClusterStatus, set()),
    (PoolUse, pb.PoolUse, set()),
    (EventForm, pb.Event, set()),
    (Submitted, pb.SubmitJobAnswer, {"validated"}),
    (Validated, pb.Validated, set()),
    (JobRequest, pb.JobSpec, OWN),
    (MemberRequest, pb.MemberSpec, set()),
]


@pytest.mark.parametrize(
    ("form", "message", "own"), PAIRS, ids=[form.__name__ for form, _, _ in PAIRS]
)
def test_grpc_has_every_field_of_rest(form: type, message: type, own: set[str]) -> None:
    fields = {field.name for field in msgspec.structs.fields(form)}
    known = set(message.DESCRIPTOR.fields_by_name)  # type: ignore[attr-defined]
    assert fields - known == set(), "missing in the .proto"
    assert known - fields == own, "not known to REST"


def test_every_tenant_limit_can_be_changed_and_removed() -> None:
    changes = {field.name for field in msgspec.structs.fields(TenantPatch)}
    known = set(pb.UpdateTenantQuotaRequest.DESCRIPTOR.fields_by_name)
    assert known & changes >= REMOVABLE_LIMITS
    assert {name for name in changes if "max_" in name} - {"max_preemptions"} <= REMOVABLE_LIMITS


def test_job_with_every_field_is_accepted_by_rest() -> None:
    spec = pb.JobSpec(
        command=["a"],
        priority_name="high",
        member_specs=[pb.MemberSpec(gpu_count=1), pb.MemberSpec(gpu_count=2)],
        captured_environment=pb.Variables(values={"A": "1"}),
        array=pb.ArraySpec(tasks="0-3", max_running=1),
        dependencies=[pb.Dependency(type="afterany", job_id="3")],
        preemptible=False,
        umask=0o22,
        snapshot=pb.Snapshot(path="/p", source="/s", tree="t"),
        terminal=pb.JobSpec.Terminal(rows=10),
        node_labels={"disk": "ssd"},
        allowed_gpus=[0, 1],
    )
    read = msgspec.convert(job_form(spec), JobRequest)
    assert (read.priority, read.preemptible, read.umask) == ("high", False, 0o22)
    assert [member.gpu_count for member in read.members] == [1, 2]  # type: ignore[union-attr]
    assert read.captured_environment == {"A": "1"}
    assert job_form(pb.JobSpec(captured_environment=pb.Variables())) == {"captured_environment": {}}


def test_omitted_fields_are_left_to_rest() -> None:
    assert job_form(pb.JobSpec(command=["a"])) == {"command": ["a"]}
    assert list_query(pb.ListJobsRequest(states=["pending", "running"], archived=True)) == {
        "state": "pending,running",
        "archived": "true",
    }


def test_limit_is_changed_kept_or_removed() -> None:
    asked = pb.UpdateTenantQuotaRequest(tenant_id="t", max_gpus=0, unlimited=["max_gpu_hours"])
    assert quota_form(asked) == {"max_gpus": 0, "max_gpu_hours": None}
    for names in (["name"], ["max_gpus"]):
        with pytest.raises(ValueError, match="unlimited"):
            quota_form(pb.UpdateTenantQuotaRequest(max_gpus=1, unlimited=names))


def test_fields_of_newer_leader_are_ignored() -> None:
    job = message_of(
        pb.Job, {"id": "job-1", "brand_new": 1, "submitted_at": "2026-01-02T03:04:05Z"}
    )
    assert (job.id, job.submitted_at.seconds) == ("job-1", 1767323045)
    event = event_of({"sequence": 1, "at": "2026-01-02T03:04:05Z", "data": {"n": 1, "x": "y"}})
    assert dict(event.data) == {"n": "1", "x": "y"}
