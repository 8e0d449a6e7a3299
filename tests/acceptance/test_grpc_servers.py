"""gRPC with several servers: a standby serves clients too, and every server knows every node."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gpu_scheduler.agent.enrollment import join
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.handshake import SERVER_NAME
from tests.ha_cluster import Servers, several_servers

SERVICE = "/gpu_scheduler.v1.SchedulerService"
LONGEST_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Servers]:
    with several_servers("a", "b", agents=("n1",), grpc_tls="on") as cluster:
        yield cluster


def places(cluster: Servers) -> tuple[str, str]:
    """The gRPC addresses of the leader and of the standby."""
    leader = cluster.leader()
    addresses = dict(zip(cluster.servers, cluster.nodes_address.split(","), strict=True))
    return addresses.pop(leader), next(iter(addresses.values()))


class Program:
    """A program that calls one server."""

    def __init__(self, cluster: Servers, address: str) -> None:
        with cluster.client() as client:
            me = client.call("GET", "/api/v1/me")["user"]
            made = client.call("POST", "/api/v1/tokens", {"user": me, "role": "admin"})
            authority = client.call("GET", "/api/v1/nodes/keys")["authority"]
        self._who = (("authorization", f"Bearer {made['token']}"),)
        self._channel = grpc.secure_channel(
            address,
            grpc.ssl_channel_credentials(str(authority).encode()),
            options=(("grpc.ssl_target_name_override", SERVER_NAME),),
        )

    def __call__(self, name: str, asked: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call(asked, metadata=self._who, timeout=LONGEST_S)

    def events(self, after: int) -> Any:
        call = self._channel.unary_stream(
            f"{SERVICE}/WatchEvents",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=pb.Event.FromString,
        )
        return call(pb.WatchEventsRequest(after=after), metadata=self._who, timeout=LONGEST_S)


@pytest.mark.slow
def test_program_that_knows_only_standby_can_do_everything(cluster: Servers) -> None:
    _, standby = places(cluster)
    program = Program(cluster, standby)
    job = pb.JobSpec(command=["true"], gpu_count=1)
    made = program("SubmitJob", pb.SubmitJobRequest(job=job), pb.SubmitJobAnswer)
    for event in program.events(0):
        if event.job_id == made.job_id and event.kind == "completed":
            break
    status = program("GetJobStatus", pb.GetJobStatusRequest(job_id=made.job_id), pb.Job)
    assert (status.state, status.allocation[0].node) == ("completed", "n1")
    held = pb.JobSpec(command=["true"], hold=True)
    many = program("SubmitJobs", pb.SubmitJobsRequest(jobs=[held] * 10), pb.SubmitJobsAnswer)
    assert many.count == 10
    gone = pb.CancelJobRequest(job_id=many.job_ids[0])
    assert program("CancelJob", gone, pb.CancelJobAnswer).status == "cancelled"
    with pytest.raises(grpc.RpcError) as raised:
        program("CancelJob", pb.CancelJobRequest(job_id="999999"), pb.CancelJobAnswer)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_standby_forwards_join_to_leader_which_signs_key(cluster: Servers) -> None:
    _, standby = places(cluster)
    assert asyncio.run(join("n8", [standby], cluster.token)).node == "n8"
    signed = [
        name
        for name, server in cluster.servers.items()
        if any("node joined" in line and "n8" in line for line in server.log().splitlines())
    ]
    assert signed == [cluster.leader()]


def test_next_leader_knows_every_node_key_and_revocation(cluster: Servers) -> None:
    leader = cluster.leader()
    cluster.tgpu("node", "revoke", "n8", TGPU_SERVER=cluster.address())
    cluster.servers[leader].kill()
    cluster.leader(other_than=leader)
    cluster.wait_for_nodes("n1")
    job = cluster.tgpu("submit", "-q", "--gpus", "1", "--", "true", TGPU_SERVER=cluster.address())
    cluster.tgpu("wait", job.strip(), TGPU_SERVER=cluster.address())
    with cluster.client() as client:
        keys = client.call("GET", "/api/v1/nodes/keys")["keys"]
    assert {key["node"]: key["state"] for key in keys} == {"n1": "active", "n8": "revoked"}
