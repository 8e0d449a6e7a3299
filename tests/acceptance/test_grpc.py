"""SchedulerService as other programs use it: clients are built by server reflection."""

import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import gpu_scheduler
from gpu_scheduler.wire import scheduler_pb2 as pb
from tests.cluster import Cluster, a_cluster

SERVICE = "gpu_scheduler.v1.SchedulerService"
LONGEST_S = 30
FILES_OF_SERVER = 1024
DETAILS = "grpc-status-details-bin"
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server and a node, without TLS as by default on loopback; few files may be open."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, FILES_OF_SERVER), most))
    with a_cluster(
        "n1",
        api_max_jobs_per_request="2000",
        api_requests_per_second="1",
        api_requests_burst="20",
        grpc_max_message_mb="1",
    ) as running:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            yield running
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))


@pytest.fixture(scope="module")
def channel(cluster: Cluster) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(cluster.nodes_address) as opened:
        yield opened


def token_of(cluster: Cluster, **asked: Any) -> str:
    with cluster.client() as client:
        user = client.call("GET", "/api/v1/me")["user"]
        made = client.call("POST", "/api/v1/tokens", {"user": user, **asked})
    return str(made["token"])


class Reflected:
    """A client that knows only what reflection answers."""

    def __init__(self, channel: grpc.Channel, token: str = "") -> None:
        self._channel = channel
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        (answer,) = list(stub.ServerReflectionInfo(iter([asked]), timeout=LONGEST_S))
        pool = DescriptorPool()
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(raw)
            for raw in answer.file_descriptor_response.file_descriptor_proto
        ]
        waiting = {file.name: file for file in files}

        def add(name: str) -> None:
            file = waiting.pop(name, None)
            if file is not None:
                for needed in file.dependency:
                    add(needed)
                pool.Add(file)

        for file in files:
            add(file.name)
        self._service = pool.FindServiceByName(SERVICE)

    def __call__(self, name: str, key: str = "", **asked: Any) -> Any:
        """Call a method with fields as in JSON; the response is JSON too."""
        method = self._service.methods_by_name[name]
        message = json_format.ParseDict(asked, GetMessageClass(method.input_type)())
        call: Any = (
            self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        )
        made = call(
            f"/{SERVICE}/{name}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        metadata = [*self._metadata, *([("idempotency-key", key)] if key else [])]
        answer = made(message, metadata=metadata, timeout=LONGEST_S)
        return answer if method.server_streaming else told(answer)


def told(message: Any) -> dict[str, Any]:
    form: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return form


@pytest.fixture(scope="module")
def admin(cluster: Cluster, channel: grpc.Channel) -> Reflected:
    return Reflected(channel, token_of(cluster, role="admin"))


@contextmanager
def refused() -> Iterator[SimpleNamespace]:
    """The error of a call: status, message and details."""
    found = SimpleNamespace(code="", text="", reason="", metadata={}, retry=None)
    with pytest.raises(grpc.RpcError) as raised:
        yield found
    error = raised.value
    found.code, found.text = error.code().name, error.details()
    for name, value in error.trailing_metadata() or ():
        if name == DETAILS:
            status = pb.ErrorStatus.FromString(value)
            assert status.code == error.code().value[0]
            assert status.message == error.details()
            for detail in status.details:
                _read_detail(detail, found)


def _read_detail(detail: Any, found: SimpleNamespace) -> None:
    if detail.type_url == "type.googleapis.com/google.rpc.ErrorInfo":
        info = pb.ErrorInfo.FromString(detail.value)
        found.reason, found.metadata = info.reason, dict(info.metadata)
    elif detail.type_url == "type.googleapis.com/google.rpc.RetryInfo":
        found.retry = pb.RetryInfo.FromString(detail.value).retry_delay.seconds


# --- jobs


def test_job_is_submitted_and_watched_until_its_end(admin: Reflected) -> None:
    made = admin("SubmitJob", job={"command": ["sh", "-c", "exit 3"], "gpu_count": 1, "name": "g"})
    for event in admin("WatchEvents", after=0):
        if event.job_id == made["job_id"] and event.kind == "failed":
            break
    job = admin("GetJobStatus", job_id=made["job_id"])
    assert (job["state"], job["exit_code"], job["gpu_count"]) == ("failed", 3, 1)
    assert job["allocation"][0]["node"] == "n1"


def test_dry_run_gives_same_answers_and_errors_as_submission(admin: Reflected) -> None:
    spec = {"command": ["true"], "gpu_count": 1, "max_runtime_minutes": 5}
    found = admin("SubmitJob", job=spec, dry_run=True)
    assert (found["status"], found.get("job_id", "")) == ("valid", "")
    assert found["validated"]["expected_start"] < found["validated"]["expected_end"]
    with refused() as why:
        admin("SubmitJob", job=spec | {"gpu_count": 99}, dry_run=True)
    assert why.reason == "never_fits"


def test_cancelling_unknown_array_task_fails_over_grpc(admin: Reflected) -> None:
    spec = {"command": ["true"], "array": {"tasks": "0-3"}, "hold": True}
    job_id = admin("SubmitJob", job=spec)["job_id"]
    for asked in ({"job_id": job_id, "tasks": "2-7"}, {"job_id": f"{job_id}_4"}):
        with refused() as why:
            admin("CancelJob", **asked)
        assert (why.code, why.reason) == ("NOT_FOUND", "not_found")
        assert why.text.endswith("has no task 4")
    assert admin("GetJobStatus", job_id=f"{job_id}_2")["state"] == "pending"
    admin("CancelJob", job_id=job_id)


def test_job_reads_the_same_over_grpc_and_rest(admin: Reflected, cluster: Cluster) -> None:
    spec = {
        "command": ["true"],
        "name": "same",
        "priority_name": "high",
        "gpu_count": 1.5,
        "environment": {"A": "1"},
        "max_runtime_minutes": 5,
        "preemptible": False,
        "array": {"tasks": "0-3", "max_running": 2},
        "params": {"lr": "0.1"},
        "begin_at": "2099-01-01T00:00:00Z",
        "dependencies": [],
    }
    made = admin("SubmitJob", job=spec)
    assert made["tasks"] == "4"
    with cluster.client() as client:
        rest = client.call("GET", f"/api/v1/jobs/{made['job_id']}")
    own = admin("GetJobStatus", job_id=made["job_id"])
    for name, value in rest.items():
        if value not in (None, [], {}, "", False, 0):
            assert _alike(own[name], value), (name, own[name], value)
    assert not own.keys() - rest.keys()
    admin("CancelJob", job_id=made["job_id"])


def _alike(own: Any, rest: Any) -> bool:
    """Protobuf JSON writes large numbers as text and omits defaults."""
    if isinstance(rest, dict):
        return all(_alike(own.get(name), value) for name, value in rest.items() if value)
    if isinstance(rest, list):
        return len(own) == len(rest) and all(map(_alike, own, rest))
    if isinstance(rest, str) and rest.endswith("Z"):
        return str(own).rstrip("0Z.") == rest.rstrip("0Z.")
    return own == rest or (isinstance(rest, int | float) and float(own) == rest)


def test_bulk_submission_is_all_or_nothing(admin: Reflected) -> None:
    held = {"command": ["true"], "hold": True, "sweep": "grpc-many"}
    made = admin("SubmitJobs", jobs=[held] * 500)
    assert len(made["job_ids"]) == 500
    with refused() as why:
        admin("SubmitJobs", jobs=[held, {**held, "gpu_count": -1}, held])
    assert (why.code, why.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert why.metadata["index"] == "1"
    with refused() as why:
        admin("SubmitJobs", jobs=[])
    assert why.code == "INVALID_ARGUMENT"
    page = admin("ListJobs", sweep="grpc-many", states=["pending"], limit=100, sort="number")
    assert (page["total"], len(page["jobs"])) == ("500", 100)
    last = admin("ListJobs", sweep="grpc-many", sort="number", limit=450, offset=100)
    assert [job["job_id"] for job in last["jobs"]] == made["job_ids"][100:]
    for job_id in made["job_ids"]:
        admin("CancelJob", job_id=job_id)


def test_repeated_call_with_same_idempotency_key_has_no_further_effect(admin: Reflected) -> None:
    job = {"command": ["true"], "hold": True}
    first = admin("SubmitJob", key="once", job=job)
    assert admin("SubmitJob", key="once", job=job) == first
    with refused() as why:
        admin("SubmitJob", key="once", job={**job, "name": "other"})
    assert (why.code, why.reason) == ("INVALID_ARGUMENT", "key_reused")
    admin("CancelJob", job_id=first["job_id"])


def test_watch_resumes_after_any_event_without_gap_or_repetition(admin: Reflected) -> None:
    made = admin("SubmitJobs", jobs=[{"command": ["true"], "hold": True}] * 20)
    for job_id in made["job_ids"]:
        admin("CancelJob", job_id=job_id)
    whole = _events(admin, 0, until=made["job_ids"][-1])
    numbers = [event.sequence for event in whole]
    assert numbers == sorted(set(numbers))
    middle = whole[len(whole) // 2].sequence
    rest = _events(admin, middle, until=made["job_ids"][-1])
    assert [event.sequence for event in rest] == [number for number in numbers if number > middle]


def _events(admin: Reflected, after: int, until: str) -> list[Any]:
    found = []
    stream = admin("WatchEvents", after=after)
    for event in stream:
        found.append(event)
        if event.job_id == until and event.kind == "cancelled":
            stream.cancel()
            return found
    raise AssertionError("the stream has ended")


# --- the cluster and tenants


def test_cluster_status_and_metrics_are_served(admin: Reflected) -> None:
    status = admin("GetClusterStatus", detailed=True)
    assert (status["total_nodes"], status["total_gpus"]) == ("1", "8")
    assert "gpu_scheduler_gpus 8.0" in admin("GetMetrics")["text"]


def test_quotas_changed_by_admin_apply_to_grpc(
    admin: Reflected, cluster: Cluster, channel: grpc.Channel
) -> None:
    with cluster.client() as client:
        client.call("POST", "/api/v1/tenants", {"id": "small", "name": "small"})
    tenant = admin("UpdateTenantQuota", tenant_id="small", max_gpus=2, max_pending_jobs=1)
    assert (tenant["max_gpus"], tenant["max_pending_jobs"]) == (2, "1")
    user = Reflected(channel, token_of(cluster, tenant_id="small"))
    with refused() as why:
        user("SubmitJob", job={"command": ["true"], "gpu_count": 4})
    assert (why.code, why.reason) == ("RESOURCE_EXHAUSTED", "quota_exceeded")
    assert "2" in why.text
    assert "max_gpus" not in admin("UpdateTenantQuota", tenant_id="small", unlimited=["max_gpus"])
    with refused() as why:
        admin("UpdateTenantQuota", tenant_id="small", unlimited=["name"])
    assert why.code == "INVALID_ARGUMENT"
    with refused() as why:
        user("UpdateTenantQuota", tenant_id="small", max_gpus=100)
    assert (why.code, why.reason) == ("PERMISSION_DENIED", "forbidden")


# --- authentication and limits


def test_grpc_requires_token_even_from_localhost(channel: grpc.Channel) -> None:
    with refused() as why:
        Reflected(channel)("ListJobs")
    assert (why.code, why.reason) == ("UNAUTHENTICATED", "unauthenticated")
    with refused() as why:
        Reflected(channel, "tgpu_" + "x" * 43)("SubmitJob", job={"command": ["true"]})
    assert (why.code, why.reason) == ("UNAUTHENTICATED", "token_unknown")


def test_viewer_write_is_denied_and_audited(cluster: Cluster, channel: grpc.Channel) -> None:
    viewer = Reflected(channel, token_of(cluster, role="viewer"))
    assert viewer("GetClusterStatus")["total_nodes"] == "1"
    with refused() as why:
        viewer("SubmitJob", job={"command": ["true"]})
    assert (why.code, why.reason) == ("PERMISSION_DENIED", "forbidden")

    def is_noted() -> bool:
        rows = cluster.json("audit")["records"]
        return any(row["action"] == "submit_job" and row["outcome"] == "refused" for row in rows)

    cluster.until(is_noted, "the refusal is in the record")


def test_token_of_one_tenant_does_not_see_jobs_of_another(
    admin: Reflected, cluster: Cluster, channel: grpc.Channel
) -> None:
    with cluster.client() as client:
        client.call("POST", "/api/v1/tenants", {"id": "apart", "name": "apart"})
    secret = admin("SubmitJob", job={"command": ["true"], "name": "secret", "hold": True})
    other = Reflected(channel, token_of(cluster, tenant_id="apart"))
    seen = other("GetJobStatus", job_id=secret["job_id"])
    assert seen["redacted"] is True
    assert "name" not in seen
    with refused() as why:
        other("CancelJob", job_id=secret["job_id"])
    assert why.code == "PERMISSION_DENIED"
    admin("CancelJob", job_id=secret["job_id"])
    with refused() as why:
        other("GetJobStatus", job_id=secret["job_id"])
    assert (why.code, why.reason) == ("NOT_FOUND", "not_found")
    stream = other("WatchEvents", after=0)
    mine = other("SubmitJob", job={"command": ["true"], "tenant_id": "apart", "hold": True})
    for event in stream:
        assert event.job_id != secret["job_id"]
        if event.job_id == mine["job_id"]:
            break


@pytest.mark.parametrize("job_id", ["", "nothing", "999999", "../tenants/x", "1/attempts", "é"])
def test_invalid_job_id_is_rejected(admin: Reflected, job_id: str) -> None:
    with refused() as why:
        admin("GetJobStatus", job_id=job_id)
    assert why.code in {"NOT_FOUND", "INVALID_ARGUMENT"}


def test_rate_limited_caller_is_told_when_to_retry(cluster: Cluster, channel: grpc.Channel) -> None:
    hasty = Reflected(channel, token_of(cluster))
    with refused() as why:
        for _ in range(60):
            hasty("GetClusterStatus")
    assert (why.code, why.reason) == ("RESOURCE_EXHAUSTED", "too_fast")
    assert why.retry >= 1


def test_call_deadline_is_respected(admin: Reflected, channel: grpc.Channel) -> None:
    stub = channel.unary_stream(f"/{SERVICE}/WatchEvents")
    with pytest.raises(grpc.RpcError) as raised:
        list(stub(b"", metadata=admin._metadata, timeout=0.3))
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_oversized_message_is_rejected(admin: Reflected) -> None:
    with refused() as why:
        admin("SubmitJob", job={"command": ["true"], "environment": {"A": "x" * 2_000_000}})
    assert why.code == "RESOURCE_EXHAUSTED"


def test_bulk_submission_over_limit_is_rejected(admin: Reflected) -> None:
    with refused() as why:
        admin("SubmitJobs", jobs=[{"command": ["true"]}] * 2001)
    assert (why.code, why.reason) == ("RESOURCE_EXHAUSTED", "too_large")


# --- health and reflection


def test_health_service_reports_each_service_and_overall(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE, "gpu_scheduler.v1.AgentService", "gpu_scheduler.v1.NodeService"):
        asked = health_pb2.HealthCheckRequest(service=name)
        assert stub.Check(asked, timeout=LONGEST_S).status == health_pb2.HealthCheckResponse.SERVING
    with refused() as why:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=LONGEST_S)
    assert why.code == "NOT_FOUND"


def test_reflection_lists_every_service(channel: grpc.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = list(stub.ServerReflectionInfo(iter([asked]), timeout=LONGEST_S))
    names = {one.name for one in answer.list_services_response.service}
    assert names >= {SERVICE, "gpu_scheduler.v1.AgentService", "gpu_scheduler.v1.NodeService"}
    assert "grpc.health.v1.Health" in names


def test_client_generated_by_protoc_from_proto_file_works(cluster: Cluster, tmp_path: Path) -> None:
    """In a separate process that loads no module of this package."""
    source = Path(gpu_scheduler.__file__).parent / "wire" / "scheduler.proto"
    shutil.copy(source, tmp_path / "others.proto")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{tmp_path}"]
    command += [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}", "others.proto"]
    subprocess.run(command, check=True, timeout=LONGEST_S)
    program = """
import sys, grpc, others_pb2 as pb, others_pb2_grpc
address, token = sys.argv[1:]
with grpc.insecure_channel(address) as channel:
    stub = others_pb2_grpc.SchedulerServiceStub(channel)
    who = [("authorization", f"Bearer {token}")]
    jobs = [pb.JobSpec(command=["true"], hold=True) for _ in range(3)]
    made = stub.SubmitJobs(pb.SubmitJobsRequest(jobs=jobs), metadata=who, timeout=20)
    for job_id in made.job_ids:
        stub.CancelJob(pb.CancelJobRequest(job_id=job_id), metadata=who, timeout=20)
    status = pb.GetJobStatusRequest(job_id=made.job_ids[0])
    print(made.count, stub.GetJobStatus(status, metadata=who, timeout=20).state)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, cluster.nodes_address, token_of(cluster, role="admin")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert ended.stdout == "3 cancelled\n", ended.stderr


def test_very_many_connections_leave_the_server_files_for_others(cluster: Cluster) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < FILES_OF_SERVER + 200:
        pytest.skip("this process may not open more files than the server")
    host, _, port = cluster.nodes_address.rpartition(":")
    with ExitStack() as opened:
        for _ in range(FILES_OF_SERVER):
            opened.enter_context(socket.create_connection((host, int(port)), timeout=LONGEST_S))
        with cluster.client() as client:
            assert client.call("GET", "/api/v1/me")["role"] == "admin"
    with grpc.insecure_channel(cluster.nodes_address) as channel:
        grpc.channel_ready_future(channel).result(LONGEST_S)
