"""What the client repeats, what it does not, and what it says when it gives up."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.client import Answer, ApiClient, Request, Retries, Stream
from gpu_scheduler.kubernetes.client.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    EvictionBlocked,
    Forbidden,
    Gone,
    Invalid,
    KubernetesError,
    MalformedAnswer,
    NotFound,
    OutcomeUnknown,
    Rejected,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_of_answer,
)
from gpu_scheduler.kubernetes.objects import CSI_NODES, LEASES, NODES, PODS, Lease, ObjectMeta, Pod
from tests.fakes.kubernetes.api import FakeApi, Fault
from tests.fakes.kubernetes.transport import FakeTransport
from tests.faults.virtual_loop import VirtualLoop


class World:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.client = ApiClient(FakeTransport(self.api), random=Random(1))

    async def a_pod(self, name: str = "a") -> Pod:
        content = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c"}]}}
        return await self.client.create(PODS, content, "default")

    async def a_lease(self) -> Lease:
        lease = Lease(metadata=ObjectMeta(name="lock", namespace="default"))
        return await self.client.create(LEASES, lease)

    def fail(self, method: str, **fault: Any) -> None:
        """The next requests of a method fail in this way."""
        self.api.faults.append(Fault(matches=lambda one: one.method == method, **fault))

    def sent(self, method: str) -> int:
        return sum(request.method == method for request in self.api.requests)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> float:
    """Run it; returns how long it took."""
    loop = VirtualLoop()
    loop.run(scenario(World()))
    assert loop.failures == []
    return loop.time()


BUSY = Answer(status=429, headers={"retry-after": "3"}, body=b'{"reason": "TooManyRequests"}')
BROKEN = Answer(status=500, body=b'{"message": "etcdserver: request timed out"}')


@pytest.mark.parametrize(
    "fault",
    [
        {"refuses_connection": True},
        {"loses_request": True},
        {"loses_answer": True},
        {"answer": BROKEN},
        {"answer": BUSY},
        {"answer": Answer(status=503, body=b"no healthy upstream")},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_read_is_repeated_until_it_succeeds(fault: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        made = await world.a_pod()
        world.fail("GET", times=4, **fault)
        assert await world.client.get(PODS, "a", "default") == made

    play(scenario)


def test_a_read_gives_up_after_some_attempts_with_growing_delays() -> None:
    async def scenario(world: World) -> None:
        world.client = ApiClient(
            FakeTransport(world.api), retries=Retries(attempts=4, first_delay_seconds=1.0)
        )
        world.fail("GET", times=99, refuses_connection=True)
        with pytest.raises(Unreachable):
            await world.client.get(PODS, "a", "default")
        assert world.api.faults[0].times == 95

    assert 3.5 <= play(scenario) <= 7.1  # 1 + 2 + 4 s, each at least half


def test_the_server_says_how_long_to_wait() -> None:
    async def scenario(world: World) -> None:
        await world.a_pod()
        world.fail("PATCH", times=2, answer=BUSY)
        await world.client.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")

    assert play(scenario) >= 6.0


@pytest.mark.parametrize("fault", ["refuses_connection", "answer"])
def test_a_write_that_was_not_carried_out_is_repeated(fault: str) -> None:
    async def scenario(world: World) -> None:
        world.fail("POST", times=3, **{fault: True if fault == "refuses_connection" else BUSY})
        await world.a_lease()
        assert world.sent("POST") == 1

    play(scenario)


@pytest.mark.parametrize("fault", [{"loses_request": True}, {"answer": BROKEN}])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_write_without_an_answer_is_not_repeated(method: str, fault: dict[str, Any]) -> None:
    async def scenario(world: World) -> None:
        lease = await world.a_lease()
        world.fail(method, times=99, **fault)
        client = world.client
        write: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "POST": world.a_pod,
            "PUT": lambda: client.replace(LEASES, lease),
            "PATCH": lambda: client.patch(LEASES, "lock", {}, "default"),
            "DELETE": lambda: client.delete(LEASES, "lock", "default"),
        }
        with pytest.raises(OutcomeUnknown):
            await write[method]()
        assert world.api.faults[0].times == 98

    play(scenario)


def test_an_apply_is_repeated_because_it_says_the_whole_wish() -> None:
    async def scenario(world: World) -> None:
        world.fail("PATCH", times=2, loses_answer=True)
        content = {"metadata": {"annotations": {"a": "1"}}}
        made = await world.client.apply(LEASES, "lock", content, "default", field_manager="us")
        assert made.metadata.annotations == {"a": "1"}
        assert world.sent("PATCH") == 3

    play(scenario)


@pytest.mark.parametrize("fault", ["loses_request", "loses_answer"])
def test_a_binding_whose_answer_was_lost_is_found_out(fault: str) -> None:
    async def scenario(world: World) -> None:
        pod = await world.a_pod()
        world.fail("POST", times=2, **{fault: True})
        await world.client.bind(
            "a", "default", uid=pod.metadata.uid, node="n1", annotations={"gpus": "3"}
        )
        bound = await world.client.get(PODS, "a", "default")
        assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"gpus": "3"})

    play(scenario)


@pytest.mark.parametrize(("node", "gpus"), [("n2", "3"), ("n1", "4")])
def test_a_binding_by_another_scheduler_is_not_taken_for_ours(node: str, gpus: str) -> None:
    async def scenario(world: World) -> None:
        pod = await world.a_pod()
        uid = pod.metadata.uid
        world.fail("POST", loses_request=True)

        async def other_scheduler() -> None:
            await asyncio.sleep(0.05)
            await world.client.bind("a", "default", uid=uid, node=node, annotations={"gpus": gpus})

        racing = asyncio.create_task(other_scheduler())
        with pytest.raises(Conflict):
            await world.client.bind("a", "default", uid=uid, node="n1", annotations={"gpus": "3"})
        await racing

    play(scenario)


def test_a_binding_gives_up_when_no_answer_comes_at_all() -> None:
    async def scenario(world: World) -> None:
        pod = await world.a_pod()
        world.fail("POST", times=99, loses_request=True)
        with pytest.raises(OutcomeUnknown):
            await world.client.bind("a", "default", uid=pod.metadata.uid, node="n1")
        assert world.api.faults[0].times == 94

    play(scenario)


def test_a_blocked_eviction_is_told_at_once() -> None:
    body = {"reason": "TooManyRequests", "details": {"causes": [{"reason": "DisruptionBudget"}]}}

    async def scenario(world: World) -> None:
        await world.a_pod()
        answer = Answer(status=429, headers={"retry-after": "10"}, body=json.dumps(body).encode())
        world.fail("POST", times=99, answer=answer)
        with pytest.raises(EvictionBlocked) as caught:
            await world.client.evict("a", "default")
        assert caught.value.retry_after_seconds == 10

    assert play(scenario) < 1


def test_an_object_that_is_read_in_part_cannot_be_replaced() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ValueError, match="would delete fields"):
            await world.client.replace(PODS, await world.a_pod())
        with pytest.raises(ValueError, match="no resourceVersion"):
            await world.client.replace(LEASES, Lease(metadata=ObjectMeta(name="lock")))

    play(scenario)


def test_an_answer_of_another_form_is_an_error_of_ours() -> None:
    async def scenario(world: World) -> None:
        world.fail("GET", answer=Answer(status=200, body=b"<html>a login page</html>"))
        with pytest.raises(MalformedAnswer):
            await world.client.get(PODS, "a", "default")
        world.fail("GET", answer=Answer(status=200, body=b'{"metadata": {"labels": 3}}'))
        with pytest.raises(MalformedAnswer, match="labels"):
            await world.client.get(PODS, "a", "default")

    play(scenario)


def test_null_stands_for_an_empty_list() -> None:
    node = b'{"metadata": {"name": "n1", "labels": null}, "spec": {"drivers": null}}'

    async def scenario(world: World) -> None:
        world.fail("GET", answer=Answer(status=200, body=node))
        found = await world.client.get(CSI_NODES, "n1")
        assert (found.metadata.name, found.metadata.labels, found.spec.drivers) == ("n1", {}, ())
        world.fail("GET", answer=Answer(status=200, body=b'{"items": [' + node + b"]}"))
        listing = await world.client.list(CSI_NODES)
        assert listing.items == [found]

    play(scenario)


def test_a_watch_survives_lines_that_come_in_pieces() -> None:
    event = {"type": "ADDED", "object": {"metadata": {"name": "a" * 300, "resourceVersion": "7"}}}
    text = json.dumps(event).encode() + b"\n\n" + json.dumps(event).encode() + b"\n"

    class Pieces(FakeTransport):
        def stream(self, request: Request) -> Any:
            async def chunks() -> Any:
                for start in range(0, len(text), 7):
                    yield text[start : start + 7]

            @asynccontextmanager
            async def opened() -> Any:
                yield Stream(status=200, headers={}, chunks=chunks())

            return opened()

    async def scenario(world: World) -> None:
        client = ApiClient(Pieces(world.api))
        events = [event async for event in client.watch(PODS, resource_version="1")]
        assert [event.object.metadata.name for event in events if event.object] == ["a" * 300] * 2

    play(scenario)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", BadRequest),
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", BadRequest),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (413, "RequestEntityTooLarge", TooLarge),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", OutcomeUnknown),
        (503, "ServiceUnavailable", OutcomeUnknown),
        (504, "Timeout", OutcomeUnknown),
    ],
)
def test_each_status_is_one_kind_of_error(
    status: int, reason: str, kind: type[KubernetesError]
) -> None:
    body = json.dumps({"kind": "Status", "reason": reason, "message": "why"}).encode()
    error = error_of_answer("GET /x", status, {}, body)
    assert type(error) is kind
    assert str(error) == f"GET /x: {status} {reason}: why"
    if isinstance(error, Rejected):
        assert (error.status, error.reason) == (status, reason)


def test_codes_are_different_for_each_kind_of_error() -> None:
    kinds, codes = [KubernetesError], []
    while kinds:
        kind = kinds.pop()
        codes.append(kind.code)
        kinds += kind.__subclasses__()
    assert len(codes) == len(set(codes))


def test_paths_are_quoted_and_complete() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("ns") == "/api/v1/namespaces/ns/pods"
    assert PODS.path("ns", "a", "binding") == "/api/v1/namespaces/ns/pods/a/binding"
    assert NODES.path(name="../x") == "/api/v1/nodes/..%2Fx"
    assert LEASES.path("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    with pytest.raises(ValueError, match="without its namespace"):
        PODS.path(name="a")


def test_fields_that_nobody_needs_are_dropped() -> None:
    text = {
        "metadata": {"name": "a", "managedFields": [{"manager": "x"}], "selfLink": "/x"},
        "spec": {"containers": [{"name": "c", "command": ["x"]}], "dnsPolicy": "ClusterFirst"},
        "status": {"hostIP": "10.0.0.1"},
    }
    pod = PODS.decoder.decode(json.dumps(text))
    assert pod.metadata.name == "a"
    assert not hasattr(pod.metadata, "managed_fields")
    assert PODS.list_decoder.decode(b'{"items": null}').items is None
